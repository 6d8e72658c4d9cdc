"""An incident to be worked on: the page, help for users, questions, an answer, a rollout, a grade, and only then the
truth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date

from pydantic import Field

from course.grading import Result
from course.incidents.causes import CAUSES, Cause
from course.incidents.classics import draw_classic
from course.incidents.evidence import Evidence, EvidenceQuestion, IncidentScene
from course.incidents.generate import (
    PAGED_AT,
    RUN_MINUTES,
    Hidden,
    IncidentError,
    best_at_once,
    bill_of_cure,
    find_intervention,
    generate,
    look_up,
)
from course.incidents.interventions import ALL, Intervention
from course.incidents.marking import Diagnosis, Mitigation, Rollout, lost_by_phase, mark, second_phases
from course.incidents.numbers import OUTSIDE, PLACES, waiting_while_traffic_comes
from course.incidents.outcome import Effect, ServiceTrials, counterfactuals, effect_of
from course.incidents.page import PagerMessage, page_of
from course.incidents.questions import BY_ID, QUESTIONS
from course.incidents.reveal import Reveal, TimelineEntry
from course.incidents.service import ServicePlay
from course.lab.json_store import JsonStore, StoredModel

TO_CANARY, TO_PLAN, TO_ROLL_BACK = 5, 5, 3
"""Minutes: what a tenth of the users takes, what arranging a change for the days to come takes, and a rollback. A quick
change takes its own time; see `Intervention.minutes`.
"""
MINUTES_A_DAY = 24 * 60
BUDGET_MINUTES = 30 * MINUTES_A_DAY
"""An error budget is of thirty days, as most services count."""
REGIMES = ("steady", "spike")
GRADED = (
    "How soon users were helped is graded, and what stands at the end. A change you roll back costs points, the first "
    "canary the fewest."
)
OTHER_NAMES = dict.fromkeys(("outside", "network", "client", "clients"), OUTSIDE)


class Told(StoredModel):
    """Names of the incidents whose truth was told to this learner."""

    names: list[str] = Field(default_factory=list)


TOLD = JsonStore("incidents.json", Told)
_TOLD_HERE: set[str] = set()
"""In this process."""
BEFORE_DIFFICULTY = ", difficulty "


def with_cause_of(name: str) -> str:
    """The part of an incident's name that decides its cause: the seed; or all of it, where the cause was asked for."""
    seed, _, rest = name.partition(BEFORE_DIFFICULTY)
    return name if "," in rest else seed


