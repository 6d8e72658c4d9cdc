"""One replica: an unchanged Engine on a clock of its own, driven in time order with all the others."""

import functools
from collections import deque
from collections.abc import Callable, Sequence

from pydantic import Field

from course.simulator.cluster.events import EventQueue
from course.simulator.cluster.jobs import Job, Reply
from course.simulator.cluster.record import Outcome
from course.simulator.cluster.tiers import ReplicaTiers, Tier
from course.simulator.errors import SimulationError
from course.simulator.fast_forward import DecodeRun, FastForwardCore
from course.simulator.workload.streams import WorkloadModel
from minillm.core.block_pool import ROOT, block_hashes, blocks_for
from minillm.core.errors import PromptTooLongError, QueueFullError, RequestError
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput

EngineFactory = Callable[[VirtualClock], Engine]
"""Makes an engine, without a model, whose runner moves this clock."""


ENDINGS = {
    FinishReason.LENGTH: Outcome.COMPLETED,
    FinishReason.STOP: Outcome.COMPLETED,
    FinishReason.TIMEOUT: Outcome.SHED,  # EngineConfig.queue_timeout_s: the service gave it up unserved
    FinishReason.ERROR: Outcome.ERROR,
}


class Intake(WorkloadModel):
    """When a server that is writing answers takes new requests in: before each step, unless told otherwise.

    Requests that come in groups cost fewer steps with prompts, and each of them waits. An idle server takes them in at
    once.
    """

    look_every: int = Field(
        1, ge=1, description="steps of answers alone between two looks (SGLang's scheduler-recv-interval)"
    )
    hold_steps: int = Field(
        0, ge=0, description="steps that the first is held for others to come (TensorRT-LLM's batch_wait_timeout_iters)"
    )

    @property
    def is_immediate(self) -> bool:
        return self.look_every == 1 and not self.hold_steps


IMMEDIATE = Intake()


