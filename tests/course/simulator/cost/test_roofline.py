"""The price of a step: known figures, limits, and that better hardware is never slower."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.simulator.cost.all_reduce import AllReduce, waits_of_two
from course.simulator.cost.experts import ExpertRanks
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.lora import Lora
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import PRIORS, hardware_of, typical_constants
from course.simulator.cost.roofline import HIGHEST, ROOFLINE, Constants, StepTimeModel, StepWork, exchange_line
from course.simulator.errors import PricingError
from minillm.model.arithmetic import share_woken

H100 = find_hardware("h100-sxm")
LLAMA_70B = find_model("llama-3-70b")
TYPICAL = Constants(**PRIORS)


def prompt(tokens: int) -> StepWork:
    return StepWork.of_prompt(tokens)


def decode(batch: int, context: int) -> StepWork:
    return StepWork.of_decodes(batch, context)


works = st.builds(
    lambda batch, context, chunk: StepWork(
        batch + chunk,
        batch + 1,
        batch + 1,
        batch * context + chunk * (chunk + 1) / 2,
        batch * context + chunk,
        int(chunk > 1),
    ),
    st.integers(1, 300),
    st.integers(1, 8000),
    st.integers(1, 8192),
)


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


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("llama-3-70b", Placement(4)),
        ("llama-3-70b", Placement(pp=4, lora=Lora(adapters=8))),
        ("deepseek-v3", Placement(8, expert_parallel=True)),
    ],
    ids=["tp", "pp, LoRA", "experts"],
)
@pytest.mark.parametrize("host_s", [0.0, 0.1])
def test_many_decodes_cost_what_each_does_to_the_last_bit(name: str, placement: Placement, host_s: float) -> None:
    model = StepTimeModel(find_model(name), H100, placement, typical_constants(H100).replace(host_s=host_s))
    for requests in (1, 3, 40):
        contexts = [0, 7, 1000, 333_333]
        each = [model.price(StepWork(requests, requests, requests, c, c, 0)).total for c in contexts]
        assert model.decode_seconds(requests, contexts) == each


@settings(max_examples=200)
@given(works, st.sampled_from(["bandwidth", "link", "flops"]), st.floats(1.01, 4), st.sampled_from([1, 2, 8]))
def test_better_hardware_is_never_slower(work: StepWork, what: str, factor: float, tp: int) -> None:
    if what == "flops":
        better = H100.replace(flops={dtype: factor * peak for dtype, peak in H100.flops.items()})
    else:
        better = H100.replace(**{what: factor * getattr(H100, what)})
    times = [StepTimeModel(LLAMA_70B, hw, Placement(tp), TYPICAL).price(work).total for hw in (H100, better)]
    assert times[1] <= times[0]


@settings(max_examples=200)
@given(works, st.sampled_from(list(Constants.model_fields)), st.sampled_from([1, 4]))
def test_nothing_real_beats_the_roofline(work: StepWork, name: str, tp: int) -> None:
    worse = 0.5 if name in HIGHEST else 5.0
    real = StepTimeModel(LLAMA_70B, H100, Placement(tp), ROOFLINE.replace(**{name: worse})).price(work).total
    assert real >= StepTimeModel(LLAMA_70B, H100, Placement(tp), ROOFLINE).price(work).total


@settings(max_examples=100)
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


def test_all_reduces_go_at_once_or_in_hops() -> None:
    """The two times cross where the hops take as long as the bytes that they save; only NVLink has a kernel for "at
    once"."""
    constants = ROOFLINE.replace(link_latency_s=5e-6, link_hop_s=4e-7)

    def one(tp: int, tokens: int, name: str = "h100-sxm") -> float:
        model = StepTimeModel(LLAMA_70B, find_hardware(name), Placement(tp), constants)
        return model.price(decode(tokens, 1)).all_reduce / 160

    def bytes_s(tokens: int, name: str = "h100-sxm") -> float:
        return tokens * 8192 * 2 / find_hardware(name).link

    for tp, tokens in ((4, 8), (8, 4)):
        assert one(tp, tokens) == pytest.approx(5e-6 + (tp - 1) * bytes_s(tokens))
    for tp, tokens in ((4, 512), (8, 512)):
        assert one(tp, tokens) == pytest.approx(5e-6 + 2 * (tp - 2) * 4e-7 + 2 * (tp - 1) / tp * bytes_s(tokens))
    assert one(2, 8) == pytest.approx(5e-6 + bytes_s(8)), "two ranks: both ways are one"
    assert one(8, 4, "l40s") == pytest.approx(5e-6 + 12 * 4e-7 + 14 / 8 * bytes_s(4, "l40s"))


