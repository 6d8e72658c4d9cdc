"""The alert rules of docs/monitoring/alerts.yml, tried on incidents: which of them fires, and how long after the onset.

    python -m course.incidents.alerts                    # all causes, a Markdown table; minutes
    python -m course.incidents.alerts overload kv_pool   # those two

The rules' own expressions are evaluated, every 15 s, over what a server would have counted (promql.py). Before the
onset the service was healthy, for as long as any window looks back. A retried request is counted once, by its last
attempt.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from course.incidents.causes import CAUSES
from course.incidents.generate import generate
from course.incidents.promql import Labels, duration, evaluate
from course.incidents.service import ServicePlay, SimulatedService, play
from course.simulator.cluster.record import ClientRecord, Outcome
from minillm.server.metrics import SECONDS

RULES = Path(__file__).parents[2] / "docs" / "monitoring" / "alerts.yml"
EVALUATED_EVERY_S = 15.0
SPAN_S = 600.0
"""Seconds of healthy traffic that are played before the onset, and of the fault after it."""
SEED = 1


# ---------------------------------------------------------------- what a server would have counted


@dataclass(frozen=True)
class Counted:
    """A counter. Moments in seconds after the onset, ascending; before the first play its rate was that play's."""

    moments: np.ndarray
    amounts: np.ndarray

    def increase(self, start: float, end: float) -> float:
        return float(self._total(end) - self._total(start))

    def _total(self, moment: float) -> float:
        healthy = self.amounts[self.moments < 0].sum()
        if moment < -SPAN_S:
            return (moment + SPAN_S) / SPAN_S * healthy
        return self.amounts[: np.searchsorted(self.moments, moment, "right")].sum()


@dataclass
class MetricsHistory:
    """Every series that the rules may ask for."""

    counters: dict[str, dict[Labels, Counted]] = field(default_factory=dict)
    gauges: dict[str, dict[Labels, list[tuple[float, float]]]] = field(default_factory=dict)

    def count(self, name: str, moments: np.ndarray, amounts: np.ndarray | None = None, **labels: str) -> None:
        order = np.argsort(moments, kind="stable")
        amounts = np.ones(len(moments)) if amounts is None else amounts
        self.counters.setdefault(name, {})[tuple(labels.items())] = Counted(moments[order], amounts[order])

    def observe(self, name: str, moments: np.ndarray, values: np.ndarray) -> None:
        """A histogram's buckets."""
        for border in (*SECONDS, np.inf):
            self.count(
                f"{name}_bucket", moments[values <= border], le="+Inf" if border == np.inf else str(float(border))
            )


def history_of(before: ServicePlay, now: ServicePlay) -> MetricsHistory:
    """A healthy run up to the onset, at 0, and a sick one from there on."""
    history = MetricsHistory()
    rows = [(record, start) for played, start in ((before, -SPAN_S), (now, 0.0)) for record in played.run.records]
    ends, ttft, gaps, outcomes = [], [], [], []
    scheduled, prompts, cached, preempted = [], [], [], []
    for record, start in rows:
        if (outcome := status_of(record, now.service)) is None:
            continue
        line = record.timeline
        end = start + (line.finished if line is not None and line.finished is not None else record.ended or 0.0)
        outcomes.append((end, outcome))
        if line is not None and line.scheduled is not None:
            scheduled.append(start + line.scheduled)
            prompts.append(record.request.num_prompt_tokens)
            cached.append(record.num_cached_tokens)
            if line.lost.get("preempted"):
                preempted.append(end)
        if outcome == "200" and line is not None and line.ttft is not None:
            ends.append(end)
            ttft.append(line.ttft)
            gaps.append(np.diff(line.deliveries))
    history.observe("minillm:time_to_first_token_seconds", np.array(ends), np.array(ttft))
    sizes = [len(each) for each in gaps]
    history.observe("minillm:inter_token_latency_seconds", np.repeat(ends, sizes), np.concatenate([*gaps, []]))
    for status in ("200", "429", "500", "none"):
        moments = np.array([end for end, each in outcomes if each == status])
        history.count("minillm:http_requests_total", moments, status=status)
    history.count("minillm:prefix_cache_queries_total", np.array(scheduled), np.array(prompts))
    history.count("minillm:prefix_cache_hits_total", np.array(scheduled), np.array(cached))
    history.count("minillm:num_preemptions_total", np.array(preempted))
    for played, start in ((before, -SPAN_S), (now, 0.0)):
        for sample in played.run.samples:
            if sample.moment < SPAN_S:  # after that requests only drain
                for name, value in (("num_requests_waiting", sample.waiting), ("kv_cache_usage_perc", sample.kv_used)):
                    series = history.gauges.setdefault(f"minillm:{name}", {})
                    series.setdefault((("instance", sample.replica),), []).append((start + sample.moment, value))
    return history


