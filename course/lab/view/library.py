"""Recorded runs: what a dashboard shows before its first run, and all that it has on a page without a kernel."""

import functools
import gzip
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from course.lab.controls import CONTROLS, OFF, TechniqueControl, shown_by
from course.lab.defaults import LAB_DEFAULTS, SIMULATED_MODEL
from course.lab.view.trace import Told
from course.lab.workloads import MAKERS
from minillm import EngineConfig

FOLDER = Path(__file__).parent / "recorded"


def start_config() -> EngineConfig:
    """Where the controls of recorded runs start."""
    return EngineConfig(**{"model": SIMULATED_MODEL, **LAB_DEFAULTS})


def traffic_names() -> dict[str, str]:
    """The named workloads, each with what it is."""
    return {name: maker.__doc__ or "" for name, maker in MAKERS.items()}


@functools.cache
def recipes() -> tuple[Told, ...]:
    """Things to try, as `view.js` describes them."""
    rows = tomllib.loads((FOLDER.parents[1] / "recipes.toml").read_text(encoding="utf-8"))["recipe"]
    return tuple({**row, "first": _values(row.get("first", {})), "change": _values(row["change"])} for row in rows)


def recipe_named(name: str) -> Told:
    """One of them.

    Raises:
        LookupError: there is none of that name.
    """
    found = next((each for each in recipes() if each["id"] == name), None)
    if found is None:
        raise LookupError(f"no recipe {name!r}: choose one of {', '.join(each['id'] for each in recipes())}")
    return found


def _values(fields: Mapping[str, Any]) -> Told:
    return {name: None if value == OFF else value for name, value in fields.items()}


def spec(
    controls: Sequence[TechniqueControl],
    start: EngineConfig,
    traffics: Mapping[str, str],
    own: str = "",
    where: str = "",
) -> Told:
    """What the view is told once.

    Args:
        start: where the controls start.
        traffics: by name, what they are.
        own: which of them is a prompt of the reader's own.
        where: the server that is watched from outside.
    """
    started = shown_by(start)
    offered = [control.offering(started[control.field]) for control in controls]
    return {
        "controls": [{**vars(each), "choices": list(each.choices), "names": dict(each.names)} for each in offered],
        "start": {control.field: started[control.field] for control in controls},
        "traffics": [{"name": name, "about": about} for name, about in traffics.items()],
        "own": own,
        "recipes": [each for each in recipes() if controls and each["traffic"] in traffics],
        "where": where,
        "isRecorded": False,
    }


def recorded(traffic: str) -> list[Told]:
    """Runs of a named workload, `fields` (that differ from the start) and `run`; none, where nobody recorded it."""
    path = FOLDER / f"{traffic.replace(' ', '_')}.json.gz"
    return json.loads(gzip.decompress(path.read_bytes())) if path.is_file() else []


def opening(traffic: str) -> Told | None:
    """The run that a dashboard opens with."""
    return next((each["run"] for each in recorded(traffic) if not each["fields"]), None)


def note_of(run: Told) -> str:
    """Where a recorded run is from."""
    return f"a recorded run ({run['on'] or 'on 2 cores'})"


def page_library(start: EngineConfig) -> Told:
    """All of it, for a page without a kernel: `recorded.js` describes it."""
    names = traffic_names()
    runs = {name: recorded(name) for name in names}
    shown = [control for control in CONTROLS if control.first]
    note = f"{note_of(runs[next(iter(names))][0]['run'])}; to run it on your machine: make lab"
    return {"spec": spec(shown, start, names), "note": note, "runs": runs}
