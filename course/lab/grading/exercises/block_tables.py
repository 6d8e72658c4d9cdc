"""Block tables and the slot mapping: where in the cache each token's key and value go."""

import random
from collections.abc import Callable
from typing import Any

from course.lab.grading.blame import shown
from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part
from course.lab.grading.tools import call, compare, left_alone, listed, same, slip_of, whole

Piece = tuple[list[int], int, int]
"""A request's block table, and the positions [start, end) that this step computes."""


def right_more_blocks(num_held: int, num_tokens: int, block_size: int) -> int:
    """One block after the other, until there is room."""
    more = 0
    while (num_held + more) * block_size < num_tokens:
        more += 1
    return more


MORE_SLIPS: dict[str, Callable[[int, int, int], Any]] = {
    "a block that is filled in part is a block, too: round up, not down":
        lambda held, n, size: max(n // size - held, 0),
    "one too many when the last block is exactly full: n // size + 1 is not rounding up":
        lambda held, n, size: max(n // size + 1 - held, 0),
    "that is rounding to the nearest: round up": lambda held, n, size: max(round(n / size) - held, 0),
    "what it holds already is counted again: only what is missing": lambda held, n, size: -(-n // size),
    "who holds more than it needs needs 0 more, never less than 0": lambda held, n, size: -(-n // size) - held,
    "num_tokens counts all its tokens, those in the blocks it holds included": lambda held, n, size: -(-n // size),
    "that is counted in tokens: the answer is a number of blocks": lambda held, n, size: max(n - held * size, 0),
}  # fmt: skip


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
    rows = [block_ids[: blocks(end, block_size)] for block_ids, _, end in pieces]
    width = max(map(len, rows), default=0)
    return [row + [null_block] * (width - len(row)) for row in rows]


def by_position(slot: Callable[[list[int], int, int, int], int]) -> Callable[..., list[int]]:
    """A mistake in the formula of one slot: (table, position, start, block size) -> slot."""
    return lambda pieces, size, null: [
        slot(table, position, start, size) for table, start, end in pieces for position in range(start, end)
    ]


SLOT_SLIPS: dict[str, Callable[..., Any]] = {
    "the position in the request is used as a slot there: the block table says in which block it lies":
        by_position(lambda table, p, start, size: p),
    "the offset must be counted within the block: position % block_size":
        by_position(lambda table, p, start, size: table[p // size] * size + p),
    "that is the block's first slot for each of its tokens: add the offset, position % block_size":
        by_position(lambda table, p, start, size: table[p // size] * size),
    "block and offset are exchanged: position // block_size says which block, position % block_size where in it":
        by_position(lambda table, p, start, size: table[p % size] * size + p // size),
    "the block's number must be multiplied by block_size": by_position(
        lambda table, p, start, size: table[p // size] + p % size),
    "positions are counted from the start of the request, not of this step: the first slot is that of position `start`":
        by_position(lambda table, p, start, size: table[(p - start) // size] * size + (p - start) % size),
    "the offset is counted from `start` there: it is position % block_size, whatever was computed before":
        by_position(lambda table, p, start, size: table[p // size] * size + (p - start) % size),
    "`end` is not computed any more: positions start, ..., end - 1":
        lambda pieces, size, null: [
            table[p // size] * size + p % size
            for table, start, end in pieces for p in range(start, min(end + 1, len(table) * size))],
    "every token from 0 on gets a slot there: those before `start` are in the cache already":
        lambda pieces, size, null: right_slots([(table, 0, end) for table, _, end in pieces], size),
    "slots are one flat list over all requests, not a list for each":
        lambda pieces, size, null: [right_slots([piece], size) for piece in pieces],
}  # fmt: skip


def padded(rows: list[list[int]], filler: int, width: int | None = None) -> list[list[int]]:
    width = max(map(len, rows), default=0) if width is None else width
    return [row + [filler] * (width - len(row)) for row in rows]


def cut(pieces: list[Piece], size: int) -> list[list[int]]:
    return [table[: blocks(end, size)] for table, _, end in pieces]


TABLE_SLIPS: dict[str, Callable[..., Any]] = {
    "rows are padded with 0 there: block 0 is somebody's. Pad with null_block":
        lambda pieces, size, null: padded(cut(pieces, size), 0),
    "rows are padded with -1 there: pad with null_block": lambda pieces, size, null: padded(cut(pieces, size), -1),
    "rows must be equally long: pad the short ones with null_block": lambda pieces, size, null: cut(pieces, size),
    "pad behind the blocks, not in front of them": lambda pieces, size, null: [
        row[::-1] for row in padded([row[::-1] for row in cut(pieces, size)], null)],
    "blocks that no token up to `end` lies in are not part of the row: cut the table to the blocks of [0, end)":
        lambda pieces, size, null: padded([table for table, _, _ in pieces], null),
    "a row has the blocks of all positions [0, end): attention reads those before `start`, too":
        lambda pieces, size, null: padded([table[: blocks(end - start, size)] for table, start, end in pieces], null),
    "a row begins with the request's first block: attention reads what was computed before `start`, too":
        lambda pieces, size, null: padded(
            [table[start // size : blocks(end, size)] for table, start, end in pieces], null),
    "a block that is filled in part belongs to the row: round up": lambda pieces, size, null: padded(
        [table[: end // size] for table, _, end in pieces], null),
    "one block too many when `end` is exactly at a block's end: round up, do not add 1": lambda pieces, size, null: (
        padded([table[: end // size + 1] for table, _, end in pieces], null)),
    "one column too many: the widest row needs no padding": lambda pieces, size, null: padded(
        cut(pieces, size), null, max(map(len, cut(pieces, size)), default=0) + 1),
}  # fmt: skip


def told(pieces: list[Piece], block_size: int, null_block: int) -> str:
    return f"lay_out({shown(pieces)}, block_size={block_size}, null_block={null_block})"


def asked(answer: Answer, case: tuple[list[Piece], int, int]) -> tuple[list[Any], list[Any]]:
    """What lay_out gives: slots and tables, read."""
    pair = listed(call(answer.lay_out, *case), "lay_out(...)")
    if len(pair) != 2:
        raise Mistake(f"lay_out gives back two things, slots and tables; yours gave {len(pair)}: {shown(pair)}")
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


def counts_blocks(answer: Answer, rng: random.Random) -> str:
    size = rng.choice((4, 8, 16))
    cases = [(0, 0, size), (0, 1, size), (0, size, size), (0, size + 1, size), (1, size, size), (1, size + 1, size)]
    cases += [(3, 2 * size, size), (2, 2 * size, size), (5, 1, size), (0, 7, 1)]
    cases += [(rng.randint(0, 5), rng.randint(0, 9 * size), size) for _ in range(8)]
    found = [(case, whole(call(answer.more_blocks, *case), "more_blocks(...)")) for case in cases]
    compare("more_blocks", found, right_more_blocks, MORE_SLIPS)
    return "whole blocks, rounded up, never fewer than none"


def judge_slots(answer: Answer, cases: list[tuple[list[Piece], int, int]]) -> None:
    found = [(case, asked(answer, case)[0]) for case in cases]
    for case, slots in found:
        wanted = right_slots(case[0], case[1])
        if not same(slots, wanted):
            slip = slip_of(SLOT_SLIPS, found)
            words = f"{told(*case)}: your slots are {shown(slots)}, expected {shown(wanted)}"
            raise Mistake(f"{words}. {slip[0].upper()}{slip[1:]}" if slip else words)


def one_request(answer: Answer, rng: random.Random) -> str:
    size = rng.choice((3, 4, 5))
    cases = [([piece], size, 99) for piece in [*edges(rng, size), *some_tables(rng, 6, size)]]
    judge_slots(answer, cases)
    return "each token in its block, at its offset"


def many_requests(answer: Answer, rng: random.Random) -> str:
    size = rng.choice((3, 4, 5))
    cases: list[tuple[list[Piece], int, int]] = [(some_tables(rng, n, size), size, 77) for n in (2, 3, 5)]
    cases += [([], size, 77), (edges(rng, size), size, 99)]
    judge_slots(answer, cases)
    return "one flat list, request after request; none for an empty step"


def pads_tables(answer: Answer, rng: random.Random) -> str:
    size = rng.choice((3, 4, 5))
    cases = [(some_tables(rng, n, size, 5), size, 61) for n in (2, 3, 4, 6)]
    cases += [(edges(rng, size), size, 99), ([], size, 5)]
    found = [(case, asked(answer, case)[1]) for case in cases]
    for case, rows in found:
        wanted = right_tables(*case)
        if not same(rows, wanted):
            slip = slip_of(TABLE_SLIPS, found)
            words = f"{told(*case)}: your tables are {shown(rows)}, expected {shown(wanted)}"
            raise Mistake(f"{words}. {slip[0].upper()}{slip[1:]}" if slip else words)
    return "the blocks of [0, end), padded to the widest row"


def refuses_short_tables(answer: Answer, rng: random.Random) -> str:
    size = rng.choice((4, 8))
    good = ([5, 2], size, 2 * size)
    asked(answer, ([good], size, 9))
    for short in (([4], 0, size + 1), ([], 0, 1), ([4, 7], 2 * size, 2 * size + 1)):
        case = ([good, short], size, 9)
        try:
            found = asked(answer, case)
        except ValueError:
            continue
        except IndexError:
            raise Mistake(
                f"{told(*case)}: {shown(short)} has too few blocks for its end, and your code stumbled over it "
                "(IndexError). Look first, and raise ValueError", 0.4
            ) from None  # fmt: skip
        raise Mistake(
            f"{told(*case)} gave {shown(found)}: {shown(short)} has too few blocks for its end, so raise ValueError. "
            "Padding would hide it, and its keys would go to nobody's block"
        )
    return "a table too short for its tokens is noticed"


def inputs_alone(answer: Answer, rng: random.Random) -> str:
    size = rng.choice((4, 8))
    pieces = some_tables(rng, 4, size)
    first = asked(answer, (pieces, size, 50))
    left_alone(answer.lay_out, pieces, size, 50)
    asked(answer, (some_tables(rng, 2, size), size, 50))
    again = asked(answer, (pieces, size, 50))
    if again != first:
        raise Mistake(f"asked twice the same, it gave {shown(first)}, then {shown(again)}: does it remember something?")
    if not same(list(first), [right_slots(pieces, size), right_tables(pieces, size, 50)]):
        raise Mistake(f"{told(pieces, size, 50)} is not right yet: see above")
    return "block tables stay the requests' own"


EXERCISE = Exercise(
    id="block-tables",
    title="Block tables and the slot mapping",
    lesson=7,
    difficulty=1,
    minutes=25,
    entry_points=("more_blocks", "lay_out"),
    parts=(
        Part("how many blocks", 2, counts_blocks),
        Part("slots of one request", 3, one_request),
        Part("slots of a step", 1, many_requests),
        Part("padded tables", 3, pads_tables),
        Part("tables too short", 1, refuses_short_tables),
        Part("inputs left alone", 1, inputs_alone),
    ),
    hints=(
        Hint("Position p lies in block number p // block_size of the table, at offset p % block_size.", 0.1),
        Hint("The slot is block_ids[p // block_size] * block_size + p % block_size, for each p from start to end - 1.",
             0.15),
        Hint("First cut every table to the blocks of its first `end` tokens, then look for the widest row.", 0.1),
    ),
)  # fmt: skip
