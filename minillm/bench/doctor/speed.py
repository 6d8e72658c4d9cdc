"""The speed of the default model, against this machine's own roofline.

At batch 1 a decode step reads every weight and the request's keys and values once, and computes next to nothing: the
bytes over the bandwidth are a floor that no engine gets below (minillm/runner/machine_peaks.py).
"""

from collections.abc import Iterator

from minillm.bench.doctor.check import Check
from minillm.bench.doctor.hardware import MemoryBandwidth
from minillm.core.errors import PricingError
from minillm.core.params import default_of
from minillm.model.arithmetic import ModelCost, find_model
from minillm.policies.config import EngineConfig
from minillm.simulate.cost.hardware import GIGA
from minillm.simulate.cost.placement import Placement
from minillm.simulate.cost.profile import PRIORS, Profile, this_machine_path
from minillm.simulate.cost.roofline import StepTimeModel, StepWork

GROUP = "speed"
DTYPE = "bfloat16"
CONTEXT = 512
"""Tokens of context in the step that is priced."""


def speed(bandwidth: MemoryBandwidth) -> Iterator[Check]:
    """The floor of a decode step of the default model, and what to expect above it."""
    name = default_of(EngineConfig, "model")
    cost = find_model(name)
    step_bytes = cost.read_bytes(DTYPE) + CONTEXT * cost.kv_bytes_per_token(DTYPE)
    profile = calibrated(bandwidth)
    # Whatever else ran now or when it was calibrated, the memory is at least as fast as was seen.
    fastest = max(bandwidth.bytes_per_s, profile.hardware.bandwidth if profile else 0.0)
    floor = step_bytes / fastest
    found = (
        f"{name} at batch 1, {CONTEXT} tokens of context: {1e3 * floor:.2f} ms per token, {1 / floor:.0f} tokens/s at "
        f"most ({step_bytes / 1e6:.0f} MB at {fastest / GIGA:.1f} GB/s)"
    )
    yield Check.of(GROUP, "roofline", found)
    yield expectation(cost, floor, profile)


def calibrated(bandwidth: MemoryBandwidth) -> Profile | None:
    """What `minillm calibrate` measured on this device; None if it was not run here, or wrote no profile."""
    try:
        profile = Profile.read(this_machine_path())
    except PricingError:
        return None
    return profile if profile.hardware.is_gpu == (bandwidth.device.type == "cuda") else None


def expectation(cost: ModelCost, floor: float, profile: Profile | None) -> Check:
    """What a step with one decode in it will take here: as calibrated, or as good engines do."""
    if profile is None:
        share = PRIORS["bandwidth"]
        found = f"about {1e3 * floor / share:.2f} ms per token, if {share:.0%} of the bandwidth is reached (a guess)"
        return Check.of(GROUP, "expected", found, "minillm calibrate")
    model = StepTimeModel(cost, profile.hardware, Placement(1, DTYPE, DTYPE), profile.constants)
    seconds = float(model.price(StepWork(1, 1, 1, CONTEXT, CONTEXT, 0)).total)
    found = f"{1e3 * seconds:.2f} ms per token, {1 / seconds:.0f} tokens/s, {floor / seconds:.0%} of the roofline"
    return Check.of(GROUP, "expected", f"{found}: by what `minillm calibrate` measured here")
