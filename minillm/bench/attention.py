"""`minillm bench attention`: backends against each other and the roof, one layer's attention and nothing else."""

import functools
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from minillm.bench.attention_shapes import HeadShape, PreparedAttention, Shape, make_cache, make_metadata
from minillm.bench.peers import BenchmarkError
from minillm.bench.report import describe_machine, format_machine, make_report
from minillm.bench.roofline import with_unit
from minillm.bench.target import Target
from minillm.core.errors import ConfigError
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.select import BACKENDS, Demands, select_backend, survey
from minillm.kernels.quantization import dtype_name
from minillm.kernels.timing import seconds_per_call
from minillm.model.loader import choose_dtype
from minillm.runner.machine_peaks import QUICK_REPEATS, QUICK_SIZE, Roof, measure_matmul, measure_roof

BATCHES = {"cpu": (1, 8, 32), "cuda": (1, 8, 32, 128)}
CONTEXTS = {"cpu": (512, 2048), "cuda": (1024, 4096)}
PROMPTS = {"cpu": (512, 2048), "cuda": (1024, 4096)}
CACHED = {"cpu": 1024, "cuda": 4096}
CALLS = {"cpu": 4, "cuda": 20}
"""Calls in one timing, by kind of device."""
ROTATION_BYTES = 512_000_000
"""Caches take turns until this much lies between two uses of one: more than any processor's own cache holds."""
MOST_CACHES = 16
EAGER_SCORES = 1 << 28
"""Eager attention holds a whole score matrix. Above this many entries (1 GB in float32) it is left out."""
TOLERANCE = 0.05
"""Most that two backends may differ, relative to the largest output: rounding in bfloat16 is far below."""


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """One backend on one shape, one layer. Seconds, bytes, FLOP."""

    shape: Shape
    backend: str
    call_s: float
    """Median over the repeats. On a GPU: of its own time, launches not counted."""
    call_low_s: float
    call_high_s: float
    kv_bytes: int
    bandwidth: float
    """kv_bytes / call_s."""
    flops: float
    flops_per_s: float
    share_of_roof: float
    """Decode: of the measured memory bandwidth. Prefill and extend: of the measured matrix product."""
    time_over_best: float
    """1 for the fastest backend on this shape."""
    difference: float
    """Largest deviation from the first backend's output, relative to the largest output."""


def make_shapes(
    batches: Sequence[int], contexts: Sequence[int], prompts: Sequence[int], cached: Sequence[int]
) -> list[Shape]:
    """Decodes, prefills, and prefills that extend a cached context (`cached` tokens)."""
    decodes = [Shape("decode", batch, 1, context - 1) for context in contexts for batch in batches]
    prefills = [Shape("prefill", 1, prompt, 0) for prompt in prompts]
    return decodes + prefills + [Shape("extend", 1, prompt, before) for before in cached for prompt in prompts]


def usable(name: str, shape: Shape, heads: HeadShape) -> bool:
    """Whether a backend is to be measured on a shape: eager would need too much memory for large ones."""
    return name != "eager" or shape.num_scores * heads.num_heads <= EAGER_SCORES


