"""Alert rules and dashboard: they ask for what /metrics has, and the alerts fire on what they are for."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from pages import ROOT
from priced_runner import priced_engines
from prometheus_client.parser import text_string_to_metric_families

from course.incidents import alerts
from course.incidents.alerts import RULES, AlertRules, Counted, MetricsHistory
from course.incidents.causes import CAUSES
from course.incidents.promql import MATCHER, SELECTOR, duration, evaluate
from minillm.core.timeline import VirtualClock
from minillm.server.calls import Call
from minillm.server.metrics import EngineMetrics, Metrics

FOLDER = ROOT / "docs" / "monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
GROUPS = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
EXPRESSIONS = [*PANELS, *(rule["expr"] for group in GROUPS for rule in group["rules"])]


@pytest.fixture(scope="module")
def scraped() -> dict[str, list[dict[str, str]]]:
    """What a server shows: labels of every series, by name."""
    metrics = Metrics("m")
    metrics.observe(Call("id", "/v1/completions", False, 0.0, 0.0, status=200, finished=1.0))
    text = metrics.render() + EngineMetrics(priced_engines()(VirtualClock()), "m").render()
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        found[f"{family.name}_total" if family.type == "counter" else family.name] = []
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_series_exists_with_the_labels_that_are_asked_for(scraped: dict, expression: str) -> None:
    assert expression.count("(") == expression.count(")") and SELECTOR.search(expression)
    wanted = {label for by in re.findall(r"by \(([\w, ]+)\)", expression) for label in by.split(", ")}
    recorded = AlertRules.read().recorded
    for name, matchers, window in SELECTOR.findall(expression.replace("$__rate_interval", "5m")):
        assert not window or duration(window) > 0
        if name not in recorded:
            series = scraped[name]
            assert wanted | {label for label, _, _ in MATCHER.findall(matchers)} <= set(series[0])
            for label, how, value in MATCHER.findall(matchers):
                if how == "=" and not value.startswith("$"):
                    assert value in {labels[label] for labels in series}, "no such bucket"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_accepts_rules_panels_and_metrics(tmp_path: Path) -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True)
    metrics = Metrics("m")
    metrics.observe(Call("id", "/v1/completions", False, 0.0, 0.0, status=200, finished=1.0))
    told = subprocess.run(["promtool", "check", "metrics"], input=metrics.render(), capture_output=True)
    vllms = ("names should not contain ':'", "iteration_tokens_total non-counter")
    complaints = [line for line in told.stderr.decode().splitlines() if not any(words in line for words in vllms)]
    assert told.returncode in (0, 3) and not complaints, complaints
    written = [expression.replace("$__rate_interval", "5m") for expression in PANELS]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(written)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    subprocess.run(["promtool", "check", "rules", str(tmp_path / "panels.yml")], check=True)


def test_vllms_own_dashboard_finds_its_metrics_under_our_prefix(scraped: dict) -> None:
    """The page lists its panels with what they ask for, and says which stay empty."""
    page = (FOLDER.parent / "monitoring.md").read_text(encoding="utf-8")
    section = page.split("## vLLM's own dashboards")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) >= 12
    for panel, names, works in rows:
        missing = [name for name in re.findall(r"`([\w.]+)`", names) if f"minillm:{name}" not in scraped]
        assert (works == "yes") == (not missing), (panel, missing)


# ---------------------------------------------------------------- the evaluator


def test_a_rate_and_a_quantile_by_hand() -> None:
    history = MetricsHistory()
    history.count("minillm:a_total", np.arange(0.0, 100.0))
    history.observe("minillm:b", np.full(100, 10.0), np.linspace(1.0, 2.0, 100))
    rules = AlertRules({}, {"minillm:twice": "2 * sum by (model_name) (rate(minillm:a_total[50s]))"})
    assert rules.value("minillm:twice > 1.9 and 1 > 0", history, 99.0)
    assert rules.value("minillm:twice", history, 99.0) == 2.0
    quantile = "histogram_quantile(0.5, sum by (model_name, le) (rate(minillm:b_bucket[1m])))"
    assert rules.value(quantile, history, 20.0) == pytest.approx(1.5, abs=0.02)
    assert np.isnan(rules.value(quantile, history, 500.0)), "no request, no quantile"


def test_operators_bind_as_in_prometheus() -> None:
    def none(name: str) -> float:
        raise KeyError(name)

    assert evaluate("1 - 2 - 3 * 4 / 6 < 0.5 and 2 > 1", none, 0.0)
    assert evaluate("(1 - (2 - 3)) * 4", none, 0.0) == 8.0
    assert not evaluate("1 > 2 and 3 > 2", none, 0.0)
    for wrong in ("1 +", "(1", "1 2", "1 % 2", "sum(1)", "__import__('os')"):
        with pytest.raises(ValueError, match=r"expected|unexpected|known here|convert"):
            evaluate(wrong, none, 0.0)


def test_before_the_first_play_the_service_was_as_it_was_in_it() -> None:
    counted = Counted(np.arange(1 - alerts.SPAN_S, 0.0, 2.0), np.ones(int(alerts.SPAN_S / 2)))
    assert counted.increase(-10 * alerts.SPAN_S, -alerts.SPAN_S) == pytest.approx(9 * alerts.SPAN_S / 2)


def test_an_alert_fires_when_its_condition_has_held_for_long_enough() -> None:
    history = MetricsHistory()
    history.count("minillm:a_total", np.arange(0.0, 600.0))
    expression = "sum by (model_name) (rate(minillm:a_total[1m])) > 0.5"
    rules = AlertRules({"now": {"expr": expression}, "later": {"expr": expression, "for": "2m"}}, {})
    assert (rules.fires("now", history), rules.fires("later", history)) == (30.0, 150.0)


# ---------------------------------------------------------------- on incidents


def test_the_page_has_a_row_for_each_cause_and_a_column_for_each_alert() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    head, _, *rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")][
        -len(CAUSES) - 2 :
    ]
    assert head == ["cause", *AlertRules.read().alerts]
    assert [row[0] for row in rows] == [f"{cause.title} (`{name}`)" for name, cause in CAUSES.items()]
    assert all(re.fullmatch(r"–|before|\d+ s|not yet measured", cell) for row in rows for cell in row[1:])


def test_an_interrupted_table_ends_without_a_traceback(tmp_path: Path) -> None:
    stop = "import course.incidents.generate as m\ndef stop(*_): raise KeyboardInterrupt\nm.generate = stop\n"
    run = "import runpy, sys\nsys.argv = ['alerts', 'overload']\n"
    run += "runpy.run_module('course.incidents.alerts', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", stop + run], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 130 and done.stdout.startswith("| cause |") and done.stderr == ""


def test_an_overload_is_seen_by_its_queue_and_not_by_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "SPAN_S", 150.0)  # the page's table is of 600 s; both alerts fire after two minutes
    found = alerts.tried_on("overload", AlertRules.read())
    assert found["QueueDeep"] > 0 and found["TTFTHigh"] > 0 and found["PrefixHitRateFell"] is None
