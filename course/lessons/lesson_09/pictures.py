"""Pictures and tables of lesson 09: rounding, data sheets, phases before and after, and the quality gate."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from course.lab.display import Html, as_table, table_by_name
from course.lab.explorer import Explorer, buttons, choices
from course.lab.matrix_rounding import (
    BITS,
    GROUPS,
    Matrix,
    bits_per_weight,
    error,
    grids,
    moved_by,
    mxfp4,
    nvfp4,
    rounded,
)
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.roof import Roof
from course.lab.style import ALARM, COLOURS, PHASE_COLOURS, PHASE_LABELS, WIDTH, number, seconds, with_minus
from course.lab.svg import FAINT, INK, SOFT, Picture, Scale, boxes, line, phase_fill, rect, tag, text, time_axis
from course.lessons.lesson_09.run import (
    FORMATS,
    PLAIN,
    PhasePair,
    Scores,
    Shelf,
    Sweep,
    compare,
    h100_steps,
    is_restless,
    rise,
    scenes,
    speedup,
    verdict,
)
from course.measure.quality import QualityLimits, conclusion
from course.simulator.cost.hardware import Hardware, find_hardware
from course.simulator.cost.models import find_model
from minillm.bench.target import Costs
from minillm.core.timeline import PHASES

# ---------------------------------------------------------------- rounding, weight by weight

SHOWN = 128
"""Inputs of the row that are drawn: those around the largest weight."""
LEFT, RIGHT, TOP, TALL = 62, 12, 22, 230
GRID, MOVED = COLOURS[0], ALARM
FINEST = 2.6
"""Grid lines closer than so many units are drawn as a tint."""
KINDS = ("as it came", "never rounded before")
OUTLIERS = (1, 2, 4, 8)


def rounding_lab(matrix: Matrix) -> Explorer:
    """Bits, group size, an outlier, and whether the weights had been rounded before."""
    by_kind = dict(zip(KINDS, (matrix, matrix.shaken())))
    return Explorer(
        lambda bits, group, outlier, kind: draw_row(by_kind[kind], bits, group, outlier),
        bits=choices("bits of a weight", BITS, 3),
        group=choices("group size, inputs", GROUPS, 64),
        outlier=choices("largest weight, multiplied by", OUTLIERS, 1),
        kind=buttons("weights", KINDS),
    )


def draw_row(matrix: Matrix, bits: int, group: int | str, outlier: int = 1) -> Picture:
    """One row of a matrix, on the grids of its groups.

    Args:
        outlier: the row's largest weight is multiplied by this first.
    """
    row, first, shown = _stretched(matrix, outlier)
    moved = rounded(row, bits, group)
    low, step = (each.flatten().tolist() for each in grids(row, bits, group))
    values, landed = row[first : first + shown].tolist(), moved[first : first + shown].tolist()
    across = Scale(first, first + shown, LEFT, WIDTH - RIGHT)
    ends = [min(values), max(values)]
    for i in _groups_in_sight(first, shown, group, len(row)):
        ends += [low[i], low[i] + step[i] * (2**bits - 1)]
    upwards = Scale(min(ends), max(ends), TOP + TALL, TOP)
    body = text(LEFT, 12, f"violet: lines of the grid ({2**bits} in each group)   ", size=11, fill=SOFT)
    body += text(LEFT + 330, 12, "● a weight   — where it is moved to", size=11, fill=SOFT)
    body += _axis(upwards, "weight")
    for i in _groups_in_sight(first, shown, group, len(row)):
        body += _grid(across, upwards, (low[i], step[i], bits), _extent(i, group, len(row), first, shown))
    wide = across(first + 1) - across(first)
    for i, (value, place) in enumerate(zip(values, landed)):
        x = across(first + i + 0.5)
        body += line(x, upwards(value), x, upwards(place), stroke=MOVED, stroke_width=1.4)
        body += line(x - wide / 2, upwards(place), x + wide / 2, upwards(place), stroke=MOVED, stroke_width=1.6)
        body += tag("circle", cx=x, cy=upwards(value), r=1.9, fill=INK)
    share, whole = error(row, bits, group), error(matrix.weights, bits, group)
    price = bits_per_weight(bits, group, len(row))
    rule = f"{bits} bits, {_named(group)}: {number(price)} bits a weight with its grid."
    found = f"Error: {share:.2%} of this row, {whole:.2%} of the whole matrix {list(matrix.weights.shape)}."
    body += text(WIDTH - RIGHT, TOP + TALL + 20, "input of the row →", size=11, fill=SOFT, text_anchor="end")
    body += text(LEFT, TOP + TALL + 20, rule, size=12)
    body += text(LEFT, TOP + TALL + 37, found, size=12, font_weight="bold")
    return Picture("Where does rounding move each weight?", body, TOP + TALL + 46, description=f"{rule} {found}")


def _stretched(matrix: Matrix, outlier: int) -> tuple[Tensor, int, int]:
    """The row with its largest weight multiplied; the first input that is drawn, and how many are."""
    row = matrix.weights[matrix.widest()].clone()
    largest = int(row.abs().argmax())
    row[largest] *= outlier
    shown = min(SHOWN, len(row))
    return row, min(largest // shown * shown, len(row) - shown), shown


def _groups_in_sight(first: int, shown: int, group: int | str, width: int) -> range:
    size = width if isinstance(group, str) else group
    return range(first // size, -(-(first + shown) // size))


def _extent(i: int, group: int | str, width: int, first: int, shown: int) -> tuple[int, int]:
    size = width if isinstance(group, str) else group
    return max(first, i * size), min(first + shown, (i + 1) * size)


def _grid(across: Scale, upwards: Scale, grid: tuple[float, float, int], extent: tuple[int, int]) -> str:
    low, step, bits = grid
    left, right = across(extent[0]) + 1, across(extent[1]) - 1
    top, bottom = upwards(low + step * (2**bits - 1)), upwards(low)
    drawn = rect(left, top, right - left, bottom - top, fill=GRID, fill_opacity=0.07)
    if (bottom - top) / (2**bits - 1) < FINEST:
        words = f"{2**bits} lines: too close to draw"
        drawn += rect(left, top, right - left, bottom - top, fill=GRID, fill_opacity=0.13)
        return drawn + text(
            left + 4, max(top - 3, TOP + 11), words if right - left > 150 else f"{2**bits}", size=11, fill=GRID
        )
    lines = [(left, upwards(low + k * step) - 0.3, right - left, 0.6) for k in range(2**bits)]
    return drawn + boxes(lines, fill=GRID, fill_opacity=0.75)


def _axis(upwards: Scale, label: str) -> str:
    drawn = ""
    for tick in upwards.ticks(5):
        drawn += line(LEFT, upwards(tick), WIDTH - RIGHT, upwards(tick), stroke=FAINT, stroke_width=0.6)
        drawn += text(LEFT - 6, upwards(tick) + 4, f"{tick:.2f}", size=11, fill=SOFT, text_anchor="end")
    turned = {"text_anchor": "middle", "transform": f"rotate(-90 12 {TOP + TALL / 2:.0f})"}
    return drawn + text(12, TOP + TALL / 2, label, size=11, fill=SOFT, **turned)


def _named(group: int | str) -> str:
    return f"one grid for the {group}" if isinstance(group, str) else f"groups of {group}"


def errors_table(matrix: Matrix) -> Html:
    """The error of the whole matrix, by bits and group; as it came, and as if it had never been rounded."""
    fresh, width = matrix.shaken(), matrix.weights.shape[1]
    rows = []
    for bits in BITS:
        for group in GROUPS[:-1] if bits < 8 else GROUPS[-1:]:
            errors = (f"{error(each.weights, bits, group):.2%}" for each in (matrix, fresh))
            rows.append((f"{bits} bits, {_named(group)}", number(bits_per_weight(bits, group, width)), *errors))
    return as_table(("grid", "bits a weight, in all", *(f"error, {kind}" for kind in KINDS)), rows)


FOUR_BITS: dict[str, tuple[float, Callable[[Tensor], Tensor]]] = {
    "int4, groups of 64": (4.5, lambda weights: rounded(weights, 4, 64)),
    "int4, groups of 32": (5.0, lambda weights: rounded(weights, 4, 32)),
    "MXFP4, groups of 32, a power of two each": (4.25, mxfp4),
    "NVFP4, groups of 16, an FP8 scale each": (4.5, nvfp4),
}
"""By name: bits in all, and what becomes of weights."""


def four_bits_table(matrix: Matrix, outlier: int) -> Html:
    """One row of weights, as if never rounded before, in every 4-bit format: how far are all but the largest moved?"""
    fresh = matrix.shaken()
    row = fresh.weights[fresh.widest()].clone()
    largest = int(row.abs().argmax())
    row[largest] *= outlier
    others = torch.arange(len(row)) != largest
    rows = [
        (name, f"{bits:g}", f"{moved_by(row[others], to(row)[others]):.1%}") for name, (bits, to) in FOUR_BITS.items()
    ]
    return as_table(("format", "bits a weight, in all", "the other weights move by"), rows)


def four_bits_explorer(matrix: Matrix) -> Explorer:
    """Push the largest weight out, and see which format's neighbours pay."""
    return Explorer(
        lambda outlier: four_bits_table(matrix, outlier),
        outlier=choices("largest weight, multiplied by", list(OUTLIERS)),
    )


