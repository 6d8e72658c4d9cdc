"""What the runs of lesson 02b showed: its findings and its claims. What is about big hardware is simulated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.run import Run, percentile
from course.lab.style import change, number, seconds
from course.lab.visits import Visit, end_of, mean, visits_of, waits
from course.lessons.lesson_02b.pictures import empty_slot_share, prompt_tokens, short_ttft, way_numbers
from course.lessons.lesson_02b.run import (
    DOCUMENT,
    GREEDY,
    PAYERS,
    by_tenant,
    growth_of_payers,
    is_disturbed,
    most_paid,
    one_batch,
    ttft_p99,
)
from course.lessons.lesson_02b.simulated import (
    BURSTS,
    IN_TIME_S,
    LIMIT_SLOTS,
    PATIENCE_S,
    TIGHT_LIMIT,
    chunks_and_limit,
    dynamic_gains,
    open_and_limited,
    orders_at,
    saturated_ways,
    tenants_at_70b,
    tenfold,
    three_ways,
    waits_by_length,
    with_queue_limit,
)
from course.simulator.cluster.run import FleetRun

# ---------------------------------------------------------------- findings


FELT = 0.05
"""A smaller share of a request's E2E isn't worth a sentence."""
CUT = 0.8
"""A step that takes a smaller share of another one's time is clearly shorter."""


def straggler(runs: Mapping[str, Run]) -> Finding:
    """Which requests pay for one long answer under static batching."""
    static, free = runs["static"], runs["continuous"]
    behind = [mean([visits_of(run)[i].wait for i in range(4, 8)]) for run in (static, free)]
    empty = [empty_slot_share(visits_of(run), run.config.max_num_seqs) for run in (static, free)]
    long, beside, queued = growth_of_payers(static, free).values()
    outcomes = dict(zip(PAYERS, ("long_one_paid", "beside_it_paid", "queued_behind_paid")))
    outcome = outcomes[most_paid(static, free)]
    if outcome == "queued_behind_paid" and long < -FELT * (free.row_of(0).borders[-1] - free.row_of(0).borders[0]):
        outcome = "long_one_gained"
    elif outcome == "queued_behind_paid" and beside > FELT * queued:
        outcome = "beside_it_paid_less"
    moved = {"long": long, "gain": -long, "beside": beside, "queued": queued}
    return tell("02b", "straggler", outcome, behind=behind, empty=empty[0], free=empty[1], **moved)


def ways(runs: Mapping[str, Run]) -> Finding:
    """Empty slots, and what the document did to the texts of others."""
    static, *others = (empty_slot_share(visits_of(run), run.config.max_num_seqs) for run in runs.values())
    _, *continuous = runs.values()
    whole, chunked = (max(run.itl) for run in continuous)
    document = [visits_of(run)[DOCUMENT].ttft for run in continuous]
    steps = [document_steps(run) for run in continuous]
    longest = [max(taken) for taken in steps]
    outcome = "chunks_cut_the_gap" if longest[1] < CUT * longest[0] else "chunks_are_no_shorter"
    if max(others) > static / 2:
        outcome = "hardly_a_queue"
    told = {"static": static, "others": max(others), "longest": longest, "num": len(steps[1])}
    usual, tokens = percentile(continuous[0].itl, 50), continuous[0].row_of(DOCUMENT).num_prompt_tokens
    if longest[1] > longest[0] / CUT or longest[0] < CUT * usual:  # a part of a prompt takes no longer than all of it
        outcome = "chunks_disturbed"
    said = {"usual": usual, "tokens": tokens, "document": document}
    return tell("02b", "ways", outcome, whole=whole, chunked=chunked, **told, **said)


def document_steps(run: Run) -> list[float]:
    """Seconds of each step that computed a part of the document's prompt."""
    name = run.rows[DOCUMENT].request_id
    return [
        step.end - step.start
        for step in run.steps
        if any(share.request_id == name and share.is_prefill for share in step.shares)
    ]


LIKE = 0.15
"""Waits within this share of each other are about equal."""


def orders(by_order: Mapping[str, Sequence[Visit]]) -> Finding:
    """What shortest first and two lanes do to short and long prompts."""
    found = {name: tuple(map(mean, waits_by_length(visits))) for name, visits in by_order.items()}
    fcfs, sjf, lanes = (found[name] for name in ("first come", "shortest first", "two lanes"))
    if max(abs(lane / first - 1) for lane, first in zip(lanes, fcfs)) < LIKE:
        outcome = "lanes_like_fcfs"
    else:
        outcome = "lanes_favour_long" if lanes[1] < fcfs[1] else "lanes_in_between"
    first = by_order["first come"]
    means = [mean(waits(by_order[name])) for name in ("first come", "shortest first")]
    length = {"count": len(first), "span": end_of(first)}
    return tell("02b", "orders", outcome, fcfs=fcfs, sjf=sjf, lanes=lanes, means=means, **length)


