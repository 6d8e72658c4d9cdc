"""What all requests to one engine share, and how a request is made ready for it."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from minillm.core.errors import RequestError
from minillm.core.params import SamplingParams
from minillm.core.timeline import Clock, Timeline
from minillm.frontend.async_engine import AsyncEngine
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.errors import EmptyPromptError, EngineDeadError, InvalidGrammarError
from minillm.frontend.outputs import Completion
from minillm.frontend.prompts import CheckedTokens, Prompt, encode_prompt, require_tokenizer
from minillm.policies.limits import RequestLimits
from minillm.server.admission import AdmissionLimiter, ApiKeys
from minillm.server.calls import Call, Observer
from minillm.server.chat_template import template_variables
from minillm.server.config import ServeConfig
from minillm.server.errors import ApiError, as_api_error
from minillm.server.logprobs import TokenTexts
from minillm.server.metrics import EngineMetrics, Metrics
from minillm.server.protocol import ChatBody, DetokenizeBody, GenerationBody, TokenizeBody
from minillm.server.tool_grammars import ToolGrammars

logger = logging.getLogger(__name__)

HELPER_THREADS = 2
"""A long prompt takes a while to tokenize, and so do thousands of log-probabilities to write: neither the event loop
nor the engine nor another request waits for them."""

T = TypeVar("T")


class Service:
    """One engine, its limits, and who is told about each request.

    Args:
        thread: the engine. Its config must have no max_queue_len: the limiter counts.
        limiter: lets requests in.
        observers: told about each request when it is over; metrics are always.
    Raises:
        ConfigError: the API keys cannot be read.
    """

    def __init__(
        self, thread: EngineThread, serve: ServeConfig, limiter: AdmissionLimiter, observers: Sequence[Observer] = ()
    ) -> None:
        self.thread = thread
        self.engine = AsyncEngine(thread)
        self.serve = serve
        self.limiter = limiter
        self.keys = ApiKeys(serve.api_key_file)
        self.model_name = model_name = serve.served_model_name or thread.config.model
        self.metrics = Metrics(model_name)
        self.engine_metrics = thread.call(lambda engine: EngineMetrics(engine, model_name)).result()
        self.observers = (self.metrics.observe, *observers)
        self.texts = TokenTexts(thread.model.tokenizer)
        self.num_connections: Callable[[], int] = lambda: 0
        """Open now. The server that takes them says."""
        self.draining = False
        """Set when the server has been told to stop: requests in flight are served, no other comes in."""
        self._limits: RequestLimits = thread.call(lambda engine: engine.limits).result()
        self._tools = ToolGrammars(thread)
        self._helpers = ThreadPoolExecutor(HELPER_THREADS, thread_name_prefix="minillm-helper")

    @property
    def clock(self) -> Clock:
        return self.thread.clock

    @property
    def context_limit(self) -> int:
        """Most tokens, prompt and output, that one request may have."""
        return self._limits.context_limit

    def describe_kv(self) -> str:
        """How many tokens' keys and values there's room for, in a line."""
        kv = self.thread.call(lambda engine: engine.scheduler.kv).result()
        blocks, size = len(kv.pool), kv.block_size
        longest, slots = self.context_limit, self.thread.config.max_num_seqs
        return (
            f"KV cache: {blocks * size:,} tokens ({blocks:,} blocks of {size}), "
            f"room for {blocks * size / longest:.1f} x {longest:,} tokens; slots: {slots}"
        )

    def check_alive(self) -> None:
        """Raise EngineDeadError: no request can be served any more."""
        self.thread.check_alive()

    def abort_all(self) -> None:
        """End every request in flight."""
        self.thread.abort_all()

    def check_ready(self) -> None:
        """Raise ApiError, 503, or EngineDeadError: the next request would not get in."""
        self.check_alive()
        if self.draining:
            raise ApiError(503, "this server is stopping: send it to another", "stopping")
        if self.limiter.is_full:
            raise ApiError(503, "slots and queue are full", "server_busy", retry_after_s=self.limiter.retry_after_s())
        if self.num_connections() > self.serve.max_connections:  # including the one that asks
            raise ApiError(503, "all connections that it may have are open", "too_many_connections")

    async def render_metrics(self) -> bytes:
        """Prometheus text, of the engine and of requests."""
        try:
            of_engine = await asyncio.wrap_future(self.thread.call(lambda _: self.engine_metrics.render()))
        except EngineDeadError:  # what it had counted
            of_engine = self.engine_metrics.render()
        return of_engine + self.metrics.render()

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Do what takes long beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._helpers, work, *args)

    def check_model(self, name: str | None) -> None:
        """Raise ApiError, 404, unless it is the model that is served, or none is named."""
        if name not in (self.model_name, None):
            message = f"there is no model {name[:100]!r} here: send {self.model_name!r}"
            raise ApiError(404, message, "model_not_found", "model")

    async def prepare(self, call: Call, body: GenerationBody) -> tuple[list[CheckedTokens], SamplingParams]:
        """The prompts' token ids, and how to continue them.

        Raises:
            ApiError: 400: the prompt is too long, or cannot be tokenized; there are no priorities here, or no tools.
            InvalidSamplingParamsError: the engine does not take these values.
        """
        if body.priority != 0 and self.thread.config.scheduling_order != "priority":
            message = "this server serves in another order than by priority: leave it out"
            raise ApiError(400, message, "unsupported_parameter", "priority")
        prompts = body.prompts()
        variables = template_variables(self.thread.model.tokenizer, body.offered_tools, body.template_variables)
        try:
            token_ids = await self.in_thread(self._encode, prompts, variables)
        except RequestError as error:
            problem = as_api_error(error)
            problem.param = body.prompt_name
            raise problem from None
        call.max_tokens = self._output_limit(call, body, max(map(len, token_ids)))
        # Schemas are counted, which takes a while if they are large.
        params = await self.in_thread(body.sampling, call.max_tokens)
        if isinstance(body, ChatBody) and body.offered_tools:
            try:
                grammar = await self._tools.make(body.tools, body.tool_choice, body.parallel_tool_calls)
            except InvalidGrammarError as error:
                raise ApiError(400, str(error), "invalid_value", body.constrained_by) from None
            params = params.replace(structured_outputs=grammar)
        return token_ids, params

    def _encode(self, prompts: Sequence[Prompt], variables: Mapping[str, Any] = {}) -> list[CheckedTokens]:
        model = self.thread.model
        vocab_size = model.model_config.vocab_size
        encoded = [
            CheckedTokens(encode_prompt(prompt, model.tokenizer, vocab_size, variables)[1]) for prompt in prompts
        ]
        for token_ids in encoded:
            self._limits.check_length(len(token_ids))
        return encoded

    def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        """The answer of /tokenize, as vLLM's. Raises ApiError, RequestError."""
        self.check_model(body.model)
        messages = [message.as_template_message() for message in body.messages or ()]
        variables = template_variables(self.thread.model.tokenizer, [], body.chat_template_kwargs)
        tokens = self._encode_or_none(messages or body.prompt or "", variables)
        texts = [self.texts.look_up(token)[0] for token in tokens] if body.return_token_strs else None
        return {"count": len(tokens), "max_model_len": self.context_limit, "tokens": tokens, "token_strs": texts}

    def detokenize(self, body: DetokenizeBody) -> dict[str, Any]:
        """The answer of /detokenize, as vLLM's. Raises ApiError, RequestError."""
        self.check_model(body.model)
        return {"prompt": require_tokenizer(self.thread.model.tokenizer).decode(self._encode_or_none(body.tokens))}

    def _encode_or_none(self, prompt: Prompt, variables: Mapping[str, Any] = {}) -> list[int]:
        """The prompt's token ids. That there are none is an error only where they are to be continued."""
        try:
            return self._encode([prompt], variables)[0]
        except EmptyPromptError:
            return []

    def _output_limit(self, call: Call, body: GenerationBody, num_prompt_tokens: int) -> int:
        """Output tokens to ask the engine for. Less than the client asked for only if the server degrades."""
        room = self.context_limit - num_prompt_tokens
        wanted = body.token_limit
        if wanted is not None and wanted > room:
            raise ApiError(
                400,
                f"the prompt has {num_prompt_tokens} tokens, so that {room} are left of {self.context_limit}; "
                f"you asked for {wanted}: ask for fewer, or shorten the prompt",
                "context_length_exceeded",
                body.limit_name,
            )
        limit = int(min(room, body.default_tokens)) if wanted is None else wanted
        if body.min_tokens > limit:
            more = f", or raise {body.limit_name}" if limit < room else ""
            message = f"min_tokens is {body.min_tokens}, and at most {limit} tokens can come: ask for fewer{more}"
            raise ApiError(400, message, "invalid_value", "min_tokens")
        most = self.serve.overload_max_tokens
        if call.waits and most is not None and limit > most:
            call.degraded = "shorter"
            return most
        return limit

    def accepted(self, completions: Sequence[Completion]) -> None:
        """The transport has taken the last byte of these: their stream phase ends."""
        for completion in completions:
            completion.timeline.accept(self.clock.now())

    def close(self, call: Call) -> None:
        """A call is over."""
        call.finished = self.clock.now()
        if call.outcome == "ok":
            for output in filter(lambda output: output.finished, call.outputs):
                self.limiter.served(max(_service_time(completion.timeline) for completion in output.completions))
        for observer in self.observers:
            try:
                observer(call)
            except Exception:  # a bug in one must not hide the call from the others, nor end the connection
                logger.exception("%r could not take note of a call", observer)

    def stop(self) -> None:
        self._helpers.shutdown(wait=False, cancel_futures=True)
        self.thread.stop()


def _service_time(timeline: Timeline) -> float:
    return sum(seconds for phase, seconds in timeline.phases().items() if phase != "queue")
