"""Which kernel multiplies a model's weights on a CPU: they are tried on the weights themselves, once, and the outcome
is kept. No rule holds for all: a kernel that leads by half on one make of processor trails by half on another.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from minillm.host.errors import StorageError
from minillm.host.memory import available_bytes
from minillm.host.storage import cache_home
from minillm.kernels.cpu import has_dots, native_kernels
from minillm.kernels.cpu.compiling import cpu_identity
from minillm.model.linear import Linear, places_of, relative_error, replace_linears
from minillm.model.packed import (
    FEW_ROWS,
    CPULinear,
    Packed,
    PackedForDots,
    PackedForFBGEMM,
    PackedForOneDNN,
    PackedInBands,
)

logger = logging.getLogger(__name__)

Product = Callable[[Tensor], Tensor]
"""x W^T of float32 rows x."""
CANDIDATES: tuple[type[Packed], ...] = (PackedForDots, PackedInBands, PackedForFBGEMM, PackedForOneDNN)
"""The first that works serves a model too small to tell them apart."""
FLOAT16_MAX = 65504.0
FINE = 1e-2
"""Largest error of a product, as a share of its largest number: bfloat16 has 8 bits, float16 more. A wrong layout is
off by about 1."""
ROWS = (1, 8, 2 * FEW_ROWS)
"""Rows of x in a trial: a decode, some of them, and more than a few."""
ROUNDS = 7
SAMPLE = 1 << 25
"""Weights that a trial multiplies: at 64 MB, more than nearly every cache holds."""
TOO_SMALL = 1 << 24
"""Weights of the largest matrix: a smaller one lies in caches, and times say little."""
CLEAR = 0.9
"""A product is preferred to the first one if it takes at most this share of its time."""
BETTER = 0.85
"""A second copy of the weights, for many rows, is worth its memory if its kernel takes at most this share of time."""

Seconds = dict[str, list[list[float]]]
"""What some products took, by name: for each round of a trial, and for each of ROWS in it."""


def fastest(seconds: Seconds, rows: slice = slice(None)) -> str:
    """The name of the product that is fastest over these of ROWS: the first one's, unless another clearly wins."""
    first = next(iter(seconds))
    shares = {name: share_of_time(seconds[name], seconds[first], rows) for name in seconds}
    best = min(shares, key=lambda name: shares[name])
    return best if shares[best] <= CLEAR else first


def share_of_time(rounds: list[list[float]], others: list[list[float]], rows: slice) -> float:
    """The share of another product's time that one takes over these of ROWS, in all rounds but its worst. What else a
    machine does slows a round's products down together, if rarely by the same factor: so rounds have to agree."""
    pairs = [zip(own[rows], other[rows]) for own, other in zip(rounds, others, strict=True)]
    return sorted(statistics.geometric_mean(a / b for a, b in pair) for pair in pairs)[-2]


def choose_packings(linears: list[Linear]) -> tuple[type[Packed], type[Packed]] | None:
    """The kernels that multiply these layers best, with few rows and with many, and rightly; None if there is none."""
    if any(linear.weight.device.type != "cpu" or linear.weight.dtype.itemsize != 2 for linear in linears):
        return None
    smallest, largest = (pick(linears, key=lambda linear: linear.weight.numel()) for pick in (min, max))
    right = {packing.__name__: packing for packing in candidates(linears) if works(packing, smallest)}
    if not right:
        return None
    if len(right) == 1 or largest.weight.numel() < TOO_SMALL:
        first = next(iter(right.values()))
        return first, first
    some = largest.weight[: SAMPLE // largest.weight.shape[1]]
    products = {name: partial(packing, some, None) for name, packing in right.items()}
    seconds = tried([linear.weight.shape for linear in linears], products, some.shape[1])
    best_few, best_many = fastest(seconds, slice(-1)), fastest(seconds, slice(-1, None))
    is_better = share_of_time(seconds[best_many], seconds[best_few], slice(-1, None)) < BETTER
    few, many = right[best_few], right[best_many if is_better else best_few]
    if issubclass(many, PackedInBands):  # they read one order of weights: then a row's company changes nothing about it
        return many, many
    bytes_more = sum(linear.weight.nbytes for linear in linears)
    return few, many if few is many or bytes_more < available_bytes() // 4 else few


def candidates(linears: list[Linear]) -> Iterator[type[Packed]]:
    """The kinds of packing that can hold these weights."""
    is_bfloat16 = all(linear.weight.dtype == torch.bfloat16 for linear in linears)
    fits_float16 = max(linear.weight.abs().max().item() for linear in linears) <= FLOAT16_MAX
    possible = {
        PackedForDots: is_bfloat16 and has_dots(),
        PackedInBands: is_bfloat16 and native_kernels() is not None,
        PackedForFBGEMM: fits_float16,
        PackedForOneDNN: is_bfloat16,
    }
    return (packing for packing in CANDIDATES if possible[packing])


def works(packing: type[Packed], linear: Linear) -> bool:
    """Whether the packed layer gives what the plain one does, on this machine."""
    try:
        packed = packing(linear.weight, linear.bias)
        return relative_error(packed, linear.weight, linear.bias, torch.float32) <= FINE
    except (RuntimeError, AttributeError) as reason:
        logger.warning("%s does not work on this machine (%s)", packing.__name__, reason)
        return False


def tried(shapes: Iterable[Sequence[int]], products: Mapping[str, Callable[[], Product]], size: int) -> Seconds:
    """The trial of some products on this machine: a former one, if there was one, else a new one. It is kept in a file;
    delete that for another trial.

    Args:
        shapes: the model's matrices, each [out, in].
        products: by name, what makes them.
        size: numbers in each row that is multiplied, `in` of the matrix they're tried with.
    """
    matrices = sorted({tuple(shape) for shape in shapes})
    way = f"{list(products)} {ROWS} {ROUNDS}"
    identity = f"{matrices} {torch.get_num_threads()} {way} {cpu_identity()} {torch.__version__}"
    name = f"trials-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, StorageError):
        return dict(json.loads((cache_home() / "native" / name).read_text())["seconds"])
    seconds = measure({name: make() for name, make in products.items()}, size)
    with contextlib.suppress(OSError, StorageError):  # a trial that can't be kept is made again next time
        file = cache_home() / "native" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"seconds": seconds}))
    return seconds


def measure(products: Mapping[str, Product], size: int) -> Seconds:
    """Seconds of each product for each of ROWS, `size` wide, in ROUNDS in which all take turns."""
    inputs = [torch.randn(rows, size) for rows in ROWS]
    for multiply, x in itertools.product(products.values(), inputs):
        multiply(x)  # the first call prepares what others use
    seconds: Seconds = {name: [[0.0] * len(ROWS) for _ in range(ROUNDS)] for name in products}
    for one_round, place in itertools.product(range(ROUNDS), range(len(ROWS))):
        for name, multiply in products.items():
            start = time.perf_counter()
            multiply(inputs[place])
            seconds[name][one_round][place] = time.perf_counter() - start
    return seconds


def pack_linears(module: nn.Module) -> bool:
    """Replace every Linear inside `module` by a CPULinear. False, and nothing done, if none works."""
    packings = choose_packings([getattr(parent, name) for parent, name in places_of(module)])
    if packings is not None:
        replace_linears(module, lambda linear: CPULinear(linear, *packings))
    return packings is not None
