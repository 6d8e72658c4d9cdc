"""How fast the requests of named workloads arrive: the faster a machine, the sooner, so that as many overlap there.

Their moments were written for a few CPU cores. On a GPU requests are over in half the time: with the same moments few
would overlap, and there would be nothing to see.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course.lab.lab import Lab

USUAL_STEP_S = 0.011
"""A decode step with four requests of the default model on two CPU cores, which the moments were written for."""
BATCH, CONTEXT = 4, 256
LEAST_STEP_S = 0.002
"""On a GPU a small model's weights are read in no time: the rest of a step takes about this long."""
SLOWEST, FASTEST = 1.0, 1 / 8
GPU_BUFFER = 1_000_000_000
"""Bytes copied to learn a GPU's bandwidth."""


def pace_of(lab: "Lab") -> float:
    """What moments of arrival are multiplied with: 1, or 1/2, 1/4, 1/8 on machines that are faster. Rounded, so that it
    is the same every day, and equal runs are comparable. On a CPU it's always 1.
    """
    step = _decode_step_s(lab)
    return 1.0 if step is None else min(max(2.0 ** round(math.log2(step / USUAL_STEP_S)), FASTEST), SLOWEST)


def _decode_step_s(lab: "Lab") -> float | None:
    """Roughly: what the simulator says, or the time it takes a GPU to read the weights; None = on a CPU."""
    config = lab.config()
    if lab.simulated is not None:
        from course.lab.simulated_70b import decode_seconds

        return decode_seconds(lab.simulated.deployment(config), BATCH, CONTEXT)

    from minillm.bench.target import Target

    device = Target(device=config.device).torch_device()
    if device.type != "cuda":
        return None

    from course.lab.model_shape import ModelShape
    from minillm.bench.machine_peaks import measure_bandwidth

    return max(ModelShape.of_lab(lab).weight_bytes / measure_bandwidth(GPU_BUFFER, 3, device).copy, LEAST_STEP_S)
