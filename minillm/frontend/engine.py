"""The engine: takes requests in, runs steps, hands tokens out, and stamps everything it does.

    add_request -> Scheduler.schedule() -> Runner.launch() -> Engine._update() -> RequestOutput

It is single-threaded and never waits for requests: call `step()` for as long as `has_unfinished`. `LLM` wraps it in
a blocking call, `EngineThread` in a thread with streams.
"""

import itertools
import logging
import random
from collections import deque
from collections.abc import Sequence as Ordered
from typing import Any

from minillm.core.batch import Runner, ScheduledBatch, StepOutput
from minillm.core.errors import DuplicateRequestError
from minillm.core.known import known
from minillm.core.params import SEED_STRIDE, SamplingParams
from minillm.core.request import FinishReason, Request, RequestStatus
from minillm.core.scheduler import Scheduler
from minillm.core.step_log import StepInFlight, StepLog, StepStart, close_timeline
from minillm.core.timeline import Clock, StepRecord, Timeline, WallClock
from minillm.frontend.detokenizer import Detokenizer
from minillm.frontend.outputs import RequestGroup, RequestOutput, Sequence
from minillm.frontend.prompts import Prompt, encode_prompt
from minillm.model.loader import LoadedModel, load_model
from minillm.policies.admission import Admission
from minillm.policies.config import EngineConfig
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.base import Proposer
from minillm.speculation.make import load_drafter, make_proposer, memory_claim
from minillm.speculation.speculator import Speculator

logger = logging.getLogger(__name__)

REQUEST_NUMBERS = itertools.count()
"""For requests that bring no id: never used twice, whichever engine serves them."""
REQUEST_HISTORY = 1024
"""Requests, live and finished, kept for snapshots."""


