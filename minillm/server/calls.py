"""What is known of one API request when it is over: for the log, the metrics and the spans. None of its text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minillm.core.brief import brief
from minillm.frontend.outputs import Completion, RequestOutput
from minillm.server.protocol import GenerationBody

DISCONNECTED = "disconnected"
"""The outcome of a call whose client left before the end."""


def completions_of(outputs: Sequence[RequestOutput]) -> list[Completion]:
    """All choices, in the order of their indices."""
    return [completion for output in outputs for completion in output.completions]


class TokenCounts(NamedTuple):
    """Over all prompts and answers of a call."""

    prompt: int
    cached: int
    """Prompt tokens that were found in the prefix cache."""
    output: int

    @classmethod
    def of(cls, outputs: Sequence[RequestOutput]) -> "TokenCounts":
        return cls(
            prompt=sum(len(output.prompt_token_ids) for output in outputs),
            cached=sum(output.num_cached_tokens for output in outputs),
            output=sum(len(completion.token_ids) for completion in completions_of(outputs)),
        )


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
    """Seconds since 1970 at its arrival."""
    upload_s: float = 0.0
    """Seconds from its head to its whole body: before the arrival."""
    client_request_id: str | None = None
    """The client's, or its gateway's, own name for it: for the log alone, since two requests may share one."""
    trace_parent: dict[str, str] = field(default_factory=dict)
    """W3C trace context headers of the request."""
    caller: str | None = None
    tenant: str = ""
    """Whose it is, for fairness: the key's, or the user's that it names."""
    body: GenerationBody | None = field(default=None, repr=False)
    """Set once it could be parsed. It holds the prompt: do not write it anywhere."""
    waits: bool = False
    """All slots were taken when it came."""
    max_tokens: int | None = None
    """What the engine was asked for."""
    degraded: str | None = None
    """How the answer was made smaller."""
    status: int | None = None
    """HTTP status; set once an answer has begun."""
    error_code: str | None = None
    """What went wrong, also inside a stream, which has status 200, and when a client left, or was cut off."""
    outputs: list[RequestOutput] = field(default_factory=list, repr=False)
    """Its outputs as far as they came; whole if nothing went wrong."""
    finished: float | None = None
    """Last byte accepted by the transport, or the moment it was given up; seconds of the engine's clock."""

    __repr__ = brief

    def arrive(self, now: float) -> None:
        """Its body is in."""
        self.upload_s = now - self.arrival
        self.unix_time += self.upload_s
        self.arrival = now

    @property
    def e2e_s(self) -> float:
        """Seconds from its arrival to its end; the call must be over."""
        assert self.finished is not None
        return self.finished - self.arrival

    @property
    def completions(self) -> list[Completion]:
        """All answers, over its prompts."""
        return completions_of(self.outputs)

    @property
    def outcome(self) -> str:
        """`ok`, or the error's code."""
        return self.error_code or "ok"


Observer = Callable[[Call], None]
"""Told about each call when it is over, in the event loop: metrics, access log, tracing. It must not wait."""
