"""`minillm bench decode`: how near to the speed of memory a decode step comes, batch by batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

from minillm.bench.machine_peaks import measure_peaks
from minillm.bench.options import Sample, Steps
from minillm.bench.report import BenchmarkResult, with_unit
from minillm.bench.steady import GREEDY, SteadyDecode, check_fits, pool_tokens
from minillm.bench.target import Costs, Target, compute_dtype
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.observe.percentiles import percentile
from minillm.observe.tables import text_table
from minillm.policies.config import parse_fields

LARGEST_BATCH = {"cpu": 32, "cuda": 256}
STEPS = {"cpu": 32, "cuda": 128}
"""Measured steps per batch size, by kind of device."""
PREFILL_BUDGET = 8192
"""Tokens a step: prefills the batch in few steps, so that its sequences are almost equally long."""
QUICK_BATCHES, QUICK_CONTEXT, QUICK_STEPS = (1, 2), 16, 3
SHORTEST_GAP_S = 10e-6
"""Shorter gaps are no idleness: in a CUDA graph, too, a kernel begins a microsecond or two after the one before has
ended, and waits for nothing."""
COLUMNS = ("batch", "tok/s", "step ms", "p99", "floor ms", "GB/s", "MBU")


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
    """Memory bandwidth utilization: floor_s / step_s."""


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A kernel or a copy, as a GPU ran it once; seconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class KernelCost:
    """What the runs of one kernel take of a step."""

    name: str
    launches: float
    us: float
    """Microseconds of a step, all launches together."""


def default_batches(device_type: str) -> list[int]:
    """1, 2, 4, ... up to what a device of this kind is worth measuring at."""
    return [2**power for power in range(LARGEST_BATCH[device_type].bit_length())]


def summarize(
    batch: int, context: float, seconds: Sequence[float], costs: Costs, memory_bandwidth: float
) -> DecodeResult:
    """What step times come to, beside what the hardware allows."""
    step = percentile(seconds, 50)
    contexts = [context] * batch
    moved = costs.bytes.step(contexts)
    floor = costs.bytes.step_floor(contexts, memory_bandwidth)
    return DecodeResult(
        batch=batch,
        context=context,
        num_steps=len(seconds),
        step_s=step,
        step_p99_s=percentile(seconds, 99),
        tokens_per_s=batch / step,
        bytes=moved,
        floor_s=floor,
        bandwidth=moved / step,
        mbu=floor / step,
    )


def run(
    target: Target, quick: bool, batches: Sequence[int] | None, context: int, steps: Steps, sample: Sample, idle: bool
) -> BenchmarkResult:
    """Measure.

    Args:
        batches, steps: None = what suits the device.
        context: tokens of each prompt.
        sample: FIELD=VALUE of SamplingParams; None = greedy.
        idle: profile all batches once more, after the last one is timed: a profiler slows steps.
    Raises:
        ConfigError, ModelError: see Engine. ConfigError also if a batch does not fit the KV pool or the window, or
            there is no GPU that could be idle.
        InvalidSamplingParamsError: a field of `sample` is unknown, or out of range.
    """
    device = target.torch_device()
    sampling = SamplingParams(**parse_fields(sample, "--sample")) if sample else GREEDY
    if idle and device.type != "cuda":
        raise ConfigError("--idle watches a GPU: on a CPU, Python and the model take turns on one processor")
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
    peaks = measure_peaks(device, compute_dtype(engine.loaded_model), quick)
    costs = Costs.of(engine)
    results = []
    for batch in tqdm(batches, unit="batch"):
        decode = SteadyDecode(engine, batch, context, steps, sampling)
        measured = decode.run(steps)
        decode.stop()
        seconds = [step.seconds for step in measured.steps]
        results.append(summarize(batch, measured.mean_context, seconds, costs, peaks.memory))
    idle_shares, kernels = {}, {}
    for batch in batches if idle else ():
        decode = SteadyDecode(engine, batch, context, steps, sampling)
        runs = kernel_runs(decode, steps)
        idle_shares[batch], kernels[batch] = idle_share(runs), kernel_costs(runs, steps + 1)  # and one that leads in
        decode.stop()
    shares = "".join(
        f"\nbatch {batch}: idle {share:.1%} of the time, {sum(each.launches for each in kernels[batch]):.0f} launches "
        "a step"
        for batch, share in idle_shares.items()
    )
    return BenchmarkResult.on(
        engine,
        results,
        {"context": context, "steps": steps, "sampling": sampling.model_dump(exclude_unset=True)},
        f"steady decode, contexts of {context} tokens and up; memory {peaks.memory_kind} "
        f"{with_unit(peaks.memory, 'B/s')} measured\n\n{text_table(COLUMNS, map(_cells, results))}{shares}",
        roof=peaks,
        idle=idle_shares,
        kernels=kernels,
        weight_bytes=costs.bytes.weights,
        kv_bytes_per_token=costs.bytes.kv_per_token,
    )


def _cells(row: DecodeResult) -> list[str]:
    milliseconds = [f"{1e3 * seconds:.3f}" for seconds in (row.step_s, row.step_p99_s, row.floor_s)]
    return [f"{row.batch}", f"{row.tokens_per_s:.1f}", *milliseconds, f"{row.bandwidth / 1e9:.1f}", f"{row.mbu:.1%}"]


def idle_share(runs: Iterable[KernelRun]) -> float:
    """The share of the time from first start to last end in which nothing ran, short gaps left out.

    Args:
        runs: at least one; they may overlap, in any order.
    """
    first, *rest = sorted(runs, key=lambda run: run.start)
    idle, reached = 0.0, first.end
    for run in rest:
        if run.start - reached >= SHORTEST_GAP_S:
            idle += run.start - reached
        reached = max(reached, run.end)
    return idle / (reached - first.start)


def kernel_costs(runs: Iterable[KernelRun], num_steps: int) -> list[KernelCost]:
    """What each kernel takes of a step, the most expensive first."""
    seconds: dict[str, list[float]] = {}
    for run in runs:
        seconds.setdefault(run.name, []).append(run.end - run.start)
    costs = [
        KernelCost(name, round(len(each) / num_steps, 2), round(1e6 * sum(each) / num_steps, 2))
        for name, each in seconds.items()
    ]
    return sorted(costs, key=lambda cost: -cost.us)


def kernel_runs(decode: SteadyDecode, num_steps: int) -> list[KernelRun]:
    """Each kernel and copy that the GPU runs in some steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        decode.run(num_steps)
    return [
        KernelRun(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profile.events()
        if event.device_type.name == "CUDA"
    ]
