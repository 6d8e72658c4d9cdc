"""Answers of /v1/responses: one message of plain text, whole or as OpenAI's typed events."""

from collections.abc import Iterable
from typing import Any

import orjson

from minillm.core.request import FinishReason
from minillm.frontend.outputs import Completion, RequestOutput
from minillm.server.answers import AnswerShape, times, usage
from minillm.server.logprobs import TokenTexts
from minillm.server.protocol import GenerationBody, ResponsesBody


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
        self._num_events = 0

    def whole(self, outputs: list[RequestOutput]) -> bytes:
        """The answer to a request without `stream`."""
        return orjson.dumps(self._response(outputs))

    def chunks(self, news: Iterable[tuple[int, Completion]]) -> bytes:
        """What is new in the text; before its first piece, what announces it."""
        opening = b"" if self._num_events else self._opening()
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0, "logprobs": []}
        pieces = [completion.new_text for _, completion in news if completion.new_text]
        return opening + b"".join(self._event("output_text.delta", **place, delta=piece) for piece in pieces)

    def closing(self, outputs: list[RequestOutput]) -> bytes:
        """The last events, with the answer as a whole."""
        response = self._response(outputs)
        (item,) = response["output"]
        (part,) = item["content"]
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return (
            self._event("output_text.done", **place, text=part["text"], logprobs=[])
            + self._event("content_part.done", **place, part=part)
            + self._event("output_item.done", output_index=0, item=item)
            + self._event(response["status"], response=response)
        )

    def _opening(self) -> bytes:
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None}
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return (
            self._event("created", response=begun)
            + self._event("in_progress", response=begun)
            + self._event("output_item.added", output_index=0, item=self._item("in_progress"))
            + self._event("content_part.added", **place, part=text_part(""))
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        kind, number = f"response.{kind}", self._num_events
        self._num_events += 1
        told = orjson.dumps({"type": kind, "sequence_number": number, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + told + b"\n\n"

    def _item(self, status: str, *content: dict[str, Any]) -> dict[str, Any]:
        return {"type": "message", "id": self._item_id, "role": "assistant", "status": status, "content": content}

    def _response(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (completion,) = outputs[0].completions
        is_cut = completion.finish_reason is FinishReason.LENGTH
        status = "incomplete" if is_cut else "completed"
        counts = usage(outputs)
        return {
            **self._head,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._item(status, text_part(completion.text))],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
            **times(outputs),
        }


Shape = AnswerShape | ResponsesShape


def make_shape(body: GenerationBody, request_id: str, created: int, model: str, texts: TokenTexts) -> Shape:
    """What the endpoint's answers look like."""
    if isinstance(body, ResponsesBody):
        return ResponsesShape(body, request_id, created, model)
    return AnswerShape(body, request_id, created, model, texts)


def text_part(text: str) -> dict[str, Any]:
    """The one part of the message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
