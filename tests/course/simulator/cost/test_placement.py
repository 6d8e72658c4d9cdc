"""What fits an accelerator, and the work of steps against torch's own counters on the real decoder."""

from dataclasses import replace

import pytest
from torch.utils.flop_counter import FlopCounterMode

from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import PricedModel, find_model
from course.simulator.cost.placement import Placement, kv_blocks_that_fit
from course.simulator.cost.roofline import work_of
from course.simulator.errors import DoesNotFitError, PricingError
from minillm.core.batch import ScheduledRequest
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.frontend.engine import Engine
from minillm.kernels.attention.window import Window
from minillm.model.loader import load_model
from minillm.policies.config import EngineConfig


@pytest.mark.parametrize(
    "fixture", ["tiny_llama_path", "tiny_moe_path", pytest.param("smollm_path", marks=pytest.mark.slow)]
)
def test_flops_are_those_that_torch_counts(fixture: str, request: pytest.FixtureRequest) -> None:
    """Every step of a real engine: matrix products by formula and by torch.utils.flop_counter, exactly.

    The eager backend scores all pairs of a chunk and its context, masked or not, so its attention is 4 n (c + n)
    per head and size; the causal pairs that a step needs are checked against that.
    """
    config = EngineConfig(
        model=str(request.getfixturevalue(fixture)),
        dtype="float32",
        device="cpu",
        attention_backend="eager",
        num_kv_blocks=64,
        block_size=16,
        max_num_batched_tokens=48,
        max_num_seqs=8,
        enable_prefix_caching=False,
    )
    model = load_model(config)
    engine = Engine(config, model)
    cost = PricedModel.of(model.model_config)
    seen = []
    launch = engine.runner.launch

    def counted(batch):
        counter = FlopCounterMode(display=False)
        with counter:
            step = launch(batch)
            output = step.wait()
        seen.append((batch.requests, counter.get_total_flops()))

        class Done:
            def wait(self):
                return output

        return Done()

    engine.runner.launch = counted
    for length in (5, 60, 33):
        engine.add_request(list(range(1, length + 1)), SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    while engine.has_unfinished:
        engine.step()
    assert len(seen) > 6
    for requests, flops in seen:
        work = work_of(requests)
        products = 2 * cost.layer_params * work.tokens + 2 * cost.head_params * work.logits
        scored = sum(scheduled.num_tokens * scheduled.end for scheduled in requests)
        attention = 4 * cost.layers * cost.query_size * scored
        assert flops == products + attention
        assert scored / 2 < work.pairs <= scored


def test_kv_bytes_by_sharing_of_heads() -> None:
    placement = Placement()
    assert find_model("llama-3-70b").kv_bytes_per_token("bfloat16") == 327_680
    mha = find_model("llama-3-70b", kv_heads=64)
    mqa = find_model("llama-3-70b", kv_heads=1)
    assert placement.kv_bytes_per_token(mha) == 8 * 327_680
    assert placement.kv_bytes_per_token(mqa) == 327_680 / 8
    # One KV head cannot be cut in four: each accelerator keeps it whole.
    assert Placement(tp=4).kv_bytes_per_token(mqa) == placement.kv_bytes_per_token(mqa)
    assert Placement(tp=4).kv_bytes_per_token(mha) == placement.kv_bytes_per_token(mha) / 4
    fp8 = Placement(kv_dtype="fp8").kv_bytes_per_token(mha)
    assert fp8 == placement.kv_bytes_per_token(mha) / 2 * (128 + 2) / 128, "a scale beside every 128 numbers"


def test_latent_vectors_and_their_projections_are_on_every_accelerator() -> None:
    model = find_model("deepseek-v3")
    for tp in (1, 8):
        assert Placement(tp=tp).kv_bytes_per_token(model) == 70_272
    copied = 61 * 7168 * (1536 + 512 + 64)  # hidden states to the compressed queries, latent vectors and rotated keys
    assert Placement(8).weight_bytes(model) - Placement(1).weight_bytes(model) == 2 * 7 * copied


def brute_force_work(start: int, new: int, window: Window) -> tuple[int, int]:
    """Pairs and keys, counted one by one."""
    seen = [
        {key for key in range(p + 1) if window.size is None or p - key < window.size or key < window.sinks}
        for p in range(start, start + new)
    ]
    return sum(map(len, seen)), len(set().union(*seen))


@pytest.mark.parametrize("window", [Window(), Window(1), Window(8), Window(8, 3), Window(100, 2)], ids=str)
def test_work_in_a_window(window: Window) -> None:
    for start, new in ((0, 1), (0, 30), (5, 4), (7, 1), (8, 1), (11, 1), (12, 9), (40, 1), (200, 3)):
        request = Request("a", list(range(start + new)), SamplingParams(), Timeline(0.0))
        work = work_of((ScheduledRequest(request, start, new, [], True),), window)
        assert (work.pairs, work.context) == brute_force_work(start, new, window)


def test_unknown_dtypes_and_degrees_say_what_to_do() -> None:
    for none in (dict(tp=0), dict(pp=0)):
        with pytest.raises(PricingError, match="at least 1"):
            Placement(**none)
    with pytest.raises(PricingError, match="lower --pp"):
        Placement(pp=33).check(find_model("llama-3.1-8b"))
    with pytest.raises(PricingError, match="'int3' of the weights: choose from float32, bfloat16"):
        Placement(weight_dtype="int3")
    with pytest.raises(PricingError, match="'int4' of the KV cache"):
        Placement(kv_dtype="int4")


@pytest.mark.parametrize(
    ("model", "fields", "hint"),
    [
        ("qwen3-30b-a3b", {"tp": 1, "expert_parallel": True}, "raise tp"),
        ("qwen3-30b-a3b", {"tp": 2, "expert_skew": 1.5}, "read only with expert_parallel"),
        ("llama-3-8b", {"tp": 2, "expert_parallel": True}, "a model without experts"),
        ("deepseek-v3", {"tp": 128, "expert_parallel": True, "expert_skew": 33}, "from 1 .* to 32 here"),
        ("qwen3-30b-a3b", {"tp": 4, "expert_parallel": True, "expert_skew": 0.5}, "from 1 .* to 4 here"),
    ],
)
def test_experts_that_cannot_be_placed_so(model: str, fields: dict, hint: str) -> None:
    with pytest.raises(PricingError, match=hint):
        Placement(**fields).check(find_model(model))


def test_experts_are_shared_evenly_or_not_at_all() -> None:
    model = replace(find_model("qwen3-30b-a3b"), num_experts=126)
    with pytest.raises(PricingError, match="126 experts among tp 4"):
        Placement(4, expert_parallel=True).check(model)


def test_what_fits_the_memory() -> None:
    model, h100 = find_model("llama-3-70b"), find_hardware("h100-sxm")
    with pytest.raises(DoesNotFitError, match="at least 2 accelerators"):
        kv_blocks_that_fit(model, h100, Placement(), 16)
    blocks = kv_blocks_that_fit(model, h100, Placement(4), 16)
    used = Placement(4).weight_bytes(model) / 4 + blocks * 16 * Placement(4).kv_bytes_per_token(model)
    assert 0.85 * h100.memory < used <= 0.9 * h100.memory
    assert kv_blocks_that_fit(model, h100.replace(memory=2 * h100.memory), Placement(4), 16) > 2 * blocks
    # Stages hold whole layers in place of slices of all: the same share of the weights, and of each token's KV cache.
    assert kv_blocks_that_fit(model, h100, Placement(pp=4), 16) == blocks
    assert kv_blocks_that_fit(model, h100, Placement(2, pp=2), 16) == blocks
    # Published: vLLM 0.19 found 2588 blocks for this model on this GPU.
    found = kv_blocks_that_fit(find_model("llama-3.1-8b"), find_hardware("rtx-4090"), Placement(), 16)
    assert found == pytest.approx(2588, rel=0.1)
