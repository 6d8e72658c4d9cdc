"""The prefix hash chain: names for full blocks, and how much of a prompt is found."""

import random
from typing import Any

from course.grading.growth import WorkCost, cost_of, hold_steady
from course.grading.tools import Answer, Mistake, expect, listed, shown, whole

FEWEST_BYTES = 16
SIZES = (1_000, 8_000, 64_000)
"""Tokens of a prompt."""
JOINED = "Joined without their borders they're the same text: say how long each is, or take repr()"
SHARED = "Another adapter or tenant computes other keys and values, or must not see these"
Asked = tuple[list[int], int, tuple[str, ...]]
"""Token ids, block size, extra keys."""


def names(answer: Answer, token_ids: list[int], block_size: int, extra_keys: tuple[str, ...] = ()) -> list[Any]:
    """The names that the answer gives, read."""
    about = asked("block_names", token_ids, block_size, extra_keys)
    found = listed(answer.block_names(token_ids, block_size, extra_keys), about)
    full = len(token_ids) // block_size
    usual = {
        -(-len(token_ids) // block_size): "named_partial_block",
        (len(token_ids) - 1) // block_size: "last_block_unnamed",
    }
    fields = {"about": about, "found": len(found), "tokens": len(token_ids), "full": full}
    expect(len(found) == full, "wrong_number_of_names", slip=usual.get(len(found)), **fields)
    for name in found:
        slip = "used_builtin_hash" if isinstance(name, int) else None
        expect(isinstance(name, (bytes, str)), "name_not_bytes_or_hex", slip=slip, about=about, name=shown(name))
        expect(not len(name) < FEWEST_BYTES, "name_too_short", about=about, name=shown(name))
    return found


def asked(function: str, token_ids: list[int], block_size: int, extra_keys: tuple[str, ...]) -> str:
    extra = f", extra_keys={extra_keys!r}" if extra_keys else ""
    return f"{function}({shown(token_ids)}, block_size={block_size}{extra})"


def tokens(rng: random.Random, count: int, most: int = 50_000) -> list[int]:
    return [rng.randrange(most) for _ in range(count)]


def full_blocks(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((4, 8, 16))
    for count in (0, 1, size - 1, size, size + 1, 3 * size - 1, 3 * size, 5 * size + 2):
        ids = tokens(rng, count)
        expect(names(answer, ids, size) == names(answer, ids, size), "names_differ_between_calls")
        names(answer, tokens(rng, 7), 1)
    lengths = {len(name) for name in names(answer, tokens(rng, 20 * size), size)}
    if len(lengths) > 1:
        raise Mistake("name_grows_with_prompt", least=min(lengths), most=max(lengths))


def chained(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((4, 8))
    ids = tokens(rng, 6 * size)
    right = names(answer, ids, size)
    for longer in (ids + tokens(rng, 3 * size), ids[: 4 * size + 1], ids[:size]):
        common = min(len(longer), len(ids)) // size
        expect(names(answer, longer, size)[:common] == right[:common], "name_depends_on_what_follows")
    for at in (0, size + 1, 3 * size - 1, 4 * size):
        other = list(ids)
        other[at] += 1
        check_break(ids, at, size, right, names(answer, other, size))
    expect(not len(set(names(answer, ids[:size] * 4, size))) < 4, "repeated_block_same_name")
    swapped = ids[size : 2 * size] + ids[:size] + ids[2 * size :]
    expect(not set(names(answer, swapped, size)[2:]) & set(right[2:]), "block_order_ignored")
    inside = [ids[1], ids[0], *ids[2:]] if ids[0] != ids[1] else [ids[0] + 1, *ids[1:]]
    expect(names(answer, inside, size)[0] != right[0], "token_order_ignored")


def check_break(ids: list[int], at: int, size: int, right: list[Any], found: list[Any]) -> None:
    block = at // size
    about = f"token {at} was changed in {len(ids)} tokens, in blocks of {size}"
    expect(found[:block] == right[:block], "change_renames_earlier_blocks", about=about)
    expect(found[block] != right[block], "token_ignored", about=about, block=block)
    same = [i for i in range(block + 1, len(right)) if found[i] == right[i]]
    expect(len(same) != len(right) - block - 1, "change_keeps_later_names", about=about)
    if same:
        raise Mistake("only_previous_block_hashed", about=about, block=same[0])


def tells_apart(answer: Answer, rng: random.Random, pairs: list[tuple[list[int], list[int], str]]) -> None:
    for one, other, why in pairs:
        first, second = names(answer, one, 2)[0], names(answer, other, 2)[0]
        expect(first != second, "different_blocks_same_name", one=one, other=other, why=why)


def extra_keys(answer: Answer, rng: random.Random, kinds: list[list[str]]) -> None:
    ids = tokens(rng, 12)
    plain = names(answer, ids, 4)
    seen: dict[Any, tuple[str, ...]] = {}
    for kind in map(tuple, kinds):
        found = names(answer, ids, 4, kind)
        for i, name in enumerate(found):
            other = seen.setdefault((i, name), kind)
            same = f"block {i} has the same name with extra_keys={other!r} and {kind!r}"
            expect(other == kind, f"{same}. {JOINED if kind and other else SHARED}")
    expect(names(answer, ids, 4, ()) == plain, "remembers_extra_keys")
    for kind in ((), ("adapter-a", "tenant-7")):  # a prefix that another server, or a restarted one, has cached
        expect(names(answer.elsewhere(), ids, 4, kind) == names(answer, ids, 4, kind), "names_differ_between_processes")
    expect(names(answer, [9, *ids[:3]], 4) != names(answer, ids[:4], 4, ("9",)), "extra_key_confused_with_token")


def found(answer: Answer, known: set[Any], case: Asked) -> int:
    ids, size, extra = case
    value = answer.cached_tokens(set(known), list(ids), size, extra)
    return whole(value, f"cached_tokens(known, {shown(ids)}, {size})")


def lookup(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((4, 8))
    base = tokens(rng, 8 * size)
    every = names(answer, base, size)
    for keep in (0, 1, 3, 6, 8):
        longer = base + tokens(rng, 3), size, ()
        hold_found(answer, set(every[:keep]), longer, keep * size, f"its first {keep} blocks")
    other = base[: 3 * size] + tokens(rng, 4 * size), size, ()
    hold_found(answer, set(every), other, 3 * size, "the blocks of a prompt that begins with the same 3 blocks")
    holes = {*every[:2], *every[3:]}
    wanted, got = 2 * size, found(answer, holes, (base, size, ()))
    expect(got == wanted, "went_on_past_missing_block", got=got, wanted=wanted)
    hold_found(answer, set(every[1:]), (base, size, ()), 0, "all blocks but the first, so that nothing can be used")
    salted = set(names(answer, base, size, ("tenant-7",)))
    hold_found(answer, salted, (base, size, ()), 0, "only the blocks of a request with other extra keys")
    tenants = base + [1], size, ("tenant-7",)
    hold_found(answer, salted, tenants, 8 * size, "only its blocks, named with its extra keys")
    hold_found(answer, set(every), (base, size, ("tenant-7",)), 0, "only the blocks of a request without extra keys")


def hold_found(answer: Answer, known: set[Any], case: Asked, wanted: int, about: str) -> None:
    got, (tokens, size, _) = found(answer, known, case), case
    usual = {
        "counted_blocks_not_tokens": wanted and got == wanted // size,
        "ignored_extra_keys": about.startswith("only"),
        "counted_uncached_tokens": got > wanted,
        "one_block_too_few": got == wanted - size,
    }
    slip = next((name for name, is_so in usual.items() if is_so), None)
    expect(
        got == wanted,
        "wrong_cached_tokens",
        slip=slip,
        tokens=len(tokens),
        size=size,
        about=about,
        got=got,
        wanted=wanted,
    )


def the_cap(answer: Answer, rng: random.Random) -> None:
    size = rng.choice((4, 8, 16))
    for count in (size, 3 * size, 3 * size + 1, 4 * size - 1, 1, 0):
        ids = tokens(rng, count)
        known = {*names(answer, ids, size), *names(answer, tokens(rng, size), size)}
        wanted, got = max(count - 1, 0) // size * size, found(answer, known, (ids, size, ()))
        if got == wanted:
            continue
        about = f"a prompt of {count} tokens in blocks of {size}, all full ones known: it gave {got}, expected {wanted}"
        expect(not (got == count and count), "no_token_left_to_compute", about=about)
        expect(got != count - 1, f"{about}. Whole blocks are found, or none of a block: leave the last block out")
        expect(not got < wanted, f"{about}. Only when the blocks fill the whole prompt is the last one left out")
        raise Mistake(about)


def stays_quick(answer: Answer, rng: random.Random) -> None:
    def names_of(size: int) -> WorkCost:
        ids, found = tokens(rng, size), []
        cost = cost_of(lambda: found.extend(listed(answer.block_names(ids, 16, ()), "block_names(...)")), size)
        expect(len(found) == size // 16, "names_collide", size=size, size_2=size // 16, found=len(found))
        expect(len(set(found)) == len(found), f"of {size} random tokens, two blocks have the same name")
        return cost

    hold_steady(names_of, SIZES, "token_cost_grows")
