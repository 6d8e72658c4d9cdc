"""Pictures and tables of lesson 10c."""

from collections.abc import Mapping, Sequence

from course.lab.display import Html, as_table, table_by_name
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_panels
from course.lab.style import seconds, with_minus
from course.lab.svg import Picture
from course.lessons.lesson_10c.run import GATEWAY, AbandonedAnswer, ClientFault, CrowdOfReaders
from course.lessons.lesson_10c.simulated import Series, Storm


def draw_leaving(found: Mapping[str, AbandonedAnswer]) -> Picture:
    """KV blocks held, step by step, until they are free again; the line is where the reader left, what lies behind
    is wasted."""
    panels, most = [], max(step.kv_blocks_used for each in found.values() for step in each.steps)
    for name, each in found.items():
        holding = [step for step in each.steps if step.kv_blocks_used]
        moments = [step.end - each.heard.sent for step in holding]
        blocks = [step.kv_blocks_used for step in holding]
        held = Curve(name, [*moments, moments[-1]], [*blocks, 0])
        words = f"{name}: the client leaves after {len(each.heard.arrivals)} tokens"
        marks = [Mark(words, x=each.heard.ended - each.heard.sent)]
        panels.append(Panel([held], Axis("KV blocks", low=0, high=1.4 * most), marks, height=100))
    told = " ".join(
        f"{name}: {each.written} of {each.heard.asked} tokens generated, blocks back {seconds(each.kv_back)} "
        f"after the client left, logged as {each.outcome}."
        for name, each in found.items()
    )
    x = Axis("seconds since the request was sent", low=0)
    return draw_panels("The client leaves. Does the engine stop?", panels, x, description=told)


def crowds_table(found: Mapping[tuple[str, str], CrowdOfReaders]) -> Html:
    """What noticing saves, in tokens, in the engine's steps and in its time."""
    rows = []
    for (room, name), each in found.items():
        base = found[room, GATEWAY]
        saved = ("–",) * 3
        if each is not base:
            shares = each.tokens_saved(base), each.steps_saved(base), each.time_saved(base)
            saved = tuple(with_minus(f"{share:.0%}") for share in shares)
        counts = f"{each.written} of {each.asked}", str(each.steps), seconds(each.seconds)
        rows.append((room, name, *(cell for pair in zip(counts, saved) for cell in pair)))
    heads = ("tokens generated", "tokens saved, prompts counted", "steps", "steps saved", "engine time", "time saved")
    return as_table(("server", "connection", *heads), rows)


def faults_table(found: Sequence[ClientFault]) -> Html:
    return table_by_name(
        "what is sent",
        {each.name: each for each in found},
        {
            "response": lambda each: each.answer,
            "verdict": lambda each: "as intended" if each.is_typed else "not as intended",
            "a neighbour's answer": lambda each: "whole" if each.neighbour_ok else "harmed",
            "KV blocks left": lambda each: str(each.blocks_left),
        },
    )


def storms_table(storms: Mapping[str, Storm], head: str = "clients") -> Html:
    return table_by_name(
        head,
        storms,
        {
            "attempts per request": lambda each: f"{each.attempts_per_request:.2f}",
            "answered, of the requests due after the spike": lambda each: f"{each.goodput_after:.0%}",
        },
    )


SERIES: dict[Series, str] = {"offered": "attempts", "due": "users' requests", "good": "good answers"}


def draw_storms(storms: Mapping[str, Storm], title: str, bin_s: float = 1.0) -> Picture:
    """For each policy, over time: requests that users made, attempts that were sent, good answers."""
    ends = next(iter(storms.values())).spike
    highest = 1.1 * max(max(each.per_second("offered", bin_s).values()) for each in storms.values())
    panels = []
    for name, storm in storms.items():
        rates = {series: storm.per_second(series, bin_s) for series in ("offered", "due", "good")}
        curves = [
            Curve(words, [moment + bin_s / 2 for moment in rates[series]], list(rates[series].values()))
            for series, words in SERIES.items()
        ]
        axis = Axis(name, low=0, high=highest)
        panels.append(Panel(curves, axis, [Mark("", x=moment) for moment in ends], height=120))
    return draw_panels(title, panels, Axis(f"time, seconds; per second, in bins of {bin_s:g} s", low=0))
