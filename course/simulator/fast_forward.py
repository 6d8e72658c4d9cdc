"""Fast-forward: the same results as EngineCore's, without going through every step of every request.

Most of what a server does is to give each running request one more token. Nothing else can happen to a request
that decodes, until its last token is next; but once in a block's worth of tokens it needs a KV block. So it is
*parked*: taken out of `Scheduler.running`, and counted in every step's price, slots and budget (`ParkingScheduler`).
When it needs a block it is given one, and stays parked. It is brought up to date and put back when its last token is
next, when a request may have to be preempted, or when it is aborted. Of 200 tokens, two steps are gone through.

Where every running request is parked, the steps themselves are alike: each adds one token to every context. A
`DecodeRun` prices all of them at once, up to the next last token, and `advance` goes as far as nothing came between.

Scheduling, admission, preemption and prefix caching stay the Scheduler's own; a test holds that every stamp of
every request is the same as without fast-forward. What is not kept are step records (`engine.steps`).
"""

import bisect
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from course.simulator.cost.roofline import StepWork
from minillm.core.batch import ScheduledBatch, ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.core.engine import EngineCore
from minillm.core.errors import ConfigError
from minillm.core.request import FinishReason, Request, RequestStatus
from minillm.core.scheduler import Scheduler
from minillm.core.seams import KeepAll, NoDrafts
from minillm.core.timeline import Clock
from minillm.observe.step_cost import MEMORY, NO_CHARGE, StepCostModel, StepTokens
from minillm.runner.simulated import SimulatedRunner, SimulatedStep

NEVER = -1
FEWEST, MOST = 4, 1000
"""Steps in a decode run. For fewer, taking them one by one is as quick; more are seldom left alone."""


NOTHING = ScheduledBatch(step_id=NEVER, requests=())
"""What is in sight, in most steps."""


@dataclass(slots=True)
class Parked:
    """A request out of sight, since one step. Steps are counted from 0."""

    request: Request
    block_ids: list[int]
    """Its block table."""
    first: int
    """The first step it is parked in."""
    end: int
    """Its context length before that step, tokens."""
    last: int
    """The step that yields its last token: it must be back in sight."""
    due: int
    """The step in which it needs a block, or has a full one to register; or `last`; or NEVER."""
    num_told: int = 0
    """Tokens of its parked steps that it has been given."""

    def end_at(self, step: int) -> int:
        """Context length after a step, tokens."""
        return self.end + 1 + step - self.first


@dataclass(slots=True)
class FastForwardStep:
    """A step that was launched and not waited for yet."""

    batch: ScheduledBatch
    launched: SimulatedStep
    start: float
    tokens: StepTokens
    """What it computes, for the requests in sight and for the parked ones."""
    num_preemptions: list[int]
    """How often each request of the batch (and then each late one) had been preempted at the launch."""
    late: list[ScheduledRequest] = field(default_factory=list)
    """Requests that were parked when it was launched, and are in sight again."""

    def add_late(self, scheduled: ScheduledRequest) -> None:
        self.late.append(scheduled)
        self.num_preemptions.append(scheduled.request.num_preemptions)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRun:
    """Steps that lie ahead, each of which gives every running request a token, and nothing else. Clock seconds."""

    start: float
    """When the first `step()` begins; the others, when the one before returns."""
    returns: Sequence[float]
    """When each `step()` returns."""
    ends: Sequence[float]
    """When the step ends that it has launched: later, where one stays in flight."""

    def num_begun(self, moment: float) -> int:
        """How many begin before something comes at this moment. The first has begun already."""
        return 1 + bisect.bisect_left(self.returns, moment, hi=len(self.returns) - 1)

    def busy_s(self, num_steps: int) -> list[float]:
        """How long each of the first ones takes, from call to return."""
        return [end - begin for begin, end in itertools.pairwise([self.start, *self.returns[:num_steps]])]


