"""LoRA adapters: their size as published, what a step reads of them, and what they leave for the KV cache."""

import pytest

from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.lora import NO_LORA, Lora
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement, bytes_for_kv
from course.simulator.cost.roofline import ROOFLINE, StepTimeModel, StepWork
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError

H100, LLAMA = find_hardware("h100-sxm"), find_model("llama-3.1-8b")
SIZE = 41_943_040


def test_parameters_are_those_that_peft_counts() -> None:
    """print_trainable_parameters of rank 16 on all linear layers of Mistral 7B, which has Llama 3.1 8B's:
    https://github.com/intel-analytics/ipex-llm/blob/main/python/llm/example/GPU/LLM-Finetuning/DPO/README.md"""
    assert Lora(adapters=1).params(LLAMA) == SIZE
    assert Lora(adapters=1, rank=64).params(LLAMA) == 4 * SIZE


def test_a_step_reads_the_adapters_of_its_requests() -> None:
    def added(work: StepWork, lora: Lora, tp: int = 1) -> float:
        with_them, without = (Placement(tp, lora=some) for some in (lora, NO_LORA))
        times = [StepTimeModel(LLAMA, H100, some, ROOFLINE).price(work).linear for some in (with_them, without)]
        return times[0] - times[1]

    one, many = StepWork(1, 1, 1, 500, 500, 0), StepWork(64, 64, 64, 64 * 500, 64 * 500, 0)
    read_s = 2 * SIZE / H100.bandwidth
    assert added(one, Lora(adapters=32)) == added(many, Lora(adapters=1)) == pytest.approx(read_s)
    assert added(one, Lora(adapters=32), tp=2) == pytest.approx(read_s / 2)
    assert added(many, Lora(adapters=32)) == pytest.approx(32 * (1 - (31 / 32) ** 64) * read_s)
    assert added(many, Lora(adapters=10**6)) == pytest.approx(64 * read_s, rel=1e-4), "one for each request"
    prompt = StepWork(8192, 1, 1, 8192**2 / 2, 8192, 1)
    assert added(prompt, Lora(adapters=32)) == pytest.approx(2 * SIZE * 8192 / H100.peak_flops("bfloat16"))


def test_all_adapters_take_their_memory_from_the_kv_cache() -> None:
    for sizes in (Placement(2), Placement(1, pp=2)):
        placement = Placement(sizes.tp, pp=sizes.pp, lora=Lora(adapters=100))
        taken = bytes_for_kv(LLAMA, H100.memory, sizes) - bytes_for_kv(LLAMA, H100.memory, placement)
        assert taken == pytest.approx(100 * 2 * SIZE / 2)


def test_no_adapters_are_none_and_what_cannot_be_priced_is_refused() -> None:
    assert Deployment.of("llama-3.1-8b", "h100-sxm", lora=Lora(adapters=0)) == Deployment.of("llama-3.1-8b", "h100-sxm")
    with pytest.raises(PricingError, match="rank is read only with adapters"):
        Lora(rank=8)
    with pytest.raises(PricingError, match="mixture of experts"):
        Deployment.of("qwen3-30b-a3b", "h100-sxm", lora=Lora(adapters=2))
