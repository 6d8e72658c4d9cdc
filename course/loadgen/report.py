"""The report of a load test: numbers for programs (JSON), and the same numbers for people (a table)."""

import datetime
import platform
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import aiohttp

from course.loadgen.load_test import LoadTest
from course.loadgen.observation import Observation, Since, on_even_schedule
from course.loadgen.server_metrics import Histogram, Scrape
from course.loadgen.validity import LoadTestEvidence, check_validity, near_zero_share, tokens_per_delivery
from course.summary import COLUMNS, METRICS, SLO, Summary, milliseconds, summarize
from minillm import __version__
from minillm.bench.writing import describe_command
from minillm.observe.records import RequestRecord
from minillm.observe.tables import text_table


def make_report(
    test: LoadTest, settings: dict[str, Any], slo: SLO | None, *, has_schedule: bool, per_request: bool = False
) -> dict[str, Any]:
    """Everything a reader needs to judge the test; times in seconds.

    Args:
        settings: what the command was told.
        has_schedule: requests had moments of their own; not so in a closed loop.
        per_request: with a row for each request.
    """
    observations = test.observations if has_schedule else on_even_schedule(test.observations)
    completed = [o for o in observations if o.completed]
    summary = summarize(_records(observations, "sent"), slo)
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": describe_command(sys.argv),
        "endpoint": {"url": test.endpoint.url, "api": test.endpoint.api.value, "model": test.endpoint.model},
        "versions": {"minillm": __version__, "python": platform.python_version(), "aiohttp": aiohttp.__version__},
        "settings": settings,
        "counts": dict(Counter(o.outcome for o in observations)),
        "was_cut_off": test.was_cut_off,
        "latency": summary.metrics,
        "schedule": "stated" if has_schedule else "even",
        "latency_from_schedule": summarize(_records(observations, "due"), slo).metrics,
        "rates": _rates(observations, summary),
        "slo": None if slo is None else asdict(slo),
        "tokens": _tokens(completed),
        "chunks": {
            "deliveries": sum(len(o.deliveries) for o in completed),
            "tokens_per_delivery": tokens_per_delivery(completed),
            "near_zero_gaps": near_zero_share(completed),
        },
        "server": None if test.after is None else _server(test.after, test.server),
        "client": test.client,
        "warnings": check_validity(
            LoadTestEvidence(observations, test.client, settings.get("concurrency"), has_schedule, test.server)
        ),
    }
    return {**report, "requests": [asdict(o) for o in observations]} if per_request else report


def _records(observations: Sequence[Observation], since: Since) -> list[RequestRecord]:
    return [record for o in observations if (record := o.as_request_record(since)) is not None]


def _rates(observations: Sequence[Observation], summary: Summary) -> dict[str, Any]:
    """Per second, over the test. `mean_in_flight` is Little's law: answered per second x mean E2E."""
    sent = sorted(o.sent for o in observations if o.sent is not None)
    span = sent[-1] - sent[0] if len(sent) > 1 else 0.0
    e2e = summary.metrics["e2e"].mean
    return {
        "duration_s": summary.duration,
        "sent_per_s": (len(sent) - 1) / span if span > 0 else None,
        "requests_per_s": summary.requests_per_s,
        "output_tokens_per_s": summary.output_tokens_per_s,
        "prompt_tokens_per_s": summary.prompt_tokens_per_s,
        "goodput_per_s": summary.goodput,
        "attainment": summary.attainment,
        "mean_in_flight": None if e2e is None else summary.requests_per_s * e2e,
    }


def _tokens(completed: Sequence[Observation]) -> dict[str, Any]:
    prompts = [o.prompt_tokens for o in completed if o.prompt_tokens is not None]
    return {
        "counted_by": dict(Counter(o.token_source.value for o in completed)),
        "output": sum(o.num_tokens for o in completed),
        "prompt": sum(prompts) if prompts else None,
        "cached": sum(o.cached_tokens or 0 for o in completed) if prompts else None,
    }


def _server(after: Scrape, gained: Mapping[str, Histogram]) -> dict[str, Any]:
    """The server's own histograms of the time of the test: of a quantile they know only its bucket."""
    told = {
        name: {
            "count": histogram.count,
            "mean": histogram.mean,
            "p50_between": histogram.bucket(0.5),
            "p99_between": histogram.bucket(0.99),
        }
        for name, histogram in gained.items()
    }
    return {"name": after.server, "histograms": told, "gauges_after": after.gauges}


