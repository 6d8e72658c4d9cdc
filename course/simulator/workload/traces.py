"""Recorded traffic: loaders for two public trace formats. The traces themselves are not part of minillm.

- Azure LLM inference (github.com/Azure/AzurePublicDataset): CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
- Mooncake (github.com/kvcache-ai/Mooncake, FAST'25): JSON Lines with timestamp (ms), input_length, output_length and
  hash_ids, one a block of 512 prompt tokens; equal ids are equal blocks with equal prefixes, so sharing is real.
"""

import csv
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, ValidationError, field_validator, model_validator

from course.simulator.errors import TraceError, WorkloadError
from course.simulator.workload.requests import Piece, Workload, WorkloadRequest
from minillm.strict_model import explain
from minillm.text_files import open_text

MOONCAKE_BLOCK = 512
"""Tokens a hash id stands for."""
MOST_TOKENS = 10_000_000
"""More in one prompt or answer is taken for a broken row: no model has such a window."""
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Row = TypeVar("Row", bound=BaseModel)


class AzureRow(BaseModel):
    """A row of an Azure trace."""

    TIMESTAMP: datetime
    ContextTokens: Tokens
    GeneratedTokens: Tokens

    @field_validator("TIMESTAMP")
    @classmethod
    def _in_utc(cls, moment: datetime) -> datetime:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # local time would jump twice a year


