# feedback: no context only
import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """To try your functions with; the checker brings its own."""

    parameters: float
    weight_bits: float
    kv_bytes: float
    attention_flops: float


@dataclass(frozen=True)
class Machine:
    flops_per_s: float
    bytes_per_s: float


def step_bytes(model, batch, context):
    return model.parameters * model.weight_bits / 8 + batch * context * model.kv_bytes


def step_flops(model, batch, context):
    return batch * (2 * model.parameters + context * model.attention_flops)


def step_floor(model, machine, batch, context):
    reading = step_bytes(model, batch, context) / machine.bytes_per_s
    multiplying = step_flops(model, batch, context) / machine.flops_per_s
    return max(reading, multiplying)


def intensity(model, batch, context):
    return step_flops(model, batch, context) / step_bytes(model, batch, context)


def knee(model, machine, context):
    read_weights = step_bytes(model, 0, context) / machine.bytes_per_s
    read_kv = context * model.kv_bytes / machine.bytes_per_s
    multiply = step_flops(model, 1, context) / machine.flops_per_s
    return math.ceil(machine.flops_per_s / machine.bytes_per_s)


def gain(model, machine, batch, context, bits):
    fewer = replace(model, weight_bits=bits)
    return step_floor(model, machine, batch, context) / step_floor(fewer, machine, batch, context)
