"""What pages without a kernel need to be used: bets with their outcomes, and an explorer's pictures at many settings.

Bets are small, and stand in the HTML that a notebook keeps. Pictures are many: while notebooks are built, each explorer
is drawn at many settings, and they lie in a file of their own, named in the HTML (course/site reads both).
"""

import gzip
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Protocol

import ipywidgets as widgets

BET, OUTCOME, FRAMES = "data-bet", "data-outcome", "data-frames"
FOLDER = "MINILLM_RECORD"
"""Environment variable: the folder for this notebook's pictures. Unset outside a build, and nothing is recorded."""
MOST, MOST_SLOW = 60, 12
"""Pictures of one explorer, and of one that takes seconds to draw."""
LEAST = 4
"""Positions of a slider, below which it's better to move one control at a time."""


class Drawn(Protocol):
    """What can be recorded: an Explorer."""

    controls: Mapping[str, widgets.ValueWidget]

    def drawn_at(self, **values: Any) -> str: ...


def data_attribute(name: str, value: object) -> str:
    """An attribute of an HTML tag that holds JSON."""
    return f' {name}="{escape(json.dumps(value), quote=True)}"'


def record(explorer: Drawn, most: int) -> str:
    """Draw an explorer at many settings and keep the pictures: the attribute that names them, "" outside a build."""
    if FOLDER not in os.environ:
        return ""
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    stops = _stops(explorer.controls, most)
    controls = described(explorer.controls, stops)
    drawn = {
        ",".join(map(str, at)): explorer.drawn_at(**{name: stops[name][i] for name, i in zip(stops, at, strict=True)})
        for at in _all(stops, [control["start"] for control in controls], most)
    }
    number = len(list(folder.glob("*.json.gz")))
    content = json.dumps({"controls": controls, "plays": hasattr(explorer, "play"), "frames": drawn})
    (folder / f"{number:02d}.json.gz").write_bytes(gzip.compress(content.encode(), mtime=0))  # the same bytes each time
    return f' {FRAMES}="{number:02d}"'


Stops = Mapping[str, Sequence[Any]]
"""By control: the values that it can be put to."""


def described(controls: Mapping[str, widgets.ValueWidget], stops: Stops) -> list[dict[str, Any]]:
    """Each control as a page shows it: its label, what kind it is, what stands at its stops, and where it starts."""
    return [
        {
            "label": control.description,
            "kind": _kind(control),
            "stops": [label for label, _ in _options(control)] or [_written(stop) for stop in stops[name]],
            "start": _nearest(stops[name], control.value),
        }
        for name, control in controls.items()
    ]


def all_stops(controls: Mapping[str, widgets.ValueWidget]) -> Stops:
    """Every value that a notebook offers."""
    return {name: _spread(each, sys.maxsize) if _is_slider(each) else _chosen(each) for name, each in controls.items()}


def read_recording(path: Path) -> dict[str, Any]:
    """Controls, whether they play by themselves, and pictures by the controls' positions: "0,3"."""
    return json.loads(gzip.decompress(path.read_bytes()))


def _stops(controls: Mapping[str, widgets.ValueWidget], most: int) -> dict[str, list[Any]]:
    """The values of each control that are recorded: all choices, and so many of a slider's that MOST pictures do."""
    chosen = {name: _chosen(control) for name, control in controls.items() if not _is_slider(control)}
    sliders = {name: c for name, c in controls.items() if _is_slider(c)}
    each = math.floor((most / math.prod(map(len, chosen.values()))) ** (1 / max(len(sliders), 1)) + 1e-9)
    spread = {
        name: _spread(slider, each if each >= LEAST else max(most // len(controls), LEAST))
        for name, slider in sliders.items()
    }
    return {name: {**chosen, **spread}[name] for name in controls}


def _options(control: widgets.ValueWidget) -> list[tuple[str, Any]]:
    """What a menu offers, each with its label; none of other controls."""
    offered = getattr(control, "options", ())
    return [option if isinstance(option, tuple) else (_written(option), option) for option in offered]


def _chosen(control: widgets.ValueWidget) -> list[Any]:
    """The values of a menu, or of a switch."""
    return [value for _, value in _options(control)] or [False, True]


def _is_slider(control: widgets.ValueWidget) -> bool:
    return hasattr(control, "min")


def _spread(slider: widgets.ValueWidget, most: int) -> list[Any]:
    """A slider's values, at most so many of them, evenly spread, its own one among them."""
    steps = round((slider.max - slider.min) / (slider.step or 1))
    count = min(most, steps + 1)
    found = [slider.min + round(i * steps / max(count - 1, 1)) * slider.step for i in range(count)]
    found[_nearest(found, slider.value)] = slider.value
    return found


def _nearest(stops: Sequence[Any], value: Any) -> int:
    if value in stops:
        return list(stops).index(value)
    return min(range(len(stops)), key=lambda i: abs(stops[i] - value))


def _all(stops: Stops, start: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """All combinations, if they aren't too many; else one control at a time, the others where they start."""
    if math.prod(map(len, stops.values())) <= most:
        yield from itertools.product(*(range(len(each)) for each in stops.values()))
        return
    moves = ((i, place) for i, each in enumerate(stops.values()) for place in range(len(each)))
    yield from dict.fromkeys((*start[:i], place, *start[i + 1 :]) for i, place in moves)


def _kind(control: widgets.ValueWidget) -> str:
    return "range" if _is_slider(control) or isinstance(control, widgets.SelectionSlider) else "choice"


def _written(stop: Any) -> str:
    if isinstance(stop, bool):
        return "on" if stop else "off"
    return f"{stop:g}" if isinstance(stop, float) else str(stop)
