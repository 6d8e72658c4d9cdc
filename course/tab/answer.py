"""What a page may ask of the Python in its tab: a name and arguments as JSON, an answer as JSON."""

import importlib
import itertools
import json
from typing import Any

from minillm.core.errors import MinillmError

FUNCTIONS = {
    "calculator.answer": "course.tab.calculator:answer",
    "dashboard.spec": "course.tab.dashboard:spec",
    "dashboard.run": "course.tab.dashboard:run",
    "dashboard.recipe": "course.tab.dashboard:recipe",
    "challenge.play": "course.tab.challenge:play",
    "exercise.check": "course.tab.exercises:check",
    "exercise.serve": "course.tab.exercises:serve",
    "worksheet.answer": "course.tab.explorers:worksheet",
}
"""By name: the function that answers, imported when it's first asked."""
KINDS = {
    "chats": "course.tab.chats:Chats",
    "check": "course.tab.checks:TabCheck",
    "drill": "course.tab.drills:TabDrill",
    "explorer": "course.tab.explorers:TabExplorer",
    "incident": "course.tab.incidents:TabIncident",
    "napkin": "course.tab.napkin:TabNapkin",
    "round": "course.tab.rounds:TabRound",
    "server": "course.tab.live_server:LiveServer",
}
"""What can be opened, and then asked by its number: `server.open` makes one, `server.go_on` is a method of it."""


class Answers:
    """Answers one page, and keeps what it has opened."""

    def __init__(self) -> None:
        self._opened: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    def answer(self, request: str) -> str:
        """The answer to one request.

        Args:
            request: `{"name": ..., "given": {...}}`, JSON; for what was opened, with its number: `{"of": 1, ...}`.
        Returns:
            `{"value": ...}`, or `{"refused": words}` where the course says no; JSON.
        Raises:
            KeyError: nothing of that name can be asked, or nothing of that number is open.
            ValueError: the answer has a number that JSON can't say.
        """
        asked = json.loads(request)
        try:
            told: dict[str, Any] = {"value": self._called(asked["name"], asked.get("of"), asked["given"])}
        except (MinillmError, LookupError) as error:
            if isinstance(error, KeyError):
                raise  # a bug of the page: its readers can't do anything about it
            told = {"refused": str(error)}
        return json.dumps(told, separators=(",", ":"), allow_nan=False)

    def _called(self, name: str, number: int | None, given: dict[str, Any]) -> Any:
        if name in FUNCTIONS:
            return _imported(FUNCTIONS[name])(**given)
        kind, _, verb = name.partition(".")
        if verb == "open":
            opened = next(self._numbers)
            self._opened[opened] = _imported(KINDS[kind])(**given)
            return opened
        held = self._opened[number or 0]
        if verb == "close":
            return self._opened.pop(number or 0) and None
        if verb.startswith("_") or not isinstance(held, _imported(KINDS[kind])):
            raise KeyError(name)
        return getattr(held, verb)(**given)


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