def status_of(record: ClientRecord, service: SimulatedService) -> str | None:
    """What the server counts of a request; None = it never came, or is still being served."""
    if record.outcome is Outcome.TIMEOUT:
        if service.fleet.clients.cancel_on_timeout:
            return "none"
        return "200" if record.timeline is not None and record.timeline.finished is not None else None
    statuses = {Outcome.COMPLETED: "200", Outcome.SHED: "429", Outcome.ERROR: "500"}
    return statuses.get(record.outcome) if record.outcome is not None else None


# ---------------------------------------------------------------- the rules


@dataclass(frozen=True)
class AlertRules:
    """Alerts by name, with the expressions that they name."""

    alerts: dict[str, dict[str, Any]]
    recorded: dict[str, str]

    @classmethod
    def read(cls, path: Path = RULES) -> "AlertRules":
        rules = [
            rule for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
        ]
        alerts = {rule["alert"]: rule for rule in rules if "alert" in rule}
        return cls(alerts, {rule["record"]: rule["expr"] for rule in rules if "record" in rule})

    def value(self, expression: str, history: MetricsHistory, now: float) -> Any:
        """The value of an expression at a moment: a number, or whether a condition holds."""

        def find(name: str) -> Any:
            if name in self.recorded:
                return self.value(self.recorded[name], history, now)
            return history.counters.get(name) or history.gauges[name]

        return evaluate(expression, find, now)

    def fires(self, name: str, history: MetricsHistory) -> float | None:
        """Seconds from the onset until an alert fires; negative = it did before; None = it does not."""
        rule = self.alerts[name]
        held_since = None
        for now in np.arange(-SPAN_S / 2, SPAN_S, EVALUATED_EVERY_S):
            if not self.value(rule["expr"], history, now):
                held_since = None
                continue
            held_since = now if held_since is None else held_since
            if now - held_since >= duration(rule.get("for", "0s")):
                return float(now)
        return None


# ---------------------------------------------------------------- on incidents


def tried_on(cause: str, rules: AlertRules) -> dict[str, float | None]:
    """Seconds after the onset by alert; see `Rules.fires`."""
    case = generate(SEED, 1, cause)[0].case
    before, now = (play(replace(s, duration_s=SPAN_S), SEED, watched=True) for s in (case.before, case.now))
    history = history_of(before, now)
    return {name: rules.fires(name, history) for name in rules.alerts}


def table(causes: Iterable[str], rules: AlertRules) -> Iterator[str]:
    """Markdown, line by line: each is there as soon as its cause has been tried."""
    yield f"| cause | {' | '.join(rules.alerts)} |"
    yield "|---" * (1 + len(rules.alerts)) + "|"
    for cause in causes:
        cells = [cell(after) for after in tried_on(cause, rules).values()]
        yield f"| {CAUSES[cause].title} (`{cause}`) | {' | '.join(cells)} |"


def cell(after: float | None) -> str:
    return "–" if after is None else "before" if after < 0 else f"{after:.0f} s"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Try the alert rules on incidents.")
    parser.add_argument("causes", nargs="*", help=f"some of {', '.join(CAUSES)}; none = all")
    try:
        for line in table(parser.parse_args().causes or CAUSES, AlertRules.read()):
            print(line, flush=True)
    except KeyboardInterrupt:  # the rows above are whole
        sys.exit(130)
