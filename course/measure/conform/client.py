"""A client of OpenAI's completions API, and of Prometheus gauges where a server has them."""

import json
import re
from dataclasses import dataclass
from typing import Any

import httpx

from course.measure.conform.checkpoint import Reference
from course.measure.conform.verdict import ConformityError, NotOfferedError
from minillm.core.errors import MinillmError

TIMEOUT_S = 60.0


class UnreachableError(MinillmError):
    """No server with OpenAI's API is there."""


@dataclass(frozen=True)
class ServerAnswer:
    """One choice of a completion."""

    text: str
    finish_reason: str | None
    completion_tokens: int | None
    logprobs: list[float] | None


class ServerUnderTest:
    """Asks a server.

    Args:
        url: where its /v1 is.
        reference: Hugging Face on what it serves, if that's known.
        num_requests: of the check for leaks.
    Raises:
        UnreachableError: nothing there answers as OpenAI's API does.
    """

    def __init__(self, url: str, reference: Reference | None = None, num_requests: int = 512) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.reference, self.num_requests = reference, num_requests
        # A connection for each request: one that the server closes while it idles is no fault of its engine.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.Client(timeout=TIMEOUT_S, limits=limits)
        try:
            models = self.http.get(f"{self.url}/v1/models").raise_for_status()
            self.model = models.json()["data"][0]["id"]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UnreachableError(f"{self.url}/v1/models doesn't answer as OpenAI's API does: {why}") from error

    def known(self) -> Reference:
        """What it should say. Raises NotOfferedError if nobody knows."""
        if self.reference is None:
            raise NotOfferedError("needs the checkpoint that is served: --checkpoint DIR, or a COMMAND with {model}")
        return self.reference

    def _body(self, prompt: Any, options: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "prompt": prompt, "temperature": 0, **options}

    def complete(self, prompt: Any, **options: Any) -> ServerAnswer:
        """A whole answer. Raises ConformityError if the server doesn't give one."""
        response = self.http.post(f"{self.url}/v1/completions", json=self._body(prompt, options))
        if response.status_code != 200:
            raise ConformityError(str(options), "an answer", f"HTTP {response.status_code}: {response.text[:200]}")
        try:
            return _answer(response.json())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConformityError(str(options), "a completion as OpenAI's API has it", response.text[:200]) from error

    def status(self, prompt: Any, **options: Any) -> int:
        """The HTTP status of a request."""
        return self.http.post(f"{self.url}/v1/completions", json=self._body(prompt, options)).status_code

    def stream(self, prompt: Any, **options: Any) -> tuple[list[str], list[str]]:
        """The pieces of a streamed answer that have text, and every finish_reason.

        Raises:
            ConformityError: a piece isn't what OpenAI's API sends.
        """
        pieces: list[str] = []
        reasons: list[str] = []
        body = {**self._body(prompt, options), "stream": True}
        with self.http.stream("POST", f"{self.url}/v1/completions", json=body) as response:
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:") or data == "[DONE]":
                    continue
                try:
                    choices = json.loads(data).get("choices", [])
                    pieces += [choice.get("text") or "" for choice in choices]
                    reasons += [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
                except (ValueError, TypeError, AttributeError) as error:
                    raise ConformityError(str(options), "pieces as OpenAI's API has them", line[:200]) from error
        return [piece for piece in pieces if piece], reasons

    def leave(self, prompt: Any, after: int, **options: Any) -> None:
        """Begin a stream, and hang up after so many lines."""
        body = {**self._body(prompt, options), "stream": True}
        with self.http.stream("POST", f"{self.url}/v1/completions", json=body) as response:
            for place, _ in enumerate(response.iter_lines()):
                if place >= after:
                    return

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


def _answer(body: Any) -> ServerAnswer:
    """The first choice of a completion."""
    choice = body["choices"][0]
    logprobs = choice.get("logprobs") or {}
    listed = logprobs.get("token_logprobs")
    if listed is None and logprobs.get("content"):  # llama.cpp's server has them in the chat API's form
        listed = [token["logprob"] for token in logprobs["content"]]
    used = (body.get("usage") or {}).get("completion_tokens")
    return ServerAnswer(choice["text"], choice["finish_reason"], used, listed)
