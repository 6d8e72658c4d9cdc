"""Tables of lesson 02b: orders, queue limits, five dimensions."""

from collections.abc import Mapping, Sequence

from course.lab.display import Html, as_table
from course.lab.run import Run, gaps_of, percentile
from course.lab.style import number, seconds
from course.lessons.lesson_02.visits import mean, visits_of
from course.lessons.lesson_02b import simulated
from course.simulator.cluster.run import FleetRun
from minillm.frontend.snapshot import RequestView


def _ttfts(views: Sequence[RequestView]) -> list[float]:
    return [view.deliveries[0] - view.borders[0] for view in views]


def short_ttft(run: Run) -> float:
    """Median TTFT of the seven short prompts."""
    return percentile(_ttfts(run.views[:7]), 50)


def prompt_tokens(run: Run) -> int:
    """Prompt tokens that were computed."""
    return sum(step.num_prefill_tokens for step in run.steps)


def order_table(load: float) -> Html:
    """Mean and slowest wait of short and long prompts under each order, 70B."""
    rows = []
    for order in simulated.ORDERS:
        short, long = simulated.waits_by_length(simulated.ordered(order, load))
        told = (seconds(mean(long)), seconds(max(long))) if long else ("refused", "–")
        rows.append((order, seconds(mean(short)), seconds(max(short)), *told))
    return as_table(("order", "short: mean wait", "slowest", "long: mean wait", "slowest"), rows)


def outcomes_table(runs: Mapping[str, FleetRun]) -> Html:
    """What became of the requests of each run."""
    rows = []
    for name, run in runs.items():
        counts = simulated.outcomes(run)
        rows.append((name, *(f"{count / sum(counts.values()):.0%}" for count in counts.values())))
    return as_table(("queue limit", "within SLO", "late", "gave up", "refused"), rows)


def way_numbers(run: FleetRun) -> dict[str, float]:
    """What a way of batching does to short prompts, long prompts, and texts being written; seconds."""
    visits = visits_of(run)
    short = [v.ttft for v in visits if v.prompt <= simulated.LONG and v.ttft is not None]
    long = [v.ttft for v in visits if v.prompt > simulated.LONG and v.ttft is not None]
    gaps = [gap for record in run.records for gap in gaps_of(record.deliveries)]
    return {
        "short_p50": percentile(short, 50),
        "short_p99": percentile(short, 99),
        "long_p50": percentile(long, 50),
        "gap_max": max(gaps),
    }


def five_dimensions(calm: Mapping[str, FleetRun], busy: Mapping[str, FleetRun], saturated: Mapping[str, float]) -> Html:
    """Five of the article's six dimensions, at 70B: a row a dimension, a column a way. The sixth is simplicity."""
    quiet, full = ({name: way_numbers(run) for name, run in runs.items()} for runs in (calm, busy))
    rows = [
        ("TTFT, short prompts, low load, median", *(seconds(quiet[n]["short_p50"]) for n in saturated)),
        ("TTFT, short prompts, high load, p99", *(seconds(full[n]["short_p99"]) for n in saturated)),
        ("requests/s when saturated", *(number(value) for value in saturated.values())),
        ("longest gap in any text", *(seconds(quiet[n]["gap_max"]) for n in saturated)),
        ("TTFT of a long prompt, low load, median", *(seconds(quiet[n]["long_p50"]) for n in saturated)),
    ]
    return as_table(("70B, one long prompt in ten", *saturated), rows)
