"""What in a prompt keeps the prefix cache from finding it?

lint([prompt])            one prompt: guesses, by what things look like
lint([prompt, prompt])    several of the same service: what really differs, and what stands behind it, lost
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from course.lab.display import Html, as_table

LOOKS: dict[str, re.Pattern[str]] = {
    "time": re.compile(r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}:\d{2}(:\d{2})?\b|\b1[67]\d{8}\b"),
    "id": re.compile(
        r"\b(session|request|trace|conversation)\b.{0,12}\b\w*\d\w*|\b[0-9a-f]{8}(-[0-9a-f]{4}){0,3}", re.I
    ),
    "user": re.compile(r"^\W*(user|customer|name|account)\b", re.I),
}
ADVICE = {
    "time": "move it after everything that is shared, or make it coarser: the day, not the second",
    "id": "leave it out (the model doesn't need it), or move it to the end",
    "user": "move it after what all users share",
    "tools": "give tools and their keys one fixed order: sort by name, and write JSON with sort_keys=True",
    "text": "move it behind the text that more requests share",
}


@dataclass(frozen=True)
class LintFinding:
    """One line, or a run of lines, that breaks the chain."""

    line: int
    """Line of the first prompt, from 1."""
    kind: str
    """time, id, user, tools, or text."""
    excerpt: str
    differs: float | None
    """Share of the other prompts in which it is not the same; None = there was nothing to compare with."""
    stranded: int
    """Shared tokens that it hides: those behind it, and of tools in another order their own."""

    @property
    def advice(self) -> str:
        return ADVICE[self.kind]


def lint(prompts: Sequence[str], count_tokens: Callable[[str], int] = lambda text: len(text) // 4) -> list[LintFinding]:
    """What breaks the chain, first line first. The first finding decides: nothing behind it is found.

    Args:
        prompts: one service's, as sent. One is looked at for suspects; several are compared with the first.
        count_tokens: tokens of a text; the default takes four letters for a token.
    """
    lines = prompts[0].splitlines()
    kinds = [kind_of(each) for each in lines]
    if len(prompts) == 1:
        differs = [float(kind != "text") for kind in kinds]
        broken = [kind != "text" for kind in kinds]
    else:
        differs = _differences(lines, [prompt.splitlines() for prompt in prompts[1:]])
        broken = [share > 0 for share in differs]
    tokens = [count_tokens(each) for each in lines]
    findings: list[LintFinding] = []
    for i, line in enumerate(lines):
        goes_on = i > 0 and broken[i - 1] and kinds[i - 1] == kinds[i] == "text"
        if broken[i] and line.strip() and not goes_on:
            stranded = _stranded(tokens, differs, i) + (tokens[i] if kinds[i] == "tools" else 0)
            share = None if len(prompts) == 1 else differs[i]
            if stranded:
                findings.append(LintFinding(i + 1, kinds[i], line.strip()[:60], share, stranded))
    return findings


def _stranded(tokens: Sequence[int], differs: Sequence[float], line: int) -> int:
    """Tokens behind a line that change less often than it does, as far as other prompts have them."""
    behind = zip(tokens[line + 1 :], differs[line + 1 :])
    return round(sum(count * (1 - share) for count, share in behind if share < differs[line]))


def kind_of(line: str) -> str:
    """What a line looks like."""
    if has_loose_order(line):
        return "tools"
    return next((kind for kind, look in LOOKS.items() if look.search(line)), "text")


def has_loose_order(line: str) -> bool:
    """Whether a line ends in JSON whose keys, or whose objects' names, are not in sorted order."""
    start = min((at for at in (line.find("["), line.find("{")) if at >= 0), default=-1)
    if start < 0:
        return False
    try:
        data = json.loads(line[start:])
    except ValueError:
        return False
    return json.dumps(data) != json.dumps(in_order(data))


def in_order(data: object) -> object:
    """JSON data with sorted keys, and lists of named objects sorted by name."""
    if isinstance(data, dict):
        return {key: in_order(data[key]) for key in sorted(data)}
    if isinstance(data, list):
        inside = [in_order(each) for each in data]
        named = all(isinstance(each, dict) and "name" in each for each in inside)
        return sorted(inside, key=lambda each: str(each["name"])) if named else inside
    return data


def _differences(lines: list[str], others: list[list[str]]) -> list[float]:
    """For each line, the share of the other prompts that do not have it in its place."""
    missing = [0] * len(lines)
    for other in others:
        kept = set()
        for match in SequenceMatcher(None, lines, other, autojunk=False).get_matching_blocks():
            kept |= set(range(match.a, match.a + match.size))
        for i in range(len(lines)):
            missing[i] += i not in kept
    return [count / len(others) for count in missing]


def findings_table(findings: Sequence[LintFinding]) -> Html:
    """The findings as a table; says so when there are none."""
    if not findings:
        return as_table(("the linter", ""), [("nothing found", "what changes comes after what is shared")])
    rows = []
    for rank, found in enumerate(findings):
        differs = "could change" if found.differs is None else f"differs in {found.differs:.0%}"
        first = "◀ breaks the chain" if rank == 0 else ""
        lost = f"{found.stranded} {first}".strip()
        rows.append((f"line {found.line}: {found.kind}", found.excerpt[:34], differs, lost, found.advice))
    return as_table(("what", "it reads", "other prompts", "tokens it hides", "what to do"), rows)
