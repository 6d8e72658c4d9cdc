"""The claims of lesson 11: capacity, money, spikes."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from course.lab.claims import Claim, say
from course.lab.lab import Lab
from course.lab.lesson_11 import cold, fleet, hardware, knee, money, routing, spike, traffic, warning
from course.lab.lesson_11.bounds import Ask
from course.lab.lesson_11.cold import Sleep
from course.lab.lesson_11.hardware import ARTICLE_GAIN, FEW_A_DAY, Home
from course.lab.lesson_11.knee import Crowd, Sweep
from course.lab.lesson_11.money import GPUS, Trouble, dollars
from course.lab.lesson_11.routing import Played, Route
from course.lab.lesson_11.spike import Story
from course.lab.lesson_11.waiting import shown
from course.lab.lesson_11.warning import Alarm
from course.lab.lesson_11.worksheet import plan
from course.lab.style import seconds

CLIMBS = 1.15
"""A p99 that grows by less from one setting to another does not climb."""
ARTICLE_KNEE = (24, 48)
SAME, MOSTLY = 0.05, 0.5
SHORTER = 0.5
"""A wait below this share of another one is shorter beyond doubt."""
RARELY = 0.1
"""Of the requests: fewer than these are few."""
COIN = 0.5
"""A router that is wrong as often as this knows nothing."""


def a8(large: fleet.Served, small: fleet.Served, qps: float) -> Claim:
    """Two models on the same GPUs, under the same arrivals, of which the large one cannot serve all."""
    waits = large.p("queue", 99), small.p("queue", 99)
    if waits[0] < fleet.PROMISE.ttft:
        verdict = say("A8.not_shown")
    elif waits[1] < SHORTER * waits[0]:
        verdict = say("A8.wrong")
    else:
        verdict = say("A8.holds")
    return Claim(
        "A8",
        say(
            "A8.measured",
            qps=qps,
            waits=waits,
            large_ttft=large.p("ttft", 99),
            small_ttft=small.p("ttft", 99),
            large_tpot=large.p("tpot", 99),
            small_tpot=small.p("tpot", 99),
        ),
        verdict,
    )


def a10(sweeps: Mapping[str, Sweep], crowds: Sequence[Crowd]) -> Claim:
    """Sweeps of max-batch by name; and load tests, the smallest crowd first."""
    rises = {name: sweep.points[-1].ttft > CLIMBS * min(p.ttft for p in sweep.points) for name, sweep in sweeps.items()}
    bests = {name: sweep.best.seats for name, sweep in sweeps.items()}
    crowded = crowds[-1].ttft > CLIMBS * min(crowd.ttft for crowd in crowds)
    inside = sum(ARTICLE_KNEE[0] <= best <= ARTICLE_KNEE[1] for best in bests.values())
    grows = all(sweep.points[-1].throughput > CLIMBS * sweep.points[0].throughput for sweep in sweeps.values())
    if any(rises.values()):
        verdict = say("A10.only_when", those=_those(rises))
    else:
        within = f"{ARTICLE_KNEE[0]} to {ARTICLE_KNEE[1]}"
        often = inside > len(bests) / 2
        verdict = say("A10.only_when_2", within=within) if often else say("A10.wrong")
        verdict += say("A10.more")
        if crowded:
            verdict += say("A10.more_2")
        verdict += f"Of {len(bests)} kinds of traffic here, {inside} wanted {within}."
    if grows:
        verdict += say("A10.more_3")
    at = "; ".join(
        say("A10.at", name=name, first=s.points[0], last=s.points[-1], best=s.best)
        + (f", KV full at about {s.room:.0f}" if s.room else "")
        for name, s in sweeps.items()
    )
    few, many = crowds[0], crowds[-1]
    tests = f"{few.clients} to {many.clients} clients: TTFT p99 {seconds(few.ttft)} to {seconds(many.ttft)}"
    return Claim("A10", say("A10.measured", at=at, tests=tests), verdict)


def _those(flags: Mapping[str, bool]) -> str:
    return ", ".join(name for name, flag in flags.items() if flag)


def a16(ask: Ask, flood: fleet.Served, knee_qps: float) -> Claim:
    """The point of operation, on paper and simulated.

    Args:
        flood: all that is asked, sent to one replica.
        knee_qps: requests per second that one replica serves within the promise.
    """
    need = ask.qps * ask.flops_of_prompt / ask.peak
    share = traffic.served_share(flood, ask.qps)
    replicas = math.ceil(ask.qps / knee_qps)
    if need > 1:
        verdict = say("A16.wrong", replicas=replicas)
    elif share < 1 - SAME:
        verdict = say("A16.wrong_2")
    else:
        verdict = say("A16.holds")
    return Claim(
        "A16", say("A16.measured", need=need, ask=ask.qps * ask.shortest_stay, share=share, knee_qps=knee_qps), verdict
    )


def a20(troubles: Sequence[Trouble], price: float) -> Claim:
    """Each trouble mended by replicas, and by a field. Price: dollars for a GPU and hour."""
    found, free, paid, neither = [], [], [], []
    for trouble in troubles:
        before, after = trouble.enough(False), trouble.enough(True)
        is_free = after == 1
        (free if is_free else paid if before is not None else neither).append(trouble.name)
        by_replicas = (
            "no number of them" if before is None else f"{before}, {dollars((before - 1) * GPUS * price)} more an hour"
        )
        by_field = f"mends it with {'one replica' if is_free else f'{after} replicas' if after else 'none of them'}"
        found.append(f"{trouble.name}: replicas needed {by_replicas}; the field ({trouble.change}) {by_field}")
    if free and (paid or neither):
        verdict = say("A20.only_when", free=", ".join(free))
        if paid:
            verdict += say("A20.more", paid=", ".join(paid))
    elif free:
        verdict = say("A20.holds")
    else:
        verdict = say("A20.wrong")
    return Claim("A20", "; ".join(found) + ".", verdict)


def a21(steep: Mapping[str, Story], gentle: Mapping[str, Story]) -> Claim:
    """The same measures under a spike, and under a climb that stays. Which is best for each?"""
    bests = [
        max(each, key=lambda name: (round(each[name].share("in time"), 2), -each[name].gpu_hours))
        for each in (steep, gentle)
    ]
    scaler, nothing = (
        [each[name].share("in time") for each in (steep, gentle)] for name in ("autoscaler", "do nothing")
    )
    gain = [scaler[i] - nothing[i] for i in range(2)]
    if bests[0] == bests[1] and gain[1] > gain[0] + SAME:
        verdict = say("A21.only_when", bests=bests)
    elif gain[1] > gain[0] + SAME:
        verdict = say("A21.holds")
    elif bests[0] == bests[1]:
        verdict = say("A21.wrong")
    else:
        verdict = say("A21.not_shown")
    told = "; ".join(
        f"{kind}: "
        + ", ".join(
            f"{name} {story.share('in time'):.0%} (refused {story.share('refused'):.0%})"
            for name, story in each.items()
        )
        for kind, each in (("spike, in time", steep), ("climb, in time", gentle))
    )
    return Claim("A21", f"{told}.", verdict)


def d20(homes: Mapping[str, Home]) -> Claim:
    """The same few requests on several GPUs; the first two are the article's old and new one."""
    old, new, *fields = homes.values()
    gain, ratio = old.e2e / new.e2e, new.per_day / old.per_day
    cheapest = min(homes.values(), key=lambda each: each.per_day)
    told = "; ".join(
        f"{h.name}: E2E {seconds(h.e2e)}, {dollars(h.per_day)} a day, load {h.load:.2%}" for h in homes.values()
    )
    if cheapest in fields and cheapest.per_day < old.per_day:
        verdict = say(
            "D20.only_when",
            gain=gain,
            old_ratio=old.ttft / new.ttft,
            tpot_ratio=old.tpot / new.tpot,
            ratio=ratio,
            cheapest=cheapest,
            cheapest_dollars=dollars(cheapest.per_day),
        )
    else:
        verdict = say("D20.holds", gain=gain)
    if abs(gain / ARTICLE_GAIN - 1) > 0.25:
        verdict += f" It is not {ARTICLE_GAIN} times: that depends on the share of prompts in the work."
    return Claim("D20", say("D20.measured", few_a_day=FEW_A_DAY, told=told), verdict)