class MooncakeRow(BaseModel):
    """A row of a Mooncake trace."""

    timestamp: FiniteFloat = Field(ge=0, strict=True)
    input_length: Tokens = Field(strict=True)
    output_length: Tokens = Field(strict=True)
    hash_ids: list[int]

    @model_validator(mode="before")
    @classmethod
    def _no_log(cls, row: Any) -> Any:
        if isinstance(row, dict) and "queued_ts" in row:
            raise ValueError("this is a server's log, not a Mooncake trace: it goes with --requests")
        return row

    @model_validator(mode="after")
    def _one_id_a_block(self) -> "MooncakeRow":
        num_blocks = -(-self.input_length // MOONCAKE_BLOCK)
        if len(self.hash_ids) != num_blocks:
            raise ValueError(
                f"{self.input_length} tokens are {num_blocks} blocks of {MOONCAKE_BLOCK}, one hash id each"
            )
        return self

    def pieces(self, name: str) -> tuple[Piece, ...]:
        """The prompt of the trace of that name: a piece for each block, of which the last may not be full."""
        starts = range(0, self.input_length, MOONCAKE_BLOCK)
        sizes = (min(MOONCAKE_BLOCK, self.input_length - start) for start in starts)
        return tuple(Piece(f"{name}/block-{hash_id}", size) for hash_id, size in zip(self.hash_ids, sizes))


def read_row(parse: Callable[[Any], Row], row: Any, where: str, error: type[Exception]) -> Row:
    """One validated row. Raises `error`, which says where: it is not what the format says."""
    try:
        return parse(row)
    except ValidationError as problem:
        raise error(f"{where}: {explain(BaseModel, problem)}") from None


def json_rows(path: str | Path, model: type[Row], error: type[Exception]) -> Iterator[Row]:
    """The rows of a file of JSON lines, validated; empty lines are skipped."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield read_row(model.model_validate_json, line, f"{path}, line {number}", error)


def csv_rows(path: str | Path, model: type[Row], error: type[Exception]) -> Iterator[Row]:
    """The rows of a table with a header, validated."""
    with open_text(path, newline="") as file:
        reader = csv.DictReader(file)
        try:
            for row in reader:
                yield read_row(model.model_validate, row, f"{path}, line {reader.line_num}", error)
        except csv.Error as problem:
            raise error(f"{path}, line {reader.line_num}: not CSV: {problem}") from None


def load_azure(path: str | Path, *, limit: int | None = None, name: str = "azure") -> Workload:
    """A workload from an Azure trace. The trace knows only lengths: prompts share nothing.

    Args:
        limit: the first so many requests; None = all.
    Raises:
        TraceError: a row is not what the format says; the message names the line.
    """
    rows = list(itertools.islice(csv_rows(path, AzureRow, TraceError), limit))
    moments = [(row.TIMESTAMP - rows[0].TIMESTAMP).total_seconds() for row in rows]
    return from_lengths([(t, r.ContextTokens, r.GeneratedTokens) for t, r in zip(moments, rows)], name=name)


def load_mooncake(path: str | Path, *, limit: int | None = None, name: str = "mooncake") -> Workload:
    """A workload from a Mooncake trace, with the prefixes its requests really shared.

    Args:
        limit: the first so many requests; None = all.
    Raises:
        TraceError: a row is not what the format says; the message names the line.
    """
    rows = itertools.islice(json_rows(path, MooncakeRow, TraceError), limit)
    return _in_order(name, [(row.timestamp / 1000, row.pieces(name), row.output_length) for row in rows])


def from_lengths(rows: Iterable[tuple[float, int, int]], *, name: str = "recorded") -> Workload:
    """A workload from (moment in seconds, prompt tokens, output tokens); the first moment becomes 0."""
    prompts = ((moment, (Piece(f"{name}-{i}/prompt", size),), output) for i, (moment, size, output) in enumerate(rows))
    return _in_order(name, list(prompts))


def _in_order(name: str, rows: Sequence[tuple[float, tuple[Piece, ...], int]]) -> Workload:
    """A workload from moments, prompts and output tokens; rows of the same moment stay in the order of the file."""
    start = min((moment for moment, _, _ in rows), default=0.0)
    requests: list[WorkloadRequest] = []
    for row in sorted(range(len(rows)), key=lambda row: rows[row][0]):
        moment, pieces, output = rows[row]
        arrival, session = round(moment - start, 9), f"{name}-{row}"
        requests.append(WorkloadRequest(len(requests), pieces, output, arrival=arrival, session=session))
    return Workload(name, tuple(requests))


def replayed(trace: Workload, rate: float, num_requests: int) -> Workload:
    """The first requests of a recording, every gap between them stretched or squeezed alike, so that they come at this
    mean rate. When it ends it begins again, with prompts that share nothing with those of the round before.

    Args:
        rate: requests per second.
    Raises:
        WorkloadError: they all come at once, and no factor makes a rate of that.
    """
    length = len(trace)
    # From the last request to the first of the next round as long as from one to the next on average.
    period = trace.last_arrival * length / max(length - 1, 1)
    requests = []
    for index in range(num_requests):
        lap, place = divmod(index, length)
        request, mark = trace.requests[place], f"~{lap}" if lap else ""
        pieces = tuple(Piece(piece.name + mark, piece.num_tokens) for piece in request.pieces)
        assert request.arrival is not None, "a recording has no later turns"
        moment, session = request.arrival + lap * period, request.session + mark
        requests.append(replace(request, index=index, pieces=pieces, arrival=moment, session=session))
    workload = Workload(trace.name, tuple(requests))
    if num_requests < 2:
        return workload
    if not workload.last_arrival:
        raise WorkloadError(f"the first {num_requests} requests of the trace all come at once: plan with more of them")
    return workload.faster(rate * workload.last_arrival / (num_requests - 1))


LOADERS = {".csv": load_azure, ".jsonl": load_mooncake}


def load_trace(path: Path, limit: int | None = None) -> Workload:
    """A recorded trace, in the format that its name ends with.

    Args:
        limit: the first so many requests; None = all.
    Raises:
        TraceError: the file cannot be read, is empty, or its format is not known.
    """
    load = LOADERS.get(path.suffix.lower())
    if load is None:
        raise TraceError(f"{path}: a trace of Azure's ends in .csv, one of Mooncake's in .jsonl")
    try:
        workload = load(path, limit=limit)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path} as a trace: {error}") from None
    if not len(workload):
        raise TraceError(f"{path} holds no requests")
    return workload
