"""The same requests served in several ways: how fast, how many guesses passed, and whether the words are the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.style import ALARM, WIDTH, number, seconds
from course.lab.svg import FAINT, SOFT, Picture, line, rect, swatches, text
from course.lab.workloads import Workload
from course.lessons.lesson_08 import traffic
from course.lessons.lesson_08.tiles import OWN, PASSED
from minillm.core.brief import brief
from minillm.observe.speculation import SpeculationSummary

WITHOUT, ALWAYS = "without", "always"
NOISE = 1.1
"""Factors nearer to 1 are not told from noise."""
ROW, LANE, LEFT = 6, 64, 150


@dataclass(frozen=True)
class Served:
    """One workload served one way, in one or several runs."""

    workload: str
    way: str
    runs: tuple[Run, ...]

    __repr__ = brief

    @property
    def decode_s(self) -> float:
        """Seconds of decoding per token after the first; the best run, for whatever else goes on can only slow it."""
        return min(self.each_decode_s)

    @property
    def each_decode_s(self) -> list[float]:
        """The same of every run."""
        return [sum(v.borders[4] - v.borders[3] for v in r.finished) / _decoded(r) for r in self.runs]

    @property
    def e2e_s(self) -> float:
        """Mean seconds of a request, prompt included; the best run."""
        return min(self.each_e2e_s)

    @property
    def each_e2e_s(self) -> list[float]:
        """The same of every run."""
        return [sum(run.e2e) / len(run.e2e) for run in self.runs]

    @property
    def drafts(self) -> SpeculationSummary:
        return SpeculationSummary.of_steps(self.runs[-1].steps)

    @property
    def acceptance(self) -> float | None:
        """Of the guesses that were put to the test, the share that passed: one after a failed guess is not."""
        shares = [share for step in self.runs[-1].steps for share in step.shares if share.num_drafts]
        tried = sum(min(share.num_accepted + 1, share.num_drafts) for share in shares)
        return sum(share.num_accepted for share in shares) / tried if tried else None

    @property
    def drafting_share(self) -> float:
        """Of the turns that requests had in decoding, those with a draft."""
        shares = [share for step in self.runs[-1].steps for share in step.shares if not share.is_prefill]
        return sum(share.num_drafts > 0 for share in shares) / max(len(shares), 1)

    @property
    def texts(self) -> list[str]:
        return [view.text for view in self.runs[-1].views]


def _decoded(run: Run) -> int:
    return max(sum(view.num_output_tokens - 1 for view in run.finished), 1)


def compare(
    lab: Lab, workloads: Sequence[Workload], ways: Mapping[str, dict[str, Any]], rounds: int | None = None
) -> list[Served]:
    """Every workload every way, by turns, round after round.

    Args:
        rounds: None = as many as suit the lab's scale.
    """
    runs: dict[tuple[str, str], list[Run]] = {(w.name, way): [] for w in workloads for way in ways}
    for i in range(rounds or traffic.rounds(lab)):
        for way in list(ways) if i % 2 == 0 else reversed(ways):
            for each in workloads:
                runs[each.name, way].append(traffic.play(lab, each, ways[way]))
    return [Served(name, way, tuple(done)) for (name, way), done in runs.items()]


def faster(one: Served, base: Served) -> float:
    """Speed of decoding over that of the base."""
    return base.decode_s / one.decode_s


def is_apart(one: Served, other: Served) -> bool:
    """Every run of the one decoded faster than every run of the other."""
    a, b = one.each_decode_s, other.each_decode_s
    return max(a) < min(b) or max(b) < min(a)


def base_of(one: Served, every: Sequence[Served]) -> Served:
    return next(each for each in every if each.workload == one.workload and each.way == WITHOUT)


def served_table(every: Sequence[Served]) -> Html:
    """For each workload and way: what passed, and what it gained."""
    columns: dict[str, Callable[[Served], str]] = {
        "requests": lambda one: one.workload,
        "drafts": lambda one: one.way,
        "passed": lambda one: _or_dash(one.acceptance, "{:.0%}".format),
        "tokens per verification": lambda one: _or_dash(one.drafts.emitted_per_verify, number),
        "steps with a draft": lambda one: f"{one.drafting_share:.0%}",
        "time per token": lambda one: seconds(one.decode_s),
        "speed": lambda one: "" if one.way == WITHOUT else f"×{faster(one, base_of(one, every)):.2f}",
        "E2E": lambda one: seconds(one.e2e_s),
    }
    return as_table(tuple(columns), [tuple(cell(one) for cell in columns.values()) for one in every])


def _or_dash(value: float | None, written: Callable[[float], str]) -> str:
    return "–" if value is None else written(value)


def draw_strips(every: Sequence[Served]) -> Picture:
    """Every step of some runs as a column: what passed, what failed, and where the gates drafted nothing."""
    speculating = [one for one in every if one.way != WITHOUT]
    fills = {"the model's own": OWN, "guesses that passed": PASSED, "that did not": ALARM}
    body, most = swatches(LEFT, 18, fills), max(_decode_steps(one) for one in speculating)
    wide = (WIDTH - LEFT - 12) / max(most, 1)
    for i, one in enumerate(speculating):
        floor = 44 + LANE * (i + 1) - 8
        kind = one.workload.split(",")[0]
        body += text(4, floor - 22, kind, size=12, font_weight="bold")
        body += text(4, floor - 7, one.way, size=11, fill=SOFT) + line(LEFT, floor, WIDTH - 12, floor, stroke=FAINT)
        for j, (passed, failed) in enumerate(_columns(one)):
            x = LEFT + j * wide
            body += rect(x, floor - ROW, max(wide - 0.6, 0.6), ROW, fill=OWN)
            body += rect(x, floor - ROW * (1 + passed), max(wide - 0.6, 0.6), ROW * passed, fill=PASSED)
            top = floor - ROW * (1 + passed + failed)
            body += rect(x, top, max(wide - 0.6, 0.6), ROW * failed, fill=ALARM) if failed else ""
    told = "; ".join(
        f"{one.workload}, {one.way}: {_decode_steps(one)} steps, drafts in {one.drafting_share:.0%}, "
        f"passed {one.acceptance or 0:.0%}"
        for one in speculating
    )
    height = 44 + LANE * len(speculating) + 20
    body += text(LEFT, height - 8, "steps, in order; the shorter a strip, the sooner done", size=11, fill=SOFT)
    return Picture("Where did drafts pass, and where did the gates stop them?", body, height, description=told)


def _columns(one: Served) -> list[tuple[int, int]]:
    """For each turn of a request in decoding: guesses that passed, and that did not."""
    return [
        (share.num_accepted, share.num_drafts - share.num_accepted)
        for step in one.runs[-1].steps
        for share in step.shares
        if not share.is_prefill
    ]


def _decode_steps(one: Served) -> int:
    return len(_columns(one))