# ---------------------------------------------------------------- formats, on a data sheet

PAPER_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MODEL, GPUS = find_model("llama-3-70b"), 4
FP4_OVER_FP8 = 2.0
"""Peak of NVFP4 over FP8 where the chip has it (NVIDIA, HGX B200 datasheet: 9 and 4.5 PFLOP/s dense)."""


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored, and in what they're multiplied."""

    bits: float
    """Stored, scales included."""
    multiplied: str
    """"bfloat16", "fp8" or "fp4"."""


PAPER_FORMATS = {
    "bf16": WeightFormat(16, "bfloat16"),
    "FP8": WeightFormat(8, "fp8"),
    "W4A16 (int4, groups of 128)": WeightFormat(4 + 32 / 128, "bfloat16"),
    "NVFP4 (groups of 16)": WeightFormat(4 + 8 / 16, "fp4"),
}


def peak(on: Hardware, multiplied: str) -> float | None:
    """FLOP/s; None = the chip doesn't multiply in this format."""
    if multiplied == "fp4":
        return FP4_OVER_FP8 * on.flops["fp8"] if on.name.startswith("b200") else None
    return on.flops.get(multiplied)


def least_s(on: Hardware, kind: WeightFormat, batch: int) -> float | None:
    """Seconds of a decode step: its weights read once, or its products, whichever takes longer. No KV, no overhead."""
    flops = peak(on, kind.multiplied)
    weights = MODEL.layer_params + MODEL.head_params
    if flops is None:
        return None
    return max(weights * kind.bits / 8 / (GPUS * on.bandwidth), 2 * weights * batch / (GPUS * flops))


