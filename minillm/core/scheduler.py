"""The scheduler: one rule, from which every batching technique follows.

A step lets each request's `num_computed_tokens` catch up with the tokens it has, under one token
budget, running requests first. There is no prefill phase and no decode phase: a request that is one
token behind decodes, one that is many tokens behind prefills, and both share a step. (The algorithm
is vLLM v1's; Sarathi-Serve showed why mixing pays, Orca why a step is the right unit.)

- chunked prefill: a prompt may catch up over several steps
- prefix caching: it starts with some tokens computed already
- preemption: its computed tokens are taken back
- drafts: tokens that a request may have; those that are rejected are taken back
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
    """Slots: requests that run at the same time."""
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
        self.token_budget = config.max_num_batched_tokens
        """Tokens that the next step may have."""
        self.max_chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self.kv = blocks
        self.waiting = SortedQueue() if queue is None else queue  # an empty queue is false
        self.preemption = preemption or Recompute()
        self.drafts = drafts or NoDrafts()
        self.running: list[Request] = []
        """Requests that hold a slot, in order of the preemption policy's rank, then of admission."""
        self.num_steps = 0
        self.num_arrivals = 0
        self.num_preemptions = 0
        self.prefix_queries = 0
        """Prompt tokens looked up in the prefix cache so far; none where it is off."""
        self.prefix_hits = 0
        """Prompt tokens found there."""

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self.running)

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
        step = Step(self.token_budget, len(self.running))

        decodes: list[Request] = []
        prompts: list[Request] = []
        for request in self.running:
            (decodes if request.num_missing <= 1 else prompts).append(request)

        # 1. Decodes: running requests that are one token behind. They go first, since their text is being watched as it
        # appears. A long prompt takes what is left of the budget, so it can slow them down but never stop them.
        for request in decodes:
            self._extend(request, step, now)
        self.drafts.reserve(step)

        # 2. Prompts: running requests that are further behind, also those that compute again what a preemption took.
        for request in prompts:
            self._extend(request, step, now)

        # 3. Waiting: requests join, as far as slots, budget and blocks go. No new one may take what a request has just
        # lost; who gets it is for the queue's order in the next step. So none joins after a preemption, and none can
        # have shared a block whose promise a preemption withdraws.
        while not step.preempted and self.num_running < self.config.max_num_seqs:
            next_one = self.waiting.peek(self.num_running)
            if next_one is None or not self._admit(next_one, step, now):
                break
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

    def _extend(self, request: Request, step: Step, now: float) -> None:
        """Give a running request its next tokens. If the pool has no block for them, others are preempted."""
        if request.awaits_token or request in step.preempted:  # a moment ago, to make room
            return
        num_missing = request.num_missing
        num_tokens = self.grant(request, num_missing, step)
        if num_tokens == 0:
            return
        while not self.kv.append(request, request.num_computed_tokens + num_tokens):
            victim = self.preemption.choose_victim(request, self.running, step.scheduled)
            self._preempt(victim, step, now)
            if victim is request:
                return
        step.add(request, num_tokens, self.kv.block_ids(request), samples=num_tokens == num_missing)

    def _admit(self, request: Request, step: Step, now: float) -> bool:
        """Let the next waiting request run. False: budget or blocks don't suffice, and it goes on waiting."""
        if request.awaits_token:
            return False
        was_saved = request.num_computed_tokens > 0  # by the preemption policy, or it would have been taken back
        prefix = [] if was_saved else self.kv.find_prefix(request)
        start = request.num_computed_tokens if was_saved else len(prefix) * self.kv.block_size
        num_missing = request.num_tokens - start
        num_tokens = self.grant(request, num_missing, step)
        if num_tokens == 0:
            return False
        # Unless asked to, nothing is reserved by looking further ahead: in the middle of a long prompt blocks may still
        # run out.
        look_ahead_to = request.num_tokens if self.config.scheduler_reserve_full_isl else 0
        plan = self.kv.plan(start, start + num_tokens, prefix, look_ahead_to)
        if not self.kv.can_allocate(plan):
            return False
        self.kv.allocate(request, plan)
        self.waiting.pop()
        if was_saved:
            step.loads += self.preemption.restore(request, self.kv.held_blocks(request))
        request.num_computed_tokens = start
        self._give_slot(request, now)
        step.add(request, num_tokens, self.kv.block_ids(request), samples=num_tokens == num_missing)
        return True

    def _give_slot(self, request: Request, now: float) -> None:
        """A request that waited runs, with what was found in the prefix cache computed already."""
        if request.status is RequestStatus.WAITING:  # and not preempted: the first time
            request.num_cached_tokens = request.num_computed_tokens
            if self.kv.enable_prefix_caching:
                self.prefix_queries += request.num_prompt_tokens
                self.prefix_hits += request.num_cached_tokens
        if request.timeline.scheduled is None:
            request.timeline.scheduled = now
        request.status = RequestStatus.RUNNING
        bisect.insort(self.running, request, key=self.preemption.rank)

    def grant(self, request: Request, num_missing: int, step: Step) -> int:
        """How many of its missing tokens a request gets in this step; 0 = the rest of the budget has no room for it.

        A scheduler that plans its steps in another way may override this, and grant fewer.
        """
        if num_missing <= step.budget and num_missing <= self.max_chunk:
            return num_missing
        if num_missing == 1 or self.config.enable_chunked_prefill:
            return max(min(step.budget, self.max_chunk), 0)
        # Without chunking it is all or nothing; a prompt over what is left of the budget is its step's only one.
        return 0 if step.catches_up else num_missing

    def _preempt(self, request: Request, step: Step, now: float) -> None:
        """Take a request's blocks away; it waits again."""
        if taken_out := step.remove(request):
            self.kv.unregister(request, taken_out.start)  # blocks this step would have filled are findable already
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

    def commit(self, part: ScheduledRequest, num_new: int) -> None:
        """A step's outcome is known: the request got so many tokens. All but one are its draft's; the rest of that is
        taken back.

        So are their blocks, immediately: in the next step other requests' own tokens may need them.
        """
        request = part.request
        request.num_pending_tokens -= part.samples
        if part.num_drafts:
            request.num_computed_tokens -= part.num_drafts - max(num_new - 1, 0)
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
        """Empty the whole prefix cache, because this batch was never (wholly) computed.

        Nothing that it should have written may be read. Which blocks that spoils can't be told: copies and later steps
        may have built on them. Running requests keep their blocks; those that this step preempted lose what was saved
        of them.
        """
        self.kv.pool.forget_prefixes()
        for request in batch.preempted:
            if request.status is RequestStatus.PREEMPTED:
                self.preemption.forget(request)
                request.num_computed_tokens = 0
