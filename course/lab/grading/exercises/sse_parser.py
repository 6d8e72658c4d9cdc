"""Server-sent events out of chunks that are cut anywhere."""

import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from course.lab.grading.blame import shown
from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part
from course.lab.grading.tools import Slips, compare, listed, slip_of, table

Event = dict[str, str]
"""event, data, id"""
END = "[DONE]"
LINE_END = re.compile("\r\n|\r|\n")

LINE_BYTES, PIECE_BYTES = 400_000, 8
EVENTS = 60_000
SLOWEST_S = 0.5
"""For either of the two large streams. Work in proportion to the bytes takes a third of it at most; copying or searching a
growing buffer anew for each chunk, or each event, takes longer by far."""


def parse(
    data: bytes,
    lines: Callable[[str], list[str]] = LINE_END.split,
    value: Callable[[str], str] = lambda after: after.removeprefix(" "),
    join: Callable[[list[str]], str] = "\n".join,
    *,
    id_stays: bool = True,
    kind_stays: bool = False,
    without_data: bool = False,
    unfinished: bool = False,
    bare_names: bool = True,
    done_ends: bool = True,
    done_is_event: bool = False,
    goes_on: bool = False,
    nul_in_id: bool = False,
    bom: str = "\ufeff",
    default: str = "message",
) -> list[Event]:
    """The events of a whole stream, by the rules, or with one of them broken."""
    found: list[Event] = []
    kind, last_id, texts = "", "", []
    *whole, rest = lines(data.decode("utf-8", errors="replace").removeprefix(bom))
    for line in [*whole, *([rest, ""] if unfinished else [])]:
        if line == "":
            if texts or (without_data and (kind or last_id)):
                event = {"event": kind or default, "data": join(texts), "id": last_id}
                is_end = event["data"] == END and done_ends
                if is_end and not goes_on:
                    return [*found, event] if done_is_event else found
                found += [] if is_end else [event]
            texts, kind, last_id = [], kind if kind_stays else "", last_id if id_stays else ""
            continue
        name, colon, after = line.partition(":")
        if not colon and not bare_names:
            continue
        after = value(after)
        if name == "data":
            texts.append(after)
        elif name == "event":
            kind = after
        elif name == "id" and (nul_in_id or "\0" not in after):
            last_id = after
    return found


def right_events(chunks: Sequence[bytes]) -> list[Event]:
    return parse(b"".join(chunks))


def with_rule(**broken: Any) -> Callable[[Sequence[bytes]], list[Event]]:
    return lambda chunks: parse(b"".join(chunks), **broken)


def crlf_within_chunks(chunks: Sequence[bytes]) -> list[Event]:
    return parse(
        b"".join(chunk.replace(b"\r\n", b"\n") for chunk in chunks), lines=lambda text: re.split("[\r\n]", text)
    )


def waits_behind_cr(chunks: Sequence[bytes]) -> list[Event]:
    return parse(b"".join(chunks).removesuffix(b"\r"))


def splitlines(text: str) -> list[str]:
    return [*text.splitlines(), ""] if LINE_END.search(text[-1:]) else text.splitlines()


