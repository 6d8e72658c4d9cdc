"""Short answers: is there anything to lose? Measured with looked-up drafts, priced for a draft model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lab.simulated_70b import prefill_work
from course.lessons.lesson_08 import traffic
from course.lessons.lesson_08.formulas import emitted
from course.lessons.lesson_08.served import ALWAYS, WITHOUT, Served, compare
from course.lessons.lesson_08.sim_70b import ALPHA, DRAFT_MODEL, K, price_round
from course.simulator.cost.models import find_model
from course.simulator.deployment import Deployment

LENGTHS, SHORT_LENGTHS = (6, 24, 48), (4, 12)
PROMPTS = (100, 1000, 4000)


def measure(lab: Lab) -> list[Served]:
    """Answers of a few lengths, without drafts and with every draft that can be looked up."""
    lengths = LENGTHS if lab.scale == 1 else SHORT_LENGTHS
    # Cut short: there is little text to gain back in what drafting cost.
    work = [traffic.workload(traffic.CHAT, 3 if lab.scale == 1 else 2, tokens) for tokens in lengths]
    return compare(lab, work, {WITHOUT: traffic.OFF, ALWAYS: traffic.ALWAYS}, rounds=5 if lab.scale == 1 else 3)


@dataclass(frozen=True)
class PayBack:
    """A draft model has to read the prompt before its first guess."""

    prompt: int
    """Tokens"""
    reading: float
    """Seconds that the draft model reads."""
    saved: float
    """Seconds that speculation saves per output token; below 0 it loses with every one."""

    @property
    def tokens(self) -> float | None:
        """Output tokens after which the reading is paid for; None = never."""
        return self.reading / self.saved if self.saved > 0 else None

    @property
    def words(self) -> str:
        if self.tokens is None:
            return "never"
        count = math.ceil(self.tokens)
        return f"{count} token{'s' if count != 1 else ''}"


def pay_back(on: Deployment, prompt: int, alpha: float = ALPHA, k: int = K) -> PayBack:
    """For one request by itself, with a 1B draft model on the same GPUs."""
    reading = on.step_time(find_model(DRAFT_MODEL)).price(prefill_work(prompt)).total
    one = price_round(on, 1, prompt, k, DRAFT_MODEL)
    return PayBack(prompt, reading, one.plain - (one.verify + k * one.draft) / emitted(alpha, k))


def pay_backs(on: Deployment, prompts: Sequence[int] = PROMPTS) -> list[PayBack]:
    return [pay_back(on, prompt) for prompt in prompts]
