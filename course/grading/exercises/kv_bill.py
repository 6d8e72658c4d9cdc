"""KV cache size: bytes of a token, of a request, and how many requests fit."""

import random
from collections.abc import Callable, Collection
from typing import Any

from course.grading.tools import Answer, Mistake, Slips, broken, hold, whole

Shape = dict[str, int]
NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}
SCALED = ("int8", "fp8")
SCALE_BYTES = 2


def right_token(shape: Shape, dtype: str) -> int:
    """Adds up vector by vector."""
    vector = shape["head_dim"] * NUMBER_BYTES[dtype] + (SCALE_BYTES if dtype in SCALED else 0)
    return sum(vector for _ in range(shape["layers"]) for _ in range(shape["num_kv_heads"]) for _ in ("key", "value"))


def token_with(
    heads: str = "num_kv_heads",
    pair: int = 2,
    layers: bool = True,
    number_bytes: int | None = None,
    times: int = 1,
    scaled: Collection[str] = SCALED,
    one_scale: bool = False,
) -> Callable[[Shape, str], float]:
    """Mistakes in one factor each."""

    def mistaken(shape: Shape, dtype: str) -> float:
        scale = SCALE_BYTES if dtype in scaled else 0
        vector = shape["head_dim"] * times * (number_bytes or NUMBER_BYTES[dtype])
        vectors = (shape["layers"] if layers else 1) * pair * shape[heads]
        return vectors * vector + (1 if one_scale else vectors) * scale

    return mistaken


TOKEN_SLIPS = broken(__file__, token_with)


def right_blocks(num_tokens: int, block_size: int, window: int | None = None) -> int:
    """Looks at each block: is a position in it that the next token, or a later one, sees?"""
    first_seen = 0 if window is None else num_tokens - window + 1
    begins = range(0, num_tokens, block_size)
    return sum(begin + block_size > first_seen for begin in begins)


def right_request(shape: Shape, dtype: str, num_tokens: int, block_size: int, window: int | None = None) -> int:
    return right_blocks(num_tokens, block_size, window) * block_size * right_token(shape, dtype)


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def request_with(num_tokens_billed: Callable[[int, int, int | None], float]) -> Callable[..., float]:
    """Mistakes in how many tokens' room is billed: (num_tokens, block_size, window) -> tokens."""
    return lambda shape, dtype, n, size, window=None: num_tokens_billed(n, size, window) * right_token(shape, dtype)


def seen(n: int, window: int | None) -> int:
    return n if window is None else min(n, window)


def unseen(n: int, window: int | None) -> int:
    """Positions before the next token's window."""
    return 0 if window is None else max(n - window + 1, 0)


def given_back(n: int, size: int, window: int | None) -> int:
    return unseen(n, window) // size


def kept(n: int, size: int, blocks: int | None) -> int:
    return (ceil(n, size) - (blocks or 0)) * size


