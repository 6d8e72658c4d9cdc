"""The claims of lesson 11: capacity, money, spikes."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from course.lab.claims import ANATOMY, SYSTEMS, TECHNIQUES, Claim
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
from course.lab.style import number, seconds

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
        verdict = "not shown by these runs: the large model had no queue that a smaller one could have shortened."
    elif waits[1] < SHORTER * waits[0]:
        verdict = (
            "wrong: a queue is work that comes against work that can be done, and a smaller model does more of it a "
            "second. It is no cure where the limit is elsewhere: a client's own cap, a rate limit, the front. "
            "And it is another model: check what it answers."
        )
    else:
        verdict = "holds in these runs: the smaller model had the same line, so something else makes people wait."
    return Claim(
        "A8",
        "A smaller model helps prefill and decode, and does nothing for the queue.",
        ANATOMY,
        f"{number(qps)} requests/s on four H100s. Wait for a seat, p99: {seconds(waits[0])} with 70B, "
        f"{seconds(waits[1])} with 8B; TTFT p99 {seconds(large.p('ttft', 99))} and {seconds(small.p('ttft', 99))}, "
        f"TPOT p99 {seconds(large.p('tpot', 99))} and {seconds(small.p('tpot', 99))}.",
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
        verdict = f"holds only when more people in a step delay first words: TTFT climbed for {_those(rises)}."
    else:
        within = f"{ARTICLE_KNEE[0]} to {ARTICLE_KNEE[1]}"
        often = inside > len(bests) / 2
        verdict = (
            f"holds only when {within} is read as the fewest seats that do. " if often else "wrong about the knee. "
        )
        verdict += (
            "Under given arrivals TTFT p99 falls with max-batch, since nobody waits for a seat any more; what climbs "
            "is the time per token, and only while there are people for the seats. "
        )
        if crowded:
            verdict += (
                "TTFT climbs with the crowd: with clients of a load test who ask again at once. That curve is often "
                "taken for this one. "
            )
        verdict += f"Of {len(bests)} kinds of traffic here, {inside} wanted {within}."
    if grows:
        verdict += (
            " Throughput does grow, until arithmetic or the arrivals run out; with short answers long before memory."
        )
    at = "; ".join(
        f"{name}: TTFT p99 {seconds(s.points[0].ttft)} at {s.points[0].seats} and {seconds(s.points[-1].ttft)} at "
        f"{s.points[-1].seats}, TPOT p99 {seconds(s.points[0].tpot)} and {seconds(s.points[-1].tpot)}, best goodput at "
        f"{s.best.seats}" + (f", KV full at about {s.room:.0f}" if s.room else "")
        for name, s in sweeps.items()
    )
    few, many = crowds[0], crowds[-1]
    tests = f"{few.clients} to {many.clients} clients: TTFT p99 {seconds(few.ttft)} to {seconds(many.ttft)}"
    return Claim(
        "A10",
        "Throughput grows with the batch until memory; TTFT has a knee, for 70B on four H100s at a max-batch of "
        "24 to 48.",
        ANATOMY,
        f"70B on four H100s, {at}. A load test, {tests}.",
        verdict,
    )


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
        verdict = (
            "wrong for one replica: prompts alone ask for more than the data sheet has, whatever the batching. "
            f"As the total of a fleet it is possible, with about {replicas} such replicas."
        )
    elif share < 1 - SAME:
        verdict = "wrong here: the arithmetic would allow it, the simulated replica cannot serve it."
    else:
        verdict = "holds here: one replica serves what comes."
    return Claim(
        "A16",
        "70B on four H100s, prompts of 1500 and answers of 150 tokens, 100 requests a second, max-batch 64: a "
        "realistic point.",
        ANATOMY,
        f"prompts ask for {need:.1f} times the data sheet's FLOP/s. Little's law: "
        f"{ask.qps * ask.shortest_stay:.0f} seats at "
        f"least, at the speed of an empty server. Simulated, one replica served {share:.1%} of what came. Within the "
        f"promise one can serve {number(knee_qps)}/s.",
        verdict,
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
        verdict = (
            "holds only when something other than the GPU's work is short, such as seats. Then the field is free and "
            f"replicas are rent for a setting ({', '.join(free)}). "
        )
        if paid:
            verdict += (
                "Where the work itself is too much, this field does nothing; replicas help, or less work "
                f"({', '.join(paid)})."
            )
    elif free:
        verdict = "holds in these runs: each was mended for nothing."
    else:
        verdict = "wrong in these runs: none of them could be mended by a field."
    return Claim(
        "A20",
        "Replicas fix a queue for money; a config change fixes it for free.",
        ANATOMY,
        "; ".join(found) + ".",
        verdict,
    )


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
        verdict = (
            "holds only when the fix is an autoscaler: it is good enough for a load that climbs and stays, and late "
            f"for a spike. The best measure was the same for both: {bests[0]}."
        )
    elif gain[1] > gain[0] + SAME:
        verdict = (
            "holds in these runs: an autoscaler looks at the past and starts slowly, which is good enough for a load "
            "that climbs and stays, and late for a spike. What helps at once must be there beforehand: a limit at the "
            "door, a small model that takes the overflow, or spare capacity."
        )
    elif bests[0] == bests[1]:
        verdict = "wrong in these runs: the same measure was best for both, and the autoscaler gained as much."
    else:
        verdict = "not shown clearly: different measures were best, by little."
    told = "; ".join(
        f"{kind}: "
        + ", ".join(
            f"{name} {story.share('in time'):.0%} (refused {story.share('refused'):.0%})"
            for name, story in each.items()
        )
        for kind, each in (("spike, in time", steep), ("climb, in time", gentle))
    )
    return Claim("A21", "A steady state and a spike want different fixes.", ANATOMY, f"{told}.", verdict)


def d20(homes: Mapping[str, Home]) -> Claim:
    """The same few requests on several GPUs; the first two are the article's old and new one."""
    old, new, *fields = homes.values()
    gain, ratio = old.e2e / new.e2e, new.per_day / old.per_day
    cheapest = min(homes.values(), key=lambda each: each.per_day)
    told = "; ".join(
        f"{h.name}: E2E {seconds(h.e2e)}, {dollars(h.per_day)} a day, load {h.load:.2%}" for h in homes.values()
    )
    if cheapest in fields and cheapest.per_day < old.per_day:
        verdict = (
            f"holds only when speed is all that counts. The new GPU is {gain:.1f} times as fast end to end here "
            "(first words "
            f"{old.ttft / new.ttft:.1f} times, further words {old.tpot / new.tpot:.1f} times: the one is "
            "arithmetic, the "
            f"other bandwidth) for {ratio:.1f} times the money. But so few requests never fill either, so what "
            "they cost "
            f"is idle time, and that shrinks by a field: {cheapest.name}, {dollars(cheapest.per_day)} a day, "
            f"{seconds(cheapest.e2e)} end to end (check its quality). Whether engineers' time is dearer is another sum."
        )
    else:
        verdict = f"holds in these runs: no field was cheaper, and the new GPU is {gain:.1f} times as fast."
    if abs(gain / ARTICLE_GAIN - 1) > 0.25:
        verdict += f" It is not {ARTICLE_GAIN} times: that depends on the share of prompts in the work."
    return Claim(
        "D20",
        f"Below {FEW_A_DAY} requests a day, buy hardware instead of optimising; A100 to H100 gives {ARTICLE_GAIN} "
        "times.",
        TECHNIQUES,
        f"{FEW_A_DAY} requests a day, {told}. Constants typical, their error unknown.",
        verdict,
    )


