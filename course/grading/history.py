"""What a learner has tried: one line of JSON an event, in minillm's home folder, on this machine only.

A line is added whole or not at all, and a line that cannot be read is passed over: no accident loses more than one
event. A folder that cannot be written costs the memory of this attempt, and a note; never the check.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course.grading.exercise import Exercise
from minillm.host.storage import cache_home


@dataclass(frozen=True)
class Standing:
    """How far a learner is with one exercise."""

    attempts: int
    hints: int
    """Hints that were read."""
    best: float
    """Points of the best attempt, less what the hints cost that were read before it."""
    max_score: float
    last: str | None
    """Moment of the last event; ISO 8601, UTC."""


class History:
    """The events of one learner.

    Args:
        path: None = `exercises.jsonl` in minillm's home folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_home() / "exercises.jsonl"

    def events(self) -> Iterator[dict[str, Any]]:
        """All that can be read, in the order in which it was noted; to export, to grade a class from."""
        try:
            yield from events_of(self.path.read_bytes())
        except OSError:
            return

    def erase(self) -> str | None:
        """As if nothing had been tried. Returns why it could not be done, or None."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            return f"not erased: {self.path}: {error.strerror or error}"
        return None

    def add_attempt(self, exercise: Exercise, seed: int, score: float) -> str | None:
        """Note a graded answer. Returns why it could not be noted, or None."""
        hints = self.hints_read(exercise)
        fields = {"seed": seed, "score": score, "max_score": exercise.max_score, "hints": hints}
        return self._add("attempt", exercise, **fields)

    def add_hint(self, exercise: Exercise, number: int) -> str | None:
        """Note that hint `number` (from 1) was read. Returns why it could not be noted, or None."""
        return self._add("hint", exercise, number=number)

    def hints_read(self, exercise: Exercise) -> int:
        """How many different hints were read; never more than there are."""
        read = {str(event.get("number")) for event in self._of(exercise) if event["event"] == "hint"}
        return len(read & {str(number + 1) for number in range(len(exercise.hints))})

    def standing(self, exercise: Exercise) -> Standing:
        events = list(self._of(exercise))
        attempts = [event for event in events if event["event"] == "attempt"]
        best = max((_points(exercise, event) for event in attempts), default=0.0)
        last = max((str(event["at"]) for event in events if "at" in event), default=None)
        return Standing(len(attempts), self.hints_read(exercise), best, exercise.max_score, last)

    def _of(self, exercise: Exercise) -> Iterator[dict[str, Any]]:
        return (event for event in self.events() if event["exercise"] == exercise.id)

    def _add(self, event: str, exercise: Exercise, **fields: Any) -> str | None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return self._append({"at": at, "exercise": exercise.id, "event": event, **fields})

    def add_events(self, events: Iterable[dict[str, Any]]) -> str | None:
        """Note what happened elsewhere, unless it stands here. Returns why it could not be noted, or None."""
        here = list(self.events())
        new = [event for event in events if event not in here]
        return self._append(*new) if new else None

    def _append(self, *events: dict[str, Any]) -> str | None:
        text = "".join(json.dumps(event) + "\n" for event in events)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    text = text if file.read(1) == b"\n" else "\n" + text  # the last writer was cut off
                file.write(text.encode())  # appended by one call of the operating system
        except OSError as error:
            return f"not saved: {self.path}: {error.strerror or error}"
        return None


def events_of(lines: bytes) -> Iterator[dict[str, Any]]:
    """The events of a history's text that can be read, in their order."""
    for line in lines.splitlines():
        try:
            event = json.loads(line)
            if isinstance(event["exercise"], str) and event["event"] in ("attempt", "hint"):
                yield event
        except (ValueError, TypeError, KeyError):
            continue


def cost_of_hints(exercise: Exercise, count: int) -> float:
    """Points that the first `count` hints cost."""
    return round(sum(hint.cost for hint in exercise.hints[:count]) * exercise.max_score, 2)


def _points(exercise: Exercise, event: dict[str, Any]) -> float:
    """Points of an attempt as it counts, in today's points of the exercise; 0 if the event says nonsense."""
    try:
        share = float(event["score"]) / float(event["max_score"])
        points = min(max(0.0, share), 1.0) * exercise.max_score - cost_of_hints(exercise, int(event.get("hints", 0)))
    except (ValueError, TypeError, KeyError, ZeroDivisionError, OverflowError):
        return 0.0
    return max(round(points, 2), 0.0)
