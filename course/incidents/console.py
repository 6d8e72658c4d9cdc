"""The incident console's other half: an incident as one JSON state, and actions, JSON as well, that move it on.

It draws nothing and knows no widget: a notebook ferries states and actions to the browser (desk.py), and on a page the
tab's own Python makes them (course/tab/incidents.py). What a state holds is written down where it's read, in
course/lab/view/console_types.js.

    session = ConsoleSession(Incident.generate(seed=7))
    session.act({"do": "ask", "question": "ttft_itl"})    # the state after it
    session.act({"do": "deploy", "changes": ["revert"]})
"""

import math
from collections.abc import Callable
from typing import Any

from course.grading import Result
from course.grading.actions import Fields, checked
from course.incidents import marking
from course.incidents.causes import CAUSES
from course.incidents.causes.base import Case
from course.incidents.evidence import NO_DATA, Evidence, EvidencePanel, as_cells
from course.incidents.generate import PAGED_AT, RUN_MINUTES, IncidentError, find_intervention
from course.incidents.incident import GRADED, Incident
from course.incidents.interventions import NOW, Intervention
from course.incidents.numbers import PLACES, waiting_while_traffic_comes
from course.incidents.outcome import Effect
from course.incidents.questions import BY_ID as QUESTIONS
from course.incidents.questions_clients import TIME
from course.incidents.reveal import Reveal
from course.incidents.service import ServicePlay, met_by_request

State = dict[str, Any]
"""JSON-able; console_types.js says what's in it."""
CLOCK_AXIS = "minutes since the page"
BIN_MINUTES = 2
"""Requests that arrived in so many minutes are one point of the failure curve."""
DIGITS = 4
"""Significant digits of what is drawn: more can't be seen."""
FIELDS: Fields = {
    "look": {},
    "ask": {"question": str},
    "suspect": {"words": str},
    "deploy": {"changes": list, "canary": bool},
    "roll_back": {},
    "commit": {
        "cause": str,
        "phase": str,
        "second": str,
        "regime": str,
        "evidence": list,
        "other": str,
        "by": str,
        "ranked": list,
    },
    "grade": {"sure": bool},
    "compare": {},
}
"""What each action may bring along; what is left out is empty."""