MEASURED_US = {
    ("h100-sxm", 2): {8: 4.4, 64: 4.5, 1024: 8.3, 4096: 20.2, 16384: 81.4},
    ("h100-sxm", 4): {8: 4.8, 64: 5.2, 1024: 12.8, 4096: 30.2, 16384: 98.8},
    ("h100-sxm", 8): {8: 5.1, 64: 6.4, 1024: 15.0, 4096: 30.8, 16384: 92.4},
    ("a100-80gb", 4): {8: 5.5, 64: 6.6, 1024: 18.3, 4096: 41.5, 16384: 182.5},
    ("rtx-pro-6000-server", 2): {8: 6.8, 64: 9.2},
    ("rtx-pro-6000-server", 4): {8: 13.5, 64: 16.9},
    ("rtx-pro-6000-server", 8): {8: 26.7, 64: 34.2},
}
"""Microseconds by KiB: vLLM 0.24 (A100: 0.14) in CUDA graphs on NVLink, NCCL 2.29 over PCIe. From the tables of
github.com/ai-dynamo/aiconfigurator (Apache-2.0), whose sizes are in numbers of 2 bytes. Larger messages over PCIe
depend on the server's switches."""
WAITING_US = 7
"""Microseconds among the typical constants: in a step, unlike in such loops, ranks wait for the last one to arrive."""


