"""Record the dashboard's runs: `python -m course.lab.view.record`. Each traffic as it is, and with one control changed.

They are simulated (`MINILLM_LAB_DEVICE`, an L4 with an 8B, if nothing else is said): the same on every machine, busy or
not. With `--computed` they are this machine's own; leave it alone meanwhile.
"""

import argparse
import gzip
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from course.lab.controls import CONTROLS, FIELDS, shown_by
from course.lab.lab import Lab
from course.lab.lab_defaults import LAB_DEFAULTS
from course.lab.simulated_device import DEFAULT_MODEL, VARIABLE
from course.lab.view.library import FOLDER, recipes, traffic_names
from course.lab.view.trace import Told, trace_of
from minillm import EngineConfig

DEVICE = "l4"


def start_config() -> EngineConfig:
    """Where the controls of recorded runs start."""
    return EngineConfig(**{"model": DEFAULT_MODEL, **LAB_DEFAULTS})


def changes(traffic: str) -> Iterator[dict[str, Any]]:
    """Nothing, each choice of the controls that are shown at once, and what recipes ask for."""
    start = shown_by(start_config())
    yield {}
    for control in CONTROLS:
        if control.first:
            for value in control.choices or (True, False):
                if value != start[control.field]:
                    yield {control.field: value}
    for recipe in recipes():
        if recipe["traffic"] == traffic:
            for fields in (recipe["first"], {**recipe["first"], **recipe["change"]}):
                yield {name: value for name, value in fields.items() if value != start[name]}


def record(lab: Lab, traffic: str, fields: Mapping[str, Any]) -> Told:
    """Play one run. Texts are left out where they are placeholders."""
    played = lab.workload(traffic)
    trace = trace_of(lab.run(played, **fields), played, FIELDS)
    if lab.simulated is not None:
        trace["rows"] = [{**row, "texts": []} for row in trace["rows"]]
    return {"fields": dict(fields), "run": trace}


def write(lab: Lab, folder: Path) -> None:
    """All traffics, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for traffic in traffic_names():
        unique = {json.dumps(each, sort_keys=True): each for each in changes(traffic)}
        runs = [record(lab, traffic, fields) for fields in unique.values()]
        packed = gzip.compress(json.dumps(runs, separators=(",", ":")).encode(), mtime=0)
        (folder / f"{traffic.replace(' ', '_')}.json.gz").write_bytes(packed)
        print(f"{traffic}: {len(runs)} runs, {len(packed) / 1000:.0f} kB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--computed", action="store_true", help="by this machine's engine")
    options = parser.parse_args()
    if not options.computed:
        os.environ.setdefault(VARIABLE, DEVICE)
    lab = Lab(short=False)
    write(lab, options.out)
    lab.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
