"""The report of a load test: numbers for programs (JSON), and the same numbers for people (a table)."""

import datetime
import platform
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import aiohttp

from minillm import __version__
from minillm.bench.loadgen.cautions import find_cautions, near_zero_share, tokens_per_delivery
from minillm.bench.loadgen.load_test import LoadTest
from minillm.bench.loadgen.observation import Observation, Since, on_even_schedule
from minillm.bench.loadgen.server_metrics import Histogram
from minillm.bench.writing import describe_command
from minillm.observe.definitions import compare_tools
from minillm.observe.records import RequestRecord
from minillm.observe.summary import COLUMNS, METRICS, SLO, Distribution, Summary, summarize


def make_report(
    test: LoadTest, settings: dict[str, Any], slo: SLO | None, *, has_schedule: bool, per_request: bool = False
) -> dict[str, Any]:
    """Everything a reader needs to judge the test; times in seconds.

    Args:
        settings: what the command was told.
        has_schedule: requests had moments of their own; not so in a closed loop.
        per_request: with a row for each request.
    """
    cap = settings.get("concurrency")
    observations = test.observations if has_schedule else on_even_schedule(test.observations)
    completed = [o for o in observations if o.completed]
    summary = summarize(_records(observations, "sent"), slo)
    cautions = find_cautions(observations, test.client, cap, has_schedule, test.server)
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": describe_command(sys.argv),
        "endpoint": {"url": test.endpoint.url, "api": test.endpoint.api.value, "model": test.endpoint.model},
        "versions": {"minillm": __version__, "python": platform.python_version(), "aiohttp": aiohttp.__version__},
        "settings": settings,
        "counts": dict(Counter(o.outcome for o in observations)),
        "retries": sum(max(o.attempts - 1, 0) for o in observations),
        "was_cut_off": test.was_cut_off,
        "latency": summary.metrics,
        "schedule": "stated" if has_schedule else "even",
        "latency_from_schedule": summarize(_records(observations, "due"), slo).metrics,
        "rates": _rates(observations, summary),
        "slo": None if slo is None else asdict(slo),
        "tokens": _tokens(completed),
        "chunks": _chunks(completed),
        "connections": _connections(observations),
        "server": _server(test),
        "client": test.client,
        "other_tools": _other_tools(observations),
        "cautions": cautions,
    }
    return {**report, "requests": [o.row() for o in observations]} if per_request else report


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
    known = [o for o in completed if o.prompt_tokens is not None]
    return {
        "counted_by": dict(Counter(o.token_source.value for o in completed)),
        "output": sum(o.num_tokens for o in completed),
        "prompt": sum(o.prompt_tokens for o in known) if known else None,
        "cached": sum(o.cached_tokens or 0 for o in known) if known else None,
    }


def _chunks(completed: Sequence[Observation]) -> dict[str, Any]:
    return {
        "deliveries": sum(len(o.deliveries) for o in completed),
        "tokens_per_delivery": tokens_per_delivery(completed),
        "near_zero_gaps": near_zero_share(completed),
        "read_together": sum(o.num_bundled for o in completed),
    }


def _connections(observations: Sequence[Observation]) -> dict[str, Any]:
    opened = [o.connect_s for o in observations if o.connect_s is not None]
    return {"opened": len(opened), "connect_s": Distribution.of(opened)}


