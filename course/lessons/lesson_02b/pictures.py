"""Pictures and tables of lesson 02b, some with sliders: slot maps, orders, queue limits, tenants."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices
from course.lab.run import Run, gaps_of, percentile
from course.lab.style import ALARM, COLOURS, WIDTH, number, seconds
from course.lab.svg import (
    HALO,
    INK,
    SOFT,
    Picture,
    Scale,
    boxes,
    legend,
    line,
    phase_fill,
    rect,
    swatches,
    text,
    time_axis,
)
from course.lab.visits import Visit, end_of, mean, queue_length, visits_of
from course.lessons.lesson_02b.run import GREEDY, SMALL, TENANT_ORDERS, ByTenant, tenant_speed, ttft_p99
from course.lessons.lesson_02b.simulated import (
    BURSTS,
    GREEDY_LOADS,
    LONG,
    ORDERS,
    SENDS,
    ordered,
    outcomes,
    tenants_at_70b,
    waits_by_length,
    with_queue_limit,
)
from course.simulator.cluster.run import FleetRun

# ---------------------------------------------------------------- slots

LEFT, RIGHT = 104, 20
LABEL = 20
"""Narrower boxes get no number."""


def slot_rows(visits: Sequence[Visit], slots: int) -> list[list[Visit]]:
    """Each request in a slot that is free when it is scheduled. Slots have no number in the engine: the lowest is
    taken."""
    rows: list[list[Visit]] = [[] for _ in range(slots)]
    for visit in sorted((v for v in visits if v.scheduled is not None), key=lambda v: (v.scheduled, v.index)):
        free = [row for row in rows if not row or (row[-1].left or 0.0) <= visit.scheduled + 1e-9]
        (free[0] if free else min(rows, key=lambda row: row[-1].left or 0.0)).append(visit)
    return rows


def draw_slot_maps(
    runs: Mapping[str, Sequence[Visit]], slots: int, title: str = "Which request runs in which slot?"
) -> Picture:
    """One panel per run, all on one time axis. Dashed red: a slot is empty while a request waits."""
    span = 1.02 * max(end_of(visits) for visits in runs.values())
    scale, pitch = Scale(0, span, LEFT, WIDTH - RIGHT), 20.0 if slots <= 8 else 11.0
    y, drawn = 44.0, ""
    for name, visits in runs.items():
        drawn += _panel(name, visits, slots, scale, y, pitch)
        y += pitch * slots + 34
    body = legend(LEFT, 12, ("prefill", "decode"))
    body += rect(LEFT + 160, 3, 14, 10, fill="none", stroke=ALARM, stroke_dasharray="3 2")
    body += text(LEFT + 180, 12, "slot empty while a request waits", fill=ALARM)
    body += time_axis(scale, 22, y - 24) + drawn
    found = "; ".join(
        f"{name}: {share_told(visits, slots)}, all done after {seconds(end_of(visits))}"
        for name, visits in runs.items()
    )
    return Picture(title, body, y + 12, description=f"{found}.")


def share_told(visits: Sequence[Visit], slots: int) -> str:
    return f"{empty_slot_share(visits, slots):.0%} of slot time empty while a request waits"


def _panel(name: str, visits: Sequence[Visit], slots: int, scale: Scale, y: float, pitch: float) -> str:
    body = text(LEFT, y - 5, name, size=13, font_weight="bold", **HALO)
    body += text(LEFT + 8 * len(name) + 8, y - 5, share_told(visits, slots), size=11, fill=SOFT, **HALO)
    prefill, decode, labels, empty = [], [], "", []
    for i, row in enumerate(slot_rows(visits, slots)):
        top, tall = y + pitch * i, pitch - 3
        body += text(LEFT - 8, top + tall - 3, f"slot {i + 1}", size=min(11, pitch), fill=SOFT, text_anchor="end")
        for visit in row:
            x, middle, end = (
                scale(m if m is not None else scale.high) for m in (visit.scheduled, visit.first, visit.left)
            )
            prefill.append((x, top, max(middle - x - 0.5, 0.6), tall))
            decode.append((middle, top, max(end - middle - 0.8, 0.4), tall))
            labels += _number(visit.index, x, end, top + tall - 4) if pitch > 12 else ""
        empty += [(scale(a), top + 1, scale(b) - scale(a) - 1, tall - 2) for a, b in _empty(row, visits)]
    body += boxes(prefill, fill=phase_fill("prefill")) + boxes(decode, fill=phase_fill("decode"))
    body += boxes(empty, fill=ALARM, fill_opacity=0.12, stroke=ALARM, stroke_dasharray="3 2")
    end = scale(end_of(visits))
    body += line(end, y - 2, end, y + pitch * slots, stroke=INK, stroke_width=1.2)
    return body + labels


def _number(index: int, x: float, end: float, y: float) -> str:
    if end - x < LABEL:
        return ""
    return text((x + end) / 2, y, f"#{index}", size=11, text_anchor="middle", **HALO)


def _waiting(visits: Sequence[Visit]) -> Iterator[tuple[float, float, float]]:
    """Stretches in which a request waits, and nothing begins or ends: start, middle, end."""
    borders = sorted({m for v in visits for m in (v.arrival, v.scheduled, v.left) if m is not None})
    for start, end in itertools.pairwise(borders):
        if queue_length(visits, middle := (start + end) / 2):
            yield start, middle, end


def _empty(row: Sequence[Visit], visits: Sequence[Visit]) -> list[tuple[float, float]]:
    """Stretches in which this slot is empty and a request waits; a hundredth of the whole is too short to be seen."""
    found: list[tuple[float, float]] = []
    for start, middle, end in _waiting(visits):
        if not any(visit.is_running(middle) for visit in row):
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
    return [(start, end) for start, end in found if end - start > 0.01 * end_of(visits)]


def empty_slot_share(visits: Sequence[Visit], slots: int) -> float:
    """Share of the slot time in which the slot was empty while a request waited."""
    empty = total = 0.0
    for start, middle, end in _waiting(visits):
        total += slots * (end - start)
        empty += max(slots - sum(v.is_running(middle) for v in visits), 0) * (end - start)
    return empty / total if total else 0.0


# ---------------------------------------------------------------- who is next, and who is refused

NAMED = 150
"""Where bars begin: to their left stands what they're of."""
SAID = 170
"""Room for a bar's figures, to the right of the slowest one's tick."""


