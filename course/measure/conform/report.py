"""Verdicts as a table, as JSON, and as a badge."""

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from rich.console import Console
from rich.text import Text

from course.measure.conform.verdict import CheckOutcome, CheckVerdict
from minillm import __version__

STYLES = {
    CheckOutcome.PASS: "green",
    CheckOutcome.FAIL: "bold red",
    CheckOutcome.CRASH: "bold red",
    CheckOutcome.SKIPPED: "dim",
}
BADGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="220" height="20" role="img" aria-label="{label}: {title}">
<title>{label}: {title}</title>
<rect width="130" height="20" fill="#444"/><rect x="130" width="90" height="20" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="65" y="14">{label}</text><text x="175" y="14">{value}</text></g></svg>
"""


def show(verdict: CheckVerdict, console: Console) -> None:
    """One line for a check, and what someone would need to see it again below, where it isn't right."""
    console.print(Text(f"{verdict.outcome:8}", style=STYLES[verdict.outcome]) + Text(verdict.check))
    if verdict.outcome is CheckOutcome.PASS:
        return
    details = {"": verdict.about, "sent": verdict.sent, "expected": verdict.expected, "got": verdict.got}
    if verdict.outcome is CheckOutcome.SKIPPED:
        details = {"": verdict.got}
    elif verdict.seen:
        details["a public bug that this check finds"] = verdict.seen
    for name, text in details.items():
        if text:
            console.print(Text(f"        {name + ': ' if name else ''}{text}", style="dim"))


def summary(verdicts: Sequence[CheckVerdict]) -> str:
    """How many of each, in a line."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in CheckOutcome if counts[outcome])


def is_conforming(verdicts: Sequence[CheckVerdict]) -> bool:
    """Whether something passed and nothing failed. What isn't offered isn't wrong."""
    outcomes = {verdict.outcome for verdict in verdicts}
    return CheckOutcome.PASS in outcomes and outcomes <= {CheckOutcome.PASS, CheckOutcome.SKIPPED}


def as_json(subject: str, verdicts: Sequence[CheckVerdict]) -> dict[str, Any]:
    """One object: what was tried, by which version, the counts, and every verdict."""
    return {
        "minillm": __version__,
        "subject": subject,
        "conforms": is_conforming(verdicts),
        "counts": Counter(str(verdict.outcome) for verdict in verdicts),
        "verdicts": [verdict.as_json() for verdict in verdicts],
    }


def badge(verdicts: Sequence[CheckVerdict]) -> str:
    """An SVG for a README: how many checks passed of those that ran."""
    ran = [verdict for verdict in verdicts if verdict.outcome is not CheckOutcome.SKIPPED]
    passed = sum(verdict.outcome is CheckOutcome.PASS for verdict in ran)
    colour = "#2a7f3f" if is_conforming(verdicts) else "#b02a2a"
    value = f"{passed} of {len(ran)}"
    title = f"{value} checks passed, {len(verdicts) - len(ran)} skipped"
    return BADGE.format(label=escape("minillm conform"), value=value, title=title, colour=colour)
