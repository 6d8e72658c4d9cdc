"""Serves a log's requests on a simulated deployment, and reports it beside what really happened."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minillm.core.known import known
from minillm.core.timeline import VirtualClock
from minillm.frontend.outputs import RequestOutput
from minillm.observe.speculation import SpeculationSummary
from minillm.runner.simulated import StepWatch
from minillm.simulate.deployment import Deployment
from minillm.simulate.progress import Progress
from minillm.simulate.replay import (
    DIGITS,
    arrivals_of,
    error_percent,
    measured_summary,
    row_of,
    run,
    summary_of,
    throughput_of,
)
from minillm.simulate.requests_log import LoggedRequest, read_requests_log


def serve_log(
    deployment: Deployment, log: Sequence[LoggedRequest], watch: StepWatch | None = None
) -> list[RequestOutput]:
    """The log's requests, served; in the order in which they ended."""
    clock = VirtualClock()
    engine = deployment.fast_engine(clock, watch)
    return run(engine, clock, arrivals_of(log), stamped_by_loop=True)


def compare_with_log(
    outputs: Sequence[RequestOutput], log: Sequence[LoggedRequest]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Over the requests that the log has times of: the simulated summary, the measured one, the error in percent."""
    measured = {request.request_id: request for request in log if request.is_timed}
    simulated = summary_of([output for output in outputs if output.request_id in measured])
    real = measured_summary(list(measured.values()))
    return simulated, real, error_percent(simulated, real)


def simulate_log(
    deployment: Deployment, path: Path, per_request: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Serve a log, and report: `summary`, `throughput`, `virtual_s`, `speculation` if it is on; with a timed log also
    `measured` and `error_percent`; with `per_request` also `requests`, in the log's order.

    Raises:
        RecordingError: the log cannot be read.
        PricingError: a request can never be served.
    """
    log = read_requests_log(path)
    watch = progress.begin(f"{len(log)} requests", log[-1].queued) if progress else None
    outputs = serve_log(deployment, log, watch)
    report: dict[str, Any] = {
        "summary": summary_of(outputs),
        "throughput": throughput_of(outputs),
        "virtual_s": round(max(known(output.timeline.finished) for output in outputs), DIGITS),
    }
    if deployment.config.speculative is not None:
        report["speculation"] = SpeculationSummary.of_requests(outputs).to_dict()
    if any(request.is_timed for request in log):
        _, report["measured"], report["error_percent"] = compare_with_log(outputs, log)
    if per_request:
        order = {request.request_id: place for place, request in enumerate(log)}
        report["requests"] = [row_of(output) for output in sorted(outputs, key=lambda o: order[o.request_id])]
    return report
