"""What a change did: the same held-out traffic before and after, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from course.lab.incidents.evidence import as_html, written
from course.lab.incidents.interventions import ALL, BY_ID, Intervention, applied
from course.lab.incidents.service import Service
from course.lab.incidents.trials import Trial, Trials
from course.lab.run import percentile
from minillm.core.errors import MinillmError

WORSE = 1.25
"""A percentile that grew by this factor, and is over its limit, is a regression."""
MACHINES_WEIGH = 0.4
"""In shares of requests: what doubling the bill takes off an intervention's value."""
LOSS_WEIGHS = 0.05
"""The same for what users lose."""


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
    table: pd.DataFrame
    """Latencies and failures; columns before, after, limit."""
    regressions: tuple[str, ...]
    possible: bool = True
    """Whether such a service can be built."""

    @property
    def restored(self) -> bool:
        return self.possible and self.after >= self.target

    @property
    def growth(self) -> float:
        """Of the bill, as a share of what it was."""
        return self.bill_after / self.bill_before - 1 if self.bill_before else 0.0

    def __str__(self) -> str:
        verdict = "the promise is kept" if self.restored else "the promise is broken"
        told = (
            f"{'; '.join(BY_ID[name].text for name in self.chosen) or 'Nothing'}: "
            f"{self.before:.0%} -> {self.after:.0%} of requests within the SLO "
        )
        told += f"(promised {self.target:.0%}): {verdict}. ${self.bill_before:.2f} -> ${self.bill_after:.2f} an hour."
        worse = f" Worse now: {', '.join(self.regressions)}." if self.regressions else ""
        return f"{told}{worse}\n{self.table.to_string(float_format=written)}"

    def _repr_html_(self) -> str:
        first, _, _ = str(self).partition("\n")
        return f"<p>{escape(first)}</p>{as_html(self.table)}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "deployed": list(self.chosen), "before": self.before, "after": self.after, "target": self.target,
            "restored": self.restored, "bill_before": self.bill_before, "bill_after": self.bill_after,
            "regressions": list(self.regressions), "table": self.table.reset_index().to_dict("records"),
        }  # fmt: skip


def effect_of(chosen: Sequence[Intervention], service: Service, trials: Trials) -> Effect:
    """Deploy some interventions, and look at what they did on held-out traffic."""
    names = tuple(intervention.id for intervention in chosen)
    before = trials.of(service)
    share, bill = trials.attainment(service), bill_of(before)
    try:
        changed = applied(service, chosen)
        after = trials.of(changed)
    except MinillmError as error:
        table = pd.DataFrame({"why": [str(error)]}, index=["cannot be built"])
        return Effect(names, share, share, service.target, bill, bill, table, (), possible=False)
    table = compared(before, after)
    growing = [
        name for name, row in table.iterrows()
        if row["after"] > WORSE * row["before"] and row["after"] > row["limit"]
    ]  # fmt: skip
    return Effect(
        names, share, trials.attainment(changed), service.target, bill, bill_of(after), table, tuple(map(str, growing))
    )


def compared(before: Sequence[Trial], after: Sequence[Trial]) -> pd.DataFrame:
    """p95 of latencies in seconds and the share of failures, at the client."""
    slo = before[0].service.slo
    limits = {"TTFT p95": slo.ttft, "ITL, largest gap, p95": slo.itl, "TPOT p95": slo.tpot, "E2E p95": slo.e2e,
              "not answered": 1 - before[0].service.target}  # fmt: skip
    columns = {"before": _numbers(before), "after": _numbers(after), "limit": limits}
    table = pd.DataFrame(columns)
    table.index.name = "seconds, or share"
    return table


def _numbers(trials: Sequence[Trial]) -> dict[str, float]:
    pooled = {name: [value for one in trials for value in one.latencies[name]] for name in trials[0].latencies}
    num_answered, offered = len(next(iter(pooled.values()))), sum(one.offered for one in trials)
    found = {name: percentile(values, 95) or 0.0 for name, values in pooled.items()}
    return {**found, "not answered": 1 - num_answered / offered if offered else 0.0}


def bill_of(trials: Sequence[Trial]) -> float:
    """Dollars an hour for the accelerators that were up, averaged over the runs."""
    return sum(one.bill for one in trials) / len(trials)


def value_of(intervention: Intervention, effect: Effect) -> float:
    """What an intervention is worth on its own: requests saved, less what it costs. What users lose counts even when
    nothing is gained; one that cannot be built is worth 0.
    """
    if not effect.possible:
        return 0.0
    loss = LOSS_WEIGHS if intervention.loss else 0.0
    return effect.after - effect.before - MACHINES_WEIGH * min(max(effect.growth, 0.0), 1.0) - loss


def counterfactuals(service: Service, trials: Trials, tried: Sequence[Intervention] = ALL) -> pd.DataFrame:
    """Each intervention alone: share of requests within the SLO, and what the machines cost."""
    rows = {}
    for intervention in tried:
        effect = effect_of([intervention], service, trials)
        rows[intervention.id] = {
            "phase": intervention.phase, "before": effect.before, "after": effect.after, "restored": effect.restored,
            "$ an hour": effect.bill_after, "value": value_of(intervention, effect),
        }  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index").sort_values("value", ascending=False, kind="stable")
