"""Server-sent events out of chunks that are cut anywhere."""

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from course.grading.growth import WorkCost, cost_of, hold_steady
from course.grading.tools import Answer, Mistake, Slips, broken, compare, cut, expect, listed, shown, slip_of, table

Event = dict[str, str]
"""event, data, id"""
END = "[DONE]"
LINE_END = re.compile("\r\n|\r|\n")

EMPTY = 0.05
"""Share of the pieces of a stream behind which an empty one comes."""
LINE_BYTES, PIECES, PIECE_BYTES = (8_000, 120_000, 800_000), 400, 8
"""Lengths of an unfinished line, which comes in pieces ten times as long as those that follow it."""
EVENTS, EVENT_BYTES = (100, 800, 5_000), 400
"""Events in one chunk: little work for Python, and many bytes for code that copies the rest of the chunk."""
COMMENTS = (1_000, 10_000, 80_000)
"""Lines in one chunk, as short as lines can be: many of them, for code that moves the rest of the list."""


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
    bom: str = "\ufeff",
) -> list[Event]:
    """The events of a whole stream, by the rules, or with one of them broken."""
    found: list[Event] = []
    kind, last_id, texts = "", "", []
    *whole, rest = lines(data.decode("utf-8", errors="replace").removeprefix(bom))
    for line in [*whole, *([rest, ""] if unfinished else [])]:
        if line == "":
            if texts or (without_data and (kind or last_id)):
                event = {"event": kind or "message", "data": join(texts), "id": last_id}
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
        elif name == "id" and "\0" not in after:
            last_id = after
    return found


def with_rule(**rules: Any) -> Callable[[Sequence[bytes]], list[Event]]:
    return lambda chunks: parse(b"".join(chunks), **rules)


right_events = with_rule()


def each_line_end(text: str) -> list[str]:
    return re.split("[\r\n]", text)


def splitlines(text: str) -> list[str]:
    return [*text.splitlines(), ""] if LINE_END.search(text[-1:]) else text.splitlines()


SLIPS: Slips = {
    "chunk_read_alone": lambda chunks: [event for chunk in chunks for event in parse(chunk)],
    "chunk_is_event": lambda chunks: [event for chunk in chunks for event in parse(chunk, unfinished=True)],
    "character_cut_by_chunk": lambda chunks: parse(
        "".join(chunk.decode(errors="replace") for chunk in chunks).encode()
    ),
    "crlf_cut_by_chunk": lambda chunks: parse(b"".join(c.replace(b"\r\n", b"\n") for c in chunks), each_line_end),
    "crlf_ends_two_lines": with_rule(lines=each_line_end),
    "lone_cr_waits": lambda chunks: parse(b"".join(chunks).removesuffix(b"\r")),
    "lone_cr_ignored": with_rule(lines=lambda text: re.split("\r\n|\n", text)),
    "only_lf_known": with_rule(lines=lambda text: text.split("\n")),
    "used_splitlines": with_rule(lines=splitlines),
    "cut_at_next_colon": with_rule(value=lambda after: after.split(":")[0].removeprefix(" ")),
    "stripped_all_spaces": with_rule(value=str.strip),
    "kept_the_space": with_rule(value=str),
    "dropped_first_character": with_rule(value=lambda after: after[1:]),
    "data_lines_not_joined": with_rule(join="".join),
    "last_data_line_wins": with_rule(join=lambda texts: texts[-1]),
    **broken(__file__, with_rule),
}


def read_events(value: Any, what: str) -> list[Event]:
    found = [table(each, "an event") for each in listed(value, what)]
    for event in found:
        is_right = set(event) == {"event", "data", "id"} and all(isinstance(text, str) for text in event.values())
        expect(is_right, "not_an_event", what=what, event=shown(event))
    return found


def fed(answer: Answer, chunks: Sequence[bytes]) -> list[list[Event]]:
    found = answer.play(answer.EventParser(), [("feed", [chunk]) for chunk in chunks])
    return [read_events(events, f"feed({shown(chunk)})") for chunk, events in zip(chunks, found)]


