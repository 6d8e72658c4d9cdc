"""Pictures of lesson 11b: the spike, the alarm and the canary over time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_chart, draw_panels
from course.lab.prices import dollars, gpu_price
from course.lab.style import ALARM, PHASE_COLOURS, number, seconds
from course.lab.svg import Picture
from course.lab.waiting import with_progress
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11b import run

# ---------------------------------------------------------------- the spike


def draw_story(spike: run.Spike, measure: str) -> Picture:
    """Arrivals, TTFT p99, replicas over time; doing nothing is the dashed ghost."""
    here, ghost = run.story(spike, measure), run.story(spike, "do nothing")
    middle = [start + run.WINDOW_S / 2 for start in here.windows()]
    arrivals = [Curve("all", middle, here.rate())]
    if any(overflow := here.rate(only_overflow=True)):
        arrivals.append(Curve("overflow", middle, overflow))
    ttft = [Curve("this measure", middle, here.ttft())]
    if measure != "do nothing":
        ttft.append(Curve("do nothing", middle, ghost.ttft(), "dashes"))
    replicas = Curve("replicas of the large model", *zip(*here.up))
    ends = [] if spike.gentle else [Mark("", x=run.STARTS), Mark("", x=min(run.STARTS + spike.length, run.ENDS))]
    panels = [
        Panel(arrivals, Axis("requests/s", low=0), ends),
        Panel(ttft, Axis("TTFT p99, s", log=True), [*ends, Mark("SLO", y=fleet.LIMITS.ttft)], height=120),
        Panel([replicas], Axis("replicas", low=0, whole=True), ends, height=60),
    ]
    again = f"within the SLO again after {seconds(here.back)}"
    if here.back == 0 or math.isinf(here.back):
        again = "never outside the SLO" if here.back == 0 else "not within the SLO again in this picture"
    title = f"{measure}: {again}; {here.share('within SLO'):.0%} within SLO"
    title += f"; {here.switches} switches" if here.switches else ""
    x = Axis(f"time, seconds (windows of {run.WINDOW_S:.0f} s, by when requests were sent)", low=0, high=run.ENDS)
    return draw_panels(title, panels, x, description=_told([here, ghost]))


def _told(stories: Sequence[run.SpikeStory]) -> str:
    cost = gpu_price()
    return "; ".join(
        f"{each.measure}: {each.share('within SLO'):.0%} within SLO, {each.share('small'):.0%} by the small model, "
        f"{each.share('refused'):.0%} refused, {dollars(each.gpu_hours * cost)} of GPUs"
        for each in stories
    )


def spikes() -> Explorer:
    """The spike with sliders."""

    return Explorer(
        lambda measure, times, length, cold, back_at, shape: draw_story(
            run.Spike(float(times), float(length), float(cold), int(back_at), shape == "a climb"), measure
        ),
        slow=True,
        measure=buttons("measure", list(run.MEASURES), "autoscaler"),
        times=slider("peak load, x the usual", 2, 6, 4),
        length=choices("how long, s", (20, 60, 120, 240), 60),
        cold=choices("cold start, s", (5, 30, 60, 120, 240), 120),
        back_at=choices("switch back at, open requests", (0, 10, 20, 39), 10),
        shape=buttons("shape", ["a spike", "a climb"]),
    )


def stories_table(stories: Mapping[str, run.SpikeStory], price: float) -> Html:
    """What became of every request, and what it cost.

    Args:
        price: dollars for a GPU and an hour.
    """
    rows = []
    for name, each in stories.items():
        back = (
            "not here"
            if each.back == float("inf")
            else "was never outside"
            if each.back == 0
            else f"after {seconds(each.back)}"
        )
        shares = (f"{each.share(kind):.1%}" for kind in ("within SLO", "small", "refused"))
        rows.append((name, back, *shares, f"${each.gpu_hours * price:.2f}"))
    return as_table(
        ("measure", "TTFT p99 within SLO again", "requests within SLO", "by the small model", "refused", "GPUs"), rows
    )


# ---------------------------------------------------------------- the alarm


def draw_alarm(load: float, patience: float, waits_for: str) -> Picture:
    """Queue wait, and time-outs, over time."""
    answer = run.LONG_ANSWER if waits_for == "the last word" else 150
    found = run.alarm(load, patience, waits_for, answer)
    starts = [i * run.ALARM_WINDOW_S for i in range(math.ceil(run.ALARM_ENDS / run.ALARM_WINDOW_S))]
    middle = [start + run.ALARM_WINDOW_S / 2 for start in starts]
    left_queue = list(zip(found.slot_at, found.wait))
    groups = ([wait for at, wait in left_queue if start <= at < start + run.ALARM_WINDOW_S] for start in starts)
    waits = [max(group, default=math.nan) for group in groups]
    left = [sum(s <= at < s + run.ALARM_WINDOW_S for at in found.gave_up) / run.ALARM_WINDOW_S for s in starts]
    moments = {"alarm": found.fired, "first time-out": found.first_timeout}
    marks = [Mark(name, x=moment) for name, moment in moments.items() if moment < run.ALARM_ENDS]
    wait = Curve(f"queue wait, longest of {run.ALARM_WINDOW_S:.0f} s", middle, waits, colour=PHASE_COLOURS["queue"])
    timeouts = Curve("time-outs", middle, left, colour=ALARM)
    panels = [
        Panel(
            [wait], Axis("queue wait, s", low=0, high=1.25 * patience), [*marks, Mark("", y=run.WORRY_S)], height=140
        ),
        Panel([timeouts], Axis("time-outs/s", low=0), [replace(mark, label="") for mark in marks]),
    ]
    if found.lead is None:
        words = "no client gives up"
    elif math.isinf(found.lead):
        words = "clients give up, and the alarm never fired"
    else:
        words = (
            f"the alarm fired {seconds(abs(found.lead))} {'before' if found.lead >= 0 else 'after'} the first time-out"
        )
    x = Axis(f"time, seconds; the load steps up at {run.OVERLOAD_STARTS:.0f}", low=0, high=run.ALARM_ENDS)
    told = f"Load {load:.0%} of capacity, patience {number(patience)} s for {waits_for}: {words}."
    return draw_panels(f"Load {load:.0%}: {words}", panels, x, description=told)


def alarms() -> Explorer:
    """The overload and the patience as sliders."""

    return Explorer(
        lambda load, patience, waits_for: draw_alarm(int(load[:-1]) / 100, float(patience), waits_for),
        slow=True,
        load=choices("load, from then on", ["80%", "110%", "130%", "200%", "400%"], "130%"),
        patience=choices("clients' patience, s", (5, 10, 20, 40), 10),
        waits_for=buttons("they wait for", list(run.PATIENCE)),
    )


# ---------------------------------------------------------------- the canary


def draw_canary(change: str, rate: float, window: int, limit: float, undo: str) -> Picture:
    """The canary's share of late requests beside the other replicas', with the rule that rolls it back."""
    found = run.rehearse(change, rate, window, limit, run.UNDO[undo])
    control = run.rehearse("nothing (an A/A test)", rate, window, limit, 0.0)
    shares = list(zip(found.moments, (100 * each for each in found.share)))
    up_to = max(1, sum(moment <= found.undone for moment, _ in shares))
    curves = [
        Curve("canary", *zip(*shares[:up_to])),
        Curve("the other replicas", list(control.moments), [100 * each for each in control.share], "dashes"),
    ]
    if up_to < len(shares):  # the run goes on with the mistake, to show what the rule spared
        curves.append(Curve("canary, had it stayed", *zip(*shares[up_to - 1 :]), "dashes"))
    marks = [Mark(f"roll back above {limit:.0%}", y=100 * limit)]
    words = "not rolled back in this run"
    if math.isfinite(found.detected):
        marks.append(Mark("rolled back", x=found.undone))
        words = f"detected after {seconds(found.detected)}, undone after {seconds(found.undone)}"
    end = max(found.moments[-1], found.undone if math.isfinite(found.undone) else 0)
    return draw_chart(
        f"{change}: {words}; {found.harmed} late requests",
        curves,
        Axis("time since the deploy, seconds", low=0, high=1.02 * end),
        Axis(f"late, % of the last {window} requests", low=0, high=105),
        marks,
        description=words,
    )


def canary() -> Explorer:
    """The change, the canary's traffic, the rule and the way back."""
    return Explorer(
        draw_canary,
        slow=True,
        change=buttons("the change", list(run.CHANGES)),
        rate=slider("requests/s at the canary", 0.5, 5.0, run.CANARY_RATE, 0.5),
        window=choices("the rule's window, requests", (10, 20, 50, 100, 200), run.RULE_WINDOW),
        limit=choices("roll back above this share late", (0.02, 0.05, 0.1, 0.2, 0.5), run.RULE_LIMIT),
        undo=buttons("how it's undone", list(run.UNDO)),
    )


def rules_table(rate: float = run.CANARY_RATE) -> Html:
    """Three rules against every change, rehearsed a few times each: how often they fire, and when."""
    rules = ((10, 0.1), (run.RULE_WINDOW, run.RULE_LIMIT), (200, 0.05))
    rows = []
    for change in with_progress(run.CHANGES, "rehearsing deploys"):
        row = [change]
        for window, limit in rules:
            found = [run.rehearse(change, rate, window, limit, 0.0, seed) for seed in range(run.REHEARSALS)]
            fired = [each.detected for each in found if math.isfinite(each.detected)]
            when = f", after {number(median(fired))} s" if fired else ""
            row.append(f"{len(fired)} of {run.REHEARSALS}{when}")
        rows.append(tuple(row))
    heads = (f"more than {limit:.0%} of the last {window}" for window, limit in rules)
    return as_table(("rolled back by the rule", *heads), rows)
