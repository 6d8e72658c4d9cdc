"""What the formulas of drills may use besides the prompt's numbers and each other: models, GPUs, and what follows."""

from collections.abc import Callable, Mapping
from typing import Any

from course.drills.amounts import Amount
from course.simulator.cost.experts import ExpertRanks
from course.simulator.cost.hardware import Hardware, find_hardware
from course.simulator.cost.lora import Lora
from course.simulator.cost.models import find_model
from minillm.model.arithmetic import ModelCost

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


def accepted(alpha: float, k: float) -> float:
    """Tokens a verification brings: (1 - alpha^(k+1)) / (1 - alpha), each draft accepted with probability alpha."""
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def break_even(wanted: float, k: float) -> float:
    """The acceptance, in hundredths, from which on a verification brings as many tokens as wanted; at most 0.99."""
    return next((a / 100 for a in range(99) if accepted(a / 100, k) >= wanted), 0.99)


_BUILTINS = (sum, range, next, int, float, round, max, min)
_KNOWN: dict[str, Callable[..., Any]] = {
    "model": find_model,
    "gpu": find_hardware,
    "ExpertRanks": ExpertRanks,
    "Lora": Lora,
    **{function.__name__: function for function in (step_floor, prefill_floor, kv_room, accepted, break_even)},
    **{function.__name__: function for function in _BUILTINS},
}


def derived(given: Mapping[str, Amount], formulas: Mapping[str, str | list[Any]]) -> dict[str, Amount]:
    """What follows from the given numbers, formula by formula; each may use those before it.

    Args:
        formulas: a unit, a Python expression and perhaps a tolerance; without a unit it is a step on the way.
    """
    values: dict[str, Any] = {"__builtins__": {}, **_KNOWN, **{name: amount.value for name, amount in given.items()}}
    found = {}
    for name, written in formulas.items():
        unit, formula, *tolerance = [None, written] if isinstance(written, str) else written
        values[name] = eval(formula, values)
        if unit is not None:
            found[name] = Amount(values[name], unit, *tolerance)
    return found
