"""Engine: prompts in, text out. Builds the core with the parts that a configuration names, and detokenizes.

    add_request -> EngineCore.add ... EngineCore.step -> RequestOutput

It is single-threaded and never waits for requests: call `step()` for as long as `has_unfinished`. `LLM` wraps it in
a blocking call, `EngineThread` in a thread with streams.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minillm.core.batch import Runner
from minillm.core.engine import EngineCore
from minillm.core.errors import DuplicateRequestError, InvalidSamplingParamsError, RequestError
from minillm.core.params import SEED_STRIDE, SamplingParams
from minillm.core.request import Request
from minillm.core.scheduler import Scheduler
from minillm.core.seams import DraftPolicy, NoDrafts
from minillm.core.step_log import StepRecord
from minillm.core.timeline import Clock, Timeline, WallClock
from minillm.frontend.detokenizer import Detokenizer
from minillm.frontend.outputs import OutputProcessor, OutputSequence, RequestGroup, RequestOutput
from minillm.frontend.parts import EngineParts
from minillm.frontend.prompts import Prompt, encode_prompt
from minillm.frontend.structured_outputs import GrammarCompiler
from minillm.observe.attribution import Attribution
from minillm.policies import assemble
from minillm.policies.config import EngineConfig
from minillm.policies.limits import RequestLimits
from minillm.speculation.base import Proposer
from minillm.speculation.draft_length import COSTLY_ROW
from minillm.speculation.speculator import Speculator
from minillm.text_files import half_character

if TYPE_CHECKING:
    from minillm.frontend.grammar_matcher import CompiledGrammar
    from minillm.model.loader import LoadedModel
    from minillm.runner.kept_runners import KeptRunners
    from minillm.runner.torch_runner import TorchRunner

REQUEST_NUMBERS = itertools.count()
"""Numbers for requests that bring no id: none is used twice, whichever engine serves them."""


class Engine:
    """Serves requests on one model with one configuration.

    `Engine(config)` loads the weights and computes. `Engine.on_runner(config, runner, clock)` drives a runner that is
    there already, a simulated one for instance.

    Args:
        config: every technique is one of its fields.
        model: weights to use; None loads `config.model`. Engines may share one, to switch techniques
            without loading again.
        clock: the one source of time; None = the wall clock.
        proposer: drafts tokens; None = as `config.speculative` says.
        make_scheduler: puts the policies together, for policies of your own.
        runners: of an engine that has ended, to go on with; None = there was none.
    Raises:
        ConfigError: the configuration does not fit the model or the memory.
        ModelError: the model cannot be loaded.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: "LoadedModel | None" = None,
        *,
        clock: Clock | None = None,
        proposer: Proposer | None = None,
        make_scheduler: Callable[..., Scheduler] = assemble.make_scheduler,
        runners: "KeptRunners | None" = None,
    ) -> None:
        from minillm.frontend.loading import load_parts  # torch: an engine over a simulated runner starts without it

        clock = clock or WallClock()
        self._assemble(load_parts(config, model, proposer, clock, runners), clock, make_scheduler, EngineCore)

    @classmethod
    def on_runner(
        cls,
        config: EngineConfig,
        runner: Runner,
        clock: Clock,
        *,
        model: "LoadedModel | None" = None,
        proposer: Proposer | None = None,
        row_cost: float = COSTLY_ROW,
        make_scheduler: Callable[..., Scheduler] = assemble.make_scheduler,
        make_core: Callable[..., EngineCore] = EngineCore,
    ) -> "Engine":
        """An engine that loads nothing. Without a model prompts are token ids, nothing is detokenized, and
        config.max_model_len must be set.

        Args:
            model: what the runner computes.
            row_cost: with a proposer: what one more row adds to the cost of a step with one.
            make_core: makes the loop.
        Raises:
            ConfigError: the configuration does not fit the runner, or what should draft needs a model.
        """
        if config.speculative is not None and proposer is None:
            from minillm.frontend.loading import load_proposer

            proposer, row_cost = load_proposer(config, model, runner, clock)
        engine = cls.__new__(cls)  # __init__ would load
        engine._assemble(EngineParts(config, model, runner, proposer, row_cost), clock, make_scheduler, make_core)
        return engine

    def _assemble(
        self,
        parts: EngineParts,
        clock: Clock,
        make_scheduler: Callable[..., Scheduler],
        make_core: Callable[..., EngineCore],
    ) -> None:
        """Put the parts together, and policies, limits and text around them."""
        config, model, runner, proposer, row_cost = parts
        self.config = config.replace(block_size=runner.block_size)
        self.model = model
        self.tokenizer: Any = model.tokenizer if model else None
        self.vocab_size = model.model_config.vocab_size if model else None
        max_positions = model.model_config.max_position_embeddings if model else None
        self.limits = RequestLimits(self.config, max_positions, runner.num_kv_blocks)
        self.context_limit = self.limits.context_limit
        self.drafts: DraftPolicy = NoDrafts()
        if config.speculative is not None and proposer is not None:
            self.drafts = Speculator(config.speculative, proposer, clock, runner, self.context_limit, row_cost)
        self._make_scheduler = make_scheduler
        self.outputs = OutputProcessor()
        eos_token_ids: frozenset[int] = model.eos_token_ids if model else frozenset()
        self.grammars = GrammarCompiler(self.tokenizer, self.vocab_size, eos_token_ids, self.config.grammar_timeout_s)
        ahead = runner.runs_beside_python if config.async_scheduling is None else config.async_scheduling
        self.core = make_core(
            self._new_scheduler(runner, clock),
            runner,
            clock,
            eos_token_ids=eos_token_ids,
            on_token=self.outputs.on_token,
            # A draft follows known tokens: with drafts the step before must have been waited for.
            lookahead=int(ahead and config.speculative is None),
        )
        self.core.log.listeners.append(Attribution())
        self._seeds = random.Random(config.seed)

    # ---------------------------------------------------------------- requests in

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        arrival: float | None = None,
        stream: bool = True,
        grammar: "CompiledGrammar | None" = None,
    ) -> str:
        """Queue a request. Returns its id.

        Args:
            request_id: free to choose, but unique among requests in flight.
            priority: lower is served earlier, with scheduling_order="priority".
            tenant: whose request it is, with scheduling_order="fair".
            cache_salt: cached prefixes are shared with requests of the same salt, and no others.
            arrival: when it reached the server, clock seconds; None = now.
            stream: step() returns an output for every new token; otherwise only the final one.
            grammar: what `grammars` has compiled of params.structured_outputs already; None = wait for that here.
        Raises:
            RequestError: it cannot be served; nothing has changed.
        """
        arrival = self.clock.now() if arrival is None else arrival
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidSamplingParamsError(f"params are SamplingParams, or None; got a {type(params).__name__}")
        if self.vocab_size and any(not 0 <= token < self.vocab_size for token, _ in params.logit_bias):
            raise InvalidSamplingParamsError(f"logit_bias: token ids are from 0 to {self.vocab_size - 1}")
        if not isinstance(cache_salt, str) or half_character(cache_salt):  # else a step would fail that hashes it
            raise RequestError(f"cache_salt is Unicode text, or empty; got {cache_salt!r}")
        request_id = f"request-{next(REQUEST_NUMBERS)}" if request_id is None else request_id
        text, token_ids = encode_prompt(prompt, self.tokenizer, self.vocab_size)
        ids = [request_id] if params.n == 1 else [f"{request_id}/{i}" for i in range(params.n)]
        if request_id in self.outputs.groups or any(sequence_id in self.core.requests for sequence_id in ids):
            raise DuplicateRequestError(f"request id {request_id!r} is in flight: use another, or wait for it")
        self.limits.check(len(token_ids), len(ids), len(self.scheduler.waiting))

        if grammar is None and params.structured_outputs is not None:
            grammar = self.grammars.start(params.structured_outputs).result()
        matchers = grammar.matchers(params.n) if grammar else [None] * params.n
        group = RequestGroup(request_id, text, stream)
        base_seed = self._seeds.getrandbits(48) if params.seed is None else params.seed
        for i, sequence_id in enumerate(ids):
            seed = base_seed + i * SEED_STRIDE
            request = Request(
                sequence_id,
                token_ids,
                params,
                Timeline(arrival),
                seed,
                priority,
                tenant=tenant,
                cache_salt=cache_salt,
                streams=stream,
            )
            request.matcher = matchers[i]
            detokenizer = Detokenizer(self.tokenizer, token_ids, params.stop, params.min_tokens)
            group.sequences.append(OutputSequence(request, detokenizer))
        # From here on nothing can fail: it comes in whole, or not at all.
        self.outputs.add(group)
        for sequence in group.sequences:
            self.core.add(sequence.request)
        return request_id

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free all it holds. Returns its last output; None if it is not in flight."""
        group = self.outputs.groups.get(request_id)
        if group is None:
            return None
        for sequence in group.sequences:
            if sequence.request.finish_reason is None:
                try:
                    self.core.abort(sequence.request.request_id)
                finally:  # with its last request a step in flight is waited for, which may fail
                    self.outputs.retire(sequence.request)
        return group.output()

    def abort_all(self) -> list[RequestOutput]:
        """Abort every request in flight."""
        return [output for request_id in list(self.outputs.groups) if (output := self.abort(request_id))]

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is in flight: call `step` for as long as there is."""
        return bool(self.outputs.groups)

    def step(self) -> list[RequestOutput]:
        """Run one step of the core. Returns an output for each request that moved or ended."""
        try:
            return self.outputs.gather(self.core.step())
        except BaseException:
            self.outputs.retire_ended()
            raise

    def start_over(self) -> None:
        """Forget all requests and all that is cached: after Ctrl-C, at whatever line, the books cannot be trusted."""
        if isinstance(self.drafts, Speculator):
            self.drafts.start_over()
        self.core.start_over(self._new_scheduler(self.runner, self.clock))
        self.outputs.clear()

    def close(self) -> None:
        """End what the engine has started beside this process: no grammar is compiled after it, and with tensor
        parallelism nothing can be served. Otherwise that happens when nothing refers to the engine any more, or when
        Python ends."""
        self.grammars.close()
        if self.config.tensor_parallel_size > 1:
            self.torch_runner.close()

    def _new_scheduler(self, runner: Runner, clock: Clock) -> Scheduler:
        return self._make_scheduler(
            self.config,
            num_kv_blocks=runner.num_kv_blocks,
            num_host_blocks=runner.num_host_blocks,
            max_model_len=self.context_limit,
            drafts=self.drafts,
            clock=clock,
        )

    # ---------------------------------------------------------------- parts, and a look at them

    @property
    def clock(self) -> Clock:
        """The one source of time, seconds."""
        return self.core.clock

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, with its queue, its running requests, and the block manager (`scheduler.kv`)."""
        return self.core.scheduler

    @property
    def runner(self) -> Runner:
        """What executes the steps."""
        return self.core.runner

    @property
    def recent_requests(self) -> deque[Request]:
        """Requests, live and finished, in order of arrival."""
        return self.core.recent_requests

    @property
    def steps(self) -> Sequence[StepRecord]:
        """Records of the last steps, oldest first."""
        return self.core.log.records

    @property
    def speculator(self) -> Speculator:
        """What drafts. Raises TypeError: nothing does."""
        if not isinstance(self.drafts, Speculator):
            raise TypeError("this engine does not speculate")
        return self.drafts

    @property
    def loaded_model(self) -> "LoadedModel":
        """The weights. Raises ValueError: the engine has none, only a runner."""
        if self.model is None:
            raise ValueError("this engine has a runner and no model")
        return self.model

    @property
    def torch_runner(self) -> "TorchRunner":
        """The runner, where it is one on real weights. Raises TypeError: it is another."""
        from minillm.runner.torch_runner import TorchRunner

        if not isinstance(self.runner, TorchRunner):
            raise TypeError(f"this needs an engine that computes, and {type(self.runner).__name__} does not")
        return self.runner

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix: the next requests find the cache cold."""
        self.scheduler.kv.pool.forget_prefixes()
