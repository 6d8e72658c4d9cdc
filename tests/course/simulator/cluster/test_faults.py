"""Each thing that can go wrong, or be done about it, has the effect its name says."""

import math

import numpy as np
import pytest
from priced_runner import priced_engines
from simulated_integrity import check_conservation

from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.network import Network, coalesce
from course.simulator.cluster.pool import Autoscaler, Autoscaling, Shedding
from course.simulator.cluster.run import FleetRun
from course.simulator.deployment import Deployment
from course.simulator.errors import WorkloadError
from course.simulator.workload.arrivals import AllAtOnce, Deterministic, Poisson, Ramp, Spikes
from course.simulator.workload.kinds import AZURE_CHAT, Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import Workload, make_workload
from course.summary import SLO
from minillm.core.timeline import Timeline

ENGINES = {"floor_s": 0.05, "token_s": 0.0, "max_num_seqs": 4}
"""4 slots and 50 ms a step: requests of 10 tokens take 0.5 s each, so a replica serves 8 a second."""
SHORT = Independent(prompt=Fixed(tokens=64), output=Fixed(tokens=10))


def steady(rate: float, num: int = 200) -> Workload:
    return make_workload(SHORT, Poisson(rate=rate), num_requests=num)


def spike(num: int = 400) -> Workload:
    """Half of one replica's capacity, and three times as much from second 10 to second 20."""
    return make_workload(SHORT, Spikes(rate=4, spike_rate=24, start_s=10, length_s=10), num_requests=num)


def fleet(workload: Workload, replicas: int = 1, engines: dict | None = None, **fields) -> FleetRun:
    run = simulate(
        workload, ClusterConfig(replicas=replicas, **fields), priced_engines(**{**ENGINES, **(engines or {})})
    )
    check_conservation(run)
    return run


def ttft(run: FleetRun, percentile: float = 99) -> float:
    return float(np.percentile([record.ttft() for record in run.records if record.completed], percentile))


# ---------------------------------------------------------------- overload


def test_above_capacity_the_queue_grows_and_below_it_does_not() -> None:
    over, under = fleet(steady(12)), fleet(steady(5))
    queue = [sample.waiting for sample in over.samples]
    third = len(queue) // 4
    assert np.mean(queue[:third]) < np.mean(queue[third : 2 * third]) < np.mean(queue[2 * third : 3 * third])
    assert ttft(over) > 3 > 1 > ttft(under)


def test_shedding_by_queue_length_bounds_latency() -> None:
    unbounded, bounded = fleet(steady(16)), fleet(steady(16), shedding=Shedding(max_outstanding=8))
    assert bounded.outcomes["shed"] > 40
    # 8 requests, 4 at a time, 0.5 s each: no request waits for more than one round
    assert ttft(bounded) < 0.7 < 5 < ttft(unbounded)
    slo = SLO(ttft=1.0)
    assert bounded.summary(slo).goodput > 2 * unbounded.summary(slo).goodput


def test_shedding_by_deadline_drops_what_nobody_has_begun() -> None:
    run = fleet(steady(16), shedding=Shedding(deadline_s=1.0))
    assert run.outcomes["shed"] > 40
    assert run.wasted_tokens == 0
    assert max(r.timeline.scheduled - r.accepted for r in run.records if r.completed) <= 1.05
    for record in run.records:
        if not record.completed:
            assert record.ended == pytest.approx(record.sent + 1.0)


def test_the_engines_own_limits_are_shedding_too() -> None:
    full = fleet(steady(16), engines={"max_queue_len": 3})
    late = fleet(steady(16), engines={"queue_timeout_s": 0.5})
    for run in (full, late):
        assert run.outcomes["shed"] > 40
        assert run.outcomes["completed"] > 100
        assert ttft(run) < 1.5


# ---------------------------------------------------------------- patience and retries