def draw_least_step(card: str, batch: int) -> Picture:
    """A curve for each format that the card multiplies."""
    on = find_hardware(card)
    kinds = {name: kind for name, kind in PAPER_FORMATS.items() if least_s(on, kind, 1) is not None}
    curves = [
        Curve(name, PAPER_BATCHES, [1e3 * (least_s(on, kind, b) or 0) for b in PAPER_BATCHES])
        for name, kind in kinds.items()
    ]
    here = ", ".join(f"{name} {1e3 * (least_s(on, kind, batch) or 0):.1f} ms" for name, kind in kinds.items())
    axes = Axis("batch, requests", log=True), Axis("weights' part of a decode step (no KV), ms at least", log=True)
    title = f"Llama-3 70B on {GPUS} {card}: when do fewer bits stop paying?"
    return draw_chart(title, curves, *axes, [Mark(f"batch {batch}", x=batch)], description=here)


def formats_explorer() -> Explorer:
    return Explorer(
        draw_least_step,
        card=buttons("card", ["h100-sxm", "b200"], "h100-sxm"),
        batch=choices("batch", list(PAPER_BATCHES), 64),
    )


# ---------------------------------------------------------------- phases, before and after

PAIR_LEFT, PAIR_ROW, PAIR_LETTER = 96, 46, 6.4
"""Room for a phase's name; height of a pair; about how wide a character of its label is."""


