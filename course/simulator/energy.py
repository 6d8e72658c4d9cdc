"""Watts and joules of a simulated run, from what its steps used of the accelerators (cost/power.py)."""

from dataclasses import dataclass
from typing import Any

from course.simulator.cluster.run import FleetRun
from course.simulator.cost.power import Power, shares_used
from course.simulator.deployment import Deployment

WATT_DIGITS, JOULE_DIGITS = 1, 4


@dataclass(frozen=True, slots=True)
class Energy:
    """What a fleet drew. Boards only: no CPUs, fans or cooling."""

    power: Power
    busy_share: float
    """Share of the replicas' time in which steps ran."""
    busy_watts: float
    """Watts of one accelerator while steps run."""
    watts: float
    """The same, on average over all the time that its replica was up."""
    joules_per_output_token: float
    """Joules of all accelerators, idle time included."""

    def to_json(self) -> dict[str, Any]:
        band = self.power.band
        assert band is not None, "packaged constants have one"
        return {
            "watts_per_gpu": round(self.watts, WATT_DIGITS),
            "idle_watts": self.power.idle,
            "busy_watts": round(self.busy_watts, WATT_DIGITS),
            "busy_share": round(self.busy_share, JOULE_DIGITS),
            "joules_per_output_token": round(self.joules_per_output_token, JOULE_DIGITS),
            "band_percent": [band.low, band.high],
            "points": band.points,
        }


def energy_of(deployment: Deployment, fleet: FleetRun) -> Energy | None:
    """A run's energy; None = the card's draw has not been published, or nothing was written.

    Prompts that were computed again after a preemption, and drafts, aren't counted; their time is.
    """
    model, hardware = deployment.model, deployment.profile.hardware
    power = Power.of(hardware, model)
    tokens = sum(report.num_output_tokens for report in fleet.reports)
    busy, up = (sum(getattr(report, name) for report in fleet.reports) for name in ("busy_s", "up_s"))
    if power is None or not tokens or not busy:
        return None
    answered = [record for record in fleet.records if record.num_tokens]
    computed = [record.request.num_prompt_tokens - record.num_cached_tokens for record in answered]
    shares = shares_used(
        model,
        hardware,
        deployment.placement,
        prompt_tokens=sum(computed),
        output_tokens=tokens,
        prompt_pairs=sum(
            new * record.num_cached_tokens + new * (new + 1) / 2 for new, record in zip(computed, answered)
        ),
        decode_context=sum(
            record.num_tokens * (record.request.num_prompt_tokens + record.num_tokens / 2) for record in answered
        ),
        steps=sum(report.num_steps for report in fleet.reports),
        seconds=busy,
    )
    busy_watts, busy_share = power.watts(shares.flops, shares.bytes), busy / up
    watts = power.idle + (busy_watts - power.idle) * busy_share
    joules = watts * up * deployment.placement.accelerators / tokens
    return Energy(power, busy_share, busy_watts, watts, joules)
