"""FlashAttention's core: softmax-weighted values in one pass over tiles, and two partial results made one."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from course.grading.arrays import alike, array, unchanged, within
from course.grading.tools import Answer, compare, expect, shown, slip_of

Tile = tuple[np.ndarray, np.ndarray]
"""Scores [n] and values [n, d] of n keys."""
GRID = 64
"""Scores are whole 64ths: exact in float32 too, however large they are."""
TOLERANCE = 2e-5
"""Float32 is good enough."""


def whole_row(tiles: Sequence[Tile]) -> Tile:
    """All scores and all values."""
    return np.concatenate([scores for scores, _ in tiles]), np.concatenate([values for _, values in tiles])


def right(tiles: Sequence[Tile]) -> np.ndarray:
    """The textbook: all scores in one row. [d]"""
    scores, values = whole_row(tiles)
    if not np.isfinite(scores).any():
        return np.zeros(values.shape[1])
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


Factor = Callable[[float, float], float]


def fold(tiles: Sequence[Tile], sum_factor: Factor, value_factor: Factor) -> np.ndarray:
    """One pass; the factors say what (old largest, new largest) does to what was summed so far."""
    largest, total, weighted = -np.inf, 0.0, np.zeros(tiles[0][1].shape[1])
    for scores, values in tiles:
        new = max(largest, scores.max(initial=-np.inf))
        if new == -np.inf:
            continue
        weights = np.exp(scores - new)
        total = total * sum_factor(largest, new) + weights.sum()
        weighted = weighted * value_factor(largest, new) + weights @ values
        largest = new
    return weighted / total


def shrunk(old: float, new: float) -> float:
    return float(np.exp(old - new))


def upside_down(old: float, new: float) -> float:
    return float(np.exp(new - old)) if np.isfinite(old) else 1.0


def averaged(parts: Sequence[Sequence[Tile]], weigh: Callable[[np.ndarray], float]) -> np.ndarray:
    """The parts' own results, mixed by what is made of their scores."""
    weights = [weigh(whole_row(part)[0]) for part in parts]
    return np.average([right(part) for part in parts], axis=0, weights=weights)


def each_alone(tiles: Sequence[Tile]) -> list[list[Tile]]:
    return [[tile] for tile in tiles if len(tile[0])]


def own_sum(scores: np.ndarray) -> float:
    return float(np.exp(scores - scores.max()).sum())


SLIPS: Mapping[str, Callable[[Sequence[Tile]], np.ndarray]] = {
    "nothing_rescaled": lambda tiles: fold(tiles, lambda *_: 1, lambda *_: 1),
    "values_not_rescaled": lambda tiles: fold(tiles, shrunk, lambda *_: 1),
    "sum_not_rescaled": lambda tiles: fold(tiles, lambda *_: 1, shrunk),
    "rescale_factor_inverted": lambda tiles: fold(tiles, upside_down, upside_down),
    "averaged_tiles": lambda tiles: averaged(each_alone(tiles), lambda scores: 1),
    "averaged_tiles_by_size": lambda tiles: averaged(each_alone(tiles), len),
    "not_divided_by_sum": lambda tiles: right(tiles) * own_sum(whole_row(tiles)[0]),
}


def key_by_key(mistaken: Callable[[Sequence[Tile]], np.ndarray]) -> Callable[[Sequence[Tile]], np.ndarray]:
    """The same mistake in an answer that goes through a tile one key at a time."""

    def of_keys(tiles: Sequence[Tile]) -> np.ndarray:
        scores, values = whole_row(tiles)
        return mistaken([(scores[i : i + 1], values[i : i + 1]) for i in range(len(scores))])

    return of_keys


KEY_SLIPS = {name: key_by_key(mistaken) for name, mistaken in SLIPS.items() if "rescale" in name}


MERGE_SLIPS: Mapping[str, Callable[..., np.ndarray]] = {
    "merged_without_rescaling": lambda one, other: averaged([one, other], own_sum),
    "merged_by_average": lambda one, other: averaged([one, other], lambda scores: 1),
}


