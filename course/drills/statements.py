"""Eight statements on the table: agree or disagree, and how sure. A proper rule scores them, so bluffing costs."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from course.drills.talk import PUT, DrawnStatement
from minillm.core.errors import MinillmError

JUDGES = (
    "Can tell: whether you know what is true of this case, and know what you don't know. For each statement you get "
    "1 - 4 (p - truth)², where p is how likely you call it: +1 for sure and right, 0 for a coin's toss, "
    "-2.6 for sure and wrong, and on average the most by saying exactly how sure you are."
)
ASSUMED = (
    "Where nobody has given a figure, the data sheet's holds: all of a card's memory, its peak bandwidth and FLOP/s, "
    "and means without their spread."
)
RULE = (
    "Some are true of this case, some aren't. Say how sure you are, and mean it: sure and right is +1, a guess is 0, "
    f"sure and wrong is −2.6. Leave out what you'd have to guess. {ASSUMED}"
)
"""What is said above the statements."""
SURE = {"guessing": 50, "leaning": 65, "fairly sure": 80, "sure": 95}
"""How sure one can be, in percent."""
WORST = 1 - 4 * 0.95**2
_WRITTEN = re.compile(r"(agree|disagree|true|false|yes|no)(?:[ :,=]+(.+))?", re.IGNORECASE)
_AGREES = ("agree", "true", "yes")


class StatementError(MinillmError):
    """An answer to a statement can't be read, or there is no such statement."""


@dataclass(frozen=True)
class StatementAnswer:
    """Agree or disagree, and how sure."""

    agrees: bool
    sure: int
    """Percent, 50 to 95."""

    def __str__(self) -> str:
        return f"{'agree' if self.agrees else 'disagree'}, {self.sure}%"


@dataclass(frozen=True)
class JudgedStatement:
    """One statement, what was answered, and what that is worth."""

    place: int
    """On the table, from 1."""
    claim: DrawnStatement
    answer: StatementAnswer | None
    is_disputed: bool = False

    @property
    def is_right(self) -> bool:
        """Agreed with what is true, or disagreed with what isn't; a guess is neither."""
        return self.answer is not None and self.answer.sure > 50 and self.answer.agrees is self.claim.is_true

    @property
    def is_wrong(self) -> bool:
        return self.answer is not None and self.answer.sure > 50 and self.answer.agrees is not self.claim.is_true

    @property
    def is_open(self) -> bool:
        """Left out, or a guess."""
        return self.answer is None or self.answer.sure == SURE["guessing"]

    @property
    def points(self) -> float:
        """WORST to 1 by Brier's rule; without an answer, or disputed, 0: what a coin's toss gets."""
        if self.answer is None or self.is_disputed:
            return 0.0
        likely = self.answer.sure / 100
        off = 1 - likely if self.answer.agrees is self.claim.is_true else likely
        return 1 - 4 * off**2

    @property
    def says(self) -> str:
        """One line: the statement, what was answered, and why it is so."""
        source = f" ({self.claim.source})" if self.claim.source else ""
        answered = f"you: {self.answer}" if self.answer else "not answered"
        disputed = "; disputed, so it costs nothing" if self.is_disputed else ""
        truth = "True" if self.claim.is_true else "False"
        return f"{self.place}. {self.claim.says} {truth}; {answered}{disputed}. {self.claim.because}{source}"


def read_answers(written: Mapping[int, object] | Sequence[object], put: int) -> dict[int, StatementAnswer]:
    """Answers by place on the table, from 1.

    Args:
        written: of each, an Answer, text such as "agree 80" or "disagree, fairly sure", or a pair of the two; a
            sequence has them in order. None or "" = not answered.
        put: statements on the table.
    Raises:
        StatementError: one can't be read; the words say which.
    """
    by_place = written if isinstance(written, Mapping) else dict(enumerate(written, 1))
    found = {}
    for place, each in by_place.items():
        if not isinstance(place, int) or not 1 <= place <= put:
            raise StatementError(f"there is no statement {place}: {put} are on the table, counted from 1")
        if each is not None and each != "":
            found[place] = _read(place, each)
    return found


def _read(place: int, written: object) -> StatementAnswer:
    if isinstance(written, StatementAnswer):
        return _within(place, written.agrees, written.sure)
    if isinstance(written, bool):
        return StatementAnswer(written, SURE["fairly sure"])
    parts = written if isinstance(written, list | tuple) else [written]
    if len(parts) == 2 and isinstance(parts[0], bool):
        parts = ["agree" if parts[0] else "disagree", parts[1]]
    found = _WRITTEN.fullmatch(" ".join(map(str, parts)).strip())
    if found is None:
        raise StatementError(f"statement {place}: {written!r} is not such as 'agree 80' or 'disagree, sure'")
    agrees, sure = found.group(1).lower() in _AGREES, (found.group(2) or "fairly sure").strip().lower().rstrip("%")
    if sure in SURE:
        return StatementAnswer(agrees, SURE[sure])
    try:
        value = float(sure)
    except ValueError:
        raise StatementError(f"statement {place}: how sure is {sure!r}? Say {', '.join(SURE)}, or 50 to 95") from None
    return _within(place, agrees, value * 100 if value <= 1 else value)


def _within(place: int, agrees: bool, sure: float) -> StatementAnswer:
    """More than 95 is read as 95: nobody is surer than that, and no answer may lose everything."""
    if not 50 <= sure <= 100:
        raise StatementError(f"statement {place}: {sure:g} is not between 50 and 95 percent")
    return StatementAnswer(agrees, min(round(sure), SURE["sure"]))


def judged(
    put: Sequence[DrawnStatement], answers: Mapping[int, StatementAnswer], disputed: Collection[int] = ()
) -> tuple[JudgedStatement, ...]:
    """Every statement on the table, in order."""
    return tuple(
        JudgedStatement(place, claim, answers.get(place), place in disputed) for place, claim in enumerate(put, 1)
    )


def score(found: Sequence[JudgedStatement]) -> float:
    """The mean of their points: 1 = all sure and right, 0 = chance, below = worse than chance."""
    return sum(each.points for each in found) / max(len(found), PUT)