def limits(counts: Mapping[str, Mapping[str, int]]) -> Finding:
    """How many are in time without a limit, and with the best one."""
    share = {name: each["within SLO"] / sum(each.values()) for name, each in counts.items()}
    best = max(share, key=share.get)
    gave_up = counts["no limit"]["gave up"] / sum(counts["no limit"].values())
    refused = counts[best]["refused"] / sum(counts[best].values())
    outcome = "limit_helps" if share[best] > share["no limit"] + 0.05 else "too_short_to_tell"
    told = {"count": sum(counts[best].values()), "gave_up": gave_up, "refused": refused}
    return tell("02b", "limits", outcome, share=share, best=share[best], name=best, **told)


def fair(runs: Mapping[str, Run], lab: Lab) -> Finding:
    """What fair order did for the small tenants, and to the greedy one."""
    found = by_tenant(runs, lab).values()
    small = [ttft_p99(each) for each in found]
    greedy = [ttft_p99(each, [GREEDY]) for each in found]
    total = [run.throughput for run in runs.values()]
    if is_disturbed(runs):
        outcome = "disturbed"
    else:
        gained = "small_ones_gain_in_noise" if max(total) > (1 + FELT) * min(total) else "small_ones_gain"
        outcome = gained if small[1] < CUT * small[0] else "no_backlog"
    return tell("02b", "fair", outcome, small=small, greedy=greedy, gain=small[0] / small[1], total=total)


def held() -> Finding:
    """Where fair order loses: slots that long answers hold."""
    chats, answers = (ttft_p99(tenants_at_70b("fair", "200%", sends)) for sends in ("chats", "long answers"))
    outcome = "long_answers_hold_slots" if answers > 1.5 * chats else "slots_came_free"
    return tell("02b", "held", outcome, chats=chats, answers=answers, ratio=answers / chats)


# ---------------------------------------------------------------- claims


# ---------------------------------------------------------------- three numbers

BATCH, UNEVEN = 4, 8
"""Slots of a static batch, and how many times as long as the others its one long answer is."""


def empty_in_static(slots: int = BATCH, times: float = UNEVEN) -> float:
    """Share of the slot time that a static batch leaves empty whose one long answer is `times` as long as the rest."""
    return 1 - (times + slots - 1) / (slots * times)


def limit_for(acceptable_s: float, slots: int, in_slot_s: float) -> float:
    """Requests that the slots drain within the wait that is acceptable."""
    return slots * acceptable_s / in_slot_s


def three_numbers() -> Html:
    served = [v for v in visits_of(with_queue_limit(1.3, TIGHT_LIMIT)) if v.ending == "answered"]
    in_slot = mean([visit.left - visit.scheduled for visit in served])
    return know_cold(
        (
            f"{empty_in_static():.0%} of the slot time",
            f"what a static batch of {BATCH} wastes when one answer is {UNEVEN} times as long",
            f"1 - ({UNEVEN} + {BATCH - 1}) / ({BATCH} × {UNEVEN})",
        ),
        (
            f"about {limit_for(IN_TIME_S, LIMIT_SLOTS, in_slot):.0f} queued",
            "the queue limit that the SLO gives the lab's 70B server",
            f"{LIMIT_SLOTS} slots × {seconds(IN_TIME_S)} ÷ {seconds(in_slot)} in a slot (simulated)",
        ),
        (
            "8,192 tokens",
            "a step's budget by default in vLLM's server on an H100",
            "vLLM's engine arguments; 2,048 on an A100",
        ),
    )


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
        "only_for_other_requests" if order and gap > 1.2 else "order_not_reproduced",
        told=_listed({name: found["short_p99"] for name, found in full.items()}),
        gaps=_listed({name: found["gap_max"] for name, found in quiet.items()}),
        long_ttft=_listed({name: found["long_p50"] for name, found in quiet.items()}),
        saturated=", ".join(f"{name} {number(value)}" for name, value in saturated.items()),
        gap=gap,
        surprise=say("A9.long_loses" if long > 1 else "A9.long_gains", long=long),
        speed=saturated[chunked] / saturated[whole],
    )


