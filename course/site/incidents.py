"""Incidents as recordings for static/incident.js, which plays them to the console: the state that a session begins
with, the answers to all questions at some minutes, what each change does, and the truth.

python -m course.site.incidents      record all anew, into course/data/site/incidents (minutes)
"""

import gzip
import json
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from course.incidents import marking
from course.incidents.causes import CAUSES
from course.incidents.console import (
    ConsoleSession,
    failure_curve,
    milestones,
    shown_comparison,
    shown_effect,
    shown_evidence,
    truth_of,
)
from course.incidents.generate import (
    PAGED_AT,
    RUN_MINUTES,
    Hidden,
    IncidentError,
    best_at_once,
    bill_of_cure,
    find_intervention,
    generate,
)
from course.incidents.incident import MINUTES_A_DAY, TO_CANARY, TO_PLAN, TO_ROLL_BACK, Incident
from course.incidents.numbers import waiting_while_traffic_comes
from course.incidents.outcome import Effect, effect_of
from course.incidents.questions import BY_ID
from course.lab.build import RECORDED

FOLDER = RECORDED / "incidents"
CAUSES_SHOWN = (
    *("overload", "client_cap", "few_slots", "hot_replica", "unchunked", "longer_prompts", "prefix_breaker", "kv_pool"),
    *("thrash", "launch_bound", "output_drift", "proxy", "ingress", "straggler"),
)
SEEDS = (1, 2)
STAGES = (0, 15, 30, 60)
"""Minutes after the page at which answers are recorded; between them the page shows the last one before."""
CLOCK = dict(paged=PAGED_AT * RUN_MINUTES, day=MINUTES_A_DAY, canary=TO_CANARY, plan=TO_PLAN, back=TO_ROLL_BACK)
"""Minutes."""
SAID = ("MITIGATED", "CAUSE", "PHASE", "SECONDARY", "REGIME", "EVIDENCE", "RULED_OUT", "SOON")
POINTS = (*SAID, "RESTORED", "HARM", "COST", "RANKING")
SHARES = (
    "HALFWAY",
    "UNDONE",
    "CANARY_UNDONE",
    "ALL_UNDONE",
    "TOLERATED",
    "PER_STRAY",
    "UNNAMED",
    "WITHOUT_ALTERNATIVE",
)
RULES = (*POINTS, *SHARES, "PROMPT", "BRISK", "SLOW", "NOTHING_HELPS")


def recorded(cause: str, seed: int) -> dict[str, Any]:
    """One incident of difficulty 1, whole.

    Raises:
        IncidentError: it does not come out of this seed, or takes two changes at once.
    """
    hidden, trials = generate(seed, 1, cause)
    if hidden.cause.together:
        raise IncidentError(f"{cause} takes two changes at once")
    told = Incident(hidden, trials, cause, short=True)
    start = ConsoleSession(told).state()
    told.answer("outside")
    said = {each.name: each.feedback for each in told.grade().criteria}
    truth = told.reveal()
    now, half = hidden.case.now, hidden.case.now.during(PAGED_AT)
    changes = {name: find_intervention(name) for name in hidden.menu}
    convict, enough, moved = marking.convicting(hidden)
    return {
        "id": f"{cause}-{seed}",
        "alarm": told.page.alarm,
        "start": {**start, "title": "", "practice": False},
        "curve": failure_curve(hidden.scene_at(STAGES[-1]).now, hidden.case),
        "questions": [question.to_dict() for question in told.questions()],
        "stages": [_stage(hidden, minute) for minute in STAGES],
        "changes": [
            {
                "id": name,
                "text": change.text,
                "cost": change.cost,
                "minutes": change.minutes,
                "quick": change.is_quick,
                "all": _effect(effect_of([change], now, trials), False),
                "canary": _effect(effect_of([change], half, trials.canary()), True),
            }
            for name, change in changes.items()
        ],
        "suspects": [
            {"id": each.name, "title": each.title, "alike": marking.likeness(hidden, each.name)}
            for each in told.suspects()
        ],
        "named": [hidden.cause.name, *hidden.cause.names],
        "rules_out": {
            asked: [name for name in hidden.suspects if marking.rules_out(hidden, asked, name)] for asked in hidden.asks
        },
        "best": best_at_once(hidden, trials),
        "splits": sorted(marking.SPLITS),
        "dominant": sorted(marking.dominant_phases(hidden)),
        "second": sorted(name or "" for name in marking.second_phases(hidden)),
        "phase": hidden.cause.phase,
        "regime": hidden.cause.regime,
        "convict": convict,
        "enough": enough,
        "moved": sorted(moved),
        "twin": CAUSES[hidden.cause.looks_like].title,
        "says": {
            **{name: said[name] for name in ("dominant phase", "spike or steady", "ruled out")},
            "cause": f"It's {hidden.cause.title}.",
            "mitigation": marking.most_of_all(hidden),
        },
        "fixes": hidden.fixes,
        "needed": bill_of_cure(hidden, trials),
        "tempting": {"id": hidden.cause.tempting, "why_not": hidden.cause.why_not},
        "target": hidden.case.target,
        "truth": {
            **truth_of(truth),
            "changes": shown_comparison(truth),
            "milestones": milestones(None, None, None),
            "notes": [],
        },
        "rules": {name: getattr(marking, name) for name in RULES},
        "clock": CLOCK,
    }


def _stage(hidden: Hidden, minute: int) -> dict[str, Any]:
    scene = hidden.scene_at(minute)
    answers = {name: shown_evidence(BY_ID[name].find_out(scene), hidden.case, minute) for name in hidden.asks}
    return {
        "minute": minute,
        "failing": 1 - scene.now.attainment,
        "waiting": waiting_while_traffic_comes(scene.now)[-1],
        "answers": answers,
    }


def _effect(effect: Effect, canary: bool) -> dict[str, Any]:
    """What's shown of it, and what it's marked by."""
    fields = ("regressions", "bill_before", "bill_after", "value", "relief")
    return {**shown_effect(effect, canary), **{name: getattr(effect, name) for name in fields}}


def record(name: tuple[str, int]) -> str:
    """Write one incident's file; why not, if it can't be recorded."""
    try:
        found = recorded(*name)
    except IncidentError as error:
        return f"left out: {error}"
    path = FOLDER / f"{found['id']}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))
    return f"recorded {found['id']}"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json.gz"):
        old.unlink()
    names = [(cause, seed) for cause in CAUSES_SHOWN for seed in SEEDS]
    with ProcessPoolExecutor() as workers:
        for told in workers.map(record, names):
            print(told, flush=True)


if __name__ == "__main__":
    main()
