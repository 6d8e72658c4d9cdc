"""Zeros in a matrix: what a dense product makes of them, what a sparse one does, and what has to be kept."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from course.lab.explorer import Explorer, buttons, choices
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import WIDTH, seconds
from course.lab.svg import FAINT, SOFT, Picture, rect, text
from minillm.bench.target import Target
from minillm.kernels.timing import best_seconds

SHARES = (0.0, 0.5, 0.8, 0.95, 0.99)
"""Of zeros."""
SIDE, SHORT_SIDE, TINY_SIDE = 2048, 1024, 128
ROWS = {"decode, 1 row": 1, "prefill, 128 rows": 128}
"""Tokens that are multiplied with the matrix at once."""
INDEX_BYTES, NUMBER_BYTES = 4, 2
"""CSR with 16-bit numbers: each number that is not zero brings the number of its column."""
SAME = 0.15
"""Times closer than that are equal."""


@dataclass(frozen=True)
class Timed:
    """One product, with a matrix that has so many zeros. Seconds, best of several."""

    kind: str
    zeros: float
    dense: float
    sparse: float
    """As compressed sparse rows (CSR)."""


def measure(lab: Lab, side: int | None = None, repeats: int = 7) -> list[Timed]:
    """Dense and sparse products with the same matrix, float32, one CPU thread: threads that wait for each other would
    drown the difference. On a GPU, all of it."""
    device = Target(device=lab.config().device).torch_device()
    side = side or (SIDE if lab.scale == 1 else SHORT_SIDE)
    generator = torch.Generator().manual_seed(0)
    weights, chance = (torch.rand(side, side, generator=generator) for _ in range(2))
    inputs = {kind: torch.randn(rows, side, generator=generator).to(device) for kind, rows in ROWS.items()}
    found = []
    with one_thread():
        for zeros in SHARES:
            dense = (weights * (chance >= zeros)).to(device)
            sparse = as_csr(dense)
            for kind, x in inputs.items():
                columns = x.T.contiguous()
                times = (
                    best_seconds(partial(F.linear, x, dense), device, repeats),
                    best_seconds(partial(torch.mm, sparse, columns), device, repeats),
                )
                found.append(Timed(kind, zeros, *times))
    return found


def as_csr(dense: Tensor) -> Tensor:
    """Compressed sparse rows: the numbers that are not zero, and where they stood."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch calls the layout a beta feature
        return dense.to_sparse_csr()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def of_kind(found: Sequence[Timed], kind: str) -> list[Timed]:
    return [each for each in found if each.kind == kind]


def dense_change(found: Sequence[Timed], kind: str, zeros: float = 0.5) -> float:
    """Time of a dense product with so many zeros, over the same with none."""
    by = {each.zeros: each.dense for each in of_kind(found, kind)}
    return by[zeros] / by[0.0]


def sparse_change(found: Sequence[Timed], kind: str, zeros: float = 0.5) -> float:
    """Time of a sparse product with so many zeros, over a dense one without."""
    by = {each.zeros: each for each in of_kind(found, kind)}
    return by[zeros].sparse / by[0.0].dense


def pays_from(found: Sequence[Timed], kind: str) -> float | None:
    """The smallest measured share of zeros at which the sparse product beats the dense one; None = at none of them."""
    dense = of_kind(found, kind)[0].dense
    return next((each.zeros for each in of_kind(found, kind) if each.sparse < (1 - SAME) * dense), None)


def draw_times(found: Sequence[Timed], kind: str) -> Picture:
    """Time by share of zeros: does the dense product notice, and when does the sparse one overtake it?"""
    each = of_kind(found, kind)
    zeros = [100 * one.zeros for one in each]
    curves = [
        Curve("dense product, zeros and all", zeros, [1e3 * one.dense for one in each]),
        Curve("sparse product (CSR)", zeros, [1e3 * one.sparse for one in each]),
    ]
    told = "; ".join(f"{o.zeros:.0%} zeros: dense {seconds(o.dense)}, sparse {seconds(o.sparse)}" for o in each)
    low = min(min(curve.ys) for curve in curves) / 2
    high = max(max(curve.ys) for curve in curves) * 2
    return draw_chart(
        f"{kind}: are zeros free?",
        curves,
        Axis("zeros, % of the weights", low=-2, high=102),
        Axis("time, ms", log=True, low=low, high=high),
        [Mark("half of them", x=50)],
        height=230,
        description=told,
    )


