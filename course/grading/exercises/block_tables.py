"""Block tables and the slot mapping: where in the cache each token's key and value go."""

import random
from collections.abc import Callable
from typing import Any

from course.grading.tools import Answer, Mistake, compare, expect, hold, listed, refused, same, shown, whole

Piece = tuple[list[int], int, int]
"""A request's block table, and the positions [start, end) that this step computes."""
Case = tuple[list[Piece], int, int]
"""What `lay_out` is given: pieces, block size, null block."""
HIDDEN = "Padding would hide it, and its keys would be lost in the null block: look first"


def right_more_blocks(num_held: int, num_tokens: int, block_size: int) -> int:
    """One block after the other, until there is room."""
    more = 0
    while (num_held + more) * block_size < num_tokens:
        more += 1
    return more


MORE_SLIPS: dict[str, Callable[[int, int, int], Any]] = {
    "rounded_blocks_down": lambda held, n, size: max(n // size - held, 0),
    "added_block_when_full": lambda held, n, size: max(n // size + 1 - held, 0),
    "counted_held_blocks_again": lambda held, n, size: -(-n // size),
    "negative_blocks_needed": lambda held, n, size: -(-n // size) - held,
}


def right_slots(pieces: list[Piece], block_size: int) -> list[int]:
    """Slots are found by walking along the blocks, not by the formula."""
    slots = []
    for block_ids, start, end in pieces:
        every = [block * block_size + offset for block in block_ids for offset in range(block_size)]
        slots += every[start:end]
    return slots


def blocks(num_tokens: int, block_size: int) -> int:
    return right_more_blocks(0, num_tokens, block_size)


def right_tables(pieces: list[Piece], block_size: int, null_block: int) -> list[list[int]]:
    return padded(cut(pieces, block_size), null_block)


def cut(pieces: list[Piece], size: int) -> list[list[int]]:
    return [table[: blocks(end, size)] for table, _, end in pieces]


def padded(rows: list[list[int]], filler: int) -> list[list[int]]:
    width = max(map(len, rows), default=0)
    return [row + [filler] * (width - len(row)) for row in rows]


def slot_of(table: list[int], position: int, size: int) -> int:
    return table[position // size] * size + position % size


def by_position(slot: Callable[[list[int], int, int, int], int]) -> Callable[..., list[int]]:
    """A mistake in the formula of one slot: (table, position, start, block size) -> slot."""
    return lambda pieces, size, null: [
        slot(table, position, start, size) for table, start, end in pieces for position in range(start, end)
    ]


SLOT_SLIPS: dict[str, Callable[..., Any]] = {
    "used_position_as_slot": by_position(lambda table, p, start, size: p),
    "offset_not_within_block": by_position(lambda table, p, start, size: table[p // size] * size + p),
    "offset_missing": by_position(lambda table, p, start, size: table[p // size] * size),
    "block_id_not_scaled": by_position(lambda table, p, start, size: table[p // size] + p % size),
    "counted_from_request_start": by_position(lambda table, p, start, size: slot_of(table, p - start, size)),
    "included_end": lambda pieces, size, null: [
        slot_of(table, p, size) for table, start, end in pieces for p in range(start, min(end + 1, len(table) * size))
    ],
    "included_cached_tokens": lambda pieces, size, null: right_slots(
        [(table, 0, end) for table, _, end in pieces], size
    ),
    "slots_nested_by_request": lambda pieces, size, null: [right_slots([piece], size) for piece in pieces],
}


def by_row(row: Callable[[list[int], int, int, int], list[int]]) -> Callable[..., list[list[int]]]:
    """A mistake in the blocks of one row: (table, start, end, block size) -> blocks."""
    return lambda pieces, size, null: padded([row(*piece, size) for piece in pieces], null)


TABLE_SLIPS: dict[str, Callable[..., Any]] = {
    "padded_with_block_zero": lambda pieces, size, null: padded(cut(pieces, size), 0),
    "padded_with_minus_one": lambda pieces, size, null: padded(cut(pieces, size), -1),
    "rows_not_padded": lambda pieces, size, null: cut(pieces, size),
    "row_has_unused_blocks": by_row(lambda table, start, end, size: table),
    "row_without_cached_blocks": by_row(lambda table, start, end, size: table[: blocks(end - start, size)]),
    "row_begins_at_start": by_row(lambda table, start, end, size: table[start // size : blocks(end, size)]),
    "row_without_partial_block": by_row(lambda table, start, end, size: table[: end // size]),
    "row_block_past_end": by_row(lambda table, start, end, size: table[: end // size + 1]),
}


def as_call(pieces: list[Piece], block_size: int, null_block: int) -> str:
    """How a call is shown."""
    return f"lay_out({shown(pieces)}, block_size={block_size}, null_block={null_block})"


def described(what: str) -> Callable[[list[Piece], int, int], str]:
    """How a call is shown where one of its two results is meant."""
    return lambda *case: f"{as_call(*case)}: its {what}"


def asked(answer: Answer, case: Case) -> tuple[list[Any], list[Any]]:
    """What lay_out gives: slots and tables, read."""
    pair = listed(answer.lay_out(*case), "lay_out(...)")
    expect(len(pair) == 2, f"lay_out gives back two things, slots and tables; yours gave {len(pair)}: {shown(pair)}")
    slots = [each if hasattr(each, "__len__") else whole(each, "a slot") for each in listed(pair[0], "the slots")]
    rows = [
        [whole(block, "a block id") for block in listed(row, "a row of the tables")]
        for row in listed(pair[1], "the tables")
    ]
    return slots, rows


def some_tables(rng: random.Random, count: int, size: int, most_blocks: int = 4) -> list[Piece]:
    """Requests with blocks of a shuffled pool, and room to spare in some tables."""
    pool = list(range(count * (most_blocks + 2)))
    rng.shuffle(pool)
    pieces = []
    for _ in range(count):
        end = rng.randint(1, most_blocks * size)
        table = [pool.pop() for _ in range(blocks(end, size) + rng.choice((0, 0, 1)))]
        pieces.append((table, rng.choice((0, end - 1, rng.randrange(end))), end))
    return pieces


def edges(rng: random.Random, size: int) -> list[Piece]:
    """Ends at a block's border and beside it; a decode; a step that begins inside a block, and at a border."""
    spans = [(0, size), (0, size + 1), (size, 2 * size), (size - 1, size), (size, size + 1), (1, 2 * size - 1), (0, 1)]
    pool = rng.sample(range(1, 90), 3 * len(spans))
    return [([pool.pop(), pool.pop(), pool.pop()], start, end) for start, end in spans]


def counts_blocks(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((4, 8, 16))
    cases = [(0, 0, size), (0, 1, size), (0, size, size), (0, size + 1, size), (1, size, size), (1, size + 1, size)]
    cases += [(3, 2 * size, size), (2, 2 * size, size), (5, 1, size), (0, 7, 1)]
    cases += [(rng.randint(0, 5), rng.randint(0, 9 * size), size) for _ in range(8)]
    hold(answer.more_blocks, cases, right_more_blocks, MORE_SLIPS, whole)


def judge_slots(answer: Answer, cases: list[Case]) -> None:
    found = [(case, asked(answer, case)[0]) for case in cases]
    compare("slots", found, lambda pieces, size, _: right_slots(pieces, size), SLOT_SLIPS, describe=described("slots"))


def one_request(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((3, 4, 5))
    cases = [([piece], size, 99) for piece in [*edges(rng, size), *some_tables(rng, 6, size)]]
    judge_slots(answer, cases)


def many_requests(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((3, 4, 5))
    cases: list[Case] = [(some_tables(rng, n, size), size, 77) for n in (2, 3, 5)]
    cases += [([], size, 77), (edges(rng, size), size, 99)]
    judge_slots(answer, cases)


def pads_tables(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((3, 4, 5))
    cases = [(some_tables(rng, n, size, 5), size, 61) for n in (2, 3, 4, 6)]
    cases += [(edges(rng, size), size, 0), ([], size, 5)]
    found = [(case, asked(answer, case)[1]) for case in cases]
    compare("tables", found, right_tables, TABLE_SLIPS, describe=described("tables"))


def refuses_short_tables(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((4, 8))
    good = ([5, 2], size, 2 * size)
    asked(answer, ([good], size, 9))
    for short in (([4], 0, size + 1), ([], 0, 1), ([4, 7], 2 * size, 2 * size + 1)):
        case = ([good, short], size, 9)
        why = f"{shown(short)} has too few blocks for its end. {HIDDEN}"
        refused(ValueError, as_call(*case), why, lambda case=case: asked(answer, case), 0.4, instead=IndexError)


def inputs_alone(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((4, 8))
    pieces = some_tables(rng, 4, size)
    first = asked(answer, (pieces, size, 50))
    asked(answer, (some_tables(rng, 2, size), size, 50))
    again = asked(answer, (pieces, size, 50))
    expect(again == first, "second_call_differs", first=shown(first), again=shown(again))
    if not same(list(first), [right_slots(pieces, size), right_tables(pieces, size, 50)]):
        raise Mistake(f"{as_call(pieces, size, 50)} is not right yet: see above")
