"""What a server says of its own times in an answer, so that a client can lay them beside what it saw.

Where: the last chunk of a stream that asked for usage (and an unstreamed answer) has a field `minillm`, beside
`usage`. Its stamps are seconds of the server's clock, which has any origin; `GET /health` has a field `clock`, what
that clock shows now. A client finds out by itself how far the two clocks are apart (bench/loadgen/clocks.py).

    {"usage": {...}, "minillm": {"arrival": 812.10, "scheduled": 812.31, "prefill_end": 812.52,
                                 "first_token": 812.53, "last_token": 814.01}}

vLLM with --enable-per-request-metrics sends lengths instead, in milliseconds, in a field `metrics`. Of its names
"time_to_first_token_ms" means prefill: it counts from being scheduled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from minillm.core.timeline import PHASES, STAMPS, Timeline

FIELD = "minillm"
SERVER_STAMPS, SERVER_PHASES = STAMPS[:-1], PHASES[:-1]
"""Stream ends with the last byte at the client, which no server sees."""


def server_times(timeline: Timeline) -> dict[str, float]:
    """For a server: the value of FIELD. What has not happened is left out."""
    return {name: stamp for name in SERVER_STAMPS if (stamp := getattr(timeline, name)) is not None}


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What an answer says. Seconds."""

    phases: dict[str, float]
    """Length by phase; only those that are told."""
    stamps: dict[str, float]
    """Moments by name, on the server's clock; empty where only lengths are told."""


def read_server_times(said: Mapping[str, Any]) -> ServerTimes | None:
    """Read an answer's FIELD, or vLLM's `metrics`; None if they are not there, or no numbers."""
    stamps = {name: said[name] for name in SERVER_STAMPS if _is_number(said.get(name))}
    if len(stamps) == len(SERVER_STAMPS) and all(a <= b for a, b in pairwise(stamps.values())):
        lengths = (b - a for a, b in pairwise(stamps.values()))
        return ServerTimes(dict(zip(SERVER_PHASES, lengths)), stamps)
    names = {"queue": "queue_time_ms", "prefill": "time_to_first_token_ms", "decode": "generation_time_ms"}
    phases = {phase: said[name] / 1e3 for phase, name in names.items() if _is_number(said.get(name))}
    return ServerTimes(phases, {}) if phases else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
