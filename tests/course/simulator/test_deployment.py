"""Lossy settings of the engine's configuration, priced: the same fields, and the bytes that the engine keeps."""

import pytest
from simulated_integrity import check_engine

from course.simulator.deployment import Deployment
from course.simulator.errors import DoesNotFitError, PricingError
from minillm.core.params import SamplingParams
from minillm.core.timeline import VirtualClock

LLAMA = ("llama-3-8b", "h100-sxm")


def test_the_engines_fields_say_what_is_priced() -> None:
    by_field = Deployment.of(*LLAMA, quantization="int8", kv_cache_dtype="int8")
    by_dtype = Deployment.of(*LLAMA, weight_dtype="int8", kv_dtype="int8")
    plain = Deployment.of(*LLAMA)
    assert by_field.placement == by_dtype.placement
    assert by_field.num_kv_blocks == by_dtype.num_kv_blocks > 1.9 * plain.num_kv_blocks
    assert Deployment.of(*LLAMA, quantization="fp8").placement.kv_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"quantization": "int8", "weight_dtype": "int4"}, "quantization is int8, .* in int4: say one"),
        ({"kv_cache_dtype": "int8", "kv_dtype": "float16"}, "kv_cache_dtype is int8, .* in float16: say one"),
        ({"quantization": "int4", "int4_group_size": 64}, "leave int4_group_size out"),
    ],
    ids=str,
)
def test_contradictions_are_refused(fields: dict, hint: str) -> None:
    with pytest.raises(PricingError, match=hint):
        Deployment.of(*LLAMA, **fields)


@pytest.mark.parametrize("fast", [False, True], ids=["engine", "fast_forward"])
def test_a_window_bounds_blocks_and_prices(fast: bool) -> None:
    """One request of 3000 tokens and 400 more: with a window its steps stop growing, and so does what it holds."""
    price, blocks = {}, {}
    for fields in ({}, {"sliding_window": 256, "attention_sinks": 4}):
        deployment = Deployment.of(*LLAMA, num_kv_blocks=300, max_num_batched_tokens=512, **fields)
        prices, most = [], 0
        make = deployment.fast_engine if fast else deployment.engine
        engine = make(VirtualClock(), lambda batch, price, end, prices=prices: prices.append(price))
        params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        engine.add_request(list(range(3000)), params, stream=False)
        while engine.has_unfinished:
            engine.step()
            check_engine(engine)
            most = max(most, engine.scheduler.kv.pool.num_used)
        price[bool(fields)], blocks[bool(fields)] = prices[-1].attention, most
    assert blocks[False] == -(-3399 // 16)
    assert blocks[True] <= 1 + 1 + (256 + 512) // 16 + 1, "sinks, window, a chunk"
    assert price[True] == pytest.approx(price[False] * 260 / 3399, rel=1e-3)


def test_with_a_window_a_prompt_longer_than_the_pool_is_admitted_whole() -> None:
    """Looking ahead asks for what it will hold at once, and that is little."""
    fields = dict(num_kv_blocks=60, max_num_batched_tokens=512, scheduler_reserve_full_isl=True)
    engine = Deployment.of(*LLAMA, sliding_window=256, **fields).engine(VirtualClock())
    engine.add_request(list(range(3000)), SamplingParams(max_tokens=3, ignore_eos=True), stream=False)
    while engine.has_unfinished:
        outputs = engine.step()
    assert len(outputs[0].token_ids) == 3


def test_a_null_block_is_nobodys() -> None:
    assert Deployment.of(*LLAMA, num_kv_blocks=100, null_block=True).num_kv_blocks == 99
    assert Deployment.of(*LLAMA, null_block=True).num_kv_blocks == Deployment.of(*LLAMA).num_kv_blocks - 1
    with pytest.raises(PricingError, match="no block beside the null block"):
        Deployment.of(*LLAMA, num_kv_blocks=1, null_block=True).num_kv_blocks  # noqa: B018


def test_sizes_of_a_deployment() -> None:
    deployment = Deployment.of("llama-3-70b", "h100-sxm", tp=4)
    assert deployment.num_kv_blocks > 1000
    engine = deployment.engine(VirtualClock())
    assert engine.runner.num_kv_blocks == deployment.num_kv_blocks
    assert engine.context_limit == 8192
    with pytest.raises(DoesNotFitError, match="--tp"):
        Deployment.of("llama-3-70b", "rtx-4090", num_kv_blocks=10).engine(VirtualClock())
    with pytest.raises(DoesNotFitError, match="lower the KV blocks"):
        Deployment.of("llama-3.1-8b", "rtx-4090", num_kv_blocks=50_000).engine(VirtualClock())
    with pytest.raises(PricingError, match="holds no block"):
        Deployment.of("llama-3.1-8b", "rtx-4090", kv_cache_memory_gb=0.001).engine(VirtualClock())
    assert Deployment.of("llama-3.1-8b", "rtx-4090", kv_cache_memory_gb=1.0).num_kv_blocks == int(1e9 // (16 * 131072))
