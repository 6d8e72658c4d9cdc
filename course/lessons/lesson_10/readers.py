"""A reader who reads at their own pace, while the answer is written."""

import math
from dataclasses import dataclass

from course.lab.explorer import Explorer, slider
from course.lab.http_client import Heard, ask
from course.lab.pictures.chart import Axis, Curve, draw_chart
from course.lab.server import LabServer
from course.lab.style import COLOURS, seconds
from course.lab.svg import Picture
from course.lessons.lesson_10 import traffic
from minillm.core.brief import brief


@dataclass(frozen=True)
class Answer:
    """One answer as it came, streamed or whole. Seconds since it was asked for."""

    arrivals: tuple[float, ...]
    """By token; of a whole answer, all the same."""
    words: int

    __repr__ = brief

    @property
    def engine_pace(self) -> float:
        """Words a minute at which a streamed answer was written."""
        return 60 * self.words / max(self.arrivals[-1] - self.arrivals[0], 1e-3)

    def read(self, words_per_minute: float) -> list[float]:
        """When a reader has read each token: not before it is there, and not faster than they read."""
        pace, done, moments = 60 / words_per_minute * self.words / len(self.arrivals), 0.0, []
        for there in self.arrivals:
            done = max(done, there) + pace
            moments.append(done)
        return moments


def both_forms(server: LabServer) -> dict[str, Answer]:
    """The same answer from the same server, by turns streamed and whole; of each, the one of median length."""
    tokens, heard = traffic.num_tokens(server.lab), {True: [], False: []}
    for stream in (True, False) * (ROUNDS if server.lab.scale == 1 else 1):
        heard[stream].append(ask(server.port, traffic.PROMPT, tokens, stream=stream))
    streamed, whole = (_middle(heard[stream]) for stream in (True, False))
    words = max(len(streamed.text.split()), 1)
    arrivals = tuple(moment - streamed.sent for moment in streamed.arrivals)
    return {"streamed": Answer(arrivals, words), "whole": Answer((whole.ended - whole.sent,) * len(arrivals), words)}


ROUNDS = 5
"""An odd number: one of them is in the middle."""


def _middle(heard: list[Heard]) -> Heard:
    """The one whose time is the median: hiccups of the machine are at the ends."""
    return sorted(heard, key=lambda each: each.ended - each.sent)[len(heard) // 2]


def reading(forms: dict[str, Answer]) -> Explorer:
    """What is there to be read, and what has been read; with a slider for the reader, up to twice the engine's pace."""
    fastest = max(1000, 100 * math.ceil(forms["streamed"].engine_pace / 50))
    return Explorer(
        lambda words_per_minute: draw_reading(forms, words_per_minute),
        words_per_minute=slider("words a minute", 100, fastest, 240, 20),
    )


def draw_reading(forms: dict[str, Answer], words_per_minute: float) -> Picture:
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
    paces = f"the reader's pace: {words_per_minute:g} words a minute; the engine's: {forms['streamed'].engine_pace:.0f}"
    return draw_chart(
        _sooner(*ends), curves, Axis(f"seconds since asking ({paces})", low=0), Axis("words", low=0), height=290,
        description=f"At {words_per_minute} words a minute. {'; '.join(told)}.",
    )  # fmt: skip


def _sooner(streamed: tuple[float, float], whole: tuple[float, float]) -> str:
    """Of each, when reading begins and when it is done."""
    gains = [(name, b - a) for name, a, b in zip(("begins", "done"), streamed, whole)]
    told = ", ".join(f"{name} {seconds(abs(gain))} {'sooner' if gain >= 0 else 'later'}" for name, gain in gains)
    return f"Streamed, the reader {told.replace(', done', ', and is done')}"
