"""A simulation's report: what was simulated on whose word, and the whole of it as text for people."""

from dataclasses import asdict
from typing import Any

from minillm.simulate.deployment import Deployment


def describe(model: str, deployment: Deployment) -> dict[str, Any]:
    """What was simulated, and on whose word."""
    profile, config = deployment.profile, deployment.config
    optional = {
        "speculative": config.speculative and config.speculative.model_dump(),
        "sliding_window": config.sliding_window,
        "attention_sinks": config.attention_sinks,
        "scheduler_reserve_full_isl": config.scheduler_reserve_full_isl,
        "null_block": deployment.null_block,
    }
    return {
        "model": model,
        "hardware": profile.hardware.name,
        "tp": deployment.placement.tp,
        "weight_dtype": deployment.placement.weight_dtype,
        "kv_dtype": deployment.placement.kv_dtype,
        "kv_blocks": deployment.num_kv_blocks,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        **{name: value for name, value in optional.items() if value},
        "constants": asdict(profile.constants),
        "provenance": profile.provenance,
    }


def as_text(report: dict[str, Any], body: str) -> str:
    """What was simulated, what came out, and the constants' own error under it."""
    lines = [f"{report['model']} on {report['tp']} x {report['hardware']}, {report['kv_blocks']} KV blocks", body]
    lines.append(f"constants: {report['provenance'].get('source', 'unknown')}")
    lines += error_lines(report["provenance"])
    simulated = f"{report['virtual_s']:.1f} s " if "virtual_s" in report else ""
    lines.append(f"{simulated}simulated in {report['wall_s']:.1f} s")
    return "\n".join(lines)


def error_lines(provenance: dict[str, Any]) -> list[str]:
    """How far the constants were off where they were checked, one line for each kind of step or latency."""
    checks = {name: value for name, value in provenance.items() if "error" in name}
    if not checks:
        return ["their error: not known"]
    return ["their error:", *(f"  {line}" for name, value in checks.items() for line in flat(name, value))]


def flat(name: str, value: Any) -> list[str]:
    """Nested figures as lines: the innermost dict is one line."""
    name = name.replace("_", " ")
    if not isinstance(value, dict):
        return [f"{name}: {value}"]
    if not any(isinstance(inner, dict) for inner in value.values()):
        return [f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {number}" for key, number in value.items())]
    return [f"{name}, {line}" for key, inner in value.items() for line in flat(key, inner)]


def latency_text(report: dict[str, Any]) -> str:
    """Latencies, rates, and how requests ended."""
    lines = [f"{'seconds':<10}" + "".join(f"{part:>12}" for part in ("mean", "p50", "p90", "p99"))]
    for name, spread in report["summary"].items():
        cells = ("-" if value is None else f"{value:.4f}" for value in spread.values())
        lines.append(f"{name.removesuffix('_s'):<10}" + "".join(f"{cell:>12}" for cell in cells))
    lines.append("  ".join(f"{name} {value:.2f}" for name, value in report["throughput"].items()))
    if "speculation" in report:
        lines.append(speculation_text(report["speculation"]))
    if "outcomes" in report:
        ends = ", ".join(f"{num} {outcome}" for outcome, num in report["outcomes"].items())
        lines.append(f"requests: {ends} (latencies are of completed ones), in {report['attempts']} attempts")
    if "first_error" in report:
        lines.append(f"first error: {report['first_error']}")
    if "attainment" in report:
        share, rate = report["attainment"], report["goodput_per_s"]
        lines.append(f"within the limits: {share:.1%} of requests, {rate:.2f} per second")
    if "error_percent" in report:
        lines.append("error against the log, percent:")
        for name, errors in report["error_percent"].items():
            cells = ("-" if value is None else f"{value:+.2f}" for value in errors.values())
            lines.append(f"{name.removesuffix('_s'):<10}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def speculation_text(figures: dict[str, Any]) -> str:
    """What became of the drafts, in one line."""
    if not figures["verifications"]:
        return "speculation: the gates let nothing be drafted"
    places = ", ".join(f"{share:.0%}" for share in figures["acceptance_at"])
    return f"speculation: {figures['emitted_per_verify']:.2f} tokens per verification, accepted by place {places}"
