"""Bytes per token in, text out: no half characters, none lost, none held longer than it must be."""

import itertools
import random
from collections.abc import Sequence

from course.grading.growth import WorkCost, cost_of, hold_steady
from course.grading.tools import Answer, Mistake, compare, cut, expect, shown, text, whole

UNKNOWN = "\ufffd"
LETTERS = (*"a Z\n\0é߿ࠀ日本\ud7ff\ue000\uffff\ufeff😀🦜𐀀\U0010ffff", "\r\n")
"""Characters of one to four bytes, those at the borders of each length, and a byte order mark in the middle of a text."""

TEXT_BYTES, TOKENS = (4_000, 40_000, 400_000), 200
"""Lengths of a text, and the short tokens that follow it."""


def right_text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def right_length(first: int) -> int:
    """Brute force: of all lengths, the one at which some character begins with this byte."""
    for length in (1, 2, 3, 4):
        for second in range(0x80, 0xC0):
            try:
                bytes([first, second, 0x80, 0x80][:length]).decode("utf-8")
            except UnicodeDecodeError:
                continue
            return length
    return 0


LENGTH_SLIPS = {
    "overlong_lead_byte": lambda first: 2 if first in (0xC0, 0xC1) else right_length(first),
    "lead_byte_past_unicode": lambda first: 4 if 0xF5 <= first <= 0xF7 else right_length(first),
    "continuation_as_lead_byte": lambda first: 1 if 0x80 <= first < 0xC0 else right_length(first),
}


def lengths(answer: Answer, rng: random.Random) -> None:
    firsts = rng.sample(range(256), 256)
    cases = [((first,), whole(answer.length_of(first), f"length_of(0x{first:02X})")) for first in firsts]
    compare("length_of", cases, right_length, LENGTH_SLIPS, describe=lambda first: f"length_of(0x{first:02X})")


def hexed(tokens: Sequence[bytes]) -> str:
    return " | ".join(token.hex(" ") or "(empty)" for token in tokens)


def split(data: bytes, rng: random.Random, longest: int = 3) -> list[bytes]:
    """As the tokens of a vocabulary could cut it. Some tokens have no bytes at all."""
    return cut(data, rng, longest, 0.1)


def shown_after_each(answer: Answer, tokens: Sequence[bytes]) -> tuple[list[str], str]:
    """What a new stream has shown, in all, after each token, and what finish() adds."""
    *found, rest = answer.play(answer.TextStream(), [*(("append", [token]) for token in tokens), ("finish", [])])
    new = [text(each, f"append({token!r})") for token, each in zip(tokens, found)]
    return list(itertools.accumulate(new)), text(rest, "finish()")


def certain(data: bytes) -> str:
    """The longest text that every continuation of valid text begins with: valid text without its unfinished end."""
    return data.decode("utf-8", errors="ignore")


def whole_characters(answer: Answer, rng: random.Random) -> str:
    seen = 0
    for turn in range(60):
        content = "".join([LETTERS[turn % len(LETTERS)], *rng.choices(LETTERS, k=rng.randint(0, 11))])
        tokens = split(content.encode(), rng, longest=1 if turn % 4 == 0 else 5)
        steps, _ = shown_after_each(answer, tokens)
        came = b""
        for number, (token, found) in enumerate(zip(tokens, steps), start=1):
            came += token
            about = {"asked": f"after the tokens {hexed(tokens[:number])}", "found": found, "certain": certain(came)}
            expect(found == certain(came), "showed_too_little", why=why(found, certain(came)), **about)
            seen += 1
    return f"{seen} tokens: each character shown by the token that completes it"


def why(found: str, wanted: str) -> str:
    if found.count(UNKNOWN) > wanted.count(UNKNOWN):
        return "Half a character was shown as U+FFFD: its bytes must wait for the rest"
    if wanted.startswith(found):
        return "Characters that are whole are held back, or lost: show each with the token that completes it"
    if len(found) > len(wanted):
        return "Something was shown twice: append() gives only what is new"
    return "A character was lost, or changed"


