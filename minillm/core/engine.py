"""The engine's loop: schedule, launch, wait, hand out. It serves token ids; text is the frontend's.

    add -> Scheduler.schedule() -> Runner.launch() -> LaunchedStep.wait() -> process() -> Request

Single-threaded; it never waits for requests: call `step()` for as long as `has_unfinished`.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence

from minillm.core.batch import Runner, ScheduledBatch, StepOutput
from minillm.core.errors import ConfigError, DeviceLostError, DuplicateRequestError, PromptTooLongError
from minillm.core.request import FinishReason, Request, RequestStatus
from minillm.core.scheduler import Scheduler
from minillm.core.seams import NoDrafts
from minillm.core.step_log import StepInFlight, StepLog, close_timeline
from minillm.core.timeline import Clock, WallClock

logger = logging.getLogger(__name__)

REQUEST_HISTORY = 1024
"""Requests, live and finished, kept for a look at them."""


def no_text(request: Request, token_id: int) -> bool:
    """Tokens stay tokens, so no stop string ends a request."""
    return False


class EngineCore:
    """Serves requests on one runner.

    Args:
        scheduler: with its policies; over as many blocks as the runner has.
        runner: executes the steps.
        clock: the one source of time.
        eos_token_ids: end a request, unless it ignores them.
        on_token: called for each new token, before it is handed over: detokenizes, and says whether the text has
            reached a stop string.
        lookahead: steps that may still run while the next one is put together: 0, or 1 for asynchronous scheduling.
    Raises:
        ConfigError: lookahead with drafts, which follow known tokens: the step before must have been waited for.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock | None = None,
        *,
        eos_token_ids: Collection[int] = (),
        on_token: Callable[[Request, int], bool] = no_text,
        lookahead: int = 0,
    ) -> None:
        if lookahead and not isinstance(scheduler.drafts, NoDrafts):
            raise ConfigError("drafts follow known tokens: with them, lookahead is 0")
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock or WallClock()
        self.eos_token_ids = eos_token_ids
        self.on_token = on_token
        self.lookahead = lookahead
        self.requests: dict[str, Request] = {}
        """Requests in flight, by id."""
        self.recent_requests: deque[Request] = deque(maxlen=REQUEST_HISTORY)
        self.log = StepLog(runner.num_kv_blocks)
        self._in_flight: deque[StepInFlight] = deque()

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is in flight: call `step` for as long as there is."""
        return bool(self.requests)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            DuplicateRequestError: another of this id is in flight.
            PromptTooLongError: it leaves no room for one output token.
        """
        limit = self.scheduler.config.max_model_len
        if request.request_id in self.requests:
            raise DuplicateRequestError(f"request id {request.request_id!r} is in flight: use another, or wait for it")
        if request.num_prompt_tokens >= limit:
            raise PromptTooLongError(f"the prompt has {request.num_prompt_tokens} tokens; with output, {limit} fit")
        eos_token_ids = () if request.params.ignore_eos else self.eos_token_ids
        request.stop_token_ids = frozenset((*request.params.stop_token_ids, *eos_token_ids))
        self.requests[request.request_id] = request
        self.recent_requests.append(request)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> Request | None:
        """End a request now and free all it holds; what a step in flight still yields for it is dropped. Returns it;
        None if it has ended, or never was."""
        request = self.requests.get(request_id)
        if request is not None:
            self.finish(request, FinishReason.ABORT)
            if not self.has_unfinished:
                self._drain()
        return request

    # ---------------------------------------------------------------- one step

    def step(self) -> list[Request]:
        """Schedule and launch one step, and wait for it. Returns the requests that got tokens or ended.

        With asynchronous scheduling the step waited for is the one launched before: while it runs, this one
        is put together, so that a GPU never waits for Python. Each request's newest token is then still
        unknown; the runner feeds it on, and if it turns out to have been the last, one token is thrown away.

        A runner that raises ends the requests of that step (FinishReason.ERROR, with the message); the
        others go on.

        Raises:
            DeviceLostError: the runner did: all requests have ended, and the engine is of no more use.
        """
        start = self.clock.now()
        draft_s = self.scheduler.drafts.propose(self.scheduler.running)
        batch = self.scheduler.schedule(start)
        for request in batch.timed_out:
            self.close(request)
        changed = [*batch.timed_out]
        if batch.requests:
            self._in_flight.append(self._launch(batch, start, draft_s))
        elif batch.saves:
            self._copy_only(batch)  # a request lost its blocks, and all others wait for a pending token
        # The step just launched may stay in flight. If none was, or the oldest has failed, they are waited for.
        ahead = self.lookahead if batch.requests else 0
        while len(self._in_flight) > ahead or (self._in_flight and self._in_flight[0].error is not None):
            changed += self._complete(self._in_flight.popleft())
        if not self.has_unfinished:
            self._drain()
        return list(dict.fromkeys(changed))

    def _launch(self, batch: ScheduledBatch, start: float, draft_s: float) -> StepInFlight:
        step = StepInFlight(
            batch=batch,
            start=start,
            draft_s=draft_s,
            scheduled_at=self.clock.now(),
            num_preemptions=[part.request.num_preemptions for part in batch.requests],
            num_waiting=len(self.scheduler.waiting),
            num_running=len(self.scheduler.running),
            kv_blocks_used=self.scheduler.kv.pool.num_used,
        )
        try:
            step.launched = self.runner.launch(batch)
        except Exception as error:
            step.error = error
        except BaseException:
            self._interrupted(batch)
            raise
        return step

    def _complete(self, step: StepInFlight) -> list[Request]:
        """Wait for a step, and hand out what it yields. Returns the requests that changed."""
        try:
            if step.launched is not None:
                output = step.launched.wait()
            if step.error is not None:  # one that built on a failed step is waited for, too: it may write to the cache
                raise step.error
        except Exception as error:
            output = self._output_of_failed(step.batch, error)
        except BaseException:
            self._interrupted(step.batch)
            raise
        executed = self.clock.now()
        alive = [part.request.finish_reason is None for part in step.batch.requests]
        self.scheduler.drafts.observe(step.batch, output)
        changed = self.process(step.batch, output)
        self.log.write(step, output, executed, self.clock.now(), alive)
        return changed

    def process(self, batch: ScheduledBatch, output: StepOutput) -> list[Request]:
        """Give each request its new tokens. Returns the requests that changed."""
        changed, handed_over = [], self.clock.now()
        for part in batch.requests:
            request = part.request
            if request.finish_reason is not None:  # it ended while the step was in flight
                if request.request_id in output.errors:
                    self.scheduler.kv.pool.forget_prefixes()  # its blocks, which could not be trusted, are free already
                continue
            tokens = output.tokens.get(request.request_id, ())
            self.scheduler.commit(part, len(tokens))
            if request.request_id in output.errors:
                self._fail(request, output.errors[request.request_id])
            else:
                if request.timeline.prefill_end is None and part.end >= request.num_prompt_tokens:
                    request.timeline.prefill_end = output.forward_end
                if not part.samples:
                    continue
                handed_over = self._hand_over(request, tokens, handed_over)
                if logprobs := output.logprobs.get(request.request_id):  # without those of tokens past the end
                    request.logprobs += logprobs[: request.num_output_tokens - len(request.logprobs)]
            changed.append(request)
        return changed

    def _hand_over(self, request: Request, token_ids: Sequence[int], before: float) -> float:
        """Append new tokens to a request, until one of them ends it. `before` is when the last hand-over was, in clock
        seconds. Returns when this one was."""
        num_new, reason = 0, None
        try:
            for token_id in token_ids:
                num_new += 1
                request.output_token_ids.append(token_id)
                if token_id in request.stop_token_ids or self.on_token(request, token_id):
                    reason = FinishReason.STOP
                    break
                if request.num_known_tokens >= request.max_num_tokens:
                    reason = FinishReason.LENGTH
                    break
        except Exception as error:  # its text cannot be had: no other request may suffer from that
            logger.exception("%s: a token has no text: the request ends here", request.request_id)
            request.error, reason = f"the tokenizer failed: {type(error).__name__}: {error}", FinishReason.ERROR
        now = self.clock.now()
        request.timeline.lost["detokenize"] += now - before
        request.timeline.deliver(now, num_new)
        if reason is not None:
            self.finish(request, reason)
        return now

    # ---------------------------------------------------------------- endings

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request in flight, whatever its state, and free all it holds."""
        self.scheduler.finish(request, reason)
        self.close(request)

    def close(self, request: Request) -> None:
        """A request has left the scheduler: forget it, and close its timeline."""
        del self.requests[request.request_id]
        close_timeline(request, self.clock.now())

    def _fail(self, request: Request, message: str) -> None:
        # What was computed for it is not to be trusted. If it was preempted, its blocks may be anywhere by now.
        if request.status is RequestStatus.RUNNING:
            self.scheduler.kv.unregister(request)
        else:
            self.scheduler.kv.pool.forget_prefixes()
        request.error = message
        self.finish(request, FinishReason.ERROR)

    def _output_of_failed(self, batch: ScheduledBatch, error: Exception) -> StepOutput:
        """The output of a step that raised: an error for each of its requests.

        Raises:
            DeviceLostError: the step did. No other can succeed, so every request has ended.
        """
        if isinstance(error, DeviceLostError):
            self._in_flight.clear()
            for request in list(self.requests.values()):
                self._fail(request, str(error))
            raise error
        logger.error("step %d failed: its %d requests end here", batch.step_id, len(batch.requests), exc_info=error)
        # Blocks were promised contents that never came: they must not be found, or copied back in. What
        # was launched meanwhile may have read them.
        self.scheduler.invalidate(batch)
        for later in self._in_flight:
            later.error = error
        message = f"{type(error).__name__}: {error}"
        errors = {part.request.request_id: message for part in batch.requests}
        return StepOutput(tokens={}, forward_end=self.clock.now(), stages={}, errors=errors)

    def _interrupted(self, batch: ScheduledBatch) -> None:
        """Ctrl-C in a step: its requests end, and the caller decides about the others."""
        self.scheduler.invalidate(batch)
        for later in self._in_flight:
            later.error = RuntimeError("the step before was interrupted")
        for part in batch.requests:
            if part.request.finish_reason is None:
                self._fail(part.request, "interrupted")

    def _copy_only(self, batch: ScheduledBatch) -> None:
        try:
            self.runner.copy_blocks(batch)
        except Exception:
            logger.exception("copying KV blocks failed: they will be computed again")
            self.scheduler.invalidate(batch)

    def _drain(self) -> None:
        """Wait for steps whose requests have all ended: nothing they yield is wanted."""
        while self._in_flight:
            self._complete(self._in_flight.popleft())

    def start_over(self, scheduler: Scheduler) -> None:
        """Forget all requests and all that is cached: after Ctrl-C, at whatever line, the books cannot be trusted.

        Args:
            scheduler: a new one, over the same pool.
        """
        scheduler.num_steps = self.scheduler.num_steps
        self.scheduler = scheduler
        self._in_flight.clear()
        known = [*self.recent_requests, *self.requests.values()]  # a long-lived one may have left the history
        self.requests.clear()
        for request in known:
            if request.timeline.finished is None:
                request.status, request.finish_reason = RequestStatus.FINISHED, FinishReason.ABORT
                close_timeline(request, self.clock.now())
