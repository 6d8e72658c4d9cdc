"""The fleet against queueing theory, its bookkeeping, determinism, and open against closed loop."""

import json
import math

import numpy as np
import pytest
from priced_runner import priced_engines
from simulated_integrity import check_conservation

from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.pool import Autoscaling
from course.simulator.cluster.replica import Intake
from course.simulator.cluster.run import FleetRun
from course.simulator.deployment import Deployment
from course.simulator.errors import SimulationError, WorkloadError
from course.simulator.workload.arrivals import AllAtOnce, Deterministic, Gamma, Poisson
from course.simulator.workload.kinds import AZURE_CHAT, AgentLoop, Independent, Rag, Sessions, SharedPrefix
from course.simulator.workload.lengths import Fixed, LogNormal, Uniform
from course.simulator.workload.requests import Workload, make_workload
from course.summary import SLO

ONE_TOKEN = Independent(prompt=Fixed(tokens=10), output=Fixed(tokens=1))
CHAT = Independent(prompt=LogNormal(median=200, sigma=0.8, high=4000), output=Uniform(low=5, high=60))


def one_seat(service_s: float):
    """A server that does one request at a time, each in exactly so long."""
    return priced_engines(floor_s=service_s, token_s=0.0, max_num_seqs=1)


def waits(run: FleetRun) -> np.ndarray:
    return np.array([record.timeline.scheduled - record.sent for record in run.records])


@pytest.mark.parametrize("load", [*(pytest.param(load, marks=pytest.mark.slow) for load in (0.3, 0.6)), 0.8])
def test_waiting_time_is_that_of_m_d_1(load: float) -> None:
    """Pollaczek-Khinchine: mean wait = load / (2 (1 - load)) x service time."""
    service, num = 0.1, 10_000
    workload = make_workload(ONE_TOKEN, Poisson(rate=load / service), num_requests=num, seed=1)
    run = simulate(workload, ClusterConfig(sample_every_s=None), one_seat(service))
    wait = waits(run)
    batches = wait.reshape(20, -1).mean(axis=1)  # waits are correlated: batch means are nearly not
    error = batches.std(ddof=1) / math.sqrt(len(batches))
    assert error < 0.15 * wait.mean()
    assert wait.mean() == pytest.approx(load / (2 * (1 - load)) * service, abs=3 * error)
    assert all(record.e2e() == pytest.approx(w + service) for record, w in zip(run.records, wait))


def test_littles_law() -> None:
    """Requests in the fleet, as samples saw it = arrival rate x time in it, as clients saw it."""
    workload = make_workload(CHAT, Poisson(rate=20), num_requests=1500)
    run = simulate(workload, ClusterConfig(replicas=2, sample_every_s=0.05), priced_engines())
    moments = sorted({sample.moment for sample in run.samples})
    in_fleet = sum(sample.outstanding for sample in run.samples) / len(moments)
    rate = len(workload) / run.duration
    assert in_fleet == pytest.approx(rate * np.mean([record.e2e() for record in run.records]), rel=0.03)
    assert in_fleet > 3


@pytest.mark.parametrize("intake", [{"look_every": 20}, {"hold_steps": 15}, {"look_every": 8, "hold_steps": 100}])
def test_a_busy_replica_takes_requests_in_now_and_then(intake: dict) -> None:
    """They wait longer, no longer than so many steps or until it has nothing else to do, and decode runs stop for them:
    all is as without fast-forward."""
    workload = make_workload(CHAT, Deterministic(rate=12), num_requests=80)
    deployment = Deployment.of("llama-3.1-8b", "h100-sxm", separate_prompts=False)
    late = ClusterConfig(intake=Intake(**intake))
    fast, plain = (simulate(workload, late, make) for make in (deployment.fast_engine, deployment.engine))
    assert fast.to_dict()["requests"] == plain.to_dict()["requests"]
    check_conservation(fast)
    at_once = waits(simulate(workload, ClusterConfig(), deployment.fast_engine))
    steps = (waits(fast) - at_once) / 0.0075  # a step of a few answers
    assert steps.mean() > 3 and steps.max() < sum(intake.values()) + 8
    few_slots = Deployment.of("llama-3.1-8b", "h100-sxm", separate_prompts=False, max_num_seqs=2)
    full = [simulate(workload, late, make).to_dict() for make in (few_slots.fast_engine, few_slots.engine)]
    assert full[0]["requests"] == full[1]["requests"], "also while no slot is free for those that wait"