SLIPS: Slips = {
    "each chunk is read on its own there: a chunk is no event. Keep what is unfinished for the next chunk": lambda chunks: [
        event for chunk in chunks for event in parse(chunk)
    ],
    "each chunk is read as one event: a chunk may hold several, or half of one": lambda chunks: [
        event for chunk in chunks for event in parse(chunk, unfinished=True)
    ],
    "a character was cut in two by a chunk, and decoded in halves: find lines in the bytes, then decode a whole line": lambda chunks: (
        parse("".join(chunk.decode("utf-8", errors="replace") for chunk in chunks).encode())
    ),
    "a CR at the end of one chunk and the LF at the beginning of the next are one line end, not two": crlf_within_chunks,
    "CR and LF, one after the other, are one line end, not two": with_rule(lines=lambda text: re.split("[\r\n]", text)),
    "a lone CR ends a line at once: do not wait for the byte behind it, which may never come": waits_behind_cr,
    "a lone CR ends a line too": with_rule(lines=lambda text: re.split("\r\n|\n", text)),
    "a line may end in LF, CRLF or CR: only LF is known there, and a CR stays at the end of the line": with_rule(
        lines=lambda text: text.split("\n")
    ),
    "str.splitlines also splits at U+2028, U+0085, form feeds and others, which are ordinary text here": with_rule(lines=splitlines),
    "what stands behind the colon is cut at the next colon: JSON is full of them. Split at the first one only": with_rule(
        value=lambda after: after.split(":")[0].removeprefix(" ")
    ),
    "all spaces are stripped: only one space, directly behind the colon, belongs to the framing": with_rule(value=str.strip),
    "all spaces behind the colon are stripped: only one of them belongs to the framing": with_rule(value=str.lstrip),
    "the space behind the colon belongs to the framing, not to the value": with_rule(value=str),
    "a character behind the colon is taken for the space: there need not be one": with_rule(value=lambda after: after[1:]),
    "several data lines of one event are joined by a newline": with_rule(join="".join),
    "several data lines of one event are joined by a newline, not by a space": with_rule(join=" ".join),
    "a data line replaces the one before: they are joined by a newline": with_rule(join=lambda texts: texts[-1]),
    "only the first data line is kept: they are joined by a newline": with_rule(join=lambda texts: texts[0]),
    "there is a newline behind the last data line: they are joined by newlines, none at the end": with_rule(
        join=lambda texts: "\n".join([*texts, ""])
    ),
    "an id stays until the next one: it is forgotten after each event there": with_rule(id_stays=False),
    "`event` names only the event it stands in: it stays there for the next ones": with_rule(kind_stays=True),
    "an event without a `data` line is none: it is not handed out": with_rule(without_data=True),
    "an event that is not named is called message": with_rule(default=""),
    "a line without a colon is a field without a value: `data` alone adds an empty line": with_rule(bare_names=False),
    "the stream ended in the middle of an event: without its empty line it is not handed out": with_rule(unfinished=True),
    "[DONE] is handed out as an event: it only says that the stream is over": with_rule(done_is_event=True),
    "[DONE] is taken for an event, and what comes behind it too": with_rule(done_ends=False),
    "behind [DONE] nothing is handed out: the stream is over": with_rule(goes_on=True),
    "an id that contains the character NUL is ignored": with_rule(nul_in_id=True),
    "a byte order mark at the very beginning belongs to the framing: leave it out": with_rule(bom="no such beginning"),
}  # fmt: skip


def read_events(value: Any, what: str) -> list[Event]:
    found = []
    for each in listed(value, what):
        event = table(each, "an event")
        if set(event) != {"event", "data", "id"} or not all(isinstance(text, str) for text in event.values()):
            raise Mistake(
                f"{what}: an event is a dictionary of three strings, event, data and id; yours is {shown(event)}"
            )
        found.append(event)
    return found


def fed(parser: Any, chunks: Sequence[bytes]) -> list[list[Event]]:
    return [read_events(parser.feed(chunk), f"feed({shown(chunk)})") for chunk in chunks]


def whole_chunks(chunks: Sequence[bytes]) -> str:
    return "the chunks [" + ", ".join(map(shown, chunks)) + "]"


def judge_streams(answer: Answer, streams: Sequence[Sequence[bytes]]) -> None:
    """All events must be right, and each must come with the chunk that completes it."""
    found = [fed(answer.EventParser(), chunks) for chunks in streams]
    flat = [((chunks,), [event for events in own for event in events]) for chunks, own in zip(streams, found)]
    if differing := [case for case in flat if case[1] != right_events(*case[0])]:
        smallest = min(differing, key=lambda case: sum(map(len, case[0][0])))
        # The slip that explains all streams; of an answer with several mistakes, the one that explains this stream.
        words = slip_of(SLIPS, flat) or slip_of(SLIPS, [smallest])
        compare("feed", [smallest], right_events, {words: SLIPS[words]} if words else {}, whole_chunks)
    for chunks, own in zip(streams, found):
        for number, events in enumerate(own, start=1):
            before, after = len(right_events(chunks[: number - 1])), len(right_events(chunks[:number]))
            if len(events) != after - before:
                raise Mistake(
                    f"{whole_chunks(chunks[:number])}: the last of them completes {after - before} events; its feed() gave "
                    f"{len(events)}. An event comes with the end of its empty line, not later. {_cr(chunks[number - 1])}",
                    0.3,
                )


def _cr(chunk: bytes) -> str:
    return (
        "A lone CR ends a line at once: an LF behind it belongs to it, but may never come"
        if chunk.endswith(b"\r")
        else ""
    )


JSON = '{"id": "a:1", "text": "%s"}'
NO_LINE_ENDS = "\u2028\u2029\x0b\x0c\x85\x1c"
WORDS = ("tea", "日本", "🦜", "é: è", "a  b", "{}", "x:y")


def some_value(rng: random.Random) -> str:
    return rng.choice((rng.choice(WORDS), JSON % rng.choice(WORDS), " " + rng.choice(WORDS), rng.choice(WORDS) + " "))


