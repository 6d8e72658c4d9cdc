"""`minillm bench attention`: backends against each other and the machine's peaks, one layer's attention alone."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from tqdm import tqdm

from course.measure.attention_shapes import HeadShape, PreparedAttention, Shape, make_cache, make_metadata
from minillm.bench.errors import BenchmarkError
from minillm.bench.machine_peaks import MachinePeaks, measure_matmul, measure_peaks
from minillm.bench.report import BenchmarkResult, with_unit
from minillm.bench.target import Target
from minillm.core.errors import ConfigError
from minillm.host.timing import seconds_per_call
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.select import BACKENDS, Demands, select_backend, survey
from minillm.kernels.quantization import dtype_name
from minillm.model.loader import choose_dtype
from minillm.observe.spread import Spread
from minillm.observe.tables import text_table

SIZES = {
    "cpu": ((1, 8, 32), (512, 2048), (512, 2048), (1024,)),
    "cuda": ((1, 8, 32, 128), (1024, 4096), (1024, 4096), (4096,)),
    "quick": ((2,), (16,), (16,), (16,)),
}
"""Measured by kind of device: batches and contexts of decodes, new tokens of prefills, and what those extend."""
CALLS = {"cpu": 4, "cuda": 20}
"""Calls in one timing, by kind of device."""
ROTATION_BYTES = 512_000_000
"""Caches take turns until this much lies between two uses of one: more than any processor's own cache holds."""
MOST_CACHES = 16
TOLERANCE = 0.05
"""Most that two backends may differ, relative to the largest output: rounding in bfloat16 is far below."""
COLUMNS = ("shape", "backend", "us a call", "reached", "of peak", "vs best")
Backends = dict[str, type[AttentionBackend]]


@dataclass(frozen=True, slots=True)
class Setup:
    """What every shape is measured with."""

    heads: HeadShape
    block_size: int
    dtype: torch.dtype
    """The cache's."""
    query_dtype: torch.dtype
    device: torch.device
    repeats: int
    calls: int
    rotation_bytes: int = ROTATION_BYTES


@dataclass(frozen=True, slots=True)
class AttentionResult:
    """One backend on one shape, one layer. Seconds, bytes, FLOP."""

    shape: Shape
    backend: str
    call_s: Spread
    """Over the repeats. On a GPU: of its own time, launches not counted."""
    reached: float
    """Decode: bytes of keys and values per second. Prefill and extend: FLOP/s."""
    share_of_roof: float
    """The share of the measured memory bandwidth, or of the measured matrix product."""
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


def measure_shape(shape: Shape, setup: Setup, backends: Backends) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds per call by backend, one per repeat, and each one's difference from the first.

    Raises:
        BenchmarkError: a backend computes something else.
    """
    heads, device = setup.heads, setup.device
    metadata = make_metadata(shape, setup.block_size, device)
    size = (shape.batch * shape.new, heads.num_heads, heads.head_dim)
    generator = torch.Generator(device).manual_seed(1)
    query = torch.randn(size, generator=generator, device=device, dtype=setup.query_dtype)
    num_caches = -(-setup.rotation_bytes // shape.kv_bytes(heads, setup.dtype.itemsize))
    caches = [
        make_cache(shape, heads, setup.block_size, setup.dtype, device, seed)
        for seed in range(min(max(num_caches, 2), MOST_CACHES))
    ]
    prepared = {name: PreparedAttention(backend, metadata, query) for name, backend in backends.items()}
    differences = compare_outputs({name: attention(caches[0]) for name, attention in prepared.items()}, shape)
    seconds: dict[str, list[float]] = {name: [] for name in prepared}
    rotation = itertools.cycle(caches)
    for _ in range(setup.repeats):
        for name, attention in prepared.items():
            work = functools.partial(lambda attend: attend(next(rotation)), attention)
            seconds[name].append(seconds_per_call(work, device, setup.calls))
    return seconds, differences


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
    shape: Shape, seconds: dict[str, list[float]], differences: dict[str, float], setup: Setup, peaks: MachinePeaks
) -> list[AttentionResult]:
    """A result for each backend, with its difference from the first and its share of the machine's peak."""
    calls = {name: Spread.of(taken) for name, taken in seconds.items()}
    best = min(call.median for call in calls.values())
    if shape.kind == "decode":
        work, peak = float(shape.kv_bytes(setup.heads, setup.dtype.itemsize)), peaks.memory
    else:
        work, peak = shape.flops(setup.heads), peaks.matmul
    return [
        AttentionResult(
            shape=shape,
            backend=name,
            call_s=call,
            reached=work / call.median,
            share_of_roof=work / call.median / peak,
            time_over_best=call.median / best,
            difference=differences[name],
        )
        for name, call in calls.items()
    ]


