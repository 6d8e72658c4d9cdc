"""Incidents as recordings for static/incident.js: the answers to all questions at some minutes, what each change does.

python -m course.site.incidents      record all anew, into course/data/site/incidents (minutes)
"""

import gzip
import json
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from course.incidents import marking
from course.incidents.causes import CAUSES
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
from course.incidents.interventions import NOW
from course.incidents.numbers import PLACES, waiting_while_traffic_comes
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
    told.answer("outside")
    said = {each.name: each.feedback for each in told.grade().criteria}
    now, half = hidden.case.now, hidden.case.now.during(PAGED_AT)
    changes = {name: find_intervention(name) for name in hidden.menu}
    convict, enough, moved = marking.convicting(hidden)
    best = best_at_once(hidden, trials)
    later = dict.fromkeys(("PROMPT", "BRISK", "SLOW"), marking.longer_than_at_once(best))
    return {
        "id": f"{cause}-{seed}",
        "page": told.page._repr_html_(),
        "alarm": told.page.alarm,
        "questions": [question.to_dict() for question in told.questions()],
        "stages": [_stage(hidden, minute) for minute in STAGES],
        "changes": [
            {
                "id": name,
                "text": change.text,
                "cost": change.cost,
                "minutes": change.minutes,
                "quick": change.is_quick,
                "now": change.effort == NOW,
                "all": _effect(effect_of([change], now, trials)),
                "canary": _effect(effect_of([change], half, trials.canary())),
            }
            for name, change in changes.items()
        ],
        "places": PLACES,
        "suspects": [
            {"id": each.name, "title": each.title, "alike": marking.likeness(hidden, each.name)}
            for each in told.suspects()
        ],
        "named": [hidden.cause.name, *hidden.cause.names],
        "rules_out": {
            asked: [name for name in hidden.suspects if marking.rules_out(hidden, asked, name)] for asked in hidden.asks
        },
        "best": best.relief,
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
            "mitigation": marking.most_of_all(best),
        },
        "fixes": hidden.fixes,
        "needed": bill_of_cure(hidden, trials),
        "tempting": {"id": hidden.cause.tempting, "why_not": hidden.cause.why_not},
        "target": hidden.case.target,
        "told": told.reveal(changes=()).told,
        "rules": {name: getattr(marking, name) + later.get(name, 0) for name in RULES},
        "clock": CLOCK,
    }


def _stage(hidden: Hidden, minute: int) -> dict[str, Any]:
    scene = hidden.scene_at(minute)
    answers = {name: BY_ID[name].find_out(scene)._repr_html_() for name in hidden.asks}
    return {
        "minute": minute,
        "failing": 1 - scene.now.attainment,
        "waiting": waiting_while_traffic_comes(scene.now)[-1],
        "answers": answers,
    }


def _effect(effect: Effect) -> dict[str, Any]:
    fields = ("before", "after", "restored", "regressions", "bill_before", "bill_after", "lost", "value", "relief")
    return {**{name: getattr(effect, name) for name in fields}, "html": effect._repr_html_()}


def record(name: tuple[str, int]) -> str:
    """Write one incident's file; why not, if it can't be recorded."""
    try:
        found = recorded(*name)
    except IncidentError as error:
        return f"left out: {error}"
    path = FOLDER / f"{found['id']}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))
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
