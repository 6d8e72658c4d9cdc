"""The claims of lesson 05."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lab.run import Run, percentile
from course.lab.style import change, seconds
from course.lessons.lesson_05 import per_token, sim_70b, traffic
from course.lessons.lesson_05.per_token import PerToken

HERE = ", here"
STILL = 0.05
"""A number that changed by less than this share stood still."""
EQUAL = 0.15
"""Throughputs closer than this share are equal: the last request to finish stretches the run a little."""


NOISY = 3.0
"""A machine on which the slow tenth of equal steps takes so many times as long as the fast tenth cannot judge."""


@dataclass(frozen=True)
class Move:
    """One change of policy: what a newcomer's wait and other people's gaps became. Seconds."""

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
    """From not mixing at all to mixing in chunks, to whole prompts: newcomers' median TTFT, writers' p99 gap."""
    order = ["decode first", "mixed", "prefill first"]
    ttft = {name: percentile(traffic.ttft_of(traffic.newcomers(runs[name])), 50) for name in order}
    pause = {name: traffic.pause(runs[name]) for name in order}
    return [Move(f"{a} to {b}{HERE}", (ttft[a], ttft[b]), (pause[a], pause[b])) for a, b in pairwise(order)]


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
        noise: of this machine, see traffic.noise. Where it is too large, only simulated moves are judged.
    """
    judged = [move for move in moves if noise < NOISY or not move.name.endswith(HERE)]
    others = [move for move in judged if not move.is_opposite]
    told = "; ".join(map(str, moves)) + (say("B3.told", noise=noise) if len(judged) < len(moves) else "")
    if not judged:
        verdict = "not_shown"
    elif not any(move.moves for move in judged):
        verdict = "not_shown_2"
    else:
        verdict = "holds" if not others else "only_when" if len(others) < len(judged) else "wrong"
    counts = {"num_opposite": len(judged) - len(others), "num_judged": len(judged)}
    return conclude("B3", verdict, told=told, others=", ".join(move.name for move in others), **counts)


CLAIMED = 4.5
"""D19's factor."""


def d19(costs: Sequence[PerToken]) -> Claim:
    """Prefill against decode, seconds per token."""
    ratios = [cost.ratio(n) for cost in costs for n in cost.decode]
    low, high = min(ratios), max(ratios)
    told = "; ".join(
        f"{cost.where}: a prompt token {seconds(cost.prefill)}; an answer token costs "
        + ", ".join(f"{cost.ratio(n):.1f} times that with {n} decoding at once" for n in _ends(list(cost.decode)))
        for cost in costs
    )
    if low > CLAIMED:
        verdict = "only_when"
    else:
        verdict = "only_when_2" if high >= CLAIMED else "only_when_3" if high > 1.2 else "wrong"
    return conclude("D19", verdict, told=told, low=low, high=high, sense=say("D19.sense"))


def _ends(batches: list[int]) -> list[int]:
    return sorted({batches[0], batches[len(batches) // 2], batches[-1]})


@dataclass(frozen=True)
class Pair:
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
    def is_equal(self) -> bool:
        """Equal throughput."""
        return abs(self.tokens_per_s[1] / self.tokens_per_s[0] - 1) <= EQUAL

    def __str__(self) -> str:
        return f"{self.name}: TTFT {change(*self.ttft)}, tokens/s {change(*self.tokens_per_s)}"


CHANGES = (
    ("decode first", "mixed, 2048"),
    ("prefill first", "mixed, 512"),
    ("prefill first", "mixed, 2048"),
    ("mixed, 2048", sim_70b.APART),
)
"""Baselines, and what "aware of phases" may mean."""


def pairs(rates: Sequence[float], num_requests: int = 200) -> list[Pair]:
    """At 70B, the same machines and arrivals before and after."""
    found = []
    names = dict.fromkeys(name for change in CHANGES for name in change)
    for qps in rates:
        fleets = {name: sim_70b.serve(name, qps, num_requests=num_requests) for name in names}
        for before, after in CHANGES:
            a, b = fleets[before], fleets[after]
            name = f"{before} to {after} at {qps:g}/s"
            found.append(Pair(name, (a.ttft(50), b.ttft(50)), (a.tokens_per_s, b.tokens_per_s)))
    return found


def d21(found: Sequence[Pair]) -> Claim:
    """How much TTFT falls, by baseline."""
    told = {"replicas": sim_70b.REPLICAS, "told": "; ".join(map(str, found))}
    equal = [pair for pair in found if pair.is_equal]
    if not equal:
        return conclude("D21", "not_shown", **told)
    inside = [pair for pair in equal if 0.4 <= pair.cut <= 0.6]
    most, least = (choose(equal, key=lambda pair: pair.cut) for choose in (max, min))
    return conclude(
        "D21", "holds" if len(inside) == len(equal) else "only_when" if most.cut >= 0.4 else "wrong", **told,
        most=most, most_change=change(*most.ttft), least=least, least_change=change(*least.ttft),
        num_inside=len(inside), num_equal=len(equal),
    )  # fmt: skip


BUDGETS = (256, 512, 1024, 2048, 8192)


def b3_at_70b(num_requests: int = 100) -> list[Move]:
    """One replica under load, and nearly idle."""
    busy = sim_70b.sweep(BUDGETS, 3.0, num_requests=num_requests)
    calm = sim_70b.sweep((512, 2048), 1 / 40, num_requests=12, evenly=True)
    return moves_of_sweep(busy, "70B busy") + moves_of_sweep(calm, "70B idle")


def _measure_b3(lab: Lab) -> Claim:
    crowd = traffic.company(lab, traffic.pace(lab))
    runs = {name: lab.run(crowd, **fields) for name, fields in traffic.POLICIES.items()}
    return b3(moves_here(runs) + b3_at_70b(40), traffic.noise(runs.values()))


MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "B3": _measure_b3,
    "D19": lambda lab: d19(
        [
            per_token.measured([lab.run(traffic.shrinking(lab), max_num_seqs=8), lab.run(traffic.one_by_one(lab))]),
            per_token.simulated(),
        ]
    ),
    "D21": lambda lab: d21(pairs((0.5, 2.0))),
}
