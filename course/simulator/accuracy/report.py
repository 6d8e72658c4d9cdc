"""Errors of forecasts, by group, as data and as a table."""

import csv
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.simulator.accuracy.engines import card_of
from course.simulator.accuracy.layout import ServingLayout
from course.simulator.accuracy.play import Forecast
from course.simulator.accuracy.points import Point
from course.simulator.errors import RecordingError
from minillm.observe.percentiles import percentile
from minillm.observe.tables import text_table

WITHIN = 15.0
"""Percent: what share of points is off by no more."""
DIGITS = 2


@dataclass(frozen=True, slots=True)
class Checked:
    """A point beside its forecast, or the reason why there is none."""

    point: Point
    is_mixture: bool | None
    """Whether it's a mixture of experts; None: the model isn't known."""
    layout: ServingLayout | None
    forecast: Forecast | None
    refused: str = ""

    @property
    def kind(self) -> str:
        return "moe" if self.is_mixture else "dense"

    @property
    def tp(self) -> str:
        """Accelerators that share a layer's attention: of those that write answers."""
        return str(self.layout.server.tp) if self.layout else ""

    @property
    def tpot_error(self) -> float:
        """(predicted - measured) / measured, percent."""
        assert self.forecast is not None, "it was refused"
        return 100 * (self.forecast.tpot_s / self.point.tpot_s - 1)

    @property
    def ttft_error(self) -> float:
        assert self.forecast is not None, "it was refused"
        return 100 * (self.forecast.ttft_s / self.point.ttft_s - 1)

    def row(self) -> dict[str, Any]:
        """All of it, ready for JSON or a table."""
        point, layout = self.point, self.layout
        row: dict[str, Any] = {
            "id": point.name,
            "refused": self.refused,
            **{by: value(self) if self.forecast else "" for by, value in GROUPS.items() if by != "all"},
            "model": point.model,
            "backend_version": point.version,
            "isl": point.isl,
            "concurrency": point.concurrency,
            "gpus": layout.server.gpus if layout else None,
            "dp": layout.server.dp if layout else None,
            "expert_groups": layout.server.expert_groups if layout else None,
            "servers": layout.servers if layout else None,
            "ttft_ms": round(1e3 * point.ttft_s, 3),
            "tpot_ms": round(1e3 * point.tpot_s, 3),
        }
        if self.forecast is not None:
            row |= {
                "predicted_ttft_ms": round(1e3 * self.forecast.ttft_s, 3),
                "predicted_tpot_ms": round(1e3 * self.forecast.tpot_s, 3),
                "ttft_error_pct": round(self.ttft_error, DIGITS),
                "tpot_error_pct": round(self.tpot_error, DIGITS),
            }
        return row


GROUPS: dict[str, Callable[[Checked], str]] = {
    "all": lambda checked: "all",
    "kind": lambda checked: checked.kind,
    "mode": lambda checked: "disagg" if checked.point.is_disaggregated else "agg",
    "system": lambda checked: checked.point.system,
    "precision": lambda checked: checked.point.precision_name,
    "tp": lambda checked: checked.tp,
    "backend": lambda checked: checked.point.backend,
    "osl": lambda checked: str(checked.point.osl),
    "kind_tp": lambda checked: f"{checked.kind}/{checked.tp}",
}
"""What points are grouped by."""


def report(points: Sequence[Checked]) -> dict[str, Any]:
    """`{"points", "done", "refused": {reason: count}, "groups": [{"by", "value", "n", "tpot": {...}, "ttft": {...}}]}`,
    each with median_pct, mape_pct and within_15_pct: the median error, the mean of its size (MAPE), and the percentage
    of points that are off by no more than 15%."""
    done = [checked for checked in points if checked.forecast is not None]
    refused = Counter(checked.refused for checked in points if checked.forecast is None)
    groups = []
    for by, value_of in GROUPS.items():
        members: defaultdict[str, list[Checked]] = defaultdict(list)
        for checked in done:
            members[value_of(checked)].append(checked)
        for value in sorted(members, key=_natural):
            groups.append({"by": by, "value": value, "n": len(members[value]), **_errors(members[value])})
    return {"points": len(points), "done": len(done), "refused": dict(refused.most_common()), "groups": groups}


