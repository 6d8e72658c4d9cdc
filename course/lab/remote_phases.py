"""Five phases of a request on another server, from what can be known outside.

Seen by the client: the time to the first token as a whole, decode, stream. What the time to the first token is
made of must come from the server, best first: told for this request in its answer; inferred from the means of
the server's histograms at /metrics; or not at all, and then it is drawn as one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course.loadgen.observation import Observation
from course.loadgen.server_metrics import Histogram
from minillm.core.timeline import PHASES, STAMPS

BEFORE_FIRST = ("queue", "prefill", "first_token")
TOLD = "queue and prefill: reported by the server, for each request; first token: the rest, with the wire"
FROM_METRICS = "queue, prefill and first token: inferred, each TTFT split as the means at /metrics are"
UNKNOWN = "queue, prefill and first token cannot be told apart: all of it is drawn as prefill"


@dataclass(frozen=True)
class Split:
    """How a time to first token is divided when only means are known."""

    shares: dict[str, float]
    """The share of each phase of BEFORE_FIRST; they sum to 1. The first token's includes the wire, out and back."""
    how: str


ALL_PREFILL = Split({"queue": 0.0, "prefill": 1.0, "first_token": 0.0}, UNKNOWN)


def split_from_metrics(server: Mapping[str, Histogram], ttfts: Sequence[float]) -> Split:
    """The shares, from the server's histograms of the time of the run.

    SGLang has no prefill time; there it is what its own TTFT has beside the queue.

    Args:
        ttfts: that the client saw, seconds.
    """
    means = {name: histogram.mean for name, histogram in server.items() if histogram.mean is not None}
    if not ttfts or "queue" not in means or not ("prefill" in means or "ttft" in means):
        return ALL_PREFILL
    seen = sum(ttfts) / len(ttfts)
    queue = means["queue"]
    prefill = means["prefill"] if "prefill" in means else max(means["ttft"] - queue, 0.0)
    whole = max(seen, queue + prefill)  # other traffic in the histograms can have waited longer than ours
    shares = {"queue": queue / whole, "prefill": prefill / whole}
    return Split({**shares, "first_token": 1 - shares["queue"] - shares["prefill"]}, FROM_METRICS)


def borders_of(observation: Observation, split: Split, now: float) -> tuple[float, ...]:
    """The six borders of the five phases, seconds after the start; what has not happened yet is put at `now`.

    A request that has no first token yet is in its first phases, which one is unknown: it is drawn as waiting.
    """
    sent = observation.sent
    end = now if observation.ended is None else observation.ended
    if not observation.deliveries:
        return (sent, *(end,) * 5)
    first, last = observation.deliveries[0], observation.deliveries[-1]
    told = told_phases(observation)
    if told is None:
        told = {phase: share * (first - sent) for phase, share in split.shares.items()}
    scheduled = min(sent + told["queue"], first)
    prefill_end = min(scheduled + told["prefill"], first)
    return (sent, scheduled, prefill_end, first, last if observation.ended is not None else end, end)


def told_phases(observation: Observation) -> dict[str, float] | None:
    """Queue and prefill of this request as its answer says, seconds; None if it does not say both."""
    phases = read_server_phases(observation.server_times)
    return phases if {"queue", "prefill"} <= phases.keys() else None


def read_server_phases(said: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by phase, from an answer's `minillm` (stamps of the server's clock, see minillm/server/answers.py) or
    vLLM's `metrics` (milliseconds; its "time_to_first_token_ms" means prefill, for it counts from being scheduled)."""
    stamps = [said[name] for name in STAMPS[:-1] if _is_number(said.get(name))]
    if len(stamps) == len(STAMPS) - 1 and stamps == sorted(stamps):
        return {phase: after - before for phase, before, after in zip(PHASES, stamps, stamps[1:])}
    names = {"queue": "queue_time_ms", "prefill": "time_to_first_token_ms", "decode": "generation_time_ms"}
    return {phase: said[name] / 1e3 for phase, name in names.items() if _is_number(said.get(name))}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def inferred_phases(observations: Sequence[Observation]) -> frozenset[str]:
    """What the server did not tell of at least one answer that is over: its first phases."""
    over = [o for o in observations if o.completed]
    return frozenset() if over and all(told_phases(o) for o in over) else frozenset(BEFORE_FIRST)
