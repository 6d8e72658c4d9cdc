"""Weights in 8 bits: one scale for each output row, then one for each group of inputs."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from course.grading.arrays import array, finite, within
from course.grading.blame import shown
from course.grading.tools import Answer, Mistake, Slips, compare, expect, hold, refused

TOP = 127
STEP = 0.5 + 1e-3
"""How far a rounded number may be from the exact one, in steps: float32 is not exact either."""


def right_scales(weight: np.ndarray) -> np.ndarray:
    """[out, in] -> [out] float64."""
    return np.abs(weight.astype(np.float64)).max(axis=1) / TOP


def per_row(weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """What an answer with this mistake calls the scales."""
    return np.broadcast_to(np.asarray(scales, dtype=np.float64), (len(weight),))


SCALE_SLIPS = {
    "one_scale_for_matrix": lambda w: per_row(w, np.abs(w).max() / TOP),
    "maximum_of_columns": lambda w: np.abs(w).max(axis=0) / TOP,
    "divided_by_128": lambda w: np.abs(w).max(axis=1) / 128,
    "divided_by_255": lambda w: np.abs(w).max(axis=1) / 255,
    "asymmetric_range": lambda w: (w.max(axis=1) - w.min(axis=1)) / 255,
    "maximum_without_abs": lambda w: w.max(axis=1) / TOP,
}
NUMBER_SLIPS = {
    "truncated": lambda w: np.trunc(w / right_scales(w)[:, None]),
    "rounded_down": lambda w: np.floor(w / right_scales(w)[:, None]),
    "scales_along_columns": lambda w: np.rint(w / right_scales(w)),
    "grid_of_one_scale": lambda w: np.rint(w / np.abs(w).max() * TOP),
    "added_half_and_truncated": lambda w: np.trunc(w / right_scales(w)[:, None] + 0.5),
}


def some_weights(rng: random.Random, out: int, inputs: int) -> np.ndarray:
    """[out, in] float32, rows of different sizes; the largest of every second row is negative."""
    draws = np.random.default_rng(rng.getrandbits(48))
    weight = draws.normal(size=(out, inputs)) * 10.0 ** draws.uniform(-2, 1, size=(out, 1))
    for row, sign in zip(weight, (-1, 1) * out):
        largest = np.abs(row).argmax()
        row[largest] = sign * abs(row[largest]) * 1.3
    return weight.astype(np.float32)


def read(pair: Any, what: str, out: int, inputs: int, groups: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and scales, as float64; numbers must be int8."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise Mistake(f"{what} should give two things, the numbers and the scales; yours gave {shown(pair)}")
    numbers, scales = pair
    if getattr(numbers, "dtype", None) != np.int8:
        kind = getattr(numbers, "dtype", type(numbers).__name__)
        raise Mistake(f"{what}: the numbers should be an array of dtype int8, one byte each; yours are {kind}")
    shape = (out,) if groups is None else (out, groups)
    found = finite(scales, f"the scales of {what}", shape, "Was something divided by zero?")
    return array(numbers, f"the numbers of {what}", (out, inputs)), found


def asked(answer: Answer, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return read(answer.quantize(weight.copy()), f"quantize of a {list(weight.shape)} matrix", *weight.shape)


def scales_agree(found: np.ndarray, wanted: np.ndarray) -> bool:
    """A row of zeros may have any scale."""
    return bool(np.allclose(found[wanted != 0], wanted[wanted != 0], rtol=1e-4, atol=0))


def first_scale(arguments: tuple[np.ndarray], found: np.ndarray, wanted: np.ndarray) -> str:
    """The first row with a wrong scale, in words."""
    row = int(((wanted > 0) & ~np.isclose(found, wanted, rtol=1e-4, atol=0)).argmax())
    return (
        f"row {row}, whose largest |w| is {np.abs(arguments[0][row]).max():.4g}, got the scale {found[row]:.4g}; "
        f"expected {wanted[row]:.4g}, a 127th of it"
    )


def nearly_right(arguments: tuple[np.ndarray], found: np.ndarray) -> str | None:
    wanted = right_scales(*arguments)
    is_near = np.allclose(found[wanted > 0], wanted[wanted > 0], rtol=2e-3, atol=0)
    return "that is right to three digits: is the scale kept in 16 bits, or rounded?" if is_near else None


def hold_scales(weights: list[np.ndarray], found: list[np.ndarray]) -> None:
    cases = [((weight,), scales) for weight, scales in zip(weights, found)]
    compare(
        "quantize",
        cases,
        right_scales,
        SCALE_SLIPS,
        agree=scales_agree,
        otherwise=nearly_right,
        difference=first_scale,
    )


def steps_of(weight: np.ndarray) -> np.ndarray:
    """[out, in]: each weight in steps of the right grid, not rounded."""
    scales = right_scales(weight)
    return weight / np.where(scales > 0, scales, 1)[:, None]


def number_slip(weights: list[np.ndarray], found: list[np.ndarray]) -> str | None:
    """The usual mistake that gives these numbers. Weights that lie on a step say nothing: float32 may be on either side."""
    telling = [np.abs(steps - np.rint(steps)) > 1e-3 for steps in map(steps_of, weights)]
    with np.errstate(all="ignore"):
        for words, mistaken in NUMBER_SLIPS.items():
            if all((mistaken(w) == n)[t].all() for w, n, t in zip(weights, found, telling)):
                return words
    return None


def hold_numbers(weights: list[np.ndarray], found: list[np.ndarray], tip: str | None = None) -> None:
    """Each number is the nearest step of the right grid; a half may go either way.

    Args:
        tip: what it may be if it is none of the usual mistakes.
    """
    for weight, numbers in zip(weights, found):
        if (numbers == -128).any():
            row, column = np.argwhere(numbers == -128)[0]
            raise Mistake("wrapped_to_minus_128", w=weight[row, column], at=[int(row), int(column)])
        exact = steps_of(weight)
        wrong = np.abs(numbers - exact) > STEP
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            about = {"w": weight[row, column], "steps": exact[row, column], "number": numbers[row, column]}
            raise Mistake("not_the_nearest_step", slip=number_slip(weights, found) or tip, **about)


def hold_both(weight: np.ndarray, numbers: np.ndarray, scales: np.ndarray) -> None:
    hold_scales([weight], [scales])
    hold_numbers([weight], [numbers])


def scales_of_rows(answer: Answer, rng: random.Random) -> None:
    # Squares first: there, rows that were taken for columns raise nothing.
    for shapes in (((4, 4), (6, 6), (9, 9)), ((3, 17), (1, 9), (5, 1))):
        weights = [some_weights(rng, *shape) for shape in shapes]
        hold_scales(weights, [asked(answer, weight)[1] for weight in weights])


def nearest_steps(answer: Answer, rng: random.Random) -> None:
    weights = [some_weights(rng, size, size) for size in (5, 8, 24)]
    hold_numbers(weights, [asked(answer, weight)[0] for weight in weights])


def right_back(numbers: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Scales [out], or [out, groups]."""
    wide = scales.astype(np.float64).reshape(len(numbers), -1)
    return numbers * np.repeat(wide, numbers.shape[1] // wide.shape[1], axis=1)


BACK_SLIPS: Slips = {"scales_along_columns": lambda n, s: n * s.astype(np.float64)}
BOUND_SLIPS: Slips = {"bound_of_whole_step": lambda s: s, "bound_is_rms": lambda s: s / np.sqrt(12)}


def shaped(*shape: int) -> Callable[[Any, str], np.ndarray]:
    """A reader of finite numbers."""
    return lambda value, what: finite(value, what, shape)


def back_again(answer: Answer, rng: random.Random) -> None:
    draws = np.random.default_rng(rng.getrandbits(48))
    for size in (4, 7):
        numbers = draws.integers(-127, 128, size=(size, size)).astype(np.int8)
        scales = draws.uniform(0.01, 2, size).astype(np.float32)
        hold(answer.dequantize, [(numbers, scales)], right_back, BACK_SLIPS, shaped(size, size), agree=within(1e-5))


def bound(answer: Answer, rng: random.Random) -> None:
    draws = np.random.default_rng(rng.getrandbits(48))
    scales = draws.uniform(0.001, 3, 6).astype(np.float32)
    hold(answer.error_bound, [(scales,)], lambda s: s / 2.0, BOUND_SLIPS, shaped(6), agree=within(1e-5))


def edges(answer: Answer, rng: random.Random) -> None:
    zeros = some_weights(rng, 4, 6)
    zeros[1] = 0
    numbers, scales = asked(answer, zeros)
    if numbers[1].any():
        raise Mistake(f"a row of zeros became {numbers[1].tolist()}: zeros stay zeros, whatever the scale")
    hold_both(zeros, numbers, scales)
    with np.errstate(all="ignore"):
        again = answer.dequantize(*answer.quantize(np.zeros((2, 3), dtype=np.float32)))
    expect(not np.any(finite(again, "a matrix of zeros, there and back,", (2, 3))), "zeros_not_kept")
    tiny = some_weights(rng, 3, 5)
    tiny[0] *= 1e-6 / np.abs(tiny[0]).max()
    numbers, scales = asked(answer, tiny)
    if np.abs(numbers[0]).max() < TOP:
        raise Mistake("scale_too_large", largest=np.abs(tiny[0]).max(), steps=np.abs(numbers[0]).max())
    outlier = some_weights(rng, 4, 8)
    outlier[2, 3] = -500 * np.abs(outlier).max()
    hold_both(outlier, *asked(answer, outlier))
    wide = some_weights(rng, 12, 5)
    for view, name in ((wide[::2], "every second row of a matrix"), (np.asfortranarray(wide), "a transposed matrix")):
        numbers, scales = read(answer.quantize(view), name, *view.shape)
        hold_both(view, numbers, scales)


def right_groups(weight: np.ndarray, group: int) -> np.ndarray:
    """[out, in] -> scales [out, in / group]."""
    return np.abs(weight.astype(np.float64)).reshape(len(weight), -1, group).max(axis=2) / TOP


def interleaved(weight: np.ndarray, group: int) -> np.ndarray:
    """Every so many-th input together."""
    return np.abs(weight.astype(np.float64)).reshape(len(weight), group, -1).max(axis=1) / TOP


GROUP_SLIPS = {
    "groups_interleaved": interleaved,
    "row_scale_in_every_group": lambda w, g: np.repeat(right_scales(w)[:, None], w.shape[1] // g, axis=1),
    "group_taken_as_count": lambda w, g: right_groups(w, w.shape[1] // g),
}


TILED_SLIPS: Slips = {"tiled_scales": lambda n, s: n * np.tile(s, (1, n.shape[1] // s.shape[1]))}


def groups(answer: Answer, rng: random.Random) -> str:
    cases: list[tuple[tuple[np.ndarray, int], np.ndarray]] = []
    errors = {}
    for out, inputs, group in ((3, 12, 4), (1, 12, 3), (4, 6, 2), (2, 8, 8), (3, 5, 1), (2, 96, 32)):
        weight = some_weights(rng, out, inputs)
        weight[:, 0] *= 60  # an outlier in the first group
        what = f"quantize_groups of a {[out, inputs]} matrix, group={group}"
        numbers, scales = read(answer.quantize_groups(weight, group), what, out, inputs, inputs // group)
        cases.append(((weight, group), scales))
        about = {"agree": within(1e-4), "describe": lambda *_, what=what: f"the scales of {what}:"}
        compare("quantize_groups", cases, right_groups, GROUP_SLIPS, **about)
        rows = [each.reshape(-1, group) for each in (weight, numbers)]  # every group is a row
        hold_numbers(rows[:1], rows[1:], f"in {what}: is it rounded with the scale of another group?")
        own = numbers.astype(np.int8), scales.astype(np.float32)
        about = {"agree": within(1e-5), "describe": lambda *_, g=group: f"dequantize_groups, in groups of {g},"}
        [(_, back)] = hold(answer.dequantize_groups, [own], right_back, TILED_SLIPS, shaped(out, inputs), **about)
        by_row = np.rint(steps_of(weight)) * right_scales(weight)[:, None]
        errors[group] = float(np.abs(back - weight).mean()), float(np.abs(by_row - weight).mean())
    few, many = errors[32]
    return f"beside an outlier, groups of 32 err by {few:.2g} on average; whole rows by {many:.2g}"


def refuses_groups(answer: Answer, rng: random.Random) -> None:
    weight = some_weights(rng, 2, 10)
    weight[1, :5] = 0  # a group of zeros
    numbers, _ = read(answer.quantize_groups(weight.copy(), 5), "quantize_groups with a group of zeros", 2, 10, 2)
    if numbers[1, :5].any():
        raise Mistake(f"a group of zeros became {numbers[1, :5].tolist()}")
    hold_numbers([weight[:1, :5]], [numbers[:1, :5]])
    for group in (3, 4, 20):
        about = f"quantize_groups of a [2, 10] matrix, group={group}"
        why = f"10 inputs do not divide into groups of {group}"
        refused(ValueError, about, why, lambda group=group: answer.quantize_groups(weight.copy(), group))
