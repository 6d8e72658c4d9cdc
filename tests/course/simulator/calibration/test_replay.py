"""A real run on a CPU, played back: the same batches, token for token."""

import random
from pathlib import Path

import pytest
from simulator.calibration.playback import arrivals_of_run, play_back

from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig


@pytest.mark.parametrize(
    "fields",
    [
        {"num_kv_blocks": 40, "enable_prefix_caching": False},
        {"num_kv_blocks": 40, "enable_prefix_caching": True},
        {"num_kv_blocks": 14, "preemption": "swap", "enable_prefix_caching": False},
        {"num_kv_blocks": 60, "scheduling_order": "shortest_prompt", "long_prefill_token_threshold": 16},
        {"num_kv_blocks": 60, "batching": "static"},
    ],
    ids=str,
)
def test_the_same_batches_token_for_token(tiny_llama_path: Path, fields: dict) -> None:
    config = EngineConfig(
        model=str(tiny_llama_path),
        dtype="float32",
        device="cpu",
        block_size=16,
        max_model_len=200,
        max_num_seqs=6,
        max_num_batched_tokens=48,
        **fields,
    )
    engine = Engine(config)
    rng = random.Random(3)
    waiting = [([rng.randrange(100) for _ in range(rng.randint(3, 90))], rng.randint(1, 25)) for _ in range(24)]
    outputs, steps = [], 0
    while waiting or engine.has_unfinished:
        if waiting and (steps % 4 == 0 or not engine.has_unfinished):
            prompt, max_tokens = waiting.pop()
            engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=max_tokens), stream=False)
        outputs += engine.step()
        steps += 1
    real = list(engine.steps)
    assert len(real) > 40 and len(outputs) == 24

    runner = engine.runner
    copy = play_back(engine.config, runner.num_kv_blocks, runner.num_host_blocks, arrivals_of_run(outputs), real)

    assert [step.shares for step in copy.steps] == [step.shares for step in real]
    assert [step.preempted for step in copy.steps] == [step.preempted for step in real]
    assert [(step.num_waiting, step.kv_blocks_used) for step in copy.steps] == [
        (step.num_waiting, step.kv_blocks_used) for step in real
    ]
    assert [step.end for step in copy.steps] == pytest.approx([step.end for step in real], abs=1e-9)
    lengths = {output.request_id: len(output.token_ids) for output in outputs}
    assert {output.request_id: len(output.token_ids) for output in copy.outputs} == lengths
