"""The wire, drawn: when the server handed a token over, and when the client had it. And what text and chunks cost."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from course.lab.display import Html, as_table, table_by_name
from course.lab.explorer import Explorer, choices
from course.lab.run import percentile
from course.lab.server import LabServer
from course.lab.server_tap import ServerTap
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import (
    FAINT,
    HALO,
    PAPER,
    SOFT,
    Picture,
    Scale,
    legend,
    line,
    phase_fill,
    rect,
    tag,
    text,
    time_axis,
)
from course.lessons.lesson_10.run import Fed, Letter, ProxiedStream, shows_overload, through

LEFT, RIGHT, PANEL, BARS = 74, 14, 124, 64
LABEL = 28
"""Picture units that a number under a tick needs."""


def draw_wire(
    streams: Sequence[ProxiedStream], title: str = "When does a token leave, and when does it arrive?"
) -> Picture:
    """For each stream two rows of ticks on one time axis; a thread joins a token's two ends."""
    longest = max(s.heard.ended - s.heard.sent for s in streams)
    scale = Scale(0, 1.03 * longest, LEFT, WIDTH - RIGHT)
    bottom = PANEL * len(streams) + 4
    body = time_axis(scale, 0, bottom, "since the request was sent")
    body += "".join(_panel(stream, scale, 4 + PANEL * i) for i, stream in enumerate(streams))
    return Picture(title, body, bottom + 34, description=" ".join(map(_told, streams)))


def _panel(stream: ProxiedStream, scale: Scale, top: float) -> str:
    start = stream.heard.sent
    left = [scale(moment - start) for moment in stream.server]
    came = [scale(moment - start) for moment in stream.heard.arrivals]
    upper, lower = top + 36, top + 76
    threads = "".join(f"M{a:.1f} {upper + 14}L{b:.1f} {lower}" for a, b in zip(left, came))
    body = text(LEFT, top + 14, stream.name, size=13, font_weight="bold", **HALO)
    body += text(LEFT - 8, upper + 11, "leaves", size=11, fill=SOFT, text_anchor="end")
    body += text(LEFT - 8, lower + 11, "arrives", size=11, fill=SOFT, text_anchor="end")
    body += tag("path", d=threads, stroke=SOFT, stroke_width=0.5, stroke_opacity=0.6, fill="none")
    body += "".join(rect(x - 0.8, upper, 1.6, 14, fill=PHASE_COLOURS["decode"]) for x in left)
    last_label = -LABEL
    for x, same in groupby(came, key=lambda x: round(x, 1)):
        count = len(list(same))
        body += rect(x - 1, lower, 2 if count < 3 else 4, 14, fill=PHASE_COLOURS["stream"])
        if count >= 3 and x - last_label >= LABEL:
            body += text(x + 1, lower + 26, f"×{count}", size=11, fill=ALARM, text_anchor="middle", **HALO)
            last_label = x
    for end, y, ttft, gaps in (
        ("server", upper - 5, stream.server_ttft, stream.server_itl),
        ("client", lower + 40, stream.heard.ttft, stream.heard.itl),
    ):
        words = f"{end}: TTFT {seconds(ttft)}, ITL {_itl(gaps)}"
        body += text(WIDTH - RIGHT, y, words, size=11, text_anchor="end", **HALO)
    if last_label > 0:
        body += text(LEFT, lower + 40, "×n: n tokens at the same moment", size=11, fill=ALARM, **HALO)
    return body + line(LEFT, top + PANEL - 6, WIDTH - RIGHT, top + PANEL - 6, stroke=FAINT)


def draw_both_ends(streams: Sequence[ProxiedStream]) -> Picture:
    """For each stream the five phases at the server, and below them what its client had: nothing, then text."""
    longest = max(s.heard.ended - s.heard.sent for s in streams)
    scale = Scale(0, 1.03 * longest, LEFT, WIDTH - RIGHT)
    bottom = 24 + BARS * len(streams)
    body = legend(LEFT, 14) + time_axis(scale, 24, bottom, "since the request was sent")
    for i, stream in enumerate(streams):
        top, start = 24 + BARS * i, stream.heard.sent
        body += text(LEFT, top + 15, stream.name, size=12, font_weight="bold", **HALO)
        for phase, begin, end in zip(PHASE_COLOURS, stream.borders, stream.borders[1:]):
            body += rect(
                scale(begin - start), top + 21, scale(end - start) - scale(begin - start), 14, fill=phase_fill(phase)
            )
        first, last = scale(stream.heard.ttft), scale(stream.heard.arrivals[-1] - start)
        body += rect(LEFT, top + 39, first - LEFT, 14, fill="none", stroke=SOFT)
        body += rect(first, top + 39, last - first, 14, fill=SOFT)
        for label, y in (("server", top + 32), ("client", top + 50)):
            body += text(LEFT - 8, y, label, size=11, fill=SOFT, text_anchor="end")
        body += text(first + 5, top + 50, f"first text after {seconds(stream.heard.ttft)}", size=11, fill=PAPER)
    title = "The server's five phases, and what the client had meanwhile (outlined: nothing yet)"
    return Picture(title, body, bottom + 34, description=" ".join(map(_told, streams)))


