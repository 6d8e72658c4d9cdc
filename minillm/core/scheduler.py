"""The scheduler: one rule, from which every batching technique follows.

A step lets each request's `num_computed_tokens` catch up with the tokens it has, under one token
budget, running requests first. There is no prefill phase and no decode phase: a request that is one
token behind decodes, one that is many tokens behind prefills, and both share a step. (The algorithm
is vLLM v1's; Sarathi-Serve showed why mixing pays, Orca why a step is the right unit.)

- chunked prefill: a prompt may catch up over several steps
- prefix caching: it starts with some tokens computed already
- preemption: its computed tokens are taken back (recompute), or moved to the host (swap)
- speculation: a draft's tokens are tokens the request has; those that did not pass are taken back
"""

import bisect
import math
from dataclasses import dataclass, field

from minillm.core.batch import BlockCopy, ScheduledBatch, ScheduledRequest
from minillm.core.block_manager import KVCacheManager
from minillm.core.known import known
from minillm.core.request import Draft, FinishReason, Request, RequestStatus
from minillm.policies.config import EngineConfig
from minillm.policies.queues import make_waiting_queue
from minillm.policies.swap import SwapSpace
from minillm.policies.window import Window


@dataclass(slots=True)
class Step:
    """A batch while it is being put together."""

    budget: int
    """Tokens that may still be scheduled in this step."""
    draft_budget: int = 0
    """Of these, tokens that drafts may take."""
    requests: list[ScheduledRequest] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    swap_out: list[BlockCopy] = field(default_factory=list)
    swap_in: list[BlockCopy] = field(default_factory=list)
    num_prefills: int = 0


