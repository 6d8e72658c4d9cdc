"""The capacity worksheet: the knee, the replicas, the bill, and what binds."""

import itertools
import json

import pytest
from priced_runner import priced_engines

from course.simulator.capacity.limits import prefill_share
from course.simulator.capacity.worksheet import (
    IDLE_RATE,
    TOLERANCE,
    TRIED_OUT,
    Worksheet,
    attainment_of,
    enough_replicas,
    plan_capacity,
)
from course.simulator.cluster.fleet import ClusterConfig
from course.simulator.errors import SimulationError, WorkloadError
from course.simulator.workload.arrivals import Deterministic, Gamma
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.summary import SLO
from minillm.core.batch import ScheduledBatch

ONE_TOKEN = Independent(prompt=Fixed(tokens=10), output=Fixed(tokens=1))
CHAT = Independent(prompt=Fixed(tokens=200), output=Fixed(tokens=20))
SLO_CHAT = SLO(ttft=0.5, tpot=0.05)


@pytest.fixture(autouse=True)
def _short_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What binds, and what prompts add, show in fewer steps than a plan records."""
    monkeypatch.setattr("course.simulator.capacity.worksheet.RECORDED_REQUESTS", 60)


def one_seat(service_s: float):
    return priced_engines(floor_s=service_s, token_s=0.0, max_num_seqs=1)


def worksheet(traffic=CHAT, slo=SLO_CHAT, engines: dict | None = None, **options) -> Worksheet:
    return Worksheet(traffic, priced_engines(**(engines or {})), slo, **{"num_requests": 60, **options})


def test_the_knee_of_a_deterministic_server_is_its_service_rate() -> None:
    """Ten requests a second, evenly spaced: the queue grows above 10 and is empty below."""
    sheet = Worksheet(
        ONE_TOKEN, one_seat(0.1), SLO(ttft=0.15), target=1.0, arrivals=lambda rate: Deterministic(rate=rate)
    )
    assert sheet.knee(guess=3.0) == pytest.approx(10.0, rel=TOLERANCE + 0.005)
    assert sheet.knee(guess=3.0) <= 10.02


def test_the_knee_does_not_depend_on_the_guess() -> None:
    knees = [worksheet().knee(guess) for guess in (0.5, 100.0)]
    assert max(knees) / min(knees) < 1 + 2 * TOLERANCE


def test_a_stricter_slo_and_burstier_arrivals_lower_the_knee() -> None:
    usual = worksheet().knee(10)
    assert worksheet(slo=SLO(ttft=0.05, tpot=0.05)).knee(10) < 0.8 * usual
    assert worksheet(arrivals=lambda rate: Gamma(rate=rate, cv=6)).knee(10) < 0.8 * usual


def test_the_plan_adds_up() -> None:
    plan = plan_capacity(worksheet(), 60.0, price_per_hour=4.0)
    assert plan.replicas >= 60.0 / plan.knee > 1
    assert plan.fleet_attainment >= 0.99
    assert plan.cost_per_hour == 4.0 * plan.replicas
    assert plan.cost_per_request == pytest.approx(plan.cost_per_hour / (3600 * 60.0))
    per_request = (200 * plan.input_cost_per_million + 20 * plan.output_cost_per_million) / 1e6
    assert per_request == pytest.approx(plan.cost_per_request)
    assert 0 < plan.prefill_share < 1
    json.dumps(plan.to_dict(), allow_nan=False)
    text = str(plan)
    assert f"{plan.knee:.2f} requests/s" in text and "per million" in text and plan.limits.binding in text


def spent(batch: ScheduledBatch) -> dict[str, float]:
    """The price list of `priced_engines()`, explained."""
    return {"launch floor": 0.010, "compute": 0.0001 * batch.num_tokens}


@pytest.mark.parametrize(
    ("engines", "traffic", "binding"),
    [
        ({"max_num_seqs": 2}, CHAT, "slots"),
        ({"num_kv_blocks": 40}, CHAT, "KV memory"),  # 14 blocks a request
        ({"max_num_seqs": 256}, Independent(prompt=Fixed(tokens=2000), output=Fixed(tokens=2)), "compute"),
        ({"max_num_seqs": 256}, Independent(prompt=Fixed(tokens=2), output=Fixed(tokens=90)), "launch floor"),
    ],
)
def test_what_binds(engines: dict, traffic: Independent, binding: str) -> None:
    slo = SLO(e2e=1.0)
    sheet = worksheet(traffic, slo, engines, explain=spent)
    plan = plan_capacity(sheet, 1.0, price_per_hour=1.0, try_out=False)
    assert plan.limits.binding == binding, plan.limits
    assert sum(plan.limits.step_time.values()) == pytest.approx(1.0)


def test_prompts_pay_for_what_they_add_to_steps() -> None:
    """10 ms a step and 0.1 ms a token: 1000 prompt tokens add about 100 ms, 20 decodes take about 200 ms."""
    traffic = Independent(prompt=Fixed(tokens=1000), output=Fixed(tokens=21))
    run = worksheet(traffic).run(IDLE_RATE)
    assert prefill_share(run) == pytest.approx(0.110 / (0.110 + 20 * 0.0101), rel=0.01)


def test_an_slo_that_an_idle_replica_misses_is_reported() -> None:
    with pytest.raises(SimulationError, match=r"idle replica .* 0\.0%"):
        worksheet(slo=SLO(ttft=0.001)).knee(1.0)
    with pytest.raises(SimulationError, match=r"E2E p99 [\d,]+ ms"):
        worksheet(slo=SLO(e2e=0.001)).knee(1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: worksheet(slo=SLO()),
        lambda: worksheet(target=1.5),
        lambda: worksheet(target=0.0),
        lambda: worksheet(slo=SLO(ttft=-1.0)),
        lambda: worksheet(num_requests=0),
        lambda: worksheet(config=ClusterConfig(autoscaling={"target": 4})),
        lambda: plan_capacity(worksheet(), 0.0, price_per_hour=1.0),
        lambda: plan_capacity(worksheet(), 1.0, price_per_hour=-1.0),
        lambda: plan_capacity(worksheet(), 1.0, price_per_hour=1.0, headroom=1.0),
    ],
)
def test_nonsense_is_refused(make) -> None:
    with pytest.raises(WorkloadError):
        make()


def test_a_fleet_that_has_missed_too_often_is_not_played_to_its_end() -> None:
    """A run is given up only when it's lost: the number of replicas is the one that whole runs lead to."""
    seen: list[float] = []
    random_router = ClusterConfig(router={"policy": "random"})  # leaves some with a queue: more are needed
    sheet = worksheet(
        ONE_TOKEN,
        SLO(ttft=0.35),
        {"floor_s": 0.1, "token_s": 0.0, "max_num_seqs": 1},
        target=0.9,
        config=random_router,
        progress=lambda _, share: seen.append(share),
    )
    replicas, attainment = enough_replicas(sheet, 30.0, 3)
    given_up = [share for share, then in itertools.pairwise(seen) if then < share]
    assert replicas > 4 and len(given_up) == replicas - 3 and given_up[0] < 0.5
    whole = [attainment_of(sheet.run(30.0, min(count, TRIED_OUT)), sheet.slo) for count in range(3, replicas + 1)]
    assert whole[-1] == attainment >= 0.9 > max(whole[:-1])


def test_a_large_fleet_is_tried_out_in_part() -> None:
    runs = []
    sheet = worksheet(num_requests=20)
    run = sheet.run
    sheet.run = lambda rate, **how: runs.append(run(rate, **how)) or runs[-1]
    assert enough_replicas(sheet, 1000.0, 1000) == (1000, 1.0)
    [tried] = runs
    assert (len(tried.records), len(tried.reports)) == (160, TRIED_OUT)
    assert tried.records[-1].sent == pytest.approx(20, rel=0.3), "8 requests per second"
