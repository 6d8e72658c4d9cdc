"""Both illnesses on the engine of this machine: too few seats, or seats and no room for their KV."""

from collections.abc import Mapping

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.run import Run, blocks_held, percentile
from course.lab.style import seconds

TRAFFIC = "burst"
SEATS_LEFT = 2
"""Of as many as there are requests."""
POOL_LEFT = 0.5
"""Share of the KV blocks that a healthy run held at most."""


def three(lab: Lab) -> dict[str, Run]:
    """The same burst for a healthy engine, one with few seats, and one with every seat and a small pool."""
    roomy = {"max_num_seqs": len(lab.workload(TRAFFIC).arrivals)}
    healthy = lab.run(TRAFFIC, **roomy)
    return {
        "healthy": healthy,
        "few seats": lab.run(TRAFFIC, max_num_seqs=SEATS_LEFT),
        "small pool": lab.run(TRAFFIC, **roomy, num_kv_blocks=small_pool(healthy)),
    }


def small_pool(healthy: Run) -> int:
    """KV blocks that are too few for all, and enough for the longest."""
    size = healthy.fullest.block_size
    longest = max(-(-(view.num_prompt_tokens + view.num_output_tokens) // size) for view in healthy.views)
    return max(round(POOL_LEFT * blocks_held(healthy.fullest)), longest) + 1


def table(runs: Mapping[str, Run]) -> Html:
    """What each run shows: late first tokens in both, and two numbers that tell them apart."""
    rows = []
    for name, run in runs.items():
        running = max((step.num_running for step in run.steps), default=0)
        held = blocks_held(run.fullest) / len(run.fullest.block_owners)
        times = seconds(max(run.ttft)), seconds(percentile(run.itl, 50))
        rows.append((name, *times, f"{running} of {run.config.max_num_seqs}", f"{held:.0%}"))
    return as_table(("engine", "TTFT, latest", "ITL p50", "most at once, of its seats", "KV held at most"), rows)
