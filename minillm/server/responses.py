"""Answers of /v1/responses: one message of plain text, whole or as OpenAI's typed events."""

from collections.abc import Iterable
from typing import Any

import orjson

from minillm.core.request import FinishReason
from minillm.frontend.outputs import Completion, RequestOutput
from minillm.server.answers import times
from minillm.server.calls import TokenCounts
from minillm.server.protocol import ResponsesBody


class ResponsesShape:
    """Shapes the answer to one request, as AnswerShape does for the other endpoints."""

    def __init__(self, body: ResponsesBody, request_id: str, created: int, model: str) -> None:
        form = body.text.format
        echoed = body.model_dump(include={"temperature", "top_p", "instructions", "max_output_tokens", "user"})
        self._head: dict[str, Any] = {
            "id": request_id,
            "object": "response",
            "created_at": created,
            "model": model,
            "text": {"format": form.model_dump(by_alias=True, exclude_none=True) if form else {"type": "text"}},
            **{"tools": [], "tool_choice": "none", "parallel_tool_calls": False, "store": False},
            **{"error": None, "incomplete_details": None, "metadata": {}, "previous_response_id": None},
            **echoed,
        }
        self._item_id = request_id.replace("resp_", "msg_")
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._num_events = 0

    def whole(self, outputs: list[RequestOutput]) -> bytes:
        """The answer to a request without `stream`."""
        return orjson.dumps(self._response(outputs))

    def chunks(self, news: Iterable[tuple[int, Completion]]) -> bytes:
        """What is new in the text; before its first piece, what announces it."""
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
        opening = (
            self._events(
                ("created", {"response": begun}),
                ("in_progress", {"response": begun}),
                ("output_item.added", {"output_index": 0, "item": self._item("in_progress")}),
                ("content_part.added", {**self._place, "part": text_part("")}),
            )
            if not self._num_events
            else b""
        )
        pieces = [completion.new_text for _, completion in news if completion.new_text]
        deltas = [("output_text.delta", {**self._place, "logprobs": [], "delta": piece}) for piece in pieces]
        return opening + self._events(*deltas)

    def closing(self, outputs: list[RequestOutput]) -> bytes:
        """The last events, with the answer as a whole."""
        response = self._response(outputs)
        (item,) = response["output"]
        (part,) = item["content"]
        return self._events(
            ("output_text.done", {**self._place, "text": part["text"], "logprobs": []}),
            ("content_part.done", {**self._place, "part": part}),
            ("output_item.done", {"output_index": 0, "item": item}),
            (response["status"], {"response": response}),
        )

    def _events(self, *events: tuple[str, dict[str, Any]]) -> bytes:
        written = b""
        for kind, fields in events:
            told = {"type": f"response.{kind}", "sequence_number": self._num_events, **fields}
            written += b"event: response.%s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(told))
            self._num_events += 1
        return written

    def _item(self, status: str, *content: dict[str, Any]) -> dict[str, Any]:
        return {"type": "message", "id": self._item_id, "role": "assistant", "status": status, "content": content}

    def _response(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (completion,) = outputs[0].completions
        is_cut = completion.finish_reason is FinishReason.LENGTH
        status = "incomplete" if is_cut else "completed"
        tokens = TokenCounts.of(outputs)
        used = {
            "input_tokens": tokens.prompt,
            "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens.prompt + tokens.output,
        }
        details = {"incomplete_details": {"reason": "max_output_tokens"}} if is_cut else {}
        item = self._item(status, text_part(completion.text))
        return {**self._head, "status": status, **details, "output": [item], "usage": used, **times(outputs)}


def text_part(text: str) -> dict[str, Any]:
    """The one part of the message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
