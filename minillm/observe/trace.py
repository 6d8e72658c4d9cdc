"""A run as a Chrome trace: open the file at https://ui.perfetto.dev, or in chrome://tracing.

One track per request, in order of arrival, with its five phases as slices and its prompt chunks
inside them; one track for the engine's steps with their stages; counters for KV blocks, queue and
batch. Format: Google's "Trace Event Format". Times in it are microseconds from the first stamp.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minillm.core.step_log import StepRecord
from minillm.core.timeline import PHASES, STAMPS
from minillm.observe.records import Recordable, RequestRecord, as_records

REQUESTS, ENGINE = 1, 2
"""Process ids: Perfetto groups tracks by process."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Track:
    """The row of a request in the picture."""

    tid: int
    borders: list[float]
    """Clock seconds at which its five phases begin and end."""


@dataclass(slots=True)
class TraceBuilder:
    """Collects events. Takes seconds of the engine's clock, writes microseconds from `origin`."""

    origin: float
    events: list[Event] = field(default_factory=list)

    def microseconds(self, seconds: float) -> float:
        return round((seconds - self.origin) * 1e9) / 1e3  # whole nanoseconds

    def slice(self, pid: int, tid: int, name: str, start: float, end: float, **extra: Any) -> None:
        """A complete event: [start, end) on one track. Slices of a track lie apart or inside each other."""
        ts, ts_end = self.microseconds(start), self.microseconds(max(start, end))
        self.events.append(
            {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": round(ts_end - ts, 3), **extra}
        )

    def instant(self, pid: int, tid: int, name: str, at: float) -> None:
        self.events.append({"ph": "i", "pid": pid, "tid": tid, "name": name, "ts": self.microseconds(at), "s": "t"})

    def counter(self, name: str, at: float, **values: int) -> None:
        self.events.append({"ph": "C", "pid": ENGINE, "name": name, "ts": self.microseconds(at), "args": values})

    def label(self, kind: str, pid: int, tid: int, name: str, order: int) -> None:
        """Name a process or a thread, and fix its place among the others."""
        for event, value in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": order})):
            self.events.append({"ph": "M", "pid": pid, "tid": tid, "name": event, "ts": 0, "args": value})

    def sorted_events(self) -> list[Event]:
        """Metadata first, then by time; of slices that start together, the longer one is the parent."""
        return sorted(self.events, key=lambda event: (event["ph"] != "M", event["ts"], -event.get("dur", 0)))


def chrome_trace(
    requests: Iterable[Recordable], steps: Sequence[StepRecord] = (), *, origin: float | None = None
) -> dict[str, Any]:
    """The trace as a JSON-ready dict.

    Args:
        requests: finished, or in flight until the latest stamp there is; phases a request never reached are left out.
        steps: without them there are no chunks, no engine track and no counters.
        origin: where the trace's time begins, clock seconds, for traces to be merged; None = the first stamp.
    """
    records = as_records(requests)
    moments = [at for record in records for name in STAMPS if (at := getattr(record.timeline, name)) is not None]
    moments += [moment for step in steps for moment in (step.start, step.end)]
    builder = TraceBuilder(min(moments, default=0.0) if origin is None else origin)
    now = max(moments, default=0.0)

    builder.label("process", REQUESTS, 0, "requests", 0)
    tracks: dict[str, list[Track]] = {}
    for row, record in enumerate(records):
        track = Track(row + 1, record.timeline.borders(now))
        tracks.setdefault(record.request_id, []).append(track)
        _draw_request(builder, record, track)
    builder.label("process", ENGINE, 0, "engine", 1)
    builder.label("thread", ENGINE, 1, "steps", 0)
    for step in steps:
        _draw_step(builder, step)
        _draw_chunks(builder, step, tracks)
    return {"traceEvents": builder.sorted_events(), "displayTimeUnit": "ms"}


def write_chrome_trace(path: str | Path, requests: Iterable[Recordable], steps: Sequence[StepRecord] = ()) -> None:
    """Write `chrome_trace` to a file."""
    Path(path).write_text(json.dumps(chrome_trace(requests, steps)), encoding="utf-8")


def _track_at(tracks: dict[str, list[Track]], request_id: str, moment: float) -> Track | None:
    """An id may be used again when its request has ended: the last that had come by then. None if it was not asked
    about."""
    return next((track for track in reversed(tracks.get(request_id, ())) if track.borders[0] <= moment), None)


def _draw_request(builder: TraceBuilder, record: RequestRecord, track: Track) -> None:
    """One slice for each phase that has begun."""
    timeline = record.timeline
    sizes = f"{record.num_prompt_tokens} in, {timeline.num_tokens} out"
    builder.label("thread", REQUESTS, track.tid, f"{record.request_id} ({sizes})", track.tid)
    last_token = timeline.last_token if timeline.finished is not None else None  # until then it may not be the last
    begins = (timeline.arrival, timeline.scheduled, timeline.prefill_end, timeline.first_token, last_token)
    args: dict[str, Any] = {
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "output_tokens": timeline.num_tokens,
        "finish_reason": str(record.finish_reason or "in flight"),
        "lost_seconds": dict(timeline.lost),
    }
    for i, phase in enumerate(PHASES):
        if begins[i] is not None:
            start, end = track.borders[i : i + 2]
            builder.slice(REQUESTS, track.tid, phase, start, end, cat="phase", args=args)


def _draw_chunks(builder: TraceBuilder, step: StepRecord, tracks: dict[str, list[Track]]) -> None:
    """The step's prompt chunks inside the phases of their requests, and whom it preempted."""
    for share in step.shares:
        track = _track_at(tracks, share.request_id, step.start)
        if not share.is_prefill or track is None:
            continue
        for i, phase in enumerate(PHASES):
            if track.borders[i] <= step.start < track.borders[i + 1]:
                # The step goes on (sampling, detokenizing) when this request's phase is over already.
                end = min(step.end, track.borders[i + 1])
                name = "chunk" if phase == "prefill" else "recompute"
                args = {"tokens": share.num_tokens, "step": step.step_id}
                builder.slice(REQUESTS, track.tid, name, step.start, end, cat="chunk", args=args)
    for request_id in step.preempted:
        if track := _track_at(tracks, request_id, step.start):
            builder.instant(REQUESTS, track.tid, "preempted", step.start)


def _draw_step(builder: TraceBuilder, step: StepRecord) -> None:
    """One step on the engine's track, and what it saw on the counters."""
    args = {
        "step": step.step_id,
        "tokens": step.num_tokens,
        "prefill_tokens": step.num_prefill_tokens,
        "requests": [share.request_id for share in step.shares],
    }
    builder.slice(ENGINE, 1, "step", step.start, step.end, cat="step", args=args)
    # Stages are known by length only: they are drawn in their order, end to end from the step's start.
    at = step.start
    for stage, seconds in step.stages.items():
        end = min(at + seconds, step.end)
        builder.slice(ENGINE, 1, stage, at, end, cat="stage")
        at = end
    builder.counter("KV blocks used", step.start, used=step.kv_blocks_used)
    builder.counter("waiting", step.start, requests=step.num_waiting)
    builder.counter("running", step.start, requests=step.num_running)
    decode = step.num_tokens - step.num_prefill_tokens
    builder.counter("batch tokens", step.start, prefill=step.num_prefill_tokens, decode=decode)
