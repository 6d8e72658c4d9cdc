"""The engine: takes requests in, runs steps, hands tokens out, and stamps everything it does.

    add_request -> Scheduler.schedule() -> Runner.execute() -> Engine._update() -> RequestOutput

It is single-threaded and never waits: call `step()` for as long as `has_unfinished`. `LLM` wraps it in
a blocking call, `EngineThread` in a thread with streams.
"""

import itertools
import logging
import random
from collections import deque
from dataclasses import dataclass, field

from minillm.clock import Clock, WallClock
from minillm.config import EngineConfig
from minillm.detokenizer import Detokenizer
from minillm.errors import ConfigError, DuplicateRequestError, PromptTooLongError, QueueFullError
from minillm.models.loader import LoadedModel, load_model
from minillm.prompts import Prompt, encode_prompt
from minillm.request import Completion, FinishReason, Request, RequestOutput, SamplingParams
from minillm.runners.base import Runner, StepOutput
from minillm.runners.torch_runner import TorchRunner
from minillm.scheduling.batch import ScheduledBatch
from minillm.scheduling.scheduler import Scheduler
from minillm.timeline import StepRecord, StepShare, Timeline

logger = logging.getLogger(__name__)

STEP_HISTORY = 4096
"""Step records kept by an engine."""
REQUEST_NUMBERS = itertools.count()
"""For ids of requests that bring none: never used twice, whichever engine serves them."""
REQUEST_HISTORY = 1024
"""Requests, live and finished, kept for snapshots."""


@dataclass(slots=True)
class Sequence:
    """One of the n outputs being written: the scheduler's request, and its text so far."""

    request: Request
    detokenizer: Detokenizer
    seen_text: int = 0
    """Characters of request.text that an output has shown."""
    seen_tokens: int = 0


@dataclass(slots=True)
class RequestGroup:
    """What one add_request call asked for: n sequences over one prompt."""

    request_id: str
    prompt: str | None
    stream: bool
    sequences: list[Sequence] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return all(sequence.request.finish_reason is not None for sequence in self.sequences)


