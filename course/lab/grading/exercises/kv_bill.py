"""The KV bill: bytes of a token, of a request, and how many requests fit."""

import random
from collections.abc import Callable
from typing import Any

from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part
from course.lab.grading.tools import call, compare, left_alone, whole

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
    number_bytes: Callable[[str], float] = lambda dtype: NUMBER_BYTES[dtype],
    scale: Callable[[str, int], float] = lambda dtype, head_dim: SCALE_BYTES if dtype in SCALED else 0,
) -> Callable[[Shape, str], float]:
    """Mistakes in one factor each."""

    def mistaken(shape: Shape, dtype: str) -> float:
        vector = shape["head_dim"] * number_bytes(dtype) + scale(dtype, shape["head_dim"])
        return (shape["layers"] if layers else 1) * pair * shape[heads] * vector

    return mistaken


TOKEN_SLIPS: dict[str, Callable[..., Any]] = {
    "that is one vector a head: a key AND a value are kept": token_with(pair=1),
    "every query head is billed there: only KV heads have a key and a value (that is what GQA and MQA save)":
        token_with(heads="num_heads"),
    "that is one layer's: each layer keeps its own": token_with(layers=False),
    "every number takes 2 bytes there, whatever the dtype": token_with(number_bytes=lambda dtype: 2),
    "bits are not bytes: int8 has one byte": token_with(number_bytes=lambda dtype: 8 * NUMBER_BYTES[dtype]),
    "the scales of int8 and fp8 are missing: each vector has one": token_with(scale=lambda dtype, d: 0),
    "one scale is billed for a key and its value together: each vector has its own":
        token_with(scale=lambda dtype, d: SCALE_BYTES / 2 if dtype in SCALED else 0),
    "every number has a scale there: one for a vector": token_with(
        scale=lambda dtype, d: SCALE_BYTES * d if dtype in SCALED else 0),
    "only int8 and fp8 have scales": token_with(scale=lambda dtype, d: SCALE_BYTES),
    "fp8 has scales, as int8 has": token_with(scale=lambda dtype, d: SCALE_BYTES if dtype == "int8" else 0),
    "int8 has scales, as fp8 has": token_with(scale=lambda dtype, d: SCALE_BYTES if dtype == "fp8" else 0),
    "one scale for the whole token is too few: each vector has its own": lambda shape, dtype: (
        token_with(scale=lambda dtype, d: 0)(shape, dtype) + (SCALE_BYTES if dtype in SCALED else 0)),
    "heads and KV heads are multiplied there: only KV heads count": lambda shape, dtype: (
        shape["num_heads"] * right_token(shape, dtype)),
}  # fmt: skip


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


