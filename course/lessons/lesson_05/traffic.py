"""Two kinds of requests: writers, which are decoding long answers, and newcomers, which bring a long prompt."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from course.lab.lab import Lab
from course.lab.predict import Outcome
from course.lab.run import Run, itl_of, percentile
from course.lab.style import seconds
from course.lab.texts import CHAT_QUESTIONS, MANUAL, MANUAL_QUESTIONS
from course.lab.workloads import Arrival, Workload, document
from minillm.frontend.snapshot import RequestView

SLOTS = 12
"""More than there are requests: none ever waits for a slot."""
POLICIES: dict[str, dict[str, object]] = {
    "prefill first": {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_num_seqs": SLOTS},
    "mixed": {"max_num_batched_tokens": 32, "max_num_seqs": SLOTS},
    "decode first": {
        "batching": "static",
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": SLOTS,
    },
}
"""Each is a few fields of EngineConfig."""
BRIEF = 4
"""Output tokens of a newcomer; writers want more."""
SHORTEST, LONGEST = 24, 200
"""Output tokens of a writer, at least and at most."""
SAME_STEPS = "none: they take the very same steps"
PACES = {"calm": 4.0, "busy": 1.6, "rush": 0.5}
"""Seconds between newcomers, in prefill times of one of them: the same crowd on any machine."""


def page(number: int, lab: Lab) -> str:
    """A newcomer's prompt: a page no other prompt has, and a question."""
    paragraphs = 4 if lab.scale == 1 else 1
    return f"Page {number}.\n\n{document(random.Random(number), paragraphs)}\n\n{MANUAL_QUESTIONS[number % 10]}"


def one_by_one(lab: Lab) -> Workload:
    """Three newcomers, each alone: the last two tell the machine's pace."""
    arrivals = tuple(Arrival(0.0, page(i, lab), BRIEF) for i in range(3))
    return Workload("one by one", "Newcomers that never meet.", arrivals, max_in_flight=1)


class Pace(NamedTuple):
    """How fast this machine is with one newcomer who is alone. Seconds. Arrivals keep to it."""

    prefill_s: float
    """To the first token."""
    token_s: float
    """Between two tokens."""


def pace(lab: Lab) -> Pace:
    """Measure it: medians."""
    run = lab.run(one_by_one(lab), max_num_batched_tokens=2048)
    return Pace(percentile(run.ttft[1:], 50), percentile(run.itl, 50))


def company(lab: Lab, pace: Pace, gap: float = PACES["busy"]) -> Workload:
    """Writers, who have enough to write until the last newcomer is there; one comes every `gap` paces."""
    num_newcomers = 5 if lab.scale == 1 else 3
    newcomers = [Arrival((1 + gap * i) * pace.prefill_s, page(i, lab), BRIEF) for i in range(num_newcomers)]
    about = "Requests that decode, and requests that arrive."
    return Workload(f"company, gap {gap:g}", about, (*_writers(lab, pace, 2 + gap * (num_newcomers - 1)), *newcomers))


def _writers(lab: Lab, pace: Pace, paces: float) -> list[Arrival]:
    """Short questions with answers that take so many paces to write, undisturbed."""
    count = 4 if lab.scale == 1 else 2
    tokens = min(max(round(1.1 * paces * pace.prefill_s / pace.token_s), SHORTEST), LONGEST)
    return [Arrival(0.0, f"({i}) {CHAT_QUESTIONS[i]}", tokens) for i in range(count)]


def calm(lab: Lab) -> Workload:
    """Short questions, one at a time: no two ever meet."""
    count = 6 if lab.scale == 1 else 2
    arrivals = tuple(Arrival(0.0, f"({i}) {CHAT_QUESTIONS[i]}", 8) for i in range(count))
    return Workload("calm", "Short questions, one at a time.", arrivals, max_in_flight=1)


def with_rules(lab: Lab, num_newcomers: int, pace: Pace | None = None) -> Workload:
    """Newcomers whose prompts all begin with the same rules: one at a time, or at a pace while writers write."""
    rules = f"The rules of this office: {MANUAL[0]}"
    prompts = [f"{rules}\n\n{page(i, lab)}" for i in range(num_newcomers)]
    if pace is None:
        about = "Newcomers with the same rules, one at a time."
        return Workload("alone", about, tuple(Arrival(0.0, p, BRIEF) for p in prompts), max_in_flight=1)
    newcomers = [Arrival((1 + 0.4 * i) * pace.prefill_s, prompt, BRIEF) for i, prompt in enumerate(prompts)]
    about = "Newcomers close together, while others write."
    return Workload("in company", about, (*_writers(lab, pace, 2 + 0.4 * num_newcomers), *newcomers))


def shrinking(lab: Lab) -> Workload:
    """Short questions, all at once, each with a longer answer than the one before: the batch shrinks one by one."""
    count, step = (8, 6) if lab.scale == 1 else (4, 3)
    arrivals = (Arrival(0.0, f"({i}) {CHAT_QUESTIONS[i]}", step * (i + 1)) for i in range(count))
    return Workload("shrinking", "A batch that loses one request after another.", tuple(arrivals))


def newcomers(run: Run) -> list[RequestView]:
    return [view for view in run.views if view.max_tokens <= BRIEF]


def writers(run: Run) -> list[RequestView]:
    return [view for view in run.views if view.max_tokens > BRIEF]


def ttft_of(views: Sequence[RequestView]) -> list[float]:
    """Seconds to the first token, of those who have one."""
    return [view.deliveries[0] - view.borders[0] for view in views if view.deliveries]


def pauses(run: Run) -> list[float]:
    """All gaps between two tokens of a writer, seconds."""
    return [gap for view in writers(run) for gap in itl_of(view)]


def pause(run: Run) -> float:
    """What a writer has to expect: the 99th percentile of all gaps, seconds. One hiccup of the machine is not in it."""
    return percentile(pauses(run), 99)


def noise(runs: Iterable[Run]) -> float:
    """How unsteady this machine was: equal steps (only decoding, equally many), their p90 over their p10."""
    equal: dict[int, list[float]] = {}
    for run in runs:
        for step in run.steps:
            if not step.num_prefill_tokens:
                equal.setdefault(step.num_tokens, []).append(step.end - step.start)
    most = max(equal.values(), key=len, default=[])
    return percentile(most, 90) / percentile(most, 10) if most else 1.0


def plan(run: Run) -> list[tuple[int, int]]:
    """What each step computed: prompt tokens, and other tokens. It does not depend on how fast the machine is."""
    return [(step.num_prefill_tokens, step.num_tokens - step.num_prefill_tokens) for step in run.steps]


def wins_when_calm(runs: Mapping[str, Run]) -> Outcome:
    """None, if all policies took the same steps; otherwise the one with the lowest median TTFT."""
    plans = {name: plan(run) for name, run in runs.items()}
    ttft = {name: percentile(run.ttft, 50) for name, run in runs.items()}
    told = ", ".join(f"{name} {seconds(value)} in {len(plans[name])} steps" for name, value in ttft.items())
    first = next(iter(plans.values()))
    same = all(each == first for each in plans.values())
    return Outcome(SAME_STEPS if same else min(ttft, key=ttft.get), f"median TTFT and steps: {told}")