class ConsoleSession:
    """One incident, played by actions.

    Args:
        incident: played by this session from here on.
        on_graded: called once, when it has its grade.
    """

    def __init__(self, incident: Incident, on_graded: Callable[[], None] = lambda: None) -> None:
        self.incident = incident
        self._on_graded = on_graded
        self._evidence: dict[str, State] = {}
        self._deployed: list[State] = []
        self._relief: State | None = None
        """Since when users are helped, and what share of requests still misses the SLO."""
        self._standing: tuple[str, ...] = ()
        self._answer: dict[str, Any] | None = None
        self._result: Result | None = None
        self._truth: Reveal | None = None
        self._share = ""
        """As of the grade: what is looked at after it doesn't count."""

    def act(self, action: object) -> State:
        """Do something, and see what there is then.

        Args:
            action: {"do": one of FIELDS, and its fields}.
        Raises:
            IncidentError: it's no action, comes out of turn, or names what doesn't exist.
        """
        do, given = checked(action, FIELDS, IncidentError)
        if self._result is not None and do not in ("look", "ask", "compare"):
            raise IncidentError("this incident has its grade: what comes after counts no more")
        getattr(self, f"_{do}")(**given)
        return self.state()

    # ---------------------------------------------------------------- actions

    def _look(self) -> None:
        """Nothing changes."""

    def _ask(self, question: str) -> None:
        self.incident.ask(question)

    def _suspect(self, words: str) -> None:
        if not words.strip():
            raise IncidentError("write down what you suspect; a few words will do")
        self.incident.suspect(words.strip())

    def _deploy(self, changes: list[str], canary: bool) -> None:
        began = self.incident.minutes
        effect = self.incident.deploy(changes, canary)
        self._standing = effect.chosen
        healed = self.incident.helped_at
        if healed is None:
            self._relief = None
        elif self._relief is None and not canary:
            self._relief = {"minute": healed, "failing": 1 - effect.after}
        self._deployed.append({"began": began, "minute": self.incident.minutes, **shown_effect(effect, canary)})

    def _roll_back(self) -> None:
        self.incident.roll_back()
        self._standing = ()
        if self.incident.helped_at is None:
            self._relief = None

    def _commit(
        self, cause: str, phase: str, second: str, regime: str, other: str, by: str, **given: list[str]
    ) -> None:
        self.incident.answer(
            phase or None,
            second or None,
            given["evidence"],
            given["ranked"],
            regime=regime or None,
            cause=cause or None,
            ruled_out={by: other} if by and other else {},
        )
        self._answer = {"minute": self.incident.minutes, "says": committed(cause, phase, second, regime)}

    def _grade(self, sure: bool) -> None:
        if self.incident.is_undeployed and not sure:
            raise IncidentError("nothing is deployed to all: be sure that you want the grade without it")
        self._result = self.incident.grade()
        self._truth, self._share = self.incident.reveal(changes=()), self.incident.share()
        self._on_graded()

    def _compare(self) -> None:
        if self._truth is None:
            raise IncidentError("what other changes would have done is told after the grade")
        self._truth = self.incident.reveal()

    # ---------------------------------------------------------------- what there is

    def state(self) -> State:
        """All that a console shows, as of now."""
        incident, service = self.incident, self.incident.window.service
        asked = {question.id for question in incident.asked()}
        return {
            "title": incident.name,
            "practice": incident.is_practice and self._result is None,
            "page": incident.page.to_dict(),
            "minute": incident.minutes,
            "onset": -round(PAGED_AT * RUN_MINUTES),
            "target": service.target,
            "failing": 1 - incident.window.attainment,
            "waiting": waiting_while_traffic_comes(incident.window)[-1],
            "burned": incident.burned,
            "rate": incident.burn_rate,
            "curve": failure_curve(incident.window, incident.truth.case),
            "relief": self._relief,
            "questions": [{**each.to_dict(), "asked": each.id in asked} for each in incident.questions()],
            "evidence": self._seen(),
            "changes": [shown_change(each) for each in incident.interventions()],
            "suspects": [{"id": each.name, "name": each.title} for each in incident.suspects()],
            "places": [{"id": place, "name": in_words(place)} for place in PLACES],
            "regimes": [{"id": "steady", "name": "It's steady"}, {"id": "spike", "name": "It's a spike, and passes"}],
            "hypothesis": incident.hypothesis,
            "diagnosis": self._answer,
            "rule": GRADED,
            "deployed": self._deployed,
            "standing": list(self._standing),
            "undeployed": incident.is_undeployed,
            "events": events(incident),
            "debrief": self._debrief(),
        }

    def _seen(self) -> list[State]:
        """Answers in the order in which they were asked for; a question that was asked in code is there as well."""
        case, minutes = (
            self.incident.truth.case,
            [each["minute"] for each in events(self.incident) if each["kind"] == "asked"],
        )
        for place, question in enumerate(self.incident.asked()):
            if question.id not in self._evidence:
                found = shown_evidence(self.incident.ask(question.id), case, minutes[place])
                self._evidence[question.id] = {"minute": minutes[place], **found}
        return list(self._evidence.values())

    def _debrief(self) -> State | None:
        if self._result is None or self._truth is None:
            return None
        answered = None if self._answer is None else self._answer["minute"]
        return {
            **truth_of(self._truth),
            "score": self._result.score,
            "criteria": [
                {"name": each.name, "earned": each.earned, "possible": each.possible, "feedback": each.feedback}
                for each in self._result.criteria
            ],
            "notes": list(self._result.notes),
            "milestones": milestones(self.incident.helped_at, answered, self._followed_up),
            "changes": shown_comparison(self._truth),
            "share": self._share,
        }

    @property
    def _followed_up(self) -> int | None:
        """The minute since which what stands is there for all users; None = nothing is."""
        to_all = [each["minute"] for each in self._deployed if not each["canary"]]
        return to_all[-1] if to_all and self._standing and not self.incident.is_undeployed else None


def in_words(place: str) -> str:
    """`first_token` as `first token`."""
    return place.replace("_", " ")


def committed(cause: str, phase: str, second: str, regime: str) -> list[tuple[str, str]]:
    """A diagnosis in words: what was said of what."""
    said = {
        "Cause": CAUSES[cause].title if cause else "",
        "Where the time is lost": in_words(phase),
        "Second problem": in_words(second) or "none",
        "Passes by itself": {"spike": "yes, a spike", "steady": "no, steady"}.get(regime, ""),
    }
    return [(name, words or "not said") for name, words in said.items()]


def minute_at(moment: float, case: Case) -> float:
    """On the incident clock: an hour of it is one run of simulated traffic.

    Args:
        moment: seconds of simulated traffic, since the onset.
    """
    return RUN_MINUTES * (moment / case.now.duration_s - PAGED_AT)


