"""The same traffic in two formats: each phase before and after, and whether the difference can be told from noise."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from course.lab.explorer import Explorer, buttons
from course.lab.noise import CEILING, ratio_of
from course.lab.predict import Outcome
from course.lab.run import Run
from course.lab.style import ALARM, PHASE_COLOURS, PHASE_LABELS, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, phase_fill, rect, text, time_axis
from course.lessons.lesson_09 import steps
from course.lessons.lesson_09.formats import FORMATS, PLAIN, Shelf
from course.lessons.lesson_09.traffic import Scene, scenes
from minillm.core.timeline import PHASES

TELLING = 0.07
"""A change by less than this share is called no change, however steady the machine."""
MATTERS = 0.02
"""A phase with a smaller share of E2E can do what it likes."""
LEFT, RIGHT, ROW = 96, 176, 46
BOTH = {
    (True, True): "both get faster",
    (True, False): "the full batch gets faster, the long prompt does not",
    (False, True): "the long prompt gets faster, the full batch does not",
    (False, False): "neither gets faster",
}
"""By whether the full batch, and whether the long prompt, was answered sooner."""


@dataclass(frozen=True)
class Pair:
    """One phase (or their sum, "E2E") before and after: mean seconds per request, a number for each run."""

    phase: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    least: float = 0.0
    """The smallest ratio that the bytes can explain; less is the machine's doing."""

    @property
    def was(self) -> float:
        return statistics.median(self.before)

    @property
    def now(self) -> float:
        return statistics.median(self.after)

    @property
    def ratio(self) -> float:
        return self.now / self.was if self.was > 0 else 1.0

    @property
    def is_clear(self) -> bool:
        """Every run of one kind beat every run of the other, and not by a hair."""
        apart = max(self.after) < min(self.before) or max(self.before) < min(self.after)
        return apart and abs(self.ratio - 1) > TELLING and not self.is_too_good

    @property
    def is_too_good(self) -> bool:
        return self.ratio < self.least

    @property
    def is_faster(self) -> bool:
        return self.is_clear and self.ratio < 1

    @property
    def is_slower(self) -> bool:
        return self.is_clear and self.ratio > 1

    @property
    def is_doubtful(self) -> bool:
        """The runs overlap, but their medians differ by too much to be called equal."""
        return not self.is_clear and not self.is_too_good and ratio_of(self.ratio, 1.0) > CEILING

    @property
    def told(self) -> str:
        """The ratio of the times; a tilde where the runs do not tell them apart."""
        if self.is_too_good:
            return f"~ ×{self.ratio:.2f}: more than the bytes allow, run it again"
        if self.is_doubtful:
            return f"~ ×{self.ratio:.2f}: not enough runs to tell"
        return f"time ×{self.ratio:.2f}" if self.is_clear else f"~ ×{self.ratio:.2f}: no clear difference"


def pairs(before: Sequence[Run], after: Sequence[Run], least: float = 0.0) -> dict[str, Pair]:
    """By phase, and "E2E" for their sum.

    Args:
        least: the smallest ratio of decode that the bytes can explain. Other phases may gain more: a queue can vanish.
    """
    was, now = ([run.mean_phases() for run in runs] for runs in (before, after))
    limits = {"decode": least, "prefill": least}
    found = {p: Pair(p, tuple(m[p] for m in was), tuple(m[p] for m in now), limits.get(p, 0.0)) for p in PHASES}
    sums = (tuple(sum(m.values()) for m in means) for means in (was, now))
    return {**found, "E2E": Pair("E2E", *sums)}


def compare(shelf: Shelf, scene: Scene, name: str = "int8") -> dict[str, Pair]:
    """The scene in 16 bits and in a format, by turns."""
    runs = shelf.turns(scene.workload, (PLAIN, name), **scene.fields)
    only_weights = not FORMATS[name].kv
    return pairs(runs[PLAIN], runs[name], steps.least_ratio(shelf, name) if only_weights else 0.0)


def who_gained(batch: Mapping[str, Pair], prompt: Mapping[str, Pair]) -> Outcome | str:
    """Whether a full batch and a long prompt are answered sooner; a sentence, if the runs cannot tell."""
    told = "; ".join(
        f"{name}: E2E {seconds(found['E2E'].was)} to {seconds(found['E2E'].now)}, {found['E2E'].told}"
        for name, found in (("full batch", batch), ("long prompt", prompt))
    )
    if batch["E2E"].is_doubtful or prompt["E2E"].is_doubtful:
        return told
    return Outcome(BOTH[batch["E2E"].is_faster, prompt["E2E"].is_faster], told)


def draw_pairs(found: Mapping[str, Pair], scene: str, name: str) -> Picture:
    """Each phase twice: hollow as it was in 16 bits, filled as it is now, with the ratio of the two."""
    rows = [found[phase] for phase in (*PHASES, "E2E")]
    scale = Scale(0, 1.02 * max(max(pair.was, pair.now) for pair in rows), LEFT, WIDTH - RIGHT)
    bottom = 20 + ROW * len(rows)
    body = text(LEFT, 10, f"hollow: {PLAIN}   filled: {name}", size=11, fill=SOFT)
    body += time_axis(scale, 16, bottom, "mean per request")
    for i, pair in enumerate(rows):
        y = 22 + ROW * i
        colour = PHASE_COLOURS.get(pair.phase, SOFT)
        fill = phase_fill(pair.phase) if pair.phase in PHASE_COLOURS else SOFT
        body += text(LEFT - 8, y + 22, PHASE_LABELS.get(pair.phase, "E2E"), text_anchor="end", size=13)
        body += rect(LEFT, y, max(scale(pair.was) - LEFT, 1), 16, fill="none", stroke=colour, stroke_width=1.5)
        body += rect(LEFT, y + 18, max(scale(pair.now) - LEFT, 1), 16, fill=fill)
        end = max(scale(pair.was), scale(pair.now)) + 6
        body += text(end, y + 13, seconds(pair.was), size=11, fill=SOFT)
        small = pair.was + pair.now < 2 * MATTERS * found["E2E"].was
        colour = (
            ALARM
            if pair.is_slower and not small
            else INK
            if (pair.is_faster or pair.is_doubtful) and not small
            else SOFT
        )
        verdict = "too short to matter" if small else pair.told
        weight = "bold" if pair.is_clear and not small else "normal"
        body += text(end, y + 31, f"{seconds(pair.now)}, {verdict}", size=11, fill=colour, font_weight=weight)
    told = "; ".join(
        f"{PHASE_LABELS.get(p.phase, 'E2E')} {seconds(p.was)} to {seconds(p.now)} ({p.told})" for p in rows
    )
    return Picture(f"{scene}, {name}: which phase moves?", body, bottom + 34, description=f"{told}.")


class PhasesLab(Explorer):
    """Choose traffic and a format; both formats are run by turns, and their phases drawn in pairs."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.scenes = shelf, scenes(shelf.lab)
        self.found: dict[tuple[str, str], dict[str, Pair]] = {}
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