def times_lab(found: Sequence[Timed]) -> Explorer:
    return Explorer(lambda kind: draw_times(found, kind), kind=buttons("product", list(ROWS)))


# ---------------------------------------------------------------- what has to be kept

PATTERNS = ("anywhere", "2 of every 4", "whole columns")
CELLS, CELL = 16, 13.0
STRUCTURED = "2 of every 4"
PLACE_BITS = 2
"""2:4 sparsity: where in its four each of the two stood."""


def kept_bytes(pattern: str, zeros: float) -> float:
    """Bytes to keep for each weight of the matrix, zeros included, with 16-bit numbers."""
    if pattern == "anywhere":
        return (1 - zeros) * (NUMBER_BYTES + INDEX_BYTES)
    if pattern == STRUCTURED:
        return 0.5 * (NUMBER_BYTES + PLACE_BITS / 8)
    return (1 - zeros) * NUMBER_BYTES


def patterns() -> Explorer:
    """How many zeros, and where they may be: what does a matrix come to, in bytes?"""
    return Explorer(
        draw_pattern,
        pattern=buttons("zeros stand", PATTERNS),
        zeros=choices("zeros, share", [(f"{x}%", x / 100) for x in (25, 50, 75, 90)], 0.5),
    )


def draw_pattern(pattern: str, zeros: float) -> Picture:
    """A small matrix with its zeros, and the bytes of each way to keep it."""
    if pattern == STRUCTURED:
        zeros = 0.5
    body = ""
    for row, cells in enumerate(_mask(pattern, zeros)):
        for column, is_kept in enumerate(cells):
            look = {"fill": "#009E73"} if is_kept else {"fill": "none", "stroke": FAINT}
            body += rect(10 + column * CELL, 6 + row * CELL, CELL - 2, CELL - 2, **look)
    ways = {
        "dense: zeros are kept, read and multiplied": float(NUMBER_BYTES),
        "a number and its column, where not zero": kept_bytes("anywhere", zeros),
    }
    if pattern == STRUCTURED:
        ways["two numbers and their places, of four"] = kept_bytes(pattern, zeros)
    if pattern == "whole columns":
        ways["a smaller dense matrix"] = kept_bytes(pattern, zeros)
    x, widest = 250.0, max(ways.values())
    body += text(x, 18, "bytes for each weight of the matrix, 16-bit numbers", size=12, fill=SOFT)
    for i, (way, size) in enumerate(ways.items()):
        y = 34 + 46 * i
        body += text(x, y + 10, way, size=12)
        body += rect(x, y + 16, (WIDTH - x - 90) * size / widest, 15, fill="#56B4E9")
        body += text(x + (WIDTH - x - 90) * size / widest + 6, y + 28, f"{size:.2f} bytes", size=11)
    told = "; ".join(f"{way}: {size:.2f} bytes a weight" for way, size in ways.items())
    notes = {
        "anywhere": f"With CSR's 4-byte columns it pays in bytes above {break_even_zeros():.0%} zeros.",
        STRUCTURED: "Always half. Some GPUs have multipliers that skip zeros in this pattern, and only in this one.",
        "whole columns": "No index is needed: it is a smaller model, on any hardware. It is also the coarsest cut.",
    }
    body += text(10, 6 + CELLS * CELL + 18, notes[pattern], size=12, font_weight="bold")
    title = f"{zeros:.0%} zeros, {pattern}: what has to be kept?"
    return Picture(title, body, CELLS * CELL + 34, description=f"{told}. {notes[pattern]}")


def break_even_zeros() -> float:
    """Share of zeros above which numbers with their columns are fewer bytes than the dense matrix."""
    return 1 - NUMBER_BYTES / (NUMBER_BYTES + INDEX_BYTES)


def _mask(pattern: str, zeros: float) -> list[list[bool]]:
    """Which weights are kept, in a matrix of 16 x 16."""
    scores = torch.rand(CELLS, CELLS, generator=torch.Generator().manual_seed(1))
    if pattern == STRUCTURED:
        fours = scores.view(CELLS, -1, 4)
        return (fours.argsort(-1).argsort(-1) >= 2).view(CELLS, CELLS).tolist()
    if pattern == "whole columns":
        kept = scores[0].argsort().argsort() >= round(zeros * CELLS)
        return kept.expand(CELLS, CELLS).tolist()
    return (scores.flatten().argsort().argsort() >= round(zeros * CELLS * CELLS)).view(CELLS, CELLS).tolist()
