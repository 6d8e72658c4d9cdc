"""What lesson 13 shows: the list of drills, how statements are scored, and how the graders see sample answers."""

from course.drills.attempts import FILE
from course.drills.checks import CheckedItem, check
from course.drills.drill import FLUENT, LEVELS, SAMPLES, Commit, DrawnDrill
from course.drills.library import ALL
from course.drills.report import advice, history_picture
from course.drills.sitting import sit
from course.drills.statements import SURE, score
from course.drills.talk import talk_of
from course.lab.display import Html, table
from course.lab.predict import MeasuredAnswer
from course.lab.style import with_minus
from course.lab.svg import Picture

SURE_OF_ALL = "The one who is sure of all eight"
ADMITS = "The one who is fairly sure of six, and calls two a guess"
SAME = "Neither: six of eight is six of eight"
KNOWN = 6
"""Statements that both of them get right."""
APART = ("less than one point", "one to three", "more than three")
PARTS = {
    "dominant": "what dominates",
    "second": "the second problem",
    "number": "the number that is asked for",
    "fixes": "the ranking of fixes",
}


def drills_table() -> Html:
    """Number, minutes and how each begins; title and topic of those that were sat."""
    sat = {each.drill for each in FILE.read().done}
    rows = [
        (f"{n}", f"{d.minutes}", d.drawn().opening, d.tags if d.id in sat else "after you've sat it")
        for n, d in enumerate(ALL, 1)
    ]
    plain = "\n".join("  ".join(row) for row in rows)
    return Html(table(("drill", "minutes", "begins", "title and topic"), rows), plain)


def duel(drill: DrawnDrill) -> MeasuredAnswer:
    """Both get six of the eight statements right; one is sure of all, the other says which two are guesses."""
    right = [each.is_true for each in talk_of(drill).put()]
    said = [truth if place < KNOWN else not truth for place, truth in enumerate(right)]
    answers = {
        SURE_OF_ALL: [(agrees, SURE["sure"]) for agrees in said],
        ADMITS: [(agrees, SURE["fairly sure" if place < KNOWN else "guessing"]) for place, agrees in enumerate(said)],
    }
    scores = {name: score(sit(drill, statements=each).judged) for name, each in answers.items()}
    low, high = min(scores.values()), max(scores.values())
    winner = SAME if high - low < 0.01 else max(scores, key=lambda name: scores[name])
    return MeasuredAnswer(winner, "; ".join(f"{name}: {each:+.2f} a statement" for name, each in scores.items()))


def rule_table() -> Html:
    """What an answer earns when it's right and when it's wrong, and on average for one that is right so often."""
    rows = []
    for name, percent in SURE.items():
        right, wrong = 1 - 4 * (1 - percent / 100) ** 2, 1 - 4 * (percent / 100) ** 2
        means = (often * right + (1 - often) * wrong for often in (0.5, 0.65, 0.8, 0.95))
        rows.append((f"{name} ({percent}%)", *map(_points, (right, wrong, *means))))
    header = ("you say", "right", "wrong", *(f"right {often}% of the time" for often in (50, 65, 80, 95)))
    return Html(table(header, rows), "\n".join("  ".join(row) for row in rows))


def _points(value: float) -> str:
    """With its sign; what rounds to nothing has a plus."""
    return with_minus(f"{round(value, 2) + 0.0:+.2f}")


def right_menus(drill: DrawnDrill) -> Html:
    """The fluent answer, which is false, with the staff answer's commitments; then what it thinks of the statements."""
    commit = Commit.model_validate(drill.rubric.samples["staff"].model_dump(include=set(Commit.model_fields)))
    right = [each.is_true for each in talk_of(drill).put()]
    rows = []
    for says, answers in (
        ("no statement answered", []),
        ("agrees with all, and is sure", [(True, SURE["sure"])] * len(right)),
        ("knows the case, and is fairly sure", [(truth, SURE["fairly sure"]) for truth in right]),
    ):
        sitting = sit(drill, text=drill.answers[FLUENT], commit=commit, statements=answers)
        rows.append((says, sitting.headline, sitting.verdict.says))
    return Html(table(("statements", "shown", "verdict"), rows), "\n".join("  ".join(row) for row in rows))


def samples_table(drill: DrawnDrill) -> Html:
    """The five sample answers: what each committed to, and what it deserves by criterion."""
    graded = {name: _checked(drill, name) for name in SAMPLES}
    rows = [(label, *(f"{_share(graded[name], key):.0%}" for name in SAMPLES)) for key, label in PARTS.items()]
    rows += [(each.name, *(drill.grade_of(name, each.key) for name in SAMPLES)) for each in drill.rubric.criteria]
    header = ("", *(f"meant as {level}" for level in LEVELS), FLUENT)
    return Html(table(header, rows), "\n".join("  ".join(row) for row in rows))


def strong_to_staff(drill: DrawnDrill) -> MeasuredAnswer:
    """How many points of their commitments lie between the strong and the staff answer?"""
    strong, staff = (_checked(drill, level) for level in ("strong", "staff"))
    gap, most = sum(c.points for c in staff) - sum(c.points for c in strong), sum(c.most for c in staff)
    return MeasuredAnswer(APART[sum(gap >= least for least in (1, 3))], f"{gap:.1f} of {most:g} points")


def your_history() -> Picture:
    """All attempts on this machine."""
    return history_picture(FILE.read().done)


def what_next() -> Html:
    words = advice(FILE.read().done)
    return Html(f"<p>{words}</p>", words)


def _checked(drill: DrawnDrill, name: str) -> tuple[CheckedItem, ...]:
    """Without what would change their mind: the samples say that in prose."""
    return tuple(each for each in check(drill, drill.rubric.samples[name]) if each.key in PARTS)


def _share(found: tuple[CheckedItem, ...], key: str) -> float:
    return sum(each.points / each.most for each in found if each.key == key)
