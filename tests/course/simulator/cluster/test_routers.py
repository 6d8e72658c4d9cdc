"""Routers alone, and in a fleet: who gets what, and what that does to hit rates and queues."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from priced_runner import priced_engines
from simulated_integrity import check_conservation

from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.routers import PrefixMemory, RouterConfig, make_router, prefixes_of
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.kinds import Independent, Sessions, SharedPrefix
from course.simulator.workload.lengths import Fixed, LogNormal, Uniform
from course.simulator.workload.requests import Piece, Workload, make_workload


@dataclass
class Seen:
    """A replica as a router sees it."""

    number: int
    outstanding: int = 0


def router(policy: str, **options):
    return make_router(RouterConfig(policy=policy, **options), random.Random(0))


def prompt(*names: str, tokens: int = 100) -> list[Piece]:
    return [Piece(name, tokens) for name in names]


def test_round_robin() -> None:
    replicas = [Seen(0), Seen(1, 50), Seen(2)]
    chooser = router("round_robin")
    assert [chooser.choose(prompt("a"), replicas).number for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_outstanding() -> None:
    assert router("least_outstanding").choose(prompt("a"), [Seen(0, 3), Seen(1, 1), Seen(2, 2)]).number == 1


def test_prefix_aware_goes_where_the_prefix_is() -> None:
    chooser, replicas = router("prefix_aware"), [Seen(0, 5), Seen(1, 5)]
    home = chooser.choose(prompt("system", "q1"), replicas)
    home.outstanding += 1  # now it is the busier one, and still the better
    assert chooser.choose(prompt("system", "q2"), replicas) is home
    assert chooser.choose(prompt("other", "q3"), replicas) is not home


def test_prefix_aware_prefers_the_longer_match() -> None:
    chooser, replicas = router("prefix_aware"), [Seen(0), Seen(1)]
    chooser.choose(prompt("a", "b"), replicas[:1])
    chooser.choose(prompt("a", "b", "c"), replicas[1:])
    replicas[1].outstanding = 3
    assert chooser.choose(prompt("a", "b", "c", "d"), replicas).number == 1
    assert chooser.choose(prompt("a", "b", "x"), replicas).number == 0  # equal matches: the less busy


def test_prefix_aware_ignores_a_small_match() -> None:
    chooser, replicas = router("prefix_aware", min_match=0.5), [Seen(0, 9), Seen(1)]
    chooser.choose(prompt("short"), replicas[:1])
    assert chooser.choose([Piece("short", 100), Piece("long", 1000)], replicas).number == 1


def test_prefix_aware_gives_up_on_prefixes_when_queues_are_uneven() -> None:
    chooser, replicas = router("prefix_aware", imbalance=10, imbalance_ratio=2.0), [Seen(0), Seen(1)]
    chooser.choose(prompt("system"), replicas[:1])
    replicas[0].outstanding, replicas[1].outstanding = 20, 12  # apart by 8
    assert chooser.choose(prompt("system"), replicas).number == 0
    replicas[1].outstanding = 5  # apart by 15, and four times as long
    assert chooser.choose(prompt("system"), replicas).number == 1


def test_prefix_memory_forgets_the_oldest_ends_first() -> None:
    memory = PrefixMemory(max_tokens=300)
    first, second = list(prefixes_of(prompt("s", "a"))), list(prefixes_of(prompt("s", "b")))
    memory.add(first)
    memory.add(second)
    assert (memory.match(first), memory.match(second)) == (200, 200)  # s, a, b: 300 tokens
    memory.add(list(prefixes_of(prompt("t"))))
    assert (memory.match(first), memory.match(second)) == (100, 200)


def test_the_same_piece_after_another_is_another_prefix() -> None:
    assert list(prefixes_of(prompt("a", "b")))[1] != list(prefixes_of(prompt("b", "b")))[1]


# ---------------------------------------------------------------- in a fleet


def fleet(workload: Workload, policy: str, replicas: int = 4, engines: dict | None = None, **options) -> FleetRun:
    config = ClusterConfig(replicas=replicas, router=RouterConfig(policy=policy, **options))
    return simulate(workload, config, priced_engines(**(engines or {})))


@pytest.mark.parametrize(
    "traffic",
    [
        SharedPrefix(tenants=24, prefix=Fixed(tokens=1600), question=Fixed(tokens=50), output=Fixed(tokens=10)),
        Sessions(turns=Fixed(tokens=4), first=Fixed(tokens=600), output=Fixed(tokens=20), think_s=1.0),
    ],
    ids=["tenants", "sessions"],
)
def test_prefix_aware_routing_raises_the_hit_rate_and_lowers_ttft(traffic) -> None:
    """24 system prompts of 100 blocks do not fit into one pool of 1200, but a quarter of them does."""
    workload = make_workload(traffic, Poisson(rate=10), num_requests=200)
    blind = fleet(workload, "round_robin", engines={"num_kv_blocks": 1200})
    aware = fleet(workload, "prefix_aware", engines={"num_kv_blocks": 1200})
    assert aware.prefix_hit_rate > blind.prefix_hit_rate + 0.2
    assert aware.summary().metrics["ttft"].mean < blind.summary().metrics["ttft"].mean
    for run in (blind, aware):
        check_conservation(run)


@pytest.mark.parametrize("nameless", [False, True])
def test_without_shared_prefixes_prefix_aware_is_least_outstanding(nameless: bool) -> None:
    traffic = Independent(prompt=LogNormal(median=300, sigma=1), output=Uniform(low=1, high=50))
    workload = make_workload(traffic, Poisson(rate=20), num_requests=200)
    if nameless:
        workload = workload.anonymous()
    runs = [fleet(workload, policy) for policy in ("prefix_aware", "least_outstanding")]
    assert [record.replica for record in runs[0].records] == [record.replica for record in runs[1].records]


def test_least_outstanding_beats_blind_routing_when_lengths_differ() -> None:
    traffic = Independent(prompt=Fixed(tokens=100), output=LogNormal(median=30, sigma=1.2, high=600))
    workload = make_workload(traffic, Poisson(rate=6), num_requests=400)
    engines = {"max_num_seqs": 2, "token_s": 0.0}
    ttft = {
        policy: fleet(workload, policy, engines=engines).summary().metrics["ttft"].p95
        for policy in ("random", "round_robin", "least_outstanding")
    }
    assert ttft["least_outstanding"] < 0.7 * ttft["round_robin"] < 0.7 * ttft["random"]


def test_a_hot_replica_has_one_long_queue_while_the_fleets_median_is_fine() -> None:
    traffic = Independent(prompt=Fixed(tokens=100), output=Fixed(tokens=20))
    workload = make_workload(traffic, Poisson(rate=20), num_requests=400)
    engines = {"max_num_seqs": 2}
    healthy = fleet(workload, "least_outstanding", engines=engines)
    faulty = fleet(workload, "least_outstanding", engines=engines, hot_share=0.6)
    waits = {
        name: [r.timeline.scheduled - r.accepted for r in faulty.records if r.replica == name]
        for name in ("main-0", "main-1", "main-2", "main-3")
    }
    hot, *others = (float(np.percentile(seconds, 95)) for seconds in waits.values())
    assert hot > 20 * max(*others, 0.001)
    assert healthy.summary().metrics["ttft"].p99 < 0.1 * faulty.summary().metrics["ttft"].p99
    assert max(s.waiting for s in faulty.samples if s.replica != "main-0") <= 2
