"""The dashboard's runs, made in a browser tab: the lab's simulated device, on the engine's own scheduler.

A tab has one thread, so a run isn't watched while it goes on: it takes a second or two, and is played afterwards.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course.lab.controls import CONTROLS, FIELDS, shown_by
from course.lab.pace import pace_of
from course.lab.simulated_device import SimulatedDevice
from course.lab.stepped_engine import SimulatedSession, SteppedEngine
from course.lab.view import library
from course.lab.view.trace import Told, trace_of
from course.lab.workloads import LabWorkload, workload
from course.tab.known_words import WordTokenizer
from minillm.core.errors import ConfigError
from minillm.policies.config import EngineConfig

DEVICE = "l4"
"""As recorded runs have it (lab/view/record.py): those play until Python is here, and are the same runs."""


class TabSession(SimulatedSession):
    """A run from beginning to end, in the caller's thread."""

    def start(self) -> None:
        self._work()


@dataclass(frozen=True)
class TabBench:
    """A small server on one accelerator that isn't there."""

    device: SimulatedDevice
    start: EngineConfig
    """Where the controls begin."""

    @classmethod
    @functools.cache
    def usual(cls) -> "TabBench":
        """An L4 with an 8B."""
        return cls(SimulatedDevice(DEVICE, own_tokenizer=WordTokenizer.recorded()), library.start_config())

    @functools.cached_property
    def pace(self) -> float:
        """What moments of arrival are multiplied with."""
        return pace_of(self.start, self.device)

    def traffic(self, name: str, seed: int) -> LabWorkload:
        """Raises LookupError: there is none of that name."""
        return workload(name, seed).at_pace(self.pace)

    def run(self, traffic: LabWorkload, fields: Mapping[str, Any]) -> Told:
        """One run, as the view is told it. Placeholder texts are left out.

        Raises:
            ConfigError, PricingError: these settings don't go together.
        """
        config = self.start.replace(**fields)
        session = TabSession(SteppedEngine(self.device, config), config, traffic, watched=False)
        session.start()
        session.wait()
        told = trace_of(session.run(), traffic, FIELDS)
        return {**told, "rows": [{**row, "texts": []} for row in told["rows"]]}


def spec() -> Told:
    """What the view is told once."""
    return library.spec(CONTROLS, TabBench.usual().start, library.traffic_names())


def run(traffic: str, seed: int, fields: Mapping[str, Any]) -> Told:
    """A run with these controls.

    Args:
        fields: by name, every field that has a control.
    Raises:
        ConfigError: a field isn't one of the dashboard's, or its value is refused.
    """
    if unknown := set(fields) - set(FIELDS):
        raise ConfigError(f"the dashboard has no control for {', '.join(sorted(unknown))}")
    bench = TabBench.usual()
    return bench.run(bench.traffic(traffic, seed), fields)


def recipe(name: str, seed: int) -> Sequence[Told]:
    """Both runs of a recipe: before the change, and after it.

    Raises:
        LookupError: there is none of that name.
    """
    asked = library.recipe_named(name)
    first = {**shown_by(TabBench.usual().start), **asked["first"]}
    return [run(asked["traffic"], seed, fields) for fields in (first, {**first, **asked["change"]})]
