"""Degrading on purpose: an apology at once can be worth more than an answer too late, or an error."""

from minillm.core.request import FinishReason
from minillm.core.timeline import Timeline
from minillm.frontend.outputs import Completion
from minillm.server.answers import DONE, AnswerShape
from minillm.server.config import ServeConfig
from minillm.server.errors import SERVER_BUSY, ApiError
from minillm.server.protocol import GenerationBody


def wants_apology(serve: ServeConfig, error: ApiError) -> bool:
    """Whether an apology takes the error's place: it must come from overload, not from the client."""
    return serve.overload_answer == "apology" and error.code in (SERVER_BUSY, "queue_timeout")


def apology(shape: AnswerShape, body: GenerationBody, text: str) -> tuple[bytes, str]:
    """The ready-made answer, whole or as events, and its content type. No token was computed, and none is counted."""
    said = Completion(text, [], FinishReason.STOP, None, Timeline(0.0), new_text=text)
    choices = [said] * (len(body.prompts()) * body.n)
    if not body.stream:
        return shape.whole(choices, []), "application/json"
    events = [shape.chunk(index, choice) for index, choice in enumerate(choices)]
    if body.include_usage:
        events.append(shape.usage_chunk([]))
    return b"".join([*events, DONE]), "text/event-stream; charset=utf-8"
