"""Both illnesses on the engine of this machine: too few seats, or seats and no room for their KV."""

from collections.abc import Mapping

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.run import Run, blocks_held, percentile
from course.lab.style import seconds

ROOM_FOR = 2
"""Requests whose KV fits in the small pool, at their longest."""
BLOCK = 16
TRAFFIC = "burst"


def ways(lab: Lab) -> Mapping[str, dict[str, int]]:
    """Config fields of a healthy engine, and of one with either illness."""
    prompts = lab.workload(TRAFFIC).arrivals
    tokenizer = lab.model.tokenizer
    longest = max(len(tokenizer.encode(str(one.prompt))) + CHAT_TEMPLATE + one.max_tokens for one in prompts)
    roomy = {"max_num_seqs": len(prompts)}
    return {
        "healthy": roomy,
        "few seats": {"max_num_seqs": ROOM_FOR},
        "small pool": {**roomy, "num_kv_blocks": ROOM_FOR * -(-longest // BLOCK)},
    }


CHAT_TEMPLATE = 40
"""Tokens that a chat template may add to a prompt, generously."""


def table(runs: Mapping[str, Run]) -> Html:
    """What each run shows: late first tokens in both, and two numbers that tell them apart."""
    rows = []
    for name, run in runs.items():
        seats = run.config.max_num_seqs
        running = max((step.num_running for step in run.steps), default=0)
        rows.append((
            name, seconds(percentile(run.ttft, 50)), seconds(percentile(run.itl, 50)), f"{running} of {seats}",
            f"{blocks_held(run.fullest) / len(run.fullest.block_owners):.0%}",
        ))  # fmt: skip
    return as_table(("engine", "TTFT p50", "ITL p50", "most at once, of its seats", "KV held at most"), rows)
