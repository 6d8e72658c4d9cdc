"""The oracles of exercises on the KV cache say what the engine does."""

import random

import numpy as np

from course.grading.exercises import block_tables, kv_bill, lru_eviction
from minillm import SamplingParams
from minillm.core.batch import ScheduledRequest
from minillm.core.block_pool import FreeBlocks
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.kernels.attention.window import Window
from minillm.model.arithmetic import NUMBER_BYTES, KVCacheSize
from minillm.runner.batch_layout import BlockTables, lay_out


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
        assert gone == lru_eviction.play(lru_eviction.RightOrder, acts)
