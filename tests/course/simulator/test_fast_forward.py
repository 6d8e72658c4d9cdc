"""Fast-forward changes nothing: every stamp of every request is the plain engine's, to the last bit."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_integrity import check_engine, check_pool

from course.simulator.calibration.replay import Arrival, run
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.profile import typical_profile
from course.simulator.counted_blocks import CountedBlocks
from course.simulator.deployment import Deployment
from course.simulator.parking import Parked, ParkingLot, ParkingScheduler
from minillm.core.batch import ScheduledRequest, Step
from minillm.core.block_manager import BlockManager
from minillm.core.block_pool import ROOT, BlockPool
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.scheduler import Scheduler, SchedulerConfig
from minillm.core.timeline import Timeline, VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput

GPU = typical_profile(find_hardware("l4"))


def traffic(seed: int, num: int, gap: float, shared: int) -> Iterator[Arrival]:
    rng, moment = random.Random(seed), 0.0
    prefix = [rng.randrange(32000) for _ in range(shared)]
    for i in range(num):
        prompt = prefix + [rng.randrange(32000) for _ in range(rng.choice([3, 40, 200, 700]))]
        yield Arrival(f"r{i}", moment, prompt, rng.choice([1, 2, 7, 50, 150]), priority=rng.randrange(3))
        moment += rng.expovariate(1 / gap)


def facts(output: RequestOutput) -> tuple:
    timeline = output.timeline
    stamps = (timeline.arrival, timeline.scheduled, timeline.prefill_end, timeline.first_token, timeline.last_token)
    ends = (timeline.finished, timeline.deliveries, timeline.num_tokens)
    return (output.token_ids, stamps, *ends, output.num_cached_tokens, output.finish_reason)


def both(arrivals: list[Arrival], beside: bool = True, **fields) -> tuple[Engine, Engine]:
    deployment = Deployment.of("qwen3-1.7b", GPU, **fields)
    results = []
    for make in (deployment.engine, deployment.fast_engine):
        clock = VirtualClock()
        engine = make(clock)
        if not beside:
            engine.core.lookahead = 0
        outputs = run(engine, arrivals)
        check_engine(engine)
        results.append((engine, clock.now(), {output.request_id: output for output in outputs}))
    (plain, end, outputs), (fast, fast_end, fast_outputs) = results
    assert fast_end == end
    assert list(outputs) == list(fast_outputs), "they end in the same order"
    for request_id, output in outputs.items():
        assert facts(fast_outputs[request_id]) == facts(output)
        assert fast_outputs[request_id].timeline.lost == pytest.approx(output.timeline.lost)
    assert fast.scheduler.num_steps == plain.scheduler.num_steps
    assert fast.scheduler.num_preemptions == plain.scheduler.num_preemptions
    assert fast.core.log.num_recomputed_tokens == plain.core.log.num_recomputed_tokens
    assert fast.scheduler.prefix_hits == plain.scheduler.prefix_hits
    return plain, fast


FIELDS = {
    "num_kv_blocks": st.sampled_from([70, 150, 3000]),
    "max_num_seqs": st.sampled_from([3, 12, 256]),
    "max_num_batched_tokens": st.sampled_from([256, 2048]),
    "preemption": st.sampled_from(["recompute", "swap"]),
    "scheduling_order": st.sampled_from(["fcfs", "shortest_prompt", "two_lane", "priority", "fair"]),
}
CACHING = st.sampled_from(
    [
        {"enable_prefix_caching": False},
        {"enable_prefix_caching": True},
        {"enable_prefix_caching": True, "prefix_eviction": "fifo"},
        {"enable_prefix_caching": True, "prefix_eviction": "ttl", "prefix_ttl_s": 0.2},
    ]
)
CHUNKS = st.sampled_from([{}, {"enable_chunked_prefill": False}, {"long_prefill_token_threshold": 64}])
OTHERS = {
    "scheduler_reserve_full_isl": st.just(True),
    "kv_reservation": st.just("max_len"),
    "batching": st.just("static"),
    "queue_timeout_s": st.just(0.5),
}
STATIC = {
    **{"num_kv_blocks": 70, "max_num_seqs": 3, "max_num_batched_tokens": 256, "batching": "static"},
    **{"enable_prefix_caching": False, "queue_timeout_s": 0.5},
}

FULL = {"num_kv_blocks": 3000, "max_num_seqs": 3, "max_num_batched_tokens": 256, "queue_timeout_s": 0.5}


@example(seed=0, gap=0.0001, shared=0, beside=False, fields=STATIC, caching={}, chunks={})
@example(seed=0, gap=0.02, shared=0, beside=True, fields=FULL, caching={}, chunks={})
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    gap=st.sampled_from([0.0001, 0.02, 0.3]),
    shared=st.sampled_from([0, 100]),
    beside=st.booleans(),
    fields=st.fixed_dictionaries(FIELDS, optional=OTHERS),
    caching=CACHING,
    chunks=CHUNKS,
)
def test_fast_forward_changes_nothing(
    seed: int, gap: float, shared: int, beside: bool, fields: dict, caching: dict, chunks: dict
) -> None:
    both(list(traffic(seed, 25, gap, shared)), beside, max_model_len=1000, **fields, **caching, **chunks)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("beside", [True, False])
def test_a_preemption_for_a_higher_rank_happens_in_fast_forward_too(
    preemption: str, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes are taken out of a step that was being put together; in a fast-forward, most are in no step."""
    taken_out: list[str] = []
    remove = Step.remove

    def spy(step: Step, request: Request) -> ScheduledRequest | None:
        taken_out.extend([request.request_id] if request in step.scheduled else [])
        return remove(step, request)

    monkeypatch.setattr(Step, "remove", spy)
    sizes = {"num_kv_blocks": 100, "max_num_batched_tokens": 256, "max_num_seqs": 64}
    both(list(traffic(1, 60, 0.02, 0)), beside, scheduling_order="priority", preemption=preemption, **sizes)
    half = len(taken_out) // 2
    assert taken_out[:half] == taken_out[half:] != []


