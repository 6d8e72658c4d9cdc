"""SimulatedRunner: executes steps by looking up what they would cost, and moving a clock.

It knows no model and no token. What comes out of a request is its length, which the caller decides
(max_tokens, ignore_eos); the token ids are made up, the same ones every time.
"""

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from minillm.core.batch import ScheduledBatch, ScheduledRequest, StepOutput
from minillm.core.request import Draft, Request
from minillm.core.timeline import VirtualClock
from minillm.speculation.base import DraftRequest, Proposer


class StepPrice(Protocol):
    """Seconds of one step."""

    @property
    def forward(self) -> float:
        """Until the forward pass is done."""
        ...

    @property
    def total(self) -> float:
        """Until its tokens are handed over."""
        ...


StepWatch = Callable[[ScheduledBatch, StepPrice, float], None]
"""Sees every step when it is launched: its batch, its price, and the clock second at which it will end."""

DecodeSeconds = Callable[[int, Iterable[int]], list[float]]
"""Seconds of each of several steps in which so many requests get a token: by the sums of their contexts, tokens."""
TOKEN_STRIDE = 7919
"""A prime: answers of different requests begin so many made-up tokens apart, and hardly ever with the same one."""


@dataclass(frozen=True, slots=True)
class SimulatedDrafting:
    """What speculation is like: the price of drafts, and how many of their tokens pass."""

    seconds: Callable[[ScheduledBatch], float]
    """Seconds it takes to draft what the batch checks."""
    acceptance_rate: float
    """Each draft token passes with this probability, if those before it have."""
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def num_accepted(self, scheduled: ScheduledRequest) -> int:
        """How many of a request's draft tokens pass this time."""
        passed = 0
        while passed < scheduled.num_drafts and self.rng.random() < self.acceptance_rate:
            passed += 1
        return passed


NO_DRAFTING = SimulatedDrafting(lambda batch: 0.0, 0.0)


@dataclass(eq=False)
class SimulatedRunner:
    """A device that takes as long as `price` says. Steps that are launched ahead wait for each other."""

    price: Callable[[ScheduledBatch], StepPrice]
    """What a batch costs, its block copies apart; a batch of copies alone should cost nothing more."""
    clock: VirtualClock
    """The engine's. `wait` moves it to the end of the step."""
    _: KW_ONLY
    num_kv_blocks: int
    decode_seconds: DecodeSeconds | None = None
    """What many steps cost that do nothing but decode; None = no fast-forward: each step is watched."""
    num_host_blocks: int = 0
    block_size: int = 16
    """Tokens per block."""
    swap_s_per_block: float = 0.0
    """Seconds to copy one KV block to the host or back."""
    kv_bytes_per_token: float = 0.0
    """Bytes of a token's keys and values over all accelerators: what a prefill pool hands over."""
    vocab_size: int = 32_000
    """Made-up tokens are below it."""
    answer: list[int] = field(default_factory=list)
    """Made-up tokens are these, over and over, where they are to have a text; none = all below vocab_size."""
    runs_beside_python: bool = True
    """True, as on a GPU: the next step is scheduled while this one runs."""
    watch: StepWatch | None = None
    """Sees every step."""
    drafting: SimulatedDrafting = NO_DRAFTING
    """For an engine that speculates, with a MadeUpProposer."""

    def __post_init__(self) -> None:
        self.free_at = self.clock.now()
        """When the device will have done all it was given."""

    def tokens(self, request: Request, start: int, stop: int) -> list[int]:
        """The made-up tokens after contexts of `start` to `stop` - 1 tokens. They depend on the request and the
        position only: a request that is preempted and computed again agrees with itself."""
        known = self.answer or vocabulary(self.vocab_size)
        first, size = TOKEN_STRIDE * request.arrival_index, len(known)
        begin = (first + start) % size
        if begin + stop - start <= size:  # nearly always
            return known[begin : begin + stop - start]
        return [known[(first + end) % size] for end in range(start, stop)]

    def launch(self, batch: ScheduledBatch) -> "SimulatedStep":
        """Price the step and queue it behind what the device is doing."""
        self.copy_blocks(batch)
        start = max(self.free_at, self.clock.now())
        drafted = start + self.drafting.seconds(batch)
        price = self.price(batch)
        self.free_at = drafted + price.total
        if self.watch is not None:
            self.watch(batch, price, self.free_at)
        return SimulatedStep(self, batch, start, drafted, drafted + price.forward, self.free_at)

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        """The device is busy copying blocks."""
        copies = len(batch.saves) + len(batch.loads)
        if copies:
            self.free_at = max(self.free_at, self.clock.now()) + copies * self.swap_s_per_block


@functools.lru_cache(maxsize=4)
def vocabulary(size: int) -> list[int]:
    """All token ids. A slice of it costs far less than to make its numbers again."""
    return list(range(size))


@dataclass(slots=True)
class SimulatedStep:
    """A step on its way, with the seconds on the clock at which its parts are done."""

    runner: SimulatedRunner
    batch: ScheduledBatch
    start: float
    drafted: float
    forward_end: float
    end: float

    def wait(self) -> StepOutput:
        """Move the clock to the step's end, and make its tokens up."""
        self.runner.clock.advance_to(self.end)
        tokens = {s.request.request_id: self._tokens(s) for s in self.batch.requests if s.samples}
        stages = {"build": 0.0, "forward": self.forward_end - self.drafted, "sample": self.end - self.forward_end}
        if self.drafted > self.start:
            stages = {"draft": self.drafted - self.start, **stages}
        return StepOutput(tokens, self.forward_end, stages)

    def _tokens(self, scheduled: ScheduledRequest) -> list[int]:
        first = scheduled.end - scheduled.num_drafts
        last = first + self.runner.drafting.num_accepted(scheduled)
        return self.runner.tokens(scheduled.request, first, last + 1)


class MadeUpProposer(Proposer):
    """Drafts as long as wanted, all tokens 0: the runner above decides itself how many pass."""

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft([0] * k) for _, k in wanted]
