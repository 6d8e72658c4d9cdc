"""Speculation on the simulated runner: drawn acceptance, priced drafts, the same scheduler."""

from dataclasses import replace

import pytest
from simulated_integrity import check_engine

from course.simulator.calibration.replay import Arrival, run
from course.simulator.capacity.plan import step_causes
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.profile import typical_profile
from course.simulator.cost.roofline import StepWork, work_of
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError
from course.simulator.fast_forward import FastForwardCore
from course.simulator.speculation import SimulatedSpeculation
from minillm.core.batch import ScheduledBatch, ScheduledRequest
from minillm.core.engine import EngineCore
from minillm.core.errors import ConfigError
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.observe.speculation import SpeculationSummary
from minillm.policies.config import EngineConfig
from minillm.strict_model import default_of

GPU = typical_profile(find_hardware("h100-sxm"))
DRAFTS = {"method": "synthetic", "k": 4, "acceptance_floor": 0, "adaptive_k": False, "max_batch": 256}


def serve(speculative: dict | None, num: int = 1, output: int = 600, **fields) -> tuple[Engine, list[RequestOutput]]:
    clock = VirtualClock()
    engine = Deployment.of("llama-3-70b", GPU, tp=4, speculative=speculative, **fields).engine(clock)
    outputs = run(engine, [Arrival(str(i), 0.0, list(range(i, i + 100)), output) for i in range(num)])
    check_engine(engine)
    assert engine.scheduler.kv.pool.num_used == 0
    return engine, outputs


def test_speedup_is_that_of_the_formula() -> None:
    """(1 - α^(k+1)) / ((1 - α)(kc + 1)) while checking five tokens costs what one does: 2.40 for α .8, k 4, c .1."""
    plain = serve(None, output=4000)[1][0].timeline
    engine, outputs = serve({**DRAFTS, "acceptance_rate": 0.8, "draft_cost": 0.1}, output=4000)
    summary = SpeculationSummary.of_steps(engine.steps)
    assert summary.emitted_per_verify == pytest.approx((1 - 0.8**5) / 0.2, rel=0.04)
    assert summary.draft_cost == pytest.approx(0.1, rel=0.02)
    speedup = plain.phases()["decode"] / outputs[0].timeline.phases()["decode"]
    assert speedup == pytest.approx(2.40, rel=0.06)
    slow = serve({**DRAFTS, "k": 5, "acceptance_rate": 0.3, "draft_cost": 0.1}, output=4000)[1][0].timeline
    assert plain.phases()["decode"] / slow.phases()["decode"] == pytest.approx(0.95, rel=0.04), "a slowdown"


def test_a_verification_is_priced_as_so_many_tokens() -> None:
    deployment = Deployment.of("llama-3-70b", GPU, tp=4)
    engine, _ = serve({**DRAFTS, "method": "ngram"}, output=20)
    record = engine.steps[1]
    assert record.shares[0].num_drafts == 4 and "draft" not in record.stages
    context, pairs = 105, 5 * 100 + 15
    price = deployment.step_time().price(StepWork(5, 5, 1, pairs, context, 0))
    assert record.end - record.start == pytest.approx(price.total)
    request = engine.recent_requests[0]
    assert work_of((ScheduledRequest(request, 100, 5, [], True, num_drafts=4),)) == StepWork(5, 5, 1, pairs, context, 0)


def test_a_draft_model_costs_what_its_shape_does() -> None:
    """And looking up costs nothing."""
    small, _ = serve({**DRAFTS, "method": "draft_model", "model": "llama-3.2-1b"})
    large, _ = serve({**DRAFTS, "method": "draft_model", "model": "llama-3.1-8b"})
    lookup, _ = serve({**DRAFTS, "method": "ngram"})
    costs = [SpeculationSummary.of_steps(engine.steps).draft_cost for engine in (lookup, small, large)]
    assert costs[0] == 0 < costs[1] < costs[2] < 1
    record = large.steps[1]
    step_time = Deployment.of("llama-3.1-8b", GPU, tp=4).step_time()
    steps = [step_time.price(StepWork(1, 1, 1, context, context, 0)).total for context in (101, 102, 103, 104)]
    assert record.stages["draft"] == pytest.approx(sum(steps))


