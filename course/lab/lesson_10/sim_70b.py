"""The same wire in front of Llama-3 70B, simulated: distance, handshakes, and a proxy that holds chunks back."""

from dataclasses import dataclass
from functools import lru_cache

from course.lab import simulated_70b
from course.lab.explorer import Explorer, choices
from course.lab.run import percentile
from course.lab.style import PHASE_COLOURS, WIDTH, seconds
from course.lab.svg import SOFT, Picture, Scale, boxes, text, time_axis
from minillm.simulate.cluster.network import Network
from minillm.simulate.cluster.run import FleetRun
from minillm.simulate.workload.kinds import Independent
from minillm.simulate.workload.lengths import LogNormal

TRAFFIC = Independent(
    prompt=LogNormal(median=600, sigma=0.6, high=3000), output=LogNormal(median=150, sigma=0.5, high=500)
)
"""Chats."""
QPS = 1.0
REQUESTS = 200
LEFT, RIGHT = 96, 16


@dataclass(frozen=True)
class Ends:
    """One run, seen by the engine and by its clients. Seconds."""

    ttft_engine: float
    ttft_client: float
    """Medians."""
    itl_engine: tuple[float, float]
    itl_client: tuple[float, float]
    """p50 and p99 of the gaps between tokens."""
    sample: tuple[tuple[float, ...], tuple[float, ...]]
    """One request's tokens: handed over, and at the client; since it was sent."""


@lru_cache(maxsize=64)
def served(rtt_ms: int = 20, handshakes: int = 0, hold_chunks: int = 1, hold_ms: int | None = None) -> Ends:
    """Chats to one replica through such a network; equal arguments are simulated once."""
    network = Network(
        rtt_s=rtt_ms / 1e3,
        handshakes=handshakes,
        hold_chunks=hold_chunks,
        hold_s=hold_ms / 1e3 if hold_ms else None,
    )
    on = simulated_70b.deployment(max_num_seqs=64)
    return _ends(simulated_70b.serve(on, TRAFFIC, qps=QPS, num_requests=REQUESTS, network=network))


def _ends(run: FleetRun) -> Ends:
    done = [record for record in run.records if record.completed]
    here = [gap for record in done for gap in record.timeline.itl]
    there = [b - a for record in done for a, b in zip(record.deliveries, record.deliveries[1:])]
    one = min(done, key=lambda record: abs(record.num_tokens - 150))
    stamps = one.timeline.deliveries, one.deliveries
    return Ends(
        percentile([record.timeline.ttft for record in done], 50),
        percentile([record.ttft() for record in done], 50),
        (percentile(here, 50), percentile(here, 99)),
        (percentile(there, 50), percentile(there, 99)),
        tuple(tuple(moment - one.sent for moment in side) for side in stamps),
    )


def draw_ends(ends: Ends, title: str = "70B: what leaves the engine, and what arrives") -> Picture:
    """One answer's tokens at both ends; the numbers are of the whole run."""
    scale = Scale(0, 1.02 * max(ends.sample[1][-1], ends.sample[0][-1]), LEFT, WIDTH - RIGHT)
    body = time_axis(scale, 0, 96, "since one of the requests was sent")
    rows = (
        ("leaves", ends.sample[0], "decode", ends.ttft_engine, ends.itl_engine),
        ("arrives", ends.sample[1], "stream", ends.ttft_client, ends.itl_client),
    )
    for i, (name, stamps, phase, ttft, itl) in enumerate(rows):
        y = 22 + 46 * i
        body += text(LEFT - 8, y + 12, name, size=12, fill=SOFT, text_anchor="end")
        body += boxes([(scale(moment) - 0.7, y, 1.4, 16) for moment in stamps], fill=PHASE_COLOURS[phase])
        words = f"TTFT p50 {seconds(ttft)}; ITL p50 {seconds(itl[0])}, p99 {seconds(itl[1])}"
        body += text(LEFT, y - 5, words, size=11)
    told = (
        f"Engine: TTFT p50 {seconds(ends.ttft_engine)}, ITL p99 {seconds(ends.itl_engine[1])}. Client: TTFT p50 "
        f"{seconds(ends.ttft_client)}, ITL p50 {seconds(ends.itl_client[0])}, p99 {seconds(ends.itl_client[1])}."
    )
    return Picture(title, body, 132, description=told)


def explore() -> Explorer:
    """The network's sliders."""
    return Explorer(
        lambda rtt_ms, handshakes, hold_chunks, hold_ms: draw_ends(
            served(rtt_ms, handshakes, hold_chunks, None if hold_ms == "never" else hold_ms)
        ),
        rtt_ms=choices("round trip, ms", (0, 20, 80, 150, 300), 20),
        handshakes=choices("handshakes", (0, 1, 2, 3), 0),
        hold_chunks=choices("proxy holds, chunks", (1, 4, 22, 88), 22),
        hold_ms=choices("... but flushes after, ms", ("never", 50, 100, 250), "never"),
    )
