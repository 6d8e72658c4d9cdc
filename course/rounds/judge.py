"""What can be computed of a sitting: points by a proper scoring rule, a level for each area, a verdict with reasons.

Who is p sure of being right gets 1 - 4 (1 - p)^2 points if they are, and 1 - 4 p^2 if not (the quadratic rule, Brier
1950, scaled so that an even chance is worth nothing). You expect most if you say what you believe: agreeing with
everything, surely, costs more than it earns wherever half of it is false. There is no total: areas stay apart, and the
argument in words is left to its author, who grades it against the columns of the rubric.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course.rounds.board import boxes_of
from course.rounds.prompt import AREAS, AskedNumber, Decision, DrawnRound, MenuDecision, Pushback, RoundStatement, Stage
from course.rounds.sitting import RoundSitting
from course.rounds.typed import is_near, read_amount

LEVELS = ("no hire yet", "junior", "mid", "senior", "staff")
SENIOR, STAFF = 3, 4
"""Places in LEVELS."""
LEAST = (0.10, 0.25, 0.45, 0.70)
"""Mean points of an area from which on it's at junior, mid, senior, staff. With one sure mistake among twelve it's
senior, with two mid."""
SECOND_TRY = 0.5
"""Points for the right reply after the interviewer came back once; two wrong ones cost as much."""


@dataclass(frozen=True)
class JudgedItem:
    """One thing that was judged."""

    area: str
    about: str
    points: float
    """1 at most."""
    right: bool | None
    """None = left open."""
    told: str
    """What is the case, and why."""


@dataclass(frozen=True)
class AreaResult:
    area: str
    items: Sequence[JudgedItem]

    @property
    def mean(self) -> float:
        return sum(each.points for each in self.items) / max(len(self.items), 1)

    @property
    def rank(self) -> int:
        """Its level's place in LEVELS."""
        return sum(self.mean >= least for least in LEAST)

    @property
    def level(self) -> str:
        return LEVELS[self.rank]

    @property
    def counted(self) -> str:
        """How many were right, wrong and left open."""
        right, wrong = (sum(each.right is which for each in self.items) for which in (True, False))
        left = len(self.items) - right - wrong
        return f"{right} right, {wrong} wrong" + (f", {left} left open" if left else "")


@dataclass(frozen=True)
class RoundVerdict:
    """A level, and what speaks for it and against the next."""

    areas: Sequence[AreaResult]

    @property
    def rank(self) -> int:
        """The highest level with no more weak spots than it allows: two areas below it at junior and mid, one at
        senior; at staff one as well, and that one at senior."""
        ranks = sorted(area.rank for area in self.areas)
        if ranks[1] == STAFF and ranks[0] >= SENIOR:
            return STAFF
        return SENIOR if ranks[1] >= SENIOR else min(ranks[2], SENIOR - 1)

    @property
    def level(self) -> str:
        return LEVELS[self.rank]

    @property
    def items(self) -> list[JudgedItem]:
        return [item for area in self.areas for item in area.items]

    def told(self) -> str:
        """The verdict in a sentence or two."""
        best = LEVELS[-1]
        hire = f"hire at {self.level}" if self.rank else self.level
        if self.level == best:
            below = [AREAS[each.area] for each in self.areas if each.level != best]
            return f"{hire}: every area is at staff" + (f", but for {below[0]}, one level below." if below else ".")
        above = LEVELS[self.rank + 1]
        held = [f"{AREAS[each.area]} ({each.level})" for each in self.areas if each.rank <= self.rank]
        needed = f"takes more in {', '.join(held)}"
        return f"{hire}, not at {above}, which {needed}." if self.rank else f"{hire}; {above} {needed}."

    def helped(self, count: int = 2) -> list[JudgedItem]:
        """What earned most, of what was worked out: asking for a fact is only where that begins."""
        worked_out = [each for each in self.items if each.right and each.area != "requirements"]
        return sorted(worked_out, key=lambda item: -item.points)[:count]

    def hurt(self, count: int = 2) -> list[JudgedItem]:
        """What cost most."""
        return [each for each in sorted(self.items, key=lambda item: item.points) if each.points < 0][:count]


