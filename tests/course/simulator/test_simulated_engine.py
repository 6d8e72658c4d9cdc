"""The unchanged engine on a simulated runner: exact times, and the laws that any server obeys."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from simulated_integrity import check_engine

from course.simulator.calibration.replay import Arrival, run
from course.simulator.errors import PricingError
from course.simulator.simulated_runner import SimulatedRunner
from minillm.core.batch import ScheduledBatch
from minillm.core.request import FinishReason
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig


@dataclass(frozen=True)
class Price:
    forward: float
    total: float


def simple_engine(clock: VirtualClock, *, beside: bool, **fields) -> Engine:
    """10 ms a step, of which 2 come after the pass."""
    config = EngineConfig(**{"max_model_len": 512, "block_size": 4, "max_num_batched_tokens": 64, **fields})
    hosts = 64 if config.preemption == "swap" else 0
    runner = SimulatedRunner(
        lambda batch: Price(0.008, 0.010),
        clock,
        num_kv_blocks=config.num_kv_blocks or 64,
        num_host_blocks=hosts,
        block_size=4,
        swap_s_per_block=0.001,
        runs_beside_python=beside,
    )
    return Engine.on_runner(config, runner, clock)


def prompts(num: int, lengths: tuple[int, int], outputs: tuple[int, int], gap: float, seed: int = 0) -> list[Arrival]:
    rng = random.Random(seed)
    moment, arrivals = 0.0, []
    for i in range(num):
        moment += rng.expovariate(1 / gap)
        ids = [rng.randrange(32000) for _ in range(rng.randint(*lengths))]
        arrivals.append(Arrival(f"r{i}", moment, ids, rng.randint(*outputs)))
    return arrivals


def test_phases_are_exact_without_anybody_beside() -> None:
    clock = VirtualClock()
    engine = simple_engine(clock, beside=False)
    [output] = run(engine, [Arrival("a", 1.0, list(range(10)), 5)])
    timeline = output.timeline
    assert timeline.phases() == pytest.approx(
        {"queue": 0, "prefill": 0.008, "first_token": 0.002, "decode": 0.040, "stream": 0}
    )
    assert timeline.itl == pytest.approx([0.010] * 4)
    assert [step.end - step.start for step in engine.steps] == pytest.approx([0.010] * 5)


def test_a_newcomer_waits_for_the_steps_that_are_on_their_way() -> None:
    """Beside Python, one step runs and the next one is planned: who comes now is in the one after that."""
    for beside, first_token in ((False, 0.03), (True, 0.04)):
        clock = VirtualClock()
        engine = simple_engine(clock, beside=beside)
        outputs = run(engine, [Arrival("a", 0.0, list(range(9)), 9), Arrival("b", 0.0101, [7] * 9, 2)])
        late = next(output for output in outputs if output.request_id == "b")
        assert late.timeline.first_token == pytest.approx(first_token)


def test_stamps_of_a_loop_leave_the_running_step_out() -> None:
    arrivals = [Arrival("a", 0.0, list(range(9)), 9), Arrival("b", 0.012, [7] * 9, 2)]
    waits = []
    for stamped_by_loop in (False, True):
        clock = VirtualClock()
        outputs = run(simple_engine(clock, beside=False), arrivals, stamped_by_loop=stamped_by_loop)
        waits.append(next(o.timeline.phases()["queue"] for o in outputs if o.request_id == "b"))
    assert waits == pytest.approx([0.008, 0.0])


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("beside", [False, True])
def test_every_request_ends_once_with_all_its_tokens(preemption: str, beside: bool) -> None:
    clock = VirtualClock()
    engine = simple_engine(clock, beside=beside, preemption=preemption, num_kv_blocks=20, max_num_seqs=8)
    arrivals = prompts(60, (3, 30), (1, 30), gap=0.05)
    outputs = run(engine, arrivals)
    assert engine.scheduler.num_preemptions > 0, "the pool has to be too small for this test to see anything"
    assert sorted(output.request_id for output in outputs) == sorted(arrival.request_id for arrival in arrivals)
    wanted = {arrival.request_id: arrival.output_tokens for arrival in arrivals}
    for output in outputs:
        assert output.finish_reason is FinishReason.LENGTH
        assert len(output.token_ids) == output.timeline.num_tokens == wanted[output.request_id]
        assert sum(output.timeline.phases().values()) == pytest.approx(output.timeline.e2e)
    check_engine(engine)
    assert engine.scheduler.kv.pool.num_used == 0


def test_made_up_tokens_do_not_depend_on_what_happened_on_the_way() -> None:
    tokens = []
    for blocks in (20, 400):
        clock = VirtualClock()
        outputs = run(simple_engine(clock, beside=True, num_kv_blocks=blocks), prompts(30, (3, 30), (5, 30), 0.02))
        tokens.append({output.request_id: output.token_ids for output in outputs})
    assert tokens[0] == tokens[1]


def test_swapping_takes_its_time() -> None:
    ends = []
    for swap_s in (0.0, 0.001):
        clock = VirtualClock()
        engine = simple_engine(clock, beside=False, preemption="swap", num_kv_blocks=20)
        engine.runner.swap_s_per_block = swap_s
        copied = []
        copy_blocks = engine.runner.copy_blocks

        def spy(batch: ScheduledBatch, copied: list[int] = copied, copy_blocks: Callable = copy_blocks) -> None:
            copied.append(len(batch.saves) + len(batch.loads))
            copy_blocks(batch)

        engine.runner.copy_blocks = spy
        run(engine, prompts(40, (3, 30), (5, 30), gap=0.0001))
        ends.append((clock.now(), sum(copied)))
    (without, copies), (with_copies, again) = ends
    assert copies == again > 0
    assert with_copies - without == pytest.approx(0.001 * copies)


def test_requests_that_can_never_be_served_are_named() -> None:
    clock = VirtualClock()
    engine = simple_engine(clock, beside=True, num_kv_blocks=4)
    with pytest.raises(PricingError, match="'big' has 10 \\+ 9 tokens"):
        run(engine, [Arrival("big", 0.0, list(range(10)), 9)])
