"""Pictures of lesson 10b: what round trips take, and a reader at work."""

import math
from collections.abc import Sequence

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, slider
from course.lab.pictures.chart import Axis, Curve, draw_chart
from course.lab.style import COLOURS, seconds
from course.lab.svg import Picture
from course.lessons.lesson_10b.run import ReceivedAnswer, Trip, network_share


def trips_table(found: Sequence[Trip]) -> Html:
    """A row a measurement: the round trips before the first token, and what they take of its time."""
    rows = [
        (
            f"round trip {seconds(each.rtt_s)}, {each.connection}",
            str(each.round_trips),
            seconds(each.network),
            seconds(each.ttft),
            f"{network_share(each):.0%}",
            seconds(each.itl),
        )
        for each in found
    ]
    return as_table(("client", "round trips", "network time", "TTFT", "network's share", "ITL"), rows)


def reading(forms: dict[str, ReceivedAnswer]) -> Explorer:
    """What is there to be read, and what has been read; with a slider for the reader, up to twice the engine's pace."""
    fastest = max(1000, 100 * math.ceil(forms["streamed"].engine_pace / 50))
    return Explorer(
        lambda words_per_minute: draw_reading(forms, words_per_minute),
        words_per_minute=slider("words a minute", 100, fastest, 240, 20),
    )


def draw_reading(forms: dict[str, ReceivedAnswer], words_per_minute: float) -> Picture:
    """Lines: text that has come. Dashes: text that has been read."""
    curves, told, ends = [], [], []
    for colour, (name, answer) in zip(COLOURS, forms.items()):
        per_token = answer.words / len(answer.arrivals)
        words = [per_token * (i + 1) for i in range(len(answer.arrivals))]
        done = answer.read(words_per_minute)
        there = (0.0, *answer.arrivals), (0.0, *words)
        if answer.arrivals[0] == answer.arrivals[-1]:
            there = (0.0, answer.arrivals[0], answer.arrivals[0]), (0.0, 0.0, words[-1])
        curves.append(Curve(f"{name}: there", *there, colour=colour))
        curves.append(Curve(f"{name}: read", (answer.arrivals[0], *done), (0.0, *words), "dashes", colour))
        ends.append((answer.arrivals[0], done[-1]))
        told.append(f"{name}: begins at {seconds(answer.arrivals[0])}, has read it at {seconds(done[-1])}")
    paces = (
        f"the reader's pace: {words_per_minute:g} words a minute; the engine's: {forms['streamed'].engine_pace:,.0f}"
    )
    return draw_chart(
        _sooner(*ends),
        curves,
        Axis(f"seconds since asking ({paces})", low=0),
        Axis("words", low=0),
        height=290,
        description=f"At {words_per_minute} words a minute. {'; '.join(told)}.",
    )


def _sooner(streamed: tuple[float, float], whole: tuple[float, float]) -> str:
    """How much sooner reading begins and is done. Of each: (begins, done), seconds."""
    gains = [(name, b - a) for name, a, b in zip(("begins", "done"), streamed, whole)]
    told = ", ".join(f"{name} {seconds(abs(gain))} {'sooner' if gain >= 0 else 'later'}" for name, gain in gains)
    return f"Streamed, the reader {told.replace(', done', ', and is done')}"