def _server(test: LoadTest) -> dict[str, Any] | None:
    """The server's own histograms of the time of the test; None where /metrics offers none."""
    if test.after is None:
        return None
    return {
        "name": test.after.server,
        "histograms": {name: _histogram(histogram) for name, histogram in test.server.items()},
        "gauges_after": test.after.gauges,
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    """The mean is exact; of a quantile a histogram knows only its bucket."""
    buckets = {f"p{q}_between": histogram.bucket(q / 100) for q in (50, 99)}
    finite = {
        name: None if bounds is None else [bounds[0], None if bounds[1] == float("inf") else bounds[1]]
        for name, bounds in buckets.items()
    }
    return {"count": histogram.count, "mean": histogram.mean, **finite}


def _other_tools(observations: Sequence[Observation]) -> list[dict[str, Any]]:
    """What other tools would print about the same stamps."""
    table = compare_tools(_records(observations, "sent"))
    columns = ["tool", "metric", "count", "mean", "p50", "p99", "definition"]
    return [
        {key: None if value != value else value for key, value in row.items()}  # NaN, where pandas wants a number
        for row in table[columns].to_dict("records")
    ]


# ---------------------------------------------------------------- for people


def format_report(report: dict[str, Any]) -> str:
    """The report in a terminal, at most 100 columns wide; times in milliseconds."""
    endpoint, rates = report["endpoint"], report["rates"]
    lines = [f"{endpoint['model']} at {endpoint['url']} ({endpoint['api']})", ""]
    lines += _latency_table(report)
    counts = ", ".join(f"{n} {outcome}" for outcome, n in report["counts"].items())
    lines += ["", f"requests      {counts}" + (" (test was cut off)" if report["was_cut_off"] else "")]
    lines.append(
        f"rates         {rates['requests_per_s']:.2f} requests/s answered, {rates['sent_per_s'] or 0:.2f} sent, "
        f"{rates['output_tokens_per_s']:.1f} output tokens/s, {rates['mean_in_flight'] or 0:.1f} in flight on average"
    )
    if report["slo"] is not None and rates["attainment"] is not None:
        limits = ", ".join(f"{n.upper()} <= {v * 1e3:g} ms" for n, v in report["slo"].items() if v is not None)
        lines.append(f"goodput       {rates['goodput_per_s']:.2f} requests/s with {limits}; {rates['attainment']:.1%}")
    lines += _detail_lines(report)
    for caution in report["cautions"]:
        lines += ["", *_wrapped(f"! {caution.kind}: {caution.message}", "  ")]
    return "\n".join(lines)


def _latency_table(report: dict[str, Any]) -> list[str]:
    lines = [f"{'ms, from sent':<24}" + "".join(f"{column:>10}" for column in COLUMNS)]
    lines += [_row(name.upper(), report["latency"][name]) for name in METRICS]
    kinds = {caution.kind for caution in report["cautions"]}
    if kinds & {"coordinated omission", "late sends"}:
        name = "from the schedule" if report["schedule"] == "stated" else "from an even schedule"
        lines.append(f"ms, {name}")
        lines += [_row(metric.upper(), report["latency_from_schedule"][metric]) for metric in ("ttft", "e2e")]
    return lines


def _row(name: str, distribution: Distribution) -> str:
    values = [getattr(distribution, column) for column in COLUMNS[1:]]
    return f"{name:<24}{distribution.count:>10}" + "".join(f"{_ms(value):>10}" for value in values)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _detail_lines(report: dict[str, Any]) -> list[str]:
    tokens, chunks, client = report["tokens"], report["chunks"], report["client"]
    counted = ", ".join(f"{n} by {source}" for source, n in tokens["counted_by"].items()) or "none"
    lines = [
        f"tokens        {tokens['prompt'] if tokens['prompt'] is not None else '?'} in, {tokens['output']} out; "
        f"answers counted: {counted}; {chunks['tokens_per_delivery'] or 0:.2f} tokens an event"
    ]
    server = report["server"]
    if server is None:
        lines.append("server        no /metrics that we know: queue and prefill cannot be told apart")
    else:
        parts = [f"{name} {_ms(h['mean'])}" for name, h in server["histograms"].items() if h["mean"] is not None]
        says = f"server        {server['name']} says, mean ms: {', '.join(parts) or 'nothing about requests'}"
        lines += _wrapped(says, " " * 14)
    opened, connect = report["connections"]["opened"], report["connections"]["connect_s"]
    lines.append(f"connections   {opened} opened" + (f", {_ms(connect.p50)} ms each (p50)" if opened else ""))
    lines.append(
        f"this client   {client.cpu_share:.0%} of a core, loop late by {client.lag_p50_s * 1e3:.1f} ms (p50), "
        f"{client.lag_p99_s * 1e3:.1f} ms (p99)"
    )
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 100, subsequent_indent=indent, break_long_words=False)
