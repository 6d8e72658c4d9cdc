"""The claims of lesson 02b. What is about big hardware is measured on the simulator."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lab.run import Run, percentile
from course.lab.style import number, seconds
from course.lessons.lesson_02.visits import Visit, mean, visits_of
from course.lessons.lesson_02b import simulated, traffic
from course.lessons.lesson_02b.tables import prompt_tokens, short_ttft, way_numbers
from course.simulator.cluster.run import FleetRun


def _listed(by_name: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds(value)}" for name, value in by_name.items())


def a9(calm: Mapping[str, FleetRun], busy: Mapping[str, FleetRun], saturated: Mapping[str, float]) -> Claim:
    """Static, continuous, chunked."""
    quiet, full = ({name: way_numbers(run) for name, run in runs.items()} for runs in (calm, busy))
    static, whole, chunked = saturated
    order = (
        full[static]["short_p99"] > full[whole]["short_p99"] and quiet[static]["short_p50"] > quiet[whole]["short_p50"]
    )
    gap = quiet[whole]["gap_max"] / quiet[chunked]["gap_max"]
    long = quiet[chunked]["long_p50"] / quiet[whole]["long_p50"]
    return conclude(
        "A9",
        "only_when" if order and gap > 1.2 else "not_shown",
        told=_listed({name: found["short_p99"] for name, found in full.items()}),
        gaps=_listed({name: found["gap_max"] for name, found in quiet.items()}),
        long_ttft=_listed({name: found["long_p50"] for name, found in quiet.items()}),
        saturated=", ".join(f"{name} {number(value)}" for name, value in saturated.items()),
        gap=gap,
        surprise=say("A9.long_loses" if long > 1 else "A9.long_gains", long=long),
        speed=saturated[chunked] / saturated[whole],
    )


def a13(by_tp: Mapping[int, Mapping[str, float]]) -> Claim:
    """Tenfold? By number of GPUs: output tokens a second, static first, then continuous, then with memory as
    needed."""
    parts, total = [], []
    for tp, speeds in by_tp.items():
        static, same_slots, paged = speeds.values()
        total.append(paged / static)
        ratios = {"same_slots_ratio": same_slots / static, "paged_ratio": paged / same_slots}
        listed = ", ".join(f"{name} {number(value)}" for name, value in speeds.items())
        parts.append(say("A13.why", tp=tp, speeds=listed, both_ratio=total[-1], **ratios))
    verdict = "holds" if min(total) >= 8 else "only_when" if max(total) > 1.2 else "not_shown"
    return conclude("A13", verdict, parts="; ".join(parts), told=f"{min(total):.1f} to {max(total):.1f}")


def a19(by_load: Mapping[float, Mapping[str, FleetRun]]) -> Claim:
    """Admission control and chunks, against neither."""
    cuts, told = {}, []
    for load, runs in by_load.items():
        p99 = {
            name: percentile([v.ttft for v in visits_of(run) if v.ttft is not None], 99) for name, run in runs.items()
        }
        away = sum(visit.ending == "refused" for visit in visits_of(runs["both"])) / len(runs["both"].records)
        cuts[load] = 1 - p99["both"] / p99["neither"]
        apart = ", ".join(f"{name} alone {p99[name] / p99['neither'] - 1:+.0%}" for name in ("limit", "chunks"))
        told.append(f"load {load:.0%}: {_listed(p99)}, {away:.0%} refused")
    low, *_, high = cuts.values()
    if high > 0.3 and low < 0.3:
        return conclude("A19", "only_when", told="; ".join(told), low=-low, high=-high, apart=apart)
    as_said = 0.5 <= low <= 0.7 and 0.5 <= high <= 0.7
    verdict = "holds" if as_said else "only_when_2" if high > 0.3 else "not_shown"
    return conclude("A19", verdict, told="; ".join(told), low=low, high=high)


def d1(gains: Mapping[str, Mapping[int, tuple[float, float]]]) -> Claim:
    """By traffic and slots: throughput of closed batches and of continuous ones, over one at a time."""
    found = [(f"{name}, {n} slots", gain) for name, by in gains.items() for n, gain in by.items()]
    least, most = (choose(gain[0] for _, gain in found) for choose in (min, max))
    told = "; ".join(f"{name}: closed batches × {one:.1f}, continuous × {two:.1f}" for name, (one, two) in found)
    verdict = "only_when" if most / least > 1.3 and least <= 1.6 else "holds" if most <= 1.6 else "wrong"
    return conclude("D1", verdict, told=told, least_closed=least, most_closed=most)


def d2(runs: Mapping[str, Run]) -> Claim:
    """Seven short prompts: alone, with a long one, padded to it."""
    alone, ragged, padded = runs.values()
    tokens = [prompt_tokens(run) for run in (alone, ragged, padded)]
    ttft = ", ".join(seconds(short_ttft(run)) for run in (alone, ragged, padded))
    waste = tokens[2] / tokens[1]
    return conclude("D2", "only_when" if waste > 1.3 else "not_shown", tokens=tokens, ttft=ttft, waste=waste)


def d3(orders: Mapping[str, tuple[Visit, ...]]) -> Claim:
    """By order: visits of short and long prompts at the same load. First come first served is the first."""
    found = {name: tuple(map(mean, simulated.waits_by_length(visits))) for name, visits in orders.items()}
    short, long = ({name: each[i] for name, each in found.items()} for i in (0, 1))
    base, sorted_, lanes = "first come", "shortest first", "two lanes"
    told = "; ".join(
        f"{n}: short {seconds(short[n])}, long {seconds(long[n]) if long[n] else 'refused'}" for n in orders
    )
    if short[sorted_] >= 0.7 * short[base] or long[sorted_] <= long[base]:
        return conclude("D3", "not_shown", told=told)
    ratios = {
        "short_sorted": short[sorted_] / short[base],
        "long_sorted": long[sorted_] / long[base],
        "lanes_ratio": long[lanes] / long[base],
    }
    claim = conclude("D3", "only_when", told=told, **ratios)
    more = say("D3.more") if long[lanes] < long[base] else ""
    return replace(claim, verdict=f"{claim.verdict}{more}. {say('D3.limit')}")


def e4(over: Mapping[str, Mapping[str, int]], under: Mapping[str, Mapping[str, int]]) -> Claim:
    """Shedding, over and under capacity.

    Args:
        over, under: "open" (no limit) and "limit", each to what became of requests.
    """
    share = {
        (name, queue): counts[queue]["within SLO"] / sum(counts[queue].values())
        for name, counts in (("over", over), ("under", under))
        for queue in ("open", "limit")
    }
    gain, loss = share["over", "limit"] - share["over", "open"], share["under", "open"] - share["under", "limit"]
    told = "; ".join(f"{name} capacity, {queue}: {value:.0%}" for (name, queue), value in share.items())
    verdict = "only_when" if gain > 0.1 and loss > 0.01 else "holds" if gain > 0.1 else "not_shown"
    return conclude("E4", verdict, simulated=simulated, told=told, gain=gain, loss=loss)


ORDER_LOAD, OVER, UNDER = 1.1, 1.3, 0.3
TIGHT = 4
"""max_queue_len, for E4."""


def orders(load: float = ORDER_LOAD) -> dict[str, tuple[Visit, ...]]:
    """All orders at one load."""
    return {order: simulated.ordered(order, load) for order in simulated.ORDERS}


def queue_limits(load: float, cv: float = 1.0) -> dict[str, dict[str, int]]:
    """What became of all requests without a limit, and with a tight one."""
    return {
        name: simulated.outcomes(simulated.with_queue_limit(load, limit, cv))
        for name, limit in (("open", None), ("limit", TIGHT))
    }


EXPERIMENT = ("lessons/lesson_02/visits.py", "lessons/lesson_02/simulated.py", "lessons/lesson_02/traffic.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A9": lambda lab: a9(simulated.three_ways(0.7), simulated.three_ways(1.0), simulated.saturated_ways()),
    "A13": lambda lab: a13({tp: simulated.tenfold(tp) for tp in (2, 4)}),
    "A19": lambda lab: a19({load: simulated.chunks_and_limit(load) for load in (0.7, 1.3)}),
    "D1": lambda lab: d1(simulated.dynamic_gains()),
    "D2": lambda lab: d2(traffic.one_batch(lab)),
    "D3": lambda lab: d3(orders()),
    "E4": lambda lab: e4(queue_limits(OVER), queue_limits(UNDER, simulated.BURSTS)),
}