def test_time_outs_without_cancelling_are_work_for_nobody() -> None:
    """Incident 28: everything times out, and the work is done all the same."""
    goes_on = fleet(steady(16), clients=ClientConfig(timeout_s=2.0, cancel_on_timeout=False))
    cancelled = fleet(steady(16), clients=ClientConfig(timeout_s=2.0, cancel_on_timeout=True))
    assert goes_on.outcomes["timeout"] > 100
    assert goes_on.wasted_tokens == 10 * goes_on.outcomes["timeout"]
    assert cancelled.wasted_tokens < 0.5 * goes_on.wasted_tokens
    assert cancelled.outcomes["completed"] > goes_on.outcomes["completed"]
    for record in goes_on.records:
        if not record.completed:
            assert record.ended == pytest.approx(record.sent + 2.0)


def test_a_cancelled_request_frees_its_blocks_at_once() -> None:
    workload = make_workload(
        Independent(prompt=Fixed(tokens=64), output=Fixed(tokens=1000)), AllAtOnce(), num_requests=1
    )
    run = fleet(workload, clients=ClientConfig(timeout_s=1.0), sample_every_s=0.1)
    used = {round(sample.moment, 1): sample.kv_used for sample in run.samples}
    assert used[0.9] > 0 and run.duration == pytest.approx(1.0)
    assert run.reports[0].num_output_tokens == pytest.approx(20, abs=1)


def test_an_engine_left_empty_by_a_cancellation_serves_the_next() -> None:
    """With asynchronous scheduling a step is still out when its only request is cancelled."""
    traffic = Independent(prompt=Fixed(tokens=64), output=Fixed(tokens=30))
    workload = make_workload(traffic, Deterministic(rate=0.2), num_requests=3)
    run = fleet(workload, engines={"runs_beside_python": True}, clients=ClientConfig(timeout_s=1.02))
    assert run.outcomes == {"timeout": 3}
    assert [r.first_byte - r.sent for r in run.records] == pytest.approx([0.05] * 3)
    assert all(r.timeline.arrival <= r.timeline.scheduled < r.ended for r in run.records), (
        "its client left, it was begun"
    )


def test_patience_for_the_first_byte_only() -> None:
    long = make_workload(Independent(prompt=Fixed(tokens=64), output=Fixed(tokens=100)), AllAtOnce(), num_requests=8)
    run = fleet(long, clients=ClientConfig(first_byte_timeout_s=2.0))
    assert run.outcomes == {"completed": 4, "timeout": 4}  # four slots: the others wait 5 s
    assert all(record.first_byte is None for record in run.records if not record.completed)
    assert all((record.timeline.scheduled is None) is not record.completed for record in run.records)


# ---------------------------------------------------------------- replicas that come and go


def test_a_new_replica_serves_only_after_its_cold_start() -> None:
    scaling = Autoscaling(signal="outstanding", target=8, max_replicas=4, interval_s=1.0, window_s=0.0)
    run = fleet(spike(), autoscaling=scaling, cold_start_s=6.0)
    first = {}
    for record in run.records:
        first.setdefault(record.replica, record.timeline.scheduled)
    later = [report for report in run.reports if report.started > 0]
    assert later, "the spike must have called for more"
    for report in later:
        assert report.started >= 10
        assert first.get(report.replica, math.inf) >= report.started + 6.0


def test_autoscaling_helps_a_spike_only_as_far_as_it_is_quick() -> None:
    def run(cold_start_s: float) -> FleetRun:
        scaling = Autoscaling(target=4, max_replicas=8, interval_s=1.0, window_s=2.0, scale_down_after_s=30)
        return fleet(spike(), autoscaling=scaling, cold_start_s=cold_start_s)

    quick, slow, never = run(1.0), run(30.0), fleet(spike())
    assert ttft(quick) < 0.5 * ttft(never)
    assert ttft(slow) > 0.9 * ttft(never)  # they come when the spike is over ...
    assert slow.replica_seconds > 1.3 * never.replica_seconds  # ... and are paid for


