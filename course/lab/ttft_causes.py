"""One time to first token, cut by cause. The pieces tile it, so they sum to it exactly.

Inside the engine the cut follows the step records. A step that the request is in is split into what it costs whatever
is in it, and what prompts and decodes add to that: by the same model as the engine's own `stalled_by_prefill`
(minillm/observe/step_cost.py), which here sees the whole run. What happens outside the engine is stamped by outside.py,
or is the simulator's network (simulated.py).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course.lab.run import Run
from course.lab.style import ALARM
from minillm.core.step_log import StepRecord
from minillm.observe.step_cost import StepCost, split_steps


@dataclass(frozen=True)
class TtftCause:
    """One reason why a first token is not there yet."""

    help: str
    fill: str
    """A phase, whose colour and pattern it shares; or a colour of its own."""


CAUSES: dict[str, TtftCause] = {
    "way in": TtftCause("client to server: connection, network, HTTP, until the whole body is there", "stream"),
    "parsing": TtftCause("reading the JSON, validation", "stream"),
    "tokenizing": TtftCause("text to token ids, and waiting for a thread that does it", "stream"),
    "queue": TtftCause("no step that includes the request has begun: the one before may still run", "queue"),
    "prefill": TtftCause("its steps as a whole, not split by whose tokens they computed (simulated.py)", "prefill"),
    "others' prompts": TtftCause("what other requests' prompts added to its steps", ALARM),
    "others' answers": TtftCause("what the requests that decode added to its steps", "decode"),
    "fixed cost": TtftCause(
        "of its steps, once for all in them: what a step takes before it has any tokens", "#8C6D46"
    ),
    "cold cache": TtftCause("its own tokens in a prefix shared with another prompt, not cached", "#56B4E9"),
    "own prefill": TtftCause("what its own other tokens added", "prefill"),
    "bookkeeping": TtftCause("around its forward passes: scheduling, laying out the batch, Python", "#F0E442"),
    "sampling": TtftCause("from logits to a token id, for the whole batch", "first_token"),
    "detokenizing": TtftCause("token id to text: its neighbours' that come before it, then its own", "first_token"),
    "way out": TtftCause("handed over, until the client has read it: event loop, HTTP, network", "stream"),
}
"""The causes, in the order in which they first happen."""

Breakdown = Mapping[str, float]
"""Seconds by cause; their sum is the TTFT."""


@dataclass(frozen=True)
class Stay:
    """What the engine's share of a TTFT depends on. Clock seconds."""

    request_id: str
    arrival: float
    prefill_end: float
    first_token: float
    cold_tokens: int = 0
    """The first so many tokens that it computed could have been in the cache."""


def causes_inside(stay: Stay, steps: Sequence[StepRecord], costs: Sequence[StepCost]) -> dict[str, float]:
    """Cut the engine's part of a TTFT, from arrival to the first token.

    Where one step was launched while another still ran, the seconds of both are the earlier one's: a device computes
    them one after the other.

    Args:
        steps: in the order in which they were launched; all that touch the stay.
        costs: what each of them costs (`split_steps`, of all steps of the run).
    """
    spent = dict.fromkeys(CAUSES, 0.0)
    now, begun, cold, last = stay.arrival, False, stay.cold_tokens, None
    for step, cost in zip(steps, costs):
        until = min(step.end, stay.prefill_end)
        if until <= now or step.start >= stay.prefill_end:
            continue
        own = sum(share.num_tokens for share in step.shares if share.request_id == stay.request_id)
        if step.start > now:
            spent["bookkeeping" if begun else "queue"] += step.start - now
            now = step.start
        begun = begun or own > 0
        if begun:
            share_out(spent, step, cost, until - now, own, min(cold, own))
            cold -= min(cold, own)
            last = step
        else:
            spent["queue"] += until - now
        now = until
    spent["bookkeeping" if begun else "queue"] += stay.prefill_end - now
    rest = stay.first_token - stay.prefill_end
    spent["sampling"] = min(rest, last.stages.get("sample", rest)) if last else rest
    spent["detokenizing"] = rest - spent["sampling"]
    return spent


def share_out(spent: dict[str, float], step: StepRecord, cost: StepCost, seconds: float, own: int, cold: int) -> None:
    """Book `seconds` of a step: what is around its forward pass as bookkeeping, what prompts and decodes added under
    their causes, and the rest of the forward pass as its fixed cost. Prompts share what they added by tokens.

    Args:
        own: tokens of this request in the step; 0 = it was left out, so that all of the step is the others'.
        cold: how many of its own tokens could have been in the cache.
    """
    forward = min(seconds, step.stages.get("forward", seconds))
    prompts = min(cost.prompts, forward)
    answers = min(cost.decodes + cost.drafts, forward - prompts)
    if not own and prompts + answers > 0:
        scale = forward / (prompts + answers)
        prompts, answers = prompts * scale, answers * scale
    spent["bookkeeping"] += seconds - forward
    spent["fixed cost"] += forward - prompts - answers
    spent["others' answers"] += answers
    if step.num_prefill_tokens:
        each = prompts / step.num_prefill_tokens
        spent["cold cache"] += each * cold
        spent["own prefill"] += each * (own - cold)
        spent["others' prompts"] += each * (step.num_prefill_tokens - own)


def shared_tokens(prompts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """Leading tokens of each prompt, in whole blocks, that another prompt begins with, too."""
    order = sorted(range(len(prompts)), key=lambda i: list(prompts[i]))
    longest = [0] * len(prompts)
    for i, j in itertools.pairwise(order):  # the longest common beginning is with a neighbour in the alphabet
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompts[i], prompts[j])))
        longest[i], longest[j] = max(longest[i], same), max(longest[j], same)
    # The last token is never taken from the cache: one has to be computed to yield the first logits.
    return [min(n, len(prompt) - 1) // block_size * block_size for n, prompt in zip(longest, prompts)]


def causes_of_run(run: Run) -> dict[int, dict[str, float]]:
    """Every TTFT of a finished run by cause, by row. Tokenizing is part of the queue here: there is no server."""
    # Rows and outputs agree in order: both are the workload's.
    rows = [row for row in run.rows if row.view is not None and row.view.deliveries]
    prompts = [output.prompt_token_ids for output in run.outputs]
    shared = shared_tokens(prompts, run.snapshot.block_size) if len(prompts) == len(rows) else [0] * len(rows)
    found, costs = {}, split_steps(run.steps)
    for row, common in zip(rows, shared):
        view = row.view
        stay = Stay(
            view.request_id,
            view.borders[0],
            view.borders[2],
            view.deliveries[0],
            max(common - view.num_cached_tokens, 0),
        )
        found[row.index] = causes_inside(stay, run.steps, costs)
    return found


def mean(breakdowns: Sequence[Breakdown]) -> dict[str, float]:
    """Seconds by cause, averaged. Means add up: their sum is the mean TTFT."""
    return {cause: sum(b.get(cause, 0.0) for b in breakdowns) / max(len(breakdowns), 1) for cause in CAUSES}
