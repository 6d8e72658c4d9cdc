"""Serves a log or a workload on equal simulated replicas, and reports both alike, as data and as text."""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from course.simulator.calibration.replay import compare_with_log, serve_log
from course.simulator.calibration.requests_log import read_requests_log
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.record import Outcome
from course.simulator.cluster.replica import EngineFactory
from course.simulator.cluster.run import FleetRun
from course.simulator.cost.bands import band_of
from course.simulator.deployment import Deployment
from course.simulator.energy import energy_of
from course.simulator.errors import WorkloadError
from course.simulator.latencies import DIGITS, PERCENTILES, SummaryDict, rates, row_of, summary_of
from course.simulator.simulated_runner import StepWatch
from course.simulator.workload.requests import Workload
from course.summary import SLO
from minillm.observe.records import Recordable, as_records
from minillm.observe.speculation import SpeculationSummary
from minillm.observe.tables import text_table


def engines_for(
    deployment: Deployment, config: ClusterConfig, watch: StepWatch | None = None, *, tells_stalls: bool = True
) -> EngineFactory:
    """Makes the replicas' engines: the fast ones, but where a proxy counts the chunks of an answer for a client who
    may give up. A fast engine's timelines are brought up to date only now and then.

    Args:
        watch: sees every step.
        tells_stalls: timelines tell what others' prompts cost them; off where only latencies are read.
    """
    counts_chunks = config.network.hold_chunks > 1 and config.clients.first_byte_timeout_s is not None
    if counts_chunks:
        return functools.partial(deployment.engine, watch=watch)
    return functools.partial(deployment.fast_engine, watch=watch, tells_stalls=tells_stalls)


def simulate_log(deployment: Deployment, path: Path, per_request: bool = False) -> dict[str, Any]:
    """Serve a log, and report: as `latency_report`; with a timed log also `measured` and `error_percent`; with
    `per_request` also `requests`, in the log's order.

    Raises:
        RecordingError: the log cannot be read.
        PricingError: a request can never be served.
    """
    log = read_requests_log(path)
    outputs = serve_log(deployment, log)
    report = latency_report(deployment, outputs, max(output.timeline.finished or 0.0 for output in outputs))
    report["latencies_from"] = "queued"
    if any(request.is_timed for request in log):
        _, report["measured"], report["error_percent"] = compare_with_log(outputs, log)
    if per_request:
        rows = {record.request_id: row_of(record) for record in as_records(outputs)}
        report["requests"] = [rows[request.request_id] for request in log]
    return report


def latency_report(
    deployment: Deployment, served: Sequence[Recordable], seconds: float, span: float | None = None
) -> dict[str, Any]:
    """Figures of requests that were served: `summary`, `throughput`, `virtual_s`, and `speculation` if it is on.

    Args:
        span: seconds that throughput is over, where not all requests were served; see `rates`.
    """
    report: dict[str, Any] = {
        "summary": summary_of(served),
        "throughput": rates(served, span),
        "virtual_s": round(seconds, DIGITS),
    }
    if deployment.config.speculative is not None:
        report["speculation"] = SpeculationSummary.of_requests(served).to_dict()
    return report


def simulate_workload(
    deployment: Deployment,
    workload: Workload,
    config: ClusterConfig,
    slo: SLO | None = None,
    per_request: bool = False,
    progress: Callable[[str, float], None] | None = None,
    asked: float | None = None,
) -> dict[str, Any]:
    """Play a workload to a fleet.

    Args:
        progress: told what is done, and the share of requests that have ended.
        asked: requests per second that the workload stands for; None = a recording's own. See `ramp_of`.
    Returns:
        The `latency_report` of completed requests, `outcomes`, `attempts`, `prefix_hit_rate`, `replicas`,
        `first_error` if there is one; `ramp` where it's less busy than was asked for; with tiers `tier_hits`; with
        `slo` also `goodput_per_s` and `attainment`; with `per_request` also `requests`. `latencies_from` is "sent":
        when a request left its client. A closed loop may hold it back until then; `summary_from_due` has the same
        latencies from the moment it was due.
    Raises:
        WorkloadError: the configuration names a pool that a single deployment cannot make, or no request fits.
    """
    fleet = play(deployment, workload, config, progress)
    done = [record for record in fleet.request_records("sent") if record.completed]
    errors = [record.error for record in fleet.records if record.outcome is Outcome.ERROR]
    if errors and len(errors) == len(fleet.records):
        raise WorkloadError(f"none of these requests can be served. The first: {errors[0]}")
    report = {
        **latency_report(deployment, done, fleet.duration, fleet.summary(slo).duration),
        **fleet_report(fleet),
        **energy_report(deployment, fleet),
    }
    report["latencies_from"] = "sent"
    if config.clients.max_in_flight is not None:
        report["max_in_flight"] = config.clients.max_in_flight
        report["summary_from_due"] = summary_of(
            record for record in fleet.request_records("intended") if record.completed
        )
    if errors:
        report["first_error"] = errors[0]
    if asked is not None and (ramp := ramp_of(fleet, asked)):
        report["ramp"] = {"asked_per_s": asked, **ramp}
    if slo is not None:
        summary = fleet.summary(slo, "sent")
        report["goodput_per_s"] = round(summary.goodput or 0.0, DIGITS)
        report["attainment"] = round(summary.attainment or 0.0, DIGITS)
    if per_request:
        report["requests"] = [row_of(record) for record in done]
    return {**report, "replicas": config.replicas}


