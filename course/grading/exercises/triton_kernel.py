"""A fused kernel in Triton: residual and RMSNorm in one launch. It runs in Triton's interpreter, on any processor."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from course.grading.arrays import within
from course.grading.tools import Answer, Mistake, Slips, compare, expect

TOLERANCE = {"float32": 1e-5, "float16": 4e-3}
LARGEST_FLOAT16 = 65504.0


def right(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(squares(x) + eps) * weight


def squares(x: np.ndarray) -> np.ndarray:
    """The mean square of each row: [rows, 1]."""
    return (x**2).mean(axis=1, keepdims=True)


def padded(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


NORM_SLIPS: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "divided_by_block": lambda x, w, eps: x / np.sqrt(squares(x) * x.shape[1] / padded(x.shape[1]) + eps) * w,
    "eps_missing": lambda x, w, eps: right(x, w, 0),
    "eps_outside_root": lambda x, w, eps: x / (np.sqrt(squares(x)) + eps) * w,
    "sum_for_mean": lambda x, w, eps: x / np.sqrt(squares(x) * x.shape[1] + eps) * w,
    "weight_missing": lambda x, w, eps: right(x, np.ones_like(w), eps),
    "subtracted_mean": lambda x, w, eps: right(x - x.mean(axis=1, keepdims=True), w, eps),
    "every_row_from_first": lambda x, w, eps: np.repeat(right(x[:1], w, eps), len(x), axis=0),
}


@dataclass
class KernelCase:
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


def slips_on(of: Callable[[KernelCase], np.ndarray]) -> dict[str, Callable[[KernelCase], np.ndarray]]:
    """The mistakes of a norm, made with what `of` takes of a case."""
    return {name: lambda case, slip=slip: slip(of(case), case.weight, case.eps) for name, slip in NORM_SLIPS.items()}


NORM_OF_X: Slips = slips_on(lambda case: case.x)
NORMED_SLIPS: Slips = {
    "normed_without_delta": lambda case: right(case.x, case.weight, case.eps),
    "delta_after_norm": lambda case: right(case.x, case.weight, case.eps) + case.delta,
    **slips_on(lambda case: case.x + case.delta),
}


def some_case(
    rng: random.Random, rows: int, size: int, eps: float = 1e-3, dtype: str = "float32", **more: float
) -> KernelCase:
    """
    Args:
        more: `gap` between rows; `times`, how large the numbers are.
    """
    draws = np.random.default_rng(rng.getrandbits(48))
    kind = np.dtype(dtype)
    x, delta = (draws.normal(0.2, 1, (rows, size)) * more.get("times", 1) for _ in range(2))
    weight = draws.uniform(0.5, 2, size)
    return KernelCase(
        *(each.astype(kind).astype(np.float64) for each in (x, delta, weight)), eps, dtype, int(more.get("gap", 0))
    )


GAPS = {"x": 1, "delta": 3, "out": 2, "total": 2, "normed": 0}
"""How far apart the rows of each tensor are, in gaps of the case."""


def run(answer: Answer, name: str, case: KernelCase, inputs: Sequence[str], outputs: Sequence[str]) -> list[np.ndarray]:
    """What a function of the answer writes into its outputs: in one launch, and nowhere else."""
    given = {each: (getattr(case, each), GAPS[each] * case.gap) for each in inputs}
    fills = {each: GAPS[each] * case.gap for each in outputs}
    seen = answer.prop("run_kernel", answer.thing(name), given, case.weight, case.eps, fills, case.dtype)
    if seen["arithmetic"]:
        raise Mistake("left_work_to_pytorch", name=name, case=case, operation=seen["arithmetic"][0])
    expect(seen["launches"] == 1, f"{name} of {case} launches {seen['launches']} kernels; one is asked for")
    for each in seen["changed"]:
        raise Mistake(f"{name} of {case} changes `{each}`, which it only reads")
    for each in seen["spilled"]:
        raise Mistake("wrote_outside", name=name, case=case, each=each, size=case.x.shape[1])
    return seen["numbers"]


def run_add(answer: Answer, case: KernelCase) -> list[np.ndarray]:
    """Total and normed."""
    return run(answer, "add_rms_norm", case, ["x", "delta"], ["total", "normed"])


def judge(
    cases: Sequence[tuple[KernelCase, np.ndarray]],
    what: str,
    wanted: Callable[[KernelCase], np.ndarray],
    slips: Slips,
    tip: str = "read_outside",
    usual: str | None = None,
    share: float = 0.0,
) -> None:
    """Hold what a kernel wrote to what it should have written.

    Args:
        tip: names what usually makes NaN of these.
        usual: names what usually is wrong with numbers that no slip explains.
        share: of the points, where it is wrong.
    """
    compare(
        what,
        [((case,), found) for case, found in cases],
        wanted,
        slips,
        agree=within(TOLERANCE[cases[0][0].dtype]),
        describe=lambda case: f"{what} of {case}",
        otherwise=lambda *_: usual,
        nan=tip,
        share=share,
    )


def judge_norm(
    answer: Answer, cases: Sequence[KernelCase], tip: str = "read_outside", usual: str | None = None
) -> None:
    found = [(case, run(answer, "rms_norm", case, ["x"], ["out"])[0]) for case in cases]
    judge(found, "rms_norm", lambda case: right(case.x, case.weight, case.eps), NORM_OF_X, tip, usual)


def right_total(case: KernelCase) -> np.ndarray:
    return case.x + case.delta


def right_normed(case: KernelCase) -> np.ndarray:
    return right(case.x + case.delta, case.weight, case.eps)


def norms(answer: Answer, rng: random.Random, shapes: Sequence[tuple[int, int, float, int]], tip: str) -> None:
    judge_norm(answer, [some_case(rng, rows, size, eps, gap=gap) for rows, size, eps, gap in shapes], tip)


def other_sizes(answer: Answer, rng: random.Random) -> None:
    sizes = [(3, 100), (2, 65), (4, 3), (1, 257), (2, rng.randint(130, 250))]
    judge_norm(answer, [some_case(rng, rows, size, 0.05) for rows, size in sizes])


def fused(answer: Answer, rng: random.Random) -> None:
    shapes = ((3, 64, 0), (2, 100, 0), (4, 33, 0), (3, 40, 7), (1, 200, 0))
    cases = [some_case(rng, rows, size, 0.05, gap=gap) for rows, size, gap in shapes]
    results = [(case, *run_add(answer, case)) for case in cases]
    judge([(case, total) for case, total, _ in results], "total", right_total, {}, usual="total is x + delta")
    judge([(case, normed) for case, _, normed in results], "normed", right_normed, NORMED_SLIPS, share=0.3)


def half(answer: Answer, rng: random.Random) -> None:
    for times in (1, 200):
        case = some_case(rng, 2, 90, 1e-3, "float16", times=times)
        judge_norm(answer, [case], "squared_in_float16", usual="squared_in_float16")
        total, normed = run_add(answer, case)
        why = "read_outside" if np.isnan(total).any() else "squared_in_float16"
        judge([(case, total)], "total", right_total, {}, why, usual=why)
        judge([(case, normed)], "normed", right_normed, {}, why, usual=why)
    # What x + delta is in float16 is infinite here, and stored as such; its norm is not.
    case = replace(case, x=np.full_like(case.x, LARGEST_FLOAT16), delta=np.full_like(case.x, LARGEST_FLOAT16 / 2))
    judge([(case, run_add(answer, case)[1])], "normed", right_normed, {}, "added_in_float16", usual="added_in_float16")
