"""Recorded traffic: loaders for two public trace formats. The traces themselves are not part of minillm.

- Azure LLM inference (github.com/Azure/AzurePublicDataset): CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
- Mooncake (github.com/kvcache-ai/Mooncake, FAST'25): JSON Lines with timestamp (ms), input_length, output_length and
  hash_ids, one a block of 512 prompt tokens; equal ids are equal blocks with equal prefixes, so sharing is real.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from minillm.core.errors import TraceError, WorkloadError
from minillm.simulate.workload.requests import Piece, Workload, WorkloadRequest

MOONCAKE_BLOCK = 512
"""Tokens a hash id stands for."""
MOST_TOKENS = 10_000_000
"""More in one prompt or answer is taken for a broken row: no model has such a window."""


def load_azure(path: str | Path, *, limit: int | None = None, name: str = "azure") -> Workload:
    """A workload from an Azure trace. The trace knows only lengths: prompts share nothing.

    Args:
        limit: the first so many requests; None = all.
    Raises:
        TraceError: the file or a row is not what the format says; the message names the line.
    """
    first, rows = None, []
    for where, row in _csv_rows(path, {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}):
        prompt = whole_number(row["ContextTokens"], "ContextTokens", where)
        output = whole_number(row["GeneratedTokens"], "GeneratedTokens", where)
        moment = _moment(row["TIMESTAMP"], where)
        first = first or moment
        rows.append(((moment - first).total_seconds(), prompt, output))
        if limit is not None and len(rows) >= limit:
            break
    return from_lengths(rows, name=name)


def load_mooncake(path: str | Path, *, limit: int | None = None, name: str = "mooncake") -> Workload:
    """A workload from a Mooncake trace, with the prefixes its requests really shared.

    Args:
        limit: the first so many requests; None = all.
    Raises:
        TraceError: a row is not what the format says; the message names the line.
    """
    moments, requests = [], []
    for where, row in _json_lines(path):
        length = whole_number(row.get("input_length"), "input_length", where)
        output = whole_number(row.get("output_length"), "output_length", where)
        hash_ids = row.get("hash_ids")
        num_blocks = -(-length // MOONCAKE_BLOCK)
        if not isinstance(hash_ids, list) or len(hash_ids) != num_blocks:
            raise TraceError(
                f"{where}: {length} prompt tokens are {num_blocks} blocks of {MOONCAKE_BLOCK}, so hash_ids must be "
                f"a list of {num_blocks}, not {hash_ids!r:.80}"
            )
        sizes = [MOONCAKE_BLOCK] * (num_blocks - 1) + [length - MOONCAKE_BLOCK * (num_blocks - 1)]
        moments.append(_milliseconds(row.get("timestamp"), where))
        pieces = tuple(Piece(f"{name}/block-{hash_id}", size) for hash_id, size in zip(hash_ids, sizes))
        requests.append((pieces, output))
        if limit is not None and len(requests) >= limit:
            break
    return _assemble(name, moments, requests)


def from_lengths(rows: Iterable[tuple[float, int, int]], *, name: str = "recorded") -> Workload:
    """A workload from (moment in seconds, prompt tokens, output tokens); the first moment becomes 0."""
    rows = list(rows)
    requests = [((Piece(f"{name}-{i}/prompt", prompt),), output) for i, (_, prompt, output) in enumerate(rows)]
    return _assemble(name, [moment for moment, _, _ in rows], requests)


def _assemble(name: str, moments: Sequence[float], requests: Sequence[tuple[tuple[Piece, ...], int]]) -> Workload:
    """Requests in order of time; rows of the same moment stay in the order of the file."""
    order = sorted(range(len(moments)), key=moments.__getitem__)
    start = moments[order[0]] if order else 0.0
    return Workload(
        name,
        tuple(
            WorkloadRequest(
                index=index,
                pieces=requests[row][0],
                output_tokens=requests[row][1],
                arrival=round(moments[row] - start, 9),
                session=f"{name}-{row}",
            )
            for index, row in enumerate(order)
        ),
    )


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
        assert request.arrival is not None
        moment, session = request.arrival + lap * period, request.session + mark
        requests.append(replace(request, index=index, pieces=pieces, arrival=moment, session=session))
    workload = Workload(trace.name, tuple(requests))
    if num_requests < 2:
        return workload
    if not workload.last_arrival:
        raise WorkloadError(f"the first {num_requests} requests of the trace all come at once: plan with more of them")
    return workload.faster(rate * workload.last_arrival / (num_requests - 1))


def whole_number(value: Any, field: str, where: str) -> int:
    """A token count from 1 to MOST_TOKENS, written as a number or as text.

    Raises:
        TraceError: it is missing or something else.
    """
    try:
        number = int(value)
        if not 1 <= number <= MOST_TOKENS or (isinstance(value, float) and value != number) or isinstance(value, bool):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        message = f"{where}: {field} must be a whole number from 1 to {MOST_TOKENS:,}, not {value!r:.40}"
        raise TraceError(message) from None
    return number


def _moment(text: str | None, where: str) -> datetime:
    """Python keeps six digits of the fraction; the trace has seven."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        raise TraceError(f"{where}: TIMESTAMP must look like 2023-11-16 18:17:03.9799600, not {text!r}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # local time would jump twice a year


def _milliseconds(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise TraceError(f"{where}: timestamp must be milliseconds of at least 0, not {value!r}")
    return value / 1000


def _csv_rows(path: str | Path, columns: set[str]) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Each row with the words that say where it stands."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        try:
            if missing := columns - set(reader.fieldnames or ()):
                raise TraceError(f"{path}, line 1: no column {', '.join(sorted(missing))}: is this an Azure LLM trace?")
            for row in reader:
                yield f"{path}, line {reader.line_num}", row
        except csv.Error as error:
            raise TraceError(f"{path}, line {reader.line_num}: not CSV: {error}") from None


def _json_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with the words that say where it stands; empty lines are skipped."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise TraceError(f"{where}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise TraceError(f"{where}: a row must be a JSON object, not {line.strip():.80}")
            yield where, row


LOADERS = {"azure": load_azure, "mooncake": load_mooncake}
SUFFIXES = {".csv": "azure", ".jsonl": "mooncake"}


def load_trace(path: Path, trace_format: str | None = None, limit: int | None = None) -> Workload:
    """A recorded trace.

    Args:
        trace_format: "azure" or "mooncake"; None = as the file's name ends.
        limit: the first so many requests; None = all.
    Raises:
        TraceError: the file cannot be read, is empty, or its format is not known.
    """
    chosen = trace_format or SUFFIXES.get(path.suffix.lower())
    if chosen not in LOADERS:
        raise TraceError(f"{path}: say its format with --trace-format: {' or '.join(LOADERS)}")
    try:
        workload = LOADERS[chosen](path, limit=limit)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path} as a trace of {chosen}: {error}") from None
    if not len(workload):
        raise TraceError(f"{path} holds no requests")
    return workload
