"""The picture and the tables of docs/simulator.md that show how far off the simulator is.

minillm accuracy --points silicon_measured.csv --out rows.csv
minillm accuracy --points silicon_measured.csv --today --out today.csv
python -m docs.accuracy_picture rows.csv --today today.csv
python -m docs.accuracy_picture rows.csv --today today.csv --held-out half.csv

Rows come from constants that were fitted to these points, so their errors are in-sample. `--held-out` takes rows
priced by constants that had not seen them, and shows them below. The points go into docs/accuracy.csv.gz, from which
`python -m docs.accuracy_picture docs/accuracy.csv.gz` draws the same picture; with `--today today.csv` behind it, that
set alone is another.
"""

import argparse
import csv
import gzip
import io
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGE, PICTURE, POINTS = DOCS / "simulator.md", DOCS / "accuracy.png", DOCS / "accuracy.csv.gz"
IN_SAMPLE, TODAY, HELD_OUT = "in-sample", "today", "held out"
COLORS = {"1": "#0072B2", "2": "#009E73", "4": "#E69F00", "8": "#D55E00", "more": "#CC79A7"}
"""By tp: Okabe and Ito's, which stay apart for all kinds of sight."""
MARKS = {"1": "o", "2": "s", "4": "^", "8": "D", "more": "v"}
WITHIN = 15.0
"""Percent: the band that is drawn."""
WORST = 10
QUEUED, STALLED, SHORT = 0.2, 0.2, 128
"""Predicted over measured TTFT of a queue that the row doesn't tell of, the same of TPOT where a server stalled; tokens
of a short answer."""
KEPT = (
    *("set", "id", "kind", "mode", "system", "precision", "tp", "backend", "backend_version", "isl", "osl"),
    *("concurrency", "ttft_ms", "tpot_ms", "predicted_ttft_ms", "predicted_tpot_ms"),
)
NAMES = {
    "gpt_?oss": "gpt-oss-120b",
    "deepseek": "DeepSeek-V3/R1",
    "qwen3_5": "Qwen3.5-397B-A17B",
    "qwen3_235b": "Qwen3-235B-A22B",
    "qwen3_32b": "Qwen3-32B",
    "llama_3_1_8b": "Llama-3.1-8B",
    "llama_3_[13]_70b": "Llama-3-70B",
    "minimax": "MiniMax-M2.5",
    "kimi": "Kimi-K2.5",
    "glm": "GLM-5",
}
"""Models, by how rows' names write them."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured point beside its forecast."""

    of: str
    """IN_SAMPLE, TODAY or HELD_OUT."""
    cells: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.cells[name]

    def number(self, name: str) -> float:
        return float(self.cells[name] or "nan")

    def ratio(self, metric: str) -> float:
        """Predicted over measured; NaN where one of them isn't known."""
        return self.number(f"predicted_{metric}_ms") / self.number(f"{metric}_ms")

    @property
    def degree(self) -> str:
        return self["tp"] if self["tp"] in COLORS else "more"

    @property
    def model(self) -> str:
        return next((name for pattern, name in NAMES.items() if re.search(pattern, self["id"].lower())), self["kind"])

    @property
    def measurement(self) -> tuple[str, ...]:
        """Equal for rows that repeat one measurement under another name."""
        return self.model, self["system"], self["isl"], self["osl"], self["ttft_ms"], self["tpot_ms"]


def read_rows(path: Path, of: str) -> list[Row]:
    """What `minillm accuracy --out` wrote, without the refused points; or what this command kept."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return [Row(row.get("set") or of, row) for row in csv.DictReader(io.StringIO(text)) if row["predicted_tpot_ms"]]


def keep_rows(rows: Sequence[Row], path: Path) -> None:
    """Write what the picture and the tables need; the same bytes for the same rows."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([KEPT, *([row.of, *(row[name] for name in KEPT[1:])] for row in rows)])
        packed.write(text.getvalue().encode())


