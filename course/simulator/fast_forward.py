"""Fast-forward: the same results as EngineCore's, without going through every step of every request.

Most of what a server does is to give each running request one more token. Nothing else can happen to a request that
decodes, until its last token; but once in a block's worth of tokens it needs a KV block. So it is *parked*: taken out
of `Scheduler.running`, counted in every step's price, slots and budget, and given its blocks (parking.py). It is
brought up to date and put back when a step ends that yields its last token, when a request may have to be preempted, or
when it is aborted. Of 200 tokens, two steps are gone through.

Where every running request is parked, the steps themselves are the same: each adds one token to every context, while
nothing waits, or no slot is free for what does. A `DecodeRun` prices them up to the next last token, and `advance` goes
as far as nothing came between.

What a parked request has written is named in the prefix index when somebody looks for it, and at the end: nobody can
tell the difference.

Scheduling, admission, preemption and prefix caching stay the Scheduler's own; a test holds that every stamp of
every request is the same as without fast-forward. What is not kept are step records (`engine.steps`).
"""

import bisect
import itertools
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from course.simulator.counted_blocks import CountedBlocks
from course.simulator.parking import Parked, ParkingLot, ParkingScheduler
from course.simulator.simulated_runner import SimulatedRunner, SimulatedStep
from minillm.core.batch import ScheduledBatch, ScheduledRequest
from minillm.core.block_pool import ROOT, blocks_for
from minillm.core.engine import EngineCore
from minillm.core.errors import ConfigError
from minillm.core.request import FinishReason, Request, RequestStatus
from minillm.core.scheduler import Scheduler
from minillm.core.seams import KeepAll, NoDrafts, SortedQueue
from minillm.core.timeline import Clock
from minillm.observe.step_cost import MEMORY, StepCostModel, StepTokens
from minillm.policies.queues import TwoLaneQueue

FEWEST, MOST = 2, 1000
"""Steps in a decode run. One is taken as quickly without; more are seldom left alone."""
PATIENT = (SortedQueue, TwoLaneQueue)
"""Queues that no request leaves but by being admitted or aborted: nothing happens in them while no slot is free."""
NOTHING = ScheduledBatch(step_id=-1, requests=())
"""What is in sight, in most steps."""
NOT_COUNTED = StepTokens(0, 0, 0, 0)
"""What stands for a step's tokens where stalls are not told."""


class StepPart(NamedTuple):
    """A request's part of a step that was launched."""

    scheduled: ScheduledRequest
    place: tuple[int, int]
    """Where it was in `Scheduler.running`."""
    num_preemptions: int
    """How often it had been preempted."""


@dataclass(slots=True)
class FastForwardStep:
    """A step that was launched and not waited for yet."""

    number: int
    launched: SimulatedStep
    start: float
    tokens: StepTokens
    """What it computes, for the requests in sight and for the parked ones."""
    parts: list[StepPart]
    """Parts of the requests in sight."""
    late: list[StepPart] = field(default_factory=list)
    """Parts of requests that were parked when it was launched, and are in sight again."""

    def see_late(self) -> None:
        """Make the late parts what they would have been: decodes among the others, which come before the prompts."""
        decodes = [part for part in self.parts if not part.scheduled.is_prefill]
        prompts = [part for part in self.parts if part.scheduled.is_prefill]
        self.parts = sorted(decodes + self.late, key=lambda part: part.place) + prompts
        self.launched.batch = self.launched.batch._replace(requests=tuple(part.scheduled for part in self.parts))


@dataclass(slots=True, eq=False)
class DecodeRun:
    """Steps that lie ahead, each of which gives every running request a token, and nothing else. Clock seconds."""

    start: float
    """When the first `step()` begins; the others, when the one before returns."""
    returns: Sequence[float]
    """When each `step()` returns."""
    ends: Sequence[float]
    """When the step ends that it has launched: later, where one stays in flight."""

    def first(self, num_steps: int) -> "DecodeRun":
        """So many of them, if there are more."""
        return DecodeRun(self.start, self.returns[:num_steps], self.ends[:num_steps])

    def num_begun(self, moment: float) -> int:
        """How many begin before something comes at this moment. The first has begun already."""
        return 1 + bisect.bisect_left(self.returns, moment, hi=len(self.returns) - 1)

    def busy_s(self, num_steps: int) -> list[float]:
        """How long each of the first ones takes, from call to return."""
        return [end - begin for begin, end in itertools.pairwise([self.start, *self.returns[:num_steps]])]


