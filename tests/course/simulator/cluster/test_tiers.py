"""KV tiers: closed forms of what a fetched prompt takes, what is kept, who finds it, and that nothing is lost."""

import json

import pytest
from simulated_integrity import check_conservation

from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.run import FleetRun
from course.simulator.cluster.tiers import Tier, TierConfig
from course.simulator.cost.roofline import StepWork
from course.simulator.deployment import Deployment
from course.simulator.errors import WorkloadError
from course.simulator.workload.arrivals import Deterministic, Poisson
from course.simulator.workload.kinds import Sessions
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload

HOST = {"name": "host", "capacity_gb": 100, "bytes_per_s": 50e9, "latency_s": 0.001}
REMOTE = {"name": "remote", "capacity_gb": 1000, "bytes_per_s": 5e9, "latency_s": 0.01, "shared": True}
TALK = Sessions(
    system=Fixed(tokens=1000),
    first=Fixed(tokens=3000),
    turns=Fixed(tokens=2),
    message=Fixed(tokens=100),
    output=Fixed(tokens=50),
)
"""Prompts of 4000 tokens, 250 blocks, and then of 4150."""
LLAMA = Deployment.of("llama-3.1-8b", "h100-sxm", max_num_batched_tokens=8192)


def ttfts(run: FleetRun) -> list[float]:
    check_conservation(run)
    return [record.timeline.first_token - record.timeline.arrival for record in run.records]


def prefill_s(tokens: int, cached: int) -> float:
    return LLAMA.step_time().price(StepWork.of_prompt(tokens, cached)).total


@pytest.mark.parametrize(("tier", "finds"), [(HOST, False), (REMOTE, True)], ids=["own", "shared"])
def test_a_second_turn_elsewhere_waits_for_its_blocks_and_computes_the_rest(tier: dict, finds: bool) -> None:
    workload = make_workload(TALK, Deterministic(rate=1), num_requests=1)
    config = ClusterConfig(replicas=2, router={"policy": "round_robin"}, tiers=[tier])
    run = simulate(workload, config, LLAMA.fast_engine)
    first, second = ttfts(run)
    transfer_s = tier["latency_s"] + 4000 * 131_072 / tier["bytes_per_s"]
    expected = transfer_s + prefill_s(150, 4000) if finds else prefill_s(4150, 0)
    assert (first, second) == (pytest.approx(prefill_s(4000, 0)), pytest.approx(expected))
    assert run.to_dict()["tier_hits"] == {tier["name"]: 4000 if finds else 0}
    assert "tier_hits" not in simulate(workload, config.replace(tiers=()), LLAMA.fast_engine).to_dict()


def test_only_what_the_gpu_has_evicted_is_fetched() -> None:
    """Two conversations, and a pool for one: the other's last blocks go, its first blocks stay."""
    workload = make_workload(TALK.replace(think_s=0.5), Deterministic(rate=10), num_requests=2)
    small = Deployment.of("llama-3.1-8b", "h100-sxm", num_kv_blocks=300, max_num_seqs=1)
    run = simulate(workload, ClusterConfig(tiers=[HOST]), small.fast_engine)
    second = [record.num_cached_tokens for record in run.records if record.request.after is not None]
    assert second == [4000, 4000] and 0 < run.tier_hits["host"] < 8000 and run.tier_hits["host"] % 16 == 0
    without = simulate(workload, ClusterConfig(), small.fast_engine)
    assert sum(record.num_cached_tokens for record in without.records) < sum(second)
    assert ttfts(run)[-1] < ttfts(without)[-1]


def test_a_tier_keeps_what_was_used_last_and_serves_one_transfer_at_a_time() -> None:
    tier = Tier(TierConfig(name="t", capacity_gb=4e-9, bytes_per_s=2.0, latency_s=0.5))
    blocks = [bytes([i]) for i in range(6)]
    tier.write(blocks[:3], 1.0)
    tier.write([blocks[3]], 1.0)
    assert tier.match(blocks[:3]) == 3, "used again"
    tier.write(blocks[4:], 1.0)
    assert tier.match(blocks[3:4]) == 0 and tier.match(blocks[4:]) == 2
    assert tier.match(blocks[:3]) == 2, "a prefix outlives what follows it"
    assert [tier.transfer(4.0, now) for now in (0.0, 1.0, 10.0)] == [2.5, 4.5, 12.5]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"clients": {"timeout_s": 0.9, "max_attempts": 2}, "network": {"rtt_s": 0.02}},
        {"disaggregation": {"prefill_replicas": 2, "link_bytes_per_s": 1e10}},
        {"autoscaling": {"target": 3.0, "interval_s": 1.0}, "cold_start_s": 1.0},
    ],
    ids=["plain", "impatient", "disaggregated", "scaling"],
)
def test_nothing_is_lost_and_one_seed_is_one_result(fields: dict) -> None:
    """A small pool and a small host tier: all three levels evict and are found in."""
    tiers = [HOST | {"capacity_gb": 3}, REMOTE | {"bytes_per_s": 2e9}]
    workload = make_workload(TALK.replace(think_s=1.0), Poisson(rate=8), num_requests=40)
    config = ClusterConfig(replicas=2, router={"policy": "random"}, tiers=tiers, **fields)
    engines = Deployment.of("llama-3.1-8b", "h100-sxm", num_kv_blocks=700)
    run = simulate(workload, config, engines.fast_engine)
    check_conservation(run)
    assert all(run.tier_hits[tier["name"]] > 0 for tier in tiers)
    if "clients" in fields:
        assert run.outcomes["timeout"] > 0, "some hang up while they wait for their blocks"
    else:
        assert run.outcomes == {"completed": 80}
        assert all(record.num_tokens == 50 for record in run.records)
    found = sum(r.engine.scheduler.prefix_hits for pool in run.pools.values() for r in pool.replicas)
    assert run.tier_hits.total() <= found or "clients" in fields
    again = [json.dumps(simulate(workload, config, make).to_dict()) for make in (engines.fast_engine, engines.engine)]
    assert again == [json.dumps(run.to_dict())] * 2


def test_tiers_that_cannot_be_are_refused() -> None:
    with pytest.raises(WorkloadError, match="same name"):
        ClusterConfig(tiers=[HOST, HOST])
    with pytest.raises(WorkloadError, match="enable_prefix_caching"):
        workload = make_workload(TALK, Deterministic(rate=1), num_requests=1)
        simulate(workload, ClusterConfig(tiers=[HOST]), LLAMA.without_prefix_lookups().engine)
