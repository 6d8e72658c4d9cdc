"""What a change did: the same held-out traffic before and after, side by side.

Only the numbers that changes are judged by stay of each play: the moments of every token of every change would be
hundreds of megabytes.
"""

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from course.incidents.evidence import NamedRows, as_html, as_text
from course.incidents.interventions import ALL, BY_ID, EFFORTS, SOON, Intervention, applied
from course.incidents.numbers import latencies
from course.incidents.service import ServicePlay, SimulatedService, play
from course.lab.style import ALARM, COLOURS, WIDTH
from course.lab.svg import Picture, Scale, line, tag, text
from course.lab.visits import mean
from course.simulator.cluster.events import rare_collections
from course.simulator.cost.hardware import find_hardware
from minillm.core.brief import brief
from minillm.core.errors import MinillmError

if TYPE_CHECKING:
    import pandas as pd

WORSE = 1.25
"""A percentile that grew by this factor, and is over its limit, is a regression."""
NOTABLE = 0.1
"""Where so many more requests are answered, latencies aren't compared: before, only the lucky ones had any."""
FEW_TURNED_AWAY = 0.01
"""Share of requests that a change may leave without an answer and still do no harm: so few are noise."""
MACHINES_WEIGH, FOR_HOURS = 0.4, 0.1
"""In shares of requests: what doubling the bill takes off an intervention's value, for good, and for a few hours."""
YOUNG = 1
"""Generations of objects up to this one are those that the play itself has made; looking at older ones takes long."""
LIMITED = {"ttft": "TTFT", "itl": "largest gap", "tpot": "TPOT", "e2e": "E2E"}
"""What latencies are called in a table, by the name of their limit; the percentile follows."""
UNANSWERED = "not answered in full"


@dataclass(frozen=True)
class ServiceTrial:
    """What is kept of a play."""

    service: SimulatedService
    seed: int
    attainment: float
    """Share of all requests within the SLO."""
    offered: float
    """Requests, let in or not."""
    latencies: Mapping[str, Sequence[float]]
    """By the name of the limit, seconds of each request that was answered, at the client."""
    bill: float
    """Dollars an hour for the accelerators that were up, averaged over the run."""

    __repr__ = brief


def trial_of(one: ServicePlay) -> ServiceTrial:
    """The numbers of a play."""
    up = one.run.replica_seconds / one.run.duration if one.run.duration else 0.0
    bill = up * one.service.tp * (find_hardware(one.service.hardware).price_per_hour or 0.0)
    offered = len(one.run.records) / one.service.admitted
    return ServiceTrial(one.service, one.seed, one.attainment, offered, latencies(one), bill)


class ServiceTrials:
    """Plays services on the held-out traffic; nothing is played twice.

    Args:
        last_week: what users were used to.
    """

    def __init__(self, seeds: tuple[int, ...], last_week: SimulatedService) -> None:
        self._seeds, self._last_week = seeds, last_week
        self._done: list[ServiceTrial] = []

    def of(self, service: SimulatedService) -> tuple[ServiceTrial, ...]:
        """One for each seed.

        Raises:
            PricingError: such a service cannot be built.
        """
        return tuple(self._trial(service, seed) for seed in self._seeds)

    def attainment(self, service: SimulatedService) -> float:
        """Share of requests that met the SLO, over all held-out traffic."""
        return mean([one.attainment for one in self.of(service)])

    def reach(self, service: SimulatedService, target: float) -> bool:
        """Whether so large a share met the SLO. A service that falls far short on some of the traffic isn't played on
        the rest.

        Raises:
            PricingError: such a service cannot be built.
        """
        return all(self.at_most(service, num) >= target for num in range(1, len(self._seeds) + 1))

    def at_most(self, service: SimulatedService, num_seeds: int = 1) -> float:
        """What `attainment` can be at most, as far as so much of the traffic tells: all of the rest meets the SLO."""
        met = [self._trial(service, seed).attainment for seed in self._seeds[:num_seeds]]
        return mean([*met, *[1.0] * (len(self._seeds) - num_seeds)])

    def canary(self) -> "ServiceTrials":
        """On one of the seeds only."""
        return ServiceTrials(self._seeds[:1], self._last_week)

    def lost(self, now: SimulatedService, changed: SimulatedService) -> float:
        """Share of their tokens, prompt or answer, that users no longer get: of today's, or of last week's if those
        were fewer.
        """
        had = map(min, self._last_week.mean_tokens, now.mean_tokens)
        return max(0.0, *(1 - left / before for before, left in zip(had, changed.mean_tokens)))

    def _trial(self, service: SimulatedService, seed: int) -> ServiceTrial:
        for done in self._done:
            if done.seed == seed and done.service == service:
                return done
        with rare_collections():  # collected once, when only the numbers are still needed
            self._done.append(trial_of(play(service, seed)))
            gc.collect(YOUNG)  # what plays leave behind would add up
        return self._done[-1]


