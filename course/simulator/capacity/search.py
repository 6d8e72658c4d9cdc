"""The cheapest plan over cards and tensor parallel degrees, as Vidur searches (Agrawal et al. 2024, arXiv 2405.05465).

Every candidate is a worksheet of its own. They are tried in the order of what they would cost at least, by the data
sheet; who would cost more than twice the best plan so far, by that or by one run, is left out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from course.simulator.capacity.plan import price_of_replica, worksheet_for
from course.simulator.capacity.worksheet import CapacityPlan, Worksheet, plan_capacity
from course.simulator.cost.hardware import CATALOGUE
from course.simulator.cost.roofline import ROOFLINE
from course.simulator.deployment import Deployment
from course.simulator.errors import DoesNotFitError, PricingError, SimulationError
from course.simulator.report import stack_lines
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.requests import Traffic, Workload, make_workload
from course.summary import SLO
from minillm.core.brief import brief
from minillm.observe.tables import text_table

DEGREES = (1, 2, 4, 8)
"""Tensor parallel degrees that are tried."""
WORTH_TELLING = 2.0
"""Plans that cost more than so many times the best are left out."""
NOT_TRIED_OUT = (
    "replicas: demand over knee (each/s), not tried out as fleets; --plan without --search does that for one"
)
"""Below the table. A fleet of conversations can need more: its router leaves their prefixes behind."""
SAMPLED = 200
"""Requests that tell the mean lengths."""
MakeDeployment = Callable[[str, int], Deployment]
"""By a card's name and a tensor parallel degree."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One card, so many to a replica."""

    card: str
    tp: int
    deployment: Deployment
    at_least: float
    """Dollars per hour for the demand; see `cost_at_least`."""

    def __str__(self) -> str:
        return f"{self.tp} x {self.card}"


@dataclass(frozen=True, slots=True)
class Search:
    """What was found."""

    plans: tuple[tuple[Candidate, CapacityPlan], ...]
    """Cheapest first."""
    left_out: tuple[tuple[str, str], ...]
    """Candidates that have no plan, each with the reason."""

    __repr__ = brief

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        plans = [{"card": found.card, "tp": found.tp, **plan.to_dict()} for found, plan in self.plans]
        return {"plans": plans, "left_out": dict(self.left_out)}

    def __str__(self) -> str:
        rows = [
            (
                str(found),
                str(plan.replicas),
                str(plan.replicas * sum(plan.in_each.values()) * found.tp),
                f"{plan.knee:.2f}",
                f"{plan.cost_per_hour:,.2f}",
                f"{plan.output_cost_per_million:.3f}",
                plan.limits.binding,
            )
            for found, plan in self.plans
        ]
        head = ("a replica is", "replicas", "GPUs", "each/s", "$ an hour", "$ per million out", "what binds")
        reasons: dict[str, list[str]] = {}
        for name, why in self.left_out:
            reasons.setdefault(why, []).append(name)
        lines = [
            text_table(head, rows),
            NOT_TRIED_OUT,
            *(f"not {', '.join(who)}: {why}" for why, who in reasons.items()),
        ]
        if self.plans:
            lines += stack_lines(self.plans[0][0].deployment.profile.provenance, "each card")
        return "\n".join(lines)


def search_plans(
    make: MakeDeployment,
    traffic: Traffic | Workload,
    slo: SLO,
    demand: float,
    *,
    cards: Sequence[str] = (),
    degrees: Iterable[int] = DEGREES,
    headroom: float = 0.0,
    **options: Any,
) -> Search:
    """Plans for every card and degree that could be the cheapest.

    Args:
        make: makes a replica.
        demand: requests per second.
        cards: none = all of the catalogue that have a price.
        headroom: as of `plan_capacity`.
        options: further arguments of Worksheet.
    Raises:
        WorkloadError: no limit, or an argument out of range.
    """
    cards = cards or [name for name, hardware in CATALOGUE.items() if hardware.price_per_hour is not None]
    left_out: list[tuple[str, str]] = []
    candidates: list[Candidate] = []
    for card in cards:
        for tp in degrees:
            try:
                deployment = make(card, tp)
                at_least = cost_at_least(deployment, traffic, demand)
            except DoesNotFitError:
                left_out.append((f"{tp} x {card}", "the weights leave no room for a KV cache"))
                continue
            except PricingError as error:
                left_out.append((f"{tp} x {card}", str(error)))
                continue
            candidates.append(Candidate(card, tp, deployment, at_least))
    found: list[tuple[Candidate, CapacityPlan]] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.at_least):
        worth = WORTH_TELLING * min((plan.cost_per_hour for _, plan in found), default=math.inf)
        sheet = worksheet_for(candidate.deployment, traffic, slo, **options)
        price = price_of_replica(candidate.deployment) * sum(sheet.in_each.values())
        try:
            if max(candidate.at_least, price) > worth or (
                found and not holds(sheet, demand / (worth // price) / (1 - headroom))
            ):
                left_out.append((str(candidate), f"more than ${worth:,.2f} an hour"))
                continue
            plan = plan_capacity(sheet, demand, price_per_hour=price, headroom=headroom, try_out=False)
        except SimulationError as error:
            left_out.append((str(candidate), str(error)))
            continue
        found.append((candidate, plan))
    found.sort(key=lambda pair: pair[1].cost_per_hour)
    worth = WORTH_TELLING * found[0][1].cost_per_hour if found else math.inf
    told = [pair for pair in found if pair[1].cost_per_hour <= worth]  # those before the best were planned, too
    left_out += [(str(candidate), f"more than ${worth:,.2f} an hour") for candidate, _ in found[len(told) :]]
    return Search(tuple(told), tuple(left_out))


def holds(sheet: Worksheet, rate: float) -> bool:
    """Whether a replica serves this rate. True if not even an idle one meets the limits, which the plan will tell."""
    return sheet.idle().attainment < sheet.target or sheet.holds(rate)


def cost_at_least(deployment: Deployment, traffic: Traffic | Workload, demand: float) -> float:
    """Dollars per hour, if all arithmetic ran at the peak, or if a step took no longer than to read the weights, and as
    many requests as the memory or `max_num_seqs` hold were always in it."""
    sample = traffic if isinstance(traffic, Workload) else make_workload(traffic, Poisson(rate=1), num_requests=SAMPLED)
    prompts = sample.num_prompt_tokens if sample.shares_nothing else 0  # else they might all be found
    tokens = (prompts + sample.num_output_tokens) / len(sample)
    step, pp = deployment.with_constants(ROOFLINE).step_time(), deployment.placement.pp
    mean_context = (prompts + sample.num_output_tokens / 2) / len(sample)
    room = deployment.num_kv_blocks * deployment.block_size / max(mean_context, 1)
    decode_s = step.weights_s / min(room, deployment.config.max_num_seqs) * sample.num_output_tokens / len(sample)
    return price_of_replica(deployment) * max(1.0, demand * tokens * step.token_s / pp, demand * decode_s)