def test_a_new_replica_is_slow_to_its_first_request() -> None:
    scaling = Autoscaling(target=8, max_replicas=2, interval_s=1.0, window_s=0.0)
    cold = fleet(spike(), autoscaling=scaling, warm_up_s=5.0)
    first = min((r for r in cold.records if r.replica == "main-1"), key=lambda r: r.timeline.scheduled)
    assert first.timeline.scheduled - first.accepted == pytest.approx(5.0)
    assert fleet(steady(3), warm_up_s=5.0).summary().metrics["ttft"].max < 1  # warm from the start


def test_scale_to_zero_makes_rare_traffic_pay() -> None:
    scaling = Autoscaling(target=4, min_replicas=0, interval_s=1.0, window_s=0.0, scale_down_after_s=5)
    rare = make_workload(SHORT, Deterministic(rate=1 / 60), num_requests=4)
    zero = fleet(rare, replicas=0, autoscaling=scaling, cold_start_s=20.0)
    warm = fleet(rare, replicas=1)
    assert all(record.ttft() > 20 for record in zero.records)
    assert ttft(warm) < 0.1
    assert zero.replica_seconds < 0.7 * warm.replica_seconds
    assert len(zero.reports) == 4


def test_the_autoscaler_averages_rounds_up_and_waits_before_it_takes_away() -> None:
    scaler = Autoscaler(Autoscaling(target=10, max_replicas=5, window_s=20, scale_down_after_s=60), 1)
    assert scaler.decide(0, 10) == 1
    assert scaler.decide(10, 40) == 3  # mean 25
    assert scaler.decide(20, 1000) == 5  # never more
    assert scaler.decide(60, 0) == 5
    assert scaler.decide(81, 0) == 1  # a minute after the last need


def test_an_objective_scales_as_well_as_a_load_does() -> None:
    """A climb: by TTFT the fleet grows with it, for less than a fleet that is as large from the start."""
    climb = make_workload(AZURE_CHAT, Ramp(start_rate=0.3, end_rate=3, length_s=300), duration_s=400)
    make, slo = Deployment.of("llama-3.1-8b", "l4").fast_engine, SLO(ttft=4.0, tpot=0.2)
    by_ttft = {"signal": "ttft", "target": 1.0, "max_replicas": 6}
    fleets = ({"replicas": 3}, {"replicas": 6}, {"autoscaling": by_ttft, "cold_start_s": 10.0})
    few, many, scaled = (simulate(climb, ClusterConfig(sample_every_s=None, **fields), make) for fields in fleets)
    attained = [run.summary(slo).attainment for run in (few, scaled, many)]
    assert attained[0] + 0.01 < attained[1] < attained[2] and attained[1] > 0.94
    assert scaled.replica_seconds < 0.75 * many.replica_seconds


def test_the_ratio_to_the_objective_within_bounds() -> None:
    def wanted(*latencies: float, there: int = 4) -> int:
        scaler = Autoscaler(Autoscaling(signal="tpot", target=0.1, scale_down_after_s=0), 1)
        for latency in latencies:
            scaler.see(5.0, Timeline(0.0, first_token=0.0, last_token=latency, finished=latency, num_tokens=2))
        return scaler.decide_by_latency(6.0, there)

    assert [wanted(latency) for latency in (0.15, 0.109, 0.091, 0.05, 0.01, 5.0)] == [6, 4, 4, 2, 2, 8]
    assert wanted() == 4, "nobody has ended: nothing is known"
    assert wanted(*[0.1] * 18, 0.2, 0.2) == 4 and wanted(*[0.1] * 15, *[0.2] * 5) == 8, (
        "the slowest tenth may be slower"
    )


# ---------------------------------------------------------------- the network


def test_far_clients_wait_longer_for_the_same_work() -> None:
    """Incident 27: an offset that is equal for all prompts, in one region."""
    run = fleet(steady(2, 100), network=Network(rtt_s=0.01, far_share=0.4, far_rtt_s=0.3, handshakes=2))
    far = [r.ttft() for r in run.records if r.is_far]
    near = [r.ttft() for r in run.records if not r.is_far]
    assert len(far) / 100 == pytest.approx(0.4, abs=0.12)
    assert np.median(far) - np.median(near) == pytest.approx(3 * 0.29, abs=0.06)


