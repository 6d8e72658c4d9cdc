"""The picture and the tables of docs/simulator.md that show how far off the simulator is.

python -m course.simulator.accuracy.fitting --points silicon_measured.csv --rows build
minillm accuracy --points silicon_measured.csv --today --out build/today.csv
python -m docs.accuracy_picture --held-out build/held_out.csv --in-sample build/in_sample.csv --today build/today.csv

Of each set that isn't named, the points stay that docs/accuracy.csv.gz has of it; so does the whole page, if none is.
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
HELD_OUT, IN_SAMPLE, TODAY = "held out", "in-sample", "default stack"
COLORS = {"1": "#0072B2", "2": "#009E73", "4": "#E69F00", "8": "#D55E00", "more": "#CC79A7"}
"""By tp: Okabe and Ito's, which stay apart for all kinds of sight."""
MARKS = {"1": "o", "2": "s", "4": "^", "8": "D", "more": "v"}
Sets = dict[str, list["Row"]]
"""Points by whose forecasts they stand beside."""
WITHIN = 15.0
"""Percent: the band that is drawn."""
DRAWN = (HELD_OUT, TODAY)
"""Sets that are in the picture: what to expect of an engine that is named, and of none."""
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
    """HELD_OUT, IN_SAMPLE or TODAY."""
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


def sets_of(rows: Iterable[Row]) -> Sets:
    """Rows by set, in the page's order."""
    found: Sets = {of: [] for of in (HELD_OUT, IN_SAMPLE, TODAY)}
    for row in rows:
        found[row.of].append(row)
    return found


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
    """Median and MAPE, as a cell."""
    off = errors(rows, metric)
    return f"{statistics.median(off):+.1f}%, {statistics.fmean(map(abs, off)):.1f}%" if off else "-"


def share_within(rows: Sequence[Row], metric: str) -> float:
    """The share of points that is off by WITHIN or less."""
    off = errors(rows, metric)
    return sum(abs(each) <= WITHIN for each in off) / len(off)


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


def table(by_set: Sets) -> str:
    """Errors of all sets by group, as Markdown."""
    head = "".join(f" {of}: TPOT | TTFT |" for of in by_set)
    lines = [f"| | points |{head}", "|---|---|" + "---|---|" * len(by_set)]
    for name, belongs in GROUPS:
        members = [[row for row in rows if belongs(row)] for rows in by_set.values()]
        if all(members):
            cells = [told(rows, metric) for rows in members for metric in ("tpot", "ttft")]
            lines.append(f"| {name} | {len(members[0])} | {' | '.join(cells)} |")
    within = [f"{share_within(rows, metric):.0%}" for rows in by_set.values() for metric in ("tpot", "ttft")]
    return "\n".join([*lines, f"| within {WITHIN:.0f}%, of all | | {' | '.join(within)} |"])


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
    parser.add_argument("--held-out", type=Path, help="forecasts of constants that had not seen a point's curve")
    parser.add_argument("--in-sample", type=Path, help="of those fitted to all points")
    parser.add_argument("--today", type=Path, help="of the default stack")
    options = parser.parse_args()
    by_set = sets_of(read_rows(POINTS, HELD_OUT))
    for path, of in ((options.held_out, HELD_OUT), (options.in_sample, IN_SAMPLE), (options.today, TODAY)):
        if path is not None:
            by_set[of] = read_rows(path, of)
    keep_rows([row for rows in by_set.values() for row in rows], POINTS)
    draw({of: by_set[of] for of in DRAWN}, PICTURE)
    page = put(PAGE.read_text(encoding="utf-8"), "errors", table(by_set))
    PAGE.write_text(put(page, "worst", worst(by_set[HELD_OUT])), encoding="utf-8")
    print(f"{PICTURE}, {POINTS} and the tables of {PAGE}: {', '.join(f'{len(m)} {of}' for of, m in by_set.items())}")


if __name__ == "__main__":
    main()