class Scheduler:
    """Decides, step by step, who computes how many tokens, and keeps the block tables in line.

    Args:
        config: reads the fields on batching, budgets, admission and order.
        num_kv_blocks: size of the KV pool.
        num_host_blocks: size of the swap space, 0 with preemption="recompute".
        context_limit: most tokens, prompt and output, one request may have.
    """

    def __init__(self, config: EngineConfig, num_kv_blocks: int, num_host_blocks: int, context_limit: int) -> None:
        self.config = config
        self.kv = KVCacheManager(
            num_kv_blocks,
            known(config.block_size),
            enable_prefix_caching=config.enable_prefix_caching,
            reserve_tokens=context_limit if config.kv_reservation == "max_len" else 0,
            window=Window(config.sliding_window, config.attention_sinks),
        )
        self.context_limit = context_limit
        self.swap = SwapSpace(num_host_blocks)
        self.waiting = make_waiting_queue(config)
        self.running: list[Request] = []
        self.num_steps = 0
        self.num_arrivals = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.num_preemptions = 0
        # The techniques that are limits: off is a limiting value.
        self._seats = 1 if config.batching == "none" else config.max_num_seqs
        self._chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._places: float = math.inf
        """Requests that may still join the batch. Static batching counts them; others never run out."""

    def add(self, request: Request) -> None:
        request.arrival_index = self.num_arrivals
        self.num_arrivals += 1
        self.waiting.push(request)

    def schedule(self, now: float) -> ScheduledBatch:
        """Put the next step together. Computed tokens advance here, before they are computed.

        Args:
            now: seconds on the engine's clock; decides queue timeouts.
        """
        timed_out = self._expire(now)
        step = Step(budget=self.config.max_num_batched_tokens)
        self._schedule_running(step, now)
        # Whoever lost its blocks just now must get them back before a newcomer takes them.
        if not step.preempted:
            self._admit_waiting(step)
        self._place_drafts(step)
        batch = ScheduledBatch(
            step_id=self.num_steps,
            requests=tuple(step.requests),
            swap_out=tuple(step.swap_out),
            swap_in=tuple(step.swap_in),
            preempted=tuple(step.preempted),
            timed_out=tuple(timed_out),
        )
        self.num_steps += bool(batch.requests)
        return batch

    def settle(self, scheduled: ScheduledRequest, num_accepted: int) -> None:
        """A step's outcome is known, and so many of the request's draft tokens passed: the others are taken back.

        So are their blocks: the next step's own tokens, anybody's, come before drafts.
        """
        request = scheduled.request
        request.num_pending_tokens -= scheduled.samples
        if scheduled.num_drafts:
            request.num_computed_tokens -= scheduled.num_drafts - num_accepted
            request.draft = Draft()
            self.kv.cut(request, request.num_computed_tokens)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request at any moment between two steps, and free all it holds."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.kv.free(request)
        self.swap.drop(request.request_id)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason

    def disown(self, batch: ScheduledBatch) -> None:
        """The batch was never (wholly) computed: nothing it should have written may be read by anyone."""
        self.kv.pool.forget_prefixes()
        for request in batch.preempted:
            if request.status is RequestStatus.PREEMPTED:
                self.swap.drop(request.request_id)
                request.num_computed_tokens = 0

    def _schedule_running(self, step: Step, now: float) -> None:
        # Decodes go first: they need one token each, and somebody is watching their text appear. A long
        # prompt takes what is left of the budget, so it can slow the others down but never stop them.
        step.draft_budget = step.budget - len(self.running)  # nobody goes without, that another may guess
        for request in sorted(self.running, key=lambda request: request.num_tokens - request.num_computed_tokens > 1):
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted a moment ago, to make room
            num_tokens = self._tokens_for(request, request.num_computed_tokens, step)
            if num_tokens == 0:
                continue
            while not self.kv.allocate(request, request.num_computed_tokens + num_tokens):
                victim = self._victim(request, step)
                self._preempt(victim, step, now)
                if victim is request:
                    break
            else:
                self._schedule(request, num_tokens, step, self._drafts_for(request, step))

    def _admit_waiting(self, step: Step) -> None:
        if self.config.batching == "static" and not self.running:
            # A new batch: whoever waits now, as far as there are seats. Nobody else joins until all have finished.
            self._places = min(len(self.waiting), self._seats)
        while self.waiting and len(self.running) < self._seats and self._places > 0:
            request = self.waiting.peek()
            swapped = request.request_id in self.swap
            prefix = [] if swapped else self.kv.find_prefix(request)
            start = request.num_computed_tokens if swapped else len(prefix) * self.kv.block_size
            num_tokens = self._tokens_for(request, start, step)
            # The first one that does not fit ends admission: nobody overtakes it.
            fits = num_tokens > 0 and self._may_begin(request, prefix)
            if not fits or not self.kv.allocate(request, start + num_tokens, prefix):
                return
            self.waiting.pop()
            self._places -= 1
            if swapped:
                step.swap_in += self.swap.swap_in(request.request_id, self.kv.held_blocks(request))
            elif request.status is RequestStatus.WAITING:
                request.num_cached_tokens = start
                self.prefix_queries += request.num_prompt_tokens
                self.prefix_hits += start
            request.num_computed_tokens = start
            request.status = RequestStatus.RUNNING
            bisect.insort(self.running, request, key=self._rank)
            self._schedule(request, num_tokens, step)

    def _tokens_for(self, request: Request, start: int, step: Step) -> int:
        """How many of its missing tokens a request gets in this step; 0 = not this time."""
        missing = request.num_tokens - start
        if request.num_pending_tokens and self._must_wait(request):
            return 0
        if missing == 1 or self.config.enable_chunked_prefill:
            return min(missing, self._chunk, step.budget)
        # Without chunking it is all or nothing; a prompt over the whole budget gets a step to itself.
        return missing if missing <= step.budget or step.num_prefills == 0 else 0

    def _may_begin(self, request: Request, prefix: list[int]) -> bool:
        """Whether to admit a request of which one step's tokens fit. In the middle of a long prompt it may run out of
        blocks, and preempt others or itself; vLLM looks ahead, though it reserves nothing."""
        if not self.config.scheduler_reserve_full_isl:
            return True
        return self.kv.could_hold(request.num_tokens, prefix, self._chunk)

    def _drafts_for(self, request: Request, step: Step) -> int:
        """How many tokens of its draft may be checked after its own, if blocks are left for them."""
        room = min(
            len(request.draft),
            step.draft_budget,
            self.context_limit - request.num_tokens - 1,  # the step yields one token more than pass
        )
        return max(room, 0)

    def _place_drafts(self, step: Step) -> None:
        """Give drafts their blocks, of those that are left when everybody's own tokens have theirs: nobody is preempted
        or kept waiting for a guess. A draft that gets none is not checked."""
        for i, scheduled in enumerate(step.requests):
            if scheduled.num_drafts and not self.kv.allocate(scheduled.request, scheduled.end):
                step.requests[i] = scheduled.without_drafts()
                step.budget += scheduled.num_drafts
                scheduled.request.num_computed_tokens -= scheduled.num_drafts

    def _must_wait(self, request: Request) -> bool:
        """Whether a request's pending token has to be seen before anything is computed after it."""
        num_output = request.num_output_tokens + request.num_pending_tokens
        is_last = num_output >= request.params.max_tokens or request.num_tokens >= self.context_limit
        return is_last or request.needs_history

    def _schedule(self, request: Request, num_tokens: int, step: Step, num_drafts: int = 0) -> None:
        start = request.num_computed_tokens
        samples = start + num_tokens == request.num_tokens
        step.num_prefills += num_tokens > 1
        step.draft_budget -= num_drafts
        num_tokens += num_drafts
        step.requests.append(
            ScheduledRequest(request, start, num_tokens, self.kv.block_ids(request), samples, num_drafts)
        )
        step.budget = max(step.budget - num_tokens, 0)
        request.num_computed_tokens += num_tokens
        request.num_pending_tokens += samples

    def _victim(self, asker: Request, step: Step) -> Request:
        """The running request to preempt for one that needs blocks: the last that is not in this step yet, or that
        ranks behind the asker. At worst the asker itself: then whoever went before it gave way in vain."""
        scheduled = {id(scheduled.request) for scheduled in step.requests}
        return next(
            request
            for request in reversed(self.running)
            if id(request) not in scheduled or self._rank(request) > self._rank(asker)
        )

    def _take_out(self, request: Request, step: Step) -> None:
        """Undo `_schedule`, if the request is in this step: it gives way to one of a higher rank."""
        place = next((i for i, scheduled in enumerate(step.requests) if scheduled.request is request), None)
        if place is None:
            return
        scheduled = step.requests.pop(place)
        step.num_prefills -= scheduled.num_tokens - scheduled.num_drafts > 1
        step.draft_budget += scheduled.num_drafts
        step.budget += scheduled.num_tokens
        request.num_computed_tokens = scheduled.start
        request.num_pending_tokens -= scheduled.samples
        self.kv.disown(request, scheduled.start)  # blocks that this step would have filled can be found already

    def _preempt(self, request: Request, step: Step, now: float) -> None:
        self._take_out(request, step)
        self.running.remove(request)
        computed = self.kv.held_blocks(request, request.num_computed_tokens)
        copies = self.swap.swap_out(request.request_id, computed)
        request.recompute_until = max(request.recompute_until, request.num_computed_tokens)
        if copies is None:
            request.num_computed_tokens = 0
        else:
            step.swap_out += copies
        self.kv.free(request)
        request.draft = Draft()
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._places += 1  # it stays a member of its batch
        if request.preempted_at is None:
            request.preempted_at = now
        step.preempted.append(request)
        self.waiting.push(request)

    def _rank(self, request: Request) -> int:
        """`running` is kept in this order; its end is preempted first. Equal ranks: in order of admission."""
        return request.priority if self.config.scheduling_order == "priority" else 0

    def _expire(self, now: float) -> list[Request]:
        limit = self.config.queue_timeout_s
        if limit is None:
            return []
        late = [
            request
            for request in self.waiting
            if request.status is RequestStatus.WAITING and now - request.timeline.arrival > limit
        ]
        for request in late:
            self.finish(request, FinishReason.TIMEOUT)
        return late

    def check_integrity(self) -> None:
        """Raise AssertionError unless queues, block tables and swap space agree. For tests and soaks."""
        self.kv.check_integrity()
        self.swap.check_integrity()
        assert set(self.kv.tables) == {request.request_id for request in self.running}, "a block table leaked"
        assert len(self.running) <= self._seats, "more run than there are seats"
        assert all(request.status is RequestStatus.RUNNING for request in self.running)
        for request in self.running:
            held = len(self.kv.block_ids(request)) * self.kv.block_size
            assert request.num_computed_tokens <= held, "tokens were computed without room to keep them"
            assert request.num_computed_tokens <= request.num_tokens, "more was computed than there is"
        for request in self.waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            swapped = request.request_id in self.swap
            assert swapped or request.num_computed_tokens == 0, "computed tokens without a cache"
