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
    BlockSize,
    Budget,
    Dtype,
    HardwareName,
    Json,
    KVBlocks,
    NullBlock,
    ReserveFullISL,
    Seats,
    Shape,
    TensorParallel,
    Window,
    engine_fields,
)

# The engine imports torch, which takes seconds; `minillm --help` should not wait for it.
if TYPE_CHECKING:
    from minillm.simulate.cost.profile import Profile


def calibrate(
    model: Shape = "smollm2-135m",
    from_requests: Annotated[Path | None, typer.Option(help=LOG_HELP + " Needs all four time stamps.")] = None,
    from_steps: Annotated[Path | None, typer.Option(help="A table of step times in Splitwise's format (CSV).")] = None,
    link_from: Annotated[Path | None, typer.Option(help="A log with --tp 2 or more: fits only the link.")] = None,
    profile: Annotated[str | None, typer.Option(help="With --link-from: where all other constants are from.")] = None,
    hardware: HardwareName = None,
    tp: TensorParallel = 1,
    kv_blocks: KVBlocks = None,
    block_size: BlockSize = None,
    max_num_seqs: Seats = None,
    max_num_batched_tokens: Budget = None,
    max_model_len: Window = None,
    reserve_full_isl: ReserveFullISL = None,
    null_block: NullBlock = None,
    weight_dtype: Dtype = "bfloat16",
    kv_dtype: Annotated[str | None, typer.Option(help="Of the KV cache; default: as the weights.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="This machine: a few steps; tries it, measures little.")
    ] = False,
    validate: Annotated[
        bool, typer.Option("--validate", help="This machine: also serve traffic, and tell how far off that is.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the profile here.")] = None,
    as_json: Json = False,
) -> None:
    """Fit the simulator's constants: to this machine, or to a log of a real server.

    Without a log, the real engine runs a designed set of batches here, and the profile `this-machine` is kept in
    the cache folder. Run it alone: two busy programs on one machine measure each other.
    """
    if sum(source is not None for source in (from_requests, from_steps)) > 1:
        raise PricingError("give one of --from-requests and --from-steps")
    if (quick or validate) and (from_requests or from_steps or link_from):
        raise PricingError("--quick and --validate are for this machine: leave --from-... and --link-from out")
    sizes = {
        "kv_blocks": kv_blocks, "block_size": block_size, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens, "max_model_len": max_model_len,
        "reserve_full_isl": reserve_full_isl, "null_block": null_block,
    }  # fmt: skip
    server = {
        **sizes, "tp": None if tp == 1 else tp, "weight_dtype": None if weight_dtype == "bfloat16" else weight_dtype,
        "kv_dtype": kv_dtype,
    }  # fmt: skip
    if from_steps is not None:
        refuse("--from-steps", **server, link_from=link_from, profile=profile)
        from minillm.simulate.calibration.calibrate import calibrate_from_steps

        fitted = calibrate_from_steps(from_steps, model, needed_hardware(hardware))
        report: dict[str, Any] = {}
    elif from_requests is not None or link_from is not None:
        if from_requests is not None:
            refuse("--from-requests", profile=profile)
        fitted, report = fit_logs(
            from_requests, link_from, model, profile, hardware, tp, sizes, weight_dtype, kv_dtype, out
        )
    else:
        refuse("measuring this machine", **server, hardware=hardware, profile=profile)
        from minillm.simulate.calibration.measure import calibrate_this_machine
        from minillm.simulate.cost.profile import this_machine_path

        fitted, report = calibrate_this_machine(model, quick=quick, with_traffic=validate), {}
        out = out or this_machine_path()
    if out is not None:
        fitted.write(out)
    report = {
        "profile": None if out is None else str(out),
        "hardware": fitted.hardware.name,
        "constants": asdict(fitted.constants),
        "provenance": fitted.provenance,
        **report,
    }
    if as_json:
        print(json.dumps(report))
    else:
        print(json.dumps({key: report[key] for key in ("constants", "provenance")}, indent=2))
        print(f"profile: {out}" if out else "not kept: name a file with --out", file=sys.stderr)


def fit_logs(
    from_requests: Path | None,
    link_from: Path | None,
    model: str,
    profile: str | None,
    hardware: str | None,
    tp: int,
    sizes: dict[str, Any],
    weight_dtype: str,
    kv_dtype: str | None,
    out: Path | None,
) -> "tuple[Profile, dict[str, Any]]":
    """Fit to one log, or to one for everything but the link and one for the link."""
    from minillm.simulate.calibration.calibrate import calibrate_from_requests, starting_profile
    from minillm.simulate.calibration.fit_log import LINK_CONSTANTS
    from minillm.simulate.cost.deployment import Deployment
    from minillm.simulate.cost.profile import Profile, find_profile

    def deploy(base: Profile, log: Path, degree: int) -> Deployment:
        fields = engine_fields(log, **sizes)
        return Deployment.of(model, base, tp=degree, weight_dtype=weight_dtype, kv_dtype=kv_dtype, **fields)

    reports = {}
    if from_requests is not None:
        base = starting_profile(needed_hardware(hardware))
        first = calibrate_from_requests(from_requests, deploy(base, from_requests, 1 if link_from else tp), model)
        fitted, reports = first.profile, {"summary": first.simulated, "measured": first.measured}
        reports["error_percent"] = first.error_percent
    elif profile is not None:
        fitted = find_profile(profile)
    elif out is not None and out.is_file():
        fitted = Profile.read(out)
    else:
        fitted = find_profile(needed_hardware(hardware).name)
    if link_from is not None:
        link = calibrate_from_requests(link_from, deploy(fitted, link_from, tp), model, LINK_CONSTANTS)
        fitted, reports = link.profile, {"summary": link.simulated, "measured": link.measured}
        reports["error_percent"] = link.error_percent
    return fitted, reports


def refuse(what: str, **unread: Any) -> None:
    """Raise PricingError if an option is given (not None) that `what` does not read."""
    given = [f"--{name.replace('_', '-')}" for name, value in unread.items() if value is not None]
    if given:
        raise PricingError(f"{what} does not read {', '.join(given)}: leave out what has no effect")


def needed_hardware(name: str | None) -> Any:
    """The hardware of that name. Raises PricingError: none was given."""
    from minillm.simulate.cost.hardware import find_hardware

    if name is None:
        raise PricingError("say what the log was recorded on: --hardware NAME (such as h100-sxm)")
    return find_hardware(name)