@pytest.mark.parametrize(
    "traffic",
    [CHAT, SharedPrefix(tenants=3), Rag(documents=20), Sessions(think_s=1.0), AgentLoop(turns=Uniform(low=2, high=5))],
    ids=lambda traffic: type(traffic).__name__,
)
@pytest.mark.parametrize("lookahead", [False, True], ids=["plain", "async"])
def test_requests_and_kv_blocks_are_conserved(traffic, lookahead: bool) -> None:
    workload = make_workload(traffic, Gamma(rate=8, cv=3), num_requests=60)
    run = simulate(workload, ClusterConfig(replicas=3), priced_engines(runs_beside_python=lookahead))
    check_conservation(run)
    assert run.outcomes == {"completed": len(workload)}
    assert [record.num_tokens for record in run.records] == [r.output_tokens for r in workload]
    assert sum(report.num_requests for report in run.reports) == len(workload)
    assert run.wasted_tokens == 0
    for record in run.records:
        stamps = (record.intended, record.sent, record.accepted, record.first_byte, record.last_byte, record.ended)
        assert list(stamps) == sorted(stamps)
        assert len(record.deliveries) == record.num_tokens
        phases = record.as_request_record().timeline.phases()
        assert all(seconds >= 0 for seconds in phases.values())
        assert sum(phases.values()) == pytest.approx(record.e2e())


@pytest.mark.parametrize("lookahead", [False, True], ids=["plain", "async"])
def test_conservation_under_preemption_and_giving_up(lookahead: bool) -> None:
    workload = make_workload(CHAT, AllAtOnce(), num_requests=100)
    engines = priced_engines(num_kv_blocks=300, runs_beside_python=lookahead)
    impatient = ClusterConfig(replicas=2, clients=ClientConfig(timeout_s=1.5, max_attempts=2))
    run = simulate(workload, impatient, engines)
    check_conservation(run)
    assert set(run.outcomes) == {"completed", "timeout"}
    run = simulate(workload, ClusterConfig(replicas=2), engines)
    check_conservation(run)
    assert run.outcomes == {"completed": 100}
    assert sum(report.num_preemptions for report in run.reports) > 0


def test_one_seed_one_result_to_the_byte() -> None:
    config = ClusterConfig(
        replicas=3,
        router={"policy": "random", "hot_share": 0.2},
        clients={"timeout_s": 2.0, "max_attempts": 3, "backoff_s": 0.5, "jitter": 1.0, "retry_budget": 0.5},
        network={"rtt_s": 0.03, "far_share": 0.3, "far_rtt_s": 0.2, "hold_chunks": 4},
        autoscaling={"target": 6.0, "max_replicas": 5, "interval_s": 1.0},
        cold_start_s=3.0,
        seed=5,
    )
    workload = make_workload(Sessions(think_s=1.0), Poisson(rate=10), num_requests=80)
    first, again = (json.dumps(simulate(workload, config, priced_engines()).to_dict()) for _ in range(2))
    assert first == again
    assert first != json.dumps(simulate(workload, config.replace(seed=6), priced_engines()).to_dict())


def test_a_later_turn_follows_the_answer_and_hits_what_came_before() -> None:
    workload = make_workload(Sessions(turns=Fixed(tokens=3), think_s=2.0), Deterministic(rate=0.5), num_requests=10)
    run = simulate(workload, ClusterConfig(), priced_engines())
    for record in run.records:
        if record.request.after is not None:
            former = run.records[record.request.after]
            assert record.intended == pytest.approx(former.last_byte + record.request.think_s)
            full_blocks = (former.request.num_prompt_tokens + former.num_tokens - 1) // 16 * 16
            assert record.num_cached_tokens >= full_blocks  # the former prompt and the answer the engine gave


def test_a_conversation_ends_with_its_first_failure() -> None:
    workload = make_workload(Sessions(turns=Fixed(tokens=3), first=Fixed(tokens=9000)), AllAtOnce(), num_requests=2)
    run = simulate(workload, ClusterConfig(), priced_engines(max_prompt_tokens=100))
    check_conservation(run)
    assert run.outcomes == {"error": 2, "skipped": 4}
    assert "max_prompt_tokens" in run.records[0].error
    assert run.records[1].sent is None
    assert len(run.request_records()) == 2  # what was never sent has no latency


def test_a_closed_loop_hides_the_queue_that_an_open_loop_shows() -> None:
    def measured(clients: ClientConfig) -> FleetRun:
        twice_the_capacity = make_workload(ONE_TOKEN, Deterministic(rate=20), num_requests=200)
        return simulate(twice_the_capacity, ClusterConfig(clients=clients), one_seat(0.1))

    open_loop, closed = measured(ClientConfig()), measured(ClientConfig(max_in_flight=2))
    slo = SLO(ttft=0.5)
    assert open_loop.summary(slo, since="sent").metrics["ttft"].p99 > 8
    # The load test reports a healthy service ...
    lie = closed.summary(slo)  # TTFT is from when a client sends, unless told otherwise
    assert lie.metrics["ttft"].p99 == pytest.approx(0.2, abs=0.02)
    assert lie.attainment == 1.0
    # ... and the truth is in when it meant to send.
    truth = closed.summary(slo, since="intended")
    assert truth.metrics["ttft"].p99 == pytest.approx(open_loop.summary(slo).metrics["ttft"].p99, rel=0.01)
    assert truth.attainment < 0.1
    assert max(sample.outstanding for sample in closed.samples) <= 2 < max(s.outstanding for s in open_loop.samples)


