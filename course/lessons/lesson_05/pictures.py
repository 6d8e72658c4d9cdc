"""Pictures of lesson 05, some with sliders: one TTFT by cause, policies side by side, fleets at 70B."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, Shown, buttons, choices, slider, switch
from course.lab.lab import Lab
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.style import ALARM, COLOURS, PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, boxes, line, phase_fill, rect, text, time_axis
from course.lab.ttft_causes import CAUSES, Breakdown, causes_of_run, mean
from course.lessons.lesson_05 import simulated
from course.lessons.lesson_05.run import (
    PACES,
    POLICIES,
    MaskCost,
    Pace,
    budget,
    company,
    newcomers,
    pause_p99,
    policies,
    ttft_of,
    writers,
)
from course.simulator.cluster.run import FleetRun

# ---------------------------------------------------------------- one TTFT, and policies side by side

LEFT, RIGHT = 132, 20
ROW = 21
PLACE_FOR_LABEL = 118
"""Picture units that "12.3 ms · 45%" needs beside a bar."""
MIDDLE = 470
"""Where the second panel of `draw_policies` begins."""


def fill_of(cause: str) -> str:
    """What a cause's bars are filled with."""
    fill = CAUSES[cause].fill
    return phase_fill(fill) if fill in PHASE_COLOURS else fill


def draw_waterfall(
    now: Breakdown,
    ghost: Breakdown | None = None,
    title: str = "What is this first token waiting for?",
    ghost_name: str = "alone",
) -> Picture:
    """One row per cause; each bar begins where the one above it ended, and the last one ends at the TTFT.

    Args:
        ghost: another first token, drawn as thin outlines under the bars.
    """
    ghost = ghost or {}
    rows = [cause for cause in CAUSES if now.get(cause, 0.0) > 0 or ghost.get(cause, 0.0) > 0]
    total, total_before = sum(now.values()), sum(ghost.values())
    longest = max(total, total_before, 1e-9)
    # Room for the label of the last bar, which is the total's.
    scale = Scale(0, longest * (WIDTH - LEFT) / (WIDTH - LEFT - RIGHT - PLACE_FOR_LABEL), LEFT, WIDTH)
    bottom = 8 + ROW * (len(rows) + 1)
    body = time_axis(Scale(0, longest, LEFT, scale(longest)), 2, bottom, "waiting, added up by cause")
    edge = edge_before = 0.0
    for i, cause in enumerate(rows):
        y = 8 + ROW * i
        body += text(LEFT - 10, y + 11, cause, size=12, text_anchor="end")
        body += _bar(cause, now.get(cause, 0.0), edge, total, scale, y)
        if ghost:
            start = scale(edge_before)
            width = max(scale(edge_before + ghost.get(cause, 0.0)) - start, 1)
            body += rect(start, y + 13.5, width, 4, fill="none", stroke=INK, stroke_width=0.8)
        edge += now.get(cause, 0.0)
        edge_before += ghost.get(cause, 0.0)
    y = 8 + ROW * len(rows)
    body += text(LEFT - 10, y + 12, "TTFT, their sum", size=12, text_anchor="end", font_weight="bold")
    body += text(scale(total) + 5, y + 12, seconds(total), size=12, font_weight="bold")
    body += line(scale(total), 4, scale(total), y + 14, stroke=INK, stroke_width=1.2)
    if ghost:
        words = f"thin outline: {ghost_name}, {seconds(total_before)}"
        body += text(WIDTH - 4, bottom + 28, words, size=11, fill=SOFT, text_anchor="end")
    return Picture(
        title,
        body,
        bottom + 36,
        description=causes_told(now) + (f" {ghost_name}: {causes_told(ghost)}" if ghost else ""),
    )


def _bar(cause: str, value: float, edge: float, total: float, scale: Scale, y: float) -> str:
    start, end = scale(edge), max(scale(edge + value), scale(edge) + 1.5)
    share = 100 * value / total if total else 0.0
    label = f"{seconds(value)} · {f'{share:.0f}%' if share >= 0.5 else '< 1%'}" if value else "–"
    finish = scale(total)
    x = finish + 6 if finish - 16 < end else end + 5  # not across the line that marks the TTFT
    return rect(start, y, end - start, 12, fill=fill_of(cause)) + text(x, y + 11, label, size=11, fill=SOFT)


def causes_told(causes: Breakdown) -> str:
    """A breakdown in words."""
    found = ", ".join(f"{cause} {seconds(causes[cause])}" for cause in CAUSES if causes.get(cause, 0.0) > 0)
    return f"TTFT {seconds(sum(causes.values()))}: {found}."