REQUEST_SLIPS: Slips = {
    "not_whole_blocks": request_with(lambda n, size, w: n - given_back(n, size, w) * size),
    "window_not_whole_blocks": request_with(lambda n, size, w: seen(n, w)),
    "partial_block_dropped": request_with(lambda n, size, w: (n // size - given_back(n, size, w)) * size),
    "extra_block_when_full": request_with(lambda n, size, w: (n // size + 1 - given_back(n, size, w)) * size),
    "ignored_window": request_with(lambda n, size, w: ceil(n, size) * size),
    "window_rounded_to_blocks": request_with(lambda n, size, w: ceil(seen(n, w), size) * size),
    "window_without_own_token": request_with(lambda n, size, w: ceil(seen(n, w and w - 1), size) * size),
    "window_starts_too_early": request_with(lambda n, size, w: kept(n, size, given_back(n - 1, size, w))),
    "freed_block_still_seen": request_with(lambda n, size, w: kept(n, size, ceil(unseen(n, w), size))),
    "window_longer_than_text": request_with(lambda n, size, w: kept(n, size, w and (n - w + 1) // size)),
}


def right_fit(shape: Shape, dtype: str, memory: int, n: int, size: int, w: int | None = None, shared: int = 0) -> int:
    """Admits requests one by one, until the blocks are used up. As requests_that_fit: n tokens, a window w."""
    free = memory // (size * right_token(shape, dtype)) - shared // size
    own = right_blocks(n, size, w) - shared // size
    fit = 0
    while free >= own:
        free -= own
        fit += 1
    return fit


def fit_with(fit: Callable[[float, int, int, int, int], float]) -> Callable[..., float]:
    """Mistakes in the division. In blocks: (memory, a request's, shared full ones, shared ones rounded up, those for the
    tokens that are not shared) -> requests."""

    def mistaken(
        shape: Shape, dtype: str, memory: int, n: int, size: int, w: int | None = None, shared: int = 0
    ) -> float:
        blocks = memory / (size * right_token(shape, dtype))
        return fit(blocks, right_blocks(n, size, w), shared // size, ceil(shared, size), ceil(n - shared, size))

    return mistaken


FIT_SLIPS: Slips = {
    "prefix_for_each_request": fit_with(lambda memory, own, *_: int(memory) // own),
    "prefix_not_held": fit_with(lambda memory, own, shared, *_: int(memory) // (own - shared)),
    "shared_partial_block": fit_with(lambda memory, own, _, up, __: max(int(memory) - up, 0) // max(own - up, 1)),
    "prefix_subtracted_before_rounding": fit_with(
        lambda memory, own, shared, _, rest: max(int(memory) - shared, 0) // rest
    ),
    "fractional_request": fit_with(lambda memory, own, shared, *_: max(memory - shared, 0) / (own - shared)),
    "negative_requests": fit_with(lambda memory, own, shared, *_: (int(memory) - shared) // (own - shared)),
    "counted_tokens_not_blocks": lambda shape, dtype, memory, n, *_: memory // right_token(shape, dtype) // n,
}


def some_shape(rng: random.Random) -> Shape:
    kv_heads = rng.choice((1, 2, 4, 8))
    sizes = {"layers": rng.randint(2, 80), "num_heads": kv_heads * rng.choice((2, 4, 8)), "num_kv_heads": kv_heads}
    return {**sizes, "head_dim": rng.choice((64, 80, 128))}


def per_token(answer: Answer, rng: random.Random) -> None:
    cases: list[tuple[Any, ...]] = [(some_shape(rng), dtype) for dtype in NUMBER_BYTES for _ in range(2)]
    mha = some_shape(rng)
    cases += [({**mha, "num_kv_heads": mha["num_heads"]}, "bfloat16"), ({**some_shape(rng), "num_kv_heads": 1}, "int8")]
    hold(answer.bytes_per_token, cases, right_token, TOKEN_SLIPS, whole)


def whole_blocks(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((8, 16, 32))
    lengths = [1, size - 1, size, size + 1, 3 * size, rng.randint(200, 900), 131_072]
    cases = [(some_shape(rng), rng.choice(list(NUMBER_BYTES)), n, size) for n in lengths]
    hold(answer.bytes_per_request, cases, right_request, REQUEST_SLIPS, whole)


def windows(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((8, 16))
    wide = size * rng.randint(3, 6)
    spans = [(wide * 4, wide), (wide * 4 + 1, wide), (wide * 4 - 1, wide), (wide * 4 - 2, wide), (wide * 3 + 2, wide)]
    spans += [(wide * 4, wide + 1), (wide * 4 + 3, wide - 1), (wide, wide), (wide - 1, wide), (wide + 1, wide)]
    spans += [(5, 10 * wide), (size, 2), (10 * size + 3, 2), (9 * size + size // 2, size + 1)]
    spans += [(rng.randint(wide, 9 * wide), wide + rng.randint(0, size)) for _ in range(5)]
    cases = [(some_shape(rng), "bfloat16", n, size, window) for n, window in spans]
    hold(answer.bytes_per_request, cases, right_request, REQUEST_SLIPS, whole)


def fits(answer: Answer, rng: random.Random) -> None:
    cases: list[tuple[Any, ...]] = []
    for many in (1, 3, rng.randint(20, 400)):
        shape, n, size = some_shape(rng), rng.randint(100, 3000), rng.choice((16, 32))
        exact = many * right_request(shape, "fp8", n, size)
        cases += [(shape, "fp8", memory, n, size) for memory in (exact, exact - 1, exact + 1)]
    shape = some_shape(rng)
    about = rng.randint(50, 5000) * right_request(shape, "bfloat16", 1500, 16) + rng.randint(10**5, 10**6)
    cases += [(shape, "bfloat16", about, 1500, 16, window) for window in (None, 1000, 200)]
    wide = {"layers": 80, "num_heads": 64, "num_kv_heads": 8, "head_dim": 128}  # one byte is far less than its blocks
    cases += [(shape, "bfloat16", 0, 1500, 16), (wide, "float32", 3 * right_request(wide, "float32", 9, 16) - 1, 9, 16)]
    hold(answer.requests_that_fit, cases, right_fit, FIT_SLIPS, whole)


def fits_sharing(answer: Answer, rng: random.Random) -> None:
    cases: list[tuple[Any, ...]] = []
    size = rng.choice((16, 32))
    for shared in (3 * size, 3 * size + 5, size - 1, 40 * size - 1, 9 * size + 1):
        shape, n = some_shape(rng), 45 * size + rng.randint(1, size - 1)
        block = size * right_token(shape, "int8")
        for blocks in (shared // size, 46, rng.randint(200, 2000), rng.randint(2000, 9000)):
            cases.append((shape, "int8", blocks * block + rng.randrange(block), n, size, None, shared))
    shape = some_shape(rng)
    cases.append((shape, "int8", 2 * size * right_token(shape, "int8"), 45 * size, size, None, 5 * size))
    cases.append((shape, "int8", 99 * size * right_token(shape, "int8"), 5 * size, size, None, 5 * size - 1))
    hold(answer.requests_that_fit, cases, right_fit, FIT_SLIPS, whole)


def by_name(answer: Answer, rng: random.Random) -> None:
    """Called with keywords, by the statement's names; and again after another question."""
    shape = some_shape(rng)
    memory = rng.randint(50, 5000) * right_request(shape, "float16", 777, 16)
    found = answer.requests_that_fit(
        dict(shape), "float16", memory_bytes=memory, num_tokens=777, block_size=16, window=None, shared_tokens=96
    )
    found = whole(found, "requests_that_fit(...)")
    if found != whole(
        answer.requests_that_fit(dict(shape), "float16", memory, 777, 16, None, 96), "requests_that_fit(...)"
    ):
        raise Mistake("called with keyword arguments it gives something else than without: use the statement's names")
    if found != right_fit(shape, "float16", memory, 777, 16, None, 96):
        raise Mistake("the count isn't right yet: see the parts above")
    one, other = (shape, "int8", 99, 16, 40), (some_shape(rng), "float32", 5, 8)
    hold(answer.bytes_per_request, [one, other, one], right_request, REQUEST_SLIPS, whole)
