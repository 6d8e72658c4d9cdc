"""Pictures of lesson 11: the knee, the bounds, the waterfall from data sheet to replicas, and the worksheet."""

import math
from collections.abc import Callable, Sequence

from course.lab import simulated_70b
from course.lab.display import Html, as_table, stack
from course.lab.explorer import Explorer, buttons, choices, slider, switch
from course.lab.paper import Choice, Number, SheetSpec, Values
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_chart, draw_panels
from course.lab.prices import dollars, price_source
from course.lab.sheet import Refined, Sheet
from course.lab.style import ALARM, COLOURS, WIDTH, number, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, line, rect, text
from course.lessons.lesson_11 import fleet, run
from course.simulator.cost.bands import band_of
from course.simulator.deployment import Deployment

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

    def panel(y: Axis, value: Callable[[run.SlotsPoint], float], limit: float | None = None) -> Panel:
        marks = [*lines, Mark(number(value(here)), here.slots, value(here))]
        if limit is not None:
            marks.append(Mark(f"SLO {number(limit)}", y=limit))
        return Panel([Curve(y.label, slots, [value(point) for point in found.points])], y, marks)

    panels = [
        panel(Axis("tokens/s", low=0), lambda point: point.throughput),
        panel(Axis("TTFT p99, s", log=True), lambda point: point.ttft, found.slo.ttft),
        panel(Axis("TPOT p99, ms", low=0), lambda point: 1e3 * point.tpot, found.slo.tpot and 1e3 * found.slo.tpot),
        panel(Axis("goodput, 1/s", low=0), lambda point: point.goodput),
    ]
    title = f"{who}, {number(found.rate)} requests/s: max-batch {here.slots}: {here.in_time:.0%} within the SLO"
    title += f", {here.preemptions} preemptions" if here.preemptions else ""
    return draw_panels(
        title, panels, Axis("max-batch (max_num_seqs): requests that may run at the same time", log=True)
    )


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
        Axis("requests that may run at the same time, or clients", log=True),
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
    return as_table(("bound", "requests/s from one replica, at most", f"replicas for {number(ask.qps)}/s"), rows)


def how_many() -> Explorer:
    """The bounds with sliders."""

    return Explorer(
        lambda qps, prompt, answer, slots, gpus, stack: bounds_table(run.Ask(qps, prompt, answer, slots, gpus, stack)),
        slow=True,
        qps=slider("target, requests/s", 1, 200, 100),
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
            _tera(ask.flops_of_prompt),
        ),
        (
            f"{ask.qps:.0f} of them a second",
            f"{ask.qps:.0f} x {_tera(ask.flops_of_prompt)}",
            f"{_tera(need)}/s",
        ),
        ("one replica has", f"{ask.gpus} H100s, data sheet", f"{_tera(ask.peak)}/s"),
        (
            "so prompts alone need",
            f"{_tera(need)}/s over {_tera(ask.peak)}/s",
            f"{need / ask.peak:.1f} times the data sheet",
        ),
        (
            "at the share that large matrix products reach",
            f"/ {ask.share_reached:.0%}",
            f"{need / ask.peak / ask.share_reached:.1f} times",
        ),
        ("a request alone holds a slot for", "its prefill, then one step per token", seconds(stay)),
        (
            "slots needed, at least",
            f"{ask.qps:.0f} x {seconds(stay)} (Little's law)",
            f"{ask.qps * stay:.0f}, not {ask.slots}",
        ),
    ]
    return as_table(("", "worked out as", "result"), rows)


def _tera(flops: float) -> str:
    return f"{flops / 1e12:,.0f} TFLOP"


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
        lambda qps, prompt, headroom: draw_waterfall(qps, prompt, headroom / 100),
        button="Fill it in",
        qps=choices("requests per second", [10.0, 30.0, 100.0, 300.0], 100.0),
        prompt=choices("prompt, tokens (answer: 150)", [500, 1500, 4000], 1500),
        headroom=slider("headroom, %", 0, 50, 20, 5),
    )


# ---------------------------------------------------------------- the worksheet

CARDS = ("h100-sxm", "h200", "a100-80gb", "b200")
GPUS = (2, 4, 8)
KNEE_ERROR = 0.1
"""The worksheet's runs are short: its knee is good to about this share."""
MOST_DRAWN = 400
"""GPUs; with more, a square stands for several."""
SQUARE, GAP = 9, 1.5


def draw_fleet(filled: run.Filled) -> Picture:
    """The answer: replicas, GPUs, dollars, and a square a GPU, those of a replica side by side."""
    found, each = filled.found, filled.gpus
    gpus = found.replicas * each
    per = math.ceil(gpus / MOST_DRAWN)
    answers = ((found.replicas, "replicas"), (gpus, "GPUs"), (f"${found.cost_per_hour:,.0f}", "an hour"))
    body = "".join(
        text(150 * i, 26, str(value), size=26, font_weight="bold", fill=INK) + text(150 * i, 44, name, fill=SOFT)
        for i, (value, name) in enumerate(answers)
    )
    x, y = 0.0, 56.0
    for i in range(math.ceil(gpus / per)):
        body += rect(x, y, SQUARE, SQUARE, fill=COLOURS[0])
        x += SQUARE + GAP + (5 if per == 1 and (i + 1) % each == 0 else 0)
        if x > WIDTH - each * (SQUARE + GAP) and (per > 1 or (i + 1) % each == 0):
            x, y = 0.0, y + SQUARE + 4
    told = f"{found.replicas} replicas of {each} {filled.hardware}, {gpus} GPUs, {dollars(found.cost_per_hour)} an hour"
    scale = f"; a square is {per} GPUs" if per > 1 else ""
    return Picture("How many GPUs is that?", body, y + SQUARE + 6, description=told + scale)


