"""A fused kernel in Triton: residual and RMSNorm in one launch. It runs in Triton's interpreter, on any processor."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from course.lab.grading.exercise import Answer, Mistake
from course.lab.grading.tools import alike, expect, slip_of, within

if TYPE_CHECKING:
    from torch import Tensor

MARGIN = 600
"""Numbers around every tensor that a kernel must neither use nor overwrite; more than any block it may choose."""
TOLERANCE = {"float32": 1e-5, "float16": 4e-3}
ARITHMETIC = frozenset(
    (
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "truediv",
        "pow",
        "square",
        "mean",
        "sum",
        "sqrt",
        "rsqrt",
        "norm",
        "rms_norm",
        "layer_norm",
        "addcmul",
        "addcdiv",
        "var",
        "dot",
        "matmul",
        "einsum",
        "copy",
    )
)
"""What the kernel is for. PyTorch's names, without underscores at either end."""


def right(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * weight


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


NORM_SLIPS: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "sum_divided_block_which": lambda x, w, eps: (
        x / np.sqrt((x**2).sum(axis=1, keepdims=True) / padded(x.shape[1]) + eps) * w
    ),
    "positions_beyond_row_count": lambda x, w, eps: (
        x / np.sqrt(((x**2).sum(axis=1, keepdims=True) + padded(x.shape[1]) - x.shape[1]) / x.shape[1] + eps) * w
    ),
    "eps_left_out": lambda x, w, eps: right(x, w, 0),
    "eps_added_outside_square": lambda x, w, eps: x / (np.sqrt((x**2).mean(axis=1, keepdims=True)) + eps) * w,
    "sum_squares": lambda x, w, eps: x / np.sqrt((x**2).sum(axis=1, keepdims=True) + eps) * w,
    "weight_left_out": lambda x, w, eps: right(x, np.ones_like(w), eps),
    "square_root_missing": lambda x, w, eps: x / ((x**2).mean(axis=1, keepdims=True) + eps) * w,
    "layernorm": lambda x, w, eps: right(x - x.mean(axis=1, keepdims=True), w, eps),
    "multiplies_root_mean_square": lambda x, w, eps: x * np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * w,
    "mean_x_taken": lambda x, w, eps: x / (np.abs(x).mean(axis=1, keepdims=True) + eps) * w,
    "every_row_made_row": lambda x, w, eps: np.repeat(right(x[:1], w, eps), len(x), axis=0),
}


@dataclass
class Guarded:
    """A tensor [rows, size] in the middle of a larger one; what lies around it is NaN."""

    whole: Tensor
    inner: Tensor
    before: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.whole.clone()

    @classmethod
    def of(cls, values: np.ndarray | None, shape: Sequence[int], dtype: str, gap: int) -> Guarded:
        """
        Args:
            values: None = NaN, for the kernel to fill.
            gap: numbers between one row and the next.
        """
        import torch

        rows, size = shape
        stride = size + gap
        whole = torch.full((MARGIN + rows * stride + MARGIN,), float("nan"), dtype=getattr(torch, dtype))
        inner = whole.as_strided((rows, size), (stride, 1), MARGIN)
        if values is not None:
            inner.copy_(torch.from_numpy(values))
        return cls(whole, inner)

    def numbers(self) -> np.ndarray:
        return self.inner.double().numpy()

    def spilled(self) -> bool:
        """Something around it was overwritten."""
        import torch

        now, before = self.whole.clone(), self.before.clone()
        for each in (now, before):
            each.as_strided(self.inner.shape, self.inner.stride(), MARGIN).zero_()
        return not torch.equal(now.nan_to_num(nan=-1.0), before.nan_to_num(nan=-1.0))

    def changed(self) -> bool:
        import torch

        return not torch.equal(self.whole.nan_to_num(nan=-1.0), self.before.nan_to_num(nan=-1.0))


@dataclass
class Seen:
    """What happened in a call."""

    launches: int = 0
    arithmetic: list[str] = field(default_factory=list)
    """PyTorch's operations outside of kernels."""


