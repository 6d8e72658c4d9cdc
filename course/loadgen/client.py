"""One request to an OpenAI-compatible endpoint, with a stamp on everything that is read.

aiohttp, because a slow client falsifies what it measures: with 64 streams it takes 49 microseconds of CPU an
event, where httpx takes 156 (measured once, on one core of a 2.8 GHz Xeon). While a stream runs, nothing is
done with its bytes but to stamp and keep them (about 350 bytes a token).
"""

import enum
import json
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp

from course.loadgen.errors import EndpointError
from course.loadgen.planned_requests import PlannedRequest
from course.loadgen.stream import Read
from minillm.core.brief import brief

PAGE_TIMEOUT_S = 30.0
"""For a small page: a busy server answers between two steps."""

now = time.perf_counter
"""The client's clock: seconds, monotonic."""

IDLE_S = 4.0
"""Idle connections are dropped after this: before uvicorn's 5 seconds, for a request on a connection that
the server is just closing is lost."""


class Api(enum.StrEnum):
    """Which of the two endpoints is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"


PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}


class Failure(enum.StrEnum):
    """Why a request has no answer. Such a request has no latency, and is part of no percentile."""

    RATE_LIMITED = "429 too many requests"
    REFUSED = "4xx refused"
    SERVER_ERROR = "5xx server error"
    OTHER_STATUS = "neither 200 nor an error"
    """A redirection, say: it is not followed, for what then answers is another server."""
    NO_CONNECTION = "no connection"
    DISCONNECTED = "disconnected"
    TIMEOUT = "timeout"
    NOT_A_STREAM = "not a stream"
    """Status 200, and anything but events."""
    BAD_STREAM = "bad stream"
    """Answered, but the stream ends too soon, reports an error, or is not what the API says."""
    CLIENT_BUG = "error in this client"
    """Unforeseen. It costs this request, not the test."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to send, and how. `url` without `/v1`."""

    url: str
    api: Api
    model: str
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of every request's body."""
    api_key: str | None = field(default=None, repr=False)
    include_usage: bool = True
    """Ask for token counts (`stream_options`), which a few servers do not know."""

    def body(self, messages: list[dict[str, Any]], max_tokens: int, user: str = "") -> bytes:
        """The request, ready to send. For completions the messages become one text."""
        asked: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        if user:
            asked["user"] = user
        if self.include_usage:
            asked["stream_options"] = {"include_usage": True}
        if self.api is Api.CHAT:
            asked["messages"] = messages
        else:
            contents = [message["content"] for message in messages]
            asked["prompt"] = contents[0] if len(contents) == 1 else "".join(contents)
        return json.dumps({**asked, **self.extra}).encode()

    @property
    def headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", "Accept": "text/event-stream", **key}


@dataclass(slots=True, eq=False)
class ClientExchange:
    """One request, and all that came back so far. Moments on the client's clock; None = not yet, or never."""

    request: PlannedRequest
    due: float | None = None
    """When it should have been sent."""
    sent: float | None = None
    reads: list[Read] = field(default_factory=list)
    ended: float | None = None
    is_over: bool = False
    """Well or badly; never true of a request that was cut off or skipped."""
    status: int | None = None
    retry_after_s: float = 0.0
    """What a refusal asked for; 0 = nothing, or a date."""
    failure: Failure | None = None
    message: str = ""

    __repr__ = brief

    def fail(self, failure: Failure, message: object) -> None:
        self.failure, self.message = failure, str(message)[:500]


class Client:
    """Connections to one endpoint. Use it as an async context manager.

    Args:
        timeout_s: for a whole answer; None = wait for ever.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float | None = None) -> None:
        self.endpoint = endpoint
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> "Client":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S), timeout=self._timeout
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def stream(self, body: bytes, exchange: ClientExchange) -> None:
        """Send, and stamp what comes back into `exchange` until the answer has ended, well or badly."""
        endpoint = self.endpoint
        exchange.sent = now()
        try:
            async with self._session.post(
                endpoint.url + PATHS[endpoint.api], data=body, headers=endpoint.headers, allow_redirects=False
            ) as response:
                exchange.status = response.status
                if response.status == 200 and response.content_type == "text/event-stream":
                    async for data in response.content.iter_any():
                        exchange.reads.append((now(), data))
                else:
                    await _refused(response, exchange)
        except TimeoutError:
            exchange.fail(Failure.TIMEOUT, f"no whole answer within {self._timeout.total} s")
        except aiohttp.ClientConnectorError as error:
            exchange.fail(Failure.NO_CONNECTION, error)
        except (aiohttp.ClientError, OSError) as error:
            exchange.fail(Failure.DISCONNECTED, f"{type(error).__name__}: {error}")
        exchange.ended = now()

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of a small page such as /metrics.

        Raises:
            EndpointError: nothing answers there.
        """
        url, timeout = self.endpoint.url + path, aiohttp.ClientTimeout(total=PAGE_TIMEOUT_S)
        try:
            async with self._session.get(url, headers=self.endpoint.headers, timeout=timeout) as response:
                return response.status, await response.text(errors="replace")
        except (aiohttp.ClientError, OSError) as error:
            raise EndpointError(f"{url} does not answer: {str(error) or type(error).__name__}") from None


async def _refused(response: aiohttp.ClientResponse, exchange: ClientExchange) -> None:
    """Anything but a stream."""
    text = (await response.read()).decode(errors="replace")  # whatever charset it claims
    if response.status == 200:
        exchange.fail(Failure.NOT_A_STREAM, f"not a stream of events but {response.content_type}: {text[:200]}")
        return
    asked = response.headers.get("Retry-After", "")
    exchange.retry_after_s = float(asked) if asked.isdecimal() else 0.0
    exchange.fail(_kind_of(response.status), f"{response.status}: {reason_in(text)}")


def _kind_of(status: int) -> Failure:
    if status == 429:
        return Failure.RATE_LIMITED
    if status >= 500:
        return Failure.SERVER_ERROR
    return Failure.REFUSED if status >= 400 else Failure.OTHER_STATUS


def reason_in(text: str) -> str:
    """The message of an error in OpenAI's shape; of any other, all of it."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return text