class Replica:
    """Drives one engine: steps it whenever it has work and its last step is over.

    What happens while a step runs (arrivals, cancellations) takes effect when it ends, as in a real server,
    whose engine thread takes new requests between two steps.

    Args:
        number: unique in its pool.
        warm_up_s: what it still does when its first request is there: compiling, page faults, empty allocators.
        tiers: where keys and values are kept behind its prefix cache.
        intake: when it takes requests in.
    """

    def __init__(
        self,
        pool: str,
        number: int,
        make_engine: EngineFactory,
        events: EventQueue,
        warm_up_s: float = 0.0,
        tiers: Sequence[Tier] = (),
        intake: Intake = IMMEDIATE,
    ) -> None:
        self.name = f"{pool}-{number}"
        self.pool, self.number = pool, number
        self.events = events
        self.clock = VirtualClock(events.now)
        self._engine = make_engine(self.clock)
        self._fast = self._engine.core if isinstance(self._engine.core, FastForwardCore) else None
        """Its core, if that can plan runs of steps."""
        self.tiers = ReplicaTiers(tiers, self._engine)
        self._decode_run: DecodeRun | None = None
        """Steps under way that nothing outside can see; see fast_forward.py."""
        self.outstanding = 0
        self.started = events.now
        self.stopped: float | None = None
        """Moments between which it is paid for; None = still up."""
        self.busy_s = 0.0
        self.num_output_tokens = 0
        """Written by jobs that have ended, for any client."""
        self._warm_up_s = warm_up_s
        self._stepping = False
        self._must_drain = False
        """A job was cancelled, perhaps the last one, while a step that was launched ahead is still out."""
        self._jobs: dict[str, Job] = {}
        self._landing: deque[Job] = deque()
        """Jobs whose KV cache has come and waits for room."""
        self._intake = intake
        self._coming: list[Job] = []
        """Jobs that it has not looked at yet."""
        self._held: list[Job] = []
        """Jobs that it has seen, and holds for others to come."""
        self._looked_in = self._held_since = 0
        """Steps after which it looked last, and after which it saw the first that is held."""
        self._computes_prompts = False
        """The step before did, or might have."""

    @property
    def engine(self) -> Engine:
        """As it is now."""
        self._end_decode_run()
        return self._engine

    def submit(self, job: Job) -> None:
        """Take a job. It may end at once, if the engine refuses it."""
        self._end_decode_run()
        job.replica = self
        self.outstanding += 1
        if job.has_kv:
            self._landing.append(job)
            self._land()
        elif (arrival := self.tiers.fetch(job, self.events.now)) is not None:
            self.events.at(arrival, self._fetched, job)
        elif self._intake.is_immediate:
            self._add(job)
        else:
            self._coming.append(job)
        self._wake()

    def cancel(self, job: Job) -> None:
        """Stop working on a job and free what it holds."""
        self._end_decode_run()
        if (queue := self._queue_of(job)) is not None:
            queue.remove(job)
            self.outstanding -= 1
        elif self.tiers.cancel(job):
            self.outstanding -= 1
        elif self._jobs.pop(job.job_id, None) is not None:
            self._catch_up()
            output = self._engine.abort(job.job_id)
            self.num_output_tokens += len(output.token_ids) if output else 0
            self.outstanding -= 1
            self._must_drain = True
            self._wake()

    def holds(self, job: Job) -> bool:
        """Whether it has a job that its engine has not."""
        return self._queue_of(job) is not None

    def _queue_of(self, job: Job) -> "list[Job] | deque[Job] | None":
        return next((queue for queue in (self._landing, self._coming, self._held) if job in queue), None)

    @property
    def num_waiting(self) -> int:
        """Requests in its queue."""
        before_engine = len(self._landing) + len(self._coming) + len(self._held) + self.tiers.num_fetching
        return len(self._engine.scheduler.waiting) + before_engine

    @property
    def num_running(self) -> int:
        """Requests that hold KV blocks."""
        return len(self._engine.scheduler.kv.tables)

    @property
    def kv_used(self) -> float:
        """Share of KV blocks that requests hold."""
        pool, num_used = self._engine.scheduler.kv.pool, self._engine.scheduler.kv.pool.num_used
        if self._decode_run is not None and self._fast is not None:
            num_used += len(self._fast.in_need(self._decode_run.num_begun(self.events.now)))
        return num_used / len(pool)

    def _add(self, job: Job) -> None:
        self._catch_up()
        params = sampling_params(job.max_tokens)
        limit, wanted = self._engine.context_limit, len(job.token_ids) + job.max_tokens
        try:
            if wanted > limit:  # servers refuse what would be cut off, if they are told the length
                raise PromptTooLongError(f"prompt and answer have {wanted} tokens; window or KV pool hold {limit}")
            add = functools.partial(self._engine.add_request, priority=job.priority, tenant=job.tenant, stream=False)
            add(job.token_ids, params, request_id=job.job_id, arrival=job.arrival)
        except RequestError as error:
            self.outstanding -= 1
            outcome = Outcome.SHED if isinstance(error, QueueFullError) else Outcome.ERROR
            self.events.after(0.0, job.on_end, Reply(outcome, replica=self.name, error=str(error)))
            return
        job.request = self._engine.recent_requests[-1]
        self._jobs[job.job_id] = job

    def _catch_up(self) -> None:
        """An idle engine's clock stands still; bring it to now."""
        if self.clock.now() < self.events.now:
            self.clock.advance_to(self.events.now)

    def _wake(self) -> None:
        works = self._engine.has_unfinished or self._must_drain or self._coming or self._held
        if not self._stepping and works:
            # As an event of its own: whatever else arrives in this very moment shall be in the step.
            self._stepping = True
            self.events.after(0.0, self._step)

    def _step(self) -> None:
        self._catch_up()
        start, num_steps = self.clock.now(), self._engine.scheduler.num_steps
        if self._warm_up_s:
            self.clock.advance(self._warm_up_s)
            self._warm_up_s = 0.0
        self._must_drain = False
        if not self._intake.is_immediate:
            self._take_in()
        # Where requests are held, what waits decides when it looks for more.
        plans = self._intake.is_immediate or not len(self._engine.scheduler.waiting)
        if self._fast is not None and plans and (run := self._fast.next_decode_run()) is not None:
            self._decode_run = run = run.first(self._steps_to_intake()) if self._coming or self._held else run
            self.events.at(run.returns[-1], self._end_decode_run, run)
            return
        self.tiers.land()
        outputs = self._engine.step()
        end = self.clock.now()
        self.busy_s += end - start
        moved = end != start or outputs or self._engine.scheduler.num_steps != num_steps
        if self._engine.has_unfinished and not moved:
            raise SimulationError(f"{self.name} has work and does none of it at {start} s: its runner or its KV pool")
        self.events.at(end, self._step_done, outputs)

    def _take_in(self) -> None:
        """Before a step: take in what has come, if it looks for it now, and what it has held for long enough."""
        scheduler, intake = self._engine.scheduler, self._intake
        num_steps, is_idle = scheduler.num_steps, not self._engine.has_unfinished
        since = num_steps - self._looked_in
        self._looked_in += since // intake.look_every * intake.look_every  # looks in steps that were not gone through
        if is_idle or self._computes_prompts or (since and self._looked_in == num_steps):
            self._looked_in = num_steps
            if not self._held:
                self._held_since = num_steps
            self._held += self._coming
            self._coming.clear()
        if self._held and (is_idle or num_steps - self._held_since >= intake.hold_steps):
            for job in self._held:
                self._add(job)
            self._held.clear()
        behind = any(request.num_missing > 1 for request in scheduler.running)
        self._computes_prompts = behind or len(scheduler.waiting) > 0

    def _steps_to_intake(self) -> int:
        """Steps until it takes in what has come."""
        num_steps, intake = self._engine.scheduler.num_steps, self._intake
        look = [self._looked_in + intake.look_every] if self._coming else []
        release = [self._held_since + intake.hold_steps] if self._held else []
        return min(look + release) - num_steps

    def _step_done(self, outputs: list[RequestOutput]) -> None:
        self._stepping = False
        for output in outputs:
            job = self._jobs.pop(output.request_id, None)
            if job is not None:  # else it was cancelled while the step ran
                self.outstanding -= 1
                token_ids = output.token_ids
                self.num_output_tokens += len(token_ids)
                assert output.finish_reason is not None
                outcome, error = ENDINGS[output.finish_reason], output.completions[0].error
                cached = output.num_cached_tokens
                if outcome is Outcome.COMPLETED:
                    self.tiers.write(job.token_ids)
                job.on_end(Reply(outcome, output.timeline, token_ids, cached, self.name, error))
        self._land()
        self._wake()

    def _end_decode_run(self, run: DecodeRun | None = None) -> None:
        """Bring the engine up to the step that is running now.

        Args:
            run: only if it is still this one, which is over.
        """
        under_way = self._decode_run
        if under_way is None or run not in (None, under_way):
            return
        assert self._fast is not None, "who else plans runs?"
        num_steps = len(under_way.ends) if run else under_way.num_begun(self.events.now)
        self._decode_run = None
        self._fast.advance(under_way, num_steps)
        for seconds in under_way.busy_s(num_steps):
            self.busy_s += seconds
        self.events.at(self.clock.now(), self._step_done, [])

    # ---------------------------------------------------------------- KV caches from elsewhere

    def _fetched(self, job: Job) -> None:
        self._end_decode_run()
        if self.tiers.fetched(job):
            self._add(job)
            self._wake()

    def _land(self) -> None:
        """Admit waiting jobs that bring their KV cache, as far as there are slots and blocks for them."""
        while self._landing and self._has_room(self._landing[0]):
            job = self._landing.popleft()
            self._import_kv(job.token_ids)
            self._add(job)

    def _has_room(self, job: Job) -> bool:
        scheduler, block_size = self._engine.scheduler, self._engine.scheduler.kv.block_size
        if not self._engine.has_unfinished:
            return True
        reserved = sum(blocks_for(request.num_tokens + 1, block_size) for request in scheduler.waiting)
        needed = blocks_for(len(job.token_ids) + 1, block_size)
        has_slot = self.num_running + len(scheduler.waiting) < self._engine.config.max_num_seqs
        return has_slot and reserved + needed <= scheduler.kv.pool.num_free

    def _import_kv(self, token_ids: Sequence[int]) -> None:
        """Put a prompt's full blocks into the prefix cache, where the engine will find them.

        That is how an engine without a notion of transfers takes one in; the tail that fills no block is
        computed again.
        """
        if self._fast is not None:
            self._fast.register_all()
        pool, size = self._engine.scheduler.kv.pool, self._engine.scheduler.kv.block_size
        num_blocks = min(len(token_ids) // size, pool.num_free)
        blocks = pool.allocate(num_blocks)
        for block_id, block_hash in zip(blocks, block_hashes(ROOT, token_ids, size)):
            pool.register(block_id, block_hash)
        pool.release(blocks)


@functools.lru_cache(maxsize=4096)
def sampling_params(max_tokens: int) -> SamplingParams:
    """Greedy and exactly so long: the output length is part of the traffic."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