def _itl(gaps: Sequence[float]) -> str:
    return ", ".join(f"p{q} {seconds(percentile(gaps, q))}" for q in (50, 99))


def _told(stream: ProxiedStream) -> str:
    return (
        f"{stream.name}: the server's TTFT {seconds(stream.server_ttft)}, ITL {_itl(stream.server_itl)}; the client's "
        f"TTFT {seconds(stream.heard.ttft)}, ITL {_itl(stream.heard.itl)}."
    )


def metrics_table(streams: Sequence[ProxiedStream]) -> Html:
    """What the server's own dashboard shows of each stream, beside what its client had."""
    return table_by_name(
        "through",
        {stream.name: stream for stream in streams},
        {
            "TTFT at /metrics": lambda stream: _told_at_metrics(stream, "ttft"),
            "mean ITL at /metrics": lambda stream: _told_at_metrics(stream, "itl"),
            "stream phase at /metrics": lambda stream: _told_at_metrics(stream, "stream"),
            "TTFT, client": lambda stream: seconds(stream.heard.ttft),
            "ITL p99, client": lambda stream: seconds(percentile(stream.heard.itl, 99)),
        },
    )


def _told_at_metrics(stream: ProxiedStream, name: str) -> str:
    """A dash for what a server doesn't measure: vLLM and SGLang have no stream phase."""
    return seconds(stream.told[name]) if name in stream.told else "–"


def spoil(server: LabServer | ServerTap, straight: ProxiedStream) -> Explorer:
    """The proxy's sliders; each press sends a request over the real wire."""

    def send(buffer_bytes: int, coalesce: int, hold_ms: int) -> Iterator[Picture]:
        spoiling = {"buffer_bytes": buffer_bytes, "coalesce": coalesce, "hold_ms": hold_ms}
        spoiling = {name: value for name, value in spoiling.items() if value != (1 if name == "coalesce" else 0)}
        server.ensure_open()
        yield draw_wire([straight, through(server, **spoiling)])

    return Explorer(
        send,
        button="Send one",
        buffer_bytes=choices("proxy holds, bytes", (0, 512, 1024, 2048, 4096, 8192, 32768)),
        coalesce=choices("events passed on together", (1, 2, 4, 8, 16)),
        hold_ms=choices("each piece delayed by, ms", (0, 20, 50, 100, 250)),
    ).showing(draw_wire([straight]))


def letters_table(letters: Sequence[Letter]) -> Html:
    """A row a token: its bytes, what it is by itself, and what minillm lets out when it comes."""
    rows = [(str(each.token_id), each.raw.hex(" "), repr(each.alone), repr(each.released)) for each in letters]
    return as_table(("token", "bytes", "decoded alone", "minillm shows"), rows)


def detokenizing_table(found: Mapping[int, tuple[float, float]]) -> Html:
    """One price that grows with the answer, and one that does not."""
    rows = [(str(length), seconds(whole), seconds(window)) for length, (whole, window) in found.items()]
    return as_table(("tokens in the answer", "a token, the whole text again", "a token, as minillm does it"), rows)


def thousands(rate: float) -> str:
    """A rate of this size, as far as two runs agree on it: 43,000 for 43,552."""
    return f"{float(f'{rate:.2g}'):,.0f}"


def chunk_cost_table(costs: Sequence[Fed]) -> Html:
    """CPU of the front, for a chunk and for a token."""
    return table_by_name(
        "tokens in a chunk",
        {str(each.every): each for each in costs},
        {
            "CPU for a chunk": lambda fed: seconds(fed.cpu_per_chunk),
            "CPU for a token": lambda fed: seconds(fed.cpu_per_chunk / fed.every),
            "tokens/s from one core at that cost": lambda fed: thousands(fed.every / fed.cpu_per_chunk),
        },
    )


NO_CORE = "The front end didn't get a core here, so it can't be judged."


def too_many_table(found: Sequence[Fed]) -> Html:
    """What a front with too much to send had done; with a note where the machine did not let it."""
    shown = table_by_name(
        "tokens in a chunk",
        {str(each.every): each for each in found},
        {
            "streams": lambda fed: str(fed.streams),
            "chunks/s sent": lambda fed: thousands(fed.chunks / fed.wall_s),
            "share of a core": lambda fed: f"{fed.busy:.0%}",
            "chunk lateness, p50": lambda fed: seconds(percentile(fed.lateness, 50)),
            "p99": lambda fed: seconds(percentile(fed.lateness, 99)),
        },
    )
    if shows_overload(found):
        return shown
    return Html(f"{shown.html}<p>{NO_CORE}</p>", f"{shown.text}\n{NO_CORE}")
