"""`minillm simulate` and `minillm calibrate`. With `--json`, standard output is one JSON object."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from course.simulator.options import (
    BENCH_HELP,
    FIRST_TASTE,
    FIRST_TASTE_WRITTEN,
    LOG_HELP,
    SERVER,
    Json,
    Model,
    ServerOptions,
    SimulateOptions,
    check_options,
    given,
    profile_for,
    refuse,
)
from minillm.bench.options import Device, Dtype, LoadFormat, with_options

if TYPE_CHECKING:
    from course.simulator.cost.profile import Profile
    from course.simulator.deployment import Deployment

Progress = Callable[[str, float], None]
OUTPUT = ("per_request", "explain", "as_json")
"""Options that say how to tell it, not what to simulate."""


@with_options(SimulateOptions)
def simulate(options: SimulateOptions, context: typer.Context) -> None:
    """Serve a log, a trace or synthetic traffic on hardware you don't have, or plan its capacity.

    --requests plays a log, --trace a trace, --qps made-up traffic; --plan finds the replicas for --qps, made up or
    like a --trace.
    """
    from course.simulator.cluster.events import rare_collections

    if not given(context, [each.name for each in fields(options) if each.name not in OUTPUT]):
        options = replace(options, **FIRST_TASTE)
        if not options.as_json:
            print(f"A first taste, minillm simulate {FIRST_TASTE_WRITTEN}; --help lists what else there is.\n")
    else:
        check_options(options, context)
    with progress_bar() as progress, rare_collections():
        (search if options.search else simulate_one)(options, progress)


def search(options: SimulateOptions, progress: Progress) -> None:
    """The cheapest plans over cards and tensor parallel degrees."""
    from course.simulator.capacity.search import DEGREES, search_plans

    def replica(card: str, tp: int) -> "Deployment":
        return options.deploy(profile_for(None, card, options.typical), tp=tp)

    found = search_plans(
        replica,
        options.to_plan_for(),
        options.slo_to_plan_for(),
        options.rate,
        cards=options.hardware.split(",") if options.hardware else (),
        degrees=(options.tp,) if options.tp else DEGREES,
        headroom=options.headroom,
        **worksheet_of(options, progress),
    )
    print(json.dumps({"model": options.model, **found.to_dict()}) if options.as_json else found)


def simulate_one(options: SimulateOptions, progress: Progress) -> None:
    """One deployment: what is simulated, what came out, and on whose word."""
    from course.simulator.report import as_text, describe, latency_text

    start = time.perf_counter()
    profile = profile_for(options.profile, options.hardware, options.typical)
    deployment = options.deploy(profile, log=options.requests)
    if options.requests is not None:
        run = play_log
    elif options.plan:
        run = plan
    else:
        run = play_traffic
    result = run(options, deployment, progress)
    body = result.pop("text", None) or latency_text(result)
    seconds = round(time.perf_counter() - start, 3)
    report = {**describe(options.model, deployment), **result, "wall_s": seconds}
    print(json.dumps(report) if options.as_json else as_text(report, body, options.explain))


def play_log(options: SimulateOptions, deployment: "Deployment", progress: Progress) -> dict[str, Any]:
    """A log of requests, at its own moments."""
    from course.simulator.report import simulate_log

    assert options.requests is not None
    return simulate_log(deployment, options.requests, options.per_request)


def play_traffic(options: SimulateOptions, deployment: "Deployment", progress: Progress) -> dict[str, Any]:
    """A trace, or made-up traffic, to a fleet."""
    from course.simulator.report import simulate_workload

    config = options.cluster(options.seed, deployment.profile)
    workload = options.workload()
    return simulate_workload(deployment, workload, config, options.slo, options.per_request, progress, options.qps)


def plan(options: SimulateOptions, deployment: "Deployment", progress: Progress) -> dict[str, Any]:
    """How many replicas a rate needs."""
    from course.simulator.capacity.plan import simulate_plan

    return simulate_plan(
        deployment,
        options.to_plan_for(),
        options.slo_to_plan_for(),
        demand=options.rate,
        headroom=options.headroom,
        price_per_hour=options.price_per_hour,
        **worksheet_of(options, progress, deployment.profile),
    )


def worksheet_of(options: SimulateOptions, progress: Progress, profile: "Profile | None" = None) -> dict[str, Any]:
    """Arguments of a Worksheet."""
    return {
        "target": options.target,
        "config": options.cluster(options.seed, profile),
        "num_requests": options.count,
        "seed": options.seed,
        "arrivals": options.arrivals(),
        "progress": progress,
    }


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
    """On standard error, if that is a terminal: what is simulated, and the share of its requests that have ended."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task, told = bar.add_task("simulating", total=None), 0.0

        def tell(words: str, share: float) -> None:
            nonlocal told
            if abs(share - told) >= 0.01:  # to draw costs more than to simulate
                told = share
                bar.update(task, description=words, total=1.0, completed=share)

        yield tell


