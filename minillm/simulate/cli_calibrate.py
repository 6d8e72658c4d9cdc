"""`minillm calibrate`. With `--json`, standard output is one JSON object."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.core.errors import PricingError
from minillm.simulate.cli import (
    LOG_HELP,
    SIZES,
    BlockSize,
    Budget,
    Dtype,
    HardwareName,
    Json,
    KVBlocks,
    KVDtype,
    NullBlock,
    ReserveFullISL,
    Shape,
    Slots,
    TensorParallel,
    Window,
    engine_fields,
    given,
)

if TYPE_CHECKING:
    from minillm.simulate.cost.hardware import Hardware
    from minillm.simulate.cost.profile import Profile

SERVER = (*SIZES, "tp", "weight_dtype", "kv_dtype")
"""What a log needs to be told, and nothing else reads."""


def calibrate(
    context: typer.Context,
    model: Shape = "smollm2-135m",
    from_requests: Annotated[Path | None, typer.Option(help=LOG_HELP + " Needs all four time stamps.")] = None,
    from_steps: Annotated[Path | None, typer.Option(help="A table of step times in Splitwise's format (CSV).")] = None,
    link_from: Annotated[Path | None, typer.Option(help="A log with --tp 2 or more: fits only the link.")] = None,
    profile: Annotated[str | None, typer.Option(help="With --link-from: where all other constants are from.")] = None,
    hardware: HardwareName = None,
    tp: TensorParallel = 1,
    kv_blocks: KVBlocks = None,
    block_size: BlockSize = None,
    max_num_seqs: Slots = None,
    max_num_batched_tokens: Budget = None,
    max_model_len: Window = None,
    reserve_full_isl: ReserveFullISL = None,
    null_block: NullBlock = None,
    weight_dtype: Dtype = "bfloat16",
    kv_dtype: KVDtype = None,
    quick: Annotated[bool, typer.Option("--quick", help="This machine: a few steps; tries it out.")] = False,
    validate: Annotated[bool, typer.Option("--validate", help="This machine: also compare on served traffic.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the profile here.")] = None,
    as_json: Json = False,
) -> None:
    """Fit the simulator's constants: to this machine, or to a log of a real server.

    Without a log, the real engine runs a designed set of batches here, and the profile `this-machine` is kept in
    the cache folder. Run it alone: two busy programs on one machine measure each other.
    """
    if from_requests and from_steps:
        raise PricingError("give one of --from-requests and --from-steps")
    if (quick or validate) and (from_requests or from_steps or link_from):
        raise PricingError("--quick and --validate are for this machine: leave --from-... and --link-from out")
    report: dict[str, Any] = {}
    if from_steps is not None:
        refuse(context, "--from-steps", *SERVER, "link_from", "profile")
        from minillm.simulate.calibration.fit import calibrate_from_steps

        fitted = calibrate_from_steps(from_steps, model, needed_hardware(hardware))
    elif from_requests is not None or link_from is not None:
        if from_requests is not None:
            refuse(context, "--from-requests", "profile")
        fitted, report = fit_logs(context.params)
    else:
        refuse(context, "measuring this machine", *SERVER, "hardware", "profile")
        from minillm.simulate.calibration.measure import calibrate_this_machine
        from minillm.simulate.cost.profile import this_machine_path

        fitted = calibrate_this_machine(model, quick=quick, with_traffic=validate)
        out = out or this_machine_path()
    if out is not None:
        fitted.write(out)
    told = {"constants": asdict(fitted.constants), "provenance": fitted.provenance}
    if as_json:
        where = {"profile": None if out is None else str(out), "hardware": fitted.hardware.name}
        print(json.dumps({**where, **told, **report}))
    else:
        print(json.dumps(told, indent=2))
        print(f"profile: {out}" if out else "not kept: name a file with --out", file=sys.stderr)


def fit_logs(options: dict[str, Any]) -> "tuple[Profile, dict[str, Any]]":
    """Fit to one log, or to one for everything but the link and one for the link.

    Returns:
        The profile, and what the last log's requests came to: `summary`, `measured`, `error_percent`.
    """
    from minillm.simulate.calibration.fit_log import LINK_CONSTANTS, LogCalibration, calibrate_from_requests
    from minillm.simulate.cost.profile import Profile, find_profile, typical_profile
    from minillm.simulate.deployment import Deployment

    main_log, link_log, out = options["from_requests"], options["link_from"], options["out"]

    def fit(base: Profile, log: Path, tp: int, free: tuple[str, ...] | None = None) -> LogCalibration:
        dtypes = {name: options[name] for name in ("weight_dtype", "kv_dtype")}
        server = Deployment.of(options["model"], base, tp=tp, **dtypes, **engine_fields(log, options))
        return calibrate_from_requests(log, server, options["model"], free)

    if main_log is not None:
        base = typical_profile(needed_hardware(options["hardware"]))
        found = fit(base, main_log, 1 if link_log else options["tp"])
        profile = found.profile
    elif options["profile"] is not None:
        profile = find_profile(options["profile"])
    elif out is not None and out.is_file():
        profile = Profile.read(out)
    else:
        profile = find_profile(needed_hardware(options["hardware"]).name)
    if link_log is not None:
        found = fit(profile, link_log, options["tp"], LINK_CONSTANTS)
    report = {"summary": found.simulated, "measured": found.measured, "error_percent": found.error_percent}
    return found.profile, report


def refuse(context: typer.Context, what: str, *unread: str) -> None:
    """Raise PricingError if an option is given that `what` does not read."""
    if options := given(context, unread):
        raise PricingError(f"{what} does not read {', '.join(options)}: leave out what has no effect")


def needed_hardware(name: str | None) -> "Hardware":
    """The hardware of that name. Raises PricingError: none was given."""
    from minillm.simulate.cost.hardware import find_hardware

    if name is None:
        raise PricingError("say what the log was recorded on: --hardware NAME (such as h100-sxm)")
    return find_hardware(name)