def e2(queued: Mapping[str, Alarm], written: Alarm) -> Claim:
    """Overloads by name whose clients wait for the first word; and one without overload, for the last word."""
    leads = {name: alarm.lead for name, alarm in queued.items() if alarm.lead is not None}
    other = written.lead
    if not leads:
        verdict = say("E2.not_shown")
    elif min(leads.values()) <= 0:
        verdict = say("E2.wrong")
    elif other is not None and other < min(leads.values()):
        verdict = say("E2.only_when")
    else:
        verdict = say("E2.holds")
    told = "; ".join(
        f"{name}: the wait passed {seconds(warning.WORRY_S)} {seconds(lead)} before the first time-out"
        for name, lead in leads.items()
    )
    last = (
        "nobody left"
        if other is None
        else "the bell never rang before people left"
        if math.isinf(other)
        else f"it rang {seconds(abs(other))} {'before' if other > 0 else 'after'} the first left"
    )
    return Claim("E2", say("E2.measured", told=told or "no time-outs", last=last), verdict)


def e3(played: Mapping[float, Sleep]) -> Claim:
    """Scale to zero by requests an hour."""
    rows = [say("E3.rows", rate=rate, p=p) for rate, p in played.items()]
    rare, often = played[min(played)], played[max(played)]
    if rare.share_of_ttft < MOSTLY:
        verdict = say("E3.wrong")
    elif often.share_of_ttft < MOSTLY:
        fewest = min(p.cold for p in played.values() if p.share_of_ttft >= MOSTLY)
        verdict = say("E3.only_when", rare=rare)
        if fewest < RARELY:
            verdict += say("E3.more", fewest=fewest)
        verdict += "A warm pool ends it, and costs as much as a busy one."
    else:
        verdict = say("E3.holds")
    return Claim("E3", "; ".join(rows) + ".", verdict)


