"""Whatever is switched on, and whatever happens: right tokens, no leak, budget kept, nobody starves."""

import math

from fake_runner import FakeRunner, GuessingProposer, expected_output
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.errors import PromptTooLongError
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig

BLOCK = 4

configs = st.fixed_dictionaries(
    {
        "batching": st.sampled_from(["continuous", "static", "none"]),
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 24),
        "enable_chunked_prefill": st.booleans(),
        "long_prefill_token_threshold": st.none() | st.integers(1, 8),
        "scheduler_reserve_full_isl": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "prefix_eviction": st.sampled_from(["lru", "fifo", "ttl"]),
        "kv_reservation": st.sampled_from(["on_demand", "max_len"]),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "scheduling_order": st.sampled_from(["fcfs", "shortest_prompt", "priority", "two_lane", "fair"]),
        "speculative": st.sampled_from([None, {"method": "synthetic", "k": 3, "min_output_tokens": 2}]),
    }
)
# Prompts of few different tokens, so that many share a prefix.
requests = st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 12), st.integers(0, 3))
events = st.lists(st.one_of(requests, st.just("step"), st.integers(0, 20)), min_size=1, max_size=40)


@settings(max_examples=150)
@given(fields=configs, num_kv_blocks=st.integers(3, 20), num_host_blocks=st.integers(0, 12), events=events)
def test_everything_holds_under_random_traffic(fields, num_kv_blocks, num_host_blocks, events):
    clock = VirtualClock()
    if fields["scheduling_order"] == "two_lane":
        fields["two_lane_threshold"] = 8
    if not fields["enable_prefix_caching"]:
        del fields["prefix_eviction"]
    elif fields["prefix_eviction"] == "ttl":
        fields["prefix_ttl_s"] = 0.02
    if not fields["enable_chunked_prefill"]:
        fields["long_prefill_token_threshold"] = None
    config = EngineConfig(**fields, block_size=BLOCK, max_model_len=40)
    runner = FakeRunner(num_kv_blocks, BLOCK, clock, num_host_blocks)
    engine = Engine(config, runner=runner, clock=clock, proposer=GuessingProposer())
    asked: dict[str, tuple[list[int], int]] = {}
    final = {}

    def step() -> None:
        before = len(engine.runner.batches)
        for output in engine.step():
            if output.finished:
                assert output.request_id not in final, "finished twice"
                final[output.request_id] = output
        engine.check_integrity()
        for batch in engine.runner.batches[before:]:
            prefills = [scheduled for scheduled in batch.requests if scheduled.num_tokens - scheduled.num_drafts > 1]
            over = batch.num_tokens > config.max_num_batched_tokens
            assert not over or (not config.enable_chunked_prefill and len(prefills) == 1), "the budget was broken"
            assert len({id(scheduled.request) for scheduled in batch.requests}) == len(batch.requests)

    for event in events:
        if event == "step":
            step()
        elif isinstance(event, int):
            if aborted := engine.abort(f"r{event}"):
                final[aborted.request_id] = aborted
                engine.check_integrity()
        else:
            prompt, max_tokens, priority = event
            request_id = f"r{len(asked)}"
            try:
                who = {"request_id": request_id, "priority": priority, "tenant": str(priority)}
                engine.add_request(prompt, SamplingParams(max_tokens=max_tokens), **who)
                asked[request_id] = (prompt, max_tokens)
            except PromptTooLongError:
                assert len(prompt) >= engine.context_limit
    # Work left is finite, so a bound on the steps is a proof that nobody starves.
    bound = 50 + sum(len(prompt) + max_tokens for prompt, max_tokens in asked.values()) * 8
    steps = 0
    while engine.has_unfinished:
        step()
        steps += 1
        assert steps < bound, "somebody starves"

    assert engine.scheduler.kv.pool.num_used == 0
    assert set(final) == set(asked)
    for request_id, (prompt, max_tokens) in asked.items():
        output = final[request_id]
        room = engine.context_limit - len(prompt)
        expected = expected_output(prompt, min(max_tokens, room))
        assert output.token_ids == expected[: len(output.token_ids)], "wrong tokens"
        if output.finish_reason is not FinishReason.ABORT:
            assert len(output.token_ids) == len(expected)
        phases = output.timeline.phases()
        assert all(seconds >= 0 for seconds in phases.values())
        assert math.isclose(sum(phases.values()), output.timeline.e2e, abs_tol=1e-9)
