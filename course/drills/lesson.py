"""What lesson 13 shows: the list of drills, and how the graders see answers."""

from course.drills import checks
from course.drills.attempts import FILE
from course.drills.drill import FLUENT, LEVELS, SAMPLES, Commit, DrawnDrill
from course.drills.library import ALL
from course.drills.report import advice, history_picture
from course.drills.sitting import Sitting
from course.lab.display import Html, table
from course.lab.predict import MeasuredAnswer
from course.lab.svg import Picture

QUICK = "A short answer with two sums"
STUFFED = "A long one with every right word"
PADDING = (
    "Queue, prefill, first token, decode and stream all matter, and so do TTFT p99 and ITL p99. ",
    "Continuous batching, quantization, speculative decoding, chunked prefill, prefix caching, GQA, paged attention, "
    "tensor parallelism, routing, autoscaling and admission control should be considered. ",
    "Steady state and spikes, cost, quality, canary and rollback are important. ",
)
APART = ("less than one point", "one to three", "more than three")
PARTS = {
    "dominant": "what dominates",
    "second": "the second problem",
    "number": "the number that is asked for",
    "fixes": "the ranking of fixes",
    "numbers": "numbers of its own",
}


def drills_table() -> Html:
    """Id, minutes, title and what each practises."""
    rows = [(drill.id, f"{drill.minutes}", drill.title, drill.phases) for drill in ALL]
    plain = "\n".join("  ".join(row) for row in rows)
    return Html(table(("drill", "minutes", "title", "practises"), rows), plain)


def short_answer(drill: DrawnDrill) -> str:
    """The core of "p99-8s" in two sentences."""
    n = drill.numbers.by_name
    return (
        f"With tokens 20 ms apart, 0.02 s x {n['output']:n} = {n['smooth']}, so the first took {n['slow_ttft']}; with "
        f"a quick first token it's {n['slow_itl']} a token. So I'd ask for TTFT p99 and ITL p99 before anything else."
    )


def duel(drill: DrawnDrill) -> tuple[MeasuredAnswer, Html]:
    """Which of the two has more points from what is computed, both committed to the same?"""
    texts = {QUICK: short_answer(drill), STUFFED: "".join(PADDING) * 5}
    sittings = {name: Sitting(drill, text, Commit(dominant="measurement")) for name, text in texts.items()}
    winner = max(sittings, key=lambda name: checks.share(sittings[name].checks))
    told = "; ".join(f"{name}: {each.computed}" for name, each in sittings.items())
    return MeasuredAnswer(winner, told), Html("".join(each.html() for each in sittings.values()), told)


def samples_table(drill: DrawnDrill) -> Html:
    """The five sample answers: what is computed of each, and what it deserves by criterion."""
    graded = {name: _checked(drill, name) for name in SAMPLES}
    rows = [(label, *(f"{_share(graded[name], key):.0%}" for name in SAMPLES)) for key, label in PARTS.items()]
    rows.append(("false or contradictory", *(f"{sum(not c.most for c in graded[name])}" for name in SAMPLES)))
    rows += [(each.name, *(drill.grade_of(name, each.key) for name in SAMPLES)) for each in drill.rubric.criteria]
    header = ("", *(f"meant as {level}" for level in LEVELS), FLUENT)
    return Html(table(header, rows), "\n".join("  ".join(row) for row in rows))


def strong_to_staff(drill: DrawnDrill) -> MeasuredAnswer:
    """How many of the points that can be computed lie between the strong and the staff answer?"""
    strong, staff = (_checked(drill, level) for level in ("strong", "staff"))
    gap, most = sum(c.points for c in staff) - sum(c.points for c in strong), sum(c.most for c in staff)
    return MeasuredAnswer(APART[sum(gap >= least for least in (1, 3))], f"{gap:.1f} of {most:g} points")


def your_history() -> Picture:
    """All attempts on this machine."""
    return history_picture(FILE.read().done)


def what_next() -> Html:
    words = advice(FILE.read().done)
    return Html(f"<p>{words}</p>", words)


def _checked(drill: DrawnDrill, name: str) -> tuple[checks.CheckedItem, ...]:
    return checks.check(drill, drill.answers[name], drill.rubric.samples[name])


def _share(found: tuple[checks.CheckedItem, ...], key: str) -> float:
    return sum(each.points / each.most for each in found if each.key == key)
