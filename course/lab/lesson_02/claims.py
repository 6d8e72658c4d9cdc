"""The claims of lesson 02. What is about big hardware is measured on the simulator."""

from collections.abc import Callable, Mapping

from course.lab.claims import Claim, say
from course.lab.lab import Lab
from course.lab.lesson_02 import simulated, traffic
from course.lab.lesson_02.tables import prompt_tokens, short_ttft, way_numbers
from course.lab.lesson_02.visits import Visit, mean, visits_of, waits
from course.lab.run import Run, percentile
from course.lab.style import number, seconds
from minillm.simulate.cluster.run import FleetRun

HALF = 0.5
"""A wait that falls below half has been helped, whatever the noise."""


def a2(runs: Mapping[str, Run], quantized: Mapping[str, Mapping[str, float]]) -> Claim:
    """The wait grows faster than the load; quantization and the queue.

    Args:
        runs: real runs by load, lowest first.
        quantized: by case and format of the weights, the mean wait in seconds.
    """
    loads = [traffic.load_of(run) for run in runs.values()]
    waited = [mean(waits(visits_of(run))) for run in runs.values()]
    faster = waited[-1] / max(waited[0], 1e-9) > 1.5 * loads[-1] / loads[0]
    helped = {case: min(by["int8"], by["fp8"]) / by["bf16"] for case, by in quantized.items()}
    told = "; ".join(
        f"{case}: " + ", ".join(f"{n} {seconds(w)}" for n, w in by.items()) for case, by in quantized.items()
    )
    cured = [case for case, ratio in helped.items() if ratio < HALF]
    harmed = [f"int8 in '{case}'" for case, by in quantized.items() if by["int8"] > 1.05 * by["bf16"]]
    first = (
        f"The first half holds: load × {loads[-1] / loads[0]:.1f}, wait × {waited[-1] / max(waited[0], 1e-9):.1f}."
        if faster
        else say("A2.first")
    )
    return Claim(
        "A2",
        say("A2.measured", waited=", ".join((f"{seconds(w)} at {x:.0%}" for w, x in zip(waited, loads))), told=told),
        say(
            "A2.only_when",
            first=first,
            num_cured=len(cured),
            num_helped=len(helped),
            cured="; ".join(cured),
            least_helped=min(helped, key=helped.get),
        )
        + (say("A2.why", harmed=", ".join(harmed)) if harmed else "")
        if cured
        else say("A2.holds", first=first)
        if faster
        else say("A2.not_shown", first=first),
    )


def a9(calm: Mapping[str, FleetRun], busy: Mapping[str, FleetRun], saturated: Mapping[str, float]) -> Claim:
    """Static, continuous, chunked."""
    quiet, full = ({name: way_numbers(run) for name, run in runs.items()} for runs in (calm, busy))
    static, whole, chunked = saturated
    order = (
        full[static]["short_p99"] > full[whole]["short_p99"] and quiet[static]["short_p50"] > quiet[whole]["short_p50"]
    )
    gap = quiet[whole]["gap_max"] / quiet[chunked]["gap_max"]
    long = quiet[chunked]["long_p50"] / quiet[whole]["long_p50"]
    speed = saturated[chunked] / saturated[whole]
    surprise = (
        f"two details differ: the long prompt itself does not gain, its TTFT is × {long:.2f} "
        if long > 1
        else f"here the long prompt gained, too: its TTFT is × {long:.2f} "
    )
    return Claim(
        "A9",
        say(
            "A9.measured",
            told=_told(full, "short_p99"),
            gaps=_told(quiet, "gap_max"),
            long_ttft=_told(quiet, "long_p50"),
            saturated=", ".join((f"{n} {number(v)}" for n, v in saturated.items())),
        ),
        say("A9.only_when", gap=gap, surprise=surprise, speed=speed) if order and gap > 1.2 else say("A9.not_shown"),
    )


def _told(ways: Mapping[str, Mapping[str, float]], what: str) -> str:
    return ", ".join(f"{name} {seconds(found[what])}" for name, found in ways.items())


def a13(by_tp: Mapping[int, Mapping[str, float]]) -> Claim:
    """Tenfold? By number of GPUs: output tokens a second, static first, then continuous, then with memory as
    needed."""
    parts, total = [], []
    for tp, speeds in by_tp.items():
        static, same_seats, paged = speeds.values()
        total.append(paged / static)
        parts.append(
            say(
                "A13.why",
                tp=tp,
                speeds=", ".join((f"{name} {number(value)}" for name, value in speeds.items())),
                same_seats_ratio=same_seats / static,
                paged_ratio=paged / same_seats,
                both_ratio=paged / static,
            )
        )
    told = f"{min(total):.1f} to {max(total):.1f}"
    return Claim(
        "A13", say("A13.measured", parts='; '.join(parts)),
        say("A13.holds") if min(total) >= 8
        else say("A13.only_when", told=told)
        if max(total) > 1.2
        else say("A13.not_shown"),
    )  # fmt: skip


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
        told.append(
            f"load {load:.0%}: " + ", ".join(f"{n} {seconds(v)}" for n, v in p99.items()) + f", {away:.0%} refused"
        )
    low, *_, high = cuts.values()
    return Claim(
        "A19", say("A19.measured", told='; '.join(told)),
        say("A19.only_when", low=-low, high=-high, apart=apart)
        if high > 0.3 and low < 0.3
        else say("A19.holds", low=low, high=high)
        if 0.5 <= low <= 0.7 and 0.5 <= high <= 0.7
        else say("A19.only_when_2", low=low, high=high)
        if high > 0.3
        else say("A19.not_shown"),
    )  # fmt: skip