class ParkingScheduler(Scheduler):
    """A scheduler some of whose running requests are parked: each takes a slot, and a token of every step."""

    def __init__(self, like: Scheduler) -> None:
        super().__init__(like.config, like.kv, queue=like.waiting, preemption=like.preemption, drafts=like.drafts)
        self.num_parked = 0

    @property
    def num_running(self) -> int:
        return super().num_running + self.num_parked

    def park(self, request: Request) -> None:
        """Take a running request out of sight."""
        self.running.remove(request)
        self.num_parked += 1
        self.token_budget -= 1

    def unpark(self, request: Request, key: Callable[[Request], Any]) -> None:
        """Put it back among the running ones, which are in the order of this key."""
        bisect.insort(self.running, request, key=key)
        self.num_parked -= 1
        self.token_budget += 1


class FastForwardCore(EngineCore):
    """EngineCore over a SimulatedRunner, with parking. Requests that stream are never parked.

    For continuous batching without drafts, and requests that keep the blocks they need, and no others.
    """

    scheduler: ParkingScheduler
    runner: SimulatedRunner

    def __init__(self, scheduler: Scheduler, runner: SimulatedRunner, clock: Clock, **options: Any) -> None:
        if not isinstance(scheduler.drafts, NoDrafts):
            raise ConfigError("fast-forward can't speculate: how many tokens a step yields isn't known; use EngineCore")
        if not isinstance(scheduler.kv.layout, KeepAll) or scheduler.kv.reserve_tokens:
            raise ConfigError("fast-forward wants requests to hold the blocks they need, and no others; use EngineCore")
        super().__init__(ParkingScheduler(scheduler), runner, clock, **options)
        self._costs = StepCostModel()
        self._steps: deque[FastForwardStep] = deque()
        """In place of the core's steps in flight."""
        self._parked: dict[Request, Parked] = {}
        self._due: defaultdict[int, list[Parked]] = defaultdict(list)
        """By step: parked requests that need something then, and some that have been put back since."""
        self._parked_context = 0
        """Tokens that the parked requests' next tokens attend to, themselves included."""
        self._num_launched = 0
        self._ends: list[float] = []
        """When each step ended, clock seconds."""
        self._stalls: list[float] = [0.0]
        """Seconds that decodes lost to others' prompts before each step."""
        self._admissions = itertools.count()
        self._admitted: dict[Request, int] = {}
        """In which order the running requests were admitted, parked ones included."""

    def add_parked(self, work: StepWork) -> None:
        """Add what the parked requests do in the step that is being launched."""
        count = len(self._parked)
        work.tokens += count
        work.logits += count
        work.requests += count
        work.context += self._parked_context
        work.pairs += self._parked_context

    # ---------------------------------------------------------------- steps

    def step(self) -> list[Request]:
        start = self.clock.now()
        self._see_to_parked()
        batch = self.scheduler.schedule(start) if self.scheduler.running or len(self.scheduler.waiting) else NOTHING
        for request in batch.timed_out:
            self.close(request)
        changed = dict.fromkeys(batch.timed_out)
        works = bool(batch.requests or self._parked)
        if works:
            self._steps.append(self._launch_step(batch, start))
        elif batch.saves:
            self.runner.copy_blocks(batch)
        ahead = self.lookahead if works else 0
        while len(self._steps) > (ahead if self.has_unfinished else 0):
            changed |= dict.fromkeys(self._finish_step(self._steps.popleft()))
        return list(changed)

    def _launch_step(self, batch: ScheduledBatch, start: float) -> FastForwardStep:
        """Launch a step, and park the requests that will only decode for a while."""
        for request in batch.preempted:
            self._admitted.pop(request, None)
        for scheduled in batch.requests:
            if scheduled.request not in self._admitted:
                self._admitted[scheduled.request] = next(self._admissions)
        self.scheduler.num_steps += not batch.requests
        preemptions = [scheduled.request.num_preemptions for scheduled in batch.requests]
        step = FastForwardStep(batch, self.runner.launch(batch), start, self._tokens_of(batch), preemptions)
        self._parked_context += len(self._parked)
        self._num_launched += 1
        for scheduled in batch.requests:
            self._park(scheduled)
        return step

    def _tokens_of(self, batch: ScheduledBatch) -> StepTokens:
        """What a step computes, that of the parked requests included."""
        decodes, context, prompts = len(self._parked), self._parked_context, 0
        for scheduled in batch.requests:
            if scheduled.is_prefill:
                prompts += scheduled.num_tokens
            else:
                decodes += 1
                context += scheduled.start + 1
        return StepTokens(decodes, context, prompts, drafts=0)

    def _finish_step(self, step: FastForwardStep) -> list[Request]:
        """Wait for a step, hand out what those in sight got, and write down what the others will need."""
        if step.late:
            step.batch = replace(step.batch, requests=(*step.batch.requests, *step.late))
            step.launched.batch = step.batch
        output = step.launched.wait()
        end = self.clock.now()
        start = max(step.start, self._ends[-1]) if self._ends else step.start
        requests = step.batch.requests
        self._costs.observe(step.tokens, end - start)
        cost = self._costs.split(step.tokens, end - start) if step.tokens.is_mixed else NO_CHARGE
        changed = []
        if requests:
            alive = [scheduled.request.finish_reason is None for scheduled in requests]
            changed = self.process(step.batch, output)
            for scheduled, preemptions, lives in zip(requests, step.num_preemptions, alive):
                if lives:
                    if cost.prompts and not scheduled.is_prefill:
                        scheduled.request.timeline.lost["stalled_by_prefill"] += cost.prompts
                    self.log.note_recomputed(scheduled, preemptions, end)
        self._ends.append(end)
        self._stalls.append(self._stalls[-1] + cost.prompts)
        return changed

    # ---------------------------------------------------------------- runs of decode steps

    def next_decode_run(self) -> DecodeRun | None:
        """The coming steps up to the next in which a request gets its last token; None if anything but decoding may
        happen before, or they are too few."""
        scheduler, count = self.scheduler, len(self._parked)
        in_sight = scheduler.running or len(scheduler.waiting) or any(s.batch.requests or s.late for s in self._steps)
        decode_seconds = self.runner.decode_seconds
        if in_sight or not count or decode_seconds is None:
            return None
        num = min(parked.last for parked in self._parked.values()) - self._num_launched
        # Each takes a block within the first block_size steps, and another within every further so many.
        num = min(num, MOST, (scheduler.kv.pool.num_free // count - 1) * self.runner.block_size)
        if num < FEWEST:
            return None
        now = self.clock.now()
        contexts = range(self._parked_context, self._parked_context + count * num, count)
        ends = list(itertools.accumulate(decode_seconds(count, contexts), initial=max(self.runner.free_at, now)))
        returns = ends[:-1] if self._steps else ends[1:]
        return DecodeRun(now, returns, ends[1:])

    def advance(self, run: DecodeRun, num_steps: int) -> None:
        """Take the first steps of a run that was planned from here."""
        first, count, returns = self._num_launched, len(self._parked), run.returns[:num_steps]
        self._stalls += [self._stalls[-1]] * num_steps
        self._learn_from(run, returns)
        num_ended = 0
        for i in range(num_steps):
            if first + i in self._due:
                self._ends += returns[num_ended:i]
                self._num_launched, num_ended = first + i, i
                self._see_to_parked()
        self._ends += returns[num_ended:]
        self._num_launched = first + num_steps
        self._parked_context += count * num_steps
        self.scheduler.num_steps += num_steps
        self.runner.free_at = end = run.ends[num_steps - 1]
        self.runner.clock.advance_to(returns[-1])
        for step in self._steps:  # the one in flight is another now
            step.launched = SimulatedStep(self.runner, NOTHING, returns[-1], returns[-1], end, end)

    def _learn_from(self, run: DecodeRun, ends: Sequence[float]) -> None:
        """Show the cost model the steps of a run, which end at these moments: as many of the last as it remembers."""
        count, in_flight = len(self._parked), len(self._steps)
        start = max(self._steps[0].start if in_flight else run.start, self._ends[-1])
        borders = [start, *ends][-MEMORY - 1 :]
        context = self._parked_context + count * (len(ends) + 1 - len(borders) - in_flight)
        for begin, end in itertools.pairwise(borders):
            self._costs.observe(StepTokens(count, context, 0, 0), end - begin)
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
        """Park a request of the step just launched, if nothing but decoding lies before it for a while."""
        request = scheduled.request
        if not scheduled.samples or request.needs_history or request.params.stop_token_ids:
            return
        num_left = request.max_num_tokens - request.num_tokens
        if num_left < 2 or request.streams:
            return
        first = self._num_launched
        block_ids = self.scheduler.kv.block_ids(request)
        parked = Parked(request, block_ids, first, scheduled.end, last=first + num_left - 1, due=0)
        self._parked[request] = parked
        self._parked_context += scheduled.end + 1
        self.scheduler.park(request)
        self._wait_for_block(parked, first - 1, scheduled.end)

    def _wait_for_block(self, parked: Parked, step: int, end: int) -> None:
        """Note down when a parked request, which has `end` tokens after this step, will have to be seen to."""
        room = len(parked.block_ids) * self.runner.block_size - end
        parked.due = min(step + 1 + max(room - self._registers_early(), 0), parked.last)
        self._due[parked.due].append(parked)

    def _see_to_parked(self) -> None:
        """Before a step: give blocks to those that need one, and bring back those that are at their last token."""
        step, size = self._num_launched, self.runner.block_size
        staying, num_blocks = [], 0
        for parked in self._due.pop(step, ()):
            if parked.due == step == parked.last:
                self._unpark(parked)
            elif parked.due == step:
                end = parked.end_at(step)
                staying.append((parked, end))
                num_blocks += len(parked.block_ids) * size < end
        if self._parked and self._may_preempt(num_blocks):
            for parked in list(self._parked.values()):
                self._unpark(parked)
            return
        new_blocks = iter(self.scheduler.kv.pool.allocate(num_blocks))
        for parked, end in staying:
            if len(parked.block_ids) * size < end:
                parked.block_ids.append(next(new_blocks))
            if self.scheduler.kv.enable_prefix_caching:
                self._tell(parked)  # a full block is named by its tokens
                self.scheduler.kv.append(parked.request, end)
            self._wait_for_block(parked, step, end)

    def _tell(self, parked: Parked) -> None:
        """Give a parked request the tokens of the steps that are over."""
        first = parked.first + parked.num_told
        num_done = min(self._num_launched, len(self._ends)) - first
        if num_done <= 0:
            return
        request, timeline = parked.request, parked.request.timeline
        start = parked.end + parked.num_told + 1
        request.output_token_ids += self.runner.tokens(request, start, start + num_done)
        timeline.deliveries += self._ends[first : first + num_done]
        timeline.last_token = timeline.deliveries[-1]
        timeline.num_tokens += num_done
        if stalled := self._stalls[first + num_done] - self._stalls[first]:
            timeline.lost["stalled_by_prefill"] += stalled
        parked.num_told += num_done

    def _unpark(self, parked: Parked) -> None:
        """Bring a request up to date with the steps it was parked in, and put it back in sight."""
        self._tell(parked)
        request = parked.request
        del self._parked[request]
        parked.due = NEVER
        num_steps = self._num_launched - parked.first
        request.num_computed_tokens += num_steps
        end = parked.end + num_steps
        self._parked_context -= end + 1
        if num_steps > parked.num_told:  # it is also in the step that runs now
            request.num_pending_tokens += 1
            self._steps[-1].add_late(ScheduledRequest(request, end - 1, 1, parked.block_ids, True))
        self.scheduler.unpark(request, key=self._place)

    def _registers_early(self) -> int:
        # With the next step planned before this one's token is known, a full block is registered one step later.
        return int(self.scheduler.kv.enable_prefix_caching and not self.lookahead)

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
        if request is not None and (parked := self._parked.get(request)):
            self._unpark(parked)
        super().abort(request_id)
        while self._steps and not self.has_unfinished:
            self._finish_step(self._steps.popleft())
        return request

    def start_over(self, scheduler: Scheduler) -> None:
        super().start_over(ParkingScheduler(scheduler))
        self._steps.clear()
        self._parked.clear()
        self._due.clear()
        self._admitted.clear()
        self._parked_context = 0
        self._num_launched = len(self._ends)  # a step that was launched and not waited for never was

    def check_integrity(self) -> None:
        for parked in list(self._parked.values()):
            self._unpark(parked)
        super().check_integrity()
        assert all(request.status is RequestStatus.RUNNING for request in self.scheduler.running)
