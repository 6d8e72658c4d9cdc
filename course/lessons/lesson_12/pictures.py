"""Tables of lesson 12, and one question put to both incidents, one panel above the other."""

import math
from collections.abc import Mapping, Sequence

from course.incidents import Incident
from course.incidents.dumps.sums import sums_of
from course.incidents.evidence import Evidence
from course.incidents.interventions import BY_ID as CHANGES
from course.incidents.outcome import LIMITED, UNANSWERED, Effect
from course.incidents.questions import BY_ID as QUESTIONS_BY_ID
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices
from course.lab.run import Run, percentile
from course.lab.style import number, seconds
from course.lessons.lesson_12.run import pool_held

SHOWN = tuple(LIMITED[name] for name in ("ttft", "itl", "e2e"))


def side_by_side(effects: Sequence[Effect]) -> Html:
    """Before, and after each change."""
    limits = effects[0].table["limit"]
    names = [name for name in limits.index if name.startswith(SHOWN)]
    rows = [_row("as it was", effects[0], "before", effects[0].before, effects[0].bill_before)]
    rows += [_row(CHANGES[e.chosen[0]].text, e, "after", e.after, e.bill_after) for e in effects if e.possible]
    limit = ("limit", f"{effects[0].target:.0%}", *(seconds(limits[name]) for name in names), "", "")
    return as_table(("change", "within SLO", *names, "unanswered", "$ an hour"), [*rows, limit])


def _row(name: str, effect: Effect, column: str, share: float, bill: float) -> tuple[str, ...]:
    column = effect.table[column]
    lost = f"{column[UNANSWERED]:.0%}"
    spent = (value for name, value in column.items() if name.startswith(SHOWN))
    times = ("never" if value == math.inf else seconds(value) for value in spent)
    return (name, f"{share:.0%}", *times, lost, f"{bill:.2f}")


def sums_table(incident: Incident) -> Html:
    """What can be multiplied, and what comes out."""
    found = sums_of(incident.window)
    rows = [
        ("requests a second", number(found.rate)),
        ("prompt, tokens, mean", number(found.prompt)),
        ("answer, tokens, mean", number(found.output)),
        ("TTFT, mean", seconds(found.ttft)),
        ("E2E, mean", seconds(found.e2e)),
        ("KV pool, tokens", str(found.pool)),
        ("rate × E2E (in flight, if the load were steady)", number(found.in_flight)),
        ("FLOP/s that all prompts need, of the GPUs' peak", f"{found.prefill_share:.0%}"),
    ]
    return as_table(("number", "value"), rows)


QUESTIONS_TO_BOTH = ("queue_over_time", "arrivals", "phases", "ttft_itl", "gpu", "batch", "kv_use", "preemptions")
"""From those that tell nothing apart to those that do."""


def beside(question: str, incidents: Mapping[str, Incident]) -> Html:
    """One question's answers, by whose they are."""
    found = {name: incident.ask(question) for name, incident in incidents.items()}
    parts = [_panel(f"{name}: {QUESTIONS_BY_ID[question].text}", evidence) for name, evidence in found.items()]
    return Html("".join(parts), "\n".join(f"{name}: {evidence.text}" for name, evidence in found.items()))


def _panel(title: str, evidence: Evidence) -> str:
    words = f"<p style='margin:2px 0 12px'>{evidence.text}</p>"
    if evidence.panel is None:
        return f"<b>{title}</b>{words}"
    return evidence.panel.draw(title).svg() + words


def both_incidents(first: Incident, second: Incident) -> Explorer:
    """A menu of the questions."""
    words = {QUESTIONS_BY_ID[name].text: name for name in QUESTIONS_TO_BOTH}
    return Explorer(
        lambda question: beside(words[question], {"yours": first, "the paged service": second}),
        question=choices("question", list(words), QUESTIONS_BY_ID["queue_over_time"].text),
    )


def engines_table(runs: Mapping[str, Run]) -> Html:
    """What each run shows: late first tokens in both, and two numbers that tell them apart."""
    rows = []
    for name, run in runs.items():
        running = max((step.num_running for step in run.steps), default=0)
        times = seconds(max(run.ttft)), seconds(percentile(run.itl, 50))
        rows.append((name, *times, f"{running} of {run.config.max_num_seqs}", f"{pool_held(run):.0%}"))
    return as_table(("engine", "TTFT, longest", "ITL p50", "most running, of its slots", "most KV reserved"), rows)
