"""The scheduler: one rule, from which every batching technique follows.

A step lets each request's `num_computed_tokens` catch up with the tokens it has, under one token
budget, running requests first. There is no prefill phase and no decode phase: a request that is one
token behind decodes, one that is many tokens behind prefills, and both share a step. (The algorithm
is vLLM v1's; Sarathi-Serve showed why mixing pays, Orca why a step is the right unit.)

- chunked prefill: a prompt may catch up over several steps
- prefix caching: it starts with some tokens computed already
- preemption: its computed tokens are taken back
- drafts: tokens that a request may have; those that do not pass are taken back
"""

import bisect
from dataclasses import dataclass

from minillm.core.batch import ScheduledBatch, ScheduledRequest, Step
from minillm.core.block_manager import BlockManager
from minillm.core.request import Draft, FinishReason, Request, RequestStatus
from minillm.core.seams import DraftPolicy, NoDrafts, PreemptionPolicy, QueuePolicy, Recompute, SortedQueue


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The limits of a step and of a request, under vLLM's names."""

    max_model_len: int
    """Most tokens, prompt and output, one request may have; the caller lowers it to what the KV pool can hold."""
    max_num_seqs: int = 32
    """Slots: requests that run at once."""
    max_num_batched_tokens: int = 1024
    """Token budget of one step; at least max_num_seqs."""
    enable_chunked_prefill: bool = True
    """Off: a prompt is computed whole in one step, even one over the budget."""
    long_prefill_token_threshold: int | None = None
    """Most tokens one request gets per step; None = the budget."""
    scheduler_reserve_full_isl: bool = False
    """Admit a request when blocks are free for all its tokens, not only for its first chunk."""


