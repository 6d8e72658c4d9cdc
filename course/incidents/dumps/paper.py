"""How a dump is written: what was given, what had been looked at, and what there is to answer with."""

from collections.abc import Iterator
from dataclasses import asdict
from html import escape

from course.incidents.dumps.catalogue import Dump, drawn, find_dump
from course.incidents.dumps.sums import Sums, thirteen
from course.incidents.interventions import FOR_GOOD
from course.incidents.page import page_of
from course.incidents.questions import BY_ID, QUESTIONS
from course.incidents.service import SimulatedService
from course.lab.display import Html, as_table, table
from course.lab.style import number, seconds
from course.lessons.lesson_13 import run as lesson_13


def read(name: str) -> Html:
    """A dump, line by line.

    Raises:
        IncidentError: there is no such dump.
    """
    dump = find_dump(name)
    told = list(lines(dump))
    text = "\n".join([dump.title, dump.story, *(f"[{label}] {words}" for label, words in told)])
    head = f"<b>{escape(dump.title)}</b><p>{escape(dump.story)}</p>"
    return Html(f'<div style="{SHEET}">{head}{table(("line", "what it says"), told)}</div>', text)


SHEET = "border:1px solid var(--jp-border-color2, #d0d7de);border-radius:3px;padding:8px 14px;max-width:840px"


def lines(dump: Dump) -> Iterator[tuple[str, str]]:
    """(label, words). The labels of what can be cited are ids of questions."""
    hidden, _ = drawn(dump.id)
    sums, page = dump.sums(hidden.scene.now), page_of(hidden)
    if dump.sums is thirteen:
        yield "given", _given(sums)
    else:
        yield "alarm", page.alarm
        yield "traffic", _traffic(sums)
    yield "machine", _machine(sums, hidden.scene.now.service)
    yield "SLO", f"{page.promise.removeprefix('SLO, ')} {page.kept:.0%} of requests meet it."
    for name in dump.shown:
        yield name, BY_ID[name].find_out(hidden.scene).text


def _given(sums: Sums) -> str:
    return (
        f"A {sums.weights / 1e9:.0f}B model on {sums.gpus} A100s with 80 GB. {number(sums.rate)} requests/s, "
        f"{number(sums.prompt)} tokens in and {number(sums.output)} out on average; p99 of TTFT "
        f"{seconds(lesson_13.TTFT_S)}, p99 of ITL {seconds(lesson_13.ITL_S)}. Take both for what a mean request sees: "
        "an upper estimate."
    )


def _traffic(sums: Sums) -> str:
    return (
        f"{number(sums.rate)} requests/s; on average {number(sums.prompt)} tokens in, {number(sums.output)} out, TTFT "
        f"{seconds(sums.ttft)}, {seconds(sums.e2e)} until the last token."
    )


def _machine(sums: Sums, service: SimulatedService) -> str:
    """All that a sum takes: on paper there's no configuration to be asked for."""
    replicas, cards = service.fleet.replicas, f"{service.tp}x {service.hardware}"
    fleet = f"{replicas} replicas of {cards} each" if replicas > 1 else f"one replica ({cards})"
    return (
        f"{service.model} on {fleet}, {number(service.rate)} requests/s. {number(sums.peak / 1e12)} TFLOP/s a GPU on "
        f"its data sheet (bf16); {number(sums.weights / 1e9)} billion weights in the layers; the KV pool holds "
        f"{sums.pool} tokens."
    )


def numbers(name: str) -> dict[str, float]:
    """What of a dump can be multiplied: requests, tokens, seconds, GPUs, FLOP/s of one GPU, weights, KV tokens.

    Raises:
        IncidentError: there is no such dump.
    """
    dump = find_dump(name)
    return asdict(dump.sums(drawn(dump.id)[0].scene.now))


def changes() -> Html:
    """What can be ranked: id, phase, text, cost."""
    return as_table(("change", "phase", "what it is", "cost"), [(i.id, i.phase, i.text, i.cost) for i in FOR_GOOD])


def questions() -> Html:
    """What could be asked of a live service."""
    return as_table(("question", "what it shows"), [(question.id, question.text) for question in QUESTIONS])