def draw_pairs(found: Mapping[str, PhasePair], scene: str, name: str) -> Picture:
    """Each phase twice: hollow as it was in 16 bits, filled as it is now, with the ratio of the two."""
    rows = [found[phase] for phase in (*PHASES, "E2E")]
    verdicts = [pair.told if pair.matters(found["E2E"]) else "too short to matter" for pair in rows]
    labels = [f"{seconds(pair.now)}, {verdict}" for pair, verdict in zip(rows, verdicts)]
    most = 1.02 * max(max(pair.was, pair.now) for pair in rows)
    scale = Scale(0, most, PAIR_LEFT, WIDTH - 12 - PAIR_LETTER * max(map(len, labels)))
    bottom = 20 + PAIR_ROW * len(rows)
    body = text(PAIR_LEFT, 10, f"hollow: {PLAIN}   filled: {name}", size=11, fill=SOFT)
    body += time_axis(scale, 16, bottom, "mean per request")
    for i, (pair, label) in enumerate(zip(rows, labels)):
        y = 22 + PAIR_ROW * i
        colour = PHASE_COLOURS.get(pair.phase, SOFT)
        fill = phase_fill(pair.phase) if pair.phase in PHASE_COLOURS else SOFT
        body += text(PAIR_LEFT - 8, y + 22, PHASE_LABELS.get(pair.phase, "E2E"), text_anchor="end", size=13)
        body += rect(
            PAIR_LEFT, y, max(scale(pair.was) - PAIR_LEFT, 1), 16, fill="none", stroke=colour, stroke_width=1.5
        )
        body += rect(PAIR_LEFT, y + 18, max(scale(pair.now) - PAIR_LEFT, 1), 16, fill=fill)
        end = max(scale(pair.was), scale(pair.now)) + 6
        body += text(end, y + 13, seconds(pair.was), size=11, fill=SOFT)
        small = not pair.matters(found["E2E"])
        colour = (
            ALARM
            if pair.is_slower and not small
            else INK
            if (pair.is_faster or pair.is_doubtful) and not small
            else SOFT
        )
        weight = "bold" if pair.is_clear and not small else "normal"
        body += text(end, y + 31, label, size=11, fill=colour, font_weight=weight)
    told = "; ".join(
        f"{PHASE_LABELS.get(p.phase, 'E2E')} {seconds(p.was)} to {seconds(p.now)} ({p.told})" for p in rows
    )
    return Picture(f"{scene}, {name}: which phase moves?", body, bottom + 34, description=f"{told}.")


class PhasesLab(Explorer):
    """Choose traffic and a format; both formats are run by turns, and their phases drawn in pairs."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.scenes = shelf, scenes(shelf.lab)
        self.found: dict[tuple[str, str], dict[str, PhasePair]] = {}
        """What has been measured, by scene and format."""
        super().__init__(
            self._compare,
            button="Run both, alternating",
            scene=buttons("traffic", list(self.scenes), "one slot, a queue"),
            name=buttons("format", shelf.usable(list(FORMATS)[1:])),
        )

    def show(self, scene: str, name: str) -> "PhasesLab":
        """Measure one now, and leave it in sight."""
        self.set(scene=scene, name=name).press()
        self.wait()
        if (scene, name) not in self.found:
            raise RuntimeError(f"the comparison of '{scene}' in {name} failed: {self.error}")
        return self

    def _compare(self, scene: str, name: str) -> Iterator[Picture]:
        if (scene, name) not in self.found:
            about = self.scenes[scene].workload
            told = f"Running '{scene}' {2 * self.shelf.rounds} times: {len(about.arrivals)} requests each …"
            yield Picture(told, "", 4, description="The first run also loads the format.")
        self.found[scene, name] = compare(self.shelf, self.scenes[scene], name)
        yield draw_pairs(self.found[scene, name], scene, name)


# ---------------------------------------------------------------- decode steps

RESTLESS = "Don't trust this: steps of the same kind took very different times. Run the sweep again."


def promises_table(found: Sweep, roof: Roof) -> Html:
    """One reader: what fewer bytes promise at this machine's bandwidth, and what a step took."""
    plain = found[PLAIN][0]
    return table_by_name(
        "batch 1",
        {name: dots[0] for name, dots in found.items()},
        {
            "bytes of a step": lambda dot: f"{dot.bytes / 1e6:.0f} MB",
            "time to read them, at least": lambda dot: seconds(roof.reading(dot.bytes)),
            "step, if only reading changed": lambda dot: seconds(
                max(plain.itl - roof.reading(plain.bytes - dot.bytes), 0.0)
            ),
            "step, measured": lambda dot: seconds(dot.itl) + (" (restless)" if dot.is_restless else ""),
            "speedup if a step only read weights": lambda dot: f"×{plain.bytes / dot.bytes:.2f}",
            "speedup, measured": lambda dot: f"×{plain.itl / dot.itl:.2f}",
        },
    )