def at_the_end(answer: Answer, rng: random.Random) -> None:
    for _ in range(30):
        last = rng.choice("é日😀𐀀").encode()
        begin = "".join(rng.choice(LETTERS) for _ in range(rng.randint(0, 5))).encode()
        data = begin + last[: rng.randint(1, len(last) - 1)]
        tokens = split(data, rng)
        steps, rest = shown_after_each(answer, tokens)
        found, wanted = (steps or [""])[-1] + rest, right_text(data)
        tip = "No more bytes will come: what is held back becomes one U+FFFD" if len(found) < len(wanted) else ""
        expect(
            found == wanted, "wrong_text_after_finish", tokens=hexed(tokens), found=found, right_text=wanted, tip=tip
        )
    stream = answer.TextStream()
    stream.append("é".encode()[:1])
    first, second = text(stream.finish(), "finish()"), text(stream.finish(), "a second finish()")
    expect((first, second) == (UNKNOWN, ""), "second_finish_not_empty", 0.5, first=first, second=second)
    expect(not (found := text(answer.TextStream().finish(), "finish()")), "finish_of_empty_stream", 0.5, found=found)


RUBBISH = "80 / bf / c3 / e6 / e6 97 / f0 / f0 9f / f0 9f a6 / c0 af / e0 80 af / ed a0 80 / f4 90 80 80 / f5 / ff / f8 88 80 80"
"""Stray bytes, characters cut short, forms that are too long, a surrogate, beyond Unicode, what never was UTF-8."""


def some_rubbish(rng: random.Random) -> bytes:
    """Bytes that are no character, among others that are: a real U+FFFD too."""
    parts = [bytes.fromhex(part) for part in RUBBISH.split("/")]
    parts += [letter.encode() for letter in (UNKNOWN, "é", "日", "😀")]
    return b"".join(rng.choice(parts) + b"a" * (rng.random() < 0.4) for _ in range(rng.randint(1, 6)))


def invalid_bytes(answer: Answer, rng: random.Random) -> None:
    for _ in range(250):
        data = some_rubbish(rng)
        tokens = split(data, rng, longest=2)
        steps, rest = shown_after_each(answer, tokens)
        wanted, found = right_text(data), (steps or [""])[-1] + rest
        fields = {"tokens": hexed(tokens), "found": found, "wanted": wanted}
        expect(found == wanted, "wrong_text", slip=why_rubbish(found, wanted), **fields)
        came = b""
        for token, so_far in zip(tokens, steps):
            came += token
            if came[-1:] < b"\x80":  # a letter of one byte ends whatever was open
                about = {"tokens": hexed(tokens), "came": came.hex(" "), "right_text": right_text(came)}
                expect(so_far == right_text(came), "held_back_invalid_bytes", 0.3, so_far=so_far, **about)


def why_rubbish(found: str, wanted: str) -> str:
    if found.count(UNKNOWN) < wanted.count(UNKNOWN):
        same = found.replace(UNKNOWN, "") == wanted.replace(UNKNOWN, "")
        return "dropped_invalid_bytes" if same else "lost_text_after_invalid"
    if found.count(UNKNOWN) > wanted.count(UNKNOWN):
        return "too_many_replacements"
    return "text is lost, or out of order"


def on_their_own(answer: Answer, rng: random.Random) -> None:
    bird, letter = "🦜".encode(), rng.choice("éü")
    at = rng.randint(1, 3)
    for tokens in ([bird[:at], bird[at:]], [letter.encode(), b"x"]):
        steps, _ = shown_after_each(answer, tokens)
        wanted = right_text(b"".join(tokens))
        about = {"text": steps[-1], "wanted": wanted, "why": why(steps[-1], wanted)}
        expect(steps[-1] == wanted, "showed_wrong_text", tokens=hexed(tokens), **about)
    first, second = answer.TextStream(), answer.TextStream()
    found = [first.append(bird[:at]), second.append(letter.encode()), first.append(bird[at:]), second.append(b"x")]
    if found != ["", letter, "🦜", "x"]:
        raise Mistake("state_shared_between_streams", found=shown(found), wanted=shown(["", letter, "🦜", "x"]))


def stays_quick(answer: Answer, rng: random.Random) -> None:
    letter = rng.choice("😀🦜")
    tokens = split(("日é" * TOKENS).encode(), rng, longest=2)[:TOKENS]

    def tokens_behind(size: int) -> WorkCost:
        stream, before = answer.TextStream(), letter * (size // 4)
        if text(stream.append(before.encode()), "append(a long text)") != before:
            raise Mistake("long_token_changed", size=size, characters=len(before))
        return cost_of(lambda: answer.many(stream, "append", [[token] for token in tokens]), TOKENS)

    hold_steady(tokens_behind, TEXT_BYTES, "token_cost_grows")