class Incident:
    """One incident, from page to reveal. Make it with `Incident.generate` or `Incident.classic`.

    The clock counts minutes that questions and deployments take, and the incident goes on in them; nothing here waits
    for real time.
    """

    def __init__(self, hidden: Hidden, trials: ServiceTrials, name: str, short: bool = False) -> None:
        self.name = name
        self.short = short
        """Beginners see fewer questions and changes."""
        self.minutes = 0
        """On the incident clock."""
        self.hypothesis = ""
        self._hidden, self._trials = hidden, trials
        self._seen = 0, hidden.scene
        """The minute of which something was last seen, and what there was. Earlier ones would fill the memory."""
        self._asked: dict[str, Evidence] = {}
        self._answer: Diagnosis | None = None
        self._standing: tuple[Effect, bool] | None = None
        """What was deployed last, and whether to a canary only."""
        self._is_for_now = False
        """Whether that was before there was a diagnosis."""
        self._mitigations: list[Mitigation] = []
        """Quick changes that all users had, and that weren't rolled back."""
        self._healed: int | None = None
        """The minute in which a quick change restored the SLO."""
        self._undone = {True: 0, False: 0}
        """How many canaries, and how many full rollouts, were taken back once there was a diagnosis."""
        self._tried: dict[str, None] = {}
        """Ids of all changes that were deployed, in order."""
        self._attempts_undone = 0
        """How many quick changes that did not restore the SLO were taken back before."""
        self._result: Result | None = None
        self._was_practice = False
        self._timeline = [
            TimelineEntry(-round(PAGED_AT * RUN_MINUTES), "", "", hidden.case.change),
            TimelineEntry(0, "paged", self.page.alarm, self.status),
        ]

    @classmethod
    def generate(cls, seed: int, difficulty: int = 1, cause: str | None = None) -> "Incident":
        """An incident that follows from its arguments alone.

        Args:
            difficulty: 1 = clear; 2 = odd settings and innocent changes; 3 = a second ailment besides.
            cause: its name, to practise one; None = the seed decides.
        Raises:
            IncidentError: no such difficulty or cause.
        """
        of = f", {cause}" if cause else ""
        return cls(
            *generate(seed, difficulty, cause), f"incident {seed}{BEFORE_DIFFICULTY}{difficulty}{of}", difficulty == 1
        )

    @classmethod
    def today(cls, day: date | None = None) -> "Incident":
        """The daily incident: the same for everyone on one date; None = today's."""
        day = day or date.today()
        incident = cls.generate(int(f"{day:%Y%m%d}"), 1 + day.toordinal() % 3)
        incident.name = f"incident of {day}"
        return incident

    @classmethod
    def classic(cls, name: str) -> "Incident":
        """A well-known incident, or one with two causes: see `classics.CLASSICS`.

        Raises:
            IncidentError: no such classic.
        """
        return cls(*draw_classic(name), f"classic: {name}")

    def fresh(self) -> "Incident":
        """The same incident, untouched; it need not be drawn anew."""
        return Incident(self._hidden, self._trials, self.name, self.short)

    @property
    def is_practice(self) -> bool:
        """Whether its truth was told before, at this difficulty or another one."""
        told = _TOLD_HERE.union(TOLD.read().names)
        return with_cause_of(self.name) in map(with_cause_of, told)

    @property
    def truth(self) -> Hidden:
        """All there is to know about it. For players that are told, and for records; who plays should not look."""
        return self._hidden

    @property
    def timeline(self) -> tuple[TimelineEntry, ...]:
        """What was done so far, minute by minute."""
        return tuple(self._timeline)

    @property
    def helped_at(self) -> int | None:
        """The minute since which users are within the SLO; None = they aren't."""
        return self._healed

    @property
    def in_place(self) -> str:
        """What was deployed last and stands, in words; empty = nothing."""
        return "" if self._standing is None else self._standing[0].names

    @property
    def page(self) -> PagerMessage:
        """What wakes you up."""
        return page_of(self._hidden)

    @property
    def window(self) -> ServicePlay:
        """The run that evidence is about by now, raw: records, samples and steps, for sums of your own."""
        return self._scene().now

    @property
    def _trouble(self) -> int:
        """Minutes that it has gone on since the page: until a quick change restored the SLO, or until now."""
        return self.minutes if self._healed is None else self._healed

    def _scene(self) -> IncidentScene:
        if self._seen[0] != self._trouble:
            self._seen = self._trouble, self._hidden.scene_at(self._trouble)
        return self._seen[1]

    @property
    def burned(self) -> float:
        """Share of the month's error budget that has gone since the onset."""
        return self.burn_rate * (PAGED_AT * RUN_MINUTES + self._trouble) / BUDGET_MINUTES

    @property
    def burn_rate(self) -> float:
        """How many times as many requests fail as the SLO lets fail; at 1 the budget lasts the month."""
        return (1 - self.window.attainment) / (1 - self._hidden.case.target)

    @property
    def status(self) -> str:
        """What is to be seen at a glance: the queue, failures and the error budget, up to now."""
        waiting = waiting_while_traffic_comes(self.window)[-1]
        failed = f"{1 - self.window.attainment:.0%} of requests missed the SLO so far, {waiting:.0f} waiting"
        state = failed if self._healed is None else f"SLO restored since minute {self._healed}"
        pace = f", at {self.burn_rate:.0f} times the rate it allows" if self._healed is None else ""
        return f"{state}; {self.burned:.1%} of the month's error budget burned{pace}"

    def questions(self) -> tuple[EvidenceQuestion, ...]:
        """What can be asked: id, text, minutes. `ask` knows them all, whatever is listed."""
        return tuple(BY_ID[name] for name in self._hidden.asks) if self.short else QUESTIONS

    def asked(self) -> tuple[EvidenceQuestion, ...]:
        """What has been asked so far, in that order."""
        return tuple(BY_ID[name] for name in self._asked)

    def suspect(self, words: str) -> None:
        """Write down what you think it is, in your own words, before you look at what could be changed. No points."""
        self.hypothesis = words
        self._note(f"suspected: {words}")

    def _note(self, did: str, saw: str = "") -> None:
        self._timeline.append(TimelineEntry(self.minutes, did, saw, self.status))

    def ask(self, id: str) -> Evidence:
        """Ask for evidence. It takes minutes, the first time.

        Raises:
            IncidentError: there is no such question.
        """
        question = find_question(id)
        if id not in self._asked:
            self.minutes += question.minutes
            self._asked[id] = question.find_out(self._scene())
            self._note(f"asked: {question.text}", self._asked[id].text)
        return self._asked[id]

    def interventions(self) -> tuple[Intervention, ...]:
        """What can be changed: id, phase, text, cost. `deploy` knows them all, whatever is listed."""
        return tuple(map(find_intervention, self._hidden.menu)) if self.short else ALL

    def suspects(self) -> tuple[Cause, ...]:
        """Causes to choose from: name, title. `answer` knows them all, whatever is listed."""
        return tuple(CAUSES[name] for name in self._hidden.suspects) if self.short else tuple(CAUSES.values())

    def check_open(self) -> None:
        """Raise IncidentError if there is a diagnosis already."""
        if self._answer is not None:
            raise IncidentError("this incident has its diagnosis: deploy something, or grade it")

    def answer(
        self,
        dominant_phase: str | None = None,
        secondary: str | None = None,
        evidence: Sequence[str] = (),
        ranked: Sequence[str] = (),
        open_questions: Sequence[str] = (),
        regime: str | None = None,
        hypothesis: str = "",
        *,
        cause: str | None = None,
        ruled_out: Mapping[str, str] | None = None,
    ) -> None:
        """Commit to a diagnosis, once.

        Args:
            dominant_phase: queue, prefill, first_token, decode, stream; or outside: clients, network, gateway.
            secondary: another phase with a problem of its own; None = there is none worth naming.
            evidence: ids of the questions whose answers convict.
            ranked: ids of interventions, the best first.
            open_questions: what you would still want to know, ids or words; no points, they stand in the debrief.
            regime: "steady" or "spike"; None = not said.
            hypothesis: in your own words; as `suspect`.
            cause: its name; see `suspects`.
            ruled_out: other causes, by the id of the question whose answer rules each of them out.
        Raises:
            IncidentError: it has been answered, a name does not exist, or nothing is said.
        """
        self.check_open()
        cited, ranked, still_open = listed(evidence), listed(ranked), listed(open_questions)
        for name in cited:
            find_question(name)
        for name in ranked:
            find_intervention(name)
        against = tuple((ruled_out or {}).items())
        for question, other in against:
            find_question(question)
            look_up("cause", other, CAUSES)
        if cause is not None:
            look_up("cause", cause, CAUSES)
        named = (OTHER_NAMES.get(plain(phase) or "", phase) for phase in (dominant_phase, secondary))
        phases = [one_of("phase", phase, PLACES) for phase in named]
        when = one_of("regime", regime, REGIMES)
        if phases[0] is None and not ranked and cause is None:
            raise IncidentError("a diagnosis needs a cause, a phase, or a change that would help: this one is blank")
        self._answer = Diagnosis(*phases, cited, ranked, when, tuple(self._asked), cause, against, self.minutes)
        if hypothesis:
            self.suspect(hypothesis)
        what = CAUSES[cause].title if cause else "no cause"
        self._note(
            f"committed: {what} ({phases[0] or 'no phase'})",
            f"still open: {'; '.join(still_open)}" if still_open else "",
        )

    def deploy(self, ids: Sequence[str], canary: bool = False) -> Effect:
        """Make changes, and see what they do on held-out traffic; at any time, a diagnosis or not. What was deployed
        before them is taken back, unless it was their canary. After the grade nothing counts any more.

        Quick changes are in place after ten minutes, or thirty. Slower ones are arranged, for the days to come: until
        then the quick ones stay.

        Args:
            canary: for a tenth of the users first, and for a shorter time.
        Raises:
            IncidentError: there is no such intervention, or none at all.
        """
        chosen = [find_intervention(name) for name in dict.fromkeys(listed(ids))]
        if not chosen:
            raise IncidentError("name at least one change to deploy")
        now = self._hidden.case.now
        effect = (
            effect_of(chosen, now.during(PAGED_AT), self._trials.canary())
            if canary
            else effect_of(chosen, now, self._trials)
        )
        if self._result is None:
            self._tried.update(dict.fromkeys(effect.chosen))
            self._put_in_place(effect, canary)
        return effect

    mitigate = deploy
    """The same: what is called so is quick, and comes first."""

    def _put_in_place(self, effect: Effect, canary: bool) -> None:
        before = self._standing
        if before is not None and (before[0].chosen, before[1]) == (effect.chosen, canary):
            self._is_for_now = self._answer is None
            self._note(f"kept: {effect.names}", effect.told)
            return
        if before is not None and before[0].chosen != effect.chosen:
            self._take_back(*before)
        self._standing, self._is_for_now = (effect, canary), self._answer is None
        self.minutes += TO_CANARY if canary else effect.minutes if effect.is_quick else TO_PLAN
        if effect.is_quick and not canary:
            self._mitigations.append(Mitigation(effect, self.minutes))
            if not effect.restored:
                self._healed = None
            elif self._healed is None:
                self._healed = self.minutes
        follow_up = f"for good ({duration(effect.minutes)} of work)"
        where = "to a canary" if canary else "to all" if effect.is_quick else follow_up
        self._note(f"deployed {where}: {effect.names}", effect.told)

    def _take_back(self, effect: Effect, canary: bool) -> None:
        """What was done before the diagnosis gives way to the follow-up for nothing, and so does one that restored the
        SLO. Before it, each attempt that helped too little counts.
        """
        if canary:
            self._undone[canary] += 1
        elif self._answer is None:
            self._attempts_undone += effect.is_quick and not effect.restored
        elif not self._is_for_now and not (effect.restored and effect.is_quick):
            self._undone[canary] += 1

    def roll_back(self) -> None:
        """Take back what was deployed last.

        Raises:
            IncidentError: nothing is, or it has been graded.
        """
        if self._standing is None or self._result is not None:
            raise IncidentError("there is nothing to roll back")
        effect, canary = self._standing
        if canary or self._answer is not None:
            self._undone[canary] += 1
        else:
            self._attempts_undone += 1
        if effect.is_quick and not canary:
            self._mitigations = [each for each in self._mitigations if each.effect is not effect]
            self._healed = None
        self._standing = None
        self.minutes += TO_ROLL_BACK
        self._note("rolled back")

    @property
    def is_undeployed(self) -> bool:
        """There is a diagnosis, and no more than a canary stands: a grade would now be one without a follow-up."""
        return self._answer is not None and (self._standing is None or self._standing[1])

    def grade(self) -> Result:
        """Marks out of a hundred, with what should have ruled a wrong idea out.

        Raises:
            IncidentError: there is no answer yet.
        """
        if self._answer is None:
            raise IncidentError("there is nothing to grade: answer first")
        if self._result is None:
            standing = None if self.is_undeployed or self._standing is None else self._standing[0]
            rollout = Rollout(
                standing,
                tuple(self._mitigations),
                best_at_once(self._hidden, self._trials),
                self._attempts_undone,
                self._undone[True],
                self._undone[False],
                bill_of_cure(self._hidden, self._trials),
            )
            values = {name: self._value(name) for name in dict.fromkeys((*self._answer.ranked, *self._hidden.fixes))}
            result = mark(self._hidden, self._answer, rollout, values)
            self._was_practice = self.is_practice
            again = ("Practice: you have already been shown this incident's cause.",) if self._was_practice else ()
            self._result = replace(result, notes=(*again, *result.notes))
        return self._result

    def _value(self, name: str) -> float:
        """What a change brings by itself; where it takes two, beside the other one."""
        others = [find_intervention(each) for each in self._hidden.fixes if each != name]
        now = self._hidden.case.now
        if self._hidden.cause.together:
            for other in others:
                now = other.apply(now)
        return effect_of([find_intervention(name)], now, self._trials).value

    def share(self) -> str:
        """The result in one line that gives nothing away.

        Raises:
            IncidentError: it has not been graded.
        """
        if self._result is None:
            raise IncidentError("there is nothing to share before the grade")
        again = ", practice" if self._was_practice else ""
        assert self._answer is not None, "there was one to grade"
        end = "users still waiting" if self._healed is None else f"users helped in {self._healed} min"
        undone = sum(self._undone.values()) + self._attempts_undone
        return (
            f"minillm {self.name}{again}: {end}, {self._result.score:.0f}/100, {len(self._asked)} questions, "
            f"diagnosis in {self._answer.minute} min, {undone} rolled back"
        )

    def reveal(self, changes: Sequence[str] | None = None) -> Reveal:
        """The truth, and what interventions would have done. The same incident is practice from then on.

        Args:
            changes: ids of those that are tried out; None = a dozen that come into question, and yours.
        Raises:
            IncidentError: it has not been graded.
        """
        if self._result is None or self._answer is None:
            raise IncidentError("the truth comes after the grade: answer, deploy, grade")
        hidden, cause = self._hidden, self._hidden.cause
        names = (*hidden.menu, *self._answer.ranked, *self._tried) if changes is None else listed(changes)
        tried = [find_intervention(name) for name in dict.fromkeys(names)]
        effects = counterfactuals(hidden.case.now, self._trials, tried)
        _TOLD_HERE.add(self.name)
        TOLD.change(lambda told: told.names.append(self.name) if self.name not in told.names else None)
        shared = ("title", "regime", "looks_like", "told_apart_by", "tempting", "why_not")
        return Reveal(
            cause=cause.name,
            dominant_phase=cause.phase,
            secondary=tuple(sorted(second_phases(hidden), key=str)),
            also=hidden.also.name if hidden.also else None,
            what_happened=hidden.case.change,
            convicting=tuple(dict.fromkeys((*cause.convicting, cause.told_apart_by))),
            fixes=hidden.fixes,
            lost_s=lost_by_phase(hidden),
            broken=(tuple(sorted(hidden.scene.missing)), tuple(sorted(hidden.scene.stale))),
            source=(cause.source, cause.reported),
            timeline=tuple(self._timeline),
            mitigation=best_at_once(hidden, self._trials).id,
            yours=tuple(self._tried),
            tried=effects,
            **{name: getattr(cause, name) for name in shared},
        )

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self._asked)} questions, {self.minutes} minutes>"


def listed(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name, several or none, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def duration(minutes: int) -> str:
    """`30 minutes`, `a day`, `21 days`."""
    days = minutes // MINUTES_A_DAY
    return f"{minutes} minutes" if not days else "a day" if days == 1 else f"{days} days"


def plain(name: object) -> str | None:
    """`First token` as `first_token`; None, "" and "none" are None."""
    written = "" if name is None else str(name).strip().lower().replace(" ", "_")
    return None if written in ("", "none") else written


def one_of(kind: str, name: object, known: Sequence[str]) -> str | None:
    """A name in its plain form, or None. Raises IncidentError: it's none of those known."""
    if (written := plain(name)) is not None and written not in known:
        raise IncidentError(f"no {kind} {name!r}: choose one of {', '.join(known)}, or none")
    return written


def find_question(name: str) -> EvidenceQuestion:
    """By its id. Raises IncidentError: there is no such question."""
    return look_up("question", name, BY_ID)