def draw_waits(load: float) -> Picture:
    """Mean wait of short and of long prompts under each order, 70B, with the slowest one's as a tick."""
    waited = {order: waits_by_length(ordered(order, load)) for order in ORDERS}
    longest = max(max(each) for pair in waited.values() for each in pair if each)
    scale, pitch, body, told = Scale(0, longest, NAMED, WIDTH - RIGHT - SAID), 44, "", []
    fills = dict(zip(("short prompts", "long prompts"), COLOURS))
    for i, (order, pair) in enumerate(waited.items()):
        y = 30 + pitch * i
        body += text(NAMED - 10, y + 19, order, size=13, text_anchor="end")
        for j, (each, (name, fill)) in enumerate(zip(pair, fills.items())):
            at, usual, slowest = y + 17 * j, *((mean(each), max(each)) if each else (0.0, 0.0))
            if each:
                body += rect(NAMED, at, max(scale(usual) - NAMED, 1), 14, fill=fill)
                body += line(scale(slowest), at, scale(slowest), at + 14, stroke=fill, stroke_width=2)
            says = f"mean {seconds(usual)}, slowest {seconds(slowest)}" if each else "refused"
            body += text(scale(slowest) + 6, at + 11, says, size=11)
            told.append(f"{order}, {name}: {says}")
    first = next(iter(ORDERS))
    visits = ordered(first, load)
    body += swatches(NAMED, 16, {f"{name}, mean wait": fill for name, fill in fills.items()})
    body += text(WIDTH - RIGHT, 16, f"{len(visits)} requests in {seconds(end_of(visits))}", size=11, text_anchor="end")
    return Picture("Who waits under which order?", body, 34 + pitch * len(waited), description="; ".join(told))


ENDS = dict(zip(("within SLO", "late", "gave up", "refused"), ("#2F9E9E", "#B8951E", "#C2416B", "#7A8B99")))
"""What becomes of a request: colours that no phase has."""
NARROW = 0.06
"""A smaller share gets no number."""


def draw_outcomes(runs: Mapping[str, FleetRun]) -> Picture:
    """A bar of all requests for each queue limit, by what became of them."""
    scale, pitch, body, told = Scale(0, 1, NAMED, WIDTH - RIGHT), 30, "", []
    for i, (name, run) in enumerate(runs.items()):
        counts = outcomes(run)
        y, done, total = 28 + pitch * i, 0, sum(counts.values())
        body += text(NAMED - 10, y + 15, name, size=13, text_anchor="end")
        for end, count in counts.items():
            x, width = scale(done / total), scale(count / total) - NAMED
            body += rect(x, y, width, 21, fill=ENDS[end]) if count else ""
            is_wide = count / total >= NARROW
            middle = x + width / 2
            body += text(middle, y + 15, f"{count / total:.0%}", text_anchor="middle", **HALO) if is_wide else ""
            done += count
        told.append(f"{name}: " + ", ".join(f"{count / total:.0%} {end}" for end, count in counts.items()))
    body += swatches(NAMED, 16, ENDS)
    title = "What becomes of the requests, by queue limit?"
    return Picture(title, body, 32 + pitch * len(runs), description="; ".join(told))


