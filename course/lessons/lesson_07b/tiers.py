"""KV kept in host memory or a remote store: fetch it, or compute it again? At 70B, and in a simulated fleet."""

import functools
from collections.abc import Mapping

from course.lab import simulated_70b
from course.lab.display import Html, table_by_name
from course.lab.explorer import Explorer, choices
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.predict import Outcome
from course.lab.style import seconds
from course.lab.svg import Picture
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.kinds import Sessions
from course.simulator.workload.lengths import Fixed, LogNormal

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
CONVERSATIONS = Sessions(
    turns=Fixed(tokens=6), first=LogNormal(median=3000, sigma=0.5, high=8000),
    message=Fixed(tokens=60), output=Fixed(tokens=120), think_s=60.0,
)  # fmt: skip
"""Long first messages, then five more turns, a minute apart: long enough that other users' KV comes between."""
POOL_TOKENS = 60_000
"""KV that the GPUs keep in these runs: less than all conversations need."""
TIERS: dict[str, list[dict[str, object]]] = {
    "GPU only": [],
    "host memory, 50 GB/s": [{"name": "host", "capacity_gb": 400, "bytes_per_s": 50e9}],
    "remote store, 5 GB/s": [{"name": "store", "capacity_gb": 4000, "bytes_per_s": 5e9, "latency_s": 0.005}],
}


@functools.cache
def token_bytes() -> float:
    """KV of one token of Llama-3-70B, over all GPUs."""
    on = simulated_70b.deployment()
    return on.block_bytes * on.placement.tp / on.block_size


def fetch_s(tokens: int, gb_per_s: float, latency_ms: float) -> float:
    """Seconds until the KV of a prefix has come over the link."""
    return tokens * token_bytes() / (gb_per_s * 1e9) + latency_ms / 1e3


@functools.cache
def compute_s(tokens: int) -> float:
    """Seconds to prefill it instead."""
    return simulated_70b.deployment().step_time().price(simulated_70b.prefill_work(tokens)).total


def draw(gb_per_s: float, latency_ms: float) -> Picture:
    """Both ways, by the length of the prefix."""
    fetch = [1e3 * fetch_s(n, gb_per_s, latency_ms) for n in LENGTHS]
    compute = [1e3 * compute_s(n) for n in LENGTHS]
    cheaper = [n for n, a, b in zip(LENGTHS, fetch, compute) if a < b]
    told = f"fetching wins from {min(cheaper):,} tokens" if cheaper else "computing is faster at every length here"
    curves = [Curve("compute it again (70B, 4 H100s)", LENGTHS, compute), Curve("fetch it", LENGTHS, fetch)]
    marks = [Mark(f"from {min(cheaper):,}", x=min(cheaper))] if cheaper else []
    axes = Axis("prefix, tokens", log=True), Axis("ms until it's there", log=True)
    return draw_chart(f"Fetch the KV, or compute it again? Here {told}", curves, *axes, marks)


def explorer() -> Explorer:
    """Bandwidth and latency of a tier."""
    return Explorer(
        draw,
        gb_per_s=choices("link, GB/s (all GPUs together)", [0.5, 1.0, 2.0, 5.0, 12.5, 25.0, 50.0, 100.0, 200.0], 50.0),
        latency_ms=choices("latency, ms", [0.0, 0.1, 1.0, 5.0, 20.0], 0.1),
    )


def runs(qps: float = 2.0) -> dict[str, FleetRun]:
    """The same conversations with each set of tiers, on GPUs that can't keep them all."""
    on = simulated_70b.deployment(num_kv_blocks=POOL_TOKENS // 16)
    return {
        name: simulated_70b.serve(on, CONVERSATIONS, qps=qps / 6, num_requests=60, least=60, tiers=tiers)
        for name, tiers in TIERS.items()
    }


def later_ttft(run: FleetRun) -> float:
    """p50 of TTFT after a conversation's first turn, seconds."""
    found = sorted(r.ttft() for r in run.records if r.completed and r.request.after is not None)
    return found[len(found) // 2]


def tiers_table(found: Mapping[str, FleetRun]) -> Html:
    """What each found, and what later turns waited."""
    return table_by_name(
        "KV is kept in",
        found,
        {
            "prompt tokens found": lambda run: f"{run.prefix_hit_rate:.0%}",
            "TTFT p50, later turns": lambda run: seconds(later_ttft(run)),
        },
    )


def gain(found: Mapping[str, FleetRun]) -> Outcome:
    """How many times as long later turns wait without host memory: the answer to a prediction."""
    alone, host, *_ = (later_ttft(run) for run in found.values())
    return Outcome(alone / host, f"TTFT p50 of later turns {seconds(alone)} without, {seconds(host)} with host memory")
