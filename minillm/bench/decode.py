"""`minillm bench decode`: how near to the speed of memory a decode step comes, batch by batch."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from minillm.bench.report import describe_engine, describe_machine, format_machine, make_report
from minillm.bench.roofline import with_unit
from minillm.bench.steady import SteadyDecode, check_fits, pool_tokens
from minillm.bench.target import Costs, Target, compute_dtype
from minillm.frontend.engine import Engine
from minillm.kernels.quantization import dtype_name
from minillm.runner.machine_peaks import Roof, measure_roof

LARGEST_BATCH = {"cpu": 32, "cuda": 256}
STEPS = {"cpu": 32, "cuda": 128}
"""Measured steps per batch size, by kind of device."""
PREFILL_BUDGET = 8192
"""Tokens a step: prefills the batch in few steps, so that its sequences are almost equally long."""
QUICK_BATCHES, QUICK_CONTEXT, QUICK_STEPS = (1, 2), 16, 3


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """Steady decode at one batch size. Seconds, bytes, tokens."""

    batch: int
    context: float
    """Mean over sequences and steps, the new token included."""
    num_steps: int
    step_s: float
    """Median time from the end of one step to the end of the next, all B sequences decoding in both."""
    step_p99_s: float
    tokens_per_s: float
    bytes: float
    """That a step must move: the weights once, and keys and values of all contexts."""
    floor_s: float
    """bytes / measured memory bandwidth: no step can be shorter."""
    bandwidth: float
    """bytes / step_s: what was achieved, bytes per second."""
    mbu: float
    """Memory bandwidth utilisation: floor_s / step_s."""
    flops: float
    """Floating-point operations of a step."""


def default_batches(device_type: str) -> list[int]:
    """1, 2, 4, ... up to what a device of this kind is worth measuring at."""
    return [2**power for power in range(LARGEST_BATCH[device_type].bit_length())]


def summarize(
    batch: int, context: float, seconds: Sequence[float], costs: Costs, memory_bandwidth: float
) -> DecodeResult:
    """What step times come to, beside what the hardware allows."""
    step, contexts = statistics.median(seconds), [context] * batch
    moved = costs.bytes.step(contexts)
    floor = costs.bytes.step_floor(contexts, memory_bandwidth)
    return DecodeResult(
        batch=batch,
        context=context,
        num_steps=len(seconds),
        step_s=step,
        step_p99_s=float(np.percentile(seconds, 99)),
        tokens_per_s=batch / step,
        bytes=moved,
        floor_s=floor,
        bandwidth=moved / step,
        mbu=floor / step,
        flops=costs.flops.decode(contexts),
    )


def run_decode(
    target: Target, batches: Sequence[int] | None, context: int, steps: int | None, quick: bool
) -> dict[str, Any]:
    """Measure, and return the report.

    Args:
        batches, steps: None = what suits the device.
        context: tokens of each prompt.
    Raises:
        ConfigError, ModelError: see Engine. ConfigError also if a batch does not fit the KV pool or the window.
    """
    machine, device = describe_machine(), target.torch_device()
    if quick:
        context, steps = min(context, QUICK_CONTEXT), QUICK_STEPS
    batches = sorted(set(batches or (QUICK_BATCHES if quick else default_batches(device.type))))
    steps = steps or STEPS[device.type]
    budget = max(PREFILL_BUDGET, batches[-1])
    config = target.config(
        kv_tokens=max(pool_tokens(batch, context, steps, budget) for batch in batches),
        max_num_seqs=batches[-1],
        max_num_batched_tokens=budget,
    )
    engine = Engine(config)
    for batch in batches:
        check_fits(engine, batch, context, steps)
    roof = measure_roof(device, compute_dtype(engine.loaded_model), quick)
    costs = Costs.of(engine)
    results = []
    for batch in tqdm(batches, unit="batch"):
        decode = SteadyDecode(engine, batch, context, steps)
        measured = decode.run(steps)
        decode.stop()
        seconds = [step.seconds for step in measured.steps]
        results.append(summarize(batch, measured.mean_context, seconds, costs, roof.memory))
    return make_report(
        machine,
        model=target.model,
        dtype=dtype_name(engine.loaded_model.dtype),
        device=device,
        settings={"context": context, "steps": steps, "quick": quick, "engine": describe_engine(engine)},
        results=results,
        roof=roof,
        weight_bytes=costs.bytes.weights,
        kv_bytes_per_token=costs.bytes.kv_per_token,
    )


def format_table(report: dict[str, Any]) -> str:
    """The report as text: what `minillm bench` prints."""
    roof: Roof = report["roof"]
    lines = [
        format_machine(report["machine"]),
        f"{report['model']} in {report['dtype']}, steady decode, contexts of {report['settings']['context']} tokens "
        f"and up; memory {roof.memory_kind} {with_unit(roof.memory, 'B/s')} measured"
        + (" (quick: means nothing)" if report["settings"]["quick"] else ""),
        "",
        f"{'batch':>6}{'tok/s':>10}{'step ms':>10}{'p99':>10}{'floor ms':>10}{'GB/s':>9}{'MBU':>7}",
    ]
    for row in report["results"]:
        lines.append(
            f"{row.batch:>6}{row.tokens_per_s:>10.1f}{1e3 * row.step_s:>10.3f}{1e3 * row.step_p99_s:>10.3f}"
            f"{1e3 * row.floor_s:>10.3f}{row.bandwidth / 1e9:>9.1f}{row.mbu:>7.1%}"
        )
    return "\n".join(lines)
