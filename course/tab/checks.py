"""Lessons' checks in a browser tab: those whose keys come from the simulator or from arithmetic, no model's run."""

import importlib
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from course.tab.absent import standing_in

Given = tuple[Any, ...]


def _capacity(run: Any) -> Given:
    return run.sweep(), run.Ask()


def _spikes(run: Any) -> Given:
    return (run.stories(run.Spike()),)


def _money(run: Any) -> Given:
    price = importlib.import_module("course.lab.prices").gpu_price()
    return list(run.TROUBLES.values()), run.routing_runs(price)[0], price


def _nothing(_: Any) -> Given:
    return ()


ANSWERED: dict[str, Callable[[Any], Given]] = {
    "05b": _nothing,
    "06b": _nothing,
    "06c": _nothing,
    "10c": _nothing,
    "11": _capacity,
    "11b": _spikes,
    "11c": _money,
}
"""By lesson: what its notebook gives the check, from the lesson's run.py."""


class TabCheck:
    """The check of one lesson.

    Raises:
        LookupError: it can't be answered here.
    """

    def __init__(self, lesson: str) -> None:
        if lesson not in ANSWERED:
            raise LookupError(f"the check of {lesson} is answered in its notebook")
        package = f"course.lessons.lesson_{lesson}"
        with standing_in():
            session = importlib.import_module("course.grading.check_session")
            checks, run = (importlib.import_module(f"{package}.{name}") for name in ("check", "run"))
        graded = checks.checks(*ANSWERED[lesson](run))
        self._lesson, self._session = lesson, session.CheckSession(graded, graded.questions)

    def questions(self) -> dict[str, Any]:
        """What is asked, by name, and how far it is."""
        asked = {name: asdict(question) for name, question in self._session.questions.items()}
        return {"questions": asked, "head": self._session.head}

    def answer(self, question: str, written: str) -> dict[str, Any]:
        """What is told of an answer, how far it is then, and what a notebook would keep of it, by file."""
        result, told = self._session.answer(question, written)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        checks = {question: {"score": result.score, "possible": result.max_score}}
        record = {"opened": now, "last": now, "predictions": {}, "checks": checks}
        return {
            "told": told,
            "head": self._session.head,
            "kept": {"progress.json": {"lessons": {self._lesson: record}}},
        }