@dataclass(frozen=True)
class CalibrateOptions(ServerOptions):
    """All of `minillm calibrate`."""

    model: Model = "smollm2-135m"
    load_format: LoadFormat = "auto"
    dtype: Dtype = "auto"
    device: Device = "auto"
    from_requests: Annotated[Path | None, typer.Option(help=LOG_HELP + " Needs all four time stamps.")] = None
    from_bench: Annotated[list[Path] | None, typer.Option(metavar="RECORD", help=BENCH_HELP)] = None
    quick: Annotated[bool, typer.Option("--quick", help="This machine: a few steps; tries it out.")] = False
    validate: Annotated[bool, typer.Option("--validate", help="This machine: also compare on served traffic.")] = False
    out: Annotated[Path | None, typer.Option(help="Write the profile here.")] = None
    as_json: Json = False


@with_options(CalibrateOptions)
def calibrate(options: CalibrateOptions, context: typer.Context) -> None:
    """Fit the simulator's constants: to this machine, to a log of a real server, or to records of our own engine.

    Without a log, the real engine runs a designed set of batches here, and the profile `this-machine` is kept in
    the cache folder. Run it alone: two busy programs on one machine measure each other.
    """
    from course.simulator.cost.profile import this_machine_path

    report: dict[str, Any] = {}
    out = options.out
    if options.from_bench:
        from course.simulator.calibration.bench_records import fit_to_records

        refuse(context, "--from-bench", "quick", "validate", "from_requests", "model", "hardware", *SERVER)
        fitted = fit_to_records(options.from_bench)
    elif options.from_requests is not None:
        from course.simulator.calibration.fit_log import calibrate_from_requests

        refuse(context, "--from-requests", "quick", "validate", "load_format", "dtype", "device")
        server = options.deploy(profile_for(None, options.hardware, typical=True), log=options.from_requests)
        fitted, report = calibrate_from_requests(options.from_requests, server, options.model)
    else:
        refuse(context, "measuring this machine", *SERVER, "hardware")
        from course.simulator.calibration.measure import calibrate_this_machine
        from minillm.policies.config import EngineConfig

        config = EngineConfig(
            model=options.model,
            load_format=options.load_format,
            dtype=options.dtype,
            device=options.device,
            enable_prefix_caching=False,
        )
        fitted = calibrate_this_machine(config, quick=options.quick, with_traffic=options.validate)
        out = out or this_machine_path()
    if out is not None:
        fitted.write(out)
    told = {"constants": fitted.constants.model_dump(), "provenance": fitted.provenance}
    if options.as_json:
        where = {"profile": None if out is None else str(out), "hardware": fitted.hardware.name}
        print(json.dumps({**where, **told, **report}))
    else:
        print(json.dumps(told, indent=2))
        print(f"profile: {out}" if out else "not kept: name a file with --out", file=sys.stderr)