def test_typical_all_reduces_take_as_long_as_measured_ones() -> None:
    model = replace(LLAMA_70B, hidden=512)  # 1 KiB a token
    errors = []
    for (name, tp), row in MEASURED_US.items():
        hardware = find_hardware(name)
        price = StepTimeModel(model, hardware, Placement(tp), typical_constants(hardware)).price
        alone = {kib: price(decode(kib, 1)).all_reduce / 160 / 1e-6 - WAITING_US for kib in row}
        errors += [abs(alone[kib] / us - 1) for kib, us in row.items()]
    assert sorted(errors)[len(errors) // 2] < 0.12 and max(errors) < 0.3


NCCL_US = {
    ("h100-sxm", 4): {1024: 18.1, 4096: 42.2, 16384: 99.0},
    ("h100-sxm", 8): {1024: 25.4, 4096: 50.5, 16384: 121.9},
    ("b200", 8): {1024: 30.1, 4096: 53.4, 16384: 99.1},
}
"""The same by NCCL 2.29, which older engines leave large messages to."""


def test_measured_all_reduces_are_priced_by_their_bytes() -> None:
    """Sizes in the measured tables are numbers of two bytes; all_reduce.json has microseconds per MB."""
    newer, older = "vllm-0.19", "vllm-0.12"
    rows = [(newer, *row) for row in MEASURED_US.items()] + [(older, *row) for row in NCCL_US.items()]
    for engine, (name, tp), row in rows:
        if name.startswith("rtx"):
            continue
        reduce = AllReduce.of(hardware_of(engine, name), tp, wait_s=0.0, link=1.0, latency_s=0.0, hop_s=0.0)
        for kib, us in row.items():
            ways = (way.latency_s + kib * 1024 * way.byte_s for way in reduce.ways)
            assert min(ways) * 1e6 == pytest.approx(us, rel=0.25), (engine, name, tp, kib)


MIXTURE = find_model("qwen3-30b-a3b")


def test_exchanges_within_a_server_take_what_was_measured() -> None:
    """Fitted pools of other sizes say nothing of them; beyond a server, the fit is all there is."""
    constants = ROOFLINE.replace(exchange_s=1e-4, wait_s=3e-6)

    def one(ranks: int, constants: Constants = constants) -> float:
        return StepTimeModel(MIXTURE, H100, Placement(ranks, dp=ranks), constants).exchange_s / (2 * MIXTURE.layers)

    assert one(2) == pytest.approx(7.2e-6 + 3e-6) and one(2) < one(4) < one(8) < one(16)
    assert one(16) == pytest.approx(1e-4)
    two = find_hardware("rtx-pro-6000")
    assert waits_of_two(1) == 0 and waits_of_two(2) == 1 and 1.7 < waits_of_two(4) < waits_of_two(8) < 2.5
    line = exchange_line(two, 2, ROOFLINE.replace(wait_s=3e-6))
    ring = AllReduce.of(two, 2, wait_s=3e-6, link=1.0, latency_s=0.0, hop_s=0.0).ways[-1]
    assert 2 * line.byte_s == pytest.approx(ring.byte_s), "an all-gather and a reduce-scatter are an all-reduce"
    assert one(2, ROOFLINE.replace(link_latency_s=1.2e-5)) == pytest.approx(1.2e-5), "nobody fitted an exchange"


@pytest.mark.parametrize("tokens", [1, 8, 64, 512])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_busiest_rank_is_the_one_that_chance_makes(ranks: int, tokens: int) -> None:
    """Tokens that each draw 8 of 128 experts at random, and the largest of the ranks' rows and distinct experts."""
    rng, rows, distinct = np.random.default_rng(ranks * tokens), [], []
    for _ in range(200 + 2000 // tokens):
        drawn = np.argpartition(rng.random((tokens, 128)), 8, axis=1)[:, :8]
        counts = np.bincount(drawn.ravel(), minlength=128).reshape(ranks, -1)
        rows.append(counts.sum(axis=1).max())
        distinct.append((counts > 0).sum(axis=1).max())
    busiest = ExpertRanks(128, 8, ranks, 1.0)
    assert busiest.rows(tokens) == pytest.approx(np.mean(rows), rel=0.06)
    assert busiest.experts(tokens) == pytest.approx(np.mean(distinct), rel=0.06)


@settings(max_examples=100)
@given(st.integers(1, 8192), st.sampled_from([2, 4, 8, 16]))
def test_experts_of_a_rank_are_bounded_and_skew_costs(tokens: int, ranks: int) -> None:
    even, skewed = (ExpertRanks(128, 8, ranks, skew) for skew in (1.0, 1.5))
    assert even.even_rows(tokens) <= even.rows(tokens) <= skewed.rows(tokens) <= 8 * tokens
    assert even.experts(tokens) <= skewed.experts(tokens) <= 128 // ranks
    assert share_woken(MIXTURE.skip, tokens) <= even.woken(tokens) + 1e-9 <= 1 + 2e-9


def test_expert_parallelism_is_tensor_parallelism_and_waiting_for_the_busiest() -> None:
    hardware = H100.replace(link_class="pcie_p2p")
    sliced, whole = (
        StepTimeModel(MIXTURE, hardware, Placement(4, expert_parallel=ep), ROOFLINE) for ep in (False, True)
    )
    busiest, work = ExpertRanks(128, 8, 4, 1.0), decode(16, 512)
    weights = MIXTURE.read_bytes("bfloat16", 16) / 4  # of experts, 2 bytes a parameter
    woken = 128 * (1 - (1 - 8 / 128) ** 16)
    weights += 2 * MIXTURE.expert_params * (busiest.experts(16) - woken / 4)
    assert whole.price(work).linear == pytest.approx(weights / H100.bandwidth)
    assert whole.price(work).linear > 1.03 * sliced.price(work).linear
    work = prompt(4096)
    flops = (2 * MIXTURE.layer_params * 4096 + 2 * MIXTURE.head_params) / 4
    flops += 2 * MIXTURE.expert_params * (busiest.rows(4096) - 4096 * 8 / 4)
    assert whole.price(work).linear == pytest.approx(flops / H100.peak_flops("bfloat16"))
    # Attention is sliced, so that every rank has all tokens: experts elsewhere cost no exchange, and the same sums.
    assert whole.price(work).all_reduce == pytest.approx(sliced.price(work).all_reduce)
    ranks = StepTimeModel(MIXTURE, hardware, Placement(4, expert_parallel=True, dp=4), ROOFLINE)
    # Data-parallel attention: no sums, but two exchanges in 48 layers. Of the tokens, 90% have one of a rank's experts
    # or more, however many; 3/4 of them come from other ranks.
    visits = 4096 * (1 - (3 / 4) ** 8)
    assert busiest.visits(4096) == pytest.approx(visits) and busiest.visits(4096) < busiest.even_rows(4096)
    assert ranks.price(work).all_reduce == pytest.approx(48 * 2 * visits * 3 / 4 * 2048 * 2 / H100.link)
    drafter = StepTimeModel(find_model("qwen3-0.6b"), hardware, Placement(4, expert_parallel=True), ROOFLINE)
    assert drafter.experts is None, "a draft model has none"


def test_latent_attention_computes_more_in_decodes_and_reads_less() -> None:
    model = StepTimeModel(find_model("deepseek-v3"), H100, Placement(8), ROOFLINE)
    peak = 8 * H100.peak_flops("bfloat16")
    assert model.price(decode(64, 1000)).attention == pytest.approx(64 * 1000 * 70_272 / H100.bandwidth), "all of it"
    assert model.price(prompt(8192)).attention == pytest.approx(2 * 61 * 128 * 320 * 8192 * 8193 / 2 / peak)
    one = StepTimeModel(find_model("deepseek-v3"), H100.replace(bandwidth=1e16), Placement(8), ROOFLINE)
    assert one.price(decode(64, 1000)).attention == pytest.approx(2 * 61 * 128 * (576 + 512) * 64_000 / peak)


@pytest.mark.parametrize(("expert_parallel", "added"), [(False, 18.18 - 13.78), (True, 16.42 - 11.0)])
def test_what_further_requests_add_to_a_mixture_is_what_is_published(expert_parallel: bool, added: float) -> None:
    """ITL of DeepSeek-R1 in fp8 on 8 H200, with 8 requests and with 1, milliseconds: docs/simulator.md."""
    h200 = find_hardware("h200")
    placement = Placement(8, "fp8", expert_parallel=expert_parallel)
    model = StepTimeModel(find_model("deepseek-v3"), h200, placement, typical_constants(h200))
    one, eight = (model.price(decode(batch, 1900)).total for batch in (1, 8))
    assert 1e3 * (eight - one) == pytest.approx(added, rel=0.3)


def test_constants_out_of_range_are_refused() -> None:
    for bad in ({"mfu": 0.0}, {"mfu": 2.0}, {"step_s": -1e-3}, {"bandwidth": float("nan")}, {"layer_s": float("inf")}):
        with pytest.raises(PricingError, match=next(iter(bad))):
            Constants(**bad)
