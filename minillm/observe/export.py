"""Requests and steps as pandas tables, and as JSON Lines files that read back exactly as written."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from minillm.core.errors import RecordingError
from minillm.core.request import FinishReason
from minillm.core.timeline import PHASES, STAMPS, StepRecord, StepShare, Timeline, Verification
from minillm.observe.records import Recordable, RequestRecord, as_records


@dataclass(frozen=True, slots=True)
class Recording:
    """What one run left behind."""

    requests: list[RequestRecord]
    steps: list[StepRecord]


def requests_frame(requests: Iterable[Recordable]) -> pd.DataFrame:
    """One row per request, in order of arrival. Times in seconds; empty where something never happened.

    Columns: request_id, finish_reason, num_prompt_tokens, num_cached_tokens, num_output_tokens; the six
    stamps under their Timeline names; ttft, tpot, max_itl, e2e; phase_<name> for each phase (only once a
    request has ended); lost_<cause> for each cause that occurs (0 where it cost nothing).
    """
    rows = []
    for record in as_records(requests):
        timeline = record.timeline
        row: dict[str, Any] = {
            "request_id": record.request_id,
            "finish_reason": None if record.finish_reason is None else str(record.finish_reason),
            "num_prompt_tokens": record.num_prompt_tokens,
            "num_cached_tokens": record.num_cached_tokens,
            "num_output_tokens": timeline.num_tokens,
            **{stamp: getattr(timeline, stamp) for stamp in STAMPS},
            "ttft": timeline.ttft,
            "tpot": timeline.tpot,
            "max_itl": max(timeline.itl, default=None),
            "e2e": timeline.e2e,
        }
        phases = timeline.phases() if timeline.finished is not None else dict.fromkeys(PHASES)
        row |= {f"phase_{phase}": seconds for phase, seconds in phases.items()}
        row |= {f"lost_{cause}": seconds for cause, seconds in timeline.lost.items()}
        rows.append(row)
    frame = pd.DataFrame(rows)
    lost = [column for column in frame if column.startswith("lost_")]
    return frame.fillna(dict.fromkeys(lost, 0.0))


def steps_frame(steps: Iterable[StepRecord]) -> pd.DataFrame:
    """One row per step. Times in seconds; stage_<name> for each stage."""
    rows = [
        {
            "step_id": step.step_id,
            "start": step.start,
            "end": step.end,
            "num_requests": len(step.shares),
            "num_tokens": step.num_tokens,
            "num_prefill_tokens": step.num_prefill_tokens,
            "num_waiting": step.num_waiting,
            "num_running": step.num_running,
            "kv_blocks_used": step.kv_blocks_used,
            "kv_blocks_total": step.kv_blocks_total,
            "num_preempted": len(step.preempted),
            **{f"stage_{stage}": seconds for stage, seconds in step.stages.items()},
        }
        for step in steps
    ]
    return pd.DataFrame(rows)


def write_jsonl(path: str | Path, requests: Iterable[Recordable], steps: Sequence[StepRecord] = ()) -> None:
    """One JSON object a line: requests in order of arrival, then steps. `type` tells which."""
    with open(path, "w", encoding="utf-8") as file:
        for record in as_records(requests):
            file.write(json.dumps({"type": "request", **asdict(record)}) + "\n")
        for step in steps:
            file.write(json.dumps({"type": "step", **asdict(step)}) + "\n")


def read_jsonl(path: str | Path) -> Recording:
    """Read what `write_jsonl` wrote.

    Raises:
        RecordingError: a line is not such an object; the message names it.
    """
    recording = Recording([], [])
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                fields = json.loads(line)
                kind = fields.pop("type")
                if kind == "request":
                    recording.requests.append(_request(fields))
                elif kind == "step":
                    recording.steps.append(_step(fields))
                else:
                    raise ValueError(f"unknown type {kind!r}")
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise RecordingError(
                    f"{path}, line {number}: {error!r}. Expected a request or step written by write_jsonl"
                ) from error
    return recording


def _request(fields: dict[str, Any]) -> RequestRecord:
    reason = fields["finish_reason"]
    fields["finish_reason"] = None if reason is None else FinishReason(reason)
    timeline = fields["timeline"]
    timeline["verifications"] = [Verification(*row) for row in timeline.get("verifications", ())]
    fields["timeline"] = Timeline(**timeline)
    return RequestRecord(**fields)


def _step(fields: dict[str, Any]) -> StepRecord:
    fields["shares"] = tuple(StepShare(**share) for share in fields["shares"])
    fields["preempted"] = tuple(fields["preempted"])
    return StepRecord(**fields)