def some_tiles(rng: random.Random, sizes: Sequence[int], centers: Sequence[float], dim: int) -> list[Tile]:
    """A tile of each size, its scores around a center."""
    draws = np.random.default_rng(rng.getrandbits(48))
    return [
        (np.round(draws.normal(center, 1.5, size) * GRID) / GRID, draws.normal(size=(size, dim)))
        for size, center in zip(sizes, centers, strict=True)
    ]


def state_after(answer: Answer, tiles: Iterable[Tile], dim: int) -> Any:
    state = empty(answer, dim)
    for scores, values in tiles:
        state = added(answer, state, scores, values)
    return state


def empty(answer: Answer, dim: int) -> Any:
    return answer.changing("empty", dim)[0]  # a state of a class of its own stays what it is


def added(answer: Answer, state: Any, scores: np.ndarray, values: np.ndarray) -> Any:
    """The state after one more tile. The old one may be changed by that, the arrays may not."""
    found, (_, *now) = answer.changing("add", state, scores, values)
    expect(found is not None, "add(state, scores, values) gave back None: it returns the state after this tile")
    unchanged((scores, values), now, ("scores", "values"))
    return found


def result(answer: Answer, state: Any, dim: int) -> np.ndarray:
    return array(answer.result(state), "result(state)", (dim,))


def computed(answer: Answer, tiles: list[Tile], dim: int) -> tuple[list[Tile], np.ndarray]:
    """Tiles, and the result for them."""
    return tiles, result(answer, state_after(answer, tiles, dim), dim)


def described(tiles: Sequence[Tile]) -> str:
    rows = [shown([round(float(score), 2) for score in scores]) for scores, _ in tiles[:4]]
    return f"tiles with scores {', '.join(rows)}{' and more' if len(tiles) > 4 else ''}"


def judge(cases: Sequence[tuple[list[Tile], np.ndarray]], tip: str = "", what: str = "") -> None:
    """Hold results to the textbook's.

    Args:
        cases: tiles and result.
        tip: names what usually makes NaN (or zeros) of these.
        what: what was done with them.
    """
    asked = [((tiles,), found) for tiles, found in cases]
    # Where all is masked, and zeros are right, wrong answers may be right as well.
    telling = [case for case in asked if right(*case[0]).any()]

    def slip(_: tuple[list[Tile]], found: np.ndarray) -> str | None:
        if not (np.isfinite(found).all() and found.any()):
            return tip
        return slip_of(SLIPS, telling, within(TOLERANCE)) or slip_of(KEY_SLIPS, telling, within(TOLERANCE))

    about = {"agree": within(TOLERANCE), "describe": lambda tiles: described(tiles) + what}
    compare("result", asked, right, {}, otherwise=slip, **about)


def one_tile(answer: Answer, rng: random.Random) -> None:
    cases = []
    for size, dim in ((5, 3), (1, 2), (16, 4), (2, 1), (33, 8)):
        cases.append(computed(answer, some_tiles(rng, [size], [rng.uniform(-2, 2)], dim), dim))
    judge([*cases, computed(answer, [(np.full(4, 1.5), np.eye(4))], 4)])


def many_tiles(answer: Answer, rng: random.Random) -> None:
    cases = []
    for sizes, centers in (
        ((4, 4, 4), (0, 2, 4)),  # the largest score grows
        ((4, 4, 4), (4, 2, 0)),  # it never does
        ((1, 7, 2, 5), (1, -1, 3, 0)),
        ((3, 0, 6), (0, 0, 1)),  # nothing in a tile
        (tuple([1] * 12), tuple(rng.uniform(-3, 3) for _ in range(12))),
    ):
        cases.append(computed(answer, some_tiles(rng, sizes, centers, 3), 3))
    judge(cases, "empty_tile")
    tiles = cases[2][0]
    for order in ([3, 2, 1, 0], [2, 0, 3, 1]):
        judge([computed(answer, [tiles[i] for i in order], 3)])


