"""A decoder, or a draft head, made ready for a CPU: weights in an order that is read fast, activations in float32."""

import torch

from minillm.host.memory import keep_freed_memory
from minillm.model.decoder import LayeredModel, RMSNorm
from minillm.model.moe import ExpertRouter
from minillm.model.packing import pack_linears


def optimize_for_cpu(model: LayeredModel) -> None:
    """Pack 16-bit weights for the CPU where that works, and compute with float32 activations, in memory that is kept
    from step to step.

    16-bit activations would be widened and rounded again around every operation. The embedding table
    stays plain; a tied head shares it.
    """
    if pack_linears(model):
        compute_in_float32(model)
    keep_freed_memory()


def compute_in_float32(model: LayeredModel) -> None:
    """Activations are float32 from now on, whatever the weights are.

    The matrices are made for that already.
    """
    model.activation_dtype = torch.float32
    for module in model.modules():
        if isinstance(module, RMSNorm | ExpertRouter):
            module.weight.data = module.weight.data.float()
