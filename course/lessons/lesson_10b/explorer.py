"""Where the server stands: the least round trip between cities, and what a first token costs from there."""

import math

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.pictures.cascade import draw_cascade
from course.lab.style import COLOURS, PHASE_COLOURS, seconds
from course.lab.svg import Picture

CITIES = {
    "Virginia": (39.0, -77.5),
    "Oregon": (45.8, -119.7),
    "Frankfurt": (50.1, 8.7),
    "São Paulo": (-23.5, -46.6),
    "Mumbai": (19.1, 72.9),
    "Tokyo": (35.7, 139.7),
    "Sydney": (-33.9, 151.2),
}
"""Degrees north and east, of regions where clouds have data centres."""
EARTH_KM, FIBRE_KM_PER_S = 6371.0, 299_792.458 / 1.468
"""Light in glass: refractive index 1.468 (ITU-T G.652 fibre)."""
CONNECTIONS = {
    "reused": 0,
    "new, TCP + TLS 1.3": 2,
    "new, TCP + TLS 1.2": 3,
    "resumed, QUIC 0-RTT (if POST is allowed)": 0,
}
"""Round trips before the request: RFC 9293 (TCP, 1), RFC 8446 (TLS 1.3, 1), RFC 5246 (TLS 1.2, 2), RFC 9001 (0-RTT)."""


def distance_km(a: str, b: str) -> float:
    """Along the great circle."""
    (lat1, lon1), (lat2, lon2) = ([math.radians(x) for x in CITIES[city]] for city in (a, b))
    h = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * EARTH_KM * math.asin(math.sqrt(h))


def rtt_s(a: str, b: str, detour: float = 1.5) -> float:
    """Light in fibre, there and back, over a path that is so many times the great circle."""
    return 2 * detour * distance_km(a, b) / FIBRE_KM_PER_S


def regions_table(client: str, detour: float, connection: str) -> Html:
    """Every region for one client: what the network adds to TTFT, whatever the model."""
    rows = []
    for city in sorted(CITIES, key=lambda each: distance_km(client, each)):
        trip = rtt_s(client, city, detour)
        added = (CONNECTIONS[connection] + 1) * trip
        rows.append((city, f"{distance_km(client, city):,.0f} km", seconds(trip), seconds(added)))
    return as_table(("server in", "distance", "round trip", "added to TTFT"), rows)


def regions() -> Explorer:
    """Pick a client and a kind of connection."""
    return Explorer(
        regions_table,
        client=choices("client in", list(CITIES), "Frankfurt"),
        detour=slider("path, times the great circle", 1.0, 2.5, 1.5, 0.1),
        connection=buttons("connection", list(CONNECTIONS)),
    )


HOPS = ("connection", "gateway", "queue", "prefill", "first token", "return trip")


def hops(
    rtt_ms: float, handshakes: int, gateway_ms: float, queue_ms: float, prefill_ms: float, held: int
) -> dict[str, float]:
    """Milliseconds of a TTFT, hop by hop. `held`: tokens that a proxy waits for, at 20 ms each."""
    there, back = handshakes * rtt_ms + rtt_ms / 2, rtt_ms / 2 + 20.0 * held
    return dict(zip(HOPS, (there, gateway_ms, queue_ms, prefill_ms, 2.0, back)))


def draw_hops(budget: float = 500.0, **each: float) -> Picture:
    """The hops as a waterfall against the budget."""
    found = {name: value / 1e3 for name, value in hops(**each).items()}
    colours = (*COLOURS[:2], *list(PHASE_COLOURS.values())[:3], COLOURS[0])
    words = f"{1e3 * sum(found.values()):.0f} ms of a budget of {budget:.0f} ms"
    title = f"Where does the TTFT budget go? {words}"
    return draw_cascade(title, words, found, budget / 1e3, "time to first token", colours)


def hops_of_ttft() -> Explorer:
    """An inventory of hops that adds up."""
    return Explorer(
        draw_hops,
        budget=choices("budget, ms", [200.0, 300.0, 500.0, 1000.0, 2000.0], 500.0),
        rtt_ms=slider("round trip, ms", 1.0, 250.0, 80.0, 1.0),
        handshakes=choices("round trips of set-up", [0, 2, 3], 2),
        gateway_ms=slider("gateway: auth, limits, logging, ms", 0.0, 100.0, 15.0, 1.0),
        queue_ms=slider("queue, ms", 0.0, 500.0, 40.0, 5.0),
        prefill_ms=slider("prefill, ms", 10.0, 500.0, 150.0, 5.0),
        held=slider("tokens a proxy holds back", 0, 30, 0),
    )