@contextmanager
def watching() -> Iterator[Seen]:
    """Count kernels that are launched, and note arithmetic that PyTorch does."""
    from torch.overrides import TorchFunctionMode
    from triton.runtime.interpreter import GridExecutor

    seen, inside = Seen(), []
    launch = GridExecutor.__call__

    def counted(self: GridExecutor, *arguments: object, **options: object) -> None:
        seen.launches += 1
        inside.append(self)
        try:
            launch(self, *arguments, **options)
        finally:
            inside.pop()

    class Noting(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            name = getattr(function, "__name__", "").strip("_")
            if not inside and {name, name.removeprefix("i")} & ARITHMETIC:  # also __iadd__
                seen.arithmetic.append(name)
            return function(*args, **(kwargs or {}))

    GridExecutor.__call__ = counted
    try:
        with Noting():
            yield seen
    finally:
        GridExecutor.__call__ = launch


@dataclass
class Case:
    """Inputs of one question, as NumPy sees them (float64, after rounding to the dtype)."""

    x: np.ndarray
    delta: np.ndarray
    weight: np.ndarray
    eps: float
    dtype: str = "float32"
    gap: int = 0

    def __str__(self) -> str:
        far = f", rows {self.x.shape[1] + self.gap} apart" if self.gap else ""
        return f"{self.dtype} {list(self.x.shape)}{far}, eps {self.eps:g}"


def some_case(
    rng: random.Random, rows: int, size: int, eps: float = 1e-3, dtype: str = "float32", **more: float
) -> Case:
    """
    Args:
        more: `gap` between rows; `times`, how large the numbers are.
    """
    draws = np.random.default_rng(rng.getrandbits(48))
    kind = np.dtype(dtype)
    x, delta = (draws.normal(0.2, 1, (rows, size)) * more.get("times", 1) for _ in range(2))
    weight = draws.uniform(0.5, 2, size)
    return Case(
        *(each.astype(kind).astype(np.float64) for each in (x, delta, weight)), eps, dtype, int(more.get("gap", 0))
    )


def hold(case: Case, tensors: dict[str, Guarded], inputs: Sequence[str], name: str) -> None:
    """Nothing beside the outputs was written."""
    for each, tensor in tensors.items():
        expect(not (each in inputs and tensor.changed()), f"{name} of {case} changes `{each}`, which it only reads")
        if tensor.spilled():
            raise Mistake("writes_outside", name=name, case=case, each=each, size=case.x.shape[1])


def hold_one_launch(case: Case, seen: Seen, name: str) -> None:
    if seen.arithmetic:
        raise Mistake("lets_pytorch_do", name=name, case=case, operation=seen.arithmetic[0])
    expect(seen.launches == 1, f"{name} of {case} launches {seen.launches} kernels; one is asked for")


def run_norm(answer: Answer, case: Case) -> np.ndarray:
    shape = case.x.shape
    tensors = {
        "x": Guarded.of(case.x, shape, case.dtype, case.gap),
        "weight": Guarded.of(case.weight[None], (1, shape[1]), case.dtype, 0),
        "out": Guarded.of(None, shape, case.dtype, 2 * case.gap),
    }
    with watching() as seen:
        answer.rms_norm(tensors["x"].inner, tensors["weight"].inner[0], case.eps, tensors["out"].inner)
    hold_one_launch(case, seen, "rms_norm")
    hold(case, tensors, ("x", "weight"), "rms_norm")
    return tensors["out"].numbers()


def run_add(answer: Answer, case: Case) -> tuple[np.ndarray, np.ndarray]:
    shape = case.x.shape
    tensors = {
        "x": Guarded.of(case.x, shape, case.dtype, case.gap),
        "delta": Guarded.of(case.delta, shape, case.dtype, 3 * case.gap),
        "weight": Guarded.of(case.weight[None], (1, shape[1]), case.dtype, 0),
        "total": Guarded.of(None, shape, case.dtype, 2 * case.gap),
        "normed": Guarded.of(None, shape, case.dtype, 0),
    }
    given = [tensors["x"].inner, tensors["delta"].inner, tensors["weight"].inner[0], case.eps]
    with watching() as seen:
        answer.add_rms_norm(*given, tensors["total"].inner, tensors["normed"].inner)
    hold_one_launch(case, seen, "add_rms_norm")
    hold(case, tensors, ("x", "delta", "weight"), "add_rms_norm")
    return tensors["total"].numbers(), tensors["normed"].numbers()


def first_difference(found: np.ndarray, wanted: np.ndarray, what: str, case: Case) -> str:
    odd = ~np.isclose(found, wanted, rtol=1e-2, atol=TOLERANCE[case.dtype] * np.abs(wanted).max())
    row, column = np.argwhere(odd)[0] if odd.any() else (0, 0)
    return f"{what} of {case}: at [{row}, {column}] is {found[row, column]:.5g}; expected {wanted[row, column]:.5g}"


def judge_norm(cases: Sequence[tuple[Case, np.ndarray]], tip: str) -> None:
    for case, found in cases:
        wanted = right(case.x, case.weight, case.eps)
        if not alike(found, wanted, TOLERANCE[case.dtype]):
            told = first_difference(found, wanted, "rms_norm", case)
            expect(np.isfinite(found).all(), f"{told}. {tip}")
            asked = [((each.x, each.weight, each.eps), result) for each, result in cases]
            slip = slip_of(NORM_SLIPS, asked, within(TOLERANCE[case.dtype]))
            raise Mistake(told, slip=slip or (tip if case.dtype == "float16" else None))


NAN_TIP = (
    "Around every tensor here stands NaN, and outputs are NaN until they are written: does a load reach beyond its row (a "
    "mask, with other=0.0), or is some place never stored (a row without a program, a BLOCK that is smaller than the row)?"
)


def whole_blocks(answer: Answer, rng: random.Random) -> str:
    cases = [
        some_case(rng, rows, size, eps) for rows, size, eps in ((3, 64, 1e-6), (1, 128, 0.5), (5, 16, 0.1), (2, 1, 0.3))
    ]
    judge_norm([(case, run_norm(answer, case)) for case in cases], NAN_TIP)
    return "rows that fill their block"


def other_sizes(answer: Answer, rng: random.Random) -> str:
    sizes = [(3, 100), (2, 65), (4, 3), (1, 257), (2, rng.randint(130, 250))]
    cases = [some_case(rng, rows, size, 0.05) for rows, size in sizes]
    judge_norm([(case, run_norm(answer, case)) for case in cases], NAN_TIP)
    return "any size: what is beyond the row is neither read nor written"


def strides(answer: Answer, rng: random.Random) -> str:
    cases = [some_case(rng, rows, size, 0.05, gap=gap) for rows, size, gap in ((4, 32, 5), (3, 50, 17), (2, 64, 64))]
    judge_norm(
        [(case, run_norm(answer, case)) for case in cases], f"Rows are further apart than they are long. {NAN_TIP}"
    )
    return "rows that are further apart than they are long"


def fused(answer: Answer, rng: random.Random) -> str:
    shapes = ((3, 64, 0), (2, 100, 0), (4, 33, 0), (3, 40, 7), (1, 200, 0))
    cases = [some_case(rng, rows, size, 0.05, gap=gap) for rows, size, gap in shapes]
    results = [(case, *run_add(answer, case)) for case in cases]
    for case, total, _ in results:
        if not alike(total, case.x + case.delta, TOLERANCE["float32"]):
            told = first_difference(total, case.x + case.delta, "total", case)
            tip = NAN_TIP if not np.isfinite(total).all() else "total is x + delta"
            raise Mistake(f"{told}. {tip}")
    slips = {
        "x_normed_without_delta": lambda x, d, w, eps: right(x, w, eps),
        "delta_normed": lambda x, d, w, eps: right(d, w, eps),
        "delta_added_behind_norm": lambda x, d, w, eps: right(x, w, eps) + d,
        "total_divided_root_x": lambda x, d, w, eps: (x + d) / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * w,
        **{words: lambda x, d, w, eps, slip=slip: slip(x + d, w, eps) for words, slip in NORM_SLIPS.items()},
    }
    for case, _, normed in results:
        wanted = right(case.x + case.delta, case.weight, case.eps)
        if not alike(normed, wanted, TOLERANCE["float32"]):
            told = first_difference(normed, wanted, "normed", case)
            expect(np.isfinite(normed).all(), f"{told}. {NAN_TIP}", 0.3)
            asked = [((each.x, each.delta, each.weight, each.eps), found) for each, _, found in results]
            raise Mistake(told, 0.3, slip=slip_of(slips, asked, within(TOLERANCE["float32"])))
    return "sum and norm in one launch"


def half(answer: Answer, rng: random.Random) -> str:
    tip = "Squares of numbers in the hundreds overflow in float16, which ends at 65504: load(...).to(tl.float32) first"
    for times in (1, 200):
        case = some_case(rng, 2, 90, 1e-3, "float16", times=times)
        judge_norm([(case, run_norm(answer, case))], tip)
        total, normed = run_add(answer, case)
        for found, wanted, name in (
            (total, case.x + case.delta, "total"),
            (normed, right(case.x + case.delta, case.weight, case.eps), "normed"),
        ):
            if not alike(found, wanted, TOLERANCE["float16"]):
                why = NAN_TIP if np.isnan(total).any() else tip
                raise Mistake(f"{first_difference(found, wanted, name, case)}. {why}")
    return "16 bits in and out, 32 in between"
