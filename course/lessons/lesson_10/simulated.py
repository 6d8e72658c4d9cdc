"""The same wire in front of Llama-3 70B, simulated: distance, handshakes, and a proxy that holds chunks back."""

from dataclasses import dataclass
from functools import lru_cache

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices
from course.lab.run import percentile
from course.lab.style import seconds
from course.simulator.cluster.network import Network
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import LogNormal

TRAFFIC = Independent(
    prompt=LogNormal(median=600, sigma=0.6, high=3000), output=LogNormal(median=150, sigma=0.5, high=500)
)
"""Chats."""
QPS = 1.0
REQUESTS = 200


@dataclass(frozen=True)
class Ends:
    """One run, seen by the engine and by its clients. Seconds."""

    ttft_engine: float
    ttft_client: float
    """Medians."""
    itl_engine: tuple[float, float]
    itl_client: tuple[float, float]
    """p50 and p99 of the gaps between tokens."""


@lru_cache(maxsize=64)
def served(rtt_ms: int = 20, handshakes: int = 0, hold_chunks: int = 1, hold_ms: int | None = None) -> Ends:
    """Chats to one replica through such a network; equal arguments are simulated once."""
    network = Network(
        rtt_s=rtt_ms / 1e3, handshakes=handshakes, hold_chunks=hold_chunks, hold_s=hold_ms / 1e3 if hold_ms else None
    )
    on = simulated_70b.deployment(max_num_seqs=64)
    return _ends(simulated_70b.serve(on, TRAFFIC, qps=QPS, num_requests=REQUESTS, network=network))


def _ends(run: FleetRun) -> Ends:
    done = [record for record in run.records if record.completed]
    here = simulated_70b.token_gaps(run)
    there = [b - a for record in done for a, b in zip(record.deliveries, record.deliveries[1:])]
    return Ends(
        percentile([record.timeline.ttft for record in done], 50),
        percentile([record.ttft() for record in done], 50),
        (percentile(here, 50), percentile(here, 99)),
        (percentile(there, 50), percentile(there, 99)),
    )


def ends_table(ends: Ends) -> Html:
    """What the engine hands over, and what its clients have."""
    rows = (("leaves the engine", ends.ttft_engine, *ends.itl_engine), ("arrives", ends.ttft_client, *ends.itl_client))
    return as_table(("70B", "TTFT p50", "ITL p50", "ITL p99"), [(name, *map(seconds, times)) for name, *times in rows])


def explore() -> Explorer:
    """The network's sliders."""
    return Explorer(
        lambda rtt_ms, handshakes, hold_chunks, hold_ms: ends_table(
            served(rtt_ms, handshakes, hold_chunks, None if hold_ms == "never" else hold_ms)
        ),
        rtt_ms=choices("round trip, ms", (0, 20, 80, 150, 300), 20),
        handshakes=choices("handshakes", (0, 1, 2, 3), 0),
        hold_chunks=choices("proxy holds, chunks", (1, 4, 22, 88), 22),
        hold_ms=choices("... but flushes after, ms", ("never", 50, 100, 250), "never"),
    )
