"""A table of techniques, each with one factor; and the same table measured here, once for each of four workloads.

Every factor is a ratio of mean times on the real engine: without the technique over with it. Above 1 it helps.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.prompt_pruning import prune_context
from course.lab.run import Run
from course.lab.texts import CHAT_QUESTIONS, MANUAL, MANUAL_QUESTIONS
from course.lab.workloads import LabWorkload, PromptArrival
from minillm.core.brief import brief

CLAIMED = {"static batching": 1.5, "continuous batching": 3.0, "streaming": 2.0, "speculation": 2.3, "compression": 1.5}
"""What the table says."""
RATIOS = {
    "static batching": "E2E, one at a time / in closed batches",
    "continuous batching": "E2E, one at a time / in continuous batches",
    "streaming": "first text without streaming / with it",
    "speculation": "E2E without drafts / with n-gram drafts",
    "compression": "E2E of the whole context / of half of it",
}
"""What each factor is here. The table does not say what it was there."""
CROWD, LONELY, PAGES, COPIES = "a crowd", "one at a time", "long documents", "repeating a text"
SLOTS, KEEP, COUNT = 4, 0.5, 4
"""Slots of either way of batching; the share of a context that compression keeps; requests of a workload."""
BASE = {"enable_prefix_caching": False, "max_num_seqs": SLOTS}
WAYS: dict[str, dict[str, object]] = {
    "none": {**BASE, "batching": "none"},
    "static batching": {**BASE, "batching": "static"},
    "continuous batching": BASE,
    "speculation": {**BASE, "speculative": {"method": "ngram"}},
}

CONTROLS = {(way, alone) for way in ("static batching", "continuous batching") for alone in (LONELY, COPIES)}
"""There's no other request to share a batch with, so every way of batching does the very same work."""
NOISY = 1.3
"""Where equal work differs by more than this factor, the rest says nothing either."""


@dataclass(frozen=True)
class TechniqueFactor:
    """One technique on one workload."""

    technique: str
    workload: str
    factors: tuple[float, ...]
    """One for each repeat."""

    __repr__ = brief

    @property
    def factor(self) -> float:
        return median(self.factors)


def workloads(lab: Lab) -> dict[str, tuple[LabWorkload, LabWorkload | None]]:
    """By name: the requests, and the same with compressed contexts, where there is a context."""
    whole = lab.scale == 1
    rng = random.Random(22)
    answers = [rng.randint(8, 48) if whole else rng.randint(3, 12) for _ in range(2 * COUNT if whole else COUNT)]
    crowd = [PromptArrival(0.0, question, answer) for question, answer in zip(CHAT_QUESTIONS, answers)]
    lonely = [PromptArrival(0.0, question, 32 if whole else 8) for question in CHAT_QUESTIONS[: 2 if whole else 1]]
    page = " ".join(MANUAL[: 6 if whole else 2])
    few = 4 if whole else 2
    asked = MANUAL_QUESTIONS[: COUNT if whole else 2]
    pages = [PromptArrival(0.0, _about(page, question), few) for question in asked]
    halves = [PromptArrival(0.0, _about(prune_context(page, question, KEEP).text, question), few) for question in asked]
    text = MANUAL[3] if whole else MANUAL[3][:100]
    copies = [PromptArrival(0.0, f"{text}\n\n{text}\n\n{text[:40]}", 48 if whole else 12)] * (2 if whole else 1)
    return {
        CROWD: (_together(CROWD, crowd), None),
        LONELY: (_together(LONELY, lonely, 1), None),
        PAGES: (_together(PAGES, pages), _together(f"{PAGES}, halved", halves)),
        COPIES: (_together(COPIES, copies, 1), None),
    }


def _about(context: str, question: str) -> str:
    return f"{context}\n\nQuestion: {question}\nAnswer:"


def _together(name: str, arrivals: Sequence[PromptArrival], in_flight: int | None = None) -> LabWorkload:
    return LabWorkload(name, "", tuple(arrivals), in_flight)


def measure(lab: Lab, rounds: int | None = None) -> list[TechniqueFactor]:
    """Every technique on every workload that it can be tried on, in turns.

    Args:
        rounds: repeats; None = three, one in the lab's short form.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds or (3 if lab.scale == 1 else 1)):
        for name, (traffic, compressed) in workloads(lab).items():
            runs = {way: lab.run(traffic, **fields) for way, fields in WAYS.items()}
            halved = lab.run(compressed, **BASE) if compressed else None
            for technique, factor in factors_of(runs, halved).items():
                found.setdefault((technique, name), []).append(factor)
    order = list(CLAIMED)
    cells = [TechniqueFactor(technique, name, tuple(factors)) for (technique, name), factors in found.items()]
    return sorted(cells, key=lambda cell: order.index(cell.technique))


def factors_of(runs: Mapping[str, Run], halved: Run | None) -> dict[str, float]:
    """By technique, from the runs of one workload by way, and the one with compressed contexts."""
    time = {way: _mean(run.e2e) for way, run in runs.items()}
    usual = runs["continuous batching"]
    found = {way: time["none"] / time[way] for way in ("static batching", "continuous batching")}
    found["streaming"] = time["continuous batching"] / _mean(usual.ttft)
    found["speculation"] = time["continuous batching"] / time["speculation"]
    if halved is not None:
        found["compression"] = time["continuous batching"] / _mean(halved.e2e)
    else:
        found["compression"] = 1.0  # no context, nothing to cut: the very same requests
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def by_technique(cells: Sequence[TechniqueFactor]) -> dict[str, list[TechniqueFactor]]:
    """In the table's order."""
    return {technique: list(group) for technique, group in groupby(cells, key=lambda cell: cell.technique)}


def techniques_table(cells: Sequence[TechniqueFactor]) -> Html:
    """What the table claims, what was found on each workload, and what each figure is a ratio of."""
    groups = by_technique(cells)
    names = [cell.workload for cell in next(iter(groups.values()))]
    rows = [
        (technique, f"{CLAIMED[technique]:g}", *(f"{cell.factor:.2f}" for cell in group), RATIOS[technique])
        for technique, group in groups.items()
    ]
    return as_table(("technique", "claimed", *names, "the ratio here"), rows)


def spread(cells: Sequence[TechniqueFactor]) -> float:
    """The largest factor of one technique over its smallest. CONTROLS count as 1: else noise would decide."""
    factors = [1.0 if (cell.technique, cell.workload) in CONTROLS else cell.factor for cell in cells]
    return max(factors) / min(factors)


def noise(cells: Sequence[TechniqueFactor]) -> float:
    """How far the largest of CONTROLS is from 1, as a factor: those would be 1 on a machine that is never disturbed."""
    controls = [cell.factor for cell in cells if (cell.technique, cell.workload) in CONTROLS]
    return max(max(factor, 1 / factor) for factor in controls)