class Scheduler:
    """Decides, step by step, which requests compute how many tokens, and keeps the block tables in line."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        queue: QueuePolicy | None = None,
        preemption: PreemptionPolicy | None = None,
        drafts: DraftPolicy | None = None,
    ) -> None:
        self.config = config
        self.max_chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self.kv = blocks
        self.waiting = SortedQueue() if queue is None else queue  # an empty queue is false
        self.preemption = preemption or Recompute()
        self.drafts = drafts or NoDrafts()
        self.running: list[Request] = []
        """In order of the preemption policy's rank, then of admission."""
        self.num_parked = 0
        """Running requests that a fast-forward keeps out of `running`: each takes a slot and a token of every step."""
        self.num_steps = 0
        self.num_arrivals = 0
        self.num_preemptions = 0
        self.prefix_queries = 0
        """Prompt tokens looked up in the prefix cache so far."""
        self.prefix_hits = 0
        """Of those, tokens found."""

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self.running) + self.num_parked

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.arrival_index = self.num_arrivals
        request.max_num_tokens = min(request.num_prompt_tokens + request.params.max_tokens, self.config.max_model_len)
        request.needs_history = request.params.has_penalty or request.matcher is not None
        self.num_arrivals += 1
        self.waiting.push(request)

    def schedule(self, now: float) -> ScheduledBatch:
        """Put the next step together. Computed tokens advance here, before they are computed.

        Args:
            now: seconds on the engine's clock.
        """
        self.kv.pool.expire(now)
        timed_out = self.waiting.overdue(now)
        for request in timed_out:
            self.finish(request, FinishReason.TIMEOUT)
        # Decodes go first: they need one token each, and their text is being watched as it appears. A long prompt
        # takes what is left of the budget, so it can slow the others down but never stop them.
        step = Step(self.config.max_num_batched_tokens - self.num_parked, len(self.running))
        prefills = []
        for request in [*self.running]:
            if request.num_missing > 1:
                prefills.append(request)
            else:
                self._schedule_running(request, step, now)
        self.drafts.reserve(step)
        for request in prefills:
            self._schedule_running(request, step, now)
        # A request that has just lost its blocks must get them back before a new one takes them. So no request joins
        # after a preemption, and none can have shared a block whose promise a preemption withdraws.
        if not step.preempted:
            self._admit_waiting(step, now)
        self.drafts.place(step, self.kv.append)
        batch = ScheduledBatch(
            step_id=self.num_steps,
            requests=tuple(step.scheduled.values()),
            saves=tuple(step.saves),
            loads=tuple(step.loads),
            preempted=tuple(step.preempted),
            timed_out=tuple(timed_out),
        )
        if batch.requests:
            self.num_steps += 1
        return batch

    def _schedule_running(self, request: Request, step: Step, now: float) -> None:
        """Give a running request its next tokens. If the pool has no block for them, others are preempted."""
        if request in step.preempted:
            return  # a moment ago, to make room
        start, end = request.num_computed_tokens, request.num_tokens
        num_tokens = self._num_tokens(request, start, end, step)
        if num_tokens == 0:
            return
        while not self.kv.append(request, start + num_tokens):
            victim = self.preemption.choose_victim(request, self.running, step.scheduled)
            self._preempt(victim, step, now)
            if victim is request:
                return
        step.add(request, num_tokens, self.kv.block_ids(request), samples=start + num_tokens == end)

    def _preempt(self, request: Request, step: Step, now: float) -> None:
        """Take a request's blocks away; it waits again."""
        if taken_out := step.remove(request):
            self.kv.invalidate(request, taken_out.start)  # blocks this step would have filled are findable already
        saves = self.preemption.save(request, self.kv.held_blocks(request, request.num_computed_tokens))
        request.recompute_until = max(request.recompute_until, request.num_computed_tokens)
        if not saves:
            request.num_computed_tokens = 0
        step.saves += saves
        self.kv.free(request)
        self.running.remove(request)
        self.drafts.forget(request)
        request.draft = Draft()
        request.status = RequestStatus.PREEMPTED
        request.preempted_at = now if request.preempted_at is None else request.preempted_at
        request.num_preemptions += 1
        self.num_preemptions += 1
        step.preempted.append(request)
        self.waiting.push(request)

    def _admit_waiting(self, step: Step, now: float) -> None:
        """Let waiting requests join, as far as slots, budget and blocks go."""
        while self.num_running < self.config.max_num_seqs:
            request = self.waiting.peek(self.num_running)
            if request is None:
                return
            # What it has computed although it waits was saved when it was preempted.
            prefix = [] if request.num_computed_tokens else self.kv.find_prefix(request)
            start = request.num_computed_tokens or len(prefix) * self.kv.block_size
            num_tokens = self._num_tokens(request, start, request.num_tokens, step)
            end = start + num_tokens
            # Nothing is reserved by looking further ahead: in the middle of a long prompt blocks may still run out.
            wanted = request.num_tokens if self.config.scheduler_reserve_full_isl else end
            if num_tokens == 0 or not self.kv.can_allocate(start, wanted, prefix):
                return
            self.kv.allocate(request, start, end, prefix)
            self.waiting.pop()
            if request.num_computed_tokens:
                step.loads += self.preemption.restore(request, self.kv.held_blocks(request))
            elif request.status is RequestStatus.WAITING:
                request.num_cached_tokens = start
                self.prefix_queries += request.num_prompt_tokens
                self.prefix_hits += start
            request.num_computed_tokens = start
            request.status = RequestStatus.RUNNING
            if request.timeline.scheduled is None:
                request.timeline.scheduled = now
            bisect.insort(self.running, request, key=self.preemption.rank)
            step.add(request, num_tokens, self.kv.block_ids(request), samples=end == request.num_tokens)

    def _num_tokens(self, request: Request, start: int, end: int, step: Step) -> int:
        """How many of its missing tokens [start, end) a request gets in this step; 0 = not this time."""
        if request.num_pending_tokens and (end >= request.max_num_tokens or request.needs_history):
            return 0  # its pending token has to be seen before anything is computed after it
        missing = end - start
        if missing <= step.budget and missing <= self.max_chunk:
            return self.waiting.allot(request, missing)
        if missing == 1 or self.config.enable_chunked_prefill:
            return self.waiting.allot(request, min(step.budget, self.max_chunk))
        # Without chunking it is all or nothing; a prompt over what is left of the budget is its step's only one.
        return 0 if step.has_prefill else self.waiting.allot(request, missing)

    def commit(self, scheduled: ScheduledRequest, num_new: int) -> None:
        """A step's outcome is known: the request got so many tokens. All but one are its draft's; the rest of that is
        taken back.

        So are their blocks, at once: in the next step other requests' own tokens may need them.
        """
        request = scheduled.request
        request.num_pending_tokens -= scheduled.samples
        if scheduled.num_drafts:
            request.num_computed_tokens -= scheduled.num_drafts - max(num_new - 1, 0)
            request.draft = Draft()
            self.kv.truncate(request, request.num_computed_tokens)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request at any moment between two steps, and free all it holds."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.kv.free(request)
        self.preemption.forget(request)
        self.drafts.forget(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason

    def invalidate(self, batch: ScheduledBatch) -> None:
        """The batch was never (wholly) computed: nothing that it should have written may be read.

        Which blocks that spoils can't be told (copies and later steps may have built on them), so the whole prefix
        cache is emptied. Running requests keep their blocks; preempted ones lose what was saved of them.
        """
        self.kv.pool.forget_prefixes()
        for request in batch.preempted:
            if request.status is RequestStatus.PREEMPTED:
                self.preemption.forget(request)
                request.num_computed_tokens = 0

    def check_integrity(self) -> None:
        """Raise AssertionError unless queues and block tables agree. For tests and soaks."""
        self.kv.check_integrity()
        assert set(self.kv.tables) == {request.request_id for request in self.running}, "a block table leaked"
        assert len(self.running) <= self.config.max_num_seqs, "more run than there are slots"
        assert all(request.status is RequestStatus.RUNNING for request in self.running)
        for request in self.running:
            held = len(self.kv.block_ids(request)) * self.kv.block_size
            assert request.num_computed_tokens <= held, "tokens were computed without room to keep them"
            assert request.num_computed_tokens <= request.num_tokens, "more was computed than there is"
        for request in self.waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
