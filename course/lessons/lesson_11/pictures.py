"""Pictures of lesson 11: the knee, the bounds, the waterfall from data sheet to replicas, and the worksheet."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices, slider, switch
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_chart, draw_panels
from course.lab.prices import dollars, price_source
from course.lab.style import ALARM, COLOURS, WIDTH, number, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, line, rect, text
from course.lessons.lesson_11 import fleet, run
from course.simulator.cost.hardware import CATALOGUE
from minillm.core.errors import MinillmError

# ---------------------------------------------------------------- the knee

PROMPTS = (500, 1500, 4000)
ANSWERS = (150, 600)
LOADS = {f"{load}%": load / 100 for load in (50, 70, 80, 90, 100, 120)}


def draw_knee(found: run.Sweep, at: int, who: str) -> Picture:
    """Four panels over max-batch, with the operating point as a line through them.

    Args:
        who: whose curve it is.
    """
    slots = [point.slots for point in found.points]
    here = found.at(at)
    lines = [Mark("", x=here.slots)]
    if found.room and found.room <= slots[-1]:
        lines.append(Mark("KV full", x=found.room))

    def panel(y: Axis, value: Callable[[run.KneePoint], float], limit: float | None = None) -> Panel:
        marks = [*lines, Mark(number(value(here)), here.slots, value(here))]
        if limit is not None:
            marks.append(Mark(f"SLO {number(limit)}", y=limit))
        return Panel([Curve(y.label, slots, [value(point) for point in found.points])], y, marks)

    panels = [
        panel(Axis("tokens/s", low=0), lambda point: point.throughput),
        panel(Axis("TTFT p99, s", log=True), lambda point: point.ttft, found.slo.ttft),
        panel(Axis("TPOT p99, s", low=0), lambda point: point.tpot, found.slo.tpot),
        panel(Axis("goodput, 1/s", low=0), lambda point: point.goodput),
    ]
    title = f"{who}, {number(found.rate)} requests/s: max-batch {here.slots} keeps {here.in_time:.0%} within SLO"
    title += f", {here.preemptions} preemptions" if here.preemptions else ""
    return draw_panels(title, panels, Axis("max-batch (max_num_seqs): requests that may run at once", log=True))


def knee_of_70b() -> Explorer:
    """70B with sliders: place the operating point, change the traffic under it."""

    def draw(at: int, prompt: int, answer: int, load: str, gpus: str, stack: str) -> Picture:
        found = run.sweep(prompt, answer, LOADS[load], stack=stack, tp=int(gpus[0]))
        return draw_knee(found, at, f"70B on {gpus}, {load} load")

    return Explorer(
        draw,
        slow=True,
        at=choices("operating point: max-batch", run.SLOTS, 24),
        prompt=choices("prompts, tokens (mean)", PROMPTS, 1500),
        answer=choices("answers, tokens (mean)", ANSWERS, 150),
        load=choices("load", list(LOADS), "80%"),
        gpus=buttons("replica", ["4 H100s", "2 H100s"]),
        stack=buttons("serving stack", list(fleet.STACKS)),
    )


def draw_limit_or_load(limit: run.Sweep, load: Sequence[run.LoadTestPoint]) -> Picture:
    """TTFT p99 against two numbers that are both called batch size."""
    curves = [
        Curve(
            f"max_num_seqs varies, at {number(limit.rate)} requests/s",
            [p.slots for p in limit.points],
            [p.ttft for p in limit.points],
        ),
        Curve("the number of clients varies, slots for all", [c.clients for c in load], [c.ttft for c in load]),
    ]
    return draw_chart(
        "Two curves called 'TTFT against batch': which way do they bend?",
        curves,
        Axis("requests that may run at once, or clients", log=True),
        Axis("TTFT p99, s", log=True),
        [Mark("SLO", y=limit.slo.ttft)] if limit.slo.ttft else (),
    )


def place(found: run.RealKnee) -> Explorer:
    """This machine's knee, with a slider for the operating point."""
    sweep = found.sweep
    slots = tuple(found.runs)

    return Explorer(
        lambda at: draw_knee(sweep, at, "this machine"),
        slow=True,
        at=choices("operating point: max-batch", slots, slots[len(slots) // 2]),
    )


# ---------------------------------------------------------------- one replica, on paper


def bounds_table(ask: run.Ask) -> Html:
    """A row a bound: what it allows, and how many replicas it would take."""
    rows = [(name, f"{number(rate)}/s", str(math.ceil(ask.qps / rate))) for name, rate in ask.bounds().items()]
    return as_table(("bound", "requests per second of one replica, at most", f"replicas for {number(ask.qps)}/s"), rows)


def how_many() -> Explorer:
    """The bounds with sliders."""

    return Explorer(
        lambda qps, prompt, answer, slots, gpus, stack: bounds_table(run.Ask(qps, prompt, answer, slots, gpus, stack)),
        slow=True,
        qps=slider("asked, requests/s", 1, 200, 100),
        prompt=choices("prompts, tokens", (100, 300, 500, 1000, 1500, 3000, 6000), 1500),
        answer=choices("answers, tokens", (1, 20, 50, 150, 500, 1000), 150),
        slots=choices("max-batch", (8, 16, 32, 64, 128, 256), 64),
        gpus=choices("H100s", (2, 4, 8), 4),
        stack=choices("serving stack", fleet.STACKS),
    )


def envelope(ask: run.Ask) -> Html:
    """The back of the envelope, a line a step."""
    need = ask.qps * ask.flops_of_prompt
    stay = ask.shortest_stay
    rows = [
        (
            "a prompt",
            f"{ask.prompt} tokens x 2 x {ask.params / 1e9:.1f} billion weights",
            f"{ask.flops_of_prompt:.2g} FLOP",
        ),
        (f"{ask.qps:.0f} of them a second", f"{ask.qps:.0f} x {ask.flops_of_prompt:.2g}", f"{need:.2g} FLOP/s"),
        ("all there is", f"{ask.gpus} H100s, data sheet", f"{ask.peak:.2g} FLOP/s"),
        ("so prompts alone need", f"{need:.2g} / {ask.peak:.2g}", f"{need / ask.peak:.1f} times the data sheet"),
        ("of what products reach", f"/ {ask.share_reached:.0%}", f"{need / ask.peak / ask.share_reached:.1f} times"),
        ("a lone request keeps a slot for", "its prompt, then one step a token", seconds(stay)),
        (
            "slots that are needed at least",
            f"{ask.qps:.0f} x {seconds(stay)} (Little's law)",
            f"{ask.qps * stay:.0f}, not {ask.slots}",
        ),
    ]
    return as_table(("", "how", "that is"), rows)


# ---------------------------------------------------------------- from the data sheet to replicas

TOP, ROW = 14, 34


def draw_waterfall(qps: float, prompt: int, headroom: float) -> Picture:
    """Each stage as a bar; what it takes off is pale."""
    found = run.waterfall_stages(run.Ask(qps=qps, prompt=prompt), headroom)
    scale = Scale(0, 1.1 * max(found.values()), 250, WIDTH - 60)
    body, before = "", None
    for i, (name, value) in enumerate(found.items()):
        y = TOP + ROW * i
        body += text(242, y + 16, name, text_anchor="end")
        if before is not None:
            body += rect(scale(value), y, scale(before) - scale(value), 22, fill=ALARM, fill_opacity=0.18)
        body += rect(scale(0), y, scale(value) - scale(0), 22, fill=COLOURS[0])
        body += text(scale(max(value, before or 0)) + 6, y + 16, f"{number(value)}/s", fill=SOFT)
        before = value
    replicas = math.ceil(qps / value)
    bottom = TOP + ROW * len(found)
    body += line(250, bottom, WIDTH - 60, bottom)
    words = f"{qps:g} requests/s / {number(value)} = {replicas} replicas of 4 H100s"
    body += text(250, bottom + 22, words, font_weight="bold", fill=INK)
    told = ", ".join(f"{name}: {number(each)}/s" for name, each in found.items())
    return Picture("Where do a replica's requests per second go?", body, bottom + 32, description=f"{told}. {words}")


def waterfall() -> Explorer:
    return Explorer(
        draw_waterfall,
        button="Fill it in",
        qps=choices("requests per second", [10.0, 30.0, 100.0, 300.0], 100.0),
        prompt=choices("prompt, tokens (answer: 150)", [500, 1500, 4000], 1500),
        headroom=slider("headroom", 0.0, 0.5, 0.2, 0.05),
    )


# ---------------------------------------------------------------- the worksheet

WORKSHEET_HARDWARE = ("h100-sxm", "h200", "a100-80gb", "b200")


def explained(filled: run.Filled) -> Html:
    """A row a line: what it says, and where it comes from."""
    found, gpus, headroom = filled.found, filled.gpus, filled.headroom
    limits = found.limits
    priced = price_source(filled.hardware) if filled.price is None else f"{dollars(filled.price)}, as entered"
    spent = ", ".join(
        f"{name} {share:.0%}" for name, share in sorted(limits.step_time.items(), key=lambda each: -each[1])
    )
    million = found.input_cost_per_million, found.output_cost_per_million
    rows = [
        ("asked", f"{number(found.demand)} requests/s", "your traffic at its highest hour"),
        (
            "knee of one replica",
            f"{number(found.knee)} requests/s",
            f"the highest rate at which {found.target:.0%} meet the SLO, by bisection over {len(found.curve)} runs",
        ),
        ("left unused", f"{headroom:.0%} of the knee", "for spikes, failed replicas, and errors of the simulation"),
        (
            "replicas",
            f"{found.replicas} of {gpus} GPUs",
            f"{number(found.demand)} / ({number(found.knee)} x {1 - headroom:.2f}), rounded up",
        ),
        ("GPUs", str(found.replicas * gpus), filled.hardware),
        ("what binds", limits.binding, limits.why),
        ("a step's time", spent or "not known", "a little past the knee"),
        ("dollars an hour", dollars(found.cost_per_hour), f"replicas x GPUs x price; {priced}"),
        (
            "dollars for 1000 requests",
            dollars(1000 * found.cost_per_request),
            "if as many come at every hour; an idle GPU costs the same",
        ),
        (
            "a million input tokens",
            dollars(million[0]),
            f"at the knee prompts add {found.prefill_share:.0%} of the busy time; more on a full replica, lesson 11c's",
        ),
        ("a million output tokens", dollars(million[1]), "the rest of the bill, over the answers' tokens"),
    ]
    return as_table(("line", "value", "where it comes from"), rows)


def sheet() -> Explorer:
    """The worksheet with sliders and a button."""

    def draw(tpot: int, headroom: int, price: float, **asked: Any) -> Iterator[Html]:
        yield Html("<p><em>simulating: looking for the knee …</em></p>", "simulating")
        try:
            filled = run.plan(tpot=tpot / 1000, headroom=headroom / 100, price=price or None, **asked)
        except MinillmError as error:
            raise ValueError(str(error)) from None
        yield explained(filled)

    return Explorer(
        draw,
        button="Fill it in",
        qps=slider("asked, requests/s", 1, 200, 100),
        prompt=choices("prompts, tokens (mean)", (200, 500, 1500, 4000), 1500),
        answer=choices("answers, tokens (mean)", (20, 150, 400), 150),
        ttft=choices("TTFT at most, s", (0.5, 1.0, 2.0, 5.0), 2.0),
        tpot=choices("TPOT at most, ms", (25, 40, 50, 100, 200), 50),
        hardware=buttons("GPU", [name for name in WORKSHEET_HARDWARE if name in CATALOGUE]),
        gpus=choices("GPUs in a replica", (2, 4, 8), 4),
        headroom=slider("left unused, %", 0, 60, 20),
        price=slider("dollars for a GPU and hour (0: catalogue)", 0.0, 12.0, 0.0, 0.01),
    )


# ---------------------------------------------------------------- rollouts

WAITS_FOR = {"all of them": 1.0, "90% of them": 0.9, "80% of them": 0.8}


def draw_rollouts(count: int, spread: float, waits_for: str, speculates: bool) -> Picture:
    """How many answers are still running, until the training step can begin."""
    job = run.Rollouts.drawn(count, spread, speculates)
    times, running = zip(*job.timeline())
    end = job.done_s(WAITS_FOR[waits_for])
    last_tenth = 1 - job.done_s(0.9) / job.done_s()
    tokens = sum(min(length, _length_at(job, end)) for length in job.lengths)
    tail = f"the last tenth would take {last_tenth:.0%} of the whole"
    title = f"{seconds(end)} for a training step, {number(tokens / end)} tokens/s; {tail}"
    return draw_chart(
        title,
        [Curve("answers still running", times, running)],
        Axis("seconds since the step began"),
        Axis("answers", low=0),
        [Mark("training goes on", x=end)],
    )


def _length_at(job: run.Rollouts, moment: float) -> float:
    """Tokens that those still running have by then."""
    before = max(i for i, (now, _) in enumerate(job.timeline()) if now <= moment)
    return job.lengths[min(before, len(job.lengths) - 1)]


def rollouts() -> Explorer:
    """An 8B's rollouts on one H100: how long is the tail, and what shortens it?"""
    return Explorer(
        draw_rollouts,
        count=choices("rollouts on a replica", [16, 32, 64], 64),
        spread=slider("spread of lengths (σ of their logarithm)", 0.0, 1.2, 0.8, 0.2),
        waits_for=buttons("training waits for", list(WAITS_FOR)),
        speculates=switch("speculate where it's faster (α = 0.7, free drafts of 4)"),
    )
