"""README's loop: eight real requests in four slots, drawn as they happened, as an SVG that moves by itself.

`python -m course.lab.hero_loop` runs them on this machine (leave it alone meanwhile) and writes the picture, and beside
it the run. `--redraw` draws the run that is there.
"""

import argparse
import os
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from pydantic import BaseModel

from course.lab import open_lab, services
from course.lab.run import Run
from course.lab.style import PHASE_COLOURS, PHASE_LABELS, seconds
from minillm.bench.report import describe_cpu
from minillm.core.timeline import PHASES

FOLDER = Path(__file__).parents[1] / "images"
PICTURE, RECORD = FOLDER / "eight_requests.svg", FOLDER / "eight_requests.json"
WIDTH, ROW, BAR, LEFT, TOP = 760, 24, 14, 92, 44
PLAYED_S, HELD_S = 7.0, 4.0
"""The run takes so long in the picture, whatever it took; then it stands still."""
INK, SOFT, PAPER = "#1f2328", "#57606a", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


class EightRequests(BaseModel):
    """One run: what is drawn, and where it was made."""

    date: str
    device: str
    slots: int
    borders: list[list[float]]
    """Each request's six moments around its phases, seconds after the first arrived."""

    @classmethod
    def of(cls, run: Run) -> "EightRequests":
        views = [run.row_of(i) for i in range(len(run.rows))]
        start = min(view.borders[0] for view in views)
        borders = [[round(border - start, 5) for border in view.borders] for view in views]
        device = f"{describe_cpu()[0]}, {os.cpu_count()} cores"
        date = datetime.now(UTC).date().isoformat()
        return cls(date=date, device=device, slots=run.config.max_num_seqs, borders=borders)

    @property
    def duration(self) -> float:
        return max(row[-1] for row in self.borders)

    def means(self) -> dict[str, float]:
        """Mean seconds of each phase."""
        count = len(self.borders)
        sums = [sum(row[i + 1] - row[i] for row in self.borders) for i in range(len(PHASES))]
        return {phase: total / count for phase, total in zip(PHASES, sums)}


def draw(run: EightRequests) -> str:
    """The picture, on a white card, so that it reads on pages of any colour. A curtain opens from left to right."""
    room = WIDTH - LEFT - 24
    height = TOP + ROW * len(run.borders) + 34
    scale = room / run.duration
    bars = "".join(_row(number, row, scale) for number, row in enumerate(run.borders))
    share = PLAYED_S / (PLAYED_S + HELD_S)
    timing = f'keyTimes="0;{share:.3f};1" dur="{PLAYED_S + HELD_S:g}s" repeatCount="indefinite"'
    curtain = f'<rect x="0" y="0" width="{WIDTH}" height="{height}">'
    curtain += f'<animate attributeName="width" values="{LEFT};{LEFT + room};{LEFT + room}" {timing}/></rect>'
    bottom = height - 30
    cursor = f'<line x1="{LEFT + room}" y1="{TOP - 4}" x2="{LEFT + room}" y2="{bottom}" stroke="{INK}" opacity=".5">'
    cursor += "".join(
        f'<animate attributeName="{x}" values="{LEFT};{LEFT + room};{LEFT + room}" {timing}/>' for x in ("x1", "x2")
    )
    legend = "".join(
        f'<rect x="{LEFT + 112 * i}" y="16" width="11" height="11" rx="2" fill="{PHASE_COLOURS[phase]}"/>'
        f'<text x="{LEFT + 112 * i + 16}" y="26" fill="{INK}">{PHASE_LABELS[phase]}</text>'
        for i, phase in enumerate(PHASES)
    )
    slots = f"{len(run.borders)} requests, {run.slots} slots, {seconds(run.duration)} of real serving"
    said = f"{slots}: each row is a request, in five phases"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(said)}" font-family="{FONT}" font-size="13">'
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}" stroke="#d0d7de"/>'
        f'<defs><clipPath id="time">{curtain}</clipPath></defs>{legend}'
        f'<g clip-path="url(#time)">{bars}</g>{cursor}</line>{_names(run)}'
        f'<text x="{LEFT}" y="{height - 10}" fill="{SOFT}" font-size="12">'
        f"{slots} ({escape(run.device)}, {run.date})</text>"
        "</svg>\n"
    )


def _row(number: int, borders: list[float], scale: float) -> str:
    y = TOP + ROW * number + (ROW - BAR) / 2
    spans = zip(PHASES, borders, borders[1:])
    return "".join(
        f'<rect x="{LEFT + start * scale:.2f}" y="{y:g}" width="{max((end - start) * scale, 0.6):.2f}" height="{BAR}" '
        f'fill="{PHASE_COLOURS[phase]}"/>'
        for phase, start, end in spans
    )


def _names(run: EightRequests) -> str:
    return "".join(
        f'<text x="{LEFT - 10}" y="{TOP + ROW * i + 17}" fill="{SOFT}" text-anchor="end">request {i}</text>'
        for i in range(len(run.borders))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redraw", action="store_true", help="draw the run that was recorded")
    if parser.parse_args().redraw:
        run = EightRequests.model_validate_json(RECORD.read_text())
    else:
        lab = open_lab()
        work = services.together(8, lab)
        lab.run(work, long_prefill_token_threshold=64)  # a first run, on a cold machine, is not counted
        run = EightRequests.of(lab.run(work, long_prefill_token_threshold=64))
        RECORD.write_text(run.model_dump_json(indent=1) + "\n")
    PICTURE.write_text(draw(run))
    print({phase: seconds(mean) for phase, mean in run.means().items()})


if __name__ == "__main__":
    main()
