"""`minillm napkin`: the sum of the day, or any other, in a terminal."""

import json
import sys
import time
from datetime import date
from typing import Annotated, Any

import typer

from course.napkin.library import napkin_of, napkin_of_day
from course.napkin.napkin import MINUTE_S, Napkin
from course.napkin.quantity import NapkinError
from course.terminal import fitted
from minillm.frontend.terminal import Lines

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def napkin(
    seed: Annotated[int | None, typer.Option(help="Another one; the same seed gives the same one.")] = None,
    day: Annotated[str | None, typer.Option("--date", metavar="YYYY-MM-DD", help="Another day's.")] = None,
    answer: Annotated[str | None, typer.Option(help="Your answer, with its unit; else you're asked.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: the question; with --answer also the verdict.")
    ] = False,
) -> None:
    """A sum of one minute, a new one each day: your answer with its unit, then the working. An empty line gives up."""
    if seed is not None and day is not None:
        raise NapkinError("--seed and --date name two different sums: leave one out")
    current = napkin_of_day(_date_of(day)) if seed is None else napkin_of(seed)
    if as_json:
        print(json.dumps(as_report(current, answer)))
    elif answer is not None:
        print(fitted("\n".join([current.question, *current.debrief(answer)]), sys.stdout))
    else:
        ask(current)


def as_report(current: Napkin, answer: str | None) -> dict[str, Any]:
    """The question for programs; the right answer only beside one that was given. Raises NapkinError."""
    report: dict[str, Any] = {"question": current.question, "units": current.units}
    if answer is not None:
        told = {"verdict": current.judge(answer).value, "told": current.told, "working": current.working}
        report |= {**told, "lesson": current.lesson}
    return report


def ask(current: Napkin) -> None:
    """Ask until there's an answer that can be judged, or none; then tell the working."""
    print(fitted(f"{current.question}\n(Aim for {MINUTE_S:.0f} seconds; going over costs nothing.)", sys.stdout))
    lines, began = Lines("napkin", current.units), time.monotonic()
    while typed := (lines.read(f"{_wanted(current)} > ") or "").strip():
        try:
            told = current.debrief(typed, time.monotonic() - began)
        except NapkinError as error:
            print(fitted(str(error), sys.stdout))
            continue
        print(fitted("\n".join(told), sys.stdout))
        return
    print(fitted("\n".join(["", *current.debrief()]), sys.stdout))


def _wanted(current: Napkin) -> str:
    """What the prompt asks for."""
    return f"how many {current.counted}?" if current.counted else f"a number with its unit ({', '.join(current.units)})"


def _date_of(text: str | None) -> date:
    """The day that an option names; None = today. Raises NapkinError: it's no date, or one to come."""
    try:
        found = date.today() if text is None else date.fromisoformat(text)
    except ValueError:
        raise NapkinError(f"--date wants a day such as 2026-01-05, not {text!r}") from None
    if found > date.today():
        raise NapkinError(f"{found} is yet to come: its sum has its own day")
    return found