def with_fastest_matmul(peaks: MachinePeaks, device: torch.device, quick: bool) -> MachinePeaks:
    """The peaks with the faster of two matrix products: many CPUs multiply float32 faster than 16 bits."""
    single = measure_matmul(torch.float32, device, quick=quick)
    return replace(peaks, matmul=single, matmul_dtype="float32") if single > peaks.matmul else peaks


def choose_backends(names: Sequence[str] | None, device: torch.device, demands: Demands) -> Backends:
    """By name; None = all that can do what is demanded here, but for eager: it holds whole score matrices.

    Raises:
        ConfigError: there is no such backend, or it cannot run.
    """
    if unknown := [name for name in names or [] if name not in BACKENDS]:
        raise ConfigError(f"no attention backend {unknown[0]!r}: there are {', '.join(BACKENDS)}")
    if names is not None:
        return {name: select_backend(name, device, demands) for name in names}
    able = [name for name, objection in survey(device, demands).items() if not objection]
    return {name: BACKENDS[name] for name in able if name != "eager"}


@torch.inference_mode()
def run(
    target: Target,
    quick: bool,
    backends: Sequence[str] | None,
    batches: Sequence[int] | None,
    contexts: Sequence[int] | None,
    prompts: Sequence[int] | None,
    cached: Sequence[int] | None,
    repeats: int,
) -> BenchmarkResult:
    """Measure. Backends take turns within every repeat.

    Args:
        backends, batches, contexts, prompts, cached: None = what suits the device.
    Raises:
        ConfigError: an unknown backend, or a --set field that attention alone does not read.
        BenchmarkError: two backends disagree.
    """
    if ignored := set(target.fields) - {"block_size"}:
        raise ConfigError(f"bench attention runs no engine and reads block_size only: drop --set {min(ignored)}")
    device, config, model_config = target.torch_device(), target.config(), target.model_config()
    kind = device.type
    dtype = choose_dtype(config.dtype, model_config, device)
    setup = Setup(
        heads=HeadShape(model_config.num_heads, model_config.num_kv_heads, model_config.head_dim),
        block_size=config.block_size or AttentionBackend.block_size,
        dtype=dtype,
        query_dtype=torch.float32 if kind == "cpu" else dtype,  # a CPU's activations: see Decoder
        device=device,
        repeats=1 if quick else repeats,
        calls=1 if quick else CALLS[kind],
        rotation_bytes=0 if quick else ROTATION_BYTES,
    )
    chosen = choose_backends(backends, device, Demands(setup.block_size, dtype, head_dim=setup.heads.head_dim))
    sizes = zip((batches, contexts, prompts, cached), SIZES["quick" if quick else kind])
    shapes = make_shapes(*(given or usual for given, usual in sizes))
    peaks = with_fastest_matmul(measure_peaks(device, dtype, quick), device, quick)
    results: list[AttentionResult] = []
    for shape in tqdm(shapes, unit="shape"):
        results += summarize(shape, *measure_shape(shape, setup, chosen), setup, peaks)
    settings = {
        "heads": asdict(setup.heads),
        "query_dtype": dtype_name(setup.query_dtype),
        "block_size": setup.block_size,
        "backends": list(chosen),
        "repeats": setup.repeats,
        "calls": setup.calls,
    }
    text = (
        f"one layer, {setup.heads.num_heads} heads on {setup.heads.num_kv_heads} KV heads of {setup.heads.head_dim}; "
        f"cache in blocks of {setup.block_size}; memory {peaks.memory_kind} {with_unit(peaks.memory, 'B/s')}, "
        f"{peaks.matmul_dtype} matmul {with_unit(peaks.matmul, 'FLOP/s')} measured"
        f"\n\n{text_table(COLUMNS, map(_cells, results))}"
    )
    return BenchmarkResult(results, settings, dtype_name(dtype), device, text, {"roof": peaks})


def _cells(row: AttentionResult) -> list[str]:
    reached = with_unit(row.reached, "B/s" if row.shape.kind == "decode" else "FLOP/s")
    times = f"{1e6 * row.call_s.median:.1f}", reached, f"{row.share_of_roof:.1%}", f"{row.time_over_best:.2f}x"
    return [describe(row.shape), row.backend, *times]


def describe(shape: Shape) -> str:
    """A shape in a few words, such as "decode 8 x 512"."""
    if shape.kind == "decode":
        return f"decode {shape.batch} x {shape.context}"
    return f"prefill {shape.new}" if shape.kind == "prefill" else f"prefill {shape.new} on {shape.cached} cached"
