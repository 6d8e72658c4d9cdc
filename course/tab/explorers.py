"""Lessons' explorers and worksheet in a browser tab: drawn at any setting by the notebooks' own functions.

What isn't among LIVE takes something that a notebook has measured on the model, or draws with PyTorch: on a page it
stays a recording.
"""

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from course.tab.absent import standing_in

LIVE = (
    "lesson_02.pictures:wait_curve",
    "lesson_02b.pictures:orders",
    "lesson_02b.pictures:queue_limits",
    "lesson_02b.pictures:tenants_explorer",
    "lesson_03.pictures:envelope_explorer",
    "lesson_03.pictures:explore_70b",
    "lesson_04.explorer:hosted_explorer",
    "lesson_04.explorer:policy_explorer",
    "lesson_05.pictures:async_explorer",
    "lesson_05b.pictures:budget_explorer",
    "lesson_05b.pictures:transfer_explorer",
    "lesson_06.simulated:drift",
    "lesson_06.simulated:step_parts",
    "lesson_06b.pictures:imbalance",
    "lesson_06b.pictures:latent_room",
    "lesson_06c.pictures:bytes_explorer",
    "lesson_06c.pictures:reads_explorer",
    "lesson_06c.pictures:snapshots_explorer",
    "lesson_07.simulated:pool_too_small",
    "lesson_07b.pictures:pause_explorer",
    "lesson_07b.pictures:tier_explorer",
    "lesson_08.pictures:gain_map",
    "lesson_08.simulated:load_lab",
    "lesson_08.simulated:mixture_lab",
    "lesson_09.pictures:formats_explorer",
    "lesson_09.simulated:phases_lab",
    "lesson_10.simulated:explore",
    "lesson_10b.explorer:hops_of_ttft",
    "lesson_10b.explorer:regions",
    "lesson_11.pictures:how_many",
    "lesson_11.pictures:knee_of_70b",
    "lesson_11.pictures:rollouts",
    "lesson_11b.explorer:cold_start",
    "lesson_11b.explorer:rare_traffic",
    "lesson_11b.pictures:alarms",
    "lesson_11b.pictures:canary",
    "lesson_11b.pictures:spikes",
    "lesson_11c.pictures:adapters",
    "lesson_11c.pictures:mends",
    "lesson_11c.pictures:prices_per_token",
    "lesson_11c.pictures:routing",
)
"""Functions that make an explorer from nothing but words and numbers, by module and name."""


class TabExplorer:
    """One explorer, asked by the places of its controls.

    Args:
        place: one of LIVE.
        given: what the notebook gives the function.
    Raises:
        LookupError: it's none of them.
    """

    def __init__(self, place: str, given: Sequence[Any] = ()) -> None:
        if place not in LIVE:
            raise LookupError(f"{place} isn't drawn in a tab")
        module, _, name = place.partition(":")
        with standing_in():
            recording = importlib.import_module("course.lab.recording")
            self._explorer = getattr(importlib.import_module(f"course.lessons.{module}"), name)(*given)
        self._stops = recording.all_stops(self._explorer.controls)
        self._controls = recording.described(self._explorer.controls, self._stops)

    def controls(self) -> list[dict[str, Any]]:
        """Every control, with all its places."""
        return self._controls

    def draw(self, at: Sequence[int]) -> str:
        """The picture with its controls at these places, as HTML."""
        values = {name: stops[place] for (name, stops), place in zip(self._stops.items(), at, strict=True)}
        return self._explorer.drawn_at(**values)


def worksheet(asked: dict[str, Any]) -> dict[str, Any]:
    """Lesson 11's worksheet, on paper."""
    with standing_in():
        pictures = importlib.import_module("course.lessons.lesson_11.pictures")
    return asdict(pictures.asked_of_70b().answer(asked))
