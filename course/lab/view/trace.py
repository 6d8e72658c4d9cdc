"""A run as the view is told it: events and moments. While it goes on, only what is new."""

from collections.abc import Iterator, Sequence
from typing import Any

from course.lab.run import Row, Run
from course.lab.workloads import LabWorkload
from minillm.core.step_log import StepRecord
from minillm.core.timeline import PHASES

ASKED = 300
"""Characters of a prompt that are told: its end, where a shared beginning would say the same of every request."""
DIGITS = 5
"""Moments are told to 10 µs."""

Told = dict[str, Any]
"""JSON, as `trace.js` describes it."""


class TraceFeed:
    """Tells one run, in pieces: `head` at first, then `more` as often as one likes.

    Args:
        run: as it begins.
        traffic: what is played; None = nobody knows any more, and prompts aren't told.
        fields: those of its configuration that are told.
    """

    def __init__(self, run: Run, traffic: LabWorkload | None, fields: Sequence[str]) -> None:
        self._start = run.start
        self._rows = {row.request_id: row.index for row in run.rows}
        self._told: list[Told] = [{} for _ in run.rows]
        self._num_tokens, self._num_texts = ([0] * len(run.rows) for _ in range(2))
        self._next_step = self._num_frames = 0
        config = run.config
        self.head: Told = {
            "traffic": run.workload,
            "about": traffic.about if traffic else "",
            "on": run.simulated_on,
            "inferred": sorted(run.remote.inferred) if run.remote else [],
            "config": {name: getattr(config, name) for name in fields},
            "slots": config.max_num_seqs,
            "budget": config.max_num_batched_tokens,
            "blocks": len(run.snapshot.block_owners),
            "state": "running",
            "end": 0.0,
            "rows": [_blank(row, traffic) for row in run.rows],
            "steps": [],
            "kv": [],
        }

    def more(self, run: Run) -> Told:
        """What happened since the last call."""
        self._start = run.start  # a client sets its clock when it sends the first request
        steps = list(_after(run.steps, self._next_step))
        self._next_step = steps[-1].step_id + 1 if steps else self._next_step
        frames = run.kv_frames[self._num_frames :]
        self._num_frames += len(frames)
        return {
            "state": "stopped" if run.stopped and run.done else "done" if run.done else "running",
            "end": self._moment(max(run.duration, 0.0) if run.done else max(run.snapshot.now - run.start, 0.0)),
            "rows": [news for row in run.rows if len(news := self._news(row)) > 1],
            "steps": [self._step(step) for step in steps],
            "kv": [[self._moment(since - self._start), [list(each) for each in owners]] for since, owners in frames],
        }

    def _moment(self, seconds: float) -> float:
        return round(seconds, DIGITS)

    def _news(self, row: Row) -> Told:
        """What is new of a request: its index, and whatever changed."""
        i, view = row.index, row.view
        now: Told = {"sent": None if row.sent is None else self._moment(row.sent), "refused": row.refused or ""}
        if view is not None:
            known = len(PHASES) if view.phase is None else PHASES.index(view.phase)
            now |= {
                "prompt": view.num_prompt_tokens,
                "cached": view.num_cached_tokens,
                "most": view.max_tokens,
                "borders": [self._moment(border - self._start) for border in view.borders[: known + 1]],
                "reason": view.finish_reason or "",
            }
        told = self._told[i]
        news = {"i": i} | {name: value for name, value in now.items() if told.get(name) != value}
        told.update(now)
        deliveries = view.deliveries[self._num_tokens[i] :] if view is not None else ()
        texts = row.texts[self._num_texts[i] :]
        self._num_tokens[i] += len(deliveries)
        self._num_texts[i] += len(texts)
        if deliveries:
            news["tokens"] = [self._moment(each - self._start) for each in deliveries]
        if texts:
            news["texts"] = list(texts)
        return news

    def _step(self, step: StepRecord) -> Told:
        rows = self._rows
        return {
            "start": self._moment(step.start - self._start),
            "end": self._moment(step.end - self._start),
            "running": step.num_running,
            "waiting": step.num_waiting,
            "shares": [
                [rows[share.request_id], share.num_tokens, int(share.is_prefill)]
                for share in step.shares
                if share.request_id in rows
            ],
            "preempted": [rows[name] for name in step.preempted if name in rows],
        }


def trace_of(run: Run, traffic: LabWorkload | None, fields: Sequence[str]) -> Told:
    """A whole run."""
    feed = TraceFeed(run, traffic, fields)
    return extended(feed.head, feed.more(run))


def extended(trace: Told, more: Told) -> Told:
    """A trace with what was added, as `extend` in trace.js; the old one stays as it is."""
    rows = [dict(row) for row in trace["rows"]]
    for each in more["rows"]:
        row = rows[each["i"]]
        grown = {name: [*row[name], *each[name]] for name in ("tokens", "texts") if name in each}
        row.update({**{name: value for name, value in each.items() if name != "i"}, **grown})
    lists = {name: [*trace[name], *more[name]] for name in ("steps", "kv")}
    return {**trace, **lists, "rows": rows, "state": more["state"], "end": more["end"]}


def _after(steps: Sequence[StepRecord], first: int) -> Iterator[StepRecord]:
    """Steps from this number on; they are kept in order, so those behind it are few."""
    found = []
    for step in reversed(steps):
        if step.step_id < first:
            break
        found.append(step)
    return reversed(found)


def _blank(row: Row, traffic: LabWorkload | None) -> Told:
    """A request of which nothing is known but when it is due, and what it asks."""
    arrival = traffic.arrivals[row.index] if traffic else None
    return {
        "due": round(row.due, DIGITS),
        "sent": None,
        "refused": "",
        "asked": _asked(arrival.prompt) if arrival else "",
        "prompt": 0,
        "cached": 0,
        "most": arrival.max_tokens if arrival else 0,
        "borders": [],
        "tokens": [],
        "texts": [],
        "reason": "",
    }


def _asked(prompt: Any) -> str:
    """The end of a prompt, in words."""
    if not isinstance(prompt, str):
        prompt = prompt[-1]["content"] if prompt and isinstance(prompt[-1], dict) else f"{len(prompt)} tokens"
    return prompt if len(prompt) <= ASKED else f"… {prompt[-ASKED:]}"