def errors(rows: Iterable[Row], metric: str) -> list[float]:
    """(predicted - measured) / measured, percent."""
    return [100 * (ratio - 1) for row in rows if not math.isnan(ratio := row.ratio(metric))]


def told(rows: Sequence[Row], metric: str) -> str:
    """Median, MAPE and the share within 15%, as a cell."""
    off = errors(rows, metric)
    if not off:
        return "-"
    mape, within = statistics.fmean(map(abs, off)), sum(abs(each) <= WITHIN for each in off) / len(off)
    return f"{statistics.median(off):+.1f}%, {mape:.1f}%, {within:.0%}"


GROUPS: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    ("all", lambda row: True),
    ("dense", lambda row: row["kind"] == "dense"),
    *((f"- tp {tp}", lambda row, tp=tp: row["kind"] == "dense" and row["tp"] == tp) for tp in ("1", "2", "4", "8")),
    ("mixtures of experts", lambda row: row["kind"] == "moe"),
    ("disaggregated", lambda row: row["mode"] == "disagg"),
    ("H100, H200", lambda row: row["system"].startswith(("h100", "h200"))),
    ("B200, B300, GB200, GB300", lambda row: row["system"].startswith(("b200", "b300", "gb"))),
    ("vLLM", lambda row: row["backend"] == "vllm"),
    ("SGLang", lambda row: row["backend"] == "sglang"),
    ("TensorRT-LLM", lambda row: row["backend"] == "trtllm"),
)
SAID = {
    IN_SAMPLE: "**In-sample**: constants of each engine on each card, fitted to these very points",
    HELD_OUT: "**Held out**: constants fitted to the other half of the curves, on points that they had not seen",
    TODAY: "**vLLM 0.19 moved to each card**: what `simulate` uses unless told otherwise, fitted to none of these",
}


def table(rows: Sequence[Row], of: str) -> str:
    """Errors of one set of rows by group, as Markdown."""
    lines = [f"{SAID[of]} ({len(rows)} points; median, MAPE, share within 15%):", ""]
    lines += ["| | points | TPOT | TTFT |", "|---|---|---|---|"]
    for name, belongs in GROUPS:
        members = [row for row in rows if belongs(row)]
        if members:
            lines.append(f"| {name} | {len(members)} | {told(members, 'tpot')} | {told(members, 'ttft')} |")
    return "\n".join(lines)


def cause(row: Row) -> str:
    """What is likely behind a large error of TPOT, as far as the row shows it; the first that applies."""
    tpot, waits = row.ratio("tpot"), row.ratio("ttft") < QUEUED
    if waits and tpot > 1:
        return "fewer ran at a time than were open: TTFT was measured as a queue, TPOT as that of a smaller batch"
    if tpot < STALLED:
        return "far beyond what such a step takes: preempted or starved for KV, which the row doesn't say"
    if not row["concurrency"]:
        return "the row doesn't say how many requests were open, nor how many servers: both are guessed"
    if int(row["osl"]) <= SHORT:
        return "answers of so few tokens are mostly stalled by others' prompts; how the server mixes them is guessed"
    if row["backend"] == "trtllm" and row.model.startswith("DeepSeek") and tpot > 1:
        return "faster than its neighbours: probably drafts (multi-token prediction) that the row doesn't mention"
    return "not known"


def worst(rows: Sequence[Row], count: int = WORST) -> str:
    """The points whose TPOT is furthest off, up or down by the same factor, as Markdown."""
    known = [row for row in rows if not math.isnan(row.ratio("tpot"))]
    distinct = list({row.measurement: row for row in reversed(known)}.values())
    ranked = sorted(distinct, key=lambda row: -abs(math.log(row.ratio("tpot"))))[:count]
    lines = ["| point | TPOT measured | predicted | likely cause |", "|---|---|---|---|"]
    for row in ranked:
        version = f"{row['backend']} {row['backend_version']}".strip()
        mode = "pools, " if row["mode"] == "disagg" else ""
        load = f", {row['concurrency']} open" if row["concurrency"] else ""
        what = f"{row.model} {row['precision']}, {row['system']}, {mode}tp {row['tp']}, {version}, "
        what += f"{row['isl']} + {row['osl']} tokens{load}"
        figures = f"{row.number('tpot_ms'):.1f} ms | {row.number('predicted_tpot_ms'):.1f}"
        lines.append(f"| {what} | {figures} | {cause(row)} |")
    return "\n".join(lines)