class Engine:
    """Serves requests on one model with one configuration.

    Args:
        config: every technique is one of its fields.
        model: weights to use; None loads `config.model`. Engines may share one, to switch techniques
            without loading again.
        runner: executes the steps; None = a TorchRunner on the model. With a runner and no model,
            prompts are token ids, nothing is detokenized, and config.max_model_len must be set.
        clock: the one source of time; None = the wall clock.
    Raises:
        ConfigError: the configuration does not fit the model or the memory.
        ModelError: the model cannot be loaded.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel | None = None,
        *,
        runner: Runner | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.clock = clock or WallClock()
        if runner is None:
            model = model or load_model(config)
            runner = TorchRunner(model, config, self.clock)
        self.model = model
        self.runner = runner
        self.tokenizer = model.tokenizer if model else None
        self.eos_token_ids = model.eos_token_ids if model else frozenset()
        self.vocab_size = model.model_config.vocab_size if model else None
        self.context_limit = min(self._max_model_len(), runner.num_kv_blocks * config.block_size)
        """Most tokens one request may have. A KV pool smaller than the window lowers it: a request that
        could never fit is refused or ended, it never gets stuck."""
        self.scheduler = Scheduler(config, runner.num_kv_blocks, runner.num_host_blocks, self.context_limit)
        self.steps: deque[StepRecord] = deque(maxlen=STEP_HISTORY)
        self.recent_requests: deque[Request] = deque(maxlen=REQUEST_HISTORY)
        self.num_recomputed_tokens = 0
        self._groups: dict[str, RequestGroup] = {}
        self._sequences: dict[str, tuple[RequestGroup, Sequence]] = {}
        self._seeds = random.Random(config.seed)

    # ---------------------------------------------------------------- requests in

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        arrival: float | None = None,
        stream: bool = True,
    ) -> str:
        """Queue a request. Returns its id.

        Args:
            request_id: free to choose, but unique among requests in flight.
            priority: lower is served earlier, with scheduling_order="priority".
            arrival: when it reached the front door, clock seconds; None = now.
            stream: step() returns an output for every new token; otherwise only the final one.
        Raises:
            RequestError: it cannot be served; nothing has changed.
        """
        arrival = self.clock.now() if arrival is None else arrival
        params = params or SamplingParams()
        request_id = f"request-{next(REQUEST_NUMBERS)}" if request_id is None else request_id
        text, token_ids = encode_prompt(prompt, self.tokenizer, self.vocab_size)
        self._check_length(len(token_ids))
        ids = [request_id] if params.n == 1 else [f"{request_id}/{i}" for i in range(params.n)]
        self._check_admission(request_id, ids)

        group = RequestGroup(request_id, text, stream)
        base_seed = self._seeds.getrandbits(48) if params.seed is None else params.seed
        for i, sequence_id in enumerate(ids):
            request = Request(
                sequence_id, token_ids, params, Timeline(arrival), seed=base_seed + i * 1_000_003, priority=priority
            )
            sequence = Sequence(request, Detokenizer(self.tokenizer, token_ids, params.stop))
            group.sequences.append(sequence)
            self._sequences[sequence_id] = (group, sequence)
            self.scheduler.add(request)
            self.recent_requests.append(request)
        self._groups[request_id] = group
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free all it holds. Returns its last output; None if it is not in flight."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        for sequence in group.sequences:
            if sequence.request.finish_reason is None:
                self._finish(sequence, FinishReason.ABORT)
        return self._output(group)

    def abort_all(self) -> list[RequestOutput]:
        """Abort every request in flight."""
        return [output for request_id in list(self._groups) if (output := self.abort(request_id))]

    @property
    def has_unfinished(self) -> bool:
        return bool(self._groups)

    # ---------------------------------------------------------------- one step

    def step(self) -> list[RequestOutput]:
        """Schedule and run one step. Returns an output for each request that moved or ended.

        A runner that raises ends the requests of that step (FinishReason.ERROR, with the message); the
        others go on.
        """
        start = self.clock.now()
        batch = self.scheduler.schedule(start)
        changed = {id(group): group for group in (self._retire(request) for request in batch.timed_out)}
        if batch.requests:
            scheduled_at = self.clock.now()
            for scheduled in batch.requests:
                timeline = scheduled.request.timeline
                timeline.scheduled = start if timeline.scheduled is None else timeline.scheduled
            output = self._execute(batch)
            executed_at = self.clock.now()
            for group in self._update(batch, output):
                changed[id(group)] = group
            end = self.clock.now()
            stages = {"schedule": scheduled_at - start, **output.stages, "detokenize": end - executed_at}
            self._record(batch, start, end, stages)
        return [self._output(group) for group in changed.values() if group.stream or group.finished]

    def _execute(self, batch: ScheduledBatch) -> StepOutput:
        try:
            return self.runner.execute(batch)
        except BaseException as error:
            # Blocks were promised contents that never came: nobody may find them, or swap them back in.
            self.scheduler.disown(batch)
            if not isinstance(error, Exception):  # Ctrl-C: the callers decide
                for scheduled in batch.requests:
                    self._fail(scheduled.request, "interrupted")
                raise
            logger.exception("step %d failed: its %d requests end here", batch.step_id, len(batch.requests))
            message = f"{type(error).__name__}: {error}"
            errors = {scheduled.request.request_id: message for scheduled in batch.requests}
            return StepOutput(tokens={}, forward_end=self.clock.now(), stages={}, errors=errors)

    def _update(self, batch: ScheduledBatch, output: StepOutput) -> list[RequestGroup]:
        """Give each request its new tokens, and hand them over. Returns the groups that changed."""
        changed = []
        for scheduled in batch.requests:
            request = scheduled.request
            group, sequence = self._sequences[request.request_id]
            if request.request_id in output.errors:
                self.scheduler.kv.disown(request)
                self._fail(request, output.errors[request.request_id])
            else:
                if request.timeline.prefill_end is None and scheduled.end >= request.num_prompt_tokens:
                    request.timeline.prefill_end = output.forward_end
                if not scheduled.samples:
                    continue
                request.logprobs += output.logprobs.get(request.request_id, ())
                self._append(sequence, output.tokens[request.request_id])
            changed.append(group)
        return changed

    def _append(self, sequence: Sequence, token_ids: list[int]) -> None:
        """Add new tokens to a sequence, until one of them ends it."""
        request, before = sequence.request, self.clock.now()
        num_before = request.num_output_tokens
        reason = None
        for token_id in token_ids:
            request.output_token_ids.append(token_id)
            reason = self._stop_reason(sequence, token_id)
            if reason is not None:
                break
        now = self.clock.now()
        request.timeline.add_lost("detokenize", now - before)
        request.timeline.deliver(now, request.num_output_tokens - num_before)
        if reason is not None:
            self._finish(sequence, reason)

    def _stop_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Detokenize one more token, and say whether the sequence ends with it."""
        request, params = sequence.request, sequence.request.params
        ends = token_id in params.stop_token_ids or (token_id in self.eos_token_ids and not params.ignore_eos)
        if ends:
            return FinishReason.STOP
        request.text += sequence.detokenizer.append([token_id])
        if sequence.detokenizer.stopped_by is not None:
            return FinishReason.STOP
        if request.num_output_tokens >= params.max_tokens or request.num_tokens >= self.context_limit:
            return FinishReason.LENGTH
        return None

    # ---------------------------------------------------------------- endings

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self.scheduler.finish(sequence.request, reason)
        self._retire(sequence.request)

    def _fail(self, request: Request, message: str) -> None:
        request.error = message
        self._finish(self._sequences[request.request_id][1], FinishReason.ERROR)

    def _retire(self, request: Request) -> RequestGroup:
        """A request has ended: flush its text, close its timeline, forget it. Returns its group."""
        group, sequence = self._sequences.pop(request.request_id)
        request.text += sequence.detokenizer.finish()
        now = self.clock.now()
        if (
            request.finish_reason in (FinishReason.ABORT, FinishReason.ERROR)
            and request.timeline.last_token is not None
        ):
            request.timeline.last_token = now  # more tokens were to come: it ended while decoding, not streaming
        request.timeline.finished = now
        self._close_preemption(request, now)
        if group.finished:
            del self._groups[group.request_id]
        return group

    def _output(self, group: RequestGroup) -> RequestOutput:
        completions = []
        for sequence in group.sequences:
            request = sequence.request
            completions.append(
                Completion(
                    text=request.text,
                    token_ids=list(request.output_token_ids),
                    finish_reason=request.finish_reason,
                    logprobs=None if request.params.logprobs is None else list(request.logprobs),
                    timeline=request.timeline,
                    new_text=request.text[sequence.seen_text :],
                    num_new_tokens=request.num_output_tokens - sequence.seen_tokens,
                    error=request.error,
                )
            )
            sequence.seen_text, sequence.seen_tokens = len(request.text), request.num_output_tokens
        first = group.sequences[0].request
        return RequestOutput(
            group.request_id, group.prompt, first.prompt_token_ids, completions, first.num_cached_tokens
        )

    # ---------------------------------------------------------------- records

    def _record(self, batch: ScheduledBatch, start: float, end: float, stages: dict[str, float]) -> None:
        """Write the step down, and book what it cost whom."""
        shares = tuple(
            StepShare(s.request.request_id, s.num_tokens, s.num_tokens > 1 or s.start < s.request.num_prompt_tokens)
            for s in batch.requests
        )
        pool = self.scheduler.kv.pool
        record = StepRecord(
            step_id=batch.step_id,
            start=start,
            end=end,
            shares=shares,
            num_waiting=len(self.scheduler.waiting),
            num_running=len(batch.requests),
            kv_blocks_used=pool.num_used,
            kv_blocks_total=len(pool.blocks),
            preempted=tuple(request.request_id for request in batch.preempted),
            stages=stages,
        )
        self.steps.append(record)
        stalled = (end - start) * record.num_prefill_tokens / record.num_tokens
        for scheduled, share in zip(batch.requests, shares):
            request = scheduled.request
            if stalled and not share.is_prefill:
                # The step's time is shared out by tokens: the others' prompt tokens made this one wait.
                request.timeline.add_lost("stalled_by_prefill", stalled)
            self.num_recomputed_tokens += max(min(scheduled.end, request.recompute_until) - scheduled.start, 0)
            if scheduled.end >= request.recompute_until:
                self._close_preemption(request, end)

    def _close_preemption(self, request: Request, now: float) -> None:
        """It has caught up with where it was preempted, or ended: book the time that cost."""
        if request.preempted_at is not None:
            request.timeline.add_lost("preempted", now - request.preempted_at)
            request.preempted_at = None

    @property
    def num_preemptions(self) -> int:
        return self.scheduler.num_preemptions

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix: the next requests find the cache cold."""
        self.scheduler.kv.pool.forget_prefixes()

    def check_integrity(self) -> None:
        """Raise AssertionError unless every part agrees with every other. For tests and soaks."""
        self.scheduler.check_integrity()
        in_flight = {r.request_id for r in (*self.scheduler.running, *self.scheduler.waiting)}
        assert in_flight == set(self._sequences), "scheduler and engine disagree about who is in flight"
        assert all(not group.finished for group in self._groups.values()), "a finished request was kept"

    # ---------------------------------------------------------------- at the door

    def _max_model_len(self) -> int:
        wanted = self.config.max_model_len
        if self.model is None:
            if wanted is None:
                raise ConfigError("an engine without a model needs max_model_len")
            return wanted
        longest = self.model.model_config.max_position_embeddings
        if wanted is not None and wanted > longest:
            raise ConfigError(f"max_model_len is {wanted}, but the model's positions end at {longest}")
        return wanted or longest

    def _check_length(self, num_tokens: int) -> None:
        limit = self.config.max_prompt_tokens
        if limit is not None and num_tokens > limit:
            raise PromptTooLongError(f"the prompt has {num_tokens} tokens and max_prompt_tokens is {limit}: shorten it")
        if num_tokens >= self.context_limit:
            window = self._max_model_len()
            cause = (
                f"max_model_len is {window}"
                if self.context_limit == window
                else f"the KV pool has {self.runner.num_kv_blocks} blocks of {self.config.block_size}"
            )
            raise PromptTooLongError(
                f"the prompt has {num_tokens} tokens, and prompt and output together may have {self.context_limit} "
                f"({cause}): shorten the prompt or raise the limit"
            )

    def _check_admission(self, request_id: str, sequence_ids: list[str]) -> None:
        if request_id in self._groups or any(sequence_id in self._sequences for sequence_id in sequence_ids):
            raise DuplicateRequestError(f"request id {request_id!r} is in flight: use another, or wait for it")
        limit = self.config.max_queue_len
        if limit is not None and len(sequence_ids) > limit:
            raise QueueFullError(
                f"n={len(sequence_ids)} can never fit max_queue_len={limit}: lower n or raise the limit"
            )
        if limit is not None and len(self.scheduler.waiting) + len(sequence_ids) > limit:
            raise QueueFullError(f"{len(self.scheduler.waiting)} requests wait and max_queue_len is {limit}: try later")