def explained(filled: run.Filled) -> Html:
    """The answer, then a row a line: what it says, and where it comes from."""
    return stack(draw_fleet(filled), lines_of(filled))


def lines_of(filled: run.Filled) -> Html:
    """Where the answer comes from."""
    found, headroom = filled.found, filled.headroom
    limits = found.limits
    priced = price_source(filled.hardware) if filled.price is None else f"{dollars(filled.price)}, as entered"
    spent = ", ".join(
        f"{name} {share:.0%}" for name, share in sorted(limits.step_time.items(), key=lambda each: -each[1])
    )
    million = found.input_cost_per_million, found.output_cost_per_million
    rows = [
        (
            "knee of one replica",
            f"{number(found.knee)} requests/s",
            f"the highest rate at which {found.target:.0%} meet the SLO, by bisection over {len(found.curve)} runs",
        ),
        (
            "replicas",
            str(found.replicas),
            f"{number(found.demand)} / ({number(found.knee)} x {1 - headroom:.2f}), rounded up; {headroom:.0%} is "
            "headroom for spikes, failed replicas and errors of the simulation",
        ),
        ("what binds", limits.binding, limits.why),
        ("a step's time", spent or "not known", "a little past the knee"),
        ("dollars an hour", dollars(found.cost_per_hour), f"replicas x GPUs x price; {priced}"),
        (
            "dollars for 1000 requests",
            dollars(1000 * found.cost_per_request),
            "if as many come every hour; an idle GPU costs the same",
        ),
        (
            "a million input tokens",
            dollars(million[0]),
            f"at the knee prompts add {found.prefill_share:.0%} of the busy time; more on a full replica (lesson 11c)",
        ),
        ("a million output tokens", dollars(million[1]), "the rest of the bill, over the answers' tokens"),
    ]
    return as_table(("line", "value", "where it comes from"), rows)


def refined(asked: Values) -> Refined:
    """The worksheet by simulation, for what the reader has asked.

    Raises:
        MinillmError: such a replica cannot be, or no number of them meets the SLO.
    """
    headroom, gpus = asked["headroom"] / 100, int(asked["gpus"])
    filled = run.plan(
        float(asked["qps"]),
        int(asked["prompt"]),
        int(asked["output"]),
        float(asked["ttft"]),
        asked["itl"] / 1000,
        hardware=asked["card"],
        gpus=gpus,
        headroom=headroom,
        price=asked["price"] or None,
    )
    on = fleet.deployment(profile=asked["card"], tp=gpus, max_num_seqs=fleet.SLOTS)
    band = band_of(on.profile, on.model, on.placement)
    off = (1.0, 1.0) if band is None else (1 + band.tpot.low / 100, 1 + band.tpot.high / 100)
    exact = filled.found.demand / (filled.found.knee * (1 - headroom))
    low, high = (1 - KNEE_ERROR) * min(off[0], 1.0) * exact, (1 + KNEE_ERROR) * max(off[1], 1.0) * exact
    shown = stack(lines_of(filled), simulated_70b.error_band(on))
    return Refined(filled.found.replicas, math.ceil(low), math.ceil(high), shown.html)


def sheet() -> Sheet:
    """The worksheet of 70B: the answer on paper while a slider moves, by simulation once it rests."""
    return Sheet(asked_of_70b(), refined)


def asked_of_70b() -> SheetSpec:
    """What the worksheet asks."""

    def replica(asked: Values) -> Deployment:
        return fleet.deployment(profile=asked["card"], tp=int(asked["gpus"]), max_num_seqs=fleet.SLOTS)

    fields = (
        Choice("card", "card", "A replica of 70B", CARDS, "h100-sxm"),
        Choice("gpus", "GPUs in a replica", "A replica of 70B", tuple(map(str, GPUS)), "4"),
        Number("price", "own price (0: list price)", "A replica of 70B", "$/h", 0.0, 12.0, 0.0),
        Number("headroom", "headroom", "A replica of 70B", "%", 0, 60, 20, whole=True),
        Number("qps", "requests a second", "Traffic and SLO", "/s", 1, 200, 100),
        Number("prompt", "prompt, on average", "Traffic and SLO", "tokens", 100, 6000, 1500, whole=True),
        Number("output", "answer, on average", "Traffic and SLO", "tokens", 10, 1000, 150, whole=True),
        Number("ttft", "TTFT at most", "Traffic and SLO", "s", 0.5, 5.0, 2.0),
        Number("itl", "TPOT at most", "Traffic and SLO", "ms", 20, 200, 50),
    )
    return SheetSpec(fields, replica, "worksheet.answer")


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
        [Mark("training starts", x=end)],
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