def test_a_slow_ingress_queues_before_the_engine_sees_anything() -> None:
    """Incident 25: TTFT is up, and the engines' queues are empty."""
    run = fleet(steady(6, 300), replicas=4, network=Network(ingress_s=0.16))
    assert np.mean([r.accepted - r.sent for r in run.records]) > 0.5
    assert max(r.timeline.scheduled - r.accepted for r in run.records) < 0.06
    # one server, deterministic service: M/D/1 again
    load = 6 * 0.16
    assert load < 1 and np.mean([r.accepted - r.sent for r in run.records]) < 3 * load / (2 * (1 - load)) * 0.16


def test_a_coalescing_proxy_flatters_itl_p50_and_ruins_p99() -> None:
    """Incident 23: TPOT is as before."""
    workload = make_workload(Independent(prompt=Fixed(tokens=64), output=Fixed(tokens=61)), AllAtOnce(), num_requests=4)
    plain, held = fleet(workload), fleet(workload, network=Network(hold_chunks=20))
    before, after = plain.summary().metrics, held.summary().metrics
    assert before["itl"].p50 == pytest.approx(0.05)
    assert after["itl"].p50 == 0.0
    assert after["itl"].p99 == pytest.approx(20 * 0.05)
    assert after["e2e"].mean == pytest.approx(before["e2e"].mean)
    assert held.records[0].first_byte == pytest.approx(plain.records[0].deliveries[19])


def test_coalesce() -> None:
    stamps = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert coalesce(stamps, 1, math.inf) == stamps
    assert coalesce(stamps, 2, math.inf) == [1.0, 1.0, 3.0, 3.0, 4.0]
    assert coalesce(stamps, 10, math.inf) == [4.0] * 5
    assert coalesce(stamps, 10, 1.5) == [1.5, 1.5, 3.5, 3.5, 4.0]
    assert coalesce([], 3, 1.0) == []


# ---------------------------------------------------------------- several pools


def test_model_routing_serves_the_easy_on_the_small_model_and_a_misroute_costs() -> None:
    small = priced_engines(**{**ENGINES, "floor_s": 0.01})
    large = priced_engines(**ENGINES)

    def run(misroute_rate: float) -> FleetRun:
        routing = {"easy_share": 0.7, "misroute_rate": misroute_rate}
        run = simulate(steady(8, 400), ClusterConfig(model_routing=routing), large, make_small_engine=small)
        check_conservation(run)
        return run

    exact, wrong = run(0.0), run(0.3)
    by_pool = [record.replica.split("-")[0] for record in exact.records]
    assert by_pool.count("small") / 400 == pytest.approx(0.7, abs=0.07)
    assert sum(record.misrouted for record in wrong.records) / 400 == pytest.approx(0.3, abs=0.07)
    assert wrong.summary().metrics["e2e"].mean > 1.2 * exact.summary().metrics["e2e"].mean
    assert exact.wasted_tokens == 0
    twice = [r for r in wrong.records if r.misrouted and r.replica == "main-0" and r.timeline.arrival > r.accepted]
    assert wrong.wasted_tokens == 10 * len(twice) > 0  # a hard one on the small model: its answer is thrown away


def disaggregated(workload: Workload, link_bytes_per_s: float, **fields) -> FleetRun:
    link = {"prefill_replicas": 1, "kv_bytes_per_token": 1e5, "link_bytes_per_s": link_bytes_per_s, **fields}
    engines = priced_engines(floor_s=0.01, token_s=0.0002, max_num_seqs=16)
    run = simulate(workload, ClusterConfig(replicas=1, disaggregation=link), engines)
    check_conservation(run)
    return run