def short(value: float) -> float | None:
    """As many digits as can be seen; None where there's nothing to draw."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def failure_curve(play: ServicePlay, case: Case) -> list[tuple[float, float]]:
    """Share of the requests that arrived around a minute, and missed the SLO; none of what drains after the last."""
    bins: dict[int, list[bool]] = {}
    for record, is_met in zip(play.run.records, met_by_request(play)):
        if record.intended is not None:
            bins.setdefault(int((minute_at(record.intended, case) + RUN_MINUTES) // BIN_MINUTES), []).append(is_met)
    return [
        (BIN_MINUTES * (place + 0.5) - RUN_MINUTES, round(1 - play.service.admitted * sum(met) / len(met), DIGITS))
        for place, met in sorted(bins.items())
    ]


def events(incident: Incident) -> list[State]:
    """The timeline, each entry's kind apart from its words: asked, suspected, deployed to all, rolled back, …"""
    found = []
    for entry in incident.timeline:
        kind, _, words = entry.did.partition(": ")
        if kind:
            found.append({"minute": entry.minute, "kind": kind, "words": words, "saw": entry.saw})
    return found


def shown_evidence(found: Evidence, case: Case, minute: int) -> State:
    """An answer: its words, its table as text, and its panel as numbers.

    Args:
        minute: when it was asked for: what drains after that isn't drawn.
    """
    head, rows = as_cells(found.table)
    return {
        "id": found.id,
        "question": found.question,
        "text": found.text,
        "missing": found.text == NO_DATA,
        "head": head,
        "rows": rows,
        "panel": None if found.panel is None else shown_panel(found.panel, case, minute),
    }


def shown_panel(panel: EvidencePanel, case: Case, minute: int) -> State:
    """A chart to be drawn. Time is told in minutes of the incident clock, and ends with the arrivals."""
    is_time = panel.x == TIME
    lines = []
    for curve in panel.lines:
        points = [(minute_at(x, case) if is_time else x, y) for x, y in zip(curve.xs, curve.ys)]
        kept = [(short(x), short(y)) for x, y in points if not is_time or x <= minute]
        lines.append({"name": curve.name, "style": curve.style, "points": kept})
    return {
        "lines": lines,
        "x": CLOCK_AXIS if is_time else panel.x,
        "y": panel.y,
        "limit": panel.limit,
        "limit_name": panel.limit_name,
        "high": panel.high,
    }


def shown_change(change: Intervention) -> State:
    """What can be changed: full text, and its price."""
    return {
        "id": change.id,
        "text": change.text,
        "cost": change.cost,
        "phase": in_words(change.phase),
        "now": change.effort == NOW,
        "quick": change.is_quick,
    }


def shown_effect(effect: Effect, canary: bool) -> State:
    """What a deployment did, on the same traffic before and after."""
    head, rows = as_cells(effect.numbers)
    return {
        "changes": list(effect.chosen),
        "names": effect.names,
        "canary": canary,
        "quick": effect.is_quick,
        "before": effect.before,
        "after": effect.after,
        "target": effect.target,
        "restored": effect.restored,
        "possible": effect.possible,
        "bill": [effect.bill_before, effect.bill_after],
        "lost": effect.lost,
        "worse": list(effect.regressions),
        "head": head,
        "rows": rows,
    }


def truth_of(truth: Reveal) -> State:
    """What it was, in rows with full names; and which panels lied."""
    missing, stale = ([QUESTIONS[name].text for name in names] for names in truth.broken)
    address, reported = truth.source

    def texts(names: tuple[str, ...]) -> str:
        return "; ".join(find_intervention(name).text for name in names)

    rows = {
        "What happened": truth.what_happened,
        "Besides": truth.also or "",
        "Where": f"{in_words(truth.dominant_phase)}; {truth.regime}",
        "Proven by": "; ".join(QUESTIONS[name].text for name in truth.convicting),
        "Looks like": f"{CAUSES[truth.looks_like].title}. Told apart by: {QUESTIONS[truth.told_apart_by].text}",
        "Mitigate with": texts((truth.mitigation,)),
        "Fix with": texts(truth.fixes),
        "Tempting": f"{texts((truth.tempting,))}. {truth.why_not}",
        "It has happened": f"{reported} {address}" if address else "",
    }
    return {
        "cause": truth.title,
        "truth": [(name, words) for name, words in rows.items() if words],
        "missing": missing,
        "stale": stale,
    }


def milestones(helped: int | None, diagnosed: int | None, fixed: int | None) -> list[State]:
    """Minutes to mitigation, to diagnosis and to the follow-up, beside those that are enough."""
    return [
        {"name": "mitigation", "minute": helped, "enough": marking.PROMPT},
        {"name": "diagnosis", "minute": diagnosed, "enough": marking.BRISK},
        {"name": "follow-up", "minute": fixed, "enough": None},
    ]


def shown_comparison(truth: Reveal) -> list[State]:
    """What each change would have done by itself, the best first; empty until that was asked for."""
    return [
        {
            "text": find_intervention(str(name)).text,
            "effort": row["effort"],
            "after": row["after"],
            "restored": bool(row["restored"]),
            "worth": row["value"],
        }
        for name, row in truth.tried.rows.items()
    ]
