"""The oracles that judge numerical exercises agree with the engine's own code."""

import random

import numpy as np
import pytest
import torch
from fake_runner import FakeRunner, greedy

from course.grading.exercises import chunked_prefill, int8_quantization, paged_attention, roofline_knee
from course.grading.tools import alike
from minillm import Engine, EngineConfig
from minillm.core.timeline import VirtualClock
from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.attention.eager import EagerAttention
from minillm.kernels.quantization import quantize_rows


@pytest.mark.parametrize("seed", range(3))
def test_attention_is_the_engines(seed: int) -> None:
    step = paged_attention.some_step(random.Random(seed), ((1, 9), (4, 4), (3, 17)), (6, 2), garbage=np.nan)
    starts = [0, *np.cumsum(step.query_lens).tolist()]
    lens = step.context_lens.tolist()
    metadata = AttentionMetadata(
        query_starts=starts,
        context_lens=lens,
        query_starts_tensor=torch.tensor(starts),
        context_lens_tensor=torch.tensor(lens),
        block_tables=torch.from_numpy(step.block_tables),
        slot_mapping=torch.empty(0),
        num_decodes=1,
        block_size=step.key_cache.shape[1],
    )
    cache = torch.from_numpy(np.stack((step.key_cache, step.value_cache), axis=2))
    engines = EagerAttention(metadata).attend(torch.from_numpy(step.query), cache, step.query.shape[2] ** -0.5)
    assert alike(engines.double().numpy(), paged_attention.right(*step.arguments()), 1e-5)


def test_int8_scales_and_steps_are_the_engines() -> None:
    weight = int8_quantization.some_weights(random.Random(0), 6, 40)
    numbers, scales = quantize_rows(torch.from_numpy(weight), torch.int8)
    int8_quantization.hold_scales([weight], [scales.double().numpy()])
    int8_quantization.hold_numbers([weight], [numbers.double().numpy()])


@pytest.mark.parametrize(("context", "least", "most"), [(0, 1, 9000), (200, 1, 9000), (100_000, np.inf, np.inf)])
def test_the_knee_is_the_first_batch_that_multiplies_longer(context: int, least: float, most: float) -> None:
    rng = random.Random(context)
    for bits in (4, 8, 16):
        model, machine, _ = roofline_knee.on_no_border(rng, context, bits, least, most)
        ridge = machine.flops_per_s / machine.bytes_per_s
        reached = (b for b in range(1, 10_000) if roofline_knee.right_intensity(model, b, context) >= ridge)
        assert next(reached, None) == roofline_knee.right_knee(model, machine, context)


def test_the_schedule_of_chunks_is_the_engines() -> None:
    prompts, budget, chunk = [70, 9, 30, 5, 41], 32, 12
    clock = VirtualClock()
    runner = FakeRunner(200, 4, clock)
    config = EngineConfig(
        max_model_len=200,
        max_num_seqs=16,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=chunk,
        block_size=4,
        enable_prefix_caching=False,
    )
    engine = Engine.on_runner(config, runner, clock)
    for i, length in enumerate(prompts):
        engine.add_request([100 * i + j for j in range(length)], greedy(40), request_id=str(i))
    wanted = chunked_prefill.right_schedule(prompts, 0, budget, chunk)
    for _ in wanted:
        engine.step()
    left, found = list(prompts), []
    for batch in runner.batches[: len(wanted)]:
        read = {int(each.request.request_id): each.num_tokens for each in batch.requests}
        found.append({i: tokens for i, tokens in sorted(read.items()) if left[i]})
        for i, tokens in found[-1].items():
            left[i] -= tokens
    assert found == wanted
    assert not any(left)
