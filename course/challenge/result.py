"""What a file scores: its ladder, where requests were lost, a line to share, and the check of somebody else's line."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course.challenge.baselines import RUNGS
from course.challenge.entry import Entry, EntryError
from course.challenge.ladder import NONE, Tally, ladder
from course.challenge.play import Played, RequestOutcome, play
from course.challenge.rounds import Round
from course.challenge.service import KINDS
from minillm.observe.tables import text_table

ROOT = Path(__file__).parents[2]
DECIDES = (
    *("minillm/core/*.py", "minillm/policies/*.py", "minillm/frontend/*.py", "minillm/runner/*.py"),
    *("minillm/observe/*.py", "course/challenge/*.py", "course/grading/*.py"),
    *("course/simulator/**/*.py", "course/simulator/**/*.json"),
)
"""Files that decide a score."""
YOURS = "yours"
LOSSES = ("not admitted", "refused in its queue", "first token late", "tokens too slow")
LINE_PARTS = 6
"""Parts of a line to share."""
BAR = 30
"""Characters of the ladder's longest bar."""


@dataclass(frozen=True)
class RoundScore:
    """A file's score in one round."""

    entry: Entry
    round: Round
    tally: Tally
    rungs: dict[str, Tally]
    """The ladder on the same seeds, lowest first."""
    lost: dict[str, Counter[str]]
    """By kind, how requests were lost. `in time` counts the others."""

    @property
    def best_beaten(self) -> str | None:
        """The highest rung below the score."""
        return next((name for name, tally in reversed(self.rungs.items()) if tally.in_time < self.tally.in_time), None)

    @property
    def line(self) -> str:
        """To share. It can be checked by anyone who has the file: see `differences`."""
        tally = self.tally
        above = f"above {self.best_beaten}" if self.best_beaten else "below every rung"
        return " | ".join(
            [
                f"minillm beat {self.round.name}",
                f"{tally.goodput:.3f} requests/s in time ({tally.in_time} of {tally.requests})",
                above,
                f"{self.entry.num_lines} lines",
                f"file {self.entry.fingerprint}",
                f"rules {rules_fingerprint()}",
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        tallies = {**self.rungs, YOURS: self.tally}
        return {
            "round": self.round.name,
            "seeds": list(self.round.seeds),
            "goodput": self.tally.goodput,
            "share": self.tally.share,
            "lost": {kind: dict(found) for kind, found in self.lost.items()},
            "ladder": {name: {**asdict(tally), "goodput": tally.goodput} for name, tally in tallies.items()},
            "above": self.best_beaten,
            "lines": self.entry.num_lines,
            "line": self.line,
        }

    def __str__(self) -> str:
        about = {rung.name: rung.about for rung in RUNGS} | {YOURS: self.entry.path}
        order = sorted({**self.rungs, YOURS: self.tally}.items(), key=lambda pair: (-pair[1].in_time, pair[0] != YOURS))
        most = max(tally.in_time for _, tally in order)
        rungs = []
        for name, tally in order:
            bar, mark = "#" * round(BAR * tally.in_time / max(most, 1)), ">" if name == YOURS else ""
            rungs.append(f"{mark:1} {name:14} {tally.goodput:7.3f}/s {tally.share:6.1%}  {bar:{BAR}}  {about[name]}")
        columns = ("in time", *LOSSES)
        kinds = [[kind, *(str(found[column]) for column in columns)] for kind, found in self.lost.items()]
        return "\n".join(
            [
                f"{self.round.name}, seeds {', '.join(map(str, self.round.seeds))}: requests a second in time, of all",
                "",
                *rungs,
                "",
                text_table(["your requests", *columns], kinds),
                "",
                self.line,
            ]
        )


def score(entry: Entry, chosen: Round) -> RoundScore:
    """Play a round's traces under a contestant's policies.

    Raises:
        EntryError: the file fails, or breaks a rule on the way.
    """
    played = []
    for seed in chosen.seeds:
        with entry.opened() as contestant:
            played.append(play(seed, contestant))
    tally = sum((Tally(each.in_time, len(each.outcomes)) for each in played), start=NONE)
    return RoundScore(entry, chosen, tally, ladder(chosen.seeds), losses(played))


def losses(played: Sequence[Played]) -> dict[str, Counter[str]]:
    """How many requests of each kind were in time, and how the others were lost."""
    found: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for each in played:
        for outcome in each.outcomes:
            found[outcome.request.kind][how(outcome)] += 1
    return found


def how(outcome: RequestOutcome) -> str:
    """`in time`, or what it failed on first."""
    if outcome.in_time:
        return "in time"
    if outcome.replica is None:
        return LOSSES[0]
    timeline = outcome.reply.timeline if outcome.reply else None
    if timeline is None or timeline.ttft is None:
        return LOSSES[1]
    return LOSSES[2] if timeline.ttft > outcome.request.ttft_limit_s else LOSSES[3]


def rules_fingerprint() -> str:
    """Names every file that decides a score. Two copies of the same version have the same, whoever touched neither."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in DECIDES for file in ROOT.glob(pattern)):
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(file.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()[:12]


def differences(line: str, result: RoundScore) -> list[str]:
    """What a line to share says that doesn't come out here. Empty: it holds."""
    theirs, ours = parts_of(line), result.line.split(" | ")
    return [f"it says {said!r}; here it is {found!r}" for said, found in zip(theirs, ours) if said != found]


def round_of(line: str) -> str:
    """The name of the round that a line is about. Raises EntryError: it's no such line."""
    return parts_of(line)[0].removeprefix("minillm beat ").strip()


def parts_of(line: str) -> list[str]:
    """What a line to share says, part by part. Raises EntryError: it's no such line."""
    parts = [part.strip() for part in line.split("|")]
    if len(parts) != LINE_PARTS or not parts[0].startswith("minillm beat "):
        raise EntryError(f"a line to share begins with 'minillm beat' and has {LINE_PARTS} parts, not {line[:200]!r}")
    return parts
