"""`minillm accuracy`. With `--json`, standard output is one JSON object."""

import json
from pathlib import Path
from typing import Annotated

import typer

from course.simulator.errors import SimulationError

PointsFile = Annotated[Path | None, typer.Option("--points", help="A table of measured points (.csv).")]
LogFolder = Annotated[Path | None, typer.Option("--log", help="A server's log: requests.jsonl, meta.json.")]
Sample = Annotated[int, typer.Option(min=1, help="Only every so many-th point.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; default: one for each core.")]
Today = Annotated[
    bool,
    typer.Option("--today", help="Price all as vLLM 0.19 moved to the card, not each engine by its own constants."),
]
Bands = Annotated[Path | None, typer.Option(help="Write the errors by group: what `simulate` tells with a forecast.")]
Out = Annotated[Path | None, typer.Option(help="Write every point with its forecast: .json or .csv.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def accuracy(
    points: PointsFile = None,
    log: LogFolder = None,
    sample: Sample = 1,
    workers: Workers = None,
    today: Today = False,
    bands: Bands = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """How far the simulator is from measurements: of many deployments (--points), or of one server's requests (--log).

    Errors are (predicted - measured) / measured, in percent. Points that can't be simulated are counted by reason.
    """
    from course.simulator.accuracy.check import check
    from course.simulator.accuracy.logs import check_log, log_text
    from course.simulator.accuracy.points import read_points
    from course.simulator.accuracy.report import as_text, report, write_bands, write_rows
    from course.simulator.cli import progress_bar
    from course.simulator.cluster.events import rare_collections
    from course.simulator.cost.bands import FITTED, TODAY

    if (points is None) == (log is None):
        raise SimulationError("name measurements to compare with: either --points FILE or --log DIR")
    if log is not None and (sample != 1 or workers or today or bands or out):
        raise SimulationError("a log is replayed whole, and printed: leave the other options out, or use --points")
    if log is not None:
        with rare_collections():
            found = check_log(log)
        print(json.dumps(found) if as_json else log_text(found))
        return
    assert points is not None
    with progress_bar() as progress:
        checked = check(read_points(points)[::sample], workers, progress, today)
    if out is not None:
        write_rows(checked, out)
    if bands is not None:
        write_bands(checked, bands, TODAY if today else FITTED)
    found = report(checked)
    print(json.dumps(found) if as_json else as_text(found))