# ---------------------------------------------------------------- for people


def figures_table(reports: Mapping[str, dict[str, Any]]) -> str:
    """The figures that decide between servers, or loads: a row for each report; times in milliseconds."""
    rows = []
    for name, report in reports.items():
        ttft, itl, rates = report["latency"]["ttft"], report["latency"]["itl"], report["rates"]
        latencies = map(milliseconds, (ttft.p50, ttft.p99, itl.p50, itl.p99))
        goodput = "" if rates["goodput_per_s"] is None else f"{rates['goodput_per_s']:.2f}"
        rows.append(
            (name, f"{rates['requests_per_s']:.2f}", *latencies, f"{rates['output_tokens_per_s']:.1f}", goodput)
        )
    columns = ("", "requests/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "tokens/s", "goodput/s")
    return text_table(columns, rows)


def format_report(report: dict[str, Any]) -> str:
    """The report in a terminal, at most 100 columns wide; times in milliseconds."""
    endpoint = report["endpoint"]
    lines = [f"{endpoint['model']} at {endpoint['url']} ({endpoint['api']})", "", _latency_table(report), ""]
    for name, text in _details(report):
        lines += textwrap.wrap(f"{name:<14}{text}", 100, subsequent_indent=" " * 14, break_long_words=False)
    for warning in report["warnings"]:
        text = f"! {warning.kind}: {warning.message}"
        lines += ["", *textwrap.wrap(text, 100, subsequent_indent="  ", break_long_words=False)]
    return "\n".join(lines)


def _latency_table(report: dict[str, Any]) -> str:
    rows = [(f"{name.upper()} from sent", *report["latency"][name].cells()) for name in METRICS]
    if {warning.kind for warning in report["warnings"]} & {"coordinated omission", "late sends"}:
        since = "from the schedule" if report["schedule"] == "stated" else "from an even schedule"
        late = report["latency_from_schedule"]
        rows += [(f"{name.upper()} {since}", *late[name].cells()) for name in ("ttft", "e2e")]
    return text_table(("ms", *COLUMNS), rows)


def _details(report: dict[str, Any]) -> list[tuple[str, str]]:
    rates, tokens, client = report["rates"], report["tokens"], report["client"]
    counts = ", ".join(f"{n} {outcome}" for outcome, n in report["counts"].items())
    counted = ", ".join(f"{n} by {source}" for source, n in tokens["counted_by"].items()) or "none"
    prompt = "?" if tokens["prompt"] is None else tokens["prompt"]
    server = "no /metrics that we know: queue and prefill cannot be told apart"
    if report["server"] is not None:
        means = {name: h["mean"] for name, h in report["server"]["histograms"].items() if h["mean"] is not None}
        told = ", ".join(f"{name} {milliseconds(mean)}" for name, mean in means.items())
        server = f"{report['server']['name']} says, mean ms: {told or 'nothing about requests'}"
    lines = [
        ("requests", counts + (" (test was cut off)" if report["was_cut_off"] else "")),
        (
            "rates",
            f"{rates['requests_per_s']:.2f} requests/s answered, {rates['sent_per_s'] or 0:.2f} sent, "
            f"{rates['output_tokens_per_s']:.1f} output tokens/s, {rates['mean_in_flight'] or 0:.1f} in flight",
        ),
        (
            "tokens",
            f"{prompt} in, {tokens['output']} out; answers counted: {counted}; "
            f"{report['chunks']['tokens_per_delivery'] or 0:.2f} tokens an event",
        ),
        ("server", server),
        (
            "this client",
            f"{client.cpu_share:.0%} of a core, loop late by {milliseconds(client.lag_p50_s)} ms (p50), "
            f"{milliseconds(client.lag_p99_s)} ms (p99)",
        ),
    ]
    if report["slo"] is not None and rates["attainment"] is not None:
        limits = ", ".join(f"{n.upper()} <= {v * 1e3:g} ms" for n, v in report["slo"].items() if v is not None)
        goodput = f"{rates['goodput_per_s']:.2f} requests/s with {limits}; {rates['attainment']:.1%}"
        lines.insert(2, ("goodput", goodput))
    return lines