def a13(by_tp: Mapping[int, Mapping[str, float]]) -> Claim:
    """Is it tenfold?

    Args:
        by_tp: number of GPUs -> output tokens a second: static, continuous, continuous with memory as needed.
    """
    parts, total = [], []
    for tp, speeds in by_tp.items():
        static, same_slots, paged = speeds.values()
        total.append(paged / static)
        part = say(
            "A13.at_tp",
            tp=tp,
            speeds=", ".join(f"{name} {number(value)}" for name, value in speeds.items()),
            same_slots_ratio=same_slots / static,
            paged_ratio=paged / same_slots,
            both_ratio=total[-1],
        )
        parts.append(part)
    verdict = "holds" if min(total) >= 8 else "only_over_a_poor_baseline" if max(total) > 1.2 else "about_equal"
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
        apart = ", ".join(f"{name} alone {change(p99['neither'], p99[name])}" for name in ("limit", "chunks"))
        num = len(runs["both"].records)
        told.append(f"load {load:.0%}, {num} requests: {_listed(p99)}, {away:.0%} refused")
    low, *_, high = cuts.values()
    if high > 0.3 and low < 0.3:
        return conclude("A19", "only_above_capacity", told="; ".join(told), low=-low, high=-high, apart=apart)
    as_said = 0.5 <= low <= 0.7 and 0.5 <= high <= 0.7
    verdict = "as_said_at_each_load" if as_said else "other_figures" if high > 0.3 else "no_queue_built"
    return conclude("A19", verdict, told="; ".join(told), low=low, high=high)


def d1(gains: Mapping[str, Mapping[int, tuple[float, float]]]) -> Claim:
    """By traffic and slots: throughput of closed batches and of continuous ones, over one at a time."""
    found = [(f"{name}, {n} slots", gain) for name, by in gains.items() for n, gain in by.items()]
    (least_case, (least, _)), (most_case, (most, _)) = (
        choose(found, key=lambda each: each[1][0]) for choose in (min, max)
    )
    told = "; ".join(f"{name}: closed batches × {one:.1f}, continuous × {two:.1f}" for name, (one, two) in found)
    if most / least > 1.3 and least <= 1.6:
        verdict = "only_if_small_and_uneven"
    else:
        verdict = "holds_roughly" if most <= 1.6 else "depends_on_the_batch"
    return conclude(
        "D1", verdict, told=told, least_closed=least, most_closed=most, least_case=least_case, most_case=most_case
    )


def d2(runs: Mapping[str, Run]) -> Claim:
    """Seven short prompts: alone, with a long one, padded to it."""
    alone, ragged, padded = runs.values()
    tokens = [prompt_tokens(run) for run in (alone, ragged, padded)]
    ttft = ", ".join(seconds(short_ttft(run)) for run in (alone, ragged, padded))
    waste = tokens[2] / tokens[1]
    verdict = "only_when_padded" if waste > 1.3 else "long_one_is_not_longer"
    alone_s, beside_s = short_ttft(alone), short_ttft(ragged)
    felt = say("D2.felt" if beside_s > (1 + FELT) * alone_s else "D2.not_felt", alone=alone_s, beside=beside_s)
    return conclude("D2", verdict, tokens=tokens, ttft=ttft, waste=waste, felt=felt)


def d3(orders: Mapping[str, tuple[Visit, ...]]) -> Claim:
    """By order: visits of short and long prompts at the same load. First come first served is the first."""
    found = {name: tuple(map(mean, waits_by_length(visits))) for name, visits in orders.items()}
    short, long = ({name: each[i] for name, each in found.items()} for i in (0, 1))
    base, sorted_, lanes = "first come", "shortest first", "two lanes"
    told = "; ".join(
        f"{n}: short {seconds(short[n])}, long {seconds(long[n]) if long[n] else 'refused'}" for n in orders
    )
    if short[sorted_] >= 0.7 * short[base] or long[sorted_] <= long[base]:
        return conclude("D3", "no_request_waits", told=told, count=len(orders[base]))
    claim = conclude(
        "D3",
        "others_pay",
        told=told,
        count=len(orders[base]),
        short_sorted=short[sorted_] / short[base],
        long_sorted=long[sorted_] / long[base],
        lanes_ratio=long[lanes] / long[base],
    )
    more = say("D3.lane_is_more_than_its_share") if long[lanes] < long[base] else ""
    return replace(claim, verdict=f"{claim.verdict}{more}. {say('D3.limit_refuses')}")


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
    verdict = "hardly_any_wait"
    if gain > 0.1:
        verdict = "only_above_capacity" if loss > 0.01 else "free_below_capacity"
    return conclude("E4", verdict, in_time=IN_TIME_S, patience=PATIENCE_S, told=told, gain=gain, loss=loss)


OVER, UNDER = 1.3, 0.3
"""Loads of E4, in shares of the capacity."""
EXPERIMENT = ("lab/visits.py", "lessons/lesson_02/simulated.py", "lessons/lesson_02/run.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A9": lambda lab: a9(three_ways(0.7), three_ways(1.0), saturated_ways()),
    "A13": lambda lab: a13({tp: tenfold(tp) for tp in (2, 4)}),
    "A19": lambda lab: a19({load: chunks_and_limit(load) for load in (0.7, 1.3)}),
    "D1": lambda lab: d1(dynamic_gains()),
    "D2": lambda lab: d2(one_batch(lab)),
    "D3": lambda lab: d3(orders_at()),
    "E4": lambda lab: e4(open_and_limited(OVER), open_and_limited(UNDER, BURSTS)),
}