def _errors(members: Sequence[Checked]) -> dict[str, dict[str, float | None]]:
    return {
        "tpot": spread([checked.tpot_error for checked in members]),
        "ttft": spread([checked.ttft_error for checked in members]),
    }


def spread(errors: Iterable[float]) -> dict[str, float | None]:
    """Median, MAPE, share within 15% of errors in percent, NaNs (TPOT of one token) left out; None if none remain."""
    known = [error for error in errors if not math.isnan(error)]
    if not known:
        return dict.fromkeys(("median_pct", "mape_pct", "within_15_pct"))
    within = sum(abs(error) <= WITHIN for error in known)
    return {
        "median_pct": round(statistics.median(known), DIGITS),
        "mape_pct": round(statistics.fmean(abs(error) for error in known), DIGITS),
        "within_15_pct": round(100 * within / len(known), DIGITS),
    }


def _natural(value: str) -> tuple[str, int, str]:
    """Numbers by size: 8 comes before 16, dense/8 before dense/16."""
    words, _, number = value.rpartition("/")
    return (words, int(number), "") if number.isdigit() else (words, 0, number)


def bands(points: Sequence[Checked]) -> list[dict[str, Any]]:
    """What `cost.bands` reads: for each group, where measured values were, in percent of their forecasts."""
    members: defaultdict[tuple[str, str, str, int], list[Checked]] = defaultdict(list)
    for checked in points:
        if checked.forecast is not None and not math.isnan(checked.tpot_error):
            card, precision = card_of(checked.point.system), checked.point.precision_name
            members[checked.kind, card, precision, int(checked.tp)].append(checked)
    rows = []
    for (kind, card, precision, tp), group in sorted(members.items()):
        tpot = _deciles([1 / (1 + each.tpot_error / 100) for each in group])
        ttft = _deciles([1 / (1 + each.ttft_error / 100) for each in group])
        key = {"kind": kind, "card": card, "precision": precision, "tp": tp}
        rows.append({**key, "n": len(group), "tpot": tpot, "ttft": ttft})
    return rows


def write_bands(points: Sequence[Checked], path: Path, stack: str) -> None:
    """Put the groups of one stack's forecasts in a file of them.

    Raises:
        RecordingError: the file can't be read or written.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        found[stack] = bands(points)
        rows = [
            f" {json.dumps(name)}: [\n  " + ",\n  ".join(map(json.dumps, found[name])) + "\n ]"
            for name in sorted(found)
        ]
        path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RecordingError(f"cannot write {path}: {error}") from None


def _deciles(ratios: list[float]) -> list[float]:
    """The first, the median and the ninth of measured over predicted values, in percent above 1."""
    return [round(100 * (percentile(sorted(ratios), rank) - 1), 1) for rank in (10, 50, 90)]


def as_text(found: dict[str, Any]) -> str:
    """The report as tables."""
    columns = ("by", "value", "points", "TPOT median", "MAPE", "within 15%", "TTFT median", "MAPE", "within 15%")
    rows = []
    for group in found["groups"]:
        figures = []
        for metric in ("tpot", "ttft"):
            median, mape, within = group[metric].values()
            told = [f"{median:+.1f}%", f"{mape:.1f}%", f"{within:.0f}%"] if median is not None else ["-"] * 3
            figures += told
        rows.append((group["by"], group["value"], str(group["n"]), *figures))
    lines = [f"{found['done']} of {found['points']} points simulated; errors are (predicted - measured) / measured."]
    lines += ["TTFT counts from when the client sends.", "", text_table(columns, rows)]
    if found["refused"]:
        lines += ["", f"{found['points'] - found['done']} not simulated:"]
        lines += [f"{count:6}  {reason}" for reason, count in found["refused"].items()]
    return "\n".join(lines)


def write_rows(points: Sequence[Checked], path: Path) -> None:
    """Every point with its forecast, as JSON or, with that suffix, as .csv.

    Raises:
        RecordingError: the file can't be written.
    """
    rows = [checked.row() for checked in points]
    try:
        if path.suffix != ".csv":
            path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            return
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise RecordingError(f"cannot write {path}: {error}") from None