FULL = 0.8
"""Of the rate that was asked for: with less, a run says that it hasn't been that busy."""


def ramp_of(fleet: FleetRun, asked: float) -> dict[str, float] | None:
    """Where conversations bring fewer requests a second than asked, as their later turns come when no new ones begin
    any more: `offered_per_s`, `tail_s` from the last first turn on, and `num_requests` that such a tail is a tenth of.
    """
    first_turns: dict[str, float] = {}
    due = sorted((record.intended, record.request.session) for record in fleet.records if record.intended is not None)
    for moment, session in due:
        first_turns.setdefault(session, moment)
    if len(first_turns) == len(due):
        return None
    span, begins = due[-1][0] - due[0][0], max(first_turns.values()) - due[0][0]
    if not span or (offered := len(due) / span) >= FULL * asked:
        return None
    tail = span - begins
    return {
        "offered_per_s": round(offered, DIGITS),
        "tail_s": round(tail, DIGITS),
        "num_requests": math.ceil(9 * tail * asked),
    }


def play(
    deployment: Deployment,
    workload: Workload,
    config: ClusterConfig,
    progress: Callable[[str, float], None] | None = None,
) -> FleetRun:
    """Play a workload to a fleet; without looking for prefixes, where that finds nothing. Timelines don't tell what
    others' prompts cost them: a report has no place for it.

    Raises:
        WorkloadError: the configuration names a pool that a single deployment cannot make.
    """
    if config.disaggregation is not None and config.disaggregation.kv_bytes_per_token is not None:
        raise WorkloadError("leave kv_bytes_per_token out: the model has so many as it has")
    tell = progress and functools.partial(progress, "simulating")
    hands_over = config.disaggregation is not None or config.tiers
    if workload.shares_nothing and config.clients.max_attempts == 1 and not hands_over:
        plain = deployment.without_prefix_lookups()
        fleet = simulate(workload, config, engines_for(plain, config, tells_stalls=False), progress=tell)
        if not any(report.num_preemptions for report in fleet.reports):
            return fleet
        # A preempted request finds its own blocks again: play it with lookups.
    return simulate(workload, config, engines_for(deployment, config, tells_stalls=False), progress=tell)


def fleet_report(fleet: FleetRun) -> dict[str, Any]:
    """How requests ended, and what the caches found."""
    report: dict[str, Any] = {
        "outcomes": dict(sorted(fleet.outcomes.items())),
        "attempts": fleet.num_attempts,
        "prefix_hit_rate": round(fleet.prefix_hit_rate, DIGITS),
    }
    if fleet.tier_hits:
        report["tier_hits"] = dict(fleet.tier_hits)
    return report


def energy_report(deployment: Deployment, fleet: FleetRun) -> dict[str, Any]:
    """`energy`: watts and joules (energy.Energy), or None where the card's draw has not been measured; and joules per
    output token if boards drew their limit in each step and nothing between, where that limit is known."""
    energy = energy_of(deployment, fleet)
    report: dict[str, Any] = {"energy": None if energy is None else energy.to_json()}
    hardware, tokens = deployment.profile.hardware, sum(replica.num_output_tokens for replica in fleet.reports)
    if hardware.watts and tokens:
        watts = hardware.watts * deployment.placement.accelerators
        joules = watts * sum(replica.busy_s for replica in fleet.reports) / tokens
        report["joules_per_output_token_at_most"] = round(joules, DIGITS)
    return report


