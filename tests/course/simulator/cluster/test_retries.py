"""Retries: their arithmetic, the budget, the breaker's states, and a storm that outlives its cause or does not."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from priced_runner import priced_engines
from simulated_integrity import check_conservation

from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.paths import Degrading
from course.simulator.cluster.pool import Shedding
from course.simulator.cluster.retries import BreakerPolicy, BreakerState, CircuitBreaker, Retries, RetryPolicy
from course.simulator.cluster.run import FleetRun
from course.simulator.errors import WorkloadError
from course.simulator.workload.arrivals import AllAtOnce, Spikes
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload

ENGINES = {"floor_s": 0.05, "token_s": 0.0, "max_num_seqs": 4}
"""4 slots, 50 ms a step: 8 requests of 10 tokens a second."""
SHORT = Independent(prompt=Fixed(tokens=64), output=Fixed(tokens=10))
SPIKE = make_workload(SHORT, Spikes(rate=4, spike_rate=24, start_s=10, length_s=10), num_requests=900)
"""Half the capacity, and three times the capacity from second 10 to second 20."""


def fleet(clients: ClientConfig | None = None, small: bool = False, **fields) -> FleetRun:
    config = ClusterConfig(clients=clients or ClientConfig(), **fields)
    quick = {"make_small_engine": priced_engines(**{**ENGINES, "floor_s": 0.01})} if small else {}
    run = simulate(SPIKE, config, priced_engines(**ENGINES), **quick)
    check_conservation(run)
    return run


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_naive_retries_amplify_by_the_geometric_sum(p: float) -> None:
    rng, retries = np.random.default_rng(0), Retries(RetryPolicy(max_attempts=3), lambda: 0.0)
    attempts = 0
    for _ in range(4000):
        tries = 1
        while rng.random() < p and retries.pause(tries) is not None:
            tries += 1
        attempts += tries
    assert attempts / 4000 == pytest.approx(1 + p + p**2, abs=0.03)


def test_backoff_doubles_up_to_its_cap_and_full_jitter_spreads_it() -> None:
    policy = RetryPolicy(max_attempts=9, backoff_s=1, backoff_cap_s=5)
    assert [policy.backoff(n, 0.9) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]
    full, draws = policy.replace(jitter=1), np.random.default_rng(0).random(4000)
    pauses = [full.backoff(3, draw) for draw in draws]
    assert np.histogram(pauses, bins=4, range=(0, 4))[0] == pytest.approx([1000] * 4, rel=0.1)


def test_without_jitter_those_refused_together_return_together() -> None:
    crowd = make_workload(SHORT, AllAtOnce(), num_requests=100)
    peaks = {}
    for jitter in (0.0, 1.0):
        clients = ClientConfig(max_attempts=2, backoff_s=10, jitter=jitter)
        config = ClusterConfig(clients=clients, shedding=Shedding(max_outstanding=8))
        tries = [moment for r in simulate(crowd, config, priced_engines(**ENGINES)).records for moment in r.tries[1:]]
        assert len(tries) == 92
        peaks[jitter] = np.histogram(tries, bins=np.arange(0, 12))[0].max()
    assert peaks[0.0] == 92 and peaks[1.0] < 20


def test_what_the_server_asks_for_comes_on_top_where_a_client_backs_off_at_all() -> None:
    backs_off = Retries(RetryPolicy(max_attempts=3, backoff_s=1, jitter=1), lambda: 0.5)
    assert backs_off.pause(1, retry_after_s=7) == 7.5
    assert Retries(RetryPolicy(max_attempts=3), lambda: 0.5).pause(1, retry_after_s=7) == 0


@given(st.lists(st.booleans(), max_size=300), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_retries_never_exceed_their_budget(events: list[bool], share: float) -> None:
    """Requests (True) and wishes to retry, in any order."""
    retries, requests, granted = Retries(RetryPolicy(max_attempts=2, retry_budget=share), lambda: 0.0), 0, 0
    for is_request in events:
        if is_request:
            requests += 1
            retries.begin(0.0)
        else:
            granted += retries.pause(1) is not None
        assert granted <= share * requests + 1e-9


# ---------------------------------------------------------------- the breaker


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.integers(0, 3)), max_size=200))
def test_the_breakers_states(moves: list[tuple[float, bool, int]]) -> None:
    """Attempts begin, and end late and in any order. Only three changes of state exist, each for its reason."""
    policy = BreakerPolicy(failure_share=0.5, window_s=4, min_attempts=3, open_s=2)
    breaker, now, out, opened = CircuitBreaker(policy), 0.0, [], 0.0
    for passed, ok, which in moves:
        now += passed
        before = breaker.state
        ticket = breaker.begin(now)
        if before is BreakerState.OPEN:
            assert (ticket is not None) == (now >= opened + policy.open_s)
            assert breaker.state is (BreakerState.OPEN if ticket is None else BreakerState.HALF_OPEN)
            trial = ticket
        elif before is BreakerState.HALF_OPEN:
            assert ticket is None, "its one trial is out"
        else:
            assert ticket is not None
        out += [] if ticket is None else [ticket]
        if which < len(out):
            ended, before = out.pop(which), breaker.state
            breaker.end(ended, now, ok)
            if before is BreakerState.HALF_OPEN and ended == trial:
                assert breaker.state is (BreakerState.CLOSED if ok else BreakerState.OPEN)
            elif before is not BreakerState.CLOSED or ok:
                assert breaker.state is before or (ok and before is BreakerState.CLOSED)
            if breaker.state is not before and breaker.state is BreakerState.OPEN:
                opened = now


# ---------------------------------------------------------------- one storm

IMPATIENT = ClientConfig(timeout_s=3.0, cancel_on_timeout=False)
NAIVE = IMPATIENT.replace(max_attempts=8)
BACKOFF = NAIVE.replace(backoff_s=2.0, backoff_cap_s=20.0)


def answered_late(run: FleetRun) -> float:
    """Share answered of the requests due long after the spike."""
    late = [record.completed for record in run.records if record.intended > 100]
    return sum(late) / len(late)


@pytest.fixture(scope="module")
def naive() -> FleetRun:
    return fleet(NAIVE)


@pytest.mark.parametrize(
    "stops", [{"retry_budget": 0.1}, {"breaker": BreakerPolicy(min_attempts=10)}], ids=["budget", "breaker"]
)
def test_naive_retries_keep_a_storm_alive_and_a_limit_on_them_ends_it(naive: FleetRun, stops: dict) -> None:
    """A metastable failure (Bronson et al., HotOS 2021): half the capacity would do, once the spike is over."""
    limited = fleet(BACKOFF.replace(jitter=1.0, **stops))
    assert answered_late(naive) < 0.2 < 0.9 < answered_late(limited)
    assert limited.num_attempts < naive.num_attempts / 3


def test_an_open_breaker_refuses_without_an_attempt() -> None:
    run = fleet(IMPATIENT.replace(breaker=BreakerPolicy(min_attempts=10)))
    kept_back = [record for record in run.records if record.error == "the circuit breaker is open"]
    assert kept_back and all(record.outcome == "shed" and record.attempts == 0 for record in kept_back)
    assert run.num_attempts == len(run.records) - len(kept_back)


# ---------------------------------------------------------------- a small model under load


def test_a_service_degrades_under_load_and_goes_back_and_a_gap_spares_it_switches() -> None:
    def switches(run: FleetRun) -> int:
        pools = [record.replica.split("-")[0] for record in run.records]
        return sum(one != other for one, other in itertools.pairwise(pools))

    wide = fleet(small=True, degrading=Degrading(above=12, back_at=2))
    narrow = fleet(small=True, degrading=Degrading(above=12, back_at=11))
    by_phase = [
        {r.replica.split("-")[0] for r in wide.records if start < r.intended < end}
        for start, end in ((0, 10), (10, 20), (40, 1e9))
    ]
    assert by_phase == [{"main"}, {"main", "small"}, {"main"}]
    assert 0 < switches(wide) < switches(narrow) / 3
    assert max(record.ttft() for record in wide.records) < 2 < max(record.ttft() for record in fleet().records)
    with pytest.raises(WorkloadError, match="must be below above"):
        Degrading(above=4, back_at=4)
    with pytest.raises(WorkloadError, match="make_small_engine"):
        fleet(degrading=Degrading(above=12, back_at=2))
    with pytest.raises(WorkloadError, match="choose one"):
        ClusterConfig(degrading={"above": 2, "back_at": 1}, model_routing={})
