"""`minillm bench` and `minillm bench throughput`: engines beside each other, and what is made of the numbers."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from course.measure.contest import Minillm, Peer, TimedRun
from course.measure.peers.make import check_installed, make_baselines
from course.measure.workloads import BY_NAME, BenchmarkWorkload, make_workloads, ragged_workload
from minillm.bench.machine_peaks import Bandwidth, measure_bandwidth
from minillm.bench.report import BenchmarkResult
from minillm.bench.target import LARGEST_BLOCK, Costs, Target
from minillm.bench.turns import in_turns
from minillm.frontend.engine import Engine
from minillm.kernels.quantization import dtype_name
from minillm.model.arithmetic import ModelBytes
from minillm.model.loader import load_model
from minillm.observe.percentiles import percentile
from minillm.observe.spread import Spread
from minillm.observe.tables import text_table
from minillm.policies.config import EngineConfig

LoadPeers = Callable[[EngineConfig], list[Peer]]
"""Makes the engines that minillm is compared with, on the same weights and with the limits that it has."""

COLUMNS = ("", "tok/s", "seconds", "TTFT p50", "ITL p50", "ITL p99", "floor", "speedup")
"""Columns of the table of engines; latencies in milliseconds."""


REQUESTS = {"cpu": 32, "cuda": 256}
SCALE = {"cpu": 0.25, "cuda": 1.0}
"""What lengths are multiplied by: a CPU would take the better part of an hour over the whole workload."""
GPU_TOKEN_BUDGET = 16_384
"""Tokens a step on a GPU: nano-vllm's default. A CPU keeps the engine's."""
MEMORY_SHARE = 0.4
"""Most of a GPU's free memory that one KV pool gets when two engines are on it."""
PADDED = "hf_generate"
"""Baselines whose names begin so pad to the longest request: over ragged lengths, that is another benchmark."""


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine on one workload. Times in seconds, rates in output tokens per second."""

    peer: str
    """Its name."""
    seconds: Spread
    tokens_per_s: Spread
    ttft_p50: float
    """Over all requests of all repeats; so for the inter-token latencies."""
    itl_p50: float | None
    """None where every request got one token."""
    itl_p99: float | None
    tokens_per_delivery: float
    """Above 1, some deliveries carried several tokens, and ITL is not of tokens."""
    speedups: dict[str, Spread]
    """Seconds of each baseline over this one's, paired by repeat. Empty for a baseline."""
    itl_ratios: dict[str, Spread]
    """This one's median inter-token latency over each baseline's, the same way. None of a baseline that has no gaps
    in the same repeats, or where this one has none."""
    percent_of_floor: float | None
    """100 x (seconds of reading a decode step needs) / median ITL. None where batches change shape."""


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """All engines on one workload."""

    name: str
    title: str
    num_requests: int
    num_output_tokens: int
    reference: str | None
    """The fastest of the baselines."""
    floor_itl: float | None
    """Seconds of reading in an average decode step: no engine's ITL can be shorter."""
    peers: list[EngineResult]


def measure(engines: Sequence[Peer], workload: BenchmarkWorkload, repeats: int) -> dict[str, list[TimedRun]]:
    """Warm all engines up, then `repeats` rounds in which each runs once."""
    for engine in engines:
        engine.warm_up(workload)
    runs = {engine.name: partial(engine.run, workload) for engine in engines}
    return in_turns(runs, repeats, warm_up=False, label=workload.name)


