"""The comparison itself: who is measured, in what order, and what is made of the numbers.

Peers take turns within every repeat (A B C, A B C, ...), so that a slow spell of the machine hits all
of them alike, and ratios are formed within a repeat before their median is taken.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from minillm.bench.peers import Peer, Run
from minillm.bench.report import format_machine
from minillm.bench.workloads import Workload
from minillm.model.arithmetic import ModelBytes
from minillm.model.config import ModelConfig
from minillm.runner.machine_peaks import Bandwidth


@dataclass(frozen=True, slots=True)
class Range:
    """The median of a few repeats, with the smallest and the largest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Range":
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class PeerResult:
    """One peer on one workload. Times in seconds, rates in output tokens per second."""

    peer: str
    seconds: Range
    tokens_per_s: Range
    ttft_p50: float
    """Over all requests of all repeats; so for the inter-token latencies."""
    itl_p50: float
    itl_p99: float
    speedups: dict[str, Range]
    """Seconds of each reference peer over this one's, paired by repeat. Empty for a reference."""
    percent_of_floor: float | None
    """100 x (seconds of reading a decode step needs) / median ITL. None where batches change shape."""


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """Everyone on one workload."""

    name: str
    title: str
    num_requests: int
    num_output_tokens: int
    reference: str | None
    """The fastest of the peers that are compared against."""
    floor_itl: float | None
    """Seconds of reading in an average decode step: no engine's ITL can be shorter."""
    peers: list[PeerResult]


def measure(peers: Sequence[Peer], workload: Workload, repeats: int, bar: tqdm) -> dict[str, list[Run]]:
    """Warm everyone up, then `repeats` rounds in which each peer runs once."""
    for peer in peers:
        bar.set_description(f"{workload.name}: warming up {peer.name}")
        peer.warm_up(workload)
        bar.update()
    runs: dict[str, list[Run]] = {peer.name: [] for peer in peers}
    for _ in range(repeats):
        for peer in peers:
            bar.set_description(f"{workload.name}: {peer.name}")
            runs[peer.name].append(peer.run(workload))
            bar.update()
    return runs


def summarize(
    workload: Workload,
    runs: dict[str, list[Run]],
    references: Sequence[str],
    bandwidth: Bandwidth | None = None,
    size: ModelBytes | None = None,
) -> WorkloadResult:
    """Turn runs into medians, speedups over the `references` and (with `bandwidth` and `size`) shares of the floor."""
    floor = None
    if bandwidth is not None and size is not None and workload.constant_batch:
        floor = size.step_floor(workload.mean_decode_contexts, bandwidth.read)
    best = min(references, key=lambda name: _median_seconds(runs[name])) if references else None
    results = []
    for name, own in runs.items():
        itl = [gap for run in own for gap in run.itl]
        itl_p50 = float(np.percentile(itl, 50))
        others = [] if name in references else references
        results.append(
            PeerResult(
                peer=name,
                seconds=Range.of([run.seconds for run in own]),
                tokens_per_s=Range.of([run.num_tokens / run.seconds for run in own]),
                ttft_p50=float(np.percentile([ttft for run in own for ttft in run.ttft], 50)),
                itl_p50=itl_p50,
                itl_p99=float(np.percentile(itl, 99)),
                speedups={
                    other: Range.of([theirs.seconds / ours.seconds for theirs, ours in zip(runs[other], own)])
                    for other in others
                },
                percent_of_floor=100 * floor / itl_p50 if floor else None,
            )
        )
    return WorkloadResult(
        name=workload.name,
        title=workload.title,
        num_requests=len(workload.prompts),
        num_output_tokens=workload.num_output_tokens,
        reference=best,
        floor_itl=floor,
        peers=results,
    )


def _median_seconds(runs: Sequence[Run]) -> float:
    return statistics.median(run.seconds for run in runs)


def compare(
    own: Sequence[Peer],
    references: Sequence[Peer],
    workloads: Sequence[Workload],
    repeats: int,
    bandwidth: Bandwidth,
    model_config: ModelConfig,
    dtype: str,
) -> dict[str, Any]:
    """Measure every peer on every workload.

    Args:
        own: minillm, in one or more configurations.
        references: what it is compared against; may be empty.
        model_config: the model's shape, to count the bytes a step must read in `dtype`.
    Returns:
        peers (their settings, by name), bytes a step must read, and a WorkloadResult per workload.
    """
    peers = [*own, *references]
    size = ModelBytes.of(model_config, dtype)
    results = []
    with tqdm(total=len(workloads) * len(peers) * (repeats + 1), unit="run") as bar:  # draws on standard error
        for workload in workloads:
            runs = measure(peers, workload, repeats, bar)
            results.append(summarize(workload, runs, [peer.name for peer in references], bandwidth, size))
    return {
        "peers": {peer.name: peer.describe() for peer in peers},
        "weight_bytes": size.weights,
        "kv_bytes_per_token": size.kv_per_token,
        "results": results,
    }


def format_table(machine: dict[str, Any], bandwidth: Bandwidth, results: Sequence[WorkloadResult]) -> str:
    """A few lines per workload; milliseconds, and the spread over repeats in brackets."""
    lines = [
        format_machine(machine),
        f"memory: read {bandwidth.read / 1e9:.1f} GB/s, copy {bandwidth.copy / 1e9:.1f} GB/s",
    ]
    for result in results:
        floor = f"; memory floor {1e3 * result.floor_itl:.1f} ms a step" if result.floor_itl else ""
        lines += ["", f"{result.title}{floor}", *format_peers(result.peers, result.reference)]
    return "\n".join(lines)


def format_peers(peers: Sequence[PeerResult], reference: str | None) -> list[str]:
    """A heading, and a line per peer."""
    latencies = f"{'TTFT p50':>10}{'ITL p50':>9}{'ITL p99':>9}"
    heading = f"  {'':18}{'tok/s':>8}{'seconds':>20}{latencies}{'floor':>7}{'speedup':>21}"
    return [heading, *(_row(peer, reference) for peer in peers)]


def _row(peer: PeerResult, reference: str | None) -> str:
    seconds = f"{peer.seconds.median:.2f} [{peer.seconds.low:.2f}-{peer.seconds.high:.2f}]"
    floor = "" if peer.percent_of_floor is None else f"{peer.percent_of_floor:.0f}%"
    speedup = "1 (reference)" if peer.peer == reference else ""
    if reference in peer.speedups:
        ratio = peer.speedups[reference]
        speedup = f"{ratio.median:.2f}x [{ratio.low:.2f}-{ratio.high:.2f}]"
    latencies = f"{1e3 * peer.ttft_p50:>10.0f}{1e3 * peer.itl_p50:>9.1f}{1e3 * peer.itl_p99:>9.1f}"
    return f"  {peer.peer:18}{peer.tokens_per_s.median:>8.1f}{seconds:>20}{latencies}{floor:>7}{speedup:>21}"
