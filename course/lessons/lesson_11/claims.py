"""The claims of lesson 11: capacity, money, spikes."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lab.style import seconds
from course.lab.waiting import with_progress
from course.lessons.lesson_11 import cold, fleet, hardware, knee, money, routing, spike, traffic, warning
from course.lessons.lesson_11.bounds import Ask
from course.lessons.lesson_11.cold import Sleep
from course.lessons.lesson_11.hardware import ARTICLE_GAIN, FEW_A_DAY, GpuOption
from course.lessons.lesson_11.knee import Crowd, Sweep
from course.lessons.lesson_11.money import GPUS, Trouble, dollars
from course.lessons.lesson_11.routing import Played, Route
from course.lessons.lesson_11.spike import Story
from course.lessons.lesson_11.warning import Alarm
from course.lessons.lesson_11.worksheet import plan

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
    is_shorter = waits[1] < SHORTER * waits[0]
    return conclude(
        "A8", "not_shown" if waits[0] < fleet.LIMITS.ttft else "wrong" if is_shorter else "holds", qps=qps,
        waits=waits, large_ttft=large.p("ttft", 99), small_ttft=small.p("ttft", 99), large_tpot=large.p("tpot", 99),
        small_tpot=small.p("tpot", 99),
    )  # fmt: skip


def a10(sweeps: Mapping[str, Sweep], crowds: Sequence[Crowd]) -> Claim:
    """Sweeps of max-batch by name; and load tests, the smallest crowd first."""
    rises = [n for n, sweep in sweeps.items() if sweep.points[-1].ttft > CLIMBS * min(p.ttft for p in sweep.points)]
    inside = sum(ARTICLE_KNEE[0] <= sweep.best.slots <= ARTICLE_KNEE[1] for sweep in sweeps.values())
    grows = all(sweep.points[-1].throughput > CLIMBS * sweep.points[0].throughput for sweep in sweeps.values())
    few, many = crowds[0], crowds[-1]
    crowded = many.ttft > CLIMBS * min(crowd.ttft for crowd in crowds)
    at = "; ".join(
        say("A10.at", name=name, first=s.points[0], last=s.points[-1], best=s.best)
        + (f", KV full at about {s.room:.0f}" if s.room else "")
        for name, s in sweeps.items()
    )
    told = {"within": f"{ARTICLE_KNEE[0]} to {ARTICLE_KNEE[1]}", "grows": say("A10.grows") if grows else ""}
    why = say("A10.why", crowded=say("A10.crowded") if crowded else "", num_kinds=len(sweeps), inside=inside, **told)
    return conclude(
        "A10", "only_when" if rises else "only_when_2" if inside > len(sweeps) / 2 else "wrong", at=at,
        tests=f"{few.clients} to {many.clients} clients: TTFT p99 {seconds(few.ttft)} to {seconds(many.ttft)}",
        those=", ".join(rises), why=why, **told,
    )  # fmt: skip


def a16(ask: Ask, flood: fleet.Served, knee_qps: float) -> Claim:
    """The point of operation, on paper and simulated.

    Args:
        flood: all that is asked, sent to one replica.
        knee_qps: requests per second that one replica serves within the SLO.
    """
    need = ask.qps * ask.flops_of_prompt / ask.peak
    share = traffic.served_share(flood, ask.qps)
    verdict = "wrong" if need > 1 else "wrong_2" if share < 1 - SAME else "holds"
    told = {"ask": ask.qps * ask.shortest_stay, "replicas": math.ceil(ask.qps / knee_qps)}
    return conclude("A16", verdict, need=need, share=share, knee_qps=knee_qps, **told)


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
        by_field = f"fixes it with {'one replica' if is_free else f'{after} replicas' if after else 'none of them'}"
        found.append(f"{trouble.name}: replicas needed {by_replicas}; the setting ({trouble.change}) {by_field}")
    verdict = "wrong" if not free else "only_when" if paid or neither else "holds"
    more = say("A20.more", paid=", ".join(paid)) if paid else ""
    return conclude("A20", verdict, told="; ".join(found), free=", ".join(free), more=more)


def a21(steep: Mapping[str, Story], gentle: Mapping[str, Story]) -> Claim:
    """The same measures under a spike, and under a climb that stays. Which is best for each?"""
    kind = "within SLO"
    bests = [max(each, key=lambda n: (round(each[n].share(kind), 2), -each[n].gpu_hours)) for each in (steep, gentle)]
    gains = [each["autoscaler"].share(kind) - each["do nothing"].share(kind) for each in (steep, gentle)]
    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{n} {story.share('within SLO'):.0%} (refused {story.share('refused'):.0%})" for n, story in by.items()
        )
        for name, by in (("spike, within SLO", steep), ("climb, within SLO", gentle))
    )
    if gains[1] > gains[0] + SAME:
        verdict = "only_when" if bests[0] == bests[1] else "holds"
    else:
        verdict = "wrong" if bests[0] == bests[1] else "not_shown"
    return conclude("A21", verdict, told=told, bests=bests)


def d20(options: Mapping[str, GpuOption]) -> Claim:
    """The same few requests on several GPUs; the first two are the article's old and new one."""
    old, new, *fields = options.values()
    gain = old.e2e / new.e2e
    cheapest = min(options.values(), key=lambda each: each.per_day)
    told = "; ".join(
        f"{h.name}: E2E {seconds(h.e2e)}, {dollars(h.per_day)} a day, load {h.load:.2%}" for h in options.values()
    )
    is_off = abs(gain / ARTICLE_GAIN - 1) > 0.25
    return conclude(
        "D20", "only_when" if cheapest in fields and cheapest.per_day < old.per_day else "holds", few_a_day=FEW_A_DAY,
        told=told, gain=gain, old_ratio=old.ttft / new.ttft, tpot_ratio=old.tpot / new.tpot,
        ratio=new.per_day / old.per_day, cheapest=cheapest, cheapest_dollars=dollars(cheapest.per_day),
        article=say("D20.article", article_gain=ARTICLE_GAIN) if is_off else "",
    )  # fmt: skip


