"""A streamed answer, from the bytes that arrived to the moments its tokens came.

The client only stamps bytes while it measures. They are read here, when nothing is being measured any more:
parsing an event costs about 8 microseconds, which other streams would have to wait for.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent

from minillm.core.brief import brief

Read = tuple[float, bytes]
"""When bytes were read from the connection, and the bytes. Seconds of the client's clock."""

TEXT_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Fields of a chat delta that a user can see a token in. The opening chunk, which only names a role, has none."""


@dataclass(slots=True)
class StreamedAnswer:
    """What a stream said. A delivery is an event that carries text."""

    deliveries: list[float] = field(default_factory=list)
    """When the last byte of each was read."""
    events: list[float] = field(default_factory=list)
    """The same of every event of a completion, with text or without. Not of a chat's: its opening has no token."""
    texts: list[str] = field(default_factory=list)
    """The text of each."""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    server_times: dict[str, Any] = field(default_factory=dict)
    """The server's own word on its times, if it gives any; see minillm/server/answers.py."""
    is_whole: bool = False
    """It ended as an answer ends: with a finish reason or `[DONE]`."""
    error: str | None = None
    """What is wrong with it: the server reports an error in mid-stream, or it is not what the API says."""

    __repr__ = brief

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def token_moments(self) -> list[float]:
        """The deliveries; or all events, where there are as many as tokens: then one without text is a token that has
        none by itself, such as an end of text that didn't end the answer."""
        return self.events if self.usage.get("completion_tokens") == len(self.events) else self.deliveries


def read_answer(reads: Sequence[Read]) -> StreamedAnswer:
    """The answer as far as it has arrived. Never raises: what is wrong with it stands in `error`."""
    answer = StreamedAnswer()
    read_into(answer, reads)
    return answer


def read_into(answer: StreamedAnswer, reads: Iterable[Read]) -> None:
    """Add whole events to an answer."""
    for stamp, event in stamped_events(reads):
        if event.data == "[DONE]":
            answer.is_whole = True
            continue
        try:
            _take(answer, json.loads(event.data), stamp)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            answer.error = answer.error or f"an event is not what the API says ({error}): {event.data[:120]!r}"


def stamped_events(reads: Iterable[Read]) -> Iterator[tuple[float, ServerSentEvent]]:
    """Each server-sent event with the moment its last byte was read."""
    now = 0.0

    def chunks() -> Iterator[bytes]:
        nonlocal now
        for (stamp, data), (_, following) in pairwise(chain(reads, [(0.0, b"")])):
            now = stamp
            if data.endswith(b"\r") and not following.startswith(b"\n"):
                # Lines may end in CR alone. httpx-sse would wait for the next read, to see whether that begins with LF.
                text = data.rstrip(b"\r")
                data = text + b"\n" * (len(data) - len(text))
            yield data

    # httpx-sse reads httpx's responses; nothing of this one ever was on a network.
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=chunks())
    for event in EventSource(response).iter_sse():
        yield now, event


def _take(answer: StreamedAnswer, chunk: dict[str, Any], stamp: float) -> None:
    """Add one chunk of the API to the answer."""
    if chunk.get("error") is not None:
        answer.error = answer.error or f"the server says in mid-stream: {str(chunk['error'])[:200]}"
        return
    usage = chunk.get("usage")
    if usage is not None and not isinstance(usage, dict):
        raise TypeError("usage is no object")
    answer.usage = usage or answer.usage
    for key in ("minillm", "metrics"):
        if isinstance(chunk.get(key), dict):
            answer.server_times = {"from": key, **chunk[key]}
    for choice in chunk.get("choices") or ():
        text = _text_of(choice)
        if "delta" not in choice:
            answer.events.append(stamp)
        if text:
            answer.deliveries.append(stamp)
            answer.texts.append(text)
        if choice.get("finish_reason") is not None:
            answer.finish_reason, answer.is_whole = str(choice["finish_reason"]), True


def _text_of(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    if delta is None:
        text = choice.get("text") or ""
        if not isinstance(text, str):
            raise TypeError("text is no string")
        return text
    found = (delta.get(key) for key in TEXT_KEYS)
    return "".join(part if isinstance(part, str) else json.dumps(part) for part in found if part)
