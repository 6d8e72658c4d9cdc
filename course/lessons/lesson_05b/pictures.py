"""Pictures of lesson 05b: what is in each step, the transfer beside the prefill, and which split suits the load."""

from dataclasses import dataclass

from course.lab.display import Html, as_table, table_by_name
from course.lab.explorer import Explorer, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.scale import enough
from course.lab.simulated_70b import itl, tokens_per_s, ttft
from course.lab.style import COLOURS, PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, boxes, line, rect, text
from course.lessons.lesson_05b.run import (
    LENGTHS,
    LINKS,
    LOADS,
    MET,
    NUM_REQUESTS,
    PIPELINED,
    STAGES,
    pipelined,
    prefill_s,
    token_bytes,
    transfer_s,
    ways,
)
from course.simulator.cluster.run import FleetRun

DECODES, PROMPTS, TOKENS = 4, (2.0, 9.0), 24
"""Requests that decode all along; when prompts arrive (in decode steps), and how long they are."""
PER_TOKEN = 0.12
"""What a prompt token adds to a step, in decode steps."""
LEFT, ROW, HORIZON = 130, 56, 22.0


@dataclass(frozen=True)
class PicturedStep:
    start: float
    seconds: float
    prefill: int
    decodes: int


def steps_of(chunk: int, decodes: int = DECODES) -> list[PicturedStep]:
    """What an engine does that computes at most `chunk` prompt tokens per step."""
    waiting, now, found, arrivals = 0, 0.0, [], list(PROMPTS)
    while now < HORIZON:
        while arrivals and arrivals[0] <= now:
            waiting += TOKENS
            arrivals.pop(0)
        prefill = min(waiting, chunk)
        if not prefill and not decodes:
            now = arrivals[0] if arrivals else HORIZON
            continue
        seconds = (1.0 if decodes or prefill else 0.0) + PER_TOKEN * prefill
        found.append(PicturedStep(now, seconds, prefill, decodes))
        waiting, now = waiting - prefill, now + seconds
    return found


def longest_gap(found: list[PicturedStep]) -> float:
    return max((step.seconds for step in found if step.decodes), default=0.0)


def draw_budget(chunk: int) -> Picture:
    """Four rows of steps; a step is as wide as it takes, and as high as its tokens."""
    lanes = {
        "whole prompts": steps_of(TOKENS),
        f"chunks of {chunk}": steps_of(chunk),
        "split: prefill GPU": steps_of(TOKENS, 0),
        "split: decode GPU": [PicturedStep(float(i), 1.0, 0, DECODES) for i in range(int(HORIZON))],
    }
    scale = Scale(0, HORIZON, LEFT, WIDTH - 90)
    body, told = "", []
    for i, (name, found) in enumerate(lanes.items()):
        base = 30 + ROW * (i + 1)
        body += text(LEFT - 8, base - 8, name, text_anchor="end")
        for kind, low in (("decode", 0), ("prefill", 1)):
            cells = []
            for step in found:
                x, wide = scale(step.start), scale(min(step.start + step.seconds, HORIZON)) - scale(step.start) - 1
                tall = 2.5 * step.decodes if kind == "decode" else 1.2 * step.prefill
                floor = base - (2.5 * step.decodes if low else 0)
                if tall and wide > 0:
                    cells.append((x, floor - tall, wide, tall))
            body += boxes(cells, fill=PHASE_COLOURS[kind])
        body += line(LEFT, base, WIDTH - 90, base)
        if longest_gap(found):
            body += text(WIDTH - 84, base - 8, f"gap: {longest_gap(found):.1f} steps", size=11, fill=SOFT)
            told.append(f"{name}: longest gap {longest_gap(found):.1f} decode steps")
    for arrival in PROMPTS:
        x = scale(arrival)
        body += line(x, 18, x, 30 + 4 * ROW, stroke=INK, stroke_dasharray="3 3")
        body += text(x + 3, 26, "a prompt arrives", size=11, fill=SOFT)
    return Picture(
        "What is in each step? (blue: prompt tokens, green: decodes)", body, 46 + 4 * ROW, description="; ".join(told)
    )


def budget_explorer() -> Explorer:
    return Explorer(draw_budget, chunk=slider("tokens per chunk", 4, TOKENS, 6))


def draw_transfer(link: str, tokens: int) -> Picture:
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


def transfer_explorer() -> Explorer:
    return Explorer(
        draw_transfer, link=choices("link", list(LINKS), "400 Gb/s"), tokens=choices("tokens", list(LENGTHS), 4096)
    )