def draw_policies(
    ttfts: Mapping[str, Breakdown],
    paid: Mapping[str, float],
    who: str = "newcomers' TTFT, mean, by cause",
    payer: str = "writers' gaps, p99",
    title: str = "Which policy serves the newcomers, and what do the others pay?",
) -> Picture:
    """One row per policy: on the left TTFT by cause, on the right what others paid.

    A TTFT that dwarfs all others is broken off, and marked so.

    Args:
        paid: by policy, seconds.
    """
    left = Scale(0, 1.3 * _end_of_axis([sum(b.values()) for b in ttfts.values()]), 112, MIDDLE - 20)
    right = Scale(0, 1.55 * max(max(paid.values()), 1e-9), MIDDLE, WIDTH - 8)
    used = [cause for cause in CAUSES if any(left(b.get(cause, 0.0)) - left(0) > 1.0 for b in ttfts.values())]
    pitch, top = 34, 22
    bottom = top + pitch * len(ttfts)
    body = text(112, 12, who, size=12, font_weight="bold") + text(MIDDLE, 12, payer, size=12, font_weight="bold")
    body += time_axis(left, top - 4, bottom, "TTFT") + time_axis(right, top - 4, bottom, "between two tokens", 3)
    for i, (name, causes) in enumerate(ttfts.items()):
        y, edge = top + 4 + pitch * i, 0.0
        body += text(102, y + 15, name, size=12, text_anchor="end")
        limit = left.high / 1.3
        for cause in CAUSES:
            value = min(causes.get(cause, 0.0), limit - edge)
            if value > 0:
                width = max(left(edge + value) - left(edge) - 0.6, 0.4)
                body += rect(left(edge), y, width, 21, fill=fill_of(cause))
                edge += value
        whole = sum(causes.values())
        broken = whole > edge * 1.001
        body += text(left(edge) + 5, y + 15, f"{'// ' if broken else ''}{seconds(whole)}", size=12)
        body += rect(MIDDLE, y, max(right(paid[name]) - MIDDLE, 1), 21, fill=phase_fill("decode"))
        body += text(right(paid[name]) + 5, y + 15, seconds(paid[name]), size=12)
    body += _legend(used, bottom + 52)
    found = " ".join(f"{name}: {causes_told(b)} {payer} {seconds(paid[name])}." for name, b in ttfts.items())
    return Picture(title, body, bottom + 62 + 18 * ((len(used) - 1) // 6), description=found)


def _end_of_axis(values: list[float]) -> float:
    """The longest bar; or, if it would dwarf all others, an end at which it is broken off."""
    longest, second = [*sorted(values, reverse=True), 0.0][:2]
    return max(min(longest, 2 * second) if longest > 5 * second > 0 else longest, 1e-9)


def _legend(used: list[str], y: float) -> str:
    drawn = ""
    for i, cause in enumerate(used):
        x, down = 8 + 118 * (i % 6), 18 * (i // 6)
        drawn += rect(x, y + down - 10, 13, 11, fill=fill_of(cause), rx=2)
        drawn += text(x + 17, y + down, cause, size=11, fill=SOFT)
    return drawn


def draw_rhythm(runs: Mapping[str, Run]) -> Picture:
    """When one writer's tokens come, one strip per policy; above each strip the newcomers, queued and in prefill."""
    longest = max(run.duration for run in runs.values())
    scale = Scale(0, longest, 112, WIDTH - RIGHT)
    count = max(len(newcomers(run)) for run in runs.values())
    tall = 7 * count + 34
    bottom = 26 + tall * len(runs)
    body = rect(112, 4, 13, 8, fill=phase_fill("queue")) + text(129, 12, "newcomer waits", size=11, fill=SOFT)
    body += rect(228, 4, 13, 8, fill=phase_fill("prefill")) + text(245, 12, "its prompt's prefill", size=11, fill=SOFT)
    body += rect(360, 2, 2.5, 12, fill=PHASE_COLOURS["decode"])
    body += text(368, 12, "a token of the writer", size=11, fill=SOFT)
    body += rect(496, 6, 26, 4, fill=ALARM) + text(527, 12, "the writer's longest pause", size=11, fill=SOFT)
    body += time_axis(scale, 22, bottom)
    found = []
    for i, (name, run) in enumerate(runs.items()):
        top = 28 + tall * i
        body += text(102, top + tall / 2, name, size=12, text_anchor="end") + _newcomers(run, scale, top)
        drawn, pause = _ticks(run, scale, top + 7 * count + 4)
        body += drawn
        waits = ttft_of(newcomers(run))
        found.append(f"{name}: longest pause {seconds(pause)}, mean TTFT {seconds(sum(waits) / max(len(waits), 1))}")
    return Picture("When does the next word come?", body, bottom + 34, description="; ".join(found) + ".")


def _newcomers(run: Run, scale: Scale, top: float) -> str:
    waiting, read = [], []
    for j, view in enumerate(newcomers(run)):
        arrival, scheduled, prefilled = (scale(border - run.start) for border in view.borders[:3])
        waiting.append((arrival, top + 7 * j, max(scheduled - arrival, 0.8), 5.0))
        read.append((scheduled, top + 7 * j, max(prefilled - scheduled, 1.5), 5.0))
    return boxes(waiting, fill=phase_fill("queue")) + boxes(read, fill=phase_fill("prefill"))


def _ticks(run: Run, scale: Scale, top: float) -> tuple[str, float]:
    """The first writer's tokens, its longest pause marked under them; and how long that is."""
    stamps = [stamp - run.start for stamp in writers(run)[0].deliveries]
    body = boxes([(scale(stamp) - 0.8, top, 1.6, 14.0) for stamp in stamps], fill=PHASE_COLOURS["decode"])
    start, end = max(pairwise(stamps), key=lambda pair: pair[1] - pair[0])
    body += rect(scale(start), top + 16, scale(end) - scale(start), 3, fill=ALARM)
    # Right of the mark where there is room, else left of it.
    fits = scale(end) < WIDTH - 90
    x, anchor = (scale(end) + 4, "start") if fits else (scale(start) - 4, "end")
    return body + text(x, top + 24, seconds(end - start), size=11, fill=ALARM, text_anchor=anchor), end - start


# ---------------------------------------------------------------- with sliders

FRAME_S = 0.4
"""Between two pictures of a run in progress."""
TIMES = (0.5, 1, 2, 4, 8)
"""Token budgets that are offered, in that of 'mixed'."""


def newcomers_causes(run: Run) -> list[dict[str, float]]:
    """Causes of each newcomer's TTFT, in order of arrival."""
    names = {view.request_id for view in newcomers(run)}
    found = causes_of_run(run)
    return [found[row.index] for row in run.rows if row.request_id in names and row.index in found]


def draw_runs(runs: Mapping[str, Run], title: str = "") -> Picture:
    """Policies side by side: newcomers' TTFT by cause, and the writers' gaps."""
    found = {name: mean(newcomers_causes(run)) for name, run in runs.items()}
    paid = {name: pause_p99(run) for name, run in runs.items()}
    return draw_policies(found, paid, **({"title": title} if title else {}))


class PolicyBench:
    """Runs policies on the real engine, and keeps every run of a traffic beside the others.

    Args:
        pace: of this machine.
        runs: busy traffic, already played.
    """

    def __init__(self, lab: Lab, pace: Pace, runs: Mapping[str, Run] | None = None) -> None:
        self.lab, self.pace, self.policies, self.budget = lab, pace, policies(lab), budget(lab)
        self.runs: dict[str, dict[str, Run]] = {name: {} for name in PACES}
        self.runs["busy"].update(runs or {})

    def explorer(self) -> Explorer:
        """The bench with its sliders."""
        panel = Explorer(
            self.draw,
            button="Run it",
            arrivals=buttons("arrivals", list(PACES), "busy"),
            policy=buttons("policy", list(POLICIES)),
            budget=choices("token budget of 'mixed'", [round(x * self.budget) for x in TIMES], self.budget),
        )
        return panel.showing(draw_runs(self.runs["busy"])) if self.runs["busy"] else panel

    def draw(self, arrivals: str, policy: str, budget: int) -> Iterator[Shown]:
        """Play it, live; then show it beside what was played before."""
        fields = self.policies[policy]
        if policy == "mixed":
            fields = {**fields, "max_num_batched_tokens": budget}
        name = f"mixed, {budget}" if policy == "mixed" and budget != self.budget else policy
        crowd = company(self.lab, self.pace, PACES[arrivals])
        session = self.lab.start(crowd, self.lab.config(**fields))
        while not session.wait(FRAME_S):
            yield draw_timeline(session.run(), title=f"{name}, {arrivals}: running …")
        self.runs[arrivals][name] = session.run()
        yield draw_runs(self.runs[arrivals], f"{arrivals}: who waits, and who pays?")


def draw_fleets(fleets: Mapping[str, FleetRun], title: str) -> Picture:
    """Policies at 70B: mean TTFT by cause, and the 99th percentile of the gaps."""
    return draw_policies(
        {name: simulated.mean_causes(run) for name, run in fleets.items()},
        {name: simulated_70b.itl(run, 99) for name, run in fleets.items()},
        who="TTFT at the client, mean, by cause",
        payer="ITL, p99",
        title=title,
    )


def at_70b(qps: float = 12.0) -> Explorer:
    """Every policy on a fleet of four replicas, one after the other, with sliders; pressed once."""

    def draw(qps: float, prefill_replicas: int, rtt_ms: int, new_connection: bool) -> Iterator[Shown]:
        title = f"70B, {simulated.REPLICAS} replicas, {qps:g} requests/s: who waits, and who pays?"
        wire = {"rtt_s": rtt_ms / 1000, "handshakes": 2 * new_connection}
        fleets = {}
        for policy in (*simulated.POLICIES, simulated.APART):
            split = {"prefill_replicas": prefill_replicas} if policy == simulated.APART else {}
            fleets[policy] = simulated.serve(policy, qps, **wire, **split)
            yield draw_fleets(fleets, title)

    panel = Explorer(
        draw,
        button="Simulate",
        qps=choices("requests per second", (0.5, 4, 8, 12, 16, 24), qps),
        prefill_replicas=choices("'disaggregated': prefill replicas", (1, 2, 3), 2),
        rtt_ms=choices("round trip to the client, ms", (0, 20, 80, 200), 20),
        new_connection=switch("a new TLS connection for each request: two more round trips"),
    )
    panel.press()
    return panel.wait()


def masks_table(found: list[MaskCost]) -> Html:
    rows = [
        (str(c.batch), seconds(c.plain), seconds(c.guided), seconds(c.mask), f"{c.mask / c.guided:.1%}") for c in found
    ]
    return as_table(("batch", "decode step", "with a schema", "masks in it", "share"), rows)


# ---------------------------------------------------------------- async scheduling

STEPS_SHOWN, LANE = 6, 26
"""Steps in the picture, and how high the lane of one processor is."""


def steps_at(host_ms: float, gpu_ms: float, overlaps: bool) -> list[tuple[float, float]]:
    """When the host begins to prepare each step, and when the GPU begins it; milliseconds.

    Args:
        overlaps: the host prepares a step while the GPU computes the one before.
    """
    host, gpu = 0.0, host_ms
    found = [(host, gpu)]
    for _ in range(STEPS_SHOWN - 1):
        host = gpu if overlaps else gpu + gpu_ms
        gpu = max(host + host_ms, gpu + gpu_ms)
        found.append((host, gpu))
    return found


def draw_async(gpu_ms: float, host_ms: float) -> Picture:
    """The host's and the GPU's part of some steps, one after the other and overlapped."""
    ways = {name: steps_at(host_ms, gpu_ms, overlaps) for name, overlaps in (("in turns", False), ("async", True))}
    span = ways["in turns"][-1][1] + gpu_ms
    scale = Scale(0, span, LEFT, WIDTH - RIGHT)
    body, told = "", []
    for i, (name, found) in enumerate(ways.items()):
        top = 20 + i * (2 * LANE + 24)
        for lane, (who, took, colour) in enumerate(
            (("host", host_ms, COLOURS[1]), ("GPU", gpu_ms, PHASE_COLOURS["decode"]))
        ):
            y = top + lane * LANE
            starts = [scale(step[lane]) for step in found]
            body += text(LEFT - 8, y + 14, f"{name}: {who}" if not lane else who, text_anchor="end")
            body += boxes([(x, y, scale(took) - scale(0) - 1, LANE - 6) for x in starts], fill=colour)
            body += "".join(text(x + 4, y + 14, str(n), size=11, fill="white") for n, x in enumerate(starts, 1))
        told.append(f"{name}: a token every {found[-1][1] - found[-2][1]:.1f} ms")
    bottom = 20 + 2 * (2 * LANE + 24)
    return Picture("; ".join(told), body, bottom, description="; ".join(told))


def async_explorer() -> Explorer:
    """Async scheduling, with a slider for each part of a step."""
    return Explorer(draw_async, gpu_ms=slider("GPU, ms a step", 1, 30, 6), host_ms=slider("host, ms a step", 1, 12, 3))
