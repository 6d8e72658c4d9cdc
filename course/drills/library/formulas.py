"""What the formulas of drills may use besides the prompt's numbers and each other: models, GPUs, and what follows."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from course.drills.amounts import Amount
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cost.experts import ExpertRanks
from course.simulator.cost.hardware import Hardware, find_hardware
from course.simulator.cost.lora import Lora
from course.simulator.cost.models import PricedModel, find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import typical_constants, typical_profile
from course.simulator.cost.roofline import StepTimeModel, StepWork
from course.simulator.cost.sizes import ModelCost
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload
from minillm.core.errors import MinillmError

DTYPE = "bfloat16"


class FormulaError(MinillmError):
    """An expression of a drill's file can't be computed."""


def step_floor(shape: ModelCost, on: Hardware, gpus: int) -> float:
    """Seconds that reading all weights once takes at least."""
    return shape.read_bytes(DTYPE) / (gpus * on.bandwidth)


def card_read(shape: ModelCost, dtype: str, tokens: float, gpus: float) -> float:
    """Bytes of a mixture's weights that each GPU reads in a step of so many tokens: its share of the experts that they
    choose, and all other weights, which data parallel attention copies to every GPU."""
    everything = shape.read_bytes(dtype, math.inf)
    copied = everything - (everything - shape.read_bytes(dtype)) / shape.skip
    return copied + (shape.read_bytes(dtype, tokens) - copied) / gpus


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


def step_time(
    shape: PricedModel,
    on: Hardware,
    gpus: int,
    batch: float,
    context: float = 0,
    prompt: float = 0,
    weights: str = DTYPE,
    kv: str = DTYPE,
) -> float:
    """Seconds of one step, as the simulator prices it with the constants of a typical serving stack.

    Args:
        batch: requests that each get one token; may be a fraction, on average.
        context: tokens that each of them has behind it.
        prompt: further tokens of a prompt that are prefilled in the same step; 0 = none.
        weights, kv: the dtypes of either: bfloat16, fp8, int8, int4.
    """
    work = StepWork.of_decodes(batch, context)
    if prompt:
        work.add(prompt, 1, prompt * (prompt + 1) / 2, prompt, is_prompt=True)
    return StepTimeModel(shape, on, Placement(int(gpus), weights, kv), typical_constants(on)).price(work).total


@dataclass(frozen=True)
class Simulated:
    """What a short simulated run comes to. Seconds, but for the last."""

    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    """Between two tokens, over all gaps of all answers; as for the next."""
    itl_p99: float
    e2e_p50: float
    rate: float
    """Output tokens a second, over the whole run."""


@functools.cache
def simulated(
    model: str,
    card: str,
    gpus: int,
    qps: float,
    prompt: float,
    output: float,
    replicas: int = 1,
    requests: int = 120,
    **engine: Any,
) -> Simulated:
    """A fleet under Poisson traffic with these lengths, on this course's scheduler. The same call again costs nothing.

    Args:
        model, card: as find_model and find_hardware name them.
        gpus: of each replica, tensor-parallel.
        qps: requests a second, for the whole fleet.
        prompt, output: tokens of each request.
        engine: fields of EngineConfig, such as max_num_seqs=64, and of Deployment.of, such as weight_dtype="fp8".
    """
    on = Deployment.of(model, typical_profile(find_hardware(card)), tp=int(gpus), **engine).without_prefix_lookups()
    traffic = Independent(prompt=Fixed(tokens=int(prompt)), output=Fixed(tokens=int(output)))
    workload = make_workload(traffic, Poisson(rate=qps), num_requests=requests, seed=0).anonymous()
    run = simulate(workload, ClusterConfig(replicas=int(replicas), sample_every_s=None), on.fast_engine)
    metrics = run.summary().metrics
    ttft, itl, e2e = metrics["ttft"], metrics["itl"], metrics["e2e"]
    rate = sum(record.num_tokens for record in run.records) / run.duration
    return Simulated(ttft.p50, ttft.p99, itl.p50, itl.p99, e2e.p50, rate)


_BUILTINS = (sum, range, next, int, float, round, max, min, abs, all, any, bool)
_OWN = (step_floor, card_read, prefill_floor, kv_room, accepted, break_even, step_time, simulated)
_KNOWN: dict[str, Any] = {
    "__builtins__": {},
    "model": find_model,
    "gpu": find_hardware,
    "ExpertRanks": ExpertRanks,
    "Lora": Lora,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
    **{function.__name__: function for function in (*_OWN, *_BUILTINS)},
}


def evaluate(formula: str, names: Mapping[str, Any]) -> Any:
    """The value of a Python expression over these names and the functions of this file.

    Raises:
        FormulaError: it can't be computed; the words say which and why.
    """
    try:
        return eval(_compiled(formula), {**_KNOWN, **names})
    except Exception as error:  # an author's expression may raise anything
        raise FormulaError(f"{formula!r} can't be computed: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=4096)
def _compiled(formula: str) -> CodeType:
    """A drill's formulas are evaluated for each draw, and most of that was compiling them."""
    return compile(formula.strip(), "<string>", "eval")


def derived(
    names: Mapping[str, Any], formulas: Mapping[str, str | list[Any]]
) -> tuple[dict[str, Amount], dict[str, Any]]:
    """What follows from values by name, formula by formula; each may use those before it.

    Args:
        formulas: a unit, a Python expression and perhaps a tolerance; without a unit it is a step on the way.
    Returns:
        The amounts, and all values by name: those that came in, amounts and steps.
    """
    values, found = dict(names), {}
    for name, written in formulas.items():
        unit, formula, *tolerance = [None, written] if isinstance(written, str) else written
        values[name] = evaluate(formula, values)
        if unit is not None:
            found[name] = Amount(values[name], unit, *tolerance)
    return found, values