NAMED, APART = 150, 16
"""Where bars begin, and the space between the two of a row."""


def draw_ways(found: dict[str, FleetRun], qps: float) -> Picture:
    """TTFT p99 and ITL p99 of each way, side by side: what a way gains on one side it may lose on the other."""
    half, pitch = (WIDTH - NAMED - 90) / 2, 32
    columns = {"TTFT p99": ttft, "ITL p99": itl}
    body, told = "", []
    for j, (name, measure) in enumerate(columns.items()):
        left = NAMED + j * (half + APART)
        values = {way: measure(run, 99) for way, run in found.items()}
        scale = Scale(0, 1.45 * max(values.values()), left, left + half)
        body += text(left, 16, name, size=12, font_weight="bold")
        for i, value in enumerate(values.values()):
            y = 26 + pitch * i
            body += rect(left, y, scale(value) - left, 20, fill=COLOURS[j])
            body += text(scale(value) + 5, y + 15, seconds(value), size=11)
    body += text(WIDTH - 70, 16, "tokens/s", size=12, font_weight="bold")
    for i, (way, run) in enumerate(found.items()):
        y = 41 + pitch * i
        body += text(NAMED - 8, y, way, size=13, text_anchor="end")
        body += text(WIDTH - 70, y, f"{tokens_per_s(run):.0f}", size=11)
        ends = ", ".join(f"{name} {seconds(measure(run, 99))}" for name, measure in columns.items())
        told.append(f"{way}: {ends}, {tokens_per_s(run):.0f} tokens/s")
    title = f"Four replicas of 70B, {qps:g} requests/s: who waits?"
    return Picture(title, body, 30 + pitch * len(found), description="; ".join(told))


def goodput_table(found: dict[str, dict[str, float]]) -> Html:
    """One row per way: the highest load at which enough requests were within each SLO."""
    ways = next(iter(found.values()))
    columns = {limits: (lambda way, limits=limits: f"{found[limits][way]:g}/s") for limits in found}
    return table_by_name(f"{MET:.0%} of requests within", {way: way for way in ways}, columns)


def draw_splits(rates: tuple[float, ...] = LOADS) -> Picture:
    """TTFT p99 of each split of four replicas, and of chunked prefill, by load."""
    curves = [
        Curve(f"{n} prefill + {4 - n} decode", rates, [ttft(ways(r, n)["disaggregated, 2 + 2"], 99) for r in rates])
        for n in (1, 2, 3)
    ]
    curves.append(
        Curve("chunks of 512, no split", rates, [ttft(ways(r)["chunks of 512"], 99) for r in rates], "dashes")
    )
    axes = Axis("requests per second, all four replicas", whole=True), Axis("TTFT p99, s", log=True)
    requests = enough(NUM_REQUESTS, 12)  # past its capacity, what a split takes grows with the run
    return draw_chart(f"Which split suits the load? (runs of {requests} requests)", curves, *axes)


CACHED_SHARES = (0.0, 0.5, 0.9, 0.95, 0.98, 0.99)
LIMITS_S = (0.025, 0.1)
"""On ITL: two that the lesson asks about."""


def stay_or_go_table(tokens: int = 8192, gbit: float = 400) -> Html:
    """A row for each share of a prompt that the decode side has cached: the step that computes the rest there, and the
    transfer if it's computed elsewhere."""
    rows = []
    for cached in CACHED_SHARES:
        rest = round(tokens * (1 - cached))
        step = prefill_s(rest)
        fits = (("stays" if step <= limit else "goes") for limit in LIMITS_S)
        rows.append((f"{cached:.0%}", f"{rest:,}", seconds(step), seconds(transfer_s(rest, gbit)), *fits))
    limits = (f"ITL limit {seconds(limit)}" for limit in LIMITS_S)
    header = ("cached", "to compute", "step, if it stays", f"transfer at {gbit:g} Gb/s, if it goes", *limits)
    return as_table(header, rows)


def pipeline_table(sizes: tuple[int, ...] = (32768, 8192, 4096, 2048, 1024, 512)) -> Html:
    """One row per chunk size: how much faster a prompt gets through a pipeline, its chunks being equally expensive."""
    rows = [
        (f"{n:,}", f"{PIPELINED // n}", f"{PIPELINED // n + STAGES - 1}", f"× {pipelined(PIPELINED // n):.2f}")
        for n in sizes
    ]
    return as_table(("tokens a chunk", "chunks", "turns", "speedup over one stage at a time"), rows)
