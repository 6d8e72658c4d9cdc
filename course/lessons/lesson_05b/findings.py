"""What the runs of lesson 05b showed, in words."""

from course.lab.finding import Finding, tell
from course.lessons.lesson_05b.transfer import Way


def load(found: dict[str, Way], qps: float, name: str) -> Finding:
    """Three ways to run four replicas under one load."""
    whole, chunked, apart = found.values()
    gaps = {"whole_gap": whole.itl_p99, "chunk_gap": chunked.itl_p99, "apart_gap": apart.itl_p99}
    firsts = {"whole": whole.ttft_p99, "chunk": chunked.ttft_p99, "apart": apart.ttft_p99}
    outcome = "loses" if apart.ttft_p99 > 1.2 * chunked.ttft_p99 else "wins"
    return tell("05b", name, outcome, qps=qps, **gaps, **firsts)
