"""The oracles that judge numerical exercises agree with the engine's own code."""

import random

import numpy as np
import pytest
import torch
from fake_runner import FakeRunner, greedy

from course.grading.arrays import alike
from course.grading.exercises import (
    block_tables,
    chunked_prefill,
    int8_quantization,
    kv_bill,
    lru_eviction,
    paged_attention,
    roofline_knee,
)
from course.grading.tools import play
from course.simulator.cost.sizes import KVCacheSize
from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.batch import ScheduledRequest
from minillm.core.block_pool import FreeBlocks
from minillm.core.request import Request
from minillm.core.timeline import Timeline, VirtualClock
from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.attention.eager import EagerAttention
from minillm.kernels.attention.window import Window
from minillm.kernels.quantization import quantize_rows
from minillm.model.arithmetic import NUMBER_BYTES
from minillm.runner.batch_layout import BlockTables, lay_out


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


def test_the_kv_bill_is_the_engines() -> None:
    rng = random.Random(0)
    assert kv_bill.NUMBER_BYTES == NUMBER_BYTES
    for _ in range(300):
        shape, dtype, size = kv_bill.some_shape(rng), rng.choice(list(NUMBER_BYTES)), rng.choice((8, 16, 32))
        bill = KVCacheSize.of_heads(*(shape[key] for key in ("layers", "num_heads", "num_kv_heads", "head_dim")))
        assert kv_bill.right_token(shape, dtype) == bill.bytes_per_token(dtype)
        tokens, window = rng.randint(1, 500), rng.choice((None, rng.randint(2, 300)))
        held = bill.bytes_of(tokens, dtype, size, Window(window))
        assert kv_bill.right_request(shape, dtype, tokens, size, window) == held


def test_the_slot_mapping_is_the_engines() -> None:
    rng = random.Random(0)
    for _ in range(50):
        pieces = sorted(block_tables.some_tables(rng, 5, 4), key=lambda piece: piece[2] - piece[1] > 1)
        scheduled = []
        for i, (table, start, end) in enumerate(pieces):
            request = Request(str(i), [1] * end, SamplingParams(), Timeline(0.0), num_computed_tokens=end)
            scheduled.append(ScheduledRequest(request, start, end - start, table, True, 0))
        arrays = lay_out(scheduled, BlockTables(4, 99), {}).arrays
        assert arrays.slots.tolist() == block_tables.right_slots(pieces, 4)
        assert np.array_equal(arrays.block_tables, block_tables.right_tables(pieces, 4, 99))


def test_the_eviction_order_is_the_engines() -> None:
    for seed in range(20):
        acts = lru_eviction.wild_acts(random.Random(seed), 80)
        free, hashes = FreeBlocks(0), [b"cached"] * 30
        gone = []
        for name, value in acts:
            if name == "release":
                free.add(value[::-1], hashes)
            elif name == "revive":
                free.take_cached(value)
            else:
                gone.append(free.take(value)[1])
        played = play(lru_eviction.RightOrder(), [(name, [value]) for name, value in acts])
        assert gone == [each for each in played if each is not None]