def draw_speedups(found: Sweep) -> Picture:
    """Decode speed over 16 bits, by batch: above the line it pays, below it costs."""
    curves = []
    for name, dots in found.items():
        if name != PLAIN:
            ratios = [speedup(found, name, i) for i in range(len(dots))]
            curves.append(Curve(name, [dot.batch for dot in dots], ratios))
    told = "; ".join(
        f"{curve.name}: " + ", ".join(f"×{y:.2f} at batch {x}" for x, y in zip(curve.xs, curve.ys)) for curve in curves
    )
    top = max(1.1, *(1.1 * max(curve.ys) for curve in curves))
    return draw_chart(
        RESTLESS if is_restless(found) else "At which batch do fewer bits stop paying?",
        curves,
        Axis("batch, requests", log=True),
        Axis(f"decode speed, {PLAIN} = 1", low=0, high=top),
        [Mark(f"as fast as {PLAIN}", y=1)],
        description=told,
    )


def h100_table() -> Html:
    """This engine's kernels on an H100, an 8B's decode steps: measured there, and kept with the course."""
    steps = h100_steps()
    plain = steps[PLAIN]
    rows = [
        (
            name,
            *(f"{seconds(took)}, ×{plain[batch] / took:.2f}" for batch, took in found.items()),
        )
        for name, found in steps.items()
    ]
    heads = (f"batch {batch}" for batch in plain)
    return as_table(("our kernels, an 8B on an H100", *heads), rows)


# ---------------------------------------------------------------- the quality gate

RISES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
KLS = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SAMES = (0.99, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Limits to choose from: strictest first. The first two are upper limits, agreement's is a lower one."""


def floors_explorer(scores: Scores) -> Explorer:
    """Drag the limits; see who passes. They begin where `minillm bench quality` has them."""
    usual = QualityLimits()
    return Explorer(
        lambda rise, kl, same: gate_table(scores, QualityLimits(rise, kl, same)),
        rise=choices("perplexity may rise by", [(f"{x:.1%}", x) for x in RISES], usual.perplexity_rise),
        kl=choices("KL at most, nats", KLS, usual.kl),
        same=choices("same most likely token in", [(f"{x:.0%}", x) for x in SAMES], usual.agreement),
    )


def gate_table(scores: Scores, limits: QualityLimits) -> Html:
    """A row a format: decode speed of one reader, three measures, crossed where they break a limit, and the verdict."""
    rows = []
    for name in list(scores)[1:]:
        quality, cost, more = scores[name].quality, scores[name].cost, rise(scores, name)
        measures = (
            (with_minus(f"{more:+.2%}"), more <= limits.perplexity_rise),
            (f"{quality.kl:.4f}", quality.kl <= limits.kl),
            (f"{quality.agreement:.1%}", quality.agreement >= limits.agreement),
        )
        told = (words if is_kept else f"✗ {words}" for words, is_kept in measures)
        speed = f"×{cost.tokens_per_s / scores[PLAIN].cost.tokens_per_s:.2f}"
        rows.append((name, speed, *told, conclusion(verdict(scores, name, limits))))
    heads = ("decode speed, batch 1", "perplexity rises by", "KL, nats a token", "same most likely token", "verdict")
    return as_table(("format", *heads), rows)


def formats_table(shelf: Shelf) -> Html:
    """Loads the model in every format, and says what each keeps."""
    rows, plain = [], None
    for name, each in FORMATS.items():
        if reason := shelf.why_not(name):
            rows.append((name, f"not on this device: {reason}", "", "", "", ""))
            continue
        costs = Costs.of(shelf.engine(name)).bytes
        plain = plain or costs
        weights = f"{costs.weights / 1e6:.1f} MB", f"{costs.weights / plain.weights:.0%}"
        kv = f"{number(costs.kv_per_token / 1e3)} kB", f"{costs.kv_per_token / plain.kv_per_token:.0%}"
        rows.append((name, each.rounded, *weights, *kv))
    return as_table(("format", "what is rounded", "weights", "", "KV of a token", ""), rows)
