"""The same wire in front of Llama-3 70B, simulated: distance, handshakes, and a proxy that holds chunks back."""

from functools import lru_cache

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices
from course.lab.run import gaps_of, percentile
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


@lru_cache(maxsize=64)
def served(rtt_ms: int = 20, handshakes: int = 0, hold_chunks: int = 1, hold_ms: int | None = None) -> FleetRun:
    """Chats to one replica through such a network; equal arguments are simulated once."""
    network = Network(
        rtt_s=rtt_ms / 1e3, handshakes=handshakes, hold_chunks=hold_chunks, hold_s=hold_ms / 1e3 if hold_ms else None
    )
    on = simulated_70b.deployment(max_num_seqs=64)
    return simulated_70b.serve(on, TRAFFIC, qps=QPS, num_requests=REQUESTS, network=network)


def both_ends(run: FleetRun) -> dict[str, tuple[float, ...]]:
    """TTFT p50, ITL p50 and p99 where tokens leave the engine, and where they arrive; seconds."""
    done = [record for record in run.records if record.completed]
    gaps = simulated_70b.token_gaps(run), [gap for record in done for gap in gaps_of(record.deliveries)]
    ttft = [record.timeline.ttft for record in done], [record.ttft() for record in done]
    return {
        end: (percentile(first, 50), percentile(between, 50), percentile(between, 99))
        for end, first, between in zip(("leaves the engine", "arrives"), ttft, gaps)
    }


def ends_table(run: FleetRun) -> Html:
    """What the engine hands over, and what its clients have."""
    rows = [(end, *map(seconds, times)) for end, times in both_ends(run).items()]
    return as_table(("70B", "TTFT p50", "ITL p50", "ITL p99"), rows)


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
