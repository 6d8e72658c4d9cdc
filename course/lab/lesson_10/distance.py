"""Far away: round trips as blocks, and what is left for the server."""

from collections.abc import Sequence

from course.lab.explorer import Explorer, buttons, slider
from course.lab.lesson_10.relay import HANDSHAKES
from course.lab.lesson_10.traffic import Trip
from course.lab.style import WIDTH, seconds
from course.lab.svg import PAPER, Picture, Scale, phase_fill, rect, text, time_axis

LEFT, RIGHT, ROW = 210, 150, 38
NETWORK = "#56B4E9"
"""Okabe and Ito's sky blue: the network is no phase of the server."""


def draw_trips(found: Sequence[Trip]) -> Picture:
    """A row a measurement: a block for each round trip, then what the server took."""
    scale = Scale(0, max(max(t.ttft, t.network) for t in found), LEFT, WIDTH - RIGHT)
    bottom = 26 + ROW * len(found)
    body = _legend() + time_axis(scale, 18, bottom, "until the first token is there")
    for i, each in enumerate(found):
        y = 26 + ROW * i
        body += text(LEFT - 10, y + 11, f"round trip {seconds(each.rtt_s)}", size=12, text_anchor="end")
        body += text(LEFT - 10, y + 25, each.connection, size=11, text_anchor="end")
        body += _blocks(scale, y, each)
        words = f"{seconds(each.ttft)}; ITL {seconds(each.itl)}"
        body += text(scale(max(each.ttft, each.network)) + 6, y + 18, words, size=11)
    told = "; ".join(
        f"round trip {seconds(t.rtt_s)}, {t.connection}: TTFT {seconds(t.ttft)}, of it {seconds(t.network)} network, "
        f"ITL {seconds(t.itl)}"
        for t in found
    )
    return Picture("Far away: what is the first token waiting for?", body, bottom + 34, description=told)


def _blocks(scale: Scale, y: float, each: Trip) -> str:
    body = ""
    for trip in range(each.round_trips if each.rtt_s else 0):
        x, end = scale(trip * each.rtt_s), scale((trip + 1) * each.rtt_s)
        body += rect(x, y, end - x - 1, 26, fill=NETWORK)
        name = "ask" if trip == each.round_trips - 1 else f"set-up {trip + 1}"
        if end - x > 44:
            body += text((x + end) / 2, y + 17, name, size=11, fill="#1f2328", text_anchor="middle")
    rest = max(each.ttft - each.network, 0)
    return body + rect(scale(each.network), y, max(scale(rest) - scale(0), 1), 26, fill=phase_fill("prefill"),
                       stroke=PAPER)  # fmt: skip


def _legend() -> str:
    body = rect(LEFT, 2, 13, 10, fill=NETWORK) + text(LEFT + 18, 11, "a round trip", size=11)
    return body + rect(LEFT + 108, 2, 13, 10, fill=phase_fill("prefill")) + text(
        LEFT + 126, 11, "the rest: mostly the server's part", size=11)  # fmt: skip


def on_paper(found: Sequence[Trip]) -> Explorer:
    """The same by arithmetic, for any distance and any handshake; the server's part is the shortest that was seen."""
    server_s = min(max(each.ttft - each.network, 0.0) for each in found)
    itl = min(each.itl for each in found)

    def draw(rtt_ms: int, connection: str) -> Picture:
        rows = [_trip(rtt_ms / 1e3, kind, server_s, itl) for kind in dict.fromkeys(("kept open", connection))]
        return draw_trips(rows)

    return Explorer(
        draw,
        rtt_ms=slider("round trip, ms", 0, 400, 150, 10),
        connection=buttons("connection", list(HANDSHAKES), "new, TCP + TLS 1.2"),
    )


def _trip(rtt_s: float, connection: str, server_s: float, itl: float) -> Trip:
    return Trip(rtt_s, connection, (HANDSHAKES[connection] + 1) * rtt_s + server_s, itl)


def network_share(each: Trip) -> float:
    """Of a TTFT. On a slow machine the rest is long, and the share small, however far away the client is."""
    return min(each.network / each.ttft, 1.0) if each.ttft else 0.0