def summarize(
    workload: BenchmarkWorkload,
    runs: dict[str, list[TimedRun]],
    baselines: Sequence[str],
    bandwidth: Bandwidth,
    size: ModelBytes,
) -> WorkloadResult:
    """Turn runs into medians, speedups over the `baselines`, and shares of the floor."""
    floor = size.step_floor(workload.mean_decode_contexts, bandwidth.read) if workload.constant_batch else None
    seconds = {name: [run.seconds for run in own] for name, own in runs.items()}
    results = []
    for name, own in runs.items():
        gaps = [gap for run in own for gap in run.itl]
        p50 = percentile(gaps, 50) if gaps else None
        others = [] if name in baselines else baselines
        result = EngineResult(
            peer=name,
            seconds=Spread.of(seconds[name]),
            tokens_per_s=Spread.of([run.num_tokens / run.seconds for run in own]),
            ttft_p50=percentile([ttft for run in own for ttft in run.ttft], 50),
            itl_p50=p50,
            itl_p99=percentile(gaps, 99) if gaps else None,
            tokens_per_delivery=statistics.fmean(run.num_tokens / (len(run.ttft) + len(run.itl)) for run in own),
            speedups={other: Spread.of_ratios(seconds[other], seconds[name]) for other in others},
            itl_ratios={other: ratio for other in others if (ratio := itl_ratio(own, runs[other]))},
            percent_of_floor=100 * floor / p50 if floor and p50 else None,
        )
        results.append(result)
    return WorkloadResult(
        name=workload.name,
        title=workload.title,
        num_requests=len(workload.prompts),
        num_output_tokens=workload.num_output_tokens,
        reference=min(baselines, key=lambda name: percentile(seconds[name], 50), default=None),
        floor_itl=floor,
        peers=results,
    )


def itl_ratio(own: Sequence[TimedRun], others: Sequence[TimedRun]) -> Spread | None:
    """Ratio of median inter-token latencies over the repeats in which both have gaps. None where there is none: each
    answer had one token, or came in one piece.
    """
    both = [(run, other) for run, other in zip(own, others, strict=True) if run.itl and other.itl]
    medians = [(percentile(run.itl, 50), percentile(other.itl, 50)) for run, other in both]
    return Spread.of_ratios(*zip(*medians)) if medians else None


def run(
    target: Target, quick: bool, load_peers: LoadPeers | None, names: Sequence[str] | None, repeats: int
) -> BenchmarkResult:
    """Load minillm and its peers, and measure each on every workload.

    Args:
        load_peers: makes what it is compared with; None = it runs alone.
        names: workloads; None = all but those of BY_NAME.
    Raises:
        BenchmarkError: an engine cannot run this model, or did other work than it was given.
        ConfigError, ModelError: see Engine.
    """
    bandwidth = measure_bandwidth(device=target.torch_device(), quick=quick)  # while there is memory for it
    minillm = Minillm(**target.config().model_dump(exclude_unset=True))
    engine = minillm.llm.engine
    assert engine.vocab_size is not None
    workloads = make_workloads(engine.vocab_size, quick=quick)
    chosen = [each for each in workloads if (each.name in names if names else each.name not in BY_NAME)]
    return compete(minillm, engine, peers_of(engine, load_peers), chosen, repeats, quick, bandwidth)


def run_throughput(
    target: Target,
    quick: bool,
    load_peers: LoadPeers | None,
    requests: int | None,
    scale: float | None,
    seed: int,
    repeats: int,
) -> BenchmarkResult:
    """Measure. Engines take turns within every repeat.

    Args:
        load_peers: as in `run`.
        requests, scale: None = what suits the device.
    Raises:
        BenchmarkError: an engine did not emit what was asked for.
        ConfigError, ModelError: see Engine.
    """
    device = target.torch_device()
    requests = requests or (4 if quick else REQUESTS[device.type])
    scale = scale or (0.02 if quick else SCALE[device.type])
    workload = ragged_workload(target.model_config().vocab_size, requests, seed, scale)
    bandwidth = measure_bandwidth(device=device, quick=quick)
    minillm = load_minillm(target, workload, device, alone=load_peers is None)
    engine = minillm.llm.engine
    peers = [each for each in peers_of(engine, load_peers) if not each.name.startswith(PADDED)]
    measured = compete(minillm, engine, peers, [workload], repeats, quick, bandwidth)
    return replace(measured, settings={**measured.settings, "requests": requests, "scale": scale, "seed": seed})


def peers_named(names: Sequence[str] | None) -> LoadPeers | None:
    """The engines that `--compare` names, made when minillm is loaded; None: it is measured alone.

    Raises:
        MissingBaselineError: one is not installed; says how to get it.
    """
    if not names:
        return None
    check_installed(names)  # before anything is loaded, not minutes later
    return partial(make_baselines, names)


