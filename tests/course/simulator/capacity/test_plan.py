"""The worksheet of a deployment: where a step's seconds go, what a replica costs, and the plan as a whole."""

import pytest

from course.simulator.capacity.plan import price_of_replica, step_causes
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.lora import Lora
from course.simulator.cost.profile import roofline_profile, typical_profile
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError
from minillm.core.params import SamplingParams
from minillm.core.timeline import VirtualClock


def causes_of_steps(deployment: Deployment, prompt: int, num: int = 1) -> list[tuple[dict[str, float], float]]:
    """Each step that serves so many equal requests: its seconds by cause, and its price."""
    explain, seen = step_causes(deployment), []
    clock = VirtualClock()
    engine = deployment.engine(clock, lambda batch, price, _: seen.append((explain(batch), price.total)))
    for i in range(num):
        engine.add_request([i] * prompt, SamplingParams(max_tokens=4, ignore_eos=True), request_id=f"{i}")
    while engine.has_unfinished:
        engine.step()
    return seen


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_every_second_is_accounted_for(tp: int, pp: int, dtype: str) -> None:
    fields = {"tp": tp, "pp": pp, "lora": Lora(adapters=4), "weight_dtype": dtype}
    deployment = Deployment.of("qwen3-1.7b", typical_profile(find_hardware("l4")), **fields)
    for causes, total in causes_of_steps(deployment, 500):
        assert sum(causes.values()) == pytest.approx(total)
        assert (causes["link"] > 0) == (tp * pp > 1)


def test_prompts_compute_and_decodes_read() -> None:
    """On paper peaks nothing else takes time: a long prompt is bound by arithmetic, single tokens by memory."""
    paper = roofline_profile(find_hardware("h100-sxm"))
    first, *decodes = causes_of_steps(Deployment.of("llama-3.1-8b", paper), 1500)
    assert first[0]["compute"] > 0.9 * first[1]
    assert all(causes["memory bandwidth"] == pytest.approx(total) for causes, total in decodes)
    assert decodes, "some steps only decode"


def test_the_price_is_the_catalogues() -> None:
    h100 = find_hardware("h100-sxm")
    assert price_of_replica(Deployment.of("llama-3-70b", "h100-sxm", tp=4)) == 4 * h100.price_per_hour
    assert price_of_replica(Deployment.of("llama-3-70b", "h100-sxm", tp=4, pp=2)) == 8 * h100.price_per_hour
    own = h100.replace(name="my-box", price_per_hour=None)
    with pytest.raises(PricingError, match=r"my-box.*--price-per-hour"):
        price_of_replica(Deployment.of("llama-3.1-8b", typical_profile(own)))