def e2(queued: Mapping[str, Alarm], written: Alarm) -> Claim:
    """Overloads by name whose clients wait for the first word; and one without overload, for the last word."""
    leads = {name: alarm.lead for name, alarm in queued.items() if alarm.lead is not None}
    other = written.lead
    if not leads:
        verdict = "not_shown"
    elif min(leads.values()) <= 0:
        verdict = "wrong"
    else:
        verdict = "only_when" if other is not None and other < min(leads.values()) else "holds"
    told = "; ".join(
        f"{name}: the wait passed {seconds(warning.WORRY_S)} {seconds(lead)} before the first time-out"
        for name, lead in leads.items()
    )
    if other is None:
        last = "no client gave up"
    elif math.isinf(other):
        last = "the alarm never fired before clients gave up"
    else:
        last = f"it fired {seconds(abs(other))} {'before' if other > 0 else 'after'} the first gave up"
    return conclude("E2", verdict, told=told or "no time-outs", last=last)


def e3(played: Mapping[float, Sleep]) -> Claim:
    """Scale to zero by requests an hour."""
    told = "; ".join(say("E3.rows", rate=rate, p=p) for rate, p in played.items())
    rare, often = played[min(played)], played[max(played)]
    if rare.share_of_ttft < MOSTLY:
        return conclude("E3", "wrong", told=told)
    fewest = min(p.cold for p in played.values() if p.share_of_ttft >= MOSTLY)
    more = say("E3.more", fewest=fewest) if fewest < RARELY else ""
    return conclude("E3", "only_when" if often.share_of_ttft < MOSTLY else "holds", told=told, rare=rare, more=more)


def e8(caught: Route, uncaught: Route, plain: Played, routed: Played, bad: Played) -> Claim:
    """Money on paper, with wrong answers caught or not; time simulated: no router, a good one, a bad one."""
    borders = ["any rate" if r.break_even is None else f"up to {r.break_even:.0%}" for r in (caught, uncaught)]
    twice = float(np.median(bad.e2e[bad.twice])) if bad.twice.any() else math.nan
    if caught.break_even == 0.0:
        verdict = "wrong"
    elif uncaught.break_even is not None and (
        caught.break_even is None or caught.break_even > COIN > uncaught.break_even
    ):
        verdict = "only_when"
    else:
        verdict = "holds"
    return conclude(
        "E8", verdict, caught=dollars(1000 * caught.large), routed_dollars=dollars(1000 * caught.routed(0.0)),
        borders=borders, uncaught=uncaught, uncaught_ratio=uncaught.harm / uncaught.large,
        median=[float(np.median(run.ttft)) for run in (plain, routed, bad)],
        slow="" if math.isnan(twice) else f" A request that was asked twice took {seconds(twice)} in all, p50.",
    )  # fmt: skip


# ---------------------------------------------------------------- small experiments

OVERLOAD_QPS = 9.0


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
    return {name: knee.sweep(*kinds[name]) for name in with_progress(kinds, "simulating knees")}


def knee_rate() -> float:
    """Requests per second that one 70B serves within the SLO, of A16's traffic."""
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
}
SPIKES: dict[str, Callable[[Lab], Claim]] = {
    "A21": lambda lab: a21(spike.stories(spike.Spike()), spike.stories(spike.Spike(gentle=True))),
    "E2": lambda lab: e2(*alarm_runs()),
    "E3": lambda lab: e3(cold.played()),
}
MONEY: dict[str, Callable[[Lab], Claim]] = {
    "A20": lambda lab: a20(list(money.TROUBLES.values()), money.gpu_price()),
    "D20": lambda lab: d20(hardware.options()),
    "E8": lambda lab: e8(*routes(money.gpu_price())),
}
"""Those of lessons 11b and 11c."""
