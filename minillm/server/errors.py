"""Errors as OpenAI's API shows them: a status, and `{"error": {"message", "type", "param", "code"}}`."""

from dataclasses import dataclass

import orjson

from minillm.core.errors import (
    InvalidSamplingParamsError,
    MinillmError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
)
from minillm.core.request import FinishReason
from minillm.frontend.errors import EngineDeadError
from minillm.frontend.grammar_matcher import GRAMMAR_ERROR, GRAMMAR_FULL
from minillm.frontend.outputs import Completion

INTERNAL_ERROR = "internal_error"
"""The code of a bug."""


@dataclass(eq=False)
class ApiError(MinillmError):
    """A request that gets an error for an answer."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    """The field of the request that is to blame."""
    retry_after_s: int = 1
    """Sent with 429 and 503."""
    close: bool = False
    """The rest of the request was not read: the connection cannot be used again."""

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> bytes:
        """JSON, in OpenAI's shape."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})

    @property
    def type(self) -> str:
        """What kind of error it is, in OpenAI's words."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        return kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers of the answer that is the error."""
        headers = {"content-type": "application/json"}
        if self.status in (429, 503):
            headers["retry-after"] = str(self.retry_after_s)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.close:
            headers["connection"] = "close"
        return headers


Answer = tuple[int, str | None, str]
"""Status, code, and message, with the error's own words for {}."""
ERRORS: dict[type[Exception], Answer] = {
    PromptTooLongError: (400, "context_length_exceeded", "{}"),
    InvalidSamplingParamsError: (400, "invalid_value", "{}"),
    QueueFullError: (503, "server_busy", "{}"),
    RequestError: (400, None, "{}"),
    RecursionError: (400, "invalid_value", "a value is nested too deeply"),
    EngineDeadError: (503, "engine_stopped", "the engine has stopped: this server must be started anew"),
    Exception: (500, INTERNAL_ERROR, "internal error: see the server's log"),
}
"""What a client sees of an error: the first that fits."""
ENDINGS: dict[FinishReason, Answer] = {
    FinishReason.TIMEOUT: (503, "queue_timeout", "the request waited too long in the queue: try later"),
    FinishReason.ABORT: (503, "aborted", "the server ended this request: it is stopping"),
    FinishReason.ERROR: (500, "step_failed", "the step that this request was part of failed: {}"),
}
"""What a client sees of an output that ended without an answer."""


def as_api_error(error: Exception) -> ApiError:
    """What a client sees of an error. Of a bug it sees that there is one, and the server's log has the rest."""
    if isinstance(error, ApiError):
        return error
    status, code, message = next(answer for kind, answer in ERRORS.items() if isinstance(error, kind))
    return ApiError(status, message.format(error), code)


def check_ending(completion: Completion) -> None:
    """Raise if an output ended in a way that is no answer.

    Raises:
        ApiError: 503 after a queue timeout, an abort that the client did not ask for, or if other answers
            filled its grammar's lexer; 500 after a failed step; 400 if the grammar that it asked for turned out to be
            too large or too slow on the way.
    """
    assert completion.finish_reason is not None
    if completion.finish_reason is FinishReason.ERROR and (completion.error or "").startswith(GRAMMAR_ERROR):
        raise ApiError(400, f"{completion.error}: make it smaller, or less ambiguous", "grammar_too_large")
    if completion.finish_reason is FinishReason.ERROR and completion.error == GRAMMAR_FULL:
        raise ApiError(503, GRAMMAR_FULL, "grammar_full")
    if completion.finish_reason in ENDINGS:
        status, code, message = ENDINGS[completion.finish_reason]
        raise ApiError(status, message.format(completion.error), code)
