"""Serves a workload on a fleet of equal simulated replicas, and reports it as a log is reported."""

from typing import Any

from minillm.core.known import known
from minillm.observe.speculation import SpeculationSummary
from minillm.observe.summary import SLO
from minillm.runner.simulated import StepWatch
from minillm.simulate.cluster import ClusterConfig, simulate
from minillm.simulate.cluster_record import Outcome
from minillm.simulate.cluster_replica import EngineFactory
from minillm.simulate.deployment import Deployment
from minillm.simulate.progress import Progress
from minillm.simulate.replay import DIGITS, METRICS, Spread, latencies, rates
from minillm.simulate.workload import Workload


def engines_for(deployment: Deployment, config: ClusterConfig, watch: StepWatch | None = None) -> EngineFactory:
    """Makes the replicas' engines: the fast ones, but where a proxy counts the chunks of an answer for a client who
    may give up. A fast engine's timelines are brought up to date only now and then.
    """
    counts_chunks = config.network.hold_chunks > 1 and config.clients.first_byte_timeout_s is not None
    make = deployment.engine if counts_chunks else deployment.fast_engine
    return lambda clock: make(clock, watch)


def simulate_workload(
    deployment: Deployment,
    workload: Workload,
    config: ClusterConfig,
    slo: SLO | None = None,
    per_request: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Play a workload to a fleet.

    Returns:
        `summary` and `throughput` of completed requests, `virtual_s`, `outcomes`, `attempts`, `prefix_hit_rate`,
        `replicas`, `first_error` if there is one, `speculation` if it is on; with `slo` also `goodput_per_s` and
        `attainment`; with `per_request` also `requests`.
    Raises:
        WorkloadError: the configuration names a pool that a single deployment cannot make.
    """
    watch = progress.begin(f"{len(workload)} requests", workload.last_arrival) if progress else None
    shares_nothing = workload.shares_nothing and config.clients.max_attempts == 1 and config.disaggregation is None
    fleet = None
    if shares_nothing:
        fleet = simulate(workload.anonymous(), config, engines_for(deployment.without_prefix_lookups(), config, watch))
    if fleet is None or any(report.num_preemptions for report in fleet.reports):
        # Whoever is preempted finds its own blocks again.
        fleet = simulate(workload, config, engines_for(deployment, config, watch))
    done = [record for record in fleet.request_records() if record.completed]
    samples = [latencies(record.timeline) for record in done]
    report: dict[str, Any] = {
        "summary": {name: Spread.of([sample[name] for sample in samples]).to_dict() for name in METRICS},
        "throughput": rates([(record.timeline, record.num_prompt_tokens) for record in done]),
        "virtual_s": round(fleet.duration, DIGITS),
        "outcomes": dict(sorted(fleet.outcomes.items())),
        "attempts": fleet.num_attempts,
        "prefix_hit_rate": round(fleet.prefix_hit_rate, DIGITS),
        "replicas": config.replicas,
    }
    if errors := [record.error for record in fleet.records if record.outcome is Outcome.ERROR]:
        report["first_error"] = errors[0]
    if deployment.config.speculative is not None:
        report["speculation"] = SpeculationSummary.of_requests(done).to_dict()
    if slo is not None:
        summary = fleet.summary(slo)
        report["goodput_per_s"] = round(known(summary.goodput), DIGITS)
        report["attainment"] = round(known(summary.attainment), DIGITS)
    if per_request:
        report["requests"] = [
            {
                "request_id": record.request_id,
                "input_toks": record.num_prompt_tokens,
                "output_toks": record.timeline.num_tokens,
                "queued_s": round(record.timeline.arrival, DIGITS),
                **{name: value if value is None else round(value, DIGITS) for name, value in sample.items()},
            }
            for record, sample in zip(done, samples)
        ]
    return report