def test_disaggregation_keeps_prefills_out_of_decode() -> None:
    traffic = Independent(prompt=Fixed(tokens=1500), output=Fixed(tokens=50))
    workload = make_workload(traffic, Poisson(rate=2), num_requests=60)
    together = simulate(
        workload, ClusterConfig(replicas=2), priced_engines(floor_s=0.01, token_s=0.0002, max_num_seqs=16)
    )
    apart = disaggregated(workload, link_bytes_per_s=50e9)
    assert apart.outcomes == {"completed": 60}
    assert [r.num_tokens for r in apart.records] == [50] * 60
    gaps = [[gap for row in run.request_records() for gap in row.timeline.itl] for run in (together, apart)]
    assert sum(gap > 0.15 for gap in gaps[0]) > 10  # somebody's prefill of 1500 tokens
    assert max(gaps[1]) < 0.05
    decode = apart.pools["main"].replicas[0].engine
    assert decode.scheduler.prefix_hits / decode.scheduler.prefix_queries > 0.95  # nothing is computed twice


def test_a_slow_link_is_paid_between_first_and_second_token() -> None:
    traffic = Independent(prompt=Fixed(tokens=1000), output=Fixed(tokens=10))
    workload = make_workload(traffic, Deterministic(rate=1), num_requests=10)
    fast, slow = disaggregated(workload, 1e12), disaggregated(workload, 2e8, link_latency_s=0.1)
    for a, b in zip(fast.records, slow.records):
        assert b.first_byte == a.first_byte
        assert b.timeline.lost["kv_transfer"] == pytest.approx(1000 * 1e5 / 2e8 + 0.1, rel=0.01)
        assert b.deliveries[1] - b.deliveries[0] > 0.6 > 0.1 > a.deliveries[1] - a.deliveries[0]


def test_transfers_take_turns_on_the_link() -> None:
    traffic = Independent(prompt=Fixed(tokens=500), output=Fixed(tokens=5))
    run = disaggregated(make_workload(traffic, AllAtOnce(), num_requests=4), link_bytes_per_s=1e8)
    transfers = sorted(record.timeline.lost["kv_transfer"] for record in run.records)
    assert transfers == pytest.approx([0.5, 1.0, 1.5, 2.0], abs=0.25)


def test_a_decode_pool_short_of_kv_makes_arrivals_wait() -> None:
    traffic = Independent(prompt=Fixed(tokens=500), output=Fixed(tokens=40))
    workload = make_workload(traffic, AllAtOnce(), num_requests=12)
    link = {"prefill_replicas": 1, "kv_bytes_per_token": 1.0, "link_bytes_per_s": 1e12}
    prefill = priced_engines(floor_s=0.01)
    run = simulate(
        workload,
        ClusterConfig(disaggregation=link, sample_every_s=0.01),
        priced_engines(floor_s=0.01, num_kv_blocks=140),
        make_prefill_engine=prefill,
    )
    check_conservation(run)
    assert run.outcomes == {"completed": 12}
    assert max(s.running for s in run.samples if s.replica == "main-0") <= 4  # 34 blocks each
    assert max(s.waiting for s in run.samples if s.replica == "main-0") > 2


def test_disaggregation_needs_a_prefix_cache() -> None:
    link = {"prefill_replicas": 1, "kv_bytes_per_token": 1.0, "link_bytes_per_s": 1.0}
    with pytest.raises(WorkloadError, match="enable_prefix_caching"):
        simulate(steady(1, 1), ClusterConfig(disaggregation=link), priced_engines(enable_prefix_caching=False))


def test_cancelling_works_in_every_pool_and_on_the_way_between() -> None:
    traffic = Independent(prompt=Fixed(tokens=1500), output=Fixed(tokens=200))
    workload = make_workload(traffic, Poisson(rate=6), num_requests=80)
    for timeout_s in (0.2, 0.5, 0.9, 1.5, 3.0):
        run = simulate(
            workload,
            ClusterConfig(
                disaggregation={"prefill_replicas": 1, "kv_bytes_per_token": 1e5, "link_bytes_per_s": 5e8},
                clients=ClientConfig(timeout_s=timeout_s, max_attempts=2),
                network=Network(rtt_s=0.05),
            ),
            priced_engines(floor_s=0.01, token_s=0.0001, max_num_seqs=8, num_kv_blocks=900),
        )
        check_conservation(run)
        assert run.outcomes["timeout"] > 10
