"""README's picture of the dashboard: what it shows, and what speaks against showing it.

Prefix caching is switched on where every prompt begins alike. `python -m tests.course.browser.record_hero` records the
picture, and these figures beside it.
"""

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from course.lab.dashboard import Dashboard
from course.lab.noise import CEILING, figures, ratio_of
from course.lab.summary import FELT, SAME, Comparison
from minillm.bench.report import describe_cpu
from minillm.core.timeline import PHASES

FOLDER = Path(__file__).parents[1] / "images"
PICTURE, RECORD = "dashboard.png", "dashboard.json"
TRAFFIC, CHANGE = "rag", {"enable_prefix_caching": (False, True)}
FALLS = ("prefill", "TTFT p50", "E2E p50")
"""What prefix caching is for, and what a user feels of it."""
STEADY = (*FELT, "tokens/s")
"""Where the noise must be known: a phase of microseconds may scatter more."""


class HeroFigure(BaseModel):
    """One figure of the picture."""

    was: float
    now: float
    told: str
    """What stands beside it: '−85%', '≈', or nothing."""


class Hero(BaseModel):
    """What the picture shows."""

    date: str
    device: str
    traffic: str
    changed: dict[str, tuple[Any, Any]]
    repeats: int
    """How many there were, of the figure that has the most: from them the noise is known."""
    noise: dict[str, float | None]
    """The ratio that two equal runs may differ by, for each figure."""
    figures: dict[str, HeroFigure]
    """Seconds, or tokens a second."""
    sha256: str = ""
    """The hash of the picture."""

    @classmethod
    def of(cls, dashboard: Dashboard) -> "Hero":
        compared = dashboard.compared()
        shown = _shown(compared)
        return cls(
            date=datetime.now(UTC).date().isoformat(),
            device=compared.run.simulated_on or f"{describe_cpu()[0]}, {os.cpu_count()} cores",
            traffic=compared.run.workload,
            changed=compared.changed,
            repeats=compared.noise.num_repeats,
            noise={name: compared.noise.limit(name) for name in shown},
            figures=shown,
        )

    def problems(self) -> list[str]:
        """Why this picture should not be shown; nothing, if it may be."""
        found = []
        if (self.traffic, self.changed) != (TRAFFIC, CHANGE):
            found.append(f"it shows {self.traffic}, changed: {self.changed}")
        for name, each in self.figures.items():
            if each.told == SAME and ratio_of(each.was, each.now) > CEILING:
                found.append(f"{name} went from {each.was:.3g} to {each.now:.3g} and is called {SAME}")
            if each.told.endswith("?") or (name != "tokens/s" and each.told.startswith(("+", "×"))):
                found.append(f"{name} {each.told}: was this machine busy?")
        for name in STEADY:
            if (limit := self.noise.get(name)) is None:
                found.append(f"{name} was never repeated: its noise is not known")
            elif limit > CEILING:
                found.append(f"{name} differed by up to ×{limit:.2f} between equal runs: this machine was busy")
        for name in FALLS:
            if not self.figures[name].told.startswith("−"):
                found.append(f"{name} did not fall: {self.figures[name].told or 'no change'}")
        return found

    def shows(self, picture: Path) -> bool:
        """Whether this is the picture that was recorded with these figures."""
        return self.sha256 == sha256_of(picture)


def _shown(compared: Comparison) -> dict[str, HeroFigure]:
    """The figures that the picture compares, by name."""
    was, now = figures(compared.before), figures(compared.run)
    told = {name: compared.told(name, was[name], now[name]) for name in STEADY}
    told |= {phase: compared.told_of_phase(phase) for phase in PHASES if phase in was and phase in now}
    return {name: HeroFigure(was=was[name], now=now[name], told=words) for name, words in told.items()}


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
