"""What the runs of lesson 05 showed: its findings, its claims, and what its predictions are scored by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from course.lab import simulated_70b
from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.noise import CEILING, ratio_of
from course.lab.predict import MeasuredAnswer
from course.lab.run import Run, percentile
from course.lab.style import change, seconds, told_seconds
from course.lab.ttft_causes import Breakdown
from course.lessons.lesson_05 import simulated
from course.lessons.lesson_05.run import (
    MaskCost,
    PerToken,
    company,
    measured_per_token,
    newcomers,
    noise,
    one_by_one,
    pace,
    pause_p99,
    shrinking,
    simulated_per_token,
    step_plan,
    ttft_of,
)
from course.lessons.lesson_05.run import policies as policies_of

# ---------------------------------------------------------------- findings and predictions

NEIGHBOURS = ("queue", "others' prompts", "others' answers")
MIXING = ("decode first", "mixed", "prefill first")
"""From not mixing at all to mixing in chunks, to whole prompts."""
STAYS = 0.25
"""What its own tokens added is the same alone and beside others, if it differs by less than this share."""
PRICE = 1.25
"""How many times as long a writer's gap has to be to count as a price."""
ODD = CEILING
"""The less a policy mixes, the shorter the writers' gaps: where they're so many times as long, it's not the policy."""
BACKLOG = 1.3
"""Prompts are rushed if the last newcomer waits so many times as long as the first."""


def waterfall(met: Breakdown, alone: Breakdown) -> Finding:
    """How much of the newcomer's TTFT belongs to other requests."""
    others, total = sum(met[cause] for cause in NEIGHBOURS), sum(met.values())
    outcome = "mostly_others" if others > total / 2 else "mostly_its_own"
    sums = {"total": total, "others": others, "share": others / total, "total_alone": sum(alone.values())}
    is_same = ratio_of(met["own prefill"], alone["own prefill"]) < 1 + STAYS
    own = tell("05", "own_prefill", "stays" if is_same else "differs", met=met, alone=alone)
    cold = tell("05", "cold_cache", "some" if met["cold cache"] else "none", met=met)
    return tell("05", "waterfall", outcome, own=own, cold=cold, **sums)


def pauses(runs: Mapping[str, Run]) -> MeasuredAnswer | str:
    """A writer's p99 gap under prefill first, over that of mixed: the answer to a prediction, unless something else
    than the policy made the gaps."""
    whole, mixed = (pause_p99(runs[name]) for name in ("prefill first", "mixed"))
    told = f"writers' p99 gap: prefill first {seconds(whole)}, mixed {seconds(mixed)}"
    if mixed > ODD * whole:
        return f"{told}. A chunk can't hold them up for longer than a whole prompt: something else did"
    return MeasuredAnswer(whole / mixed, told)


def _is_odd(gap: Mapping[str, float]) -> bool:
    """Whether writers waited for longer under a policy that mixes less: no policy can do that."""
    return any(gap[less] > ODD * gap[more] for less, more in pairwise(MIXING))


def policies(runs: Mapping[str, Run]) -> Finding:
    """Who gained and who paid under each policy."""
    ttft = {name: percentile(ttft_of(newcomers(run)), 50) for name, run in runs.items()}
    gap = {name: pause_p99(run) for name, run in runs.items()}
    best, smooth = min(ttft, key=ttft.get), min(gap, key=gap.get)
    told = "; ".join(
        f"*{name}*: median TTFT {seconds(ttft[name])}, writers' p99 gap {seconds(gap[name])}" for name in runs
    )
    if _is_odd(gap):
        outcome = "disturbed"
    elif ttft["mixed"] > ttft["decode first"] and gap["mixed"] > gap["decode first"]:
        outcome = "mixed_behind"
    else:
        outcome = "trade" if gap[best] > PRICE * gap[smooth] else "no_price"
    return tell("05", "policies", outcome, told=told, best=best, smooth=smooth, price=gap[best], least=gap[smooth])


def calm(runs: Mapping[str, Run]) -> Finding:
    """Requests that never meet: is there anything to decide? What equal steps differ by is noise, within CEILING; on a
    simulated device, nothing."""
    plans = [step_plan(run) for run in runs.values()]
    ttft = [percentile(run.ttft, 50) for run in runs.values()]
    low, high = min(ttft), max(ttft)
    is_same = all(plan == plans[0] for plan in plans)
    if not is_same:
        outcome = "steps_differ"
    elif all(run.simulated_on for run in runs.values()):
        outcome = "simulated"
    else:
        outcome = "disturbed" if ratio_of(low, high) > CEILING else "same_steps"
    return tell("05", "calm", outcome, steps=len(plans[0]), low=low, high=high)