def whole_chunks(chunks: Sequence[bytes]) -> str:
    return "the chunks [" + ", ".join(map(shown, chunks)) + "]"


def judge_streams(answer: Answer, streams: Sequence[Sequence[bytes]]) -> None:
    """All events must be right, and each must come with the chunk that completes it."""
    found = [fed(answer, chunks) for chunks in streams]
    flat = [((chunks,), [event for events in own for event in events]) for chunks, own in zip(streams, found)]
    if differing := [case for case in flat if case[1] != right_events(*case[0])]:
        smallest = min(differing, key=lambda case: sum(map(len, case[0][0])))
        # The slip that explains all streams; of an answer with several mistakes, the one that explains this stream.
        words = slip_of(SLIPS, flat) or slip_of(SLIPS, [smallest])
        compare("feed", [smallest], right_events, {words: SLIPS[words]} if words else {}, describe=whole_chunks)
    for chunks, own in zip(streams, found):
        for number, events in enumerate(own, start=1):
            before, after = len(right_events(chunks[: number - 1])), len(right_events(chunks[:number]))
            if len(events) != after - before:
                name = "event_too_late_after_cr" if chunks[number - 1].endswith(b"\r") else "event_too_late"
                fields = {"chunks": whole_chunks(chunks[:number]), "completed": after - before, "events": len(events)}
                raise Mistake(name, 0.3, **fields)


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


def split_with(value: Callable[[str], str]) -> Callable[[str], list[str]]:
    """A line's name and value; `value` makes it of what stands behind the first colon."""
    return lambda line: [line.partition(":")[0], value(line.partition(":")[2])]


def one_line(answer: Answer, rng: random.Random, lines_asked: list[str]) -> None:
    lines = rng.sample(lines_asked, len(lines_asked))
    cases = [((line,), listed(answer.field_of(line), f"field_of({line!r})", 2)) for line in lines]
    slips: Slips = {
        "stripped_all_spaces": split_with(str.strip),
        "required_a_space": lambda line: [*line.partition(": ")[::2]],
        "field_kept_the_space": split_with(str),
        "dropped_first_character": split_with(lambda after: after[1:]),
        "value_cut_at_colon": split_with(lambda after: after.split(":")[0].removeprefix(" ")),
    }
    compare("field_of", cases, split_with(lambda after: after.removeprefix(" ")), slips)


def plain(answer: Answer, rng: random.Random) -> None:
    judge_streams(answer, [[some_stream(rng, rng.randint(1, 3)) for _ in range(3)] for _ in range(6)])


def on_their_own(answer: Answer, rng: random.Random) -> None:
    streams = [[b"id: 1\nda", b"ta: tea\n", b"\n"], [b"data: x\n\n", b"data: [DO", b"NE]\n\n"]]
    judge_streams(answer, streams)
    parsers = [answer.EventParser() for _ in streams]
    found: list[list[Event]] = [[], []]
    for chunks in zip(*streams):
        for parser, chunk, own in zip(parsers, chunks, found):
            own += read_events(parser.feed(chunk), "feed(...)")
    if found != (wanted := [right_events(chunks) for chunks in streams]):
        raise Mistake("state_shared_between_parsers", found=shown(found), wanted=shown(wanted))


def line_ends(answer: Answer, rng: random.Random) -> None:
    spice = ("data", "separators")
    judge_streams(answer, [[some_stream(rng, 2, end, spice) for _ in range(2)] for end in ("\n", "\r\n", "\r", "") * 3])


def fields(answer: Answer, rng: random.Random, clauses: list[str]) -> None:
    """Args: clauses: a stream for each sentence of the statement that needs one of its own, a byte a letter."""
    spice = ("data", "bare", "comment", "event", "id", "unknown", "no data")
    judge_streams(answer, [[some_stream(rng, 5, "\n", spice)] for _ in range(14)])
    judge_streams(answer, [[clause.encode("latin-1")] for clause in clauses])
    judge_streams(answer, [[letter.encode("latin-1") for letter in clause] for clause in clauses])


