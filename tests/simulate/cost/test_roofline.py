"""The price of a step: known figures, limits, and that better hardware is never slower."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.errors import PricingError
from minillm.model.arithmetic import find_model
from minillm.simulate.calibration.fit import stack, step_seconds
from minillm.simulate.cost.hardware import find_hardware
from minillm.simulate.cost.lora import Lora
from minillm.simulate.cost.placement import Placement
from minillm.simulate.cost.profile import PRIORS
from minillm.simulate.cost.roofline import HIGHEST, ROOFLINE, Constants, StepTimeModel, StepWork

H100 = find_hardware("h100-sxm")
LLAMA_70B = find_model("llama-3-70b")
TYPICAL = Constants(**PRIORS)


def prompt(tokens: int) -> StepWork:
    return StepWork(tokens, 1, 1, tokens * (tokens + 1) / 2, tokens, 1)


def decode(batch: int, context: int) -> StepWork:
    return StepWork(batch, batch, batch, batch * context, batch * context, 0)


works = st.builds(
    lambda batch, context, chunk: StepWork(
        batch + chunk, batch + 1, batch + 1, batch * context + chunk * (chunk + 1) / 2, batch * context + chunk,
        int(chunk > 1),
    ),
    st.integers(1, 300), st.integers(1, 8000), st.integers(1, 8192),
)  # fmt: skip


def test_a_decode_step_reads_every_weight_once() -> None:
    """FACTS: Llama-2-70B at batch 1 on 4 H100: 10.3 ms, on 8: 5.1 ms, by the pure roofline."""
    model = find_model("llama-2-70b")
    for tp, milliseconds in ((4, 10.3), (8, 5.1)):
        time = StepTimeModel(model, H100, Placement(tp), ROOFLINE).price(decode(1, 512))
        assert 1e3 * time.linear == pytest.approx(milliseconds, rel=0.02)


def test_a_mixture_of_experts_reads_more_for_more_tokens() -> None:
    """One request reads 3.0B parameters a step, 64 nearly all of 30.2B; each token computes with 3.0B."""
    cost = find_model("qwen3-30b-a3b")
    model = StepTimeModel(cost, H100, Placement(), ROOFLINE)
    one, many = (model.price(decode(batch, 512)).linear for batch in (1, 64))
    assert one * H100.bandwidth == pytest.approx(2 * cost.read_params)
    assert many * H100.bandwidth == pytest.approx(cost.read_bytes("bfloat16", 64), rel=1e-9)
    assert 9.5 < many / one < 10
    flops = model.price(prompt(16_384)).linear * H100.peak_flops("bfloat16")
    assert flops == pytest.approx(2 * cost.layer_params * 16_384 + 2 * cost.head_params)


def test_prompts_cost_more_than_their_length() -> None:
    """4k tokens cost 4.12 times as much as 1k on 70B; attention is 3.8% of the work at 4k and 24% at 32k."""
    model = StepTimeModel(LLAMA_70B, H100, Placement(4), ROOFLINE)
    short, long, longest = (model.price(prompt(tokens)) for tokens in (1024, 4096, 32768))
    assert long.total / short.total == pytest.approx(4.12, rel=0.01)
    assert long.attention / (long.linear + long.attention) == pytest.approx(0.038, abs=0.002)
    assert longest.attention / (longest.linear + longest.attention) == pytest.approx(0.24, abs=0.01)


def test_the_ridge_is_where_it_should_be() -> None:
    """bf16 linear layers turn compute-bound near F bytes / (2 BW): about 295 tokens on an H100."""
    model = StepTimeModel(LLAMA_70B, H100, Placement(), ROOFLINE)
    below, above = (model.price(StepWork(t, t, t, t, t, 0)).linear for t in (285, 305))
    assert below == pytest.approx(model.weights_s)
    assert above > model.weights_s


@pytest.mark.parametrize("placement", [Placement(4), Placement(pp=4, lora=Lora(adapters=8))], ids=["tp", "pp, LoRA"])
def test_floats_and_arrays_agree(placement: Placement) -> None:
    model = StepTimeModel(LLAMA_70B, H100, placement, TYPICAL)
    steps = [prompt(100), decode(30, 900), decode(2, 900), prompt(5000)]
    assert step_seconds(model, stack(steps)) == pytest.approx([model.price(step).total for step in steps], rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(works, st.sampled_from(["bandwidth", "link", "flops"]), st.floats(1.01, 4), st.sampled_from([1, 2, 8]))
def test_better_hardware_is_never_slower(work: StepWork, what: str, factor: float, tp: int) -> None:
    if what == "flops":
        better = H100.replace(flops={dtype: factor * peak for dtype, peak in H100.flops.items()})
    else:
        better = H100.replace(**{what: factor * getattr(H100, what)})
    times = [StepTimeModel(LLAMA_70B, hw, Placement(tp), TYPICAL).price(work).total for hw in (H100, better)]
    assert times[1] <= times[0]


@settings(max_examples=200, deadline=None)
@given(works, st.sampled_from(list(Constants.model_fields)), st.sampled_from([1, 4]))
def test_nothing_real_beats_the_roofline(work: StepWork, name: str, tp: int) -> None:
    worse = 0.5 if name in HIGHEST else 5.0
    real = StepTimeModel(LLAMA_70B, H100, Placement(tp), ROOFLINE.replace(**{name: worse})).price(work).total
    assert real >= StepTimeModel(LLAMA_70B, H100, Placement(tp), ROOFLINE).price(work).total


@settings(max_examples=100, deadline=None)
@given(works, st.sampled_from(["tokens", "logits", "requests", "pairs", "context"]), st.integers(1, 4000))
def test_more_work_never_takes_less_time(work: StepWork, what: str, more: int) -> None:
    model = StepTimeModel(LLAMA_70B, H100, Placement(2), TYPICAL.replace(half_tokens=0.0))
    larger = replace(work, **{what: getattr(work, what) + more})
    assert model.price(larger).total >= model.price(work).total


def test_the_launch_floor_hides_behind_a_slow_device_only() -> None:
    eager = ROOFLINE.replace(launch_s=3e-4)
    for tp, floor in ((2, False), (8, True)):
        time = StepTimeModel(LLAMA_70B, H100, Placement(tp), eager).price(prompt(500))
        assert (time.waiting_for_host > 0) is floor
        assert time.total == pytest.approx(max(80 * 3e-4, time.linear + time.attention + time.all_reduce))


def test_narrow_weights_are_faster_to_read_and_cost_to_widen() -> None:
    def linear(dtype: str, work: StepWork) -> float:
        return StepTimeModel(LLAMA_70B, H100, Placement(4, dtype), ROOFLINE).price(work).linear

    small, large = decode(1, 100), prompt(4096)
    assert linear("fp8", small) == pytest.approx(linear("bfloat16", small) / 2, rel=1e-3), "norms stay as they are"
    assert linear("int4", small) < linear("int8", small) < linear("bfloat16", small)
    assert linear("fp8", large) == pytest.approx(linear("bfloat16", large) / 2, rel=0.01), "fp8 multiplies faster"
    assert linear("int4", large) > linear("bfloat16", large), "int4 multiplies in bfloat16, after widening"


def test_all_reduces_need_company() -> None:
    alone = StepTimeModel(LLAMA_70B, H100, Placement(1), TYPICAL).price(prompt(1000))
    four = StepTimeModel(LLAMA_70B, H100, Placement(4), ROOFLINE).price(prompt(1000))
    assert alone.all_reduce == 0
    assert four.all_reduce == pytest.approx(2 * 80 * 2 * 3 / 4 * 1000 * 8192 * 2 / 450e9)


def test_stages_of_a_pipeline_speed_up_many_requests_and_not_one() -> None:
    one, four = (StepTimeModel(LLAMA_70B, H100, Placement(pp=pp), ROOFLINE) for pp in (1, 4))
    token_s = 8192 * 2 / H100.link
    assert four.price(decode(1, 512)).total == pytest.approx(one.price(decode(1, 512)).total + 4 * token_s)
    busy = StepWork(40_000, 40_000, 400, 400 * 5000, 400 * 100, 0)
    assert four.price(busy).total == pytest.approx(one.price(busy).total / 4 + 4 * 10_000 * token_s)
    assert 3.7 < one.price(busy).total / four.price(busy).total < 4
    assert four.price(decode(2, 512)).total == pytest.approx(four.price(decode(1, 512)).total), (
        "two micro-batches of one"
    )


def test_constants_out_of_range_are_refused() -> None:
    for bad in ({"mfu": 0.0}, {"mfu": 2.0}, {"step_s": -1e-3}, {"bandwidth": float("nan")}, {"layer_s": float("inf")}):
        with pytest.raises(PricingError, match=next(iter(bad))):
            Constants(**bad)
