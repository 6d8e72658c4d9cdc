"""KV that moves from a prefill GPU to a decode GPU: bytes over a link, beside what it saves."""

import functools
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.display import Html, table_by_name
from course.lab.explorer import Explorer, choices
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.predict import Outcome
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lessons.lesson_05 import sim_70b

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
LINKS = {"10 GbE": 10, "100 Gb/s": 100, "400 Gb/s": 400, "NVLink, 3600 Gb/s": 3600}
"""Gb/s. The last: 450 GB/s each way, one H100's NVLink."""


@functools.cache
def token_bytes() -> float:
    """KV of one token of Llama-3-70B in bf16."""
    on = simulated_70b.deployment()
    return on.block_bytes * on.placement.tp / on.block_size


def transfer_s(tokens: int, gbit: float) -> float:
    """Seconds until a prompt's KV is on the other side."""
    return tokens * token_bytes() * 8 / (gbit * 1e9)


@functools.cache
def prefill_s(tokens: int) -> float:
    return simulated_70b.deployment().step_time().price(simulated_70b.prefill_work(tokens)).total


def draw(link: str, tokens: int) -> Picture:
    """The transfer beside the prefill that it follows."""
    gbit = LINKS[link]
    moved, computed = transfer_s(tokens, gbit), prefill_s(tokens)
    curves = [
        Curve("prefill, 70B on four H100s", LENGTHS, [1e3 * prefill_s(n) for n in LENGTHS]),
        Curve(f"transfer over {link}", LENGTHS, [1e3 * transfer_s(n, gbit) for n in LENGTHS]),
    ]
    size = tokens * token_bytes() / 1e9
    title = f"{tokens:,} tokens are {size:.2f} GB: {seconds(moved)} to move, {seconds(computed)} to compute"
    return draw_chart(
        title, curves, Axis("prompt, tokens", log=True), Axis("ms", log=True), [Mark("", tokens, 1e3 * moved)]
    )


def explorer() -> Explorer:
    return Explorer(draw, link=choices("link", list(LINKS), "400 Gb/s"), tokens=choices("tokens", list(LENGTHS), 4096))


WAYS = {"whole prompts": "prefill first", "chunks of 512": "mixed, 512", "disaggregated, 2 + 2": sim_70b.APART}


@dataclass(frozen=True)
class Way:
    """One way to run the fleet."""

    ttft: float
    ttft_p99: float
    itl_p99: float
    tokens_per_s: float


@functools.cache
def ways(qps: float, prefill_replicas: int = 2) -> dict[str, Way]:
    """The same arrivals, four replicas, three ways."""
    found = {}
    for name, policy in WAYS.items():
        split = {"prefill_replicas": prefill_replicas} if policy == sim_70b.APART else {}
        fleet = sim_70b.serve(policy, qps, **split)
        found[name] = Way(fleet.ttft(50), fleet.ttft(99), fleet.itl(99), fleet.tokens_per_s)
    return found


def ways_table(found: dict[str, Way]) -> Html:
    return table_by_name(
        "four replicas of 70B",
        found,
        {
            "TTFT p50": lambda way: seconds(way.ttft),
            "TTFT p99": lambda way: seconds(way.ttft_p99),
            "ITL p99": lambda way: seconds(way.itl_p99),
            "output tokens/s": lambda way: f"{way.tokens_per_s:.0f}",
        },
    )


def smoother(found: dict[str, Way]) -> Outcome:
    """ITL p99 with whole prompts over that of the split fleet: the answer to a prediction."""
    whole, _, apart = (way.itl_p99 for way in found.values())
    return Outcome(whole / apart, f"ITL p99 {seconds(whole)} with whole prompts, {seconds(apart)} disaggregated")


def draw_splits(rates: tuple[float, ...] = (4, 8, 12, 16, 20, 24)) -> Picture:
    """TTFT p99 of each split of four replicas, and of chunked prefill, by load."""
    curves = [
        Curve(f"{n} prefill + {4 - n} decode", rates, [ways(r, n)["disaggregated, 2 + 2"].ttft_p99 for r in rates])
        for n in (1, 2, 3)
    ]
    curves.append(Curve("chunks of 512, no split", rates, [ways(r)["chunks of 512"].ttft_p99 for r in rates], "dashes"))
    axes = Axis("requests per second, all four replicas"), Axis("TTFT p99, s", log=True)
    return draw_chart("Which split suits the load?", curves, *axes)
