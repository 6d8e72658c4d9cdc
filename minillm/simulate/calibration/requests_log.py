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
from typing import Any

from minillm.core.errors import RecordingError


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


def read_requests_log(path: Path) -> list[LoggedRequest]:
    """The log's requests in order of arrival.

    Raises:
        RecordingError: the file cannot be read, has no rows, or a row is not as described; the message names it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise RecordingError(f"cannot read {path}: {error}") from None
    rows = [_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise RecordingError(f"{path} has no requests")
    origin = min(row["queued_ts"] for row in rows)
    requests = [
        LoggedRequest(
            str(row.get("request_id", f"line-{number}")),
            row["input_toks"],
            row["output_toks"],
            row["queued_ts"] - origin,
            *(math.nan if row.get(stamp) is None else row[stamp] - origin for stamp in STAMPS),
        )
        for number, row in enumerate(rows, start=1)
    ]
    if len({request.request_id for request in requests}) < len(requests):
        raise RecordingError(f"{path} has a request_id twice")
    return sorted(requests, key=lambda request: request.queued)


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    """One line, with its numbers checked."""
    where = f"{path}, line {number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RecordingError(f"{where}: no JSON ({error})") from None
    if not isinstance(row, dict):
        raise RecordingError(f"{where}: no JSON object")
    for name in ("input_toks", "output_toks"):
        value = row.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RecordingError(f"{where}: {name} must be a whole number of at least 1, not {value!r}")
    stamps = [row.get(name) for name in ("queued_ts", *STAMPS)]
    if stamps[0] is None:
        raise RecordingError(f"{where}: queued_ts is missing")
    present = [stamp for stamp in stamps if stamp is not None]
    if not all(isinstance(s, (int, float)) and not isinstance(s, bool) and math.isfinite(s) for s in present):
        raise RecordingError(f"{where}: time stamps must be numbers (seconds); got {present}")
    if present != sorted(present):
        raise RecordingError(f"{where}: queued_ts, {', '.join(STAMPS)} must ascend; got {present}")
    return row


def read_server_facts(log: Path) -> dict[str, int | bool]:
    """What the `meta.json` in the log's folder says about the server, as fields of `Deployment.of`; the format is
    that of LLMServingSim's recordings of vLLM. Empty without such a file."""
    try:
        meta = json.loads((log.parent / "meta.json").read_text(encoding="utf-8"))
        server, cache = dict(meta.get("engine_kwargs") or {}), dict(meta.get("kv_cache") or {})
        resolved = dict((meta.get("resolved_config") or {}).get("scheduler_config") or {})
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    sizes = {name: server.get(name) for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")}
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


def longest_request(path: Path) -> int:
    """Prompt and output tokens of the log's longest request."""
    return max(request.input_tokens + request.output_tokens for request in read_requests_log(path))