def points(sure: float, right: bool | None) -> float:
    """By the quadratic rule.

    Args:
        sure: the probability that one gave to being right.
        right: None = nothing was said, which is worth what an even chance is: nothing.
    """
    return 0.0 if right is None else 1 - 4 * (1 - sure if right else sure) ** 2


def judge(sitting: RoundSitting) -> RoundVerdict:
    """All areas of a sitting; what was never reached counts as left open."""
    stages = {stage.key: stage for stage in sitting.drawn.round.stages}
    return RoundVerdict([AreaResult(area, _items(sitting, stages[area])) for area in AREAS])


def _items(sitting: RoundSitting, stage: Stage) -> list[JudgedItem]:
    own = {"requirements": _asked, "boxes": _board, "change": _fallen}.get(stage.key)
    return [
        *(own(sitting) if own else ()),
        *_commitments(sitting, stage),
        *_defended(sitting, stage),
        *_statements(sitting, stage),
    ]


def _asked(sitting: RoundSitting) -> list[JudgedItem]:
    """Useful facts that were asked for, and idle questions, each of which took the time of a useful one."""
    found = []
    for fact in sitting.drawn.round.facts:
        was_asked, told = fact.key in sitting.asked, sitting.drawn.fill(fact.says)
        if fact.use == "useful":
            told = f"{told} It bears on {fact.changes}."
            found.append(JudgedItem("requirements", fact.asks, float(was_asked), was_asked or None, told))
        elif was_asked:
            told += " That changes nothing here, and it cost the time of a question."
            found.append(JudgedItem("requirements", fact.asks, -1, False, told))
    return found


def _board(sitting: RoundSitting) -> list[JudgedItem]:
    drawn, edges = sitting.drawn, sitting.edges
    broken, extras = drawn.broken(edges), drawn.extras(edges)
    if not edges:
        return [JudgedItem("boxes", drawn.fill(e.says), 0, None, drawn.fill(e.because)) for e in drawn.round.rules]
    found = []
    for rule in drawn.round.rules:
        is_kept = rule not in broken
        # An arrow that isn't there breaks no rule: what is forbidden counts once something is built.
        is_earned = is_kept and (rule.kind in ("reach", "through") or {rule.start, rule.end} <= boxes_of(edges))
        found.append(JudgedItem("boxes", rule.says, 1.0 if is_earned else 0 if is_kept else -1, is_kept, rule.because))
    if any(each.extra for each in drawn.round.components):
        told = " ".join(f"{each.name}: {each.extra}" for each in extras) or "Each box has a requirement behind it."
        found.append(
            JudgedItem("boxes", "Nothing on the board that no requirement asks for.", 1 - len(extras), not extras, told)
        )
    return [JudgedItem(each.area, each.about, each.points, each.right, drawn.fill(each.told)) for each in found]


def _commitments(sitting: RoundSitting, stage: Stage) -> list[JudgedItem]:
    drawn, sure = sitting.drawn, sitting.sure.get(stage.key, 0.5)
    found = []
    for number in stage.numbers:
        right, told = sitting.is_right(stage, number.key), told_of_number(drawn, number)
        if right is False:
            told = " ".join([*_slips(sitting, stage, number), told])
        found.append(JudgedItem(stage.key, drawn.fill(number.asks), points(sure, right), right, told))
    for choice in stage.choices:
        right = sitting.is_right(stage, choice.key)
        told = told_of_choice(drawn, choice, sitting.commits.get(f"{stage.key}.{choice.key}", ""))
        found.append(JudgedItem(stage.key, drawn.fill(choice.asks), points(sure, right), right, told))
    return found


