"""What lesson 13 shows: the list of drills, and how the rules see the answers."""

from course.lab.display import Html, table
from course.lab.drills.attempts import FILE
from course.lab.drills.drill import DIMENSIONS, LEVELS, DrawnDrill
from course.lab.drills.grade import Grade, grade
from course.lab.drills.library import ALL
from course.lab.drills.report import advice, history_picture
from course.lab.predict import Outcome
from course.lab.svg import Picture

QUICK = "A short answer with two sums"
STUFFED = "A long one with every right word"
PADDING = (
    "Queue, prefill, first token, decode and stream all matter, and so do TTFT p99 and ITL p99. ",
    "Continuous batching, quantization, speculative decoding, chunked prefill, prefix caching, GQA, paged attention, "
    "tensor parallelism, routing, autoscaling and admission control should be considered. ",
    "Steady state and spikes, cost, quality, canary and rollback are important. ",
)


def drills_table() -> Html:
    """Id, minutes, title and what each practises."""
    rows = [(drill.id, f"{drill.minutes}", drill.title, drill.phases) for drill in ALL]
    plain = "\n".join("  ".join(row) for row in rows)
    return Html(table(("drill", "minutes", "title", "practises"), rows), plain)


def short_answer(drill: DrawnDrill) -> str:
    """The flagship's core in a few sentences."""
    n = {**drill.numbers.given, **drill.numbers.derived}
    return (
        f"Decoding is {n['itl']} x {n['output']:n} = {n['decode']} of the wait; TTFT of {n['ttft']} is queue or "
        "prefill, and queue wait would separate them. The prompts ask for "
        f"{n['servers']} what two A100s can compute, so this is no single server. First admission control and chunked "
        "prefill (queue, prefill), which cuts TTFT for free. If TTFT is still high after that, prefix caching "
        "(prefill). What is queue wait p99? If it is low, prefix caching goes first."
    )


def stuffed_answer() -> str:
    """Every right word, several times."""
    return "".join(PADDING) * 5


def duel(drill: DrawnDrill) -> tuple[Outcome, Html]:
    """Which of the two scores higher: the short answer, or the long one that is stuffed?"""
    grades = {QUICK: grade(drill, short_answer(drill)), STUFFED: grade(drill, stuffed_answer())}
    winner = max(grades, key=lambda name: grades[name].points)
    told = "; ".join(f"{name}: {each.level} ({each.points:.0%})" for name, each in grades.items())
    return Outcome(winner, told), Html("".join(each.html() for each in grades.values()), told)


def levels_table(drill: DrawnDrill) -> Html:
    """The four model answers, dimension by dimension."""
    grades = [grade(drill, drill.answers[level]) for level in LEVELS]
    keys = [each.key for each in grades[0].dimensions]
    rows = [(DIMENSIONS[key], *(_cell(each, key) for each in grades)) for key in keys]
    rows.append(("all in all", *(f"{each.level} ({each.points:.0%})" for each in grades)))
    header = ("dimension", *(f"answer meant as {level}" for level in LEVELS))
    return Html(table(header, rows), "\n".join("  ".join(row) for row in rows))


def _cell(graded: Grade, key: str) -> str:
    return graded.dimension(key).level


def biggest_step(drill: DrawnDrill) -> Outcome:
    """The dimension in which the staff answer is furthest above the passing one."""
    passing, staff = (grade(drill, drill.answers[level]) for level in ("passing", "staff"))
    gaps = {each.key: each.points - passing.dimension(each.key).points for each in staff.dimensions}
    widest = max(gaps, key=gaps.get)
    told = ", ".join(f"{DIMENSIONS[key]} {gap:+.0%}" for key, gap in sorted(gaps.items(), key=lambda item: -item[1]))
    return Outcome(DIMENSIONS[widest], told)


def your_history() -> Picture:
    """All attempts on this machine."""
    return history_picture(FILE.read().done)


def what_next() -> Html:
    words = advice(FILE.read().done)
    return Html(f"<p>{words}</p>", words)