def rush(runs: Mapping[str, Run]) -> Finding:
    """Prompts that arrive faster than they can be prefilled."""
    gap = {name: pause_p99(run) for name, run in runs.items()}
    ttft = {name: percentile(ttft_of(newcomers(run)), 50) for name, run in runs.items()}
    first, *_, last = ttft_of(newcomers(runs["prefill first"]))
    is_rushed = last > BACKLOG * first
    if _is_odd(gap):
        outcome = "disturbed"
    elif not is_rushed:
        outcome = "not_rushed"
    else:
        outcome = "chunks_cost" if ttft["mixed"] > ttft["prefill first"] else "chunks_free"
    return tell("05", "rush", outcome, gap=gap, ttft=ttft, first=first, last=last)


def masks(found: list[MaskCost]) -> Finding:
    """What masks cost here, and would on a step of a few milliseconds."""
    one, many = found[0], found[-1]
    outcome = "grows" if many.mask > 2 * one.mask else "flat"
    longer = [
        f"{seconds(each.guided - each.plain)} longer" if each.guided > each.plain else "no longer"
        for each in (one, many)
    ]
    return tell("05", "masks", outcome, one=one, many=many, share=many.mask / many.guided, longer=longer)


# ---------------------------------------------------------------- three numbers

BUDGET = 8192
"""Tokens of a step that is as full as vLLM's server lets it be on an H100."""


def three_numbers() -> Html:
    on, costs = simulated_70b.deployment(), simulated_per_token()
    few, many = min(costs.decode), max(costs.decode)
    return know_cold(
        (
            f"about {told_seconds(simulated_70b.prefill_seconds(on, BUDGET))}",
            f"the gap in every stream when a step holds {BUDGET:,} prompt tokens: 70B on four H100s",
            "simulated; 2 P n over FLOP/s × MFU agrees",
        ),
        (
            f"× {told_ratio(costs.ratio(few))} to × {told_ratio(costs.ratio(many))}",
            f"what an output token costs in time against a prompt token, at batch {few} and at batch {many}: 70B",
            "simulated: T(B) / B over T(n) / n",
        ),
        (
            f"{ROUND_TRIPS} round trips",
            "before the first token can arrive on a new connection",
            "TCP, TLS 1.3, then the request",
        ),
    )


ROUND_TRIPS = 3
"""What a request takes on a new connection: one each to open it, to encrypt it, and to ask."""


def told_ratio(value: float) -> str:
    """Two significant digits."""
    return f"{float(f'{value:.1e}'):.0f}"


# ---------------------------------------------------------------- claims

HERE = ", here"
STILL = 0.05
"""A number that changed by less than this share stood still."""
EQUAL = 0.15
"""Throughputs closer than this share are equal: the last request to finish stretches the run a little."""
NOISY = 3.0
"""A machine on which the slow tenth of equal steps takes so many times as long as the fast tenth cannot judge."""


@dataclass(frozen=True)
class Move:
    """One change of policy: newcomers' TTFT and the other requests' gaps, before and after. Seconds."""

    name: str
    ttft: tuple[float, float]
    """Before and after."""
    gap: tuple[float, float]

    @property
    def is_opposite(self) -> bool:
        return _direction(self.ttft) * _direction(self.gap) < 0

    @property
    def moves(self) -> bool:
        return bool(_direction(self.ttft) or _direction(self.gap))

    def __str__(self) -> str:
        return f"{self.name}: TTFT {change(*self.ttft)}, gap {change(*self.gap)}"


def _direction(pair: tuple[float, float]) -> int:
    ratio = pair[1] / pair[0]
    return (ratio > 1 + STILL) - (ratio < 1 / (1 + STILL))


def moves_here(runs: Mapping[str, Run]) -> list[Move]:
    """From each of MIXING to the next: newcomers' median TTFT, writers' p99 gap."""
    ttft = {name: percentile(ttft_of(newcomers(runs[name])), 50) for name in MIXING}
    pause = {name: pause_p99(runs[name]) for name in MIXING}
    return [Move(f"{a} to {b}{HERE}", (ttft[a], ttft[b]), (pause[a], pause[b])) for a, b in pairwise(MIXING)]


def moves_of_sweep(sweep: Mapping[int, tuple[float, float]], where: str) -> list[Move]:
    """From each token budget to the next larger: TTFT p50, ITL p99."""
    steps = sorted(sweep.items())
    return [
        Move(f"budget {a} to {b}, {where}", (was[0], now[0]), (was[1], now[1]))
        for (a, was), (b, now) in pairwise(steps)
    ]


def b3(moves: Sequence[Move], noise: float = 1.0) -> Claim:
    """Opposite directions, move by move.

    Args:
        noise: of this machine, see `noise` in run.py. Where it is too large, only simulated moves are judged.
    """
    odd = any(move.gap[0] > ODD * move.gap[1] for move in moves if move.name.endswith(HERE))
    judged = [move for move in moves if (noise < NOISY and not odd) or not move.name.endswith(HERE)]
    others = [move for move in judged if not move.is_opposite]
    told = "; ".join(map(str, moves))
    if len(judged) < len(moves):
        told += say("B3.odd_here" if odd else "B3.not_judged_here", noise=noise)
    if not judged:
        verdict = "machine_too_busy"
    elif not any(move.moves for move in judged):
        verdict = "nothing_moved"
    else:
        verdict = "all_opposite" if not others else "some_opposite" if len(others) < len(judged) else "none_opposite"
    return conclude(
        "B3",
        verdict,
        told=told,
        others=", ".join(move.name for move in others),
        num_opposite=len(judged) - len(others),
        num_judged=len(judged),
    )


