"""What one token costs: of a prompt, and of an answer, by how many answers are written at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.run import Run, percentile
from course.simulator.deployment import Deployment
from minillm.core.brief import brief

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT, CHUNK = 1000, 2048
"""Tokens: of those who write, so far; and of a prompt."""
MANY = 64
"""Prompt tokens in a step, from which on it counts as prefill in bulk."""


@dataclass(frozen=True)
class PerToken:
    """Seconds per token on one machine."""

    where: str
    prefill: float
    decode: dict[int, float]
    """By the number of answers written in the step."""

    __repr__ = brief

    def ratio(self, batch: int) -> float:
        """How many times as much a token of an answer costs as a token of a prompt."""
        return self.decode[batch] / self.prefill


def measured(runs: Sequence[Run], where: str = "here") -> PerToken:
    """From step records: medians over steps that only prefill, and over steps that only decode.

    Raises:
        ValueError: there are no steps of one kind.
    """
    steps = [step for run in runs for step in run.steps]
    bulk = [step for step in steps if step.num_prefill_tokens == step.num_tokens]
    most = max((step.num_tokens for step in bulk), default=0)
    prefill = [(step.end - step.start) / step.num_tokens for step in bulk if step.num_tokens >= min(MANY, most)]
    decode: dict[int, list[float]] = {}
    for step in steps:
        if not step.num_prefill_tokens and step.num_tokens:
            decode.setdefault(step.num_tokens, []).append((step.end - step.start) / step.num_tokens)
    if not prefill or not decode:
        raise ValueError("these runs have no steps that only prefill, or none that only decode")
    return PerToken(where, percentile(prefill, 50), {n: percentile(each, 50) for n, each in sorted(decode.items())})


def simulated(on: Deployment | None = None, batches: Sequence[int] = BATCHES) -> PerToken:
    """At 70B: the price of one step of each kind, straight from the simulator's step model."""
    on = on or simulated_70b.deployment()
    price = on.step_time().price
    prefill = price(simulated_70b.prefill_work(CHUNK)).total / CHUNK
    decode = {n: price(simulated_70b.decode_work(n, CONTEXT)).total / n for n in batches}
    return PerToken("70B, simulated", prefill, decode)
