"""From measurements to a profile: constants, and how wrong they still are."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minillm.core.errors import PricingError
from minillm.model.arithmetic import find_model
from minillm.simulate.calibration.fit import (
    EAGER_CONSTANTS,
    FittedConstants,
    error_report,
    fit_to_steps,
    read_step_table,
)
from minillm.simulate.calibration.fit_log import GPU_CONSTANTS, LINK_CONSTANTS, fit_to_log, set_speed
from minillm.simulate.calibration.replay import compare_with_log, serve_log
from minillm.simulate.calibration.requests_log import read_requests_log, timed
from minillm.simulate.cost.deployment import Deployment
from minillm.simulate.cost.hardware import Hardware
from minillm.simulate.cost.profile import PRIORS, Profile, typical_profile
from minillm.simulate.cost.roofline import ROOFLINE, Constants


@dataclass(frozen=True, slots=True)
class LogCalibration:
    """A profile fitted to a log of requests, and what it makes of that log."""

    profile: Profile
    simulated: dict[str, Any]
    measured: dict[str, Any]
    error_percent: dict[str, Any]


def calibrate_from_requests(
    log_path: Path, deployment: Deployment, model: str, free: Sequence[str] | None = None
) -> LogCalibration:
    """Fit constants to a server's log of requests.

    Args:
        deployment: as the server was configured. Its profile's constants are where a fit starts, and where
            those stay that the log does not show.
        model: its name, for the record.
        free: names of the constants to fit; None = all that a log can show.
    Raises:
        RecordingError: the log cannot be read, or has no time stamps.
        PricingError: a request does not fit the KV pool, or only link constants are free and tp is 1.
    """
    log = read_requests_log(log_path)
    tp = deployment.placement.tp
    free = free or (*GPU_CONSTANTS, *(LINK_CONSTANTS if tp > 1 else ()))
    is_link_only = set(free) <= set(LINK_CONSTANTS)
    if tp == 1 and is_link_only:
        raise PricingError("with --tp 1 nothing goes over a link: give the log of a server with --tp 2 or more")
    fitted = fit_to_log(deployment, log, free)
    constants, factor = fitted.constants, 1.0
    if not is_link_only:  # one link is not what a whole server's pace depends on
        constants, factor = set_speed(deployment.with_constants(constants), log, free)
    base = deployment.profile
    outputs = serve_log(deployment.with_constants(constants), log)
    simulated, measured, errors = compare_with_log(outputs, log)
    entry = {
        "source": f"{len(timed(log))} requests of {log_path.name}",
        "model": model,
        "tp": tp,
        "kv_blocks": deployment.num_kv_blocks,
        "fitted": list(free),
        "decided_by_data": list(fitted.decided),
        "time_factor": factor,
        "date": today(),
        "error_percent_on_the_same_log": errors,
    }
    provenance = {**base.provenance, "link": entry} if is_link_only else entry
    return LogCalibration(Profile(base.hardware, constants, provenance), simulated, measured, errors)


def calibrate_from_steps(table: Path, model: str, hardware: Hardware) -> Profile:
    """Fit constants to a published table of step times; a part is held out to tell the error.

    Raises:
        RecordingError: the table cannot be read.
    """
    tables, notes = read_step_table(table, find_model(model), hardware)
    training, held_out = zip(*(one.split() for one in tables))
    prior = Constants(**PRIORS)
    fitted: FittedConstants = fit_to_steps(training, prior, EAGER_CONSTANTS)
    provenance = {
        "source": f"{sum(len(one.steps) for one in tables)} steps of {table.name}",
        "model": model,
        "tp": [one.placement.tp for one in tables],
        "left_out": notes,
        "fitted": list(EAGER_CONSTANTS),
        "decided_by_data": list(fitted.decided),
        "date": today(),
        "held_out_error": {
            "all": error_report(held_out, fitted.constants),
            "prompt": error_report([only(one, True) for one in held_out], fitted.constants),
            "token": error_report([only(one, False) for one in held_out], fitted.constants),
            "pure_roofline": error_report(held_out, ROOFLINE),
        },
    }
    return Profile(hardware, fitted.constants, provenance)


def only(table: Any, prompts: bool) -> Any:
    """The table's prompt steps, or its token steps."""
    return replace(table, steps=[step for step in table.steps if bool(step.work.prefills) is prompts])


def starting_profile(hardware: Hardware) -> Profile:
    """Where a fit to a log begins."""
    return typical_profile(hardware)


def today() -> str:
    """The date, ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()
