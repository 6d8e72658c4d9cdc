"""Both illnesses on the engine of this machine: too few slots, or slots and no KV memory for them."""

from collections.abc import Mapping

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.run import Run, percentile
from course.lab.style import seconds

TRAFFIC = "burst"
ROOM_FOR = 2
"""Requests, of as many as come at once: so many slots, or room in the pool for so many."""
LONGEST, BLOCK = 512, 16
"""Tokens that are reserved for each request, and tokens a block."""


def three(lab: Lab) -> dict[str, Run]:
    """The same burst for a healthy engine, one with few slots, and one with every slot and a small pool.

    The first two have room for twice as many requests as come: a pool that just fits would read as full.
    """
    count = len(lab.workload(TRAFFIC).arrivals)
    reserved = {"kv_reservation": "max_len", "max_model_len": LONGEST, "block_size": BLOCK}
    pool, small = (requests * LONGEST // BLOCK for requests in (2 * count, ROOM_FOR))
    return {
        "healthy": lab.run(TRAFFIC, max_num_seqs=count, num_kv_blocks=pool, **reserved),
        "few slots": lab.run(TRAFFIC, max_num_seqs=ROOM_FOR, num_kv_blocks=pool, **reserved),
        "small pool": lab.run(TRAFFIC, max_num_seqs=count, num_kv_blocks=small, **reserved),
    }


def held(run: Run) -> float:
    """The share of the KV pool in use in the fullest step."""
    return max((step.kv_blocks_used / step.kv_blocks_total for step in run.steps), default=0.0)


def table(runs: Mapping[str, Run]) -> Html:
    """What each run shows: late first tokens in both, and two numbers that tell them apart."""
    rows = []
    for name, run in runs.items():
        running = max((step.num_running for step in run.steps), default=0)
        times = seconds(max(run.ttft)), seconds(percentile(run.itl, 50))
        rows.append((name, *times, f"{running} of {run.config.max_num_seqs}", f"{held(run):.0%}"))
    return as_table(("engine", "TTFT, latest", "ITL p50", "peak running, of its slots", "peak KV reserved"), rows)
