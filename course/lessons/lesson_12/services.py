"""The incidents of the lesson, and what changes do to them."""

import math
from collections.abc import Sequence

from course.incidents import Incident
from course.incidents.dumps.sums import sums_of
from course.incidents.interventions import BY_ID
from course.incidents.outcome import Effect
from course.incidents.reveal import Reveal
from course.lab.display import Html, as_table
from course.lab.predict import Outcome
from course.lab.style import number, seconds

FIRST, SECOND = 26, 22
"""Seeds. Two that look alike; that they do is tested."""
TRIED = (
    "kv_budget", "int8_kv", "double_fleet", "warm_pool", "bound_queue", "more_slots", "fewer_slots", "int8_weights",
    "smaller_chunks", "output_limit",
)  # fmt: skip
"""Changes that are tried out on the second."""
NONE_HELPS = "none of them"
ROWS = ("TTFT p95", "ITL, largest gap, p95", "E2E p95")


def first() -> Incident:
    """The one to play."""
    return Incident.generate(FIRST)


def second() -> Incident:
    """The one that is taken apart in cells."""
    return Incident.generate(SECOND)


def texts(*ids: str) -> list[str]:
    """What these changes are, in words, in alphabetical order; and that none of them may help."""
    return [*sorted(BY_ID[name].text for name in ids), NONE_HELPS]


def tried(incident: Incident, ids: Sequence[str]) -> tuple[Outcome, Html]:
    """Deploy each change by itself, on held-out traffic; which one restores the SLO best?

    Args:
        ids: the first one is the deployment that is graded.
    """
    first = incident.deploy(ids[:1])
    incident.grade()  # from here on nothing counts
    effects = [first, *(incident.deploy([name]) for name in ids[1:])]
    kept = [effect for effect in effects if effect.restored]
    best = BY_ID[max(kept, key=lambda effect: effect.after).chosen[0]].text if kept else NONE_HELPS
    told = "; ".join(f"{BY_ID[e.chosen[0]].text}: {e.before:.0%} to {e.after:.0%}" for e in effects)
    return Outcome(best, f"requests within the SLO. {told}"), side_by_side(effects)


def side_by_side(effects: Sequence[Effect]) -> Html:
    """Before, and after each change."""
    limits = effects[0].table["limit"]
    rows = [_row("as it was", effects[0], "before", effects[0].before, effects[0].bill_before)]
    rows += [_row(BY_ID[e.chosen[0]].text, e, "after", e.after, e.bill_after) for e in effects if e.possible]
    limit = ("limit", f"{effects[0].target:.0%}", *(seconds(limits[name]) for name in ROWS), "", "")
    return as_table(("change", "within SLO", *ROWS, "unanswered", "$ an hour"), [*rows, limit])


def _row(name: str, effect: Effect, column: str, share: float, bill: float) -> tuple[str, ...]:
    column = effect.table[column]
    lost = f"{column['not answered']:.0%}"
    times = ("never" if column[name] == math.inf else seconds(column[name]) for name in ROWS)
    return (name, f"{share:.0%}", *times, lost, f"{bill:.2f}")


def sums(incident: Incident) -> Html:
    """What can be multiplied, and what comes out."""
    found = sums_of(incident.window)
    rows = [
        ("requests a second", number(found.rate)),
        ("prompt, tokens, mean", number(found.prompt)),
        ("answer, tokens, mean", number(found.output)),
        ("TTFT, mean", seconds(found.ttft)),
        ("E2E, mean", seconds(found.e2e)),
        ("KV pool, tokens", str(found.pool)),
        ("rate x E2E (in flight, if it were steady)", number(found.in_flight)),
        ("prefill of all prompts, over the peak of the GPUs", f"{found.prefill_share:.0%}"),
    ]
    return as_table(("number", "value"), rows)


def truth(incident: Incident) -> Reveal:
    """The reveal, with the counterfactuals of a dozen changes."""
    return incident.reveal(TRIED)
