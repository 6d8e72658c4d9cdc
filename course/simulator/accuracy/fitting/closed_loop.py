"""The closed loop in C++ (closed_loop.cpp), compiled when it is first used, and its arguments."""

import ctypes
import functools
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from course.simulator.accuracy.fitting.rows import PlanRow
from course.simulator.cost.roofline import Constants, StepTimeModel
from course.simulator.deployment import Deployment
from course.simulator.errors import SimulationError

MOST_WAYS = 3
"""Ways of an all-reduce."""
# In the order of the structs in closed_loop.cpp.
PRICES = (
    *("token", "logit", "half_tokens", "weights", "idle", "serial"),
    *("pair", "prompt_pair", "context"),
    *(f"reduce_{part}_{way}" for part in ("latency", "token") for way in range(MOST_WAYS)),
    *("exchange", "exchange_row"),
    *("gaps", "prefill", "host", "prefill_host", "step", "request"),
    *("skip", "experts", "chosen", "expert_ranks", "expert_row"),
    *("dp", "ranks"),
    *("state_tokens", "window_tokens", "window_share", "picked", "index_read", "index_scored"),
)
LOAD = (
    *("open", "waves", "isl", "osl", "shortest_prompt", "shortest_answer", "longest_answer"),
    *("slots", "budget", "kv_tokens", "mixes", "chunks", "fresh", "waits", "compile", "client", "tokenize"),
    *("look_every", "hold"),
    *("first_wave",),
    *("prefill_fixed", "prefill_prompt", "prefill_most", "prefill_ranks", "transfer_token"),
)
FAR = 1e9
"""Tokens of a context that is long beyond any limit."""


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled loop.

    Raises:
        SimulationError: there is no C++ compiler, or it fails.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise SimulationError("fitting plays its loops in C++: install g++ or clang++")
    source = Path(__file__).with_name("closed_loop.cpp")
    target = Path(tempfile.mkdtemp(prefix="closed-loop-")) / "closed_loop.so"
    command = [compiler, "-O2", "-march=native", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SimulationError(f"{source.name} does not compile: {done.stderr.strip()[:500]}")
    loaded = ctypes.CDLL(str(target))
    loaded.price_of_prompts.restype = ctypes.c_double
    return loaded


def prices(deployment: Deployment, constants: Constants) -> NDArray[np.float64]:
    """A step's coefficients, in the order of PRICES."""
    model, placement = deployment.model, deployment.placement
    step = StepTimeModel(model, deployment.profile.hardware, placement, constants)
    per_token = model.kv_bytes_per_token(placement.kv_dtype)
    ranks = 1.0
    if placement.dp > 1:
        attention = model.attention_params / model.layer_params
        ranks = placement.dp * attention + (1 + (placement.dp - 1) * deployment.others_load) * (1 - attention)
    experts = step.experts
    values = {
        "token": step.token_s,
        "logit": step.logit_s,
        "half_tokens": constants.half_tokens,
        "weights": step.weights_s,
        "idle": step.idle_s,
        "serial": constants.serial,
        "pair": step.pair_s,
        "prompt_pair": step.prompt_pair_s,
        "context": step.context_s,
        "exchange": step.exchange_s,
        "exchange_row": step.exchange_row_s,
        "gaps": step.gaps_s,
        "prefill": step.prefill_s,
        "host": step.host_s,
        "prefill_host": constants.prefill_host_s,
        "step": constants.step_s,
        "request": constants.request_s,
        "skip": step.skip,
        "experts": experts.num_experts if experts else 0,
        "chosen": experts.experts_per_token if experts else 0,
        "expert_ranks": experts.ranks if experts else 1,
        "expert_row": step.expert_row_s,
        "dp": placement.dp,
        "ranks": ranks,
        "state_tokens": 2 * model.fixed_bytes / per_token,
        "window_tokens": model.window,
        "window_share": model.layers / model.growing_layers - 1 if model.window else 0.0,
        "picked": model.picked_tokens,
        "index_read": model.seen(FAR, 0, placement.kv_dtype) / FAR if model.picked_tokens else 0.0,
        "index_scored": model.index_share,
    }
    for way in range(MOST_WAYS):
        line = step.reduces[min(way, len(step.reduces) - 1)]
        values |= {f"reduce_latency_{way}": line.latency_s, f"reduce_token_{way}": line.token_s}
    return np.array([values[name] for name in PRICES])


def play(rows: list[PlanRow], constants: list[Constants], client_s: list[float]) -> NDArray[np.float64]:
    """Mean TTFT and TPOT of each row, seconds: an array of (rows, 2)."""
    arguments = np.zeros((len(rows), len(LOAD) + len(PRICES)))
    for index, (row, of_row, client) in enumerate(zip(rows, constants, client_s)):
        arguments[index, len(LOAD) :] = prices(row.deployment, of_row)
        late = row.plan.compiles * of_row.compile_s + row.plan.is_cold * of_row.cold_s
        load = {**row.load, "client": client, "tokenize": of_row.tokenize_s * row.plan.sharers, "compile": late}
        if row.prefill is not None:
            load |= _pool(row, row.prefill, of_row)
        arguments[index, : len(LOAD)] = [load.get(name, 0.0) for name in LOAD]
    means = np.zeros((len(rows), 2))
    library().play(_pointer(arguments), ctypes.c_int(len(rows)), _pointer(means))
    return means


def _pool(row: PlanRow, prefill: Deployment, constants: Constants) -> dict[str, float]:
    """A prefill pool's batches: what they take alone, and for each prompt; and how many prompts fit."""
    of_step, isl = prices(prefill, constants), row.plan.isl
    most = max(row.plan.prefill_budget // isl, 1)

    def seconds(prompts: float) -> float:
        return float(library().price_of_prompts(_pointer(of_step), ctypes.c_double(prompts), ctypes.c_double(isl)))

    one = seconds(1)
    each = (seconds(most) - one) / (most - 1) if most > 1 else one
    return {"prefill_fixed": max(one - each, 0.0), "prefill_prompt": each, "prefill_most": most}


def _pointer(array: NDArray[np.float64]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous and not math.isnan(array.sum()), "coefficients are numbers"
    return array.ctypes.data_as(ctypes.c_void_p)
