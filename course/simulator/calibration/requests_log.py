"""A log of requests that a real server served: what came in when, and when its tokens went out.

One JSON object a line, with `input_toks`, `output_toks`, `queued_ts` and, to compare or calibrate with,
`scheduled_ts`, `first_token_ts`, `last_token_ts` (seconds on one clock). vLLM stamps all of them in its
engine loop: a request counts as queued when the loop next looks, between two steps.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from course.simulator.errors import RecordingError
from course.simulator.workload.traces import json_rows
from minillm.text_files import read_text


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One line. Seconds since the log's first request."""

    request_id: str
    input_tokens: int
    output_tokens: int
    queued: float
    scheduled: float = math.nan
    first_token: float = math.nan
    last_token: float = math.nan
    """NaN where the log does not say."""

    @property
    def is_timed(self) -> bool:
        return not math.isnan(self.scheduled + self.first_token + self.last_token)

    @property
    def ttft(self) -> float:
        """Queued to first token, seconds."""
        return self.first_token - self.queued

    @property
    def e2e(self) -> float:
        return self.last_token - self.queued

    @property
    def queue(self) -> float:
        return self.scheduled - self.queued

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, seconds; None with fewer than two."""
        return None if self.output_tokens < 2 else (self.last_token - self.first_token) / (self.output_tokens - 1)


STAMPS = ("scheduled_ts", "first_token_ts", "last_token_ts")
LATEST = 1e11
"""Seconds since 1970 that no log reaches (the year 5138): a larger stamp is in milliseconds, or finer."""
Seconds = Annotated[FiniteFloat, Field(strict=True)]


class LogRow(BaseModel):
    """One line as it is written: token counts, and stamps in seconds on one clock."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    request_id: str | None = None
    input_toks: int = Field(ge=1, strict=True)
    output_toks: int = Field(ge=1, strict=True)
    queued_ts: Seconds
    scheduled_ts: Seconds | None = None
    first_token_ts: Seconds | None = None
    last_token_ts: Seconds | None = None

    @property
    def stamps(self) -> tuple[float | None, ...]:
        """In the order of STAMPS."""
        return self.scheduled_ts, self.first_token_ts, self.last_token_ts

    @model_validator(mode="after")
    def _ascend(self) -> "LogRow":
        present = [stamp for stamp in (self.queued_ts, *self.stamps) if stamp is not None]
        if present != sorted(present):
            raise ValueError(f"queued_ts, {', '.join(STAMPS)} must ascend; got {present}")
        return self


def read_requests_log(path: Path) -> list[LoggedRequest]:
    """The log's requests in order of arrival.

    Raises:
        RecordingError: the file cannot be read, has no rows, or a row is not as described; the message names it.
    """
    if path.suffix.lower() == ".csv":
        raise RecordingError(f"{path}: a log is JSON lines; an Azure trace, which is CSV, goes with --trace")
    try:
        rows = list(json_rows(path, LogRow, RecordingError))
    except (OSError, UnicodeError) as error:
        raise RecordingError(f"cannot read {path}: {error}") from None
    if not rows:
        raise RecordingError(f"{path} has no requests")
    origin = min(row.queued_ts for row in rows)
    if origin > LATEST:
        raise RecordingError(f"{path}: queued_ts {origin:.0f} is no time in seconds: divide milliseconds by 1000")
    requests = [
        LoggedRequest(
            f"line-{number}" if row.request_id is None else row.request_id,
            row.input_toks,
            row.output_toks,
            row.queued_ts - origin,
            *(math.nan if stamp is None else stamp - origin for stamp in row.stamps),
        )
        for number, row in enumerate(rows, start=1)
    ]
    if len({request.request_id for request in requests}) < len(requests):
        raise RecordingError(f"{path} has a request_id twice")
    return sorted(requests, key=lambda request: request.queued)


def read_server_facts(log: Path) -> dict[str, int | bool]:
    """What the `meta.json` in the log's folder says about the server, as fields of `Deployment.of`; the format is
    that of LLMServingSim's recordings of vLLM. Empty without such a file.

    Raises:
        RecordingError: it was more than one replica.
    """
    try:
        meta = json.loads(read_text(log.parent / "meta.json"))
        server, cache = dict(meta.get("engine_kwargs") or {}), dict(meta.get("kv_cache") or {})
        resolved = dict((meta.get("resolved_config") or {}).get("scheduler_config") or {})
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    for name in ("data_parallel_size", "pipeline_parallel_size"):
        if server.get(name) not in (None, 1):
            raise RecordingError(f"meta.json has {name} {server[name]}: only the log of one replica can be priced")
    sizes = {name: server.get(name) for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")}
    sizes["tp"] = server.get("tensor_parallel_size")
    sizes |= {"num_kv_blocks": cache.get("num_gpu_blocks"), "block_size": cache.get("block_size")}
    facts = {name: size for name, size in sizes.items() if type(size) is int and size > 0}
    habits = {
        "scheduler_reserve_full_isl": resolved.get("scheduler_reserve_full_isl") is True,
        "null_block": "vllm_version" in meta,
    }
    return {**facts, **{name: True for name, has_it in habits.items() if has_it}}


def timed(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """The requests with all stamps.

    Raises:
        RecordingError: none has them, so there is nothing to compare with.
    """
    found = [request for request in requests if request.is_timed]
    if not found:
        raise RecordingError(f"no request of the log has {', '.join(STAMPS)}: nothing to fit or compare with")
    return found


def check_window(path: Path, window: int, model: str) -> None:
    """Raise RecordingError if a request of the log is longer than the model's window."""
    if (longest := longest_request(path)) > window:
        raise RecordingError(
            f"{path}: the longest request has {longest} tokens, prompt and output together, and {model}'s window is "
            f"{window}: leave it out, or say with --max-model-len how long the server let it get"
        )


def longest_request(path: Path) -> int:
    """Prompt and output tokens of the log's longest request."""
    return max(request.input_tokens + request.output_tokens for request in read_requests_log(path))
