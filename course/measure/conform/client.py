"""A client of OpenAI's completions API, and of Prometheus gauges where a server has them."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx

from course.measure.conform.checkpoint import Reference
from course.measure.conform.verdict import ConformityError, NotOfferedError
from minillm.core.errors import MinillmError

TIMEOUT_S = 60.0
NO_TIME_S = 0.001
"""No server answers by then."""
LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A CR at the end may be half of one."""


class UnreachableError(MinillmError):
    """No server with OpenAI's API is there."""


@dataclass(frozen=True)
class ServerAnswer:
    """One choice of a completion."""

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    logprobs: list[float] | None
    best_logprobs: list[float] | None
    """The largest at each place, of those that were asked for."""


class ServerUnderTest:
    """Asks a server.

    Args:
        url: where its /v1 is.
        reference: Hugging Face on what it serves, if that's known.
        num_requests: of the check for leaks.
        model: what requests call it: the first that the server names, by default.
    Raises:
        UnreachableError: nothing there answers as OpenAI's API does.
    """

    def __init__(
        self, url: str, reference: Reference | None = None, num_requests: int = 512, model: str | None = None
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.reference, self.num_requests = reference, num_requests
        # A connection for each request: one that the server closes while it idles is no fault of its engine.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.Client(timeout=TIMEOUT_S, limits=limits)
        try:
            models = self.http.get(f"{self.url}/v1/models").raise_for_status().json()["data"]
            self.model = model or (models[0]["id"] if models else "")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UnreachableError(f"{self.url}/v1/models doesn't answer as OpenAI's API does: {why}") from error
        if not self.model:
            raise UnreachableError(f"{self.url}/v1/models names no model: say with --model-name what it serves")

    def known(self) -> Reference:
        """What it should say. Raises NotOfferedError if nobody knows."""
        if self.reference is None:
            raise NotOfferedError("needs the checkpoint that is served: --checkpoint DIR, or a COMMAND with {model}")
        return self.reference

    def warm_up(self, limit_s: float) -> None:
        """One short answer, whatever it is: some servers load their model, or compile, for the first request."""
        with suppress(httpx.HTTPError):
            body = self._body("one", {"max_tokens": 2})
            self.http.post(f"{self.url}/v1/completions", json=body, timeout=limit_s)

    @cached_property
    def takes_token_ids(self) -> bool:
        """Whether a prompt may be a list of token ids, as OpenAI's API has it."""
        return self.status([5, 6, 7], max_tokens=1) == 200

    def prompt(self, token_ids: Sequence[int]) -> Any:
        """Known tokens as a prompt: as they are, or as text where the server takes nothing else.

        Raises:
            NotOfferedError: they aren't what their text would be read as.
        """
        if self.takes_token_ids:
            return [*token_ids]
        text = self.known().decode(token_ids)
        if self.known().encode(text) != [*token_ids]:
            raise NotOfferedError("it takes prompts of text only, not of token ids")
        return text

    def _body(self, prompt: Any, options: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "prompt": prompt, "temperature": 0, **options}

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        with _noted(body):
            return self.http.post(f"{self.url}{path}", json=body)

    def complete(self, prompt: Any, **options: Any) -> ServerAnswer:
        """A whole answer. Raises ConformityError if the server doesn't give one."""
        response = self._post("/v1/completions", self._body(prompt, options))
        if response.status_code != 200:
            raise ConformityError(str(options), "an answer", f"HTTP {response.status_code}: {response.text[:200]}")
        try:
            return _answer(response.json())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConformityError(str(options), "a completion as OpenAI's API has it", response.text[:200]) from error

    def status(self, prompt: Any, **options: Any) -> int:
        """The HTTP status of a request."""
        return self._post("/v1/completions", self._body(prompt, options)).status_code

    def status_of(self, body: bytes) -> int:
        """The HTTP status of a request whose body is just this."""
        headers = {"Content-Type": "application/json"}
        return self.http.post(f"{self.url}/v1/completions", content=body, headers=headers).status_code

    def chat(self, messages: list[dict[str, str]], **options: Any) -> str:
        """A whole answer in a chat. Raises NotOfferedError if the server has none, ConformityError for a wrong one."""
        body = {"model": self.model, "messages": messages, "temperature": 0, **options}
        response = self._post("/v1/chat/completions", body)
        if response.status_code in (404, 405, 501):
            raise NotOfferedError("it has no /v1/chat/completions")
        if response.status_code != 200:
            raise ConformityError(str(messages), "an answer", f"HTTP {response.status_code}: {response.text[:200]}")
        try:
            return str(response.json()["choices"][0]["message"]["content"])
        except (ValueError, LookupError, TypeError) as error:
            raise ConformityError(
                str(messages), "a chat's answer as OpenAI's API has it", response.text[:200]
            ) from error

    def chat_pieces(self, messages: list[dict[str, str]], **options: Any) -> list[str]:
        """The pieces of a streamed answer in a chat that have text."""
        body = {"model": self.model, "messages": messages, "temperature": 0, "stream": True, **options}
        choices = self._choices("/v1/chat/completions", body)
        return [text for choice in choices if (text := (choice.get("delta") or {}).get("content"))]

    def _choices(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The choices of each piece of a streamed answer. Raises ConformityError if one isn't OpenAI's."""
        with _noted(body), self.http.stream("POST", f"{self.url}{path}", json=body) as response:
            for line in event_lines(response):
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:") or data == "[DONE]":
                    continue
                try:
                    choices = [{**choice} for choice in json.loads(data).get("choices", [])]
                except (ValueError, TypeError, AttributeError) as error:
                    raise ConformityError(_short(body), "pieces as OpenAI's API has them", line[:200]) from error
                yield from choices

    def stream(self, prompt: Any, **options: Any) -> tuple[list[str], list[str]]:
        """The pieces of a streamed answer that have text, and every finish_reason.

        Raises:
            ConformityError: a piece isn't what OpenAI's API sends.
        """
        choices = [*self.pieces(prompt, **options)]
        reasons = [str(choice["finish_reason"]) for choice in choices if choice.get("finish_reason")]
        return [text for choice in choices if (text := choice.get("text"))], reasons

    def pieces(self, prompt: Any, **options: Any) -> Iterator[dict[str, Any]]:
        """The choices of a streamed answer, as they come."""
        return self._choices("/v1/completions", {**self._body(prompt, options), "stream": True})

    def leave(self, prompt: Any, after: int, **options: Any) -> None:
        """Begin a stream, and hang up after so many lines; with -1, before any could come."""
        body = {**self._body(prompt, options), "stream": True}
        patience = httpx.Timeout(TIMEOUT_S, read=NO_TIME_S if after < 0 else TIMEOUT_S)
        try:
            with (
                _noted(body),
                self.http.stream("POST", f"{self.url}/v1/completions", json=body, timeout=patience) as response,
            ):
                for place, _ in enumerate(event_lines(response)):
                    if place >= after:
                        return
        except httpx.ReadTimeout:
            if after >= 0:
                raise

    def gauge(self, name: str) -> float | None:
        """A gauge whose name ends so, added up over its labels; None if the server has none."""
        try:
            text = self.http.get(f"{self.url}/metrics").text
        except httpx.HTTPError:
            return None
        values = re.findall(rf"^\S*{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values)) if values else None

    def kv_usage(self) -> float | None:
        return self.gauge("kv_cache_usage_perc")

    def num_running(self) -> float:
        return self.gauge("num_requests_running") or 0.0


def event_lines(response: httpx.Response) -> Iterator[str]:
    """The lines of a stream, as server-sent events end them. httpx's own lines end at U+2028 and U+0085 as well, which
    JSON may have in the middle of a text."""
    pending = b""
    for piece in response.iter_bytes():
        *whole, pending = LINE_END.split(pending + piece)
        yield from (line.decode(errors="replace") for line in whole)
    yield pending.rstrip(b"\r").decode(errors="replace")


def _answer(body: Any) -> ServerAnswer:
    """The first choice of a completion."""
    choice = body["choices"][0]
    logprobs = choice.get("logprobs") or {}
    listed = logprobs.get("token_logprobs")
    if listed is None and logprobs.get("content"):  # llama.cpp's server has them in the chat API's form
        listed = [token["logprob"] for token in logprobs["content"]]
    usage = body.get("usage") or {}
    best = logprobs.get("top_logprobs")
    return ServerAnswer(
        choice["text"],
        choice["finish_reason"],
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        listed,
        [max(each.values()) for each in best] if best and all(best) else None,
    )


@contextmanager
def _noted(body: dict[str, Any]) -> Iterator[None]:
    """Have a connection's error say what was asked: a report wants to tell."""
    try:
        yield
    except httpx.HTTPError as error:
        error.add_note(_short(body))
        raise


def _short(body: dict[str, Any]) -> str:
    """What a request asks for, with the beginning of its prompt."""
    asked = body["prompt"] if "prompt" in body else body["messages"]
    size = f"{len(asked):,} {'characters' if isinstance(asked, str) else 'tokens or messages'}"
    options = {name: value for name, value in body.items() if name not in ("model", "prompt", "messages")}
    return f"{str(asked)[:40]!r} ({size}) with {options}"
