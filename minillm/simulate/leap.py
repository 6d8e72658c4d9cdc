"""Leaping: the same results as the Engine's, without going through every step of everybody.

Most of what a server does is to give each running request one more token. While a request decodes inside a
KV block it already has, nothing can happen to it but that, so it is *parked*: taken out of the scheduler's
sight, counted in every step's price and budget, and brought up to date when it matters again: when it needs
a block, when its last token is next, when somebody may have to be preempted, or when it is aborted. With
blocks of 16 tokens that is one visit instead of 16.

Scheduling, admission, preemption and prefix caching stay the Scheduler's own; a test holds that every stamp of
every request is the same as without leaping. What is not kept are step records (`engine.steps`).
"""

import bisect
import heapq
import itertools
from dataclasses import dataclass, field, replace

from minillm.clock import VirtualClock
from minillm.config import EngineConfig
from minillm.engine import Engine, RequestGroup
from minillm.request import FinishReason, Request, RequestOutput, RequestStatus
from minillm.runners.simulated import SimulatedRunner, SimulatedStep
from minillm.scheduling.batch import ScheduledBatch, ScheduledRequest
from minillm.scheduling.scheduler import Scheduler, Step
from minillm.simulate.roofline import StepWork
from minillm.step_log import close_preemption


class LeapScheduler(Scheduler):
    """The scheduler, when some running requests are parked: they take tokens and seats, and are not looked at."""

    num_parked = 0

    def __init__(self, config: EngineConfig, num_kv_blocks: int, num_host_blocks: int, context_limit: int) -> None:
        super().__init__(config, num_kv_blocks, num_host_blocks, context_limit)
        self._admissions = itertools.count()
        self._order: dict[Request, tuple[int, int]] = {}
        """Where each running request belongs in `running`: by rank, then by admission."""

    def _schedule_running(self, step: Step, now: float) -> None:
        step.budget -= self.num_parked
        super()._schedule_running(step, now)

    def _admit_waiting(self, step: Step) -> None:
        before = len(step.requests)
        self._seats -= self.num_parked
        super()._admit_waiting(step)
        self._seats += self.num_parked
        for scheduled in step.requests[before:]:
            self._order[scheduled.request] = (self._rank(scheduled.request), next(self._admissions))

    def finish(self, request: Request, reason: FinishReason) -> None:
        super().finish(request, reason)
        self._order.pop(request, None)

    def park(self, request: Request) -> None:
        self.running.remove(request)
        self.num_parked += 1

    def unpark(self, request: Request) -> None:
        """Back into its place."""
        bisect.insort(self.running, request, key=self._order.__getitem__)
        self.num_parked -= 1

    def may_preempt(self) -> bool:
        """Whether the requests in sight may need more blocks than are free. Admission never preempts."""
        needed = 0
        for request in self.running:
            end = min(request.num_tokens, request.num_computed_tokens + self.config.max_num_batched_tokens)
            wanted = self.kv.blocks_for(max(end, self.kv.reserve_tokens)) - len(self.kv.block_ids(request))
            needed += max(wanted, 0)
        return needed > self.kv.pool.num_free


@dataclass(slots=True)
class Parked:
    """A request out of sight."""

    since: int
    """The step it was last seen in."""
    end: int
    """Its context length after that step, tokens."""


@dataclass(slots=True)
class LeapStep:
    """A step that was launched and not waited for yet."""

    batch: ScheduledBatch
    launched: SimulatedStep
    start: float
    num_parked: int
    late: list[ScheduledRequest] = field(default_factory=list)
    """Requests that were parked when it was launched, and are in sight again."""