def test_an_empty_workload_is_over_at_once() -> None:
    run = simulate(Workload("nothing", ()), ClusterConfig(), priced_engines())
    assert (run.duration, run.outcomes, run.num_attempts) == (0.0, {}, 0)
    check_conservation(run)


def test_an_engine_that_makes_no_progress_is_reported() -> None:
    make = priced_engines()

    def stuck(clock):
        engine = make(clock)
        engine.step = lambda: []  # has work, and does none of it
        return engine

    with pytest.raises(SimulationError, match="main-0 has work"):
        simulate(make_workload(CHAT, AllAtOnce(), num_requests=1), ClusterConfig(), stuck)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClusterConfig(replicas=-1),
        lambda: ClusterConfig(replicas=0),
        lambda: ClusterConfig(replica=2),
        lambda: ClusterConfig(clients={"timeout_s": 1.0, "first_byte_timeout_s": 2.0}),
        lambda: ClusterConfig(autoscaling={"target": 1.0, "min_replicas": 3, "max_replicas": 2}),
        lambda: ClusterConfig(replicas=3, autoscaling={"target": 1.0, "max_replicas": 2}),
        lambda: Autoscaling(target=0),
        lambda: ClusterConfig(network={"rtt_s": -1.0}),
        lambda: ClusterConfig(
            model_routing={},
            disaggregation={"prefill_replicas": 1, "kv_bytes_per_token": 1.0, "link_bytes_per_s": 1.0},
        ),
        lambda: simulate(Workload("w", ()), ClusterConfig(model_routing={}), priced_engines()),
    ],
)
def test_nonsense_is_refused(make) -> None:
    with pytest.raises(WorkloadError):
        make()


# ---------------------------------------------------------------- fast and recording engines

CHATS = Independent(
    prompt=LogNormal(median=300, sigma=0.8, high=3000), output=LogNormal(median=40, sigma=0.8, high=300)
)
SESSIONS = Sessions(turns=Uniform(low=1, high=4), output=Fixed(tokens=40), think_s=0.5)
TENANTS = SharedPrefix(tenants=4, prefix=Fixed(tokens=800), output=Fixed(tokens=40))


@pytest.mark.parametrize(
    ("traffic", "fields"),
    [
        (CHATS, {"replicas": 2, "router": {"policy": "round_robin"}}),
        (TENANTS, {"replicas": 3, "router": {"policy": "prefix_aware"}}),
        (SESSIONS, {"replicas": 2, "clients": {"max_in_flight": 6}}),
        (CHATS, {"clients": {"timeout_s": 1.0, "max_attempts": 3, "backoff_s": 0.2, "jitter": 0.5}}),
        (CHATS, {"clients": {"first_byte_timeout_s": 0.3, "max_attempts": 2}, "network": {"rtt_s": 0.08}}),
        (CHATS, {"shedding": {"max_outstanding": 8, "deadline_s": 0.5}}),
        (CHATS, {"autoscaling": {"target": 4, "interval_s": 0.5, "window_s": 1}, "cold_start_s": 1.0}),
        (
            SESSIONS,
            {"disaggregation": {"prefill_replicas": 1, "kv_bytes_per_token": 1e5, "link_bytes_per_s": 1e10}},
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("rate", [60, 4])
def test_the_fast_engine_tells_clients_the_same(traffic: object, fields: dict, rate: float) -> None:
    """Crowded, where steps are gone through, and with room, where most are fast-forwarded."""
    deployment = Deployment.of("qwen3-1.7b", "l4", num_kv_blocks=1500)
    workload = make_workload(traffic, Gamma(rate=rate, cv=3), num_requests=60, seed=2)
    config = ClusterConfig(**fields)
    plain, fast = (simulate(workload, config, make) for make in (deployment.engine, deployment.fast_engine))
    assert json.dumps(plain.to_dict()) == json.dumps(fast.to_dict())
    assert plain.samples == fast.samples
    for run in (plain, fast):
        check_conservation(run)


def test_where_nothing_is_shared_blocks_named_by_request_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With so few blocks that requests are preempted, and find their own again."""
    workload = make_workload(AZURE_CHAT, Poisson(rate=6), num_requests=60)
    make = Deployment.of("llama-3.1-8b", "l4", num_kv_blocks=400).fast_engine
    by_request = simulate(workload, ClusterConfig(replicas=2), make)
    monkeypatch.setattr(Workload, "shares_nothing", False)
    by_tokens = simulate(workload, ClusterConfig(replicas=2), make)
    assert by_request.to_dict() == by_tokens.to_dict()
    assert by_request.prefix_hit_rate == by_tokens.prefix_hit_rate
    assert sum(report.num_preemptions for report in by_request.reports) > 5