# ---------------------------------------------------------------- tables


def short_ttft(run: Run) -> float:
    """Median TTFT of the seven short prompts."""
    return percentile([view.deliveries[0] - view.borders[0] for view in run.views[:7]], 50)


def prompt_tokens(run: Run) -> int:
    """Prompt tokens that were computed."""
    return sum(step.num_prefill_tokens for step in run.steps)


def way_numbers(run: FleetRun) -> dict[str, float]:
    """What a way of batching does to short prompts, long prompts, and running answers; seconds."""
    visits = visits_of(run)
    short = [v.ttft for v in visits if v.prompt <= LONG and v.ttft is not None]
    long = [v.ttft for v in visits if v.prompt > LONG and v.ttft is not None]
    gaps = [gap for record in run.records for gap in gaps_of(record.deliveries)]
    return {
        "short_p50": percentile(short, 50),
        "short_p99": percentile(short, 99),
        "long_p50": percentile(long, 50),
        "gap_max": max(gaps),
    }


def five_dimensions(calm: Mapping[str, FleetRun], busy: Mapping[str, FleetRun], saturated: Mapping[str, float]) -> Html:
    """Five of the article's six dimensions, at 70B, one per row, one column per way. The sixth is simplicity."""
    quiet, full = ({name: way_numbers(run) for name, run in runs.items()} for runs in (calm, busy))
    rows = [
        ("TTFT, short prompts, low load, median", *(seconds(quiet[n]["short_p50"]) for n in saturated)),
        ("TTFT, short prompts, high load, p99", *(seconds(full[n]["short_p99"]) for n in saturated)),
        ("requests/s when saturated", *(number(value) for value in saturated.values())),
        ("longest gap in any answer", *(seconds(quiet[n]["gap_max"]) for n in saturated)),
        ("TTFT of a long prompt, low load, median", *(seconds(quiet[n]["long_p50"]) for n in saturated)),
    ]
    return as_table(("70B, one long prompt in ten", *saturated), rows)


# ---------------------------------------------------------------- with sliders

OFFERED_LOADS = {f"{load}%": load / 100 for load in (30, 50, 70, 80, 90, 95, 100, 110, 130)}
QUEUE_LIMITS = (None, 1, 4, 16, 64)


def orders() -> Explorer:
    """Who is next? The waits at any load."""
    return Explorer(
        lambda load: draw_waits(OFFERED_LOADS[load]), slow=True, load=choices("load", list(OFFERED_LOADS), "110%")
    )


def queue_limit_runs(load: str, arrivals: str = "one by one") -> dict[str, FleetRun]:
    """A run for each queue limit."""
    cv = BURSTS if arrivals == "in bursts" else 1.0
    names = {limit: f"at most {limit} queued" if limit else "no limit" for limit in QUEUE_LIMITS}
    return {name: with_queue_limit(OFFERED_LOADS[load], limit, cv) for limit, name in names.items()}


def queue_limits() -> Explorer:
    """The queue limit under any load: what became of every request."""
    return Explorer(
        lambda load, arrivals: draw_outcomes(queue_limit_runs(load, arrivals)),
        slow=True,
        load=choices("load", list(OFFERED_LOADS), "130%"),
        arrivals=buttons("they arrive", ["one by one", "in bursts"]),
    )


def slots_of(runs: Mapping[str, Run], title: str = "Which request runs in which slot?") -> Picture:
    """Slot maps of real runs."""
    slots = next(iter(runs.values())).config.max_num_seqs
    return draw_slot_maps({name: visits_of(run) for name, run in runs.items()}, slots, title)


def tenants_table(by_order: Mapping[str, ByTenant]) -> Html:
    """One row per tenant: p99 TTFT and tokens per second in each order."""
    rows = []
    for name in (GREEDY, *SMALL):
        ttfts = [seconds(ttft_p99(found, [name])) for found in by_order.values()]
        rows.append((name, *ttfts, *(number(tenant_speed(found[name])) for found in by_order.values())))
    heads = [f"{what}, {order}" for what in ("p99 TTFT", "tokens/s") for order in by_order]
    return as_table(("tenant", *heads), rows)


def tenants_explorer() -> Explorer:
    """Both orders, as greedy as you like."""

    def draw(greedy: str, sends: str) -> Html:
        return tenants_table({order: tenants_at_70b(order, greedy, sends) for order in TENANT_ORDERS})

    return Explorer(
        draw,
        slow=True,
        greedy=choices("greedy tenant's load", list(GREEDY_LOADS), "120%"),
        sends=buttons("it sends", list(SENDS)),
    )