class LeapEngine(Engine):
    """An engine over a SimulatedRunner that leaps. Requests that stream are never parked."""

    def __init__(self, config: EngineConfig, runner: SimulatedRunner, clock: VirtualClock) -> None:
        super().__init__(config, runner=runner, clock=clock)
        self.scheduler: LeapScheduler = LeapScheduler(
            self.config, runner.num_kv_blocks, runner.num_host_blocks, self.context_limit
        )
        self.runner: SimulatedRunner = runner
        self._parked: dict[Request, Parked] = {}
        self._due: list[tuple[int, int, Request]] = []
        """Heap: (the step to be back for, when it was parked, who)."""
        self._parked_context = 0
        """Tokens that the parked requests' next tokens attend to, themselves included."""
        self._num_launched = 0
        self._ends: list[float] = []
        """When each step ended, clock seconds."""
        self._stalls: list[float] = [0.0]
        """Seconds that decodes lost to others' prompts before each step."""
        # With the next step planned before this one's token is known, a full block is registered one step later.
        self._margin = int(config.enable_prefix_caching and not self._lookahead)
        self._can_park = config.batching == "continuous"

    def add_parked(self, work: StepWork) -> None:
        """Add what the parked requests do in the step that is being launched."""
        count = len(self._parked)
        work.tokens += count
        work.logits += count
        work.requests += count
        work.context += self._parked_context
        work.pairs += self._parked_context

    # ---------------------------------------------------------------- steps

    def step(self) -> list[RequestOutput]:
        start = self.clock.now()
        while self._due and self._due[0][0] <= self._num_launched:
            request = heapq.heappop(self._due)[2]
            if request in self._parked:
                self._unpark(request)
        if self._parked and self.scheduler.may_preempt():
            self._unpark_all()
        batch = self.scheduler.schedule(start)
        changed = {id(group): group for group in (self._retire(request) for request in batch.timed_out)}
        works = bool(batch.requests or self._parked)
        if works:
            self._in_flight.append(self._leap(batch, start))
        elif batch.swap_out:
            self.runner.swap(batch)
        lookahead = self._lookahead if works else 0
        while len(self._in_flight) > (lookahead if self.has_unfinished else 0):
            changed |= {id(group): group for group in self._finish_step(self._in_flight.popleft())}
        return [self._output(group) for group in changed.values() if group.stream or group.finished]

    def _leap(self, batch: ScheduledBatch, start: float) -> LeapStep:
        """Launch a step, and park whoever will only decode for a while."""
        for scheduled in batch.requests:
            timeline = scheduled.request.timeline
            timeline.scheduled = start if timeline.scheduled is None else timeline.scheduled
        self.scheduler.num_steps += not batch.requests
        step = LeapStep(batch, self.runner.launch(batch), start, len(self._parked))
        self._parked_context += len(self._parked)
        if self._can_park:
            for scheduled in batch.requests:
                self._park(scheduled)
        self._num_launched += 1
        return step

    def _finish_step(self, step: LeapStep) -> list[RequestGroup]:
        """Wait for a step, hand out what those in sight got, and write down what the others will need."""
        if step.late:
            step.batch = replace(step.batch, requests=(*step.batch.requests, *step.late))
            step.launched.batch = step.batch
        changed = self._update(step.batch, step.launched.wait())
        end = self.clock.now()
        start = max(step.start, self._ends[-1]) if self._ends else step.start
        requests = step.batch.requests
        prefills = sum(s.num_tokens for s in requests if is_prefill(s))
        num_tokens = step.num_parked - len(step.late) + sum(s.num_tokens for s in requests)
        stalled = (end - start) * prefills / num_tokens
        for scheduled in requests:
            request = scheduled.request
            if stalled and not is_prefill(scheduled):
                request.timeline.add_lost("stalled_by_prefill", stalled)
            self.log.num_recomputed_tokens += max(min(scheduled.end, request.recompute_until) - scheduled.start, 0)
            if scheduled.end >= request.recompute_until:
                close_preemption(request, end)
        self._ends.append(end)
        self._stalls.append(self._stalls[-1] + stalled)
        return changed

    # ---------------------------------------------------------------- parking

    def _park(self, scheduled: ScheduledRequest) -> None:
        """Park a request of the step just launched, if nothing but decoding lies before it for two steps or more."""
        request = scheduled.request
        if not scheduled.samples or request.needs_history or request.params.stop_token_ids:
            return
        room = len(scheduled.block_ids) * self.runner.block_size - scheduled.end - self._margin
        num_output = request.num_output_tokens + request.num_pending_tokens
        before_last = min(request.params.max_tokens - num_output, self.context_limit - request.num_tokens) - 1
        num_steps = min(room, before_last)
        if num_steps < 2 or self._sequences[request.request_id][0].stream:
            return
        self._parked[request] = Parked(self._num_launched, scheduled.end)
        self._parked_context += scheduled.end + 1
        heapq.heappush(self._due, (self._num_launched + 1 + num_steps, request.arrival_index, request))
        self.scheduler.park(request)

    def _unpark(self, request: Request) -> None:
        """Bring a request up to date with the steps it was parked in, and put it back in sight."""
        parked = self._parked.pop(request)
        first = parked.since + 1
        num_steps = self._num_launched - first
        num_done = max(min(self._num_launched, len(self._ends)) - first, 0)
        request.num_computed_tokens += num_steps
        self._parked_context -= parked.end + num_steps + 1
        if num_done:
            token, timeline = self.runner.token, request.timeline
            ends = range(parked.end + 1, parked.end + num_done + 1)
            request.output_token_ids += [token(request, end) for end in ends]
            timeline.deliveries += self._ends[first : first + num_done]
            timeline.last_token = timeline.deliveries[-1]
            timeline.num_tokens += num_done
            if stalled := self._stalls[first + num_done] - self._stalls[first]:
                timeline.add_lost("stalled_by_prefill", stalled)
        if num_steps > num_done:  # it is also in the step that runs now
            request.num_pending_tokens += 1
            start = parked.end + num_steps - 1
            block_ids = self.scheduler.kv.block_ids(request)
            self._in_flight[-1].late.append(ScheduledRequest(request, start, 1, block_ids, True))
        self.scheduler.unpark(request)

    def _unpark_all(self) -> None:
        for request in list(self._parked):
            self._unpark(request)
        self._due.clear()

    # ---------------------------------------------------------------- from outside

    def abort(self, request_id: str) -> RequestOutput | None:
        group = self._groups.get(request_id)
        for sequence in group.sequences if group else ():
            if sequence.request in self._parked:
                self._unpark(sequence.request)
        return super().abort(request_id)

    @property
    def num_running(self) -> int:
        """Requests that run, parked or not."""
        return len(self.scheduler.running) + len(self._parked)

    def check_integrity(self) -> None:
        self._unpark_all()
        super().check_integrity()
        assert all(request.status is RequestStatus.RUNNING for request in self.scheduler.running)


def is_prefill(scheduled: ScheduledRequest) -> bool:
    """It computes prompt tokens, or computes again after a preemption."""
    return scheduled.num_tokens > 1 or scheduled.start < scheduled.request.num_prompt_tokens
