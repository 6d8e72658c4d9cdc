"""A change of configuration, tried on one replica: how soon does its SLO tell, and how soon is it undone?"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.predict import Outcome
from course.lab.style import number, seconds
from course.lab.svg import Picture
from course.lab.waiting import with_progress
from course.lessons.lesson_11 import fleet
from minillm.core.brief import brief

CHANGES: dict[str, dict[str, Any]] = {
    "no CUDA graphs": {"stack": fleet.STACKS[1]},
    "max_num_seqs 128 → 16": {"max_num_seqs": 16},
    "prompt template doubles": {"prompt": 3000},
    "nothing (an A/A test)": {},
}
UNDO = {"a flag, read at run time": 5.0, "a redeploy, with a cold start": 120.0}
"""Seconds from the decision to the old configuration."""
RATE, WINDOW, LIMIT = 3.0, 50, 0.2
COUNT, REHEARSALS = 400, 6


def watched(change: str, rate: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What monitoring learns of a replica from the moment of the change on, in order.

    Returns:
        The moment at which each request is known to be late or not; whether it's late; when it was sent. Seconds.
    """
    fields = {"max_num_seqs": 128, **CHANGES[change]}
    traffic = fleet.asking(fields.pop("prompt", 1500), 150)
    run = fleet.served(traffic, rate, COUNT, seed=seed, **fields)
    is_late, limit = ~run.met(fleet.LIMITS), fleet.LIMITS.ttft
    no_token = ~(run.ttft <= limit)  # known as soon as the limit passes, not when the answer ends
    moment = np.where(no_token, run.sent + limit, run.sent + run.e2e)
    order = np.argsort(moment)
    return moment[order], is_late[order], run.sent[order]


@dataclass(frozen=True)
class Rehearsal:
    """One deploy, watched and undone. Seconds since the deploy; inf = never in this run."""

    moments: np.ndarray
    share: np.ndarray
    """Late, of the last so many requests at each moment."""
    detected: float
    undone: float
    harmed: int
    """Late requests that were sent before the change was undone."""

    __repr__ = brief


def rehearse(change: str, rate: float, window: int, limit: float, undo_s: float, seed: int = 0) -> Rehearsal:
    """Roll back as soon as more than `limit` of the last `window` requests were late."""
    moments, is_late, sent = watched(change, rate, seed)
    window = min(window, len(moments))
    total = np.concatenate([[0], np.cumsum(is_late)])
    share = (total[window:] - total[:-window]) / window
    over = np.flatnonzero(share > limit)
    detected = float(moments[window - 1 :][over[0]]) if len(over) else math.inf
    undone = detected + undo_s
    return Rehearsal(moments[window - 1 :], share, detected, undone, int((is_late & (sent < undone)).sum()))


def draw(change: str, rate: float, window: int, limit: float, undo: str) -> Picture:
    """The canary's share of late requests beside the other replicas', with the rule that rolls it back."""
    found = rehearse(change, rate, window, limit, UNDO[undo])
    control = rehearse("nothing (an A/A test)", rate, window, limit, 0.0)
    curves = [
        Curve("canary", list(found.moments), [100 * each for each in found.share]),
        Curve("the other replicas", list(control.moments), [100 * each for each in control.share], "dashes"),
    ]
    marks = [Mark(f"roll back above {limit:.0%}", y=100 * limit)]
    words = "not rolled back in this run"
    if math.isfinite(found.detected):
        marks.append(Mark("rolled back", x=found.undone))
        words = f"detected after {seconds(found.detected)}, undone after {seconds(found.undone)}"
    end = max(found.moments[-1], found.undone if math.isfinite(found.undone) else 0)
    return draw_chart(
        f"{change}: {words}; {found.harmed} late requests",
        curves,
        Axis("time since the deploy, seconds", low=0, high=1.02 * end),
        Axis(f"late, % of the last {window} requests", low=0, high=105),
        marks,
        description=words,
    )


def explorer() -> Explorer:
    """The change, the canary's traffic, the rule and the way back."""
    return Explorer(
        draw,
        slow=True,
        change=buttons("the change", list(CHANGES)),
        rate=slider("requests/s at the canary", 0.5, 5.0, RATE, 0.5),
        window=choices("the rule's window, requests", (10, 20, 50, 100, 200), WINDOW),
        limit=choices("roll back above this share late", (0.02, 0.05, 0.1, 0.2, 0.5), LIMIT),
        undo=buttons("how it's undone", list(UNDO)),
    )


def until_undone() -> Outcome:
    """Seconds from a deploy without CUDA graphs until it is rolled back: the answer to a prediction."""
    found = rehearse(next(iter(CHANGES)), RATE, WINDOW, LIMIT, UNDO["a flag, read at run time"])
    told = (
        f"detected after {seconds(found.detected)}, undone after {seconds(found.undone)}; {found.harmed} late requests"
    )
    return Outcome(found.undone, told)


def rules_table(rate: float = RATE) -> Html:
    """Three rules against every change, rehearsed a few times each: how often they fire, and when."""
    rules = ((10, 0.1), (WINDOW, LIMIT), (200, 0.05))
    rows = []
    for change in with_progress(CHANGES, "rehearsing deploys"):
        row = [change]
        for window, limit in rules:
            found = [rehearse(change, rate, window, limit, 0.0, seed) for seed in range(REHEARSALS)]
            fired = [each.detected for each in found if math.isfinite(each.detected)]
            when = f", after {number(float(np.median(fired)))} s" if fired else ""
            row.append(f"{len(fired)} of {REHEARSALS}{when}")
        rows.append(tuple(row))
    heads = (f"more than {limit:.0%} of the last {window}" for window, limit in rules)
    return as_table(("rolled back by the rule", *heads), rows)
