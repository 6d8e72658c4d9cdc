"""The claims of lesson 02. What is about big hardware is measured on the simulator."""

from collections.abc import Callable, Mapping

from course.lab.claims import ANATOMY, SYSTEMS, TECHNIQUES, Claim
from course.lab.lab import Lab
from course.lab.lesson_02 import simulated, traffic
from course.lab.lesson_02.tables import prompt_tokens, short_ttft, way_numbers
from course.lab.lesson_02.visits import Visit, mean, visits_of, waits
from course.lab.run import Run, percentile
from course.lab.style import number, seconds
from minillm.simulate.cluster_run import FleetRun

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
        else "The first half was not seen in this run: too few requests, or a noisy machine."
    )
    return Claim(
        "A2",
        "Queue wait grows faster than linearly with load, and quantization does nothing for it: the model never runs.",
        ANATOMY,
        f"This machine, one seat: {', '.join(f'{seconds(w)} at {x:.0%}' for w, x in zip(waited, loads))}. "
        f"70B, simulated, asked for 1.15 times what bf16 can serve, mean wait. {told}.",
        f"holds only when fewer bits change neither the time in a seat nor the number of seats that memory holds. "
        f"{first} But a line is made of other people's service time, and of too few seats. "
        f"Here fewer bits cut the wait by more than half in {len(cured)} of {len(helped)} cases "
        f"({'; '.join(cured)}), most of all where {min(helped, key=helped.get)}. "
        + (
            f"And they can lengthen it: {', '.join(harmed)}, where widening weight-only int8 costs more than it saves "
            "(W8A8, which multiplies in int8, is another thing)."
            if harmed
            else ""
        )
        if cured
        else f"holds in these cases: no format cut the wait by half. {first}"
        if faster
        else f"not shown. {first}",
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
        "Static batching is worst in all but simplicity; continuous is the default; chunked prefill on top is best "
        "for TTFT, "
        "for the long prompt as for the others, at equal or slightly lower throughput.",
        ANATOMY,
        f"TTFT of short prompts at high load, p99: {_told(full, 'short_p99')}. "
        f"Longest gap in a text: {_told(quiet, 'gap_max')}. Long prompt's TTFT: "
        f"{_told(quiet, 'long_p50')}. Saturated, requests/s: "
        f"{', '.join(f'{n} {number(v)}' for n, v in saturated.items())}.",
        f"holds only when it is read as advice on everybody else's latency. Static came last, as said, and chunks "
        f"cut the longest gap by "
        f"a factor of {gap:.1f}. But {surprise}(its chunks share their steps), and throughput with chunks was × "
        f"{speed:.2f}: "
        "below 1 when chunks are too small, above 1 where whole prompts fill steps badly."
        if order and gap > 1.2
        else "not shown: in these runs the three ways did not come out in the article's order. Try a higher load.",
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
            f"{tp} GPUs: {', '.join(f'{name} {number(value)}' for name, value in speeds.items())} tokens/s "
            f"(scheduling × {same_seats / static:.1f}, memory × {paged / same_seats:.1f}, both × "
            f"{paged / static:.1f})"
        )
    told = f"{min(total):.1f} to {max(total):.1f}"
    return Claim(
        "A13",
        "Continuous batching has about ten times the throughput of static batching.",
        ANATOMY,
        f"Chats with Azure's lengths, all at once, 70B. {'; '.join(parts)}.",
        "holds here." if min(total) >= 8
        else "holds only when the baseline is poor. On equal seats the gain is at most the longest answer over the "
        "mean answer of a "
        f"batch; the rest is memory: seats that a reservation of the whole window had locked. Here both came to × "
        f"{told}. The "
        "measurement behind the claim (Anyscale, 2023: OPT-13B on one A100 of 40 GB) found 8 against a naive "
        "static server, and 23 "
        "with paged memory on top."
        if max(total) > 1.2
        else "not shown: here static and continuous are about equal.",
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
        "A19",
        "Admission control with chunked prefill cuts TTFT by 50 to 70%.",
        ANATOMY,
        f"70B, one prompt of 6000 tokens among ten, p99 of TTFT of those answered. {'; '.join(told)}.",
        f"holds only when the server is asked for more than it can do. Below capacity the two together changed p99 "
        f"by {-low:+.0%}; "
        f"above it by {-high:+.0%} ({apart}), and people were refused for it. Above capacity the "
        f"line grows for as long as you "
        "look, so any percentage can be had: quote it with the share refused, or not at all."
        if high > 0.3 and low < 0.3
        else f"holds, at each of these loads: {low:.0%} and {high:.0%}. Mind the share refused."
        if 0.5 <= low <= 0.7 and 0.5 <= high <= 0.7
        else f"holds only when read as a direction: {low:.0%} and {high:.0%} here. Quote the share refused beside it."
        if high > 0.3
        else "not shown: no load was high enough to make a line.",
    )  # fmt: skip