@dataclass(frozen=True)
class Effect:
    """A service before and after some changes."""

    chosen: tuple[str, ...]
    """Ids of the changes."""
    before: float
    """Share of requests within the SLO."""
    after: float
    target: float
    bill_before: float
    """Dollars an hour for machines."""
    bill_after: float
    numbers: NamedRows
    """Latencies and failures; columns before, after, limit."""
    regressions: tuple[str, ...]
    minutes: int = 0
    """From the decision until all users have it: the slowest of the changes."""
    lost: float = 0.0
    """Share of what they asked for that answered users no longer get: tokens, or quality that fewer bits cost."""
    turned_away: float = 0.0
    """Share of all requests that had an answer, late or not, until the change, and have none with it."""
    possible: bool = True
    """Whether such a service can be built."""

    __repr__ = brief

    @property
    def table(self) -> "pd.DataFrame":
        """The numbers, to compute with."""
        return self.numbers.frame()

    @property
    def restored(self) -> bool:
        return self.possible and self.after >= self.target

    @property
    def is_quick(self) -> bool:
        """Whether it can end the incident, and is no matter of days."""
        return self.minutes <= EFFORTS[SOON]

    @property
    def growth(self) -> float:
        """How much the bill grew, as a share of what it was."""
        return self.bill_after / self.bill_before - 1 if self.bill_before else 0.0

    @property
    def value(self) -> float:
        """Requests saved, each worth what its user still gets of it, less what machines cost; 0 = cannot be built."""
        return self._worth(MACHINES_WEIGH)

    @property
    def relief(self) -> float:
        """The same until there is something better: machines are paid for hours."""
        return self._worth(FOR_HOURS)

    def _worth(self, machines_weigh: float) -> float:
        machines = machines_weigh * min(max(self.growth, 0.0), 1.0)
        return self.after * (1 - self.lost) - self.before - machines if self.possible else 0.0

    def __str__(self) -> str:
        worse = f" Users lose {self.lost:.0%} of what they asked for." if self.lost else ""
        worse += f" {self.refusal}" if self.turns_away else ""
        worse += f" Worse now: {', '.join(self.regressions)}." if self.regressions else ""
        return f"{self.names}: {self.told}{worse}\n{as_text(self.numbers)}"

    @property
    def turns_away(self) -> bool:
        """Whether it's more than a few: for their users nothing is restored, whatever the others' SLO says."""
        return self.turned_away > FEW_TURNED_AWAY

    @property
    def refusal(self) -> str:
        """Whom it turns away, in a sentence."""
        return f"{self.turned_away:.1%} of requests were answered without it and get no answer with it."

    @property
    def names(self) -> str:
        """What was changed, in words."""
        return "; ".join(BY_ID[name].text for name in self.chosen) or "Nothing"

    @property
    def after_told(self) -> str:
        """`after` in percent; a near miss isn't rounded up to the target."""
        is_near_miss = round(self.after, 2) >= self.target > self.after
        return f"{math.floor(self.after * 1000) / 1000:.1%}" if is_near_miss else f"{self.after:.0%}"

    @property
    def told(self) -> str:
        """What came of it, in a sentence."""
        return (
            f"{self.before:.0%} -> {self.after_told} of requests within the SLO (target {self.target:.0%}): the SLO is "
            f"{'met' if self.restored else 'missed'}. ${self.bill_before:.2f} -> ${self.bill_after:.2f} an hour."
        )

    def _repr_html_(self) -> str:
        first, _, _ = str(self).partition("\n")
        return f'<p style="line-height:1.4">{escape(first)}</p>{self._drawn().svg()}{as_html(self.numbers)}'

    def _drawn(self) -> Picture:
        """Requests within the SLO: the bar of after grows, or shrinks, from before's."""
        scale, body = Scale(0, 1, 60, WIDTH - 60), ""
        for y, name, share in ((4, "before", self.before), (28, "after", self.after)):
            ends = {"from_": scale(self.before) - 60, "to": scale(share) - 60}
            grow = tag("animate", attributeName="width", dur="1.2s", fill="freeze", **ends)
            look = {"fill": COLOURS[0], "fill_opacity": 0.4 if name == "before" else 1.0}
            body += tag("rect", grow, x=60, y=y, width=ends["to"], height=18, **look)
            body += text(54, y + 13, name, text_anchor="end") + text(WIDTH - 54, y + 13, f"{share:.0%}")
        goal = scale(self.target)
        body += line(goal, 0, goal, 50, stroke=ALARM, stroke_dasharray="4 3")
        return Picture("Requests within the SLO (dashed: the target)", body, 52)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        fields = ("before", "after", "target", "restored", "bill_before", "bill_after", "lost", "turned_away")
        return {
            "deployed": list(self.chosen),
            **{name: getattr(self, name) for name in fields},
            "regressions": list(self.regressions),
            "table": self.numbers.records(),
        }