def e2(queued: Mapping[str, Alarm], written: Alarm) -> Claim:
    """Overloads by name whose clients wait for the first word; and one without overload, for the last word."""
    leads = {name: alarm.lead for name, alarm in queued.items() if alarm.lead is not None}
    other = written.lead
    if not leads:
        verdict = "not shown by these runs: nobody timed out."
    elif min(leads.values()) <= 0:
        verdict = "wrong in these runs: people left before the wait had grown."
    elif other is not None and other < min(leads.values()):
        verdict = (
            "holds only when people give up in the line. Then the wait must pass every smaller number first, so the "
            "warning comes early; how early, the overload decides. Who gives up in the middle of a long answer was "
            "never announced by a queue: watch TPOT, too."
        )
    else:
        verdict = "holds in these runs: the wait grew before the first person left."
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
    return Claim(
        "E2",
        "A rising queue wait precedes time-outs.",
        SYSTEMS,
        f"{told or 'no time-outs'}. Long answers without overload: {last}.",
        verdict,
    )


def e3(played: Mapping[float, Sleep]) -> Claim:
    """Scale to zero by requests an hour."""
    rows = [
        f"{number(rate)} an hour: {p.cold:.0%} start cold, {p.share_of_ttft:.0%} of all waiting is that, awake "
        f"{p.awake:.0%} of the time"
        for rate, p in played.items()
    ]
    rare, often = played[min(played)], played[max(played)]
    if rare.share_of_ttft < MOSTLY:
        verdict = "wrong in these runs: cold starts are not most of the waiting, however rare requests are."
    elif often.share_of_ttft < MOSTLY:
        fewest = min(p.cold for p in played.values() if p.share_of_ttft >= MOSTLY)
        verdict = f"holds only when some gap is longer than it is kept awake ({seconds(rare.keep)} here). "
        if fewest < RARELY:
            verdict += (
                f"Rarely is enough: a cold start is so long that it was most of all waiting where {fewest:.0%} of the "
                "requests had one. "
            )
        verdict += "A warm pool ends it, and costs as much as a busy one."
    else:
        verdict = "holds in these runs, at every rate that was tried: cold starts are most of the waiting."
    return Claim(
        "E3",
        "Cold starts dominate the latency of rare traffic; keep a warm pool.",
        SYSTEMS,
        "; ".join(rows) + ".",
        verdict,
    )