def masked(answer: Answer, rng: random.Random) -> None:
    cases = []
    for hidden in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
        tiles = some_tiles(rng, (4, 3, 5), (0, 1, 2), 3)
        for tile in hidden:
            tiles[tile][0][:] = -np.inf
        for scores, _ in tiles:
            scores[rng.randrange(len(scores))] = -np.inf
        cases.append(computed(answer, tiles, 3))
    judge(cases, "masked_scores_give_nan")
    nothing = result(answer, empty(answer, 3), 3)
    expect(not nothing.any(), f"where no tile was added at all, result gave {shown(nothing.tolist())}; expected zeros")


def large(answer: Answer, rng: random.Random) -> str:
    for far in (900.0, 5000.0):
        for tip, centers in (
            ("exp_overflows", (far, far + 3, far)),
            ("exp_vanishes", (-far, -far - 3, -far)),
            ("one_large_score", (-far, far, far - 2)),
        ):
            judge([computed(answer, some_tiles(rng, (4, 5, 3), each, 2), 2) for each in (centers, centers[::-1])], tip)
    return "scores of thousands, on either side of zero, neither overflow nor vanish"


def merged(answer: Answer, rng: random.Random) -> None:
    cases, three, pairs = [], [], []
    for centers in ((0, 1, 4, 2), (5, 2, 0, 1), (0, 0, 0, 0), (700, -700, 900, -900), (-900, 0, -800, 1)):
        for cut in (1, 2, 3):
            tiles = some_tiles(rng, (3, 5, 2, 4), centers, 3)
            parts = [state_after(answer, part, 3) for part in (tiles[:cut], tiles[cut:])]
            cases.append((tiles, result(answer, merge(answer, *parts), 3)))
            pairs.append(((tiles[:cut], tiles[cut:]), cases[-1][1]))
    expect(not (slip := slip_of(MERGE_SLIPS, pairs, within(TOLERANCE))), "wrong_merge", slip=slip)
    judge(cases, "merge_to_larger_maximum", ", merged from two parts,")
    for hidden in ((), (0,), (1,), (0, 1)):
        tiles = some_tiles(rng, (3, 4), (1, 2), 3)
        for tile in hidden:
            tiles[tile][0][:] = -np.inf
        parts = [state_after(answer, [tile], 3) for tile in tiles]
        three.append((tiles, result(answer, merge(answer, merge(answer, empty(answer, 3), parts[0]), parts[1]), 3)))
    judge(three, "merge_of_empty_part", ", merged from three parts,")
    more = some_tiles(rng, (3, 4, 2), (0, 3, 1), 3)
    both = merge(answer, *(state_after(answer, [tile], 3) for tile in more[:2]))
    judge([(more, result(answer, added(answer, both, *more[2]), 3))], what=", merged, then one more")


def merge(answer: Answer, one: Any, other: Any) -> Any:
    state, _ = answer.changing("merge", one, other)
    expect(state is not None, "merge(one, other) gave back None: it returns the state of both")
    return state


def stays_small(answer: Answer, rng: random.Random) -> str:
    dim, count = 4, 60
    tiles = some_tiles(rng, [8] * count, [rng.uniform(-2, 2) for _ in range(count)], dim)
    other = some_tiles(rng, [8] * count, [rng.uniform(-2, 2) for _ in range(count)], dim)
    scores, values = np.empty(8), np.empty((8, dim))  # one buffer for every tile, as on a GPU
    states = [empty(answer, dim), empty(answer, dim)]
    for number, pair in enumerate(zip(tiles, other)):
        for which, tile in enumerate(pair):
            scores[:], values[:] = tile
            states[which] = added(answer, states[which], scores, values)
        if number == count // 2:
            result(answer, states[0], dim)  # a look on the way changes nothing
    size = answer.prop("numbers_in", states[0])
    expect(not size > 16 * dim + 64, "state_grows", count=count, size=size)
    for which, row in enumerate((tiles, other)):
        found = [result(answer, states[which], dim) for _ in range(2)]
        judge([(row, found[0])], "keeps_reused_tile", ", two rows in turns,")
        expect(alike(found[1], found[0], TOLERANCE), "result_changes_state")
    return f"{count} tiles of 8 keys, {size} numbers kept"