def draw(sets: dict[str, Sequence[Row]], path: Path) -> None:
    """Predicted over measured, a row of panels for each set of points: TPOT and TTFT, coloured by tp."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: dict[Any, Any] = {"font.size": 11, "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True}
    with matplotlib.rc_context(style):
        figure, panels = pyplot.subplots(
            len(sets), 2, figsize=(11, 5.6 * len(sets)), squeeze=False, facecolor="white", layout="constrained"
        )
        for axes, (of, rows) in zip(panels, sets.items()):
            for panel, metric in zip(axes, ("tpot", "ttft")):
                for degree, color in COLORS.items():
                    own = [row for row in rows if row.degree == degree]
                    x = [row.number(f"{metric}_ms") for row in own]
                    y = [row.number(f"predicted_{metric}_ms") for row in own]
                    label = f"tp {degree}" if degree != "more" else "more"
                    panel.scatter(x, y, s=11, marker=MARKS[degree], color=color, alpha=0.55, linewidths=0, label=label)
                panel.set(xscale="log", yscale="log", xlabel=f"measured {metric.upper()}, ms")
                panel.set(ylabel=f"predicted {metric.upper()}, ms", title=f"{metric.upper()}, {of}: {len(rows)} points")
                ends = [min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])]
                panel.plot(ends, ends, color="#222222", linewidth=1)
                low, high = ([end * (1 + side * WITHIN / 100) for end in ends] for side in (-1, 1))
                panel.fill_between(ends, low, high, color="#222222", alpha=0.12, linewidth=0, label="within 15%")
                panel.set(xlim=ends, ylim=ends)
                panel.legend(loc="upper left", frameon=False, markerscale=2)
        figure.savefig(path, dpi=110, metadata={"Software": None})
        pyplot.close(figure)


def put(page: str, part: str, content: str) -> str:
    """The page with what stands between the marks of a part replaced.

    Raises:
        ValueError: the page has no such marks.
    """
    begin, end = f"<!-- {part}: python -m docs.accuracy_picture -->", f"<!-- end of {part} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no place for {part}: it needs {begin} and {end}")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    return f"{before}{begin}\n{content}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="of `minillm accuracy --out`, or docs/accuracy.csv.gz")
    parser.add_argument("--today", type=Path, help="the same with --today")
    parser.add_argument("--held-out", type=Path, help="rows that the constants had not seen")
    options = parser.parse_args()
    rows = read_rows(options.rows, IN_SAMPLE)
    for path, of in ((options.held_out, HELD_OUT), (options.today, TODAY)):
        if path is not None:
            rows = [row for row in rows if row.of != of] + read_rows(path, of)
    by_set = {of: [row for row in rows if row.of == of] for of in (IN_SAMPLE, HELD_OUT, TODAY)}
    by_set = {of: members for of, members in by_set.items() if members}
    keep_rows(rows, POINTS)
    draw({of: members for of, members in by_set.items() if of != TODAY}, PICTURE)
    page = PAGE.read_text(encoding="utf-8")
    page = put(page, "errors", "\n\n".join(table(members, of) for of, members in by_set.items()))
    page = put(page, "worst", worst(by_set[IN_SAMPLE]))
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PICTURE}, {POINTS} and the tables of {PAGE}: {', '.join(f'{len(m)} {of}' for of, m in by_set.items())}")


if __name__ == "__main__":
    main()
