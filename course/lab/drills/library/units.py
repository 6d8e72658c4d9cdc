"""Short names for the amounts that drills are made of, and what models and GPUs are by their data sheets."""

from collections.abc import Callable
from types import SimpleNamespace

from course.lab.drills import amounts as a
from course.lab.drills.amounts import Amount
from minillm.model.arithmetic import ModelCost, find_model
from minillm.simulate.cost.hardware import Hardware, find_hardware

Make = Callable[[float], Amount]
Given = SimpleNamespace
"""What a prompt gives: values, by the names in the drill's file."""
Follows = dict[str, Amount]
"""What follows from that, by name."""


def _of(unit: str) -> Make:
    return lambda value: Amount(value, unit)


seconds, tokens, rate, token_rate = _of(a.SECONDS), _of(a.TOKENS), _of(a.RATE), _of(a.TOKEN_RATE)
size, flops, ratio, money, count = _of(a.BYTES), _of(a.FLOPS), _of(a.RATIO), _of(a.MONEY), _of(a.COUNT)
model, gpu = find_model, find_hardware

DTYPE = "bfloat16"


def step_floor(shape: ModelCost, on: Hardware, gpus: int) -> float:
    """Seconds that reading all weights once takes at least."""
    return shape.read_bytes(DTYPE) / (gpus * on.bandwidth)


def prefill_floor(shape: ModelCost, on: Hardware, gpus: int, prompt: float) -> float:
    """Seconds that the matrix products of a prompt take at least, attention left out."""
    return 2 * shape.layer_params * prompt / (gpus * on.peak_flops(DTYPE))


def kv_room(shape: ModelCost, on: Hardware, gpus: int) -> float:
    """Bytes that the weights leave."""
    return gpus * on.memory - shape.stored_bytes(DTYPE)