REQUEST_SLIPS: dict[str, Callable[..., Any]] = {
    "memory is given out in whole blocks: round up": request_with(lambda n, size, w: (
        n if w is None else n - max(n - w + 1, 0) // size * size)),
    "memory is given out in whole blocks, and only what is seen must be kept: round up": request_with(
        lambda n, size, w: seen(n, w)),
    "a block that is filled in part is held, too: round up, not down": request_with(
        lambda n, size, w: (n // size - (0 if w is None else max(n - w + 1, 0) // size)) * size),
    "one block too many when the last one is exactly full": request_with(
        lambda n, size, w: (n // size + 1 - (0 if w is None else max(n - w + 1, 0) // size)) * size),
    "the window is not looked at: blocks that nobody sees any more are given back": request_with(
        lambda n, size, w: ceil(n, size) * size),
    "that is the window's tokens, rounded up to blocks: a window that begins inside a block keeps that whole block":
        request_with(lambda n, size, w: ceil(seen(n, w), size) * size),
    "without the token itself the window has w - 1 earlier ones, but where it begins decides about blocks":
        request_with(lambda n, size, w: ceil(n if w is None else min(n, w - 1), size) * size),
    "the next token is part of its own window: it sees from position n - window + 1 on":
        request_with(lambda n, size, w: (ceil(n, size) - (0 if w is None else max(n - w, 0) // size)) * size),
    "the next token stands at position n: it sees from n - window + 1 on, one less than you keep back":
        request_with(lambda n, size, w: (ceil(n, size) - (0 if w is None else max(n - w + 2, 0) // size)) * size),
    "a block that is still seen in part is given back there: the first one kept is number (n - window + 1) // block_size":
        request_with(lambda n, size, w: (ceil(n, size) - (0 if w is None else ceil(max(n - w + 1, 0), size))) * size),
    "a window longer than the text saves nothing, and costs nothing": request_with(
        lambda n, size, w: (ceil(n, size) - (0 if w is None else (n - w + 1) // size)) * size),
    "a whole window is billed, however short the text": request_with(
        lambda n, size, w: ceil(n if w is None else w, size) * size),
    "that is the tokens' number of blocks, not bytes": lambda shape, dtype, n, size, w=None: right_blocks(n, size, w),
}  # fmt: skip


def right_fit(
    shape: Shape,
    dtype: str,
    memory_bytes: int,
    num_tokens: int,
    block_size: int,
    window: int | None = None,
    shared_tokens: int = 0,
) -> int:
    """Lets requests in one by one, until the blocks are used up."""
    free = memory_bytes // (block_size * right_token(shape, dtype)) - shared_tokens // block_size
    own = right_blocks(num_tokens, block_size, window) - shared_tokens // block_size
    fit = 0
    while free >= own:
        free -= own
        fit += 1
    return fit


def fit_with(fit: Callable[[float, int, int, int, int], float]) -> Callable[..., float]:
    """Mistakes in the division: (memory in blocks, blocks of a request, shared tokens, block size, tokens) -> requests."""

    def mistaken(
        shape: Shape, dtype: str, memory: int, n: int, size: int, window: int | None = None, shared: int = 0
    ) -> float:
        return fit(memory / (size * right_token(shape, dtype)), right_blocks(n, size, window), shared, size, n)

    return mistaken


FIT_SLIPS: dict[str, Callable[..., Any]] = {
    "what all share is billed to each of them: its full blocks are held once": fit_with(
        lambda memory, own, shared, size, n: int(memory) // own),
    "the shared blocks themselves are not billed: they are held once": fit_with(
        lambda memory, own, shared, size, n: int(memory) // (own - shared // size)),
    "a shared block must be full: of a block that begins alike and goes on differently, each has its own": fit_with(
        lambda memory, own, shared, size, n: (
            max(int(memory) - ceil(shared, size), 0) // max(own - ceil(shared, size), 1))),
    "the request that brought the shared blocks is one of those that fit: nobody holds them twice": fit_with(
        lambda memory, own, shared, size, n: max(int(memory) - own, 0) // (own - shared // size)),
    "the shared part is taken from each request's tokens, then rounded: what is shared is whole blocks": fit_with(
        lambda memory, own, shared, size, n: max(int(memory) - shared // size, 0) // ceil(n - shared, size)),
    "half a request does not fit: round down": fit_with(
        lambda memory, own, shared, size, n: ceil(max(int(memory) - shared // size, 0), own - shared // size)),
    "that is a fraction of a request: round down": fit_with(
        lambda memory, own, shared, size, n: max(memory - shared // size, 0) / (own - shared // size)),
    "without room for the shared blocks nothing fits: 0, not less": fit_with(
        lambda memory, own, shared, size, n: (int(memory) - shared // size) // (own - shared // size)),
    "that counts tokens, not whole blocks: a request holds whole ones": fit_with(
        lambda memory, own, shared, size, n: int(memory * size) // n),
}  # fmt: skip


def some_shape(rng: random.Random) -> Shape:
    kv_heads = rng.choice((1, 2, 4, 8))
    return {
        "layers": rng.randint(2, 80),
        "num_heads": kv_heads * rng.choice((2, 4, 8)),
        "num_kv_heads": kv_heads,
        "head_dim": rng.choice((64, 80, 128)),
    }


def as_mha(shape: Shape) -> Shape:
    return {**shape, "num_kv_heads": shape["num_heads"]}


def per_token(answer: Answer, rng: random.Random) -> str:
    cases: list[tuple[Any, ...]] = [(some_shape(rng), dtype) for dtype in NUMBER_BYTES for _ in range(2)]
    cases += [(as_mha(some_shape(rng)), "bfloat16"), ({**some_shape(rng), "num_kv_heads": 1}, "int8")]
    found = [(case, whole(call(answer.bytes_per_token, *case), "bytes_per_token(...)")) for case in cases]
    compare("bytes_per_token", found, right_token, TOKEN_SLIPS)
    left_alone(answer.bytes_per_token, *cases[0])
    return "for MHA, GQA and MQA, in every dtype"


def judge_requests(answer: Answer, cases: list[tuple[Any, ...]]) -> None:
    found = [(case, whole(call(answer.bytes_per_request, *case), "bytes_per_request(...)")) for case in cases]
    compare("bytes_per_request", found, right_request, REQUEST_SLIPS)


def whole_blocks(answer: Answer, rng: random.Random) -> str:
    size = rng.choice((8, 16, 32))
    lengths = [1, size - 1, size, size + 1, 3 * size, rng.randint(200, 900), 131_072]
    judge_requests(answer, [(some_shape(rng), rng.choice(list(NUMBER_BYTES)), n, size) for n in lengths])
    return "whole blocks, the last one perhaps half empty"


def windows(answer: Answer, rng: random.Random) -> str:
    size = rng.choice((8, 16))
    wide = size * rng.randint(3, 6)
    spans = [(wide * 4, wide), (wide * 4 + 1, wide), (wide * 4 - 1, wide), (wide * 4 - 2, wide), (wide * 3 + 2, wide)]
    spans += [(wide * 4, wide + 1), (wide * 4 + 3, wide - 1), (wide, wide), (wide - 1, wide), (wide + 1, wide)]
    spans += [(5, 10 * wide), (size, 2), (10 * size + 3, 2), (9 * size + size // 2, size + 1)]
    spans += [(rng.randint(wide, 9 * wide), wide + rng.randint(0, size)) for _ in range(5)]
    judge_requests(answer, [(some_shape(rng), "bfloat16", n, size, window) for n, window in spans])
    return "only blocks that somebody will still see, wherever the window begins"


def judge_fits(answer: Answer, cases: list[tuple[Any, ...]]) -> None:
    found = [(case, whole(call(answer.requests_that_fit, *case), "requests_that_fit(...)")) for case in cases]
    compare("requests_that_fit", found, right_fit, FIT_SLIPS)


def fits(answer: Answer, rng: random.Random) -> str:
    cases: list[tuple[Any, ...]] = []
    for many in (1, 3, rng.randint(20, 400)):
        shape, n, size = some_shape(rng), rng.randint(100, 3000), rng.choice((16, 32))
        exact = many * right_request(shape, "fp8", n, size)
        cases += [(shape, "fp8", memory, n, size) for memory in (exact, exact - 1, exact + 1)]
    shape = some_shape(rng)
    about = rng.randint(50, 5000) * right_request(shape, "bfloat16", 1500, 16) + rng.randint(10**5, 10**6)
    cases += [(shape, "bfloat16", about, 1500, 16, window) for window in (None, 1000, 200)]
    cases += [(shape, "bfloat16", 0, 1500, 16)]
    judge_fits(answer, cases)
    return "down to the last byte"


def fits_sharing(answer: Answer, rng: random.Random) -> str:
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
    judge_fits(answer, cases)
    return "what all share is held once"


def by_name(answer: Answer, rng: random.Random) -> str:
    """Called with keywords, by the statement's names; and again after another question."""
    shape = some_shape(rng)
    memory = rng.randint(50, 5000) * right_request(shape, "float16", 777, 16)
    found = answer.requests_that_fit(
        dict(shape), "float16", memory_bytes=memory, num_tokens=777, block_size=16, window=None, shared_tokens=96
    )
    if whole(found, "requests_that_fit(...)") != right_fit(shape, "float16", memory, 777, 16, None, 96):
        raise Mistake("called with keyword arguments it gives something else than without: see the parts above")
    before = whole(call(answer.bytes_per_request, shape, "int8", 99, 16, 40), "bytes_per_request(...)")
    call(answer.bytes_per_request, some_shape(rng), "float32", 5, 8)
    again = whole(call(answer.bytes_per_request, shape, "int8", 99, 16, 40), "bytes_per_request(...)")
    if before != again or before != right_request(shape, "int8", 99, 16, 40):
        raise Mistake(f"asked twice the same, it gave {before}, then {again}; expected the right one both times")
    return "the same bill, however it is asked for"


EXERCISE = Exercise(
    id="kv-bill",
    title="The KV bill",
    lesson=7,
    difficulty=2,
    minutes=30,
    entry_points=("bytes_per_token", "bytes_per_request", "requests_that_fit"),
    parts=(
        Part("bytes of a token", 3, per_token),
        Part("whole blocks", 2, whole_blocks),
        Part("a sliding window", 3, windows),
        Part("how many fit", 2, fits),
        Part("a shared beginning", 2, fits_sharing),
        Part("asked in other ways", 1, by_name),
    ),
    hints=(
        Hint("Count vectors first: layers, times KV heads, times two. Then what one vector takes, its scale included.",
             0.1),
        Hint("The next token stands at position num_tokens and sees from num_tokens - window + 1 on. In which block is "
             "that? All before it are given back.", 0.15),
        Hint("Count in blocks: the pool's, minus shared_tokens // block_size once; each request holds that many fewer.",
             0.1),
    ),
)  # fmt: skip
