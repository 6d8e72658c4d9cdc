"""One finding, and how findings are shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

GB = 1_000_000_000
Status = Literal["ok", "absent", "bad"]
MARKS: dict[Status, str] = {"ok": "+", "absent": "-", "bad": "!"}
NAME_WIDTH, LINE_WIDTH = 22, 120


@dataclass(frozen=True, slots=True)
class Check:
    """`absent` is fine to live with; `bad` keeps minillm from working."""

    group: str
    name: str
    status: Status
    found: str
    fix: str | None = None
    """What to do about it; None = nothing is to be done."""

    @classmethod
    def of(cls, group: str, name: str, found: str, fix: str | None = None, *, needed: bool = False) -> "Check":
        """With a `fix` something is missing, which is bad if it is `needed`; without one all is well."""
        return cls(group, name, "ok" if fix is None else "bad" if needed else "absent", found, fix)


def is_healthy(checks: Sequence[Check]) -> bool:
    """Whether nothing that is needed is broken."""
    return all(check.status != "bad" for check in checks)


def as_text(checks: Sequence[Check]) -> str:
    """The findings by group, a line or two each, and the verdict."""
    lines: list[str] = []
    for group, members in groupby(checks, key=lambda check: check.group):
        lines += [group, *(line for check in members for line in _lines(check)), ""]
    bad, absent = (sum(check.status == status for check in checks) for status in ("bad", "absent"))
    optional = f"{absent} optional things are missing (-)" if absent else "nothing is missing"
    verdict = f"{bad} things keep minillm from working (!), and " if bad else "minillm works here; "
    return "\n".join([*lines, verdict + optional])


def _lines(check: Check) -> list[str]:
    found = f"  {MARKS[check.status]} {check.name:{NAME_WIDTH}} {check.found}"
    if check.fix is None:
        return [found]
    arrow = f" -> {check.fix}"
    return [found + arrow] if len(found + arrow) <= LINE_WIDTH else [found, " " * (NAME_WIDTH + 4) + arrow]
