"""Weights in 8 bits: one scale for each output row, then one for each group of inputs."""

import random
from typing import Any

import numpy as np

from course.lab.grading.arrays import alike, array, finite, slip_between, unchanged, with_slip
from course.lab.grading.blame import shown
from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part

TOP = 127
STEP = 0.5 + 1e-3
"""How far a rounded number may be from the exact one, in steps: float32 is not exact either."""


def right_scales(weight: np.ndarray) -> np.ndarray:
    """[out, in] -> [out] float64."""
    return np.abs(weight.astype(np.float64)).max(axis=1) / TOP


def per_row(weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """What somebody with these scales calls the scales."""
    return np.broadcast_to(np.asarray(scales, dtype=np.float64), (len(weight),))


SCALE_SLIPS = {
    "that is one scale for the whole matrix, repeated: each row has its own, so that a large row does not coarsen the "
    "others": lambda w: per_row(w, np.abs(w).max() / TOP),
    "that is each column's largest: a row is one output, so take the maximum over axis 1":
        lambda w: np.abs(w).max(axis=0) / TOP,
    "that divides by 128: then the largest weight becomes 128, which int8 does not have. The grid ends at 127":
        lambda w: np.abs(w).max(axis=1) / 128,
    "that divides by 255: the grid goes from -127 to 127, so the largest weight is 127 steps from zero":
        lambda w: np.abs(w).max(axis=1) / 255,
    "that spreads the range from smallest to largest over 255 steps: that is asymmetric. Here zero stays zero, and the "
    "scale is max |w| / 127": lambda w: (w.max(axis=1) - w.min(axis=1)) / 255,
    "that spreads the range from smallest to largest over 254 steps: that is asymmetric. Here zero stays zero, and the "
    "scale is max |w| / 127": lambda w: (w.max(axis=1) - w.min(axis=1)) / 254,
    "that is the largest weight without abs(): a row's largest |w| may be a negative one": lambda w: w.max(axis=1) / TOP,
    "that is the inverse, 127 / max |w|: the scale is what one step is worth": lambda w: TOP / np.abs(w).max(axis=1),
    "that is max |w| itself: one step of the grid is a 127th of it": lambda w: np.abs(w).max(axis=1),
    "that is the mean of |w|: the grid has to reach the largest": lambda w: np.abs(w).mean(axis=1) / TOP,
}  # fmt: skip
NUMBER_SLIPS = {
    "that cuts off behind the point (astype does): up to a whole step of error. Round to the nearest":
        lambda w: np.trunc(w / right_scales(w)[:, None]),
    "that rounds down (floor): up to a whole step of error, always to the same side. Round to the nearest":
        lambda w: np.floor(w / right_scales(w)[:, None]),
    "that rounds up (ceil): round to the nearest": lambda w: np.ceil(w / right_scales(w)[:, None]),
    "that multiplies by the scale: divide by it": lambda w: np.rint(w * right_scales(w)[:, None]),
    "the scales of the rows went along the columns: they need a second axis, scales[:, None]":
        lambda w: np.rint(w / right_scales(w)),
    "that is the grid of one scale for the whole matrix: each row has its own": lambda w: np.rint(w / np.abs(w).max() * TOP),
    "that is the grid of the columns' scales: a row is one output, so take the maximum over axis 1":
        lambda w: np.rint(w / (np.abs(w).max(axis=0) / TOP)),
    "that adds 0.5 and cuts off behind the point, which is right for positive numbers only":
        lambda w: np.trunc(w / right_scales(w)[:, None] + 0.5),
}  # fmt: skip


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


def hold_scales(weights: list[np.ndarray], found: list[np.ndarray]) -> None:
    for weight, scales in zip(weights, found):
        wanted = right_scales(weight)
        nonzero = wanted > 0
        wrong = nonzero & ~np.isclose(scales, wanted, rtol=1e-4, atol=0)
        if wrong.any():
            row = int(wrong.argmax())
            told = (
                f"row {row}, whose largest |w| is {np.abs(weight[row]).max():.4g}, got the scale {scales[row]:.4g}; "
                f"expected {wanted[row]:.4g}, a 127th of it"
            )
            slip = slip_between(SCALE_SLIPS, [((w,), s) for w, s in zip(weights, found)], 1e-4)
            if slip is None and np.allclose(scales[nonzero], wanted[nonzero], rtol=2e-3, atol=0):
                slip = "that is right to three digits: is the scale kept in 16 bits, or rounded?"
            raise Mistake(with_slip(told, slip))


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
            raise Mistake(
                f"w = {weight[row, column]:.4g} at {[int(row), int(column)]} became -128: the grid is symmetric, from -127 "
                "to 127. A number beyond 127 that becomes int8 wraps around to -128: divide by max |w| / 127"
            )
        exact = steps_of(weight)
        wrong = np.abs(numbers - exact) > STEP
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            told = (
                f"w = {weight[row, column]:.4g} is {exact[row, column]:.3f} steps and became "
                f"{numbers[row, column]:.0f}; expected {round(float(exact[row, column]))}"
            )
            raise Mistake(with_slip(told, number_slip(weights, found) or tip))


def scales_of_rows(answer: Answer, rng: random.Random) -> str:
    # Squares first: there, rows that were taken for columns raise nothing.
    for shapes in (((4, 4), (6, 6), (9, 9)), ((3, 17), (1, 9), (5, 1))):
        weights = [some_weights(rng, *shape) for shape in shapes]
        hold_scales(weights, [asked(answer, weight)[1] for weight in weights])
    return "a 127th of each row's largest |w|"


def nearest_steps(answer: Answer, rng: random.Random) -> str:
    weights = [some_weights(rng, size, size) for size in (5, 8, 24)]
    hold_numbers(weights, [asked(answer, weight)[0] for weight in weights])
    return "every weight is at the nearest step, from -127 to 127"


def back_again(answer: Answer, rng: random.Random) -> str:
    draws = np.random.default_rng(rng.getrandbits(48))
    for size in (4, 7):
        numbers = draws.integers(-127, 128, size=(size, size)).astype(np.int8)
        scales = draws.uniform(0.01, 2, size).astype(np.float32)
        given = numbers.copy(), scales.copy()
        found = finite(answer.dequantize(*given), "dequantize(numbers, scales)", numbers.shape)
        unchanged((numbers, scales), given, ("numbers", "scales"))
        wanted = numbers * scales.astype(np.float64)[:, None]
        if not alike(found, wanted, 1e-5):
            slips = {
                "the scales of the rows went along the columns: they need a second axis, scales[:, None]":
                    lambda n, s: n * s.astype(np.float64),
                "that divides by the scales: multiply": lambda n, s: n / s.astype(np.float64)[:, None],
                "the scales were made int8 there, and lost what is behind the point": lambda n, s: n * np.trunc(s)[:, None],
                "the products were kept in int8, where they are cut off": lambda n, s: np.trunc(n * s[:, None]),
            }  # fmt: skip
            told = f"row 0, numbers {numbers[0].tolist()} with scale {scales[0]:.3g}, became {shown(found[0].tolist())}"
            raise Mistake(with_slip(told, slip_between(slips, [((numbers, scales), found)], 1e-5)))
    return "numbers times the scale of their row"


def bound(answer: Answer, rng: random.Random) -> str:
    draws = np.random.default_rng(rng.getrandbits(48))
    scales = draws.uniform(0.001, 3, 6).astype(np.float32)
    found = finite(answer.error_bound(scales.copy()), "error_bound(scales)", (6,))
    if alike(found, scales / 2.0, 1e-5):
        return "half a step of each row, and nothing less would hold"
    slips = {
        "that is a whole step, which is the bound for cutting off: a number that is rounded is at most half a step away":
            lambda s: s,
        "that is twice a step: a number that is rounded is at most half a step away": lambda s: s * 2,
        "that is max |w|: a number that is rounded is at most half a step away": lambda s: s * TOP,
        "that is half of max |w|: a step is a 127th of it": lambda s: s * TOP / 2,
        "that is the average error of a uniform distribution: the bound holds for the worst weight": lambda s: s / 4,
        "that is the root mean square error, step / sqrt(12): the bound holds for the worst weight":
            lambda s: s / np.sqrt(12),
    }  # fmt: skip
    told = f"for the scale {scales[0]:.4g} the bound is {found[0]:.4g}; expected {scales[0] / 2:.4g}"
    raise Mistake(with_slip(told, slip_between(slips, [((scales,), found)], 1e-5)))


def edges(answer: Answer, rng: random.Random) -> str:
    zeros = some_weights(rng, 4, 6)
    zeros[1] = 0
    numbers, scales = asked(answer, zeros)
    if numbers[1].any():
        raise Mistake(f"a row of zeros became {numbers[1].tolist()}: zeros stay zeros, whatever the scale")
    hold_scales([zeros], [scales])
    hold_numbers([zeros], [numbers])
    with np.errstate(all="ignore"):
        again = answer.dequantize(*answer.quantize(np.zeros((2, 3), dtype=np.float32)))
    if np.any(finite(again, "a matrix of zeros, there and back,", (2, 3))):
        raise Mistake("a matrix of zeros, there and back, is not zero any more")
    tiny = some_weights(rng, 3, 5)
    tiny[0] *= 1e-6 / np.abs(tiny[0]).max()
    numbers, scales = asked(answer, tiny)
    if np.abs(numbers[0]).max() < TOP:
        raise Mistake(
            f"a row of weights around {np.abs(tiny[0]).max():.1g} uses only {np.abs(numbers[0]).max():.0f} of 127 steps: "
            "its scale is too large. Was something added to it against division by zero? Treat zero on its own"
        )
    outlier = some_weights(rng, 4, 8)
    outlier[2, 3] = -500 * np.abs(outlier).max()
    numbers, scales = asked(answer, outlier)
    hold_scales([outlier], [scales])
    hold_numbers([outlier], [numbers])
    wide = some_weights(rng, 12, 5)
    for view, name in ((wide[::2], "every second row of a matrix"), (np.asfortranarray(wide), "a transposed matrix")):
        given = view.copy()
        numbers, scales = read(answer.quantize(view), name, *view.shape)
        unchanged((given,), (view,), ("weight",))
        hold_scales([view], [scales])
        hold_numbers([view], [numbers])
    return "zeros, tiny rows, outliers and views: right, and the weights are left alone"


def right_groups(weight: np.ndarray, group: int) -> np.ndarray:
    """[out, in] -> scales [out, in / group]."""
    return np.abs(weight.astype(np.float64)).reshape(len(weight), -1, group).max(axis=2) / TOP


def interleaved(weight: np.ndarray, group: int) -> np.ndarray:
    """Every so many-th input together."""
    return np.abs(weight.astype(np.float64)).reshape(len(weight), group, -1).max(axis=1) / TOP


GROUP_SLIPS = {
    "every so many-th input shares a scale there: a group is neighbours, inputs 0 to group - 1, and so on": interleaved,
    "that is the scale of the whole row, in every group": lambda w, g: np.repeat(
        right_scales(w)[:, None], w.shape[1] // g, axis=1
    ),
    "rows share scales there: groups are taken within a row": lambda w, g: np.broadcast_to(
        right_groups(w, g).max(axis=0), (len(w), w.shape[1] // g)
    ),
    "`group` is how many inputs share a scale, not how many groups there are": lambda w, g: right_groups(
        w, w.shape[1] // g
    ),
}


def groups(answer: Answer, rng: random.Random) -> str:
    cases: list[tuple[tuple[np.ndarray, int], np.ndarray]] = []
    errors = {}
    for out, inputs, group in ((3, 12, 4), (4, 6, 2), (2, 8, 8), (3, 5, 1), (2, 96, 32)):
        weight = some_weights(rng, out, inputs)
        weight[:, 0] *= 60  # an outlier in the first group
        given, what = weight.copy(), f"quantize_groups({[out, inputs]}, group={group})"
        numbers, scales = read(answer.quantize_groups(given, group), what, out, inputs, inputs // group)
        unchanged((weight,), (given,), ("weight",))
        cases.append(((weight, group), scales))
        if not alike(scales, right_groups(weight, group), 1e-4):
            slip = slip_between(GROUP_SLIPS, cases, 1e-4)
            wanted = right_groups(weight, group)[0]
            told = f"{what}: row 0 has scales {shown(scales[0].tolist())}; expected {shown(wanted.tolist())}"
            raise Mistake(with_slip(told, slip))
        rows = [each.reshape(-1, group) for each in (weight, numbers)]  # every group is a row
        hold_numbers(rows[:1], rows[1:], f"in {what}: is it rounded with the scale of another group?")
        own = numbers.astype(np.int8), scales.astype(np.float32)
        back = finite(
            answer.dequantize_groups(*own), f"dequantize_groups, {inputs} inputs in groups of {group}", weight.shape
        )
        wanted = numbers * np.repeat(scales, group, axis=1)
        if not alike(back, wanted, 1e-5):
            tiled = numbers * np.tile(scales, (1, group))
            raise Mistake(
                f"dequantize_groups of row 0, {inputs} inputs in groups of {group}, gave {shown(back[0].tolist())}; expected "
                f"{shown(wanted[0].tolist())}."
                + (
                    " Scales repeat one after the other there: repeat each `group` times"
                    if alike(back, tiled, 1e-5)
                    else ""
                )
            )
        by_row = np.rint(steps_of(weight)) * right_scales(weight)[:, None]
        errors[group] = float(np.abs(back - weight).mean()), float(np.abs(by_row - weight).mean())
    few, many = errors[32]
    return f"beside an outlier, groups of 32 err by {few:.2g} on average; whole rows by {many:.2g}"


def refuses_groups(answer: Answer, rng: random.Random) -> str:
    weight = some_weights(rng, 2, 10)
    weight[1, :5] = 0  # a group of zeros
    numbers, _ = read(answer.quantize_groups(weight.copy(), 5), "quantize_groups with a group of zeros", 2, 10, 2)
    if numbers[1, :5].any():
        raise Mistake(f"a group of zeros became {numbers[1, :5].tolist()}")
    hold_numbers([weight[:1, :5]], [numbers[:1, :5]])
    for group in (3, 4, 20):
        try:
            found = answer.quantize_groups(weight.copy(), group)
        except ValueError:
            continue
        except NotImplementedError:
            raise
        except Exception as error:
            raise Mistake(
                f"10 inputs in groups of {group} raised {type(error).__name__}; expected ValueError", 0.3
            ) from None
        raise Mistake(f"10 inputs do not divide into groups of {group}; expected ValueError, got {shown(found)}")
    return "zeros are kept, and what does not divide is refused"


EXERCISE = Exercise(
    id="int8-quantization",
    title="Weights in 8 bits, by row and by group",
    lesson=9,
    difficulty=2,
    minutes=30,
    entry_points=("quantize", "dequantize", "error_bound", "quantize_groups", "dequantize_groups"),
    parts=(
        Part("a scale for each row", 2, scales_of_rows),
        Part("the nearest step", 2, nearest_steps),
        Part("back again", 1, back_again),
        Part("the bound", 1, bound),
        Part("zeros, outliers, views", 2, edges),
        Part("groups", 3, groups),
        Part("groups: edges", 1, refuses_groups),
    ),
    hints=(
        Hint("np.rint rounds to the nearest; astype(np.int8) alone cuts off. Round first, then convert.", 0.1),
        Hint("Where the scale is 0, divide by 1 instead: np.where(scales > 0, scales, 1).", 0.1),
        Hint("weight.reshape(-1, group) makes every group a row. Then quantize() does the work, and reshape puts it back.",
             0.15),
    ),
)  # fmt: skip
