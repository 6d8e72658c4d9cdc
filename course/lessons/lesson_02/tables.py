"""Tables of lesson 02: capacity and Little's law."""

from collections.abc import Mapping, Sequence

from course.lab.display import Html, table_by_name
from course.lab.run import Run
from course.lab.style import number, seconds
from course.lessons.lesson_02.traffic import capacity, expected_wait, load_of, mean_wait
from course.lessons.lesson_02.visits import Visit, end_of, mean, queue_length, visits_of, waits

SAMPLES = 400


def capacity_note(run: Run) -> Html:
    """What one slot can do here."""
    words = (
        f"One question keeps the slot busy for {seconds(1 / capacity(run))}. So one slot serves "
        f"{number(capacity(run))} questions a second: that's its capacity, a load of 100%."
    )
    return Html(f"<p>{words}</p>", words)


def counted(visits: Sequence[Visit]) -> float:
    """Mean length of the queue, counted at equal intervals."""
    span = end_of(visits)
    return mean([queue_length(visits, (i + 0.5) / SAMPLES * span) for i in range(SAMPLES)])


def little(visits: Sequence[Visit]) -> float:
    """The same from Little's law: arrivals a second x mean wait."""
    return len(visits) / end_of(visits) * mean(waits(visits))


def little_table(runs: Mapping[str, Run]) -> Html:
    """Two ways to the length of the queue, and theory's wait for these very arrivals."""
    return table_by_name(
        "asked for",
        runs,
        {
            "arrivals/s (λ)": lambda run: f"{len(visits_of(run)) / end_of(visits_of(run)):.2f}",
            "mean wait (W)": lambda run: seconds(mean(waits(visits_of(run)))),
            "λ·W": lambda run: f"{little(visits_of(run)):.2f}",
            "queued, counted": lambda run: f"{counted(visits_of(run)):.2f}",
            "load it was": lambda run: f"{load_of(run):.0%}",
            "wait, service times": lambda run: f"{mean_wait(run):.2f}",
            "expected of these arrivals": lambda run: f"{expected_wait(run):.2f}",
        },
    )
