"""Tables of lesson 01: one run in the words of several tools, and a client that hides its own queue."""

from collections.abc import Mapping

from course.lab.display import Html, as_table, table_by_name
from course.lab.run import Run, percentile
from course.lab.style import change, seconds
from course.lab.tool_metrics import compare_tools
from course.summary import Distribution


def tools_table(run: Run) -> Html:
    """What tools would print about the very same stamps, a row for each formula."""
    by_formula: dict[str, tuple[list[str], Distribution]] = {}
    for metric, found in compare_tools(run.outputs).items():
        names, _ = by_formula.setdefault(metric.definition, ([], found))
        names.append(f"{metric.tool}'s {metric.name}")
    rows = [
        (formula, seconds(found.p50), seconds(found.p99), str(found.count), ", ".join(names))
        for formula, (names, found) in by_formula.items()
    ]
    return as_table(("what is computed", "p50", "p99", "samples", "what tools call it"), rows)


def changes_table(before: Mapping[str, Run], levers: Mapping[str, Mapping[str, Run]], q: float = 99) -> Html:
    """E2E percentile of each service: as it was, and after each lever."""
    rows = []
    for name, run in before.items():
        was = percentile(run.e2e, q)
        now = [percentile(runs[name].e2e, q) for runs in levers.values()]
        rows.append((name, seconds(was), *(f"{seconds(value)} ({change(was, value)})" for value in now)))
    return as_table(("slowest request" if q == 100 else f"p{q:g} of E2E", "as it was", *levers), rows)


def felt_ttft(run: Run) -> list[float]:
    """TTFT from the moment the client wanted to send, seconds."""
    return [row.view.deliveries[0] - run.start - row.due for row in run.rows if row.view and row.view.deliveries]


def in_flight(run: Run) -> float:
    """Little's law: mean requests in the server = finished per second x mean E2E."""
    return sum(run.e2e) / run.duration


def clients_table(runs: Mapping[str, Run]) -> Html:
    """What the server sees beside what the client feels."""
    return table_by_name(
        "client",
        runs,
        {
            "TTFT p99, by the server's clock": lambda run: seconds(percentile(run.ttft, 99)),
            "TTFT p99, as users felt it": lambda run: seconds(percentile(felt_ttft(run), 99)),
            "requests/s": lambda run: f"{len(run.finished) / run.duration:.1f}",
            "mean in flight (Little)": lambda run: f"{in_flight(run):.1f}",
        },
    )
