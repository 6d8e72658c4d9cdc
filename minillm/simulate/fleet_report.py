"""Serves made-up traffic on a fleet of equal simulated replicas, and reports it as a log is reported."""

from typing import Any

from minillm.simulate.arrivals import Gamma, Poisson
from minillm.simulate.cluster import ClusterConfig
from minillm.simulate.cluster import simulate as simulate_fleet
from minillm.simulate.deployment import Deployment
from minillm.simulate.lengths import Fixed
from minillm.simulate.replay import DIGITS, METRICS, Spread, latencies, rates
from minillm.simulate.routers import RouterConfig
from minillm.simulate.workload import make_workload
from minillm.simulate.workload_kinds import Independent


def simulate_traffic(
    deployment: Deployment,
    *,
    qps: float,
    arrival: str,
    cv: float,
    prompt_tokens: int,
    output_tokens: int,
    num_requests: int,
    seed: int,
    replicas: int,
    router: str,
    per_request: bool = False,
) -> dict[str, Any]:
    """Requests of one length at random moments, over `replicas` engines.

    Args:
        arrival: "poisson", or "gamma" with coefficient of variation `cv`.
        router: a policy of RouterConfig.
    Returns:
        `summary`, `throughput`, `virtual_s`, `outcomes`; with `per_request` also `requests`.
    Raises:
        WorkloadError: a rate that is not above zero, a cv out of range.
    """
    arrivals = Poisson(rate=qps) if arrival == "poisson" else Gamma(rate=qps, cv=cv)
    traffic = Independent(prompt=Fixed(tokens=prompt_tokens), output=Fixed(tokens=output_tokens))
    workload = make_workload(traffic, arrivals, num_requests=num_requests, seed=seed)
    config = ClusterConfig(replicas=replicas, router=RouterConfig(policy=router), seed=seed, sample_every_s=None)
    fleet = simulate_fleet(workload, config, deployment.fast_engine)
    done = [record for record in fleet.request_records() if record.completed]
    samples = [latencies(record.timeline) for record in done]
    report: dict[str, Any] = {
        "summary": {name: Spread.of([sample[name] for sample in samples]).to_dict() for name in METRICS},
        "throughput": rates([(record.timeline, record.num_prompt_tokens) for record in done]),
        "virtual_s": round(fleet.duration, DIGITS),
        "outcomes": dict(sorted(fleet.outcomes.items())),
        "replicas": replicas,
    }
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
