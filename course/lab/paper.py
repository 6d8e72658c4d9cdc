"""The capacity worksheet on paper: what one replica does with requests of one length, and how many replicas that makes.

Nothing queues here, and nothing is simulated: a few steps are priced. So it answers while a slider moves, in a notebook
and in a browser tab.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from course.lab.style import number, seconds, size
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.roofline import StepWork
from course.simulator.deployment import Deployment
from minillm.core.errors import MinillmError

Values = Mapping[str, Any]
"""What is asked, by the fields' names."""
LARGEST_BATCH = 1024
"""Requests in the largest batch that is looked at."""
DOES_NOT_FIT = (
    "These weights don't fit on so few GPUs, or the card has no such arithmetic: take more GPUs, or fewer bits."
)
NO_TRAFFIC = (
    "Prompt and output are at least one token, the rate is above 0, "
    "headroom is at least 0 and below 100%, and a price isn't negative."
)
TOO_SLOW = "Even a single request is slower than your TPOT: more replicas can't help, faster ones can."
TOO_LONG = "Not even one request of that length fits in the KV cache: take more GPUs, or fewer bits."
LATE = "A prompt alone takes longer than your TTFT: more replicas can't help, more GPUs in each can."
TOO_SLOW_ALONE = "batch 1 is too slow"
ON_PAPER = "On paper: equal requests, nothing queues."


@dataclass(frozen=True)
class Choice:
    """One of a few."""

    name: str
    label: str
    group: str
    options: Sequence[str]
    value: str


@dataclass(frozen=True)
class Number:
    """A number between two ends."""

    name: str
    label: str
    group: str
    unit: str
    low: float
    high: float
    value: float
    whole: bool = False


@dataclass(frozen=True)
class PaperAnswer:
    """What a worksheet shows; view/sheet.js describes it too."""

    words: str
    replicas: int | None = None
    """None = no number of them does it."""
    rows: Sequence[tuple[str, str, str]] = ()
    """What, how much, and why."""


@dataclass(frozen=True)
class SheetSpec:
    """A worksheet: what is asked, and of which replica. Fields that it wants: card, gpus, qps, prompt, output, ttft
    (seconds), itl (milliseconds), headroom (percent), price."""

    fields: Sequence[Choice | Number]
    replica: Callable[[Values], Deployment]
    """The deployment that was chosen. It may raise a MinillmError: it can't be."""
    asks: str
    """Under which name a page asks Python in its tab for an answer (course/tab/answer.py)."""

    @property
    def usual(self) -> dict[str, Any]:
        """What is asked before anything is moved."""
        return {field.name: field.value for field in self.fields}

    def told(self, is_simulated: bool) -> dict[str, Any]:
        """JSON-able, with the answer to what is asked at first."""
        cards = next(field.options for field in self.fields if isinstance(field, Choice) and field.name == "card")
        dollars = {card: find_hardware(card).price_per_hour for card in cards}
        fields, answer = [asdict(field) for field in self.fields], self.answer(self.usual)
        told = {"fields": fields, "dollars": dollars, "answer": asdict(answer)}
        return told | {"asks": self.asks, "isSimulated": is_simulated}

    def answer(self, asked: Values) -> PaperAnswer:
        """How many replicas that takes, on paper. What can't be answered says why."""
        prompt, output, share = int(asked["prompt"]), int(asked["output"]), 1 - asked["headroom"] / 100
        if not (prompt >= 1 and output >= 1 and asked["qps"] > 0 and 0 < share <= 1 and asked["price"] >= 0):
            return PaperAnswer(NO_TRAFFIC)
        try:
            on = self.replica(asked)
            envelope = Envelope.of(on, prompt, output, asked["itl"] / 1e3)
        except MinillmError:
            return PaperAnswer(DOES_NOT_FIT)
        rows = envelope.rows(on, asked["ttft"])
        if trouble := envelope.trouble(asked["ttft"]):
            return PaperAnswer(trouble, rows=rows)
        return PaperAnswer(ON_PAPER, math.ceil(asked["qps"] / (envelope.rate * share)), rows)


@dataclass(frozen=True)
class Envelope:
    """One replica with requests of one length, at the largest batch that fits and keeps the TPOT."""

    prompt: int
    output: int
    fits: int
    """Requests whose KV fits together."""
    batch: int
    """Requests in that largest batch; 0 = even one is too slow."""
    prefill_s: float
    alone_s: float
    """A step of a single request."""
    step_s: float
    """A step of that batch; NaN without one."""
    gap_s: float
    """Between two tokens of a request in that batch, others' prompts included; NaN without one."""

    @classmethod
    def of(cls, on: Deployment, prompt: int, output: int, tpot_s: float) -> "Envelope":
        """Worked out from the prices of single steps. While a request decodes, a whole batch of others comes and goes,
        so it waits for as many prompts as the batch has requests.

        Raises:
            DoesNotFitError: the weights leave no room for a block.
        """
        steps, context = on.step_time(), prompt + output / 2
        fits = on.num_kv_blocks * on.block_size // (prompt + output)
        prefill_s = steps.price(StepWork.of_prompt(prompt)).total

        def step_s(batch: int) -> float:
            return steps.price(StepWork.of_decodes(batch, context)).total

        def gap_s(batch: int) -> float:
            return step_s(batch) + batch * prefill_s / output

        batch = max((each for each in _batches(min(fits, LARGEST_BATCH)) if gap_s(each) <= tpot_s), default=0)
        at_best = (step_s(batch), gap_s(batch)) if batch else (math.nan, math.nan)
        return cls(prompt, output, fits, batch, prefill_s, step_s(1), *at_best)

    def trouble(self, ttft_s: float) -> str:
        """Why no number of such replicas does it; "" = some does."""
        if not self.fits:
            return TOO_LONG
        if not self.batch:
            return TOO_SLOW
        return LATE if self.prefill_s > ttft_s else ""

    @property
    def rate(self) -> float:
        """Requests a second; more, and a queue grows."""
        return self.batch / (self.output * self.gap_s) if self.batch else 0.0

    def rows(self, on: Deployment, ttft_s: float) -> list[tuple[str, str, str]]:
        """What is known of the replica, a row a fact."""
        request_bytes = on.model.kv_bytes_per_token(on.placement.kv_dtype) * (self.prompt + self.output)
        token_kb = number(on.model.kv_bytes_per_token(on.placement.kv_dtype) / 1e3)
        slow = "over your SLO before anything queues" if self.prefill_s > ttft_s else "the whole prompt in one step"
        largest = f"a step takes {seconds(self.step_s)}, a token {seconds(self.gap_s)} with others' prompts"
        knee = f"{number(self.rate * self.output)} output tokens/s; a queue grows from here on"
        return [
            ("Knee of one replica", f"{number(self.rate)}/s", knee),
            ("Largest batch in your TPOT", *((str(self.batch), largest) if self.batch else ("none", TOO_SLOW_ALONE))),
            ("TTFT, nothing queued", seconds(self.prefill_s), slow),
            ("TPOT of one request", seconds(self.alone_s), "batch 1"),
            ("Requests that fit", str(self.fits), f"{on.num_kv_blocks * on.block_size:,} tokens of KV cache"),
            ("KV of one request", size(request_bytes), f"{token_kb} kB a token"),
            ("Weights", size(on.placement.weight_bytes(on.model)), f"on {on.placement.tp} GPUs together"),
        ]


def _batches(most: int) -> list[int]:
    """Sizes to try: all small ones, then every twentieth part more."""
    found, batch = [], 1
    while batch <= most:
        found.append(batch)
        batch = max(batch + 1, math.floor(batch * 1.05))
    return found