def test_blocks_are_counted_where_no_prefix_is_cached_and_as_many_are_free() -> None:
    rng, tables = random.Random(0), []
    pools = [CountedBlocks(50), BlockPool(50)]
    for _ in range(200):
        if tables and rng.random() < 0.5:
            for pool, table in zip(pools, tables.pop(rng.randrange(len(tables)))):
                pool.release(table)
        elif (count := rng.randint(1, 20)) <= pools[0].num_free:
            tables.append([pool.allocate(count) for pool in pools])
        assert pools[0].num_free == pools[1].num_free and pools[0].num_used == pools[1].num_used
        for pool, held in zip(pools, zip(*tables)):
            check_pool(pool, held)
    with pytest.raises(IndexError, match="51 blocks wanted"):
        pools[0].allocate(51)
    with pytest.raises(ValueError, match="51 blocks are released"):
        pools[0].release([0] * 51)
    with pytest.raises(AssertionError, match="counted as held"):
        check_pool(pools[0], [[0] * 51])

    for caches in (False, True):
        engine = Deployment.of("qwen3-1.7b", GPU, enable_prefix_caching=caches).fast_engine(VirtualClock())
        assert isinstance(engine.scheduler.kv.pool, CountedBlocks) is not caches


def test_most_steps_of_a_decode_are_never_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment.of("qwen3-1.7b", GPU)
    engine = deployment.fast_engine(VirtualClock())
    visited = []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: visited.append(1) or step())
    run(engine, [Arrival("a", 0.0, [1] * 16, 800), Arrival("b", 0.2, [1] * 16, 800)])
    assert engine.scheduler.num_steps > 800 and len(visited) < 20