CLAIMED = 4.5
"""D19's factor."""


def d19(costs: Sequence[PerToken]) -> Claim:
    """Prefill against decode, seconds per token."""
    ratios = [cost.ratio(n) for cost in costs for n in cost.decode]
    low, high = min(ratios), max(ratios)
    told = "; ".join(
        f"{cost.where}: a prompt token {seconds(cost.prefill)}; an answer token costs "
        + ", ".join(f"{cost.ratio(n):.1f} times that with {n} decoding" for n in _ends(list(cost.decode)))
        for cost in costs
    )
    if low > CLAIMED:
        verdict = "far_too_low"
    else:
        verdict = (
            "only_at_one_batch_size" if high >= CLAIMED else "too_high_here" if high > 1.2 else "decode_hardly_slower"
        )
    return conclude("D19", verdict, told=told, low=low, high=high, sense=say("D19.what_it_says"))


def _ends(batches: list[int]) -> list[int]:
    return sorted({batches[0], batches[len(batches) // 2], batches[-1]})


@dataclass(frozen=True)
class FleetPair:
    """A fleet before and after its scheduling became aware of phases."""

    name: str
    ttft: tuple[float, float]
    """p50, before and after, seconds."""
    tokens_per_s: tuple[float, float]

    @property
    def cut(self) -> float:
        """Share by which TTFT fell."""
        return 1 - self.ttft[1] / self.ttft[0]

    @property
    def ttft_change(self) -> str:
        """In percent."""
        return change(*self.ttft)

    @property
    def is_equal(self) -> bool:
        """Equal throughput."""
        return abs(self.tokens_per_s[1] / self.tokens_per_s[0] - 1) <= EQUAL

    def __str__(self) -> str:
        return f"{self.name}: TTFT {self.ttft_change}, tokens/s {change(*self.tokens_per_s)}"


CHANGES = (
    ("decode first", "mixed, 2048"),
    ("prefill first", "mixed, 512"),
    ("prefill first", "mixed, 2048"),
    ("mixed, 2048", simulated.APART),
)
"""Baselines, and what "aware of phases" may mean."""


def pairs(rates: Sequence[float], num_requests: int = 200) -> list[FleetPair]:
    """At 70B, the same machines and arrivals before and after."""
    found = []
    names = dict.fromkeys(name for change in CHANGES for name in change)
    for qps in rates:
        fleets = {name: simulated.serve(name, qps, num_requests=num_requests) for name in names}
        for before, after in CHANGES:
            both = fleets[before], fleets[after]
            ttft = tuple(simulated_70b.ttft(run, 50) for run in both)
            speed = tuple(simulated_70b.tokens_per_s(run) for run in both)
            found.append(FleetPair(f"{before} to {after} at {qps:g}/s", ttft, speed))
    return found


def d21(found: Sequence[FleetPair]) -> Claim:
    """How much TTFT falls, by baseline."""
    told = "; ".join(map(str, found))
    equal = [pair for pair in found if pair.is_equal]
    if not equal:
        return conclude("D21", "no_equal_pair", replicas=simulated.REPLICAS, told=told)
    inside = [pair for pair in equal if 0.4 <= pair.cut <= 0.6]
    most, least = (choose(equal, key=lambda pair: pair.cut) for choose in (max, min))
    if len(inside) == len(equal):
        verdict = "every_cut_as_said"
    else:
        verdict = "only_from_a_slow_baseline" if most.cut >= 0.4 else "no_cut_that_large"
    counts = {"num_inside": len(inside), "num_equal": len(equal)}
    return conclude("D21", verdict, replicas=simulated.REPLICAS, told=told, most=most, least=least, **counts)


SWEPT_BUDGETS = (256, 512, 1024, 2048, 8192)


def b3_at_70b(num_requests: int = 100) -> list[Move]:
    """One replica under load, and nearly idle."""
    busy = simulated.sweep(SWEPT_BUDGETS, 3.0, num_requests=num_requests)
    calm = simulated.sweep((512, 2048), 1 / 40, num_requests=12, evenly=True)
    return moves_of_sweep(busy, "70B busy") + moves_of_sweep(calm, "70B idle")


def _measure_b3(lab: Lab) -> Claim:
    crowd = company(lab, pace(lab))
    runs = {name: lab.run(crowd, **fields) for name, fields in policies_of(lab).items()}
    return b3(moves_here(runs) + b3_at_70b(40), noise(runs.values()))


EXPERIMENT = ("lab/ttft_causes.py",)
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "B3": _measure_b3,
    "D19": lambda lab: d19(
        [
            measured_per_token([lab.run(shrinking(lab), max_num_seqs=8), lab.run(one_by_one(lab))]),
            simulated_per_token(),
        ]
    ),
    "D21": lambda lab: d21(pairs((0.5, 2.0))),
}