def peers_of(engine: Engine, load_peers: LoadPeers | None) -> list[Peer]:
    """What it is compared with, under the engine's configuration and what `auto` came to there."""
    if load_peers is None:
        return []
    model = engine.loaded_model
    in_force = engine.config.replace(
        dtype=dtype_name(model.dtype),
        device=model.device.type,
        num_kv_blocks=engine.runner.num_kv_blocks,
        kv_cache_memory_gb=None,
        block_size=engine.runner.block_size,
    )
    return load_peers(in_force)


def load_minillm(target: Target, workload: BenchmarkWorkload, device: torch.device, alone: bool) -> Minillm:
    """minillm, with a slot for every request on a GPU, and its default configuration on a CPU."""
    chosen: dict[str, Any] = {}
    kv_tokens = None
    if device.type == "cuda":
        slots = max(len(workload.prompts), 1)
        chosen = {"max_num_seqs": slots, "max_num_batched_tokens": max(GPU_TOKEN_BUDGET, slots)}
        needed = sum(map(len, workload.prompts)) + workload.num_output_tokens + slots * LARGEST_BLOCK
        kv_tokens = None if alone else needed
    config = target.config(kv_tokens=kv_tokens, **chosen)
    loaded = load_model(config)
    if not alone and device.type == "cuda" and config.kv_cache_memory_gb is not None:
        share = MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / 1e9
        config = config.replace(kv_cache_memory_gb=min(config.kv_cache_memory_gb, share))
    return Minillm(loaded=loaded, **config.model_dump(exclude_unset=True))


def compete(
    own: Peer,
    engine: Engine,
    baselines: Sequence[Peer],
    workloads: Sequence[BenchmarkWorkload],
    repeats: int,
    quick: bool,
    bandwidth: Bandwidth,
) -> BenchmarkResult:
    """Measure `own` and the baselines on every workload. They take turns within every repeat.

    Args:
        engine: minillm's, which is loaded, and told among the settings.
        bandwidth: the memory's, measured before the KV pool took what was free.
    """
    repeats = 1 if quick else repeats
    costs = Costs.of(engine).bytes
    engines, names = [own, *baselines], [each.name for each in baselines]
    results = [
        summarize(workload, measure(engines, workload, repeats), names, bandwidth, costs) for workload in workloads
    ]
    memory = f"memory reads {bandwidth.read / 1e9:.1f} GB/s, copies {bandwidth.copy / 1e9:.1f} GB/s"
    return BenchmarkResult.on(
        engine,
        results,
        {"repeats": repeats},
        "\n".join([memory, *(f"\n{engines_table(result)}" for result in results)]),
        bandwidth=bandwidth,
        peers={each.name: each.describe() for each in engines},
        weight_bytes=costs.weights,
        kv_bytes_per_token=costs.kv_per_token,
    )


def engines_table(result: WorkloadResult) -> str:
    """The workload's title, and a row for each engine: milliseconds, and the spread over repeats in brackets. TTFT
    counts from when all requests are handed over, which is at once."""
    floor = f"; memory floor {1e3 * result.floor_itl:.1f} ms a step" if result.floor_itl else ""
    rows = [_cells(each, result.reference) for each in result.peers]
    return f"{result.title}{floor}; TTFT from when they are sent\n{text_table(COLUMNS, rows)}"


def _cells(result: EngineResult, reference: str | None) -> list[str]:
    speedup = "1 (reference)" if result.peer == reference else ""
    if reference in result.speedups:
        speedup = result.speedups[reference].text(unit="x")
    return [
        result.peer,
        f"{result.tokens_per_s.median:.1f}",
        result.seconds.text(),
        f"{1e3 * result.ttft_p50:.0f}",
        *("" if gap is None else f"{1e3 * gap:.1f}" for gap in (result.itl_p50, result.itl_p99)),
        "" if result.percent_of_floor is None else f"{result.percent_of_floor:.0f}%",
        speedup,
    ]