def d1(gains: Mapping[str, Mapping[int, tuple[float, float]]]) -> Claim:
    """By traffic and seats: throughput of closed batches and of continuous ones, over one at a time."""
    found = [(f"{name}, {n} seats", gain) for name, by in gains.items() for n, gain in by.items()]
    closed = [gain[0] for _, gain in found]
    told = "; ".join(f"{name}: closed batches × {one:.1f}, continuous × {two:.1f}" for name, (one, two) in found)
    return Claim(
        "D1",
        "Dynamic batching, which groups whoever waits into a batch, gives 40% more throughput.",
        TECHNIQUES,
        f"70B, everybody at once, over one request at a time. {told}.",
        f"holds only when the batch is about that small and that uneven: here a closed batch gave × "
        f"{min(closed):.1f} to × {max(closed):.1f}. "
        "The gain is near the number of seats if all answers are equally long, and shrinks with the spread of "
        "lengths. A figure "
        "without batch size and lengths says nothing. (Some use 'dynamic' for continuous batching. Ask.)"
        if max(closed) / min(closed) > 1.3 and min(closed) <= 1.6
        else f"holds about: × {min(closed):.1f} to × {max(closed):.1f}."
        if max(closed) <= 1.6
        else f"wrong as a figure: here × {min(closed):.1f} to × {max(closed):.1f}; it depends on the batch and "
        "on the spread of lengths.",
    )  # fmt: skip


def d2(runs: Mapping[str, Run]) -> Claim:
    """Seven short prompts: alone, with a long one, padded to it."""
    alone, ragged, padded = runs.values()
    tokens = [prompt_tokens(run) for run in (alone, ragged, padded)]
    ttft = [short_ttft(run) for run in (alone, ragged, padded)]
    waste = tokens[2] / tokens[1]
    return Claim(
        "D2",
        "A batch costs as if every member were as long as its longest: seven short requests pay for one long.",
        TECHNIQUES,
        f"prompt tokens computed: alone {tokens[0]}, with the long one {tokens[1]}, padded {tokens[2]}. The short "
        f"ones' TTFT: "
        f"{', '.join(seconds(t) for t in ttft)}.",
        f"holds only when the batch is one rectangle, padded: that computes {waste:.1f} times the tokens. Serving "
        f"engines lay "
        "prompts end to end, without padding. The seven then wait for one long prompt instead of eight, and with "
        "chunks for a "
        "chunk at a time. The article's '100 times' compares lengths: 10000 tokens with 100, not a batch with a "
        "batch."
        if waste > 1.3
        else "not shown: the long prompt is not much longer than the others here.",
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
        "Sorting by length, a slow lane and a limit on prompts tame stragglers.",
        TECHNIQUES,
        f"70B over its capacity, one long prompt in ten, mean wait. {told}.",
        f"holds only when somebody else may pay. Sorting: short × {short[sorted_] / short[base]:.2f}, long × "
        f"{long[sorted_] / long[base]:.1f}: the long get only what the short leave over, and nothing at all once the "
        f"short alone fill the server. A lane is a share of the turns: the slow one "
        f"here gets every fourth, and the long prompts waited × {long[lanes] / long[base]:.2f}"
        + (", because that is more than they are of the traffic. " if long[lanes] < long[base] else ". ")
        + "A limit works at once: it is a refusal, and the long ones go elsewhere."
        if short[sorted_] < 0.7 * short[base] and long[sorted_] > long[base]
        else "not shown: nobody waits at this load, so the order of the line does not matter.",
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
        "Shed load early and say so, instead of letting clients time out.",
        SYSTEMS,
        f"70B, share answered within {seconds(simulated.IN_TIME_S)}; clients leave after "
        f"{seconds(simulated.PATIENCE_S)}. {told}.",
        "holds only when more is asked than can be served: there the limit let "
        f"{gain:.0%} more of all requests be answered in time, and told the rest at once. Under capacity, when "
        f"they come in clumps, the "
        f"same limit cost {loss:.0%}: it refused people who would have been served in time. Set the limit from the "
        f"wait you can promise: "
        "seats × promise / mean service time."
        if gain > 0.1 and loss > 0.01
        else "holds, and cost nothing here under capacity."
        if gain > 0.1
        else "not shown: at this load hardly anybody waits.",
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