@pytest.mark.parametrize("method", [{"method": "ngram"}, {"method": "draft_model", "model": "llama-3.2-1b"}])
def test_a_cost_of_drafts_that_have_their_own_is_refused(method: dict[str, str]) -> None:
    deployment = Deployment.of("llama-3-70b", GPU, tp=4, speculative={**method, "draft_cost": 0.1})
    with pytest.raises(PricingError, match="leave draft_cost out"):
        deployment.drafting()


@pytest.mark.parametrize("method", ["ngram", "draft_head"])
def test_acceptance_is_a_setting_of_every_method(method: str) -> None:
    deployment = Deployment.of("llama-3-70b", GPU, tp=4, speculative={"method": method, "acceptance_rate": 0.9})
    engine = deployment.without_prefix_lookups().engine(VirtualClock())
    assert engine.runner.drafting.acceptance_rate == engine.config.speculative.acceptance_rate == 0.9
    plain = replace(deployment, config=EngineConfig(speculative={"method": method}))
    assert plain.drafting().acceptance_rate == default_of(SimulatedSpeculation, "acceptance_rate")


def test_what_steps_are_spent_on_has_drafting_in_it() -> None:
    deployment = Deployment.of("llama-3-70b", GPU, tp=4, speculative={**DRAFTS, "draft_cost": 0.5})
    request = serve(None, output=5)[0].recent_requests[0]
    batch = ScheduledBatch(0, (ScheduledRequest(request, 100, 5, [], True, num_drafts=4),))
    causes = step_causes(deployment)(batch)
    step = deployment.step_time().price(StepWork(1, 1, 1, 101, 101, 0)).total
    assert causes["drafting"] == pytest.approx(4 * 0.5 * step, rel=0.01)
    assert "drafting" not in step_causes(Deployment.of("llama-3-70b", GPU, tp=4))(batch)


@pytest.mark.parametrize("fields", [{"sliding_window": 20}, {"sliding_window": 16, "attention_sinks": 4}])
def test_drafts_see_the_window(fields: dict[str, int]) -> None:
    """So one after a long context costs what one after a short context does."""
    costs = []
    for context in (19, 4000):
        deployment = Deployment.of("llama-3-70b", GPU, tp=4, speculative={**DRAFTS, "k": 1}, **fields)
        request = serve(None, output=5)[0].recent_requests[0]
        batch = ScheduledBatch(0, (ScheduledRequest(request, context, 2, [], True, num_drafts=1),))
        costs.append(deployment.drafting().seconds(batch))
    assert costs[0] == costs[1] > 0


def test_equal_seeds_equal_runs() -> None:
    def facts(seed: int) -> list[tuple]:
        outputs = serve({**DRAFTS, "seed": seed}, num=20, num_kv_blocks=200)[1]
        return [(output.request_id, output.timeline.deliveries, output.token_ids) for output in outputs]

    assert facts(1) == facts(1) != facts(2)


def test_made_up_tokens_are_the_same_with_and_without() -> None:
    _, plain = serve(None, num=8, output=100)
    _, drafted = serve(DRAFTS, num=8, output=100)
    assert {o.request_id: o.token_ids for o in plain} == {o.request_id: o.token_ids for o in drafted}


def test_many_requests_make_drafts_a_loss() -> None:
    """Once checking is bound by arithmetic, what does not pass costs real time; the gate on the batch sees to that."""

    def seconds(speculative: dict | None) -> float:
        return max(o.timeline.finished for o in serve(speculative, num=256, output=60)[1])

    plain = seconds(None)
    assert seconds({**DRAFTS, "acceptance_rate": 0.5}) > 1.1 * plain
    gated = {"method": "synthetic", "acceptance_rate": 0.5, "max_batch": 16}
    assert seconds(gated) < 1.01 * plain


def test_speculation_is_not_fast_forwarded() -> None:
    deployment = Deployment.of("llama-3-70b", GPU, tp=4)
    assert isinstance(deployment.fast_engine(VirtualClock()).core, FastForwardCore)
    speculating = Deployment.of("llama-3-70b", GPU, tp=4, speculative=DRAFTS)
    assert type(speculating.fast_engine(VirtualClock()).core) is EngineCore
    engine = speculating.engine(VirtualClock())
    with pytest.raises(ConfigError, match="can't speculate"):
        FastForwardCore(engine.scheduler, engine.runner, engine.clock)
