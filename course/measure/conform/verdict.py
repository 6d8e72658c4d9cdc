"""What a check finds."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class CheckOutcome(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    """A wrong answer, or one that never came."""
    CRASH = "crash"
    """The engine, or its process, is gone."""
    SKIPPED = "skipped"
    """It doesn't have what the check is about, or can't be asked."""


@dataclass(frozen=True)
class CheckVerdict:
    """One check's outcome, with what someone would need to see it again."""

    check: str
    outcome: CheckOutcome
    about: str
    """What the check holds, in a sentence."""
    sent: str = ""
    expected: str = ""
    got: str = ""
    seen: str = ""
    """Where it's public: an issue or a pull request of an engine that had this."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class ConformityError(AssertionError):
    """An engine's answer isn't what it should be.

    Args:
        sent, expected, got: told in the report.
    """

    def __init__(self, sent: str, expected: str, got: str) -> None:
        super().__init__(f"sent {sent}; expected {expected}; got {got}")
        self.sent, self.expected, self.got = sent, expected, got


class NotOfferedError(Exception):
    """The engine doesn't have what this check is about."""