def beyond_fit(model: str, deployment: Deployment) -> dict[str, str]:
    """What is not as it was where the constants were fitted, and so makes their error larger. Empty: nothing."""
    profile, placement = deployment.profile, deployment.placement
    fit: dict[str, Any] = {"hardware": profile.hardware.name, **profile.provenance}
    weights = "bfloat16" if placement.weight_dtype == "float16" else placement.weight_dtype  # they take the same time
    here = {"hardware": profile.hardware.name, "model": model, "tp": placement.tp, "weight_dtype": weights}
    fitted = {name: fit[name] if isinstance(fit[name], list) else [fit[name]] for name in here if name in fit}
    differs = {name: f"{here[name]}, fitted to {fit[name]}" for name in fitted if here[name] not in fitted[name]}
    of_engine = "engine" in fit  # the band tells how far off that is, links and all
    if "model" not in fit and not of_engine:
        differs["constants"] = "typical, fitted to nothing"
    if placement.pp > 1:
        differs["pp"] = f"{placement.pp} stages, fitted to one"
    if placement.lora.adapters:
        differs["lora"] = "launching their kernels is not in it"
    measured = profile.hardware.measured_link and profile.constants.wait_s is not None
    if placement.accelerators > 1 and not measured and "link" not in fit.get("decided_by_data", ()):
        differs["link"] = f"a guess for {profile.hardware.link_class}, as no measurement had one"
    return differs


def describe(model: str, deployment: Deployment) -> dict[str, Any]:
    """What was simulated, and on whose word."""
    profile, config, placement = deployment.profile, deployment.config, deployment.placement
    optional = {
        "pp": placement.pp > 1 and placement.pp,
        "lora": placement.lora.adapters and placement.lora.model_dump(),
        "expert_parallel": placement.expert_parallel,
        "expert_skew": placement.expert_parallel and placement.expert_skew,
        "speculative": config.speculative and config.speculative.model_dump(),
        "sliding_window": config.sliding_window,
        "attention_sinks": config.attention_sinks,
        "scheduler_reserve_full_isl": config.scheduler_reserve_full_isl,
        "null_block": deployment.null_block,
    }
    band = band_of(profile, deployment.model, placement)
    return {
        **({} if band is None else {"band": band.to_json()}),
        "model": model,
        "hardware": profile.hardware.name,
        "tp": placement.tp,
        "weight_dtype": placement.weight_dtype,
        "kv_dtype": placement.kv_dtype,
        "kv_blocks": deployment.num_kv_blocks,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        **{name: value for name, value in optional.items() if value},
        "constants": profile.constants.model_dump(),
        "provenance": profile.provenance,
        "beyond_fit": beyond_fit(model, deployment),
    }


def as_text(report: dict[str, Any], body: str, explain: bool = False) -> str:
    """What was simulated, what came out, and how far such forecasts were off; with `explain` the constants' origin."""
    num = report["tp"] * report.get("pp", 1)
    fleet = f"{report['replicas']} replicas, each {num}" if report.get("replicas", 1) > 1 else str(num)
    lines = [f"{report['model']} on {fleet} x {report['hardware']}, {report['kv_blocks']} KV blocks", body]
    stack = stack_lines(report["provenance"], report["hardware"])
    lines += stack if explain else stack[:1]
    lines += [report["band"]["line"]] if "band" in report else error_lines(report["provenance"])
    if explain:
        lines.append(f"constants: {report['provenance'].get('source', 'unknown')}")
    if beyond := report["beyond_fit"]:
        names = {name.replace("_", " "): why for name, why in beyond.items()}
        told = "; ".join(f"{name} {why}" for name, why in names.items()) if explain else ", ".join(names)
        lines.append(f"beyond what they were fitted to, so expect more: {told}")
    wall, virtual = report["wall_s"], report.get("virtual_s")
    told = "" if virtual is None else f" {virtual:.1f} s, {virtual / max(wall, 1e-3):,.0f} times as fast as real time,"
    more = "" if explain else "; --explain says where its constants come from"
    lines.append(f"simulated{told} in {wall:.1f} s{more}")
    return "\n".join(lines)


def stack_lines(provenance: dict[str, Any], hardware: str) -> list[str]:
    """Which serving software is simulated, by its version, and what newer ones have changed."""
    if "stack" not in provenance:
        return []
    where = f", moved to {hardware}" if "hardware" in provenance else ""
    newer = [f"newer: {provenance['newer']}"] if "newer" in provenance else []
    return [f"stack: {provenance['stack']}{where}", *newer]


def error_lines(provenance: dict[str, Any]) -> list[str]:
    """How far the constants were off where they were checked, one line for each kind of step or latency."""
    checks = {name: value for name, value in provenance.items() if "error" in name}
    if not checks:
        return ["error of these constants: not known"]
    return ["error of these constants:", *(f"  {line}" for name, value in checks.items() for line in flat(name, value))]


