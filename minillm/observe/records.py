"""What remains of a request when it is over: its stamps and its sizes, without its tokens and text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from minillm.core.request import FinishReason, Request
from minillm.core.timeline import Timeline

if TYPE_CHECKING:  # it's the other way round: the frontend's engine has its steps attributed
    from minillm.frontend.outputs import RequestOutput

COMPLETED = frozenset({FinishReason.STOP, FinishReason.LENGTH})
"""The endings of a request that was served in full. All others are failures, seen by the client."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One sequence of one request. Every table, summary and trace is made of these."""

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    finish_reason: FinishReason | None
    """None while in flight."""
    timeline: Timeline

    @property
    def completed(self) -> bool:
        return self.finish_reason in COMPLETED


Recordable: TypeAlias = "RequestOutput | Request | RequestRecord"


def as_records(requests: Iterable[Recordable]) -> list[RequestRecord]:
    """One record per sequence, in order of arrival: the row each one has in every table and picture.

    The sequences of an output with n > 1 are called "id/0", "id/1", ..., as in the engine.
    """
    records = [record for request in requests for record in _records_of(request)]
    return sorted(records, key=lambda record: record.timeline.arrival)


def _records_of(request: Recordable) -> Iterator[RequestRecord]:
    if isinstance(request, RequestRecord):
        yield request
    elif isinstance(request, Request):
        sizes = request.num_prompt_tokens, request.num_cached_tokens
        yield RequestRecord(request.request_id, *sizes, request.finish_reason, request.timeline)
    else:
        sizes = len(request.prompt_token_ids), request.num_cached_tokens
        for i, completion in enumerate(request.completions):
            name = f"{request.request_id}/{i}" if len(request.completions) > 1 else request.request_id
            yield RequestRecord(name, *sizes, completion.finish_reason, completion.timeline)
