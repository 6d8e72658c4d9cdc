"""What is known of one API request when it is over: for the log, the metrics and the spans. None of its text."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from minillm.frontend.outputs import Completion, RequestOutput
from minillm.server.protocol import GenerationBody


class TokenCounts(NamedTuple):
    """Over all prompts and answers of a call."""

    prompt: int
    cached: int
    """Of the prompts' tokens, those found in the prefix cache."""
    output: int

    @classmethod
    def of(cls, outputs: Iterable[RequestOutput]) -> "TokenCounts":
        prompt = cached = output = 0
        for one in outputs:
            prompt += len(one.prompt_token_ids)
            cached += one.num_cached_tokens
            output += sum(len(completion.token_ids) for completion in one.completions)
        return cls(prompt, cached, output)


@dataclass(eq=False)
class Call:
    """Filled in as things happen."""

    request_id: str
    path: str
    is_chat: bool
    arrival: float
    """When its body was in; until then, when its head came. Seconds of the engine's clock. Phases, deadlines and
    the wait in the queue count from here: how long a client sends is not the server's doing."""
    unix_time: float
    """At arrival."""
    upload_s: float = 0.0
    """From its head to its whole body: before the arrival."""
    trace_parent: dict[str, str] = field(default_factory=dict)
    """W3C trace context headers of the request."""
    caller: str | None = None
    body: GenerationBody | None = None
    """Once it could be parsed. It holds the prompt: do not write it anywhere."""
    waits: bool = False
    """All slots were taken when it came."""
    max_tokens: int | None = None
    """What the engine was asked for."""
    degraded: str | None = None
    """The answer was made smaller, or is an apology."""
    status: int | None = None
    error_code: str | None = None
    """Also of errors inside a stream, which has status 200."""
    gone: bool = False
    """The client left, or was cut off, before the end."""
    outputs: list[RequestOutput] = field(default_factory=list)
    """As far as they came; whole if nothing went wrong."""
    finished: float | None = None
    """Last byte accepted by the transport, or the moment it was given up; seconds of the engine's clock."""

    def arrive(self, now: float) -> None:
        """Its body is in."""
        self.upload_s = now - self.arrival
        self.unix_time += self.upload_s
        self.arrival = now

    @property
    def e2e_s(self) -> float:
        """From its arrival to its end, of a call that is over."""
        assert self.finished is not None
        return self.finished - self.arrival

    @property
    def completions(self) -> list[Completion]:
        """All answers, over its prompts."""
        return [completion for output in self.outputs for completion in output.completions]

    @property
    def outcome(self) -> str:
        """`ok`, `disconnected`, or the error's code."""
        if self.gone:
            return "disconnected"
        return self.error_code or "ok"


class CallObserver(Protocol):
    """Told about each call: metrics, access log, tracing."""

    def observe(self, call: Call) -> None:
        """Called in the event loop when a call is over. Must not wait, nor raise."""
        ...