class FastForwardCore(EngineCore):
    """EngineCore over a SimulatedRunner, with parking. Requests that stream are never parked.

    For continuous batching without drafts, and requests that keep the blocks they need, and no others.

    Args:
        tells_stalls: timelines tell what others' prompts cost them (`lost["stalled_by_prefill"]`). That is an eighth of
            a run's time; off where only latencies are read, which are the same.
    """

    scheduler: ParkingScheduler
    runner: SimulatedRunner

    def __init__(
        self,
        scheduler: Scheduler,
        runner: SimulatedRunner,
        clock: Clock,
        *,
        tells_stalls: bool = True,
        **options: Any,
    ) -> None:
        if not isinstance(scheduler.drafts, NoDrafts):
            raise ConfigError("fast-forward can't speculate: how many tokens a step yields isn't known; use EngineCore")
        if not isinstance(scheduler.kv.layout, KeepAll) or scheduler.kv.reserve_tokens:
            raise ConfigError("fast-forward wants requests to hold the blocks they need, and no others; use EngineCore")
        self.lot = ParkingLot(runner.block_size)
        super().__init__(self._with_parking(scheduler), runner, clock, **options)
        self._steps: deque[FastForwardStep] = deque()
        """In place of the core's steps in flight."""
        self._costs = StepCostModel() if tells_stalls else None
        """None: nobody asks what others' prompts cost a decode."""
        self._ends: list[float] = []
        """When each step ended, clock seconds."""
        self._stalls: list[float] = [0.0]
        """Seconds that decodes lost to others' prompts before each step."""
        self._admissions = itertools.count()
        self._admitted: dict[Request, int] = {}
        """In which order the running requests were admitted, parked ones included."""

    def _with_parking(self, scheduler: Scheduler) -> ParkingScheduler:
        kv = scheduler.kv
        if not kv.enable_prefix_caching:
            kv.pool = CountedBlocks(len(kv.pool))
        name_blocks = kv.hash_blocks

        def name_and_show(request: Request, block_size: int) -> list[bytes]:
            names = name_blocks(request, block_size)
            if request.status is not RequestStatus.RUNNING:  # it is about to look for them
                for parked in self.lot.continuing(names):
                    self._register(parked, self.lot.next_step + 1)  # decodes are scheduled before anybody joins
            return names

        kv.hash_blocks = name_and_show
        return ParkingScheduler(scheduler, self.lot)

    # ---------------------------------------------------------------- steps

    def step(self) -> list[Request]:
        start = self.clock.now()
        self._give_blocks()
        self.scheduler.leave_budget()
        batch = self.scheduler.schedule(start) if self.scheduler.running or len(self.scheduler.waiting) else NOTHING
        for request in batch.timed_out:
            self.close(request)
        changed = [*batch.timed_out]
        works = bool(batch.requests or self.lot.count)
        if works:
            self._steps.append(self._launch_step(batch, start))
        elif batch.saves:
            self.runner.copy_blocks(batch)
        ahead = self.lookahead if works else 0
        while len(self._steps) > (ahead if self.has_unfinished else 0):
            changed += self._finish_step(self._steps.popleft())
        return list(dict.fromkeys(changed))

    def _launch_step(self, batch: ScheduledBatch, start: float) -> FastForwardStep:
        """Launch a step, and park the requests that will only decode for a while."""
        for request in batch.preempted:
            self._admitted.pop(request, None)
        for scheduled in batch.requests:
            if scheduled.request not in self._admitted:
                self._admitted[scheduled.request] = next(self._admissions)
        self.scheduler.num_steps += not batch.requests
        parts = [StepPart(s, self._place(s.request), s.request.num_preemptions) for s in batch.requests]
        tokens = NOT_COUNTED if self._costs is None else self._tokens_of(batch)
        step = FastForwardStep(self.lot.next_step, self.runner.launch(batch), start, tokens, parts)
        self.lot.launched()
        for scheduled in batch.requests:
            self._park(scheduled)
        return step

    def _tokens_of(self, batch: ScheduledBatch) -> StepTokens:
        """What a step computes, that of the parked requests included."""
        decodes, context, prompts = self.lot.count, self.lot.context, 0
        for scheduled in batch.requests:
            if scheduled.is_prefill:
                prompts += scheduled.num_tokens
            else:
                decodes += 1
                context += scheduled.start + 1
        return StepTokens(decodes, context, prompts, drafts=0)

    def _finish_step(self, step: FastForwardStep) -> list[Request]:
        """Wait for a step, hand out what those in sight got, and write down what the others will need."""
        for parked in self.lot.ending(step.number):
            self._unpark(parked, step)
        if step.late:
            step.see_late()
        end = step.launched.end
        stall = 0.0 if self._costs is None else self._stall_in(step, self._costs)
        changed = []
        if not step.parts:
            self.runner.clock.advance_to(end)
        else:
            output = step.launched.wait()
            alive = [part for part in step.parts if part.scheduled.request.finish_reason is None]
            changed = self.process(step.launched.batch, output)
            for scheduled, _, num_preemptions in alive:
                if stall and not scheduled.is_prefill:
                    scheduled.request.timeline.lost["stalled_by_prefill"] += stall
                self.log.note_recomputed(scheduled, num_preemptions, end)
        self._ends.append(end)
        self._stalls.append(self._stalls[-1] + stall)
        return changed

    def _stall_in(self, step: FastForwardStep, costs: StepCostModel) -> float:
        """Seconds that a step's decodes lost to others' prompts; and show it to the cost model that says so."""
        start = max(step.start, self._ends[-1]) if self._ends else step.start
        seconds = step.launched.end - start
        costs.observe(step.tokens, seconds)
        return costs.split(step.tokens, seconds).prompts if step.tokens.is_mixed else 0.0

    # ---------------------------------------------------------------- runs of decode steps

    def next_decode_run(self) -> DecodeRun | None:
        """The coming steps up to the next in which a request gets its last token; None if anything but decoding may
        happen before, or they are too few."""
        scheduler, lot, decode_seconds = self.scheduler, self.lot, self.runner.decode_seconds
        in_sight = scheduler.running or any(step.parts or step.late for step in self._steps)
        if in_sight or self._may_admit() or not lot.count or decode_seconds is None:
            return None
        # A call of step() that stays one step ahead may launch the last; the next one ends it.
        num = lot.next_ending() - lot.next_step + len(self._steps)
        # Each takes a block within the first block_size steps, and another within every further so many.
        num = min(num, MOST, (scheduler.kv.pool.num_free // lot.count - 1) * self.runner.block_size)
        if num < FEWEST:
            return None
        now = self.clock.now()
        contexts = range(lot.context, lot.context + lot.count * num, lot.count)
        seconds = decode_seconds(lot.count, contexts)
        ends = list(itertools.accumulate(seconds, initial=max(self.runner.free_at, now)))
        return DecodeRun(now, ends[:-1] if self._steps else ends[1:], ends[1:])

    def _may_admit(self) -> bool:
        """Whether the queue may change in the next step: not while parked requests hold all slots."""
        scheduler = self.scheduler
        if not len(scheduler.waiting):
            return False
        return scheduler.num_running < scheduler.config.max_num_seqs or not isinstance(scheduler.waiting, PATIENT)

    def advance(self, run: DecodeRun, num_steps: int) -> None:
        """Take the first steps of a run that was planned from here."""
        returns, end = run.returns[:num_steps], run.ends[num_steps - 1]
        if self._costs is not None:
            self._learn_from(self._costs, run, returns)
        self._allocate(self.in_need(num_steps))
        self._ends += returns
        self._stalls += [self._stalls[-1]] * num_steps
        self.lot.launched(num_steps)
        self.scheduler.num_steps += num_steps
        self.runner.free_at = end
        self.runner.clock.advance_to(returns[-1])
        for step in self._steps:  # the one in flight is another now
            step.number = self.lot.next_step - 1
            step.launched = SimulatedStep(self.runner, NOTHING, returns[-1], returns[-1], end, end)

    def in_need(self, num_steps: int) -> list[Parked]:
        """Those that need a block in the coming steps, once for each, if they only decode."""
        first = self.lot.next_step
        return [parked for step in range(first, first + num_steps) for parked in self.lot.in_need(step)]

    def _learn_from(self, costs: StepCostModel, run: DecodeRun, ends: Sequence[float]) -> None:
        """Show a cost model the steps of a run, which end at these moments: as many of the last as it remembers."""
        count, in_flight = self.lot.count, len(self._steps)
        start = max(self._steps[0].start if in_flight else run.start, self._ends[-1])
        borders = [start, *ends][-MEMORY - 1 :]
        context = self.lot.context + count * (len(ends) + 1 - len(borders) - in_flight)
        for begin, end in itertools.pairwise(borders):
            costs.observe(StepTokens(count, context, 0, 0), end - begin)
            context += count
        for step in self._steps:
            step.tokens = StepTokens(count, context, 0, 0)

    def fast_forward_until(self, moment: float) -> bool:
        """Fast-forward over the decode steps that begin before this moment. False: there are none."""
        run = self.next_decode_run()
        if run is not None:
            self.advance(run, run.num_begun(moment))
        return run is not None

    # ---------------------------------------------------------------- parking

    def _park(self, scheduled: ScheduledRequest) -> None:
        """Park a request of the step just launched, if nothing but decoding lies before it."""
        request = scheduled.request
        num_left = request.max_num_tokens - request.num_tokens
        is_plain = not (request.needs_history or request.params.stop_token_ids or request.streams)
        if scheduled.samples and is_plain and num_left:
            first, prefix = self.lot.next_step, request.block_hashes[-1] if request.block_hashes else ROOT
            block_ids = self.scheduler.kv.block_ids(request)
            self.scheduler.park(Parked(request, block_ids, first, first + num_left - 1, scheduled.end, prefix))

    def _give_blocks(self) -> None:
        """Before a step: give blocks to the parked requests that need one; or unpark all, if they may not suffice."""
        in_need = self.lot.in_need(self.lot.next_step)
        if len(self.lot) and self._may_preempt(len(in_need)):
            for parked in self.lot:
                self._unpark(parked)
            return
        self._allocate(in_need)

    def _allocate(self, in_need: Collection[Parked]) -> None:
        """Give each the next block."""
        if in_need:
            for parked, block_id in zip(in_need, self.scheduler.kv.pool.allocate(len(in_need))):
                parked.block_ids.append(block_id)

    def _tell(self, parked: Parked) -> None:
        """Give a parked request the tokens of the steps that are over."""
        num_told, num_over = parked.num_told, parked.num_steps(until=len(self._ends))
        if num_over <= num_told:
            return
        request, timeline = parked.request, parked.request.timeline
        request.output_token_ids += self.runner.tokens(request, parked.end + num_told + 1, parked.end + num_over + 1)
        over = slice(parked.first + num_told, parked.first + num_over)
        timeline.deliveries += self._ends[over]
        timeline.last_token = timeline.deliveries[-1]
        timeline.num_tokens += num_over - num_told
        if stalled := self._stalls[over.stop] - self._stalls[over.start]:
            timeline.lost["stalled_by_prefill"] += stalled
        parked.num_told = num_over

    def _register(self, parked: Parked, until: int) -> None:
        """Name in the prefix index what a parked request writes in the steps before this one. (With the next step
        planned before this one's token is known, a block that ends in it has no name yet.)"""
        self._tell(parked)
        if self.scheduler.kv.enable_prefix_caching:
            self.scheduler.kv.append(parked.request, parked.end + parked.num_steps(until) - self.lookahead)

    def register_all(self) -> None:
        """Name what all of them have written: somebody will look into the prefix index who is no request of this
        engine."""
        if self.scheduler.kv.enable_prefix_caching:
            for parked in self.lot:
                self._register(parked, self.lot.next_step)

    def _unpark(self, parked: Parked, in_flight: FastForwardStep | None = None) -> None:
        """Bring a request up to date with the steps it was parked in, and put it back in sight.

        Args:
            in_flight: the step that it may be in and that is not over; None = the one launched last.
        """
        self._register(parked, self.lot.next_step)
        request, num_steps = parked.request, parked.num_steps(self.lot.next_step)
        end = parked.end + num_steps
        request.num_computed_tokens += num_steps
        if num_steps > parked.num_told:
            request.num_pending_tokens += 1
            scheduled = ScheduledRequest(request, end - 1, 1, parked.block_ids, True)
            part = StepPart(scheduled, self._place(request), request.num_preemptions)
            (in_flight or self._steps[-1]).late.append(part)
        self.scheduler.unpark(parked, key=self._place)

    def _place(self, request: Request) -> tuple[int, int]:
        """Where a request belongs in `Scheduler.running`."""
        return self.scheduler.preemption.rank(request), self._admitted[request]

    def _may_preempt(self, num_promised: int) -> bool:
        """Whether the requests in sight may need more blocks than are free. Admission never preempts.

        Args:
            num_promised: free blocks that parked requests will take in this step.
        """
        kv, budget = self.scheduler.kv, self.scheduler.config.max_num_batched_tokens
        free = kv.pool.num_free - num_promised
        if not self.scheduler.running:  # most steps: all are parked
            return free < 0
        # A request needs a block for every block_size tokens of the budget, and one for what does not fill one.
        if 2 * len(self.scheduler.running) + blocks_for(budget, kv.block_size) <= free:
            return False
        needed = 0
        for request in self.scheduler.running:
            end = min(request.num_tokens, request.num_computed_tokens + budget)
            needed += max(blocks_for(end, kv.block_size) - len(kv.block_ids(request)), 0)
        return needed > free

    # ---------------------------------------------------------------- endings

    def finish(self, request: Request, reason: FinishReason) -> None:
        super().finish(request, reason)
        self._admitted.pop(request, None)

    def abort(self, request_id: str) -> Request | None:
        request = self.requests.get(request_id)
        if request is not None and (parked := self.lot.find(request)):
            self._unpark(parked)
        super().abort(request_id)
        while self._steps and not self.has_unfinished:
            self._finish_step(self._steps.popleft())
        return request

    def start_over(self, scheduler: Scheduler) -> None:
        self.lot.clear()
        self.lot.next_step = len(self._ends)  # a step that was not waited for never was
        super().start_over(self._with_parking(scheduler))
        self._steps.clear()
        self._admitted.clear()