def cut_anywhere(answer: Answer, rng: random.Random) -> None:
    spice = ("data", "comment", "event", "id")
    cuts = [(end, longest) for end in ("\r\n", "\n", "\r", "") for longest in (1, 2, 5, 40)]
    streams = [cut(some_stream(rng, 3, end, spice), rng, longest, EMPTY) for end, longest in cuts]
    judge_streams(answer, [[b"data: x\r", b"\ndata: y\r", b"", b"\n\r", b"\n"], *streams])


def over(answer: Answer, rng: random.Random) -> None:
    last = b"data: [DONE]\n\n"
    bodies = [some_stream(rng, rng.randint(1, 3)) for _ in range(8)]
    streams = [cut(body + last + some_stream(rng, 1), rng, 30, EMPTY) for body in bodies]
    streams += [[some_stream(rng, 1), *cut(some_stream(rng, 1)[:-1], rng, 9, EMPTY)] for _ in range(4)]
    streams.append([b"data: [DONE] or not\n\n", b"data: [DONE", b"\n\ndata: x"])
    streams += [[b"event: e\nid: 1\ndata:[DONE]\n\ndata: z\n\n"], [b"data:  [DONE]\n\ndata: [done]\n\ndata: z\n\n"]]
    judge_streams(answer, [*streams, [b"data: [DONE]\ndata: y\n\n", b"data: z\n\n"]])
    parser = answer.EventParser()
    for chunk, wanted in ((bodies[0], False), (last[:-1], False), (last[-1:], True), (bodies[1], True)):
        parser.feed(chunk)
        if bool(found := getattr(parser, "done", None)) is not wanted:
            raise Mistake(f"after feed({shown(chunk)}), done is {shown(found)}; expected {wanted}", 0.3)


def byte_order_mark(answer: Answer, rng: random.Random) -> None:
    mark = "\ufeff".encode()
    body = some_stream(rng, 2)
    streams = [[mark + body], [mark[:1], mark[1:2], mark[2:] + body[:3], body[3:]], [body, b"data: " + mark + b"\n\n"]]
    judge_streams(answer, [*streams, [mark + mark + body], [body, mark + b"data: no field of this name\n\n", body]])


def stays_quick(answer: Answer, rng: random.Random) -> None:
    letter = bytes([rng.choice(b"abcxyz")])

    def pieces_of_a_line(size: int) -> WorkCost:
        parser = answer.EventParser()
        answer.many(parser, "feed", [[b"data: "], *[[letter * 10 * PIECE_BYTES]] * (size // (10 * PIECE_BYTES))])
        cost = cost_of(lambda: answer.many(parser, "feed", [[letter * PIECE_BYTES]] * PIECES), PIECES)
        events = read_events(parser.feed(b"\n\n"), "feed(...)")
        expect([len(each["data"]) for each in events] == [size + PIECES * PIECE_BYTES], "long_line_lost", size=size)
        return cost

    def events_of_a_chunk(size: int) -> WorkCost:
        parser, chunk, found = answer.EventParser(), (b"data:" + letter * EVENT_BYTES + b"\n\n") * size, []
        cost = cost_of(lambda: found.extend(listed(parser.feed(chunk), f"feed(a chunk of {size} events)")), size)
        expect(len(found) == size, f"feed(a chunk of {size} events) gave {len(found)}")
        return cost

    def comments_of_a_chunk(size: int) -> WorkCost:
        parser = answer.EventParser()
        return cost_of(lambda: parser.feed(b":\n" * size), size)

    hold_steady(pieces_of_a_line, LINE_BYTES, "chunk_cost_grows")
    hold_steady(events_of_a_chunk, EVENTS, "line_cost_grows", lines="events")
    hold_steady(comments_of_a_chunk, COMMENTS, "line_cost_grows", lines="lines")
