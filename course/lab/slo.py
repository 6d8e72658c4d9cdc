"""Service-level objectives by use case, and which of them a run would have met."""

from collections.abc import Mapping

from course.lab.display import Html, as_table
from course.lab.run import Run
from course.lab.style import seconds
from course.summary import SLO
from minillm.observe.records import as_records

USE_CASES: dict[str, tuple[SLO, str]] = {
    "chat": (SLO(ttft=0.5, tpot=0.05), "claim F3"),
    "code completion": (SLO(ttft=0.2, tpot=0.03), "claim F3"),
    "summary of a document": (SLO(ttft=3.0, e2e=30.0), "claim F3"),
    "classification": (SLO(ttft=0.1, e2e=0.2), "claim F3"),
    "MLPerf Llama-2-70B, server": (SLO(ttft=2.0, tpot=0.2), "MLPerf"),
    "MLPerf Llama-2-70B, interactive": (SLO(ttft=0.45, tpot=0.04), "MLPerf"),
}
"""Limits per request, seconds. "claim F3" is the article behind it, see the lesson; MLPerf's are its p99 limits."""


def attainment(run: Run, slo: SLO) -> float:
    """Share of the requests that met every limit; a refused request met none."""
    ended = as_records(run.outputs)
    met = sum(record.completed and slo.met_by(record.timeline) for record in ended)
    is_remote = run.remote is not None  # then those that were refused are among the outputs
    refused = 0 if is_remote else sum(row.refused is not None for row in run.rows)
    return met / max(len(ended) + refused, 1)


def slo_table(runs: Mapping[str, Run]) -> Html:
    """A row a use case: its limits, and the share of each run's requests that met them all."""
    header = ("use case", "TTFT", "TPOT", "E2E", "from", *(f"{name} meets it" for name in runs))
    rows = []
    for name, (slo, source) in USE_CASES.items():
        limits = (seconds(limit) for limit in (slo.ttft, slo.tpot, slo.e2e))
        rows.append((name, *limits, source, *(f"{attainment(run, slo):.0%}" for run in runs.values())))
    return as_table(header, rows)


def attainments(runs: Mapping[str, Run]) -> dict[str, dict[str, float]]:
    """Use case -> name of the run -> share of its requests that met every limit."""
    return {case: {n: attainment(run, slo) for n, run in runs.items()} for case, (slo, _) in USE_CASES.items()}