def _slips(sitting: RoundSitting, stage: Stage, number: AskedNumber) -> list[str]:
    """What a usual slip gives, if that is what was handed in."""
    drawn = sitting.drawn
    value = read_amount(sitting.commits[f"{stage.key}.{number.key}"], drawn.asked(number).unit)
    return [
        told_of_slip(drawn, name, slip)
        for name, slip in number.tempting.items()
        if is_near(value, drawn.numbers.amounts[name])
    ]


def _defended(sitting: RoundSitting, stage: Stage) -> list[JudgedItem]:
    pushback = sitting.pushed.get(stage.key) or sitting.pushback(stage)
    if pushback is None:
        return []
    drawn, replies = sitting.drawn, sitting.replies.get(stage.key, [])
    right = drawn.is_right(pushback, replies[-1]) if replies else None
    earned = 0.0 if right is None else (1 if right else -1) * (SECOND_TRY if len(replies) > 1 or not right else 1)
    return [JudgedItem(stage.key, drawn.fill(pushback.asks), earned, right, told_of_pushback(drawn, pushback))]


def _statements(sitting: RoundSitting, stage: Stage) -> list[JudgedItem]:
    drawn = sitting.drawn
    found = []
    for place, statement in enumerate(drawn.statements(stage)):
        believed = sitting.beliefs.get(f"{stage.key}.{place}")
        told, holds = told_of_statement(drawn, statement), drawn.is_true(statement)
        found.append(_believed(stage.key, drawn.fill(statement.says), believed, holds, told))
    return found


def _fallen(sitting: RoundSitting) -> list[JudgedItem]:
    drawn = sitting.drawn
    found = []
    for place, decision in enumerate(drawn.round.change.decisions):
        believed, told = sitting.beliefs.get(f"change.{place}"), told_of_decision(drawn, decision)
        found.append(_believed("change", drawn.fill(decision.says), believed, drawn.falls(decision), told))
    return found


def _believed(area: str, about: str, believed: float | None, truth: bool, told: str) -> JudgedItem:
    if believed is None or believed == 0.5:
        return JudgedItem(area, about, 0, None, told)
    right = (believed > 0.5) == truth
    return JudgedItem(area, about, points(max(believed, 1 - believed), right), right, told)


# ---------------------------------------------------------------- what is told of each thing: what is the case, and why


def told_of_number(drawn: DrawnRound, number: AskedNumber) -> str:
    return f"{drawn.asked(number)}. {drawn.fill(number.because)}"


def told_of_slip(drawn: DrawnRound, name: str, slip: str) -> str:
    return f"{drawn.numbers.amounts[name]} is what you get if {slip}."


def told_of_choice(drawn: DrawnRound, choice: MenuDecision, picked: str = "") -> str:
    """The options that fit; then why the picked one doesn't, if it doesn't."""
    fitting = [f"{_ended(each.says)} {each.because}" for each in choice.options if drawn.is_true(each)]
    wrong = [each for each in choice.options if each.key == picked and not drawn.is_true(each)]
    return drawn.fill(" ".join([*fitting, *(f"Not: {_ended(each.says)} {each.because}" for each in wrong)]))


def _ended(option: str) -> str:
    """An entry of a menu as a sentence: before another one it needs its full stop."""
    return option if option.endswith((".", "?", "!", ":")) else f"{option}."


def told_of_pushback(drawn: DrawnRound, pushback: Pushback) -> str:
    return drawn.fill(
        " ".join(f"{_ended(each.says)} {each.because}" for each in pushback.replies if drawn.is_true(each))
    )


def told_of_statement(drawn: DrawnRound, statement: RoundStatement) -> str:
    return ("True. " if drawn.is_true(statement) else "False. ") + drawn.fill(statement.because)


def told_of_decision(drawn: DrawnRound, decision: Decision) -> str:
    return ("It falls. " if drawn.falls(decision) else "It stands. ") + drawn.changed.fill(decision.because)