def d1(gains: Mapping[str, Mapping[int, tuple[float, float]]]) -> Claim:
    """By traffic and seats: throughput of closed batches and of continuous ones, over one at a time."""
    found = [(f"{name}, {n} seats", gain) for name, by in gains.items() for n, gain in by.items()]
    closed = [gain[0] for _, gain in found]
    told = "; ".join(f"{name}: closed batches × {one:.1f}, continuous × {two:.1f}" for name, (one, two) in found)
    return Claim(
        "D1", say("D1.measured", told=told),
        say("D1.only_when", least_closed=min(closed), most_closed=max(closed))
        if max(closed) / min(closed) > 1.3 and min(closed) <= 1.6
        else say("D1.holds", least_closed=min(closed), most_closed=max(closed))
        if max(closed) <= 1.6
        else say("D1.wrong", least_closed=min(closed), most_closed=max(closed)),
    )  # fmt: skip


def d2(runs: Mapping[str, Run]) -> Claim:
    """Seven short prompts: alone, with a long one, padded to it."""
    alone, ragged, padded = runs.values()
    tokens = [prompt_tokens(run) for run in (alone, ragged, padded)]
    ttft = [short_ttft(run) for run in (alone, ragged, padded)]
    waste = tokens[2] / tokens[1]
    return Claim(
        "D2",
        say("D2.measured", tokens=tokens, ttft=", ".join(seconds(t) for t in ttft)),
        say("D2.only_when", waste=waste) if waste > 1.3 else say("D2.not_shown"),
    )


def d3(orders: Mapping[str, tuple[Visit, ...]]) -> Claim:
    """By order: visits of short and long prompts at the same load. First come first served is the first."""
    short = {n: mean(waits(v for v in vs if v.prompt <= simulated.LONG)) for n, vs in orders.items()}
    long = {n: mean(waits(v for v in vs if v.prompt > simulated.LONG)) for n, vs in orders.items()}
    base, sorted_, lanes = "first come", "shortest first", "two lanes"
    told = "; ".join(
        f"{n}: short {seconds(short[n])}, long {seconds(long[n]) if long[n] else 'turned away'}" for n in orders
    )
    return Claim(
        "D3",
        say("D3.measured", told=told),
        say(
            "D3.only_when",
            short_sorted=short[sorted_] / short[base],
            long_sorted=long[sorted_] / long[base],
            lanes_ratio=long[lanes] / long[base],
        )
        + (", because that is more than they are of the traffic. " if long[lanes] < long[base] else ". ")
        + "A limit works at once: it is a refusal, and the long ones go elsewhere."
        if short[sorted_] < 0.7 * short[base] and long[sorted_] > long[base]
        else say("D3.not_shown"),
    )


def e4(over: Mapping[str, Mapping[str, int]], under: Mapping[str, Mapping[str, int]]) -> Claim:
    """Shedding, over and under capacity.

    Args:
        over, under: "open" (everybody may wait) and "limit", each to what became of requests.
    """
    share = {
        (name, door): counts[door]["in time"] / sum(counts[door].values())
        for name, counts in (("over", over), ("under", under))
        for door in ("open", "limit")
    }
    gain, loss = share["over", "limit"] - share["over", "open"], share["under", "open"] - share["under", "limit"]
    told = "; ".join(f"{n} capacity, {d}: {value:.0%}" for (n, d), value in share.items())
    return Claim(
        "E4",
        say("E4.measured", simulated=simulated, told=told),
        say("E4.only_when", gain=gain, loss=loss)
        if gain > 0.1 and loss > 0.01
        else say("E4.holds")
        if gain > 0.1
        else say("E4.not_shown"),
    )


ORDER_LOAD, OVER, UNDER = 1.1, 1.3, 0.3
TIGHT = 4
"""Places in line, for E4."""


def orders(load: float = ORDER_LOAD) -> dict[str, tuple[Visit, ...]]:
    """All orders at one load."""
    return {order: simulated.ordered(order, load) for order in simulated.ORDERS}


def doors(load: float, cv: float = 1.0) -> dict[str, dict[str, int]]:
    """What became of everybody without a limit, and with a tight one."""
    return {
        name: simulated.outcomes(simulated.at_the_door(load, limit, cv))
        for name, limit in (("open", None), ("limit", TIGHT))
    }


MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A2": lambda lab: a2(traffic.at_loads(lab, (traffic.LOADS[0], traffic.LOADS[-1])), simulated.quantized_waits()),
    "A9": lambda lab: a9(simulated.three_ways(0.7), simulated.three_ways(1.0), simulated.saturated_ways()),
    "A13": lambda lab: a13({tp: simulated.tenfold(tp) for tp in (2, 4)}),
    "A19": lambda lab: a19({load: simulated.chunks_and_door(load) for load in (0.7, 1.3)}),
    "D1": lambda lab: d1(simulated.dynamic_gains()),
    "D2": lambda lab: d2(traffic.one_batch(lab)),
    "D3": lambda lab: d3(orders()),
    "E4": lambda lab: e4(doors(OVER), doors(UNDER, simulated.CLUMPS)),
}