def some_stream(rng: random.Random, blocks: int, end: str = "\n", spice: Sequence[str] = ()) -> bytes:
    """Events of one or more lines, among them `spice`: names of lines that are a rule's business."""
    lines = []
    for _ in range(blocks):
        block = [f"data: {some_value(rng)}"]
        for kind in spice:
            if rng.random() < 0.45:
                block.insert(rng.randint(0, len(block)), odd_line(kind, rng))
        if "no data" in spice and rng.random() < 0.25:
            block = [line for line in block if not line.startswith("data")] or ["event: ping"]
        lines += [*block, ""]
    return "".join(line + (end or rng.choice(("\n", "\r", "\r\n"))) for line in lines).encode()


def odd_line(kind: str, rng: random.Random) -> str:
    return {
        "data": f"data:{rng.choice(('', ' '))}{some_value(rng)}",
        "bare": rng.choice(("data", "data:", "data: ")),
        "comment": rng.choice((": keep-alive", ":", ":data: no", ": " + rng.choice(WORDS))),
        "event": f"event: {rng.choice(('delta', 'usage', ' spaced', ''))}",
        "id": rng.choice((f"id: {rng.randint(1, 99)}", f"id:{rng.randint(1, 99)}", "id", "id: a\0b")),
        "unknown": rng.choice(("retry: 3000", "Data: no", " data: no", "datum: 1", "dat")),
        "separators": f"data: a{rng.choice(NO_LINE_ENDS)}b",
        "no data": f"event: {rng.choice(('ping', 'pong'))}",
    }[kind]


def cut(data: bytes, rng: random.Random, longest: int) -> list[bytes]:
    chunks, at = [], 0
    while at < len(data):
        size = rng.randint(1, longest)
        chunks += [data[at : at + size], *([b""] if rng.random() < 0.05 else [])]
        at += size
    return chunks


def one_line(answer: Answer, rng: random.Random) -> str:
    lines = [
        "data: tea",
        "data:tea",
        "data:  tea ",
        "data",
        "data:",
        "data: ",
        "event: a: b",
        "id:\t7",
        ": comment",
        'data: {"a": 1}',
    ]
    rng.shuffle(lines)
    cases = [((line,), listed(answer.field_of(line), f"field_of({line!r})", 2)) for line in lines]
    slips: Slips = {
        "all spaces are stripped: only one space, directly behind the colon, belongs to the framing": lambda line: [
            line.partition(":")[0], line.partition(":")[2].strip()
        ],
        "all spaces behind the colon are stripped: only one of them belongs to the framing": lambda line: [
            line.partition(":")[0], line.partition(":")[2].lstrip()
        ],
        "there need not be a space behind the colon: split at the colon": lambda line: [*line.partition(": ")[::2]],
        "the space behind the colon is left: it belongs to the framing": lambda line: [*line.partition(":")[::2]],
        "a character behind the colon is taken for the space: there need not be one": lambda line: [
            line.partition(":")[0], line.partition(":")[2][1:]
        ],
        "the value is cut at its own first colon: split at the first one only": lambda line: [
            *[each.removeprefix(" ") if i else each for i, each in enumerate([*line.split(":"), ""][:2])]
        ],
    }  # fmt: skip
    compare("field_of", cases, lambda line: [line.partition(":")[0], line.partition(":")[2].removeprefix(" ")], slips)
    return "name and value, with one space for the framing"


def plain(answer: Answer, rng: random.Random) -> str:
    streams = [[some_stream(rng, rng.randint(1, 3)) for _ in range(3)] for _ in range(6)]
    judge_streams(answer, streams)
    return "whole events, one or more in a chunk"


def on_their_own(answer: Answer, rng: random.Random) -> str:
    streams = [[b"id: 1\nda", b"ta: tea\n", b"\n"], [b"data: x\n\n", b"data: [DO", b"NE]\n\n"]]
    judge_streams(answer, streams)
    parsers = [answer.EventParser() for _ in streams]
    found: list[list[Event]] = [[], []]
    for chunks in zip(*streams):
        for parser, chunk, own in zip(parsers, chunks, found):
            own += read_events(parser.feed(chunk), "feed(...)")
    if found != (wanted := [right_events(chunks) for chunks in streams]):
        raise Mistake(
            f"two parsers, by turns: gave {shown(found)}; expected {shown(wanted)}. Is something kept in the class, or in a "
            "default, instead of in self?"
        )
    return "two parsers know nothing of each other"


def line_ends(answer: Answer, rng: random.Random) -> str:
    streams = [
        [some_stream(rng, 2, end, ("data", "separators")) for _ in range(2)] for end in ("\n", "\r\n", "\r", "") * 3
    ]
    judge_streams(answer, streams)
    return "LF, CRLF, CR, and nothing else, end a line"


def fields(answer: Answer, rng: random.Random) -> str:
    spice = ("data", "bare", "comment", "event", "id", "unknown", "no data")
    judge_streams(answer, [[some_stream(rng, 5, "\n", spice)] for _ in range(14)])
    return "data of several lines, event, id, comments, and what is unknown"