def e8(caught: Route, uncaught: Route, plain: Played, routed: Played, bad: Played) -> Claim:
    """Money on paper, with wrong answers caught or not; time simulated: no router, a good one, a bad one."""
    median = [float(np.median(run.ttft)) for run in (plain, routed, bad)]
    borders = ["any rate" if r.break_even is None else f"up to {r.break_even:.0%}" for r in (caught, uncaught)]
    twice = float(np.median(bad.e2e[bad.twice])) if bad.twice.any() else math.nan
    if caught.break_even == 0.0:
        verdict = say("E8.wrong")
    elif uncaught.break_even is not None and (
        caught.break_even is None or caught.break_even > COIN > uncaught.break_even
    ):
        verdict = say("E8.only_when", uncaught_ratio=uncaught.harm / uncaught.large, borders=borders)
    else:
        verdict = say("E8.holds", borders=borders)
    slow = "" if math.isnan(twice) else f" Who was asked twice waited {seconds(twice)} in all, p50."
    return Claim(
        "E8",
        say(
            "E8.measured",
            caught=dollars(1000 * caught.large),
            routed_dollars=dollars(1000 * caught.routed(0.0)),
            borders=borders,
            uncaught=uncaught,
            uncaught_ratio=uncaught.harm / uncaught.large,
            median=median,
            slow=slow,
        ),
        verdict,
    )


# ---------------------------------------------------------------- small experiments

OVERLOAD_QPS = 5.0


def two_models() -> tuple[fleet.Served, fleet.Served, float]:
    """70B and 8B on the same four GPUs, under more than 70B can do."""
    asked = fleet.asking(1500, 150)
    runs = (fleet.served(asked, OVERLOAD_QPS, 300, model=model) for model in (fleet.MODEL, routing.SMALL))
    return *runs, OVERLOAD_QPS


def knees() -> dict[str, Sweep]:
    """Four kinds of traffic."""
    kinds = {
        "1500 + 150 tokens, load 80%": (1500, 150, 0.8),
        "1500 + 150, load 90%": (1500, 150, 0.9),
        "500 + 150, load 80%": (500, 150, 0.8),
        "4000 + 150, load 80%": (4000, 150, 0.8),
    }
    return {name: knee.sweep(*kind) for name, kind in shown(kinds.items(), "simulating knees")}


def knee_rate() -> float:
    """Requests per second that one 70B serves within the promise, of A16's traffic."""
    return plan().found.knee


def alarm_runs() -> tuple[dict[str, Alarm], Alarm]:
    """Three overloads; and long answers without one."""
    queued = {f"load {load:.0%}": warning.alarm(load, 10.0) for load in (1.1, 1.3, 2.0)}
    return queued, warning.alarm(0.8, 20.0, "the last word", warning.LONG_ANSWER)


def routes(price: float) -> tuple[Route, Route, Played, Played, Played]:
    """Money and time of routing. Price: dollars for a GPU and hour."""
    small, large = routing.cost_of(routing.SMALL, routing.SMALL_GPUS, price), routing.cost_of(fleet.MODEL, GPUS, price)
    return (
        Route(small, large),
        Route(small, large, caught=0.5, harm=30 * large),
        *(routing.play(w) for w in (-1.0, 0.0, 0.3)),
    )


MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A8": lambda lab: a8(*two_models()),
    "A10": lambda lab: a10(knees(), knee.crowds()),
    "A16": lambda lab: a16(Ask(), traffic.a_hundred(), knee_rate()),
    "A20": lambda lab: a20(list(money.TROUBLES.values()), money.gpu_price()),
    "A21": lambda lab: a21(spike.stories(spike.Spike()), spike.stories(spike.Spike(gentle=True))),
    "D20": lambda lab: d20(hardware.homes()),
    "E2": lambda lab: e2(*alarm_runs()),
    "E3": lambda lab: e3(cold.played()),
    "E8": lambda lab: e8(*routes(money.gpu_price())),
}