def measure_shape(
    shape: Shape,
    heads: HeadShape,
    backends: dict[str, type[AttentionBackend]],
    *,
    block_size: int,
    dtype: torch.dtype,
    query_dtype: torch.dtype,
    device: torch.device,
    repeats: int,
    calls: int,
    rotation_bytes: int,
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds per call by backend, one per repeat, and each one's difference from the first.

    Raises:
        BenchmarkError: a backend computes something else.
    """
    metadata = make_metadata(shape, block_size, device)
    generator = torch.Generator(device).manual_seed(1)
    tokens = shape.batch * shape.new

    size = (tokens, heads.num_heads, heads.head_dim)
    query = torch.randn(size, generator=generator, device=device, dtype=query_dtype)
    num_caches = -(-rotation_bytes // shape.kv_bytes(heads, dtype.itemsize))
    num_caches = min(max(num_caches, 2), MOST_CACHES)
    caches = [make_cache(shape, heads, block_size, dtype, device, seed) for seed in range(num_caches)]
    prepared = {name: PreparedAttention(backend, metadata, query) for name, backend in backends.items()}
    differences = compare_outputs({name: attention(caches[0]) for name, attention in prepared.items()}, shape)
    seconds: dict[str, list[float]] = {name: [] for name in prepared}
    rotation = itertools.cycle(caches)
    for _ in range(repeats):
        for name, attention in prepared.items():
            work = functools.partial(_attend_next, attention, rotation)
            seconds[name].append(seconds_per_call(work, device, calls))
    return seconds, differences


def _attend_next(attention: PreparedAttention, rotation: Iterator[Tensor]) -> Tensor:
    return attention(next(rotation))


def compare_outputs(outputs: dict[str, Tensor], shape: Shape) -> dict[str, float]:
    """Each output's largest deviation from the first one's, relative to its largest entry."""
    first, reference = next((name, output.float()) for name, output in outputs.items())
    largest = reference.abs().max()
    differences = {name: ((out.float() - reference).abs().max() / largest).item() for name, out in outputs.items()}
    for name, difference in differences.items():
        if not difference <= TOLERANCE:  # also if it is NaN
            raise BenchmarkError(f"{name} and {first} differ by {difference:.1%} on {shape}: their times mean nothing")
    return differences


def summarize(
    shape: Shape,
    seconds: dict[str, list[float]],
    differences: dict[str, float],
    heads: HeadShape,
    element_size: int,
    roof: Roof,
) -> list[AttentionResult]:
    """A result for each backend, with its difference from the reference and its share of the roof."""
    kv_bytes, flops = shape.kv_bytes(heads, element_size), shape.flops(heads)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    best = min(medians.values())
    return [
        AttentionResult(
            shape=shape,
            backend=name,
            call_s=call,
            call_low_s=min(seconds[name]),
            call_high_s=max(seconds[name]),
            kv_bytes=kv_bytes,
            bandwidth=kv_bytes / call,
            flops=flops,
            flops_per_s=flops / call,
            share_of_roof=kv_bytes / call / roof.memory if shape.kind == "decode" else flops / call / roof.matmul,
            time_over_best=call / best,
            difference=differences[name],
        )
        for name, call in medians.items()
    ]


def with_fastest_matmul(roof: Roof, device: torch.device, quick: bool) -> Roof:
    """The roof with the faster of two matrix products: many CPUs multiply float32 faster than 16 bits."""
    single = measure_matmul(torch.float32, device, *((QUICK_SIZE, QUICK_REPEATS) if quick else ()))
    return replace(roof, matmul=single, matmul_dtype="float32") if single > roof.matmul else roof


def choose_backends(
    names: Sequence[str] | None, device: torch.device, block_size: int
) -> dict[str, type[AttentionBackend]]:
    """By name; None = all that can run here, with these blocks.

    Raises:
        ConfigError: there is no such backend, or it cannot run.
    """
    if unknown := [name for name in names or [] if name not in BACKENDS]:
        raise ConfigError(f"no attention backend {unknown[0]!r}: there are {', '.join(BACKENDS)}")
    if names is not None:
        return {name: select_backend(name, device, Demands(block_size)) for name in names}
    able = [name for name, objection in survey(device).items() if not objection]
    return {name: BACKENDS[name] for name in able if block_size % BACKENDS[name].block_size_step == 0}


@torch.inference_mode()
def run_attention(
    target: Target,
    *,
    heads: HeadShape | None,
    backends: Sequence[str] | None,
    batches: Sequence[int] | None,
    contexts: Sequence[int] | None,
    prompts: Sequence[int] | None,
    cached: Sequence[int] | None,
    repeats: int,
    quick: bool,
) -> dict[str, Any]:
    """Measure, and return the report. Backends take turns within every repeat.

    Args:
        heads: None = the model's.
        backends, batches, contexts, prompts, cached: None = what suits the device.
    Raises:
        ConfigError: an unknown backend, or a --set field that attention alone does not read.
        BenchmarkError: two backends disagree.
    """
    if ignored := set(target.fields) - {"block_size"}:
        raise ConfigError(f"bench attention runs no engine and reads block_size only: drop --set {min(ignored)}")
    machine, device, config = describe_machine(), target.torch_device(), target.config()
    block_size = config.block_size or AttentionBackend.block_size
    chosen = choose_backends(backends, device, block_size)
    model_config = target.model_config()
    heads = heads or HeadShape(model_config.num_heads, model_config.num_kv_heads, model_config.head_dim)
    dtype = choose_dtype(config.dtype, model_config, device)
    query_dtype = torch.float32 if device.type == "cpu" else dtype  # a CPU's activations: see Decoder
    kind = device.type
    shapes = make_shapes(
        batches or ((2,) if quick else BATCHES[kind]),
        contexts or ((16,) if quick else CONTEXTS[kind]),
        prompts or ((16,) if quick else PROMPTS[kind]),
        cached or ((16,) if quick else (CACHED[kind],)),
    )
    repeats, calls = (1, 1) if quick else (repeats, CALLS[kind])
    roof = with_fastest_matmul(measure_roof(device, dtype, quick), device, quick)
    results: list[AttentionResult] = []
    for shape in tqdm(shapes, unit="shape"):
        able = {name: backend for name, backend in chosen.items() if usable(name, shape, heads)}
        if not able:
            continue
        seconds, differences = measure_shape(
            shape,
            heads,
            able,
            block_size=block_size,
            dtype=dtype,
            query_dtype=query_dtype,
            device=device,
            repeats=repeats,
            calls=calls,
            rotation_bytes=0 if quick else ROTATION_BYTES,
        )
        results += summarize(shape, seconds, differences, heads, dtype.itemsize, roof)
    return make_report(
        machine,
        model=target.model,
        dtype=dtype_name(dtype),
        device=device,
        settings={
            "heads": asdict(heads),
            "query_dtype": dtype_name(query_dtype),
            "block_size": block_size,
            "backends": list(chosen),
            "repeats": repeats,
            "calls": calls,
            "quick": quick,
        },
        results=results,
        roof=roof,
    )


def format_table(report: dict[str, Any]) -> str:
    """The report as text: what `minillm bench` prints."""
    roof, heads = report["roof"], report["settings"]["heads"]
    lines = [
        format_machine(report["machine"]),
        f"one layer, {heads['num_heads']} heads on {heads['num_kv_heads']} KV heads of {heads['head_dim']}; "
        f"{report['dtype']} cache in blocks of {report['settings']['block_size']}; memory {roof.memory_kind} "
        f"{with_unit(roof.memory, 'B/s')}, {roof.matmul_dtype} matmul {with_unit(roof.matmul, 'FLOP/s')} measured"
        + (" (quick: means nothing)" if report["settings"]["quick"] else ""),
        "",
        f"{'shape':32}{'backend':>14}{'us a call':>12}{'reached':>16}{'of roof':>9}{'vs best':>9}",
    ]
    for row in report["results"]:
        decode = row.shape.kind == "decode"
        reached = with_unit(row.bandwidth, "B/s") if decode else with_unit(row.flops_per_s, "FLOP/s")
        lines.append(
            f"{describe(row.shape):32}{row.backend:>14}{1e6 * row.call_s:>12.1f}{reached:>16}"
            f"{row.share_of_roof:>9.1%}{row.time_over_best:>8.2f}x"
        )
    return "\n".join(lines)


def describe(shape: Shape) -> str:
    """A shape in a few words, such as "decode 8 x 512"."""
    if shape.kind == "decode":
        return f"decode {shape.batch} x {shape.context}"
    return f"prefill {shape.new}" if shape.kind == "prefill" else f"prefill {shape.new} on {shape.cached} cached"