def cut_anywhere(answer: Answer, rng: random.Random) -> str:
    spice = ("data", "comment", "event", "id")
    streams = [
        cut(some_stream(rng, 3, end, spice), rng, longest)
        for end in ("\r\n", "\n", "\r", "")
        for longest in (1, 2, 5, 40)
    ]
    judge_streams(answer, [[b"data: x\r", b"\ndata: y\r", b"", b"\n\r", b"\n"], *streams])
    return "between characters, within them, between CR and LF"


def over(answer: Answer, rng: random.Random) -> str:
    last = b"data: [DONE]\n\n"
    bodies = [some_stream(rng, rng.randint(1, 3)) for _ in range(8)]
    streams = [cut(body + last + some_stream(rng, 1), rng, 30) for body in bodies]
    streams += [[some_stream(rng, 1), *cut(some_stream(rng, 1)[:-1], rng, 9)] for _ in range(4)]
    streams += [
        [b"data: [DONE] or not\n\n", b"data: [DONE", b"\n\ndata: x"],
        [b"data: [DONE]\ndata: y\n\n", b"data: z\n\n"],
    ]
    judge_streams(answer, streams)
    parser = answer.EventParser()
    for chunk, wanted in ((bodies[0], False), (last[:-1], False), (last[-1:], True), (bodies[1], True)):
        parser.feed(chunk)
        if bool(found := getattr(parser, "done", None)) is not wanted:
            raise Mistake(f"after feed({shown(chunk)}), done is {shown(found)}; expected {wanted}", 0.3)
    return "[DONE] ends it, and nothing unfinished is handed out"


def byte_order_mark(answer: Answer, rng: random.Random) -> str:
    mark = "\ufeff".encode()
    body = some_stream(rng, 2)
    streams = [[mark + body], [mark[:1], mark[1:2], mark[2:] + body[:3], body[3:]], [body, b"data: " + mark + b"\n\n"]]
    judge_streams(answer, [*streams, [body, mark + b"data: no field of this name\n\n", body]])
    return "left out at the beginning, and nowhere else"


def stays_quick(answer: Answer, rng: random.Random) -> str:
    letter = rng.choice(b"abcxyz")
    pieces = [b"data: ", *[bytes([letter]) * PIECE_BYTES] * (LINE_BYTES // PIECE_BYTES)]
    parser = answer.EventParser()
    began = time.process_time()
    for number, piece in enumerate(pieces):
        parser.feed(piece)
        if time.process_time() - began > SLOWEST_S:
            raise Mistake(
                f"one line of {LINE_BYTES} bytes, in chunks of {PIECE_BYTES}: {number} chunks took more than {SLOWEST_S} s. Their "
                "time grows with what came before. Look only at what is new, and join the pieces when the line ends"
            )
    if [len(event["data"]) for event in read_events(parser.feed(b"\n\n"), "feed(...)")] != [LINE_BYTES]:
        raise Mistake(f"one line of {LINE_BYTES} bytes, in chunks of {PIECE_BYTES}, should be one event of this length")
    began = time.process_time()
    found = answer.EventParser().feed(b"data:x\n\n" * EVENTS)
    took = time.process_time() - began
    listed(found, f"feed(a chunk of {EVENTS} events)", EVENTS)
    if took > SLOWEST_S:
        raise Mistake(
            f"one chunk of {EVENTS} events took {took:.1f} s: is the rest of the chunk copied for each line? Split it once"
        )
    return "the work is in proportion to the bytes, however they are cut"


EXERCISE = Exercise(
    id="sse-parser",
    title="A parser for server-sent events",
    lesson=10,
    difficulty=3,
    minutes=45,
    entry_points=("field_of", "EventParser"),
    parts=(
        Part("one line", 2, one_line),
        Part("plain events", 2, plain),
        Part("parsers are independent", 1, on_their_own),
        Part("line ends", 2, line_ends),
        Part("fields", 3, fields),
        Part("cut anywhere", 3, cut_anywhere),
        Part("[DONE] and the end", 2, over),
        Part("byte order mark", 1, byte_order_mark),
        Part("work per byte", 2, stays_quick),
    ),
    hints=(
        Hint(
            "Three layers: chunks into lines of bytes, a line into a field, fields into an event at an empty line.", 0.1
        ),
        Hint(
            "Find line ends in the bytes (b'\\r' and b'\\n' occur in no longer character) and decode whole lines.", 0.1
        ),
        Hint(
            "Note whether the last chunk ended in CR: then an LF at the beginning of the next one is part of that end.",
            0.1,
        ),
    ),
    limit_s=3.5,
)