def effect_of(chosen: Sequence[Intervention], service: SimulatedService, trials: ServiceTrials) -> Effect:
    """Deploy some interventions, and look at what they did on held-out traffic."""
    names = tuple(intervention.id for intervention in chosen)
    before = trials.of(service)
    share, bill = trials.attainment(service), bill_of(before)
    try:
        changed = applied(service, chosen)
        after = trials.of(changed)
    except MinillmError as error:
        why = NamedRows({"cannot be built": {"why": str(error)}})
        return Effect(names, share, share, service.target, bill, bill, why, (), possible=False)
    lost = lost_to(chosen, service, changed, trials)
    minutes = max((each.minutes for each in chosen), default=0)
    old, new = (_numbers(each, service.target) for each in (before, after))
    limits = dict(zip(old, [*(getattr(service.slo, name) for name in LIMITED), 1 - service.target]))
    rows = {name: {"before": old[name], "after": new[name], "limit": limits[name]} for name in old}
    is_alike = old[UNANSWERED] - new[UNANSWERED] <= NOTABLE
    worse = tuple(n for n in rows if is_alike and new[n] > WORSE * old[n] and new[n] > limits[n])
    table = NamedRows(rows, "seconds, or share")
    turned_away = max(new[UNANSWERED] - old[UNANSWERED], 0.0)
    kept = trials.attainment(changed)
    return Effect(names, share, kept, service.target, bill, bill_of(after), table, worse, minutes, lost, turned_away)


def lost_to(
    chosen: Sequence[Intervention], service: SimulatedService, changed: SimulatedService, trials: ServiceTrials
) -> float:
    """Share of what they asked for that answered users no longer get: see `Effect.lost`."""
    return min(trials.lost(service, changed) + sum(each.quality for each in chosen), 1.0)


def most_relief(intervention: Intervention, service: SimulatedService, trials: ServiceTrials) -> float:
    """What `Effect.relief` of one intervention can be at most, as far as the first of the held-out traffic tells."""
    before = trials.attainment(service)
    try:
        changed = applied(service, [intervention])
        after = trials.at_most(changed)
    except MinillmError:
        return 0.0
    return after * (1 - lost_to([intervention], service, changed, trials)) - before


def _numbers(trials: Sequence[ServiceTrial], target: float) -> dict[str, float]:
    """Latencies in seconds, at the SLO's own percentile of all requests, for one without an answer waits for ever; and
    the share of those whose answer never came, or was cut short, at the client.
    """
    pooled = {name: sorted(value for one in trials for value in one.latencies[name]) for name in LIMITED}
    num_answered, offered = len(pooled["e2e"]), sum(one.offered for one in trials)
    rank = max(math.ceil(target * offered) - 1, 0)
    found = {
        f"{words} p{100 * target:.0f}": pooled[name][rank] if rank < num_answered else math.inf
        for name, words in LIMITED.items()
    }
    return {**found, UNANSWERED: 1 - num_answered / offered if offered else 0.0}


def bill_of(trials: Sequence[ServiceTrial]) -> float:
    """Dollars an hour for the accelerators that were up, averaged over the runs."""
    return mean([one.bill for one in trials])


def counterfactuals(service: SimulatedService, trials: ServiceTrials, tried: Sequence[Intervention] = ALL) -> NamedRows:
    """Each intervention alone: share of requests within the SLO, and the bill; the most valuable first."""
    rows = {}
    for intervention in tried:
        effect = effect_of([intervention], service, trials)
        rows[intervention.id] = {
            "effort": intervention.effort,
            "before": effect.before,
            "after": effect.after,
            "restored": effect.restored,
            "$ an hour": effect.bill_after,
            "value": effect.value,
        }
    return NamedRows(dict(sorted(rows.items(), key=lambda row: -row[1]["value"])))
