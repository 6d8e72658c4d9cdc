"""How fast the requests of named workloads arrive: the faster a machine, the sooner, so that as many overlap there.

Their moments were written for a few CPU cores. On a GPU requests are over in half the time: with the same moments few
would overlap, and there would be nothing to see.
"""

import math

from course.lab.simulated_device import SimulatedDevice
from course.simulator.cost.work import decode_work
from minillm.policies.config import EngineConfig

USUAL_STEP_S = 0.011
"""A decode step with four requests of the default model on two CPU cores, which the moments were written for."""
BATCH, CONTEXT = 4, 256
LEAST_STEP_S = 0.002
"""On a GPU a small model's weights are read in no time: the rest of a step takes about this long."""
SLOWEST, FASTEST = 1.0, 1 / 8
GPU_BUFFER = 1_000_000_000
"""Bytes copied to learn a GPU's bandwidth."""


def pace_of(config: EngineConfig, device: SimulatedDevice | None) -> float:
    """What moments of arrival are multiplied with: 1, or 1/2, 1/4, 1/8 on machines that are faster. Rounded, so that it
    is the same every day, and equal runs are comparable. On a CPU it's always 1.

    Args:
        device: that is simulated; None = the one that the configuration chooses.
    """
    step = _gpu_step_s(config) if device is None else _simulated_step_s(config, device)
    return 1.0 if step is None else min(max(2.0 ** round(math.log2(step / USUAL_STEP_S)), FASTEST), SLOWEST)


def _simulated_step_s(config: EngineConfig, device: SimulatedDevice) -> float:
    """What the simulator says a decode step takes."""
    return device.deployment(config).step_time().price(decode_work(BATCH, CONTEXT)).total


def _gpu_step_s(config: EngineConfig) -> float | None:
    """Roughly: as long as a GPU takes to read the weights; None = on a CPU."""
    from minillm.bench.target import Target

    target = Target(model=config.model, dtype=config.dtype, device=config.device)
    device = target.torch_device()
    if device.type != "cuda":
        return None

    from course.simulator.cost.sizes import ModelCost
    from minillm.bench.machine_peaks import measure_bandwidth
    from minillm.kernels.quantization import dtype_name
    from minillm.model.loader import choose_dtype

    shape = target.model_config()
    weights = ModelCost.of(shape).read_bytes(dtype_name(choose_dtype(config.dtype, shape, device)))
    return max(weights / measure_bandwidth(GPU_BUFFER, 3, device).copy, LEAST_STEP_S)