class Engine:
    """Serves requests on one model with one configuration.

    Args:
        config: every technique is one of its fields.
        model: weights to use; None loads `config.model`. Engines may share one, to switch techniques
            without loading again.
        runner: executes the steps; None = a TorchRunner on the model. With a runner and no model,
            prompts are token ids, nothing is detokenized, and config.max_model_len must be set.
        clock: the one source of time; None = the wall clock.
        proposer: drafts tokens; None = as `config.speculative` says.
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
        proposer: Proposer | None = None,
    ) -> None:
        self.clock = clock or WallClock()
        if runner is None:
            model = model or load_model(config)
        # Before the KV pool takes the memory that is left.
        drafter = load_drafter(config, model) if proposer is None else None
        if runner is None:
            runner = TorchRunner(known(model), config, self.clock, claim=memory_claim(config, drafter, model))
        self.config = config.replace(block_size=runner.block_size)
        self.model = model
        self.runner = runner
        self.tokenizer: Any = model.tokenizer if model else None
        self.eos_token_ids = model.eos_token_ids if model else frozenset()
        self.vocab_size = model.model_config.vocab_size if model else None
        self.admission = Admission(self.config, model.model_config if model else None, runner.num_kv_blocks)
        self.context_limit = self.admission.context_limit
        self.scheduler = self._make_scheduler()
        self.log = StepLog(runner.num_kv_blocks)
        self.recent_requests: deque[Request] = deque(maxlen=REQUEST_HISTORY)
        self._in_flight: deque[StepInFlight] = deque()
        proposer = proposer or make_proposer(self.config, drafter, runner, self.clock)
        self.speculator = Speculator(config.speculative, proposer, self.clock.now, runner, self.context_limit)
        ahead = runner.runs_beside_python if config.async_scheduling is None else config.async_scheduling
        # A draft follows known tokens: the step before must have been waited for.
        self._lookahead = int(ahead and config.speculative is None)
        """Steps that may still run while the next one is put together."""
        self._groups: dict[str, RequestGroup] = {}
        self._sequences: dict[str, tuple[RequestGroup, Sequence]] = {}
        self._seeds = random.Random(config.seed)

    @property
    def loaded_model(self) -> LoadedModel:
        """The weights. Raises ValueError: the engine has none, only a runner."""
        return known(self.model)

    @property
    def torch_runner(self) -> TorchRunner:
        """The runner, where it is one on real weights. Raises TypeError: it is another."""
        if not isinstance(self.runner, TorchRunner):
            raise TypeError(f"this needs an engine that computes, and {type(self.runner).__name__} does not")
        return self.runner

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
        ids = [request_id] if params.n == 1 else [f"{request_id}/{i}" for i in range(params.n)]
        if request_id in self._groups or any(sequence_id in self._sequences for sequence_id in ids):
            raise DuplicateRequestError(f"request id {request_id!r} is in flight: use another, or wait for it")
        self.admission.check(len(token_ids), len(ids), len(self.scheduler.waiting))

        group = RequestGroup(request_id, text, stream)
        base_seed = self._seeds.getrandbits(48) if params.seed is None else params.seed
        for i, sequence_id in enumerate(ids):
            request = Request(
                sequence_id, token_ids, params, Timeline(arrival), seed=base_seed + i * SEED_STRIDE, priority=priority
            )
            group.sequences.append(Sequence(request, Detokenizer(self.tokenizer, token_ids, params.stop)))
        # From here on nothing can fail: it comes in whole, or not at all.
        self._groups[request_id] = group
        for sequence in group.sequences:
            self._sequences[sequence.request.request_id] = (group, sequence)
            self.scheduler.add(sequence.request)
            self.recent_requests.append(sequence.request)
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free all it holds. Returns its last output; None if it is not in flight."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        for sequence in group.sequences:
            if sequence.request.finish_reason is None:
                self._finish(sequence, FinishReason.ABORT)
        if not self.has_unfinished:
            self._drain()
        return group.output()

    def abort_all(self) -> list[RequestOutput]:
        """Abort every request in flight."""
        return [output for request_id in list(self._groups) if (output := self.abort(request_id))]

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is in flight: call `step` for as long as there is."""
        return bool(self._groups)

    # ---------------------------------------------------------------- one step

    def step(self) -> list[RequestOutput]:
        """Schedule and launch one step, and wait for it. Returns an output for each request that moved or ended.

        With asynchronous scheduling the step waited for is the one launched before: while it runs, this one
        is put together, so that a GPU never waits for Python. Each request's newest token is then still
        unknown; the runner feeds it on, and if it turns out to have been the last, one token is thrown away.

        A runner that raises ends the requests of that step (FinishReason.ERROR, with the message); the
        others go on.
        """
        start = self.clock.now()
        draft_s = self.speculator.propose(self.scheduler.running)
        batch = self.scheduler.schedule(start)
        for request in batch.preempted:
            self.speculator.forget(request)
        changed = {id(group): group for group in (self._retire(request) for request in batch.timed_out)}
        if batch.requests:
            self._in_flight.append(self._launch(batch, start, draft_s))
        elif batch.swap_out:
            self._swap(batch)  # somebody lost its blocks, and everybody else waits for a pending token
        # One step may stay in flight while there is a next one; none that has failed.
        ahead = self._lookahead if batch.requests else 0
        while len(self._in_flight) > ahead or (self._in_flight and self._in_flight[0].error is not None):
            changed |= {id(group): group for group in self._complete(self._in_flight.popleft())}
        if not self.has_unfinished:
            self._drain()
        return [group.output() for group in changed.values() if group.stream or group.finished]

    def _drain(self) -> None:
        """Wait for steps whose requests have all ended: nobody wants what they yield."""
        while self._in_flight:
            self._complete(self._in_flight.popleft())

    def _swap(self, batch: ScheduledBatch) -> None:
        try:
            self.runner.swap(batch)
        except Exception:
            logger.exception("swapping failed: it will be computed again")
            self.scheduler.disown(batch)

    def _launch(self, batch: ScheduledBatch, start: float, draft_s: float) -> StepInFlight:
        begun = StepStart.of(batch, self.scheduler, start, draft_s, self.clock.now())
        for scheduled in batch.requests:
            timeline = scheduled.request.timeline
            timeline.scheduled = start if timeline.scheduled is None else timeline.scheduled
        try:
            return StepInFlight(batch, begun, self.runner.launch(batch))
        except Exception as error:
            return StepInFlight(batch, begun, None, error)
        except BaseException:
            self._interrupted(batch)
            raise

    def _complete(self, step: StepInFlight) -> list[RequestGroup]:
        """Wait for a step, and hand out what it yields. Returns the groups that changed."""
        try:
            if step.launched is not None:
                output = step.launched.wait()
            if step.error is not None:
                raise step.error
        except Exception as error:
            output = self._failed(step.batch, error)
        except BaseException:
            self._interrupted(step.batch)
            raise
        executed = self.clock.now()
        alive = [scheduled.request.finish_reason is None for scheduled in step.batch.requests]
        self.speculator.learn(step.batch, output)
        changed = self._update(step.batch, output)
        self.log.write(step.batch, step.begun, output, executed, self.clock.now(), alive)
        return changed

    def _failed(self, batch: ScheduledBatch, error: Exception) -> StepOutput:
        """The output of a step that raised: an error for each of its requests."""
        logger.error("step %d failed: its %d requests end here", batch.step_id, len(batch.requests), exc_info=error)
        # Blocks were promised contents that never came: nobody may find them, or swap them back in. What
        # was launched meanwhile may have read them.
        self.scheduler.disown(batch)
        for later in self._in_flight:
            later.error = error
        message = f"{type(error).__name__}: {error}"
        errors = {scheduled.request.request_id: message for scheduled in batch.requests}
        return StepOutput(tokens={}, forward_end=self.clock.now(), stages={}, errors=errors)

    def _interrupted(self, batch: ScheduledBatch) -> None:
        """Ctrl-C in a step: its requests end, and the caller decides about the others."""
        self.scheduler.disown(batch)
        for later in self._in_flight:
            later.error = RuntimeError("the step before was interrupted")
        for scheduled in batch.requests:
            if scheduled.request.finish_reason is None:
                self._fail(scheduled.request, "interrupted")

    def _update(self, batch: ScheduledBatch, output: StepOutput) -> list[RequestGroup]:
        """Give each request its new tokens, and hand them over. Returns the groups that changed."""
        changed = []
        for scheduled in batch.requests:
            request = scheduled.request
            if request.finish_reason is not None:
                continue  # it ended while the step was in flight
            tokens = output.tokens.get(request.request_id, [])
            self.scheduler.settle(scheduled, num_accepted=max(len(tokens) - 1, 0))
            group, sequence = self._sequences[request.request_id]
            if request.request_id in output.errors:
                self._fail(request, output.errors[request.request_id])
            else:
                if request.timeline.prefill_end is None and scheduled.end >= request.num_prompt_tokens:
                    request.timeline.prefill_end = output.forward_end
                if not scheduled.samples:
                    continue
                self._append(sequence, tokens)
                # Without those of tokens past the end.
                logprobs = output.logprobs.get(request.request_id, [])
                request.logprobs += logprobs[: request.num_output_tokens - len(request.logprobs)]
            changed.append(group)
        return changed

    def _append(self, sequence: Sequence, token_ids: list[int]) -> None:
        """Add new tokens to a sequence, until one of them ends it."""
        request, before = sequence.request, self.clock.now()
        num_before = request.num_output_tokens
        reason = None
        try:
            for token_id in token_ids:
                request.output_token_ids.append(token_id)
                reason = self._stop_reason(sequence, token_id)
                if reason is not None:
                    break
        except Exception as error:  # its text cannot be had: nobody else may suffer from that
            logger.exception("%s: a token has no text: the request ends here", request.request_id)
            request.error, reason = f"the tokenizer failed: {type(error).__name__}: {error}", FinishReason.ERROR
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
        if request.num_output_tokens >= params.max_tokens or request.num_known_tokens >= self.context_limit:
            return FinishReason.LENGTH
        return None

    # ---------------------------------------------------------------- endings

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self.scheduler.finish(sequence.request, reason)
        self._retire(sequence.request)

    def _fail(self, request: Request, message: str) -> None:
        # What was computed for it is not to be trusted, and if it was preempted nobody knows where that lies.
        if request.status is RequestStatus.RUNNING:
            self.scheduler.kv.disown(request)
        else:
            self.scheduler.kv.pool.forget_prefixes()
        request.error = message
        self._finish(self._sequences[request.request_id][1], FinishReason.ERROR)

    def _retire(self, request: Request) -> RequestGroup:
        """A request has ended: flush its text, close its timeline, forget it. Returns its group."""
        self.speculator.forget(request)
        group, sequence = self._sequences.pop(request.request_id)
        try:
            request.text += sequence.detokenizer.finish()
        except Exception:  # it has ended all the same
            logger.exception("%s: the end of its text is lost", request.request_id)
        close_timeline(request, self.clock.now())
        if group.finished:
            self._groups.pop(group.request_id, None)  # all n of them may time out in one stroke
        return group

    def start_over(self) -> None:
        """Forget all requests and all that is cached: after Ctrl-C, at whatever line, the books cannot be trusted."""
        num_steps = self.scheduler.num_steps
        self.scheduler = self._make_scheduler()
        self.scheduler.num_steps = num_steps
        self._in_flight.clear()
        self._groups.clear()
        self._sequences.clear()
        self.speculator.start_over()
        for request in self.recent_requests:
            if request.timeline.finished is None:
                request.status, request.finish_reason = RequestStatus.FINISHED, FinishReason.ABORT
                close_timeline(request, self.clock.now())

    def _make_scheduler(self) -> Scheduler:
        return Scheduler(self.config, self.runner.num_kv_blocks, self.runner.num_host_blocks, self.context_limit)

    # ---------------------------------------------------------------- looking in from outside

    @property
    def steps(self) -> Ordered[StepRecord]:
        """Records of the last steps, oldest first."""
        return self.log.records

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens computed again after preemptions, over all requests so far."""
        return self.log.num_recomputed_tokens

    @property
    def num_preemptions(self) -> int:
        """How often a running request lost its blocks, so far."""
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