def e8(caught: Route, uncaught: Route, plain: Played, routed: Played, bad: Played) -> Claim:
    """Money on paper, with wrong answers caught or not; time simulated: no router, a good one, a bad one."""
    median = [float(np.median(run.ttft)) for run in (plain, routed, bad)]
    borders = ["any rate" if r.break_even is None else f"up to {r.break_even:.0%}" for r in (caught, uncaught)]
    twice = float(np.median(bad.e2e[bad.twice])) if bad.twice.any() else math.nan
    if caught.break_even == 0.0:
        verdict = "wrong at these prices: the small model is not cheaper, so there is nothing to save."
    elif uncaught.break_even is not None and (
        caught.break_even is None or caught.break_even > COIN > uncaught.break_even
    ):
        verdict = (
            "holds only when a wrong answer slips through, or its reader's time counts. In GPU dollars a wrong "
            "route that is "
            "noticed costs one small answer on top, which is little. One that is not noticed costs whatever a wrong "
            f"answer costs you; at {uncaught.harm / uncaught.large:.0f} times a large request, routing pays "
            f"{borders[1]} misrouted."
        )
    else:
        verdict = f"holds here: routing pays at {borders[0]} misrouted if errors are caught, {borders[1]} if not."
    slow = "" if math.isnan(twice) else f" Who was asked twice waited {seconds(twice)} in all, p50."
    return Claim(
        "E8",
        "Route easy requests to a small model; a wrong route costs more than it saves.",
        SYSTEMS,
        f"{dollars(1000 * caught.large)} for 1000 requests all large, {dollars(1000 * caught.routed(0.0))} routed "
        "without a mistake. It pays "
        f"at {borders[0]} misrouted if every error is caught, {borders[1]} if "
        f"{uncaught.caught:.0%} are, and each of the others costs {uncaught.harm / uncaught.large:.0f} large "
        f"requests. Simulated TTFT p50: {seconds(median[0])} all large, "
        f"{seconds(median[1])} routed, {seconds(median[2])} with 30% misrouted.{slow}",
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
