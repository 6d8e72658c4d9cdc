"""Real steps of the engine, and what each had to read and to multiply."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from course.lab.display import Html, table_by_name
from course.lab.lab import Lab
from course.lab.run import Run, percentile
from course.lab.style import number, seconds
from course.lab.workloads import Workload
from course.lessons.lesson_06 import traffic
from course.lessons.lesson_06.roofline import Roof
from course.lessons.lesson_06.shapes import Shape
from minillm.core.brief import brief
from minillm.core.timeline import StepRecord

BATCHES, SHORT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128), (1, 4, 16, 64)
RESTLESS = 1.6
"""A machine whose slow steps (p90) take this many times its quick ones (p10) is busy with something else, too."""


@dataclass(frozen=True)
class Dot:
    """Decode steps of one kind: `batch` requests, and nothing else in the step."""

    shape: Shape
    batch: int
    context: float
    """Tokens of one request, the new one included; the mean over requests and steps."""
    gaps: tuple[float, ...]
    """Seconds from the end of a step to the end of the next: what each reader waited, their ITL."""

    __repr__ = brief

    @classmethod
    def of(cls, shape: Shape, run: Run) -> "Dot":
        """From a run of `side_by_side` traffic.

        Raises:
            LookupError: it was stopped, or never had all of its requests decode at once.
        """
        batch = len(run.rows)
        done = {view.request_id: view.num_cached_tokens for view in run.views}
        gaps, contexts = [], []
        for before, step in itertools.pairwise((None, *run.steps)):
            for share in step.shares:
                done[share.request_id] += share.num_tokens
            if before is not None and _is_steady(before, batch) and _is_steady(step, batch):
                gaps.append(step.end - before.end)
                contexts.append(statistics.fmean(done[share.request_id] for share in step.shares))
        if not gaps:
            raise LookupError(f"no two steps in a row decoded all {batch} requests: was the run stopped?")
        return cls(shape, batch, statistics.fmean(contexts), tuple(gaps))

    @property
    def itl(self) -> float:
        """Median, seconds."""
        return statistics.median(self.gaps)

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.itl

    @property
    def kv_bytes(self) -> float:
        return self.shape.kv_bytes(self.batch, self.context)

    @property
    def bytes(self) -> float:
        return self.shape.bytes(self.batch, self.context)

    @property
    def flops(self) -> float:
        return self.shape.flops(self.batch, self.context)

    @property
    def intensity(self) -> float:
        """FLOP for each byte."""
        return self.flops / self.bytes

    @property
    def is_restless(self) -> bool:
        """Something else was running, too: do not trust a small difference."""
        return len(self.gaps) > 2 and percentile(self.gaps, 90) > RESTLESS * percentile(self.gaps, 10)

    def mbu(self, roof: Roof) -> float:
        """Model bandwidth utilisation: the seconds that reading takes at least, over the seconds that the step took."""
        return roof.reading(self.bytes) / self.itl

    def mfu(self, roof: Roof) -> float:
        """Model FLOPs utilisation: the same for multiplying."""
        return roof.multiplying(self.flops) / self.itl

    def rest(self, roof: Roof) -> float:
        """Seconds that are neither: what the step took beyond reading and multiplying, one after the other."""
        return max(self.itl - roof.reading(self.bytes) - roof.multiplying(self.flops), 0.0)

    @property
    def called(self) -> str:
        return f"batch {self.batch}, context {self.context:.0f}"


def _is_steady(step: StepRecord, batch: int) -> bool:
    return len(step.shares) == batch and step.num_prefill_tokens == 0


def dots(lab: Lab, runs: Sequence[Run]) -> list[Dot]:
    """One dot for each workload, by batch, then context; runs of the same one are pooled."""
    shape = Shape.of_lab(lab)
    kinds: dict[str, list[Dot]] = {}
    for run in runs:
        kinds.setdefault(run.workload, []).append(Dot.of(shape, run))
    return sorted((_pooled(same) for same in kinds.values()), key=lambda dot: (dot.batch, dot.context))


def _pooled(same: Sequence[Dot]) -> Dot:
    gaps = tuple(gap for dot in same for gap in dot.gaps)
    return Dot(same[0].shape, same[0].batch, statistics.fmean(dot.context for dot in same), gaps)


def largest_within(dots: Sequence[Dot], slo: float) -> float:
    """The batch at which ITL reaches `slo`, between measured ones by a straight line over logarithms."""
    if dots[0].itl > slo:
        return 0.0
    for left, right in itertools.pairwise(dots):
        if right.itl > slo:
            way = math.log(slo / left.itl) / math.log(right.itl / left.itl)
            return left.batch * (right.batch / left.batch) ** way
    return float(dots[-1].batch)


def measure(lab: Lab, batch: int, context: int = 0) -> Dot:
    """One dot: a run of the real engine. `context`: about so many tokens in each prompt; 0 = a few words."""
    workload = traffic.side_by_side(batch, context, num_steps(lab, batch))
    return dots(lab, [lab.run(workload, **traffic.room(workload))])[0]


def batches(lab: Lab, some: Sequence[int] = ()) -> list[Workload]:
    """Short contexts, batch by batch, round after round: a disturbance hits all batches alike."""
    some = some or (BATCHES if lab.scale == 1 else SHORT_BATCHES)
    return [traffic.side_by_side(batch, 0, num_steps(lab, batch)) for batch in some] * rounds(lab)


def longer_and_longer(lab: Lab) -> list[Workload]:
    """The same batch over longer and longer contexts: the weights stay, the KV grows.

    The longest makes the KV as many bytes as the weights, as far as the window and patience reach. The shortest comes
    first and last: if the machine has become slower or faster in between, its pooled steps show it.
    """
    batch, longest = (8, 1500) if lab.scale == 1 else (4, 320)
    window = lab.config().max_model_len * 3 // 4
    longest = min(longest, round(Shape.of_lab(lab).crossover_tokens / batch), window)
    wanted = (0, longest // 2, longest, 0) if lab.scale == 1 else (0, longest, 0)
    return [traffic.side_by_side(batch, context, num_steps(lab, batch)) for context in wanted]


def rounds(lab: Lab) -> int:
    """How often each kind of step is measured."""
    return 2 if lab.scale == 1 else 1


def num_steps(lab: Lab, batch: int) -> int:
    """Tokens that each request writes: many where a step is short."""
    return (24 if batch <= 8 else 8) if lab.scale == 1 else 7


def dots_table(dots: Sequence[Dot], roof: Roof) -> Html:
    """How much of the machine each step used."""
    columns = {
        "weights, KV": lambda dot: f"{dot.shape.weight_bytes / 1e6:.0f} MB, {number(dot.kv_bytes / 1e6)} MB",
        "FLOP per byte": lambda dot: number(dot.intensity),
        "ITL": lambda dot: seconds(dot.itl),
        "tokens/s": lambda dot: number(dot.tokens_per_s),
        "MBU": lambda dot: f"{dot.mbu(roof):.0%}",
        "MFU": lambda dot: f"{dot.mfu(roof):.0%}",
        "neither": lambda dot: f"{dot.rest(roof) / dot.itl:.0%}",
    }
    return table_by_name("batch", {str(dot.batch): dot for dot in dots}, columns)
