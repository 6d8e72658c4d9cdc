"""What was found, what follows from it, and how both are shown."""

import dataclasses
import functools
import textwrap
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

Status = Literal["ok", "absent", "bad", "unfinished"]
MARKS: dict[Status, str] = {"ok": "+", "absent": "-", "bad": "!", "unfinished": "?"}
NAME_WIDTH, MOST_COLUMNS, FEWEST_COLUMNS = 18, 120, 40


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`absent` is fine to live with; `bad` keeps minillm from working; `unfinished` could not be found out."""

    group: str
    name: str
    status: Status
    found: str
    fix: str | None = None
    """What to do about it; None = nothing is to be done."""
    details: str | None = None
    """What the check, or a compiler, wrote to standard error: its end."""

    @classmethod
    def of(cls, group: str, name: str, found: str, fix: str | None = None, *, needed: bool = False) -> "CheckResult":
        """A finding: with a `fix` something is missing, which is bad if it is `needed`; without one all is well."""
        return cls(group, name, "ok" if fix is None else "bad" if needed else "absent", found, fix)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and what follows from them."""

    findings: list[CheckResult]
    undecided: list[str]
    """Checks that decide whether minillm works here, and could not finish."""

    @property
    def ok(self) -> bool:
        """Whether all that is needed was found to work."""
        return not self.undecided and not self._names("bad")

    @property
    def verdict(self) -> str:
        """One or two sentences: whether minillm works here, which checks could not finish, how much is missing."""
        bad, unfinished, absent = self._names("bad"), self._names("unfinished"), self._names("absent")
        if bad:
            sentences = [f"minillm can't work here until this is mended (!): {', '.join(bad)}."]
        elif self.undecided:
            sentences = ["minillm may not work here."]
        else:
            sentences = ["minillm works here."]
        if unfinished:
            sentences.append(f"Could not finish (?): {', '.join(unfinished)}.")
        if absent:
            sentences.append(f"Could be better (-): {', '.join(absent)}.")
        return " ".join(sentences)

    def _names(self, status: Status) -> list[str]:
        return [finding.name for finding in self.findings if finding.status == status]

    def as_dict(self) -> dict[str, object]:
        """For --json."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "unfinished": self._names("unfinished"),
            "checks": [dataclasses.asdict(finding) for finding in self.findings],
        }

    def as_text(self, columns: int) -> str:
        """The verdict, then the findings by group."""
        width = max(FEWEST_COLUMNS, min(columns, MOST_COLUMNS))
        # A path or a command stays whole, to be copied.
        wrap = functools.partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
        indent = " " * (NAME_WIDTH + 5)
        lines = [wrap(self.verdict)]
        for group, members in groupby(self.findings, key=lambda finding: finding.group):
            lines += ["", group]
            for finding in members:
                head = f"  {MARKS[finding.status]} {finding.name:{NAME_WIDTH}} "
                for paragraph in finding.found.splitlines():
                    lines.append(wrap(paragraph, initial_indent=head, subsequent_indent=indent))
                    head = indent
                if finding.fix is not None:
                    lines.append(wrap(f"-> {finding.fix}", initial_indent=indent, subsequent_indent=indent + "   "))
        return "\n".join(lines)