def flat(name: str, value: Any) -> list[str]:
    """Nested figures as lines: the innermost dict is one line."""
    name = name.replace("_", " ").removesuffix(" s")
    if not isinstance(value, dict):
        return [f"{name}: {value}"]
    if not any(isinstance(inner, dict) for inner in value.values()):
        return [f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {number}" for key, number in value.items())]
    return [f"{name}, {line}" for key, inner in value.items() for line in flat(key, inner)]


def latency_text(report: dict[str, Any]) -> str:
    """Latencies, rates, and how requests ended."""
    lines = [summary_text("seconds", report["summary"], ".4f"), *since_lines(report)]
    lines.append("  ".join(f"{name} {value:.2f}" for name, value in report["throughput"].items()))
    if "speculation" in report:
        lines.append(speculation_text(report["speculation"]))
    if "outcomes" in report:
        ends = ", ".join(f"{num} {outcome}" for outcome, num in report["outcomes"].items())
        lines.append(f"requests: {ends} (latencies are of completed ones), in {report['attempts']} attempts")
    if "tier_hits" in report:
        hits = ", ".join(f"{tokens} from {name}" for name, tokens in report["tier_hits"].items())
        lines.append(f"prompt tokens fetched: {hits}")
    lines += energy_lines(report)
    if "first_error" in report:
        lines.append(f"first error: {report['first_error']}")
    if "ramp" in report:
        ramp = report["ramp"]
        lines.append(
            f"not as busy as asked: {ramp['offered_per_s']:.2f} requests/s came on average, not "
            f"{ramp['asked_per_s']:g}: later turns of conversations came for {ramp['tail_s']:.0f} s after the last one "
            f"had begun; --num-requests {ramp['num_requests']} gets near"
        )
    if "attainment" in report:
        share, rate = report["attainment"], report["goodput_per_s"]
        lines.append(f"within the limits: {share:.1%} of requests, {rate:.2f} per second")
    if "error_percent" in report:
        lines += ["error against the log:", summary_text("percent", report["error_percent"], "+.2f")]
    return "\n".join(lines)


def energy_lines(report: dict[str, Any]) -> list[str]:
    """Watts and joules with their error; or that nobody has measured them."""
    most = report.get("joules_per_output_token_at_most")
    if "energy" not in report:
        return []
    if (energy := report["energy"]) is None:
        bound = f"; at most {most:.2f} J per output token, at the boards' limit in each step" if most else ""
        return [f"energy: not measured on this card{bound}"]
    low, high = energy["band_percent"]
    drawn = (
        f"{energy['watts_per_gpu']:.0f} W per GPU ({energy['idle_watts']:.0f} idle, {energy['busy_watts']:.0f} in steps"
    )
    return [
        f"energy: {drawn}, which ran {energy['busy_share']:.0%} of the time), "
        f"{energy['joules_per_output_token']:.2f} J per output token",
        f"  watts of {energy['points']} measured runs were {low:+.0f} to {high:+.0f}% from such forecasts; joules per "
        "token have the error of tokens per second, too",
    ]


def since_lines(report: dict[str, Any]) -> list[str]:
    """Where TTFT, E2E and queue begin; of a closed loop also the first two from when each request was due."""
    if report["latencies_from"] == "queued":
        return ["ttft, e2e and queue: from when the server queued the request (queued_ts)"]
    if "summary_from_due" not in report:
        return ["ttft, e2e and queue: from when the client sends, which is when the request is due (an open loop)"]
    late = {metric: report["summary_from_due"][metric] for metric in ("ttft_s", "e2e_s")}
    cap = report["max_in_flight"]
    return [
        f"ttft, e2e and queue: from when the client sends. A closed loop, at most {cap} open: the rest is held back.",
        summary_text("from when due", late, ".4f"),
    ]


def summary_text(unit: str, summary: SummaryDict, form: str) -> str:
    """A row for each metric."""
    rows = (
        (metric.removesuffix("_s"), *("-" if value is None else format(value, form) for value in parts.values()))
        for metric, parts in summary.items()
    )
    return text_table((unit, "mean", *PERCENTILES), rows)


def speculation_text(figures: dict[str, Any]) -> str:
    """What became of the drafts, in one line."""
    if not figures["verifications"]:
        return "speculation: the gates let nothing be drafted"
    places = ", ".join(f"{share:.0%}" for share in figures["acceptance_at"])
    return (
        f"speculation: {figures['emitted_per_verify']:.2f} tokens per verification, from drafts of "
        f"{figures['drafted_per_verify']:.2f}; accepted by place, of the drafts that long, {places}"
    )
