"""Steps in flight, and the records of those that are over."""

import functools
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from minillm.core.batch import LaunchedStep, ScheduledBatch, ScheduledRequest, StepOutput
from minillm.core.brief import brief
from minillm.core.request import FinishReason, Request

STEP_HISTORY = 4096
"""Step records kept by an engine."""


class StepShare(NamedTuple):
    """What one request got out of one step."""

    request_id: str
    num_tokens: int
    is_prefill: bool
    """True while it computes prompt tokens, or recomputes after a preemption."""
    num_drafts: int = 0
    """Draft tokens that were checked."""
    num_accepted: int = 0
    """Draft tokens that were accepted."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step: who was in it, and where its time went. Times in seconds."""

    step_id: int
    start: float
    end: float
    shares: tuple[StepShare, ...]
    num_waiting: int
    num_running: int
    """Requests that hold a slot. One or two of them may have no share: they wait for a pending token, or for budget."""
    kv_blocks_used: int
    """Blocks some request holds. Free blocks that still cache a prefix do not count."""
    kv_blocks_total: int
    preempted: tuple[str, ...]
    stages: dict[str, float]
    """Seconds in draft (if there was any), schedule, build, forward, sample, detokenize; they sum to at most
    end - start."""
    num_context_tokens: int = 0
    """Tokens that the requests which decode attend to, their newest ones included."""

    __repr__ = brief

    @property
    def num_tokens(self) -> int:
        return sum(share.num_tokens for share in self.shares)

    @property
    def num_prefill_tokens(self) -> int:
        return sum(share.num_tokens for share in self.shares if share.is_prefill)


@dataclass(slots=True)
class StepInFlight:
    """A step that was launched and not waited for yet, and what was written down of it then. Clock seconds."""

    batch: ScheduledBatch
    start: float
    draft_s: float
    """Seconds from then on that went into drafts."""
    scheduled_at: float
    num_preemptions: list[int]
    """Each request's preemptions so far."""
    num_waiting: int
    num_running: int
    kv_blocks_used: int
    launched: LaunchedStep | None = None
    error: Exception | None = None
    """Why it can't be waited for: it could not be launched, or it built on a step that failed."""


class FinishedStep(NamedTuple):
    """A step that is over, as listeners see it."""

    record: StepRecord
    batch: ScheduledBatch
    output: StepOutput
    alive: Sequence[bool]
    """Whether each of its requests was still there when the step ended."""


class StepLog:
    """Records of the last steps, and counters over all of them."""

    def __init__(self, num_kv_blocks: int) -> None:
        self.num_kv_blocks = num_kv_blocks
        self.records: deque[StepRecord] = deque(maxlen=STEP_HISTORY)
        self.num_recomputed_tokens = 0
        self.listeners: list[Callable[[FinishedStep], None]] = []
        """Get each step when its record is written, from the thread that steps. They must not wait, nor raise.
        What a step cost whom is told by one of them: minillm/observe/attribution.py."""

    def write(self, step: StepInFlight, output: StepOutput, executed: float, end: float, alive: Sequence[bool]) -> None:
        """Write a finished step down.

        With asynchronous scheduling a step is launched while the one before it runs. Its record begins
        where that one ended, so that records never overlap; what Python did before is hidden behind it.

        Args:
            executed: when it was seen to be done, clock seconds.
            end: when its tokens had been handed over.
            alive: whether each of its requests was still there when it was done.
        """
        batch = step.batch
        start = max(step.start, self.records[-1].end) if self.records else step.start
        drafting = {"draft": step.draft_s} if step.draft_s else {}
        schedule_s = step.scheduled_at - step.start - step.draft_s
        seconds = {**drafting, "schedule": schedule_s, **output.stages}
        # Laid out backwards from the moment it was seen to be done: however long it queued on the device before, its
        # forward pass is the last thing that it did there.
        begin = executed - sum(seconds.values())
        shares, num_context_tokens = shares_of(batch, output)
        record = StepRecord(
            step_id=batch.step_id,
            start=start,
            end=end,
            shares=tuple(shares),
            num_waiting=step.num_waiting,
            num_running=step.num_running,
            kv_blocks_used=step.kv_blocks_used,
            kv_blocks_total=self.num_kv_blocks,
            preempted=tuple(map(attrgetter("request_id"), batch.preempted)),
            stages={**clip_stages(seconds, begin, start), "detokenize": end - executed},
            num_context_tokens=num_context_tokens,
        )
        self.records.append(record)
        finished = FinishedStep(record, batch, output, alive)
        for listener in self.listeners:
            listener(finished)
        for part, num_preemptions, lives in zip(batch.requests, step.num_preemptions, alive):
            if lives and num_preemptions:
                self.note_recomputed(part, num_preemptions, end)

    def note_recomputed(self, part: ScheduledRequest, num_preemptions: int, end: float) -> None:
        """Count what a request that was preempted has computed again in a step.

        Args:
            num_preemptions: the request's, when the step was launched.
            end: when the step was over, clock seconds.
        """
        request = part.request
        if request.num_preemptions > num_preemptions:
            return  # it was preempted while this step was in flight: what it recomputes comes later
        self.num_recomputed_tokens += max(min(part.end, request.recompute_until) - part.start, 0)
        if request.preempted_at is not None and part.end >= request.recompute_until:
            close_preemption(request, end)


def shares_of(batch: ScheduledBatch, output: StepOutput) -> tuple[list[StepShare], int]:
    """What each request got out of a step that is over, and how many tokens those that decode attended to."""
    shares = []
    num_context_tokens = 0
    for part in batch.requests:
        request, start, num_tokens, _, _, num_drafts = part
        if num_tokens == 1 and start >= len(request.prompt_token_ids):
            share = share_of_decode(request.request_id)
        else:
            num_accepted = len(output.tokens.get(request.request_id) or [0]) - 1 if num_drafts else 0
            share = StepShare(request.request_id, num_tokens, part.is_prefill, num_drafts, num_accepted)
        if not share.is_prefill:
            num_context_tokens += start + 1
        shares.append(share)
    return shares, num_context_tokens


@functools.lru_cache(STEP_HISTORY)
def share_of_decode(request_id: str) -> StepShare:
    """The share of a request that decodes, the same in every step: what most of the records kept consist of."""
    return StepShare(request_id, 1, is_prefill=False)


def clip_stages(stages: dict[str, float], begin: float, start: float) -> dict[str, float]:
    """Seconds of each stage that lie after `start`, when the first begins at `begin` and each follows the last."""
    borders = list(itertools.accumulate(stages.values(), initial=begin))
    clipped = [max(border, start) for border in borders]
    return {name: later - earlier for name, (earlier, later) in zip(stages, itertools.pairwise(clipped))}


def close_preemption(request: Request, now: float) -> None:
    """The request has caught up with where it was preempted, or ended: book the time that cost."""
    if request.preempted_at is not None:
        request.timeline.lost["preempted"] += now - request.preempted_at
        request.preempted_at = None


def close_timeline(request: Request, now: float) -> None:
    """The request has ended."""
    timeline = request.timeline
    if request.finish_reason in (FinishReason.ABORT, FinishReason.ERROR) and timeline.last_token is not None:
        timeline.last_token = now  # more tokens were to come: it ended while decoding, not streaming
    timeline.finished = now
    close_preemption(request, now)