def test_starting_over_it_fast_forwards_as_a_new_one_does() -> None:
    deployment = Deployment.of("qwen3-1.7b", GPU, num_kv_blocks=70)
    clock = VirtualClock()
    engine = deployment.fast_engine(clock)
    for i in range(3):
        engine.add_request([i] * 20, SamplingParams(max_tokens=100, ignore_eos=True), stream=False)
    for _ in range(5):
        engine.step()
    assert engine.scheduler.num_running == 3 and len(engine.scheduler.lot)
    engine.start_over()
    assert engine.scheduler.num_running == 0 and not engine.has_unfinished
    assert all(request.timeline.finished is not None for request in engine.recent_requests)
    [output] = run(engine, [Arrival("a", clock.now(), [7] * 20, 100)])
    check_engine(engine)
    fresh_clock = VirtualClock()
    [fresh] = run(deployment.fast_engine(fresh_clock), [Arrival("a", 0.0, [7] * 20, 100)])
    assert output.token_ids == fresh.token_ids and len(output.token_ids) == 100
    assert output.timeline.itl == pytest.approx(fresh.timeline.itl)


def test_parked_requests_take_a_slot_and_a_token() -> None:
    plain = Scheduler(SchedulerConfig(max_model_len=32, max_num_seqs=4, max_num_batched_tokens=8), BlockManager(8, 4))
    lot = ParkingLot(block_size=4)
    scheduler = ParkingScheduler(plain, lot)
    requests = [Request(name, [1] * 3, SamplingParams(), Timeline(0.0)) for name in "abc"]
    for request in requests[:2]:
        scheduler.add(request)
    assert [part.num_tokens for part in scheduler.schedule(0.0).requests] == [3, 3]
    lot.launched()
    for request, last in zip(requests, (7, 1)):
        scheduler.park(Parked(request, scheduler.kv.block_ids(request), 1, last, 3, ROOT))
    scheduler.leave_budget()
    scheduler.add(Request("long", [1] * 9, SamplingParams(), Timeline(0.0)))
    assert scheduler.num_running == 2
    assert [part.num_tokens for part in scheduler.schedule(1.0).requests] == [6]
    assert (lot.count, lot.context) == (2, 8)
    lot.launched()
    scheduler.leave_budget()
    assert (lot.count, lot.context) == (1, 5), "the other has its last token, but its slot still"
    assert scheduler.num_running == 3 and scheduler.token_budget == 7
    assert lot.ending(1) == [lot.find(requests[1])] and lot.next_ending() == 1
    for parked in lot:
        scheduler.unpark(parked, key=lambda request: request.arrival_index)
    scheduler.leave_budget()
    assert [request.request_id for request in scheduler.running] == ["a", "b", "long"]
    assert scheduler.num_running == 3 and scheduler.token_budget == 8


def test_it_sees_preemptions_prefix_hits_and_fast_forwards() -> None:
    plain, _ = both(list(traffic(1, 200, 0.001, 64)), num_kv_blocks=64)
    assert plain.scheduler.num_preemptions > 5 and plain.scheduler.prefix_hits > 100
    roomy, _ = both(list(traffic(1, 60, 0.05, 0)), num_kv_blocks=3000)
    assert roomy.scheduler.num_preemptions == 0


def test_without_stalls_every_latency_is_the_same() -> None:
    """What others' prompts cost a decode is left out, where nobody asks for it, and nothing else."""
    deployment = Deployment.of("llama-3.1-8b", "l4", max_num_seqs=8)
    arrivals = [Arrival(str(i), 0.05 * i, [i] * 300, 30 + i) for i in range(30)]
    told, silent = (
        run(deployment.fast_engine(VirtualClock(), tells_stalls=tells), arrivals) for tells in (True, False)
    )
    assert any(output.timeline.lost["stalled_by_prefill"] for output in told)
    assert not any(output.timeline.lost["stalled_by_prefill"] for output in silent)
    stamps = [
        [(each.timeline.scheduled, each.timeline.first_token, each.timeline.deliveries) for each in outputs]
        for outputs in (told, silent)
    ]
    assert stamps[0] == stamps[1]
