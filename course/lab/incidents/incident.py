"""An incident to be worked on: the page, questions, an answer, a deployment, a grade, and only then the truth."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from course.lab.grading import Result
from course.lab.incidents.causes import CAUSES
from course.lab.incidents.classics import draw_classic
from course.lab.incidents.evidence import Evidence, Question, as_html
from course.lab.incidents.generate import Hidden, IncidentError, find_intervention, generate, look_up
from course.lab.incidents.interventions import ALL, Intervention
from course.lab.incidents.marking import Answer, lost_by_phase, mark, second_phases
from course.lab.incidents.outcome import Effect, Trials, counterfactuals, effect_of, value_of
from course.lab.incidents.page import Page, page_of
from course.lab.incidents.questions import BY_ID, QUESTIONS
from course.lab.incidents.service import Play
from minillm.core.timeline import PHASES

if TYPE_CHECKING:
    import pandas as pd

MINUTES_TO_DEPLOY = 10
REGIMES = ("steady", "spike")
DIAGNOSE_FIRST = "diagnose first: commit to an answer, then deploy"
ONCE = "The first deployment is the one that is graded."


@dataclass(frozen=True)
class Reveal:
    """The truth about an incident."""

    cause: str
    title: str
    dominant_phase: str
    secondary: tuple[str | None, ...]
    """Any of these was right."""
    regime: str
    also: str | None
    """The second, smaller ailment."""
    what_happened: str
    convicting: tuple[str, ...]
    looks_like: str
    told_apart_by: str
    fixes: tuple[str, ...]
    tempting: str
    why_not: str
    lost_s: dict[str, float]
    """By phase: how much longer a mean request takes than last week."""
    effects: "pd.DataFrame" = field(repr=False)
    """Every intervention alone, on held-out traffic."""

    def __str__(self) -> str:
        lines = [
            f"{self.title} ({self.cause}). What happened: {self.what_happened}.",
            f"Dominant phase {self.dominant_phase}; {self.regime}." + (f" Besides: {self.also}." if self.also else ""),
            f"Proven by: {'; '.join(BY_ID[name].text for name in self.convicting)}. It looks like "
            f"'{CAUSES[self.looks_like].title}'; what tells them apart: {BY_ID[self.told_apart_by].text}.",
            f"Fix: {'; '.join(find_intervention(name).text for name in self.fixes)}. Tempting: "
            f"{find_intervention(self.tempting).text}. {self.why_not}",
        ]
        return "\n".join([*lines, self.effects.head(8).to_string(float_format=lambda value: f"{value:.2f}")])

    def _repr_html_(self) -> str:
        *told, _ = str(self).split("\n", 4)
        words = "<br>".join(escape(line) for line in told)
        in_words = self.effects.rename(index=lambda name: find_intervention(name).text)
        return f"<p>{words}</p>{as_html(in_words.round(2))}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        plain = {name: value for name, value in self.__dict__.items() if name != "effects"}
        return {**plain, "effects": self.effects.reset_index(names="id").to_dict("records")}


class Incident:
    """One incident, from page to reveal. Make it with `Incident.generate` or `Incident.classic`.

    The clock counts minutes that questions and deployments take; nothing here waits for real time.
    """

    def __init__(self, hidden: Hidden, trials: Trials, name: str) -> None:
        self.name = name
        self.minutes = 0
        """On the incident clock."""
        self._hidden, self._trials = hidden, trials
        self._asked: dict[str, Evidence] = {}
        self._answer: Answer | None = None
        self._effects: list[Effect] = []
        self._result: Result | None = None

    @classmethod
    def generate(cls, seed: int, difficulty: int = 1, cause: str | None = None) -> "Incident":
        """An incident that follows from its arguments alone.

        Args:
            difficulty: 1 = clear; 2 = odd settings and innocent changes; 3 = a second ailment besides.
            cause: its name, to practise one; None = the seed decides.
        Raises:
            IncidentError: no such difficulty or cause.
        """
        return cls(*generate(seed, difficulty, cause), f"incident {seed}, difficulty {difficulty}")

    @classmethod
    def classic(cls, name: str) -> "Incident":
        """A well-known incident, played again: "three-months" or "straggler".

        Raises:
            IncidentError: no such classic.
        """
        return cls(*draw_classic(name), f"classic: {name}")

    def fresh(self) -> "Incident":
        """The same incident, untouched; it need not be drawn anew."""
        return Incident(self._hidden, self._trials, self.name)

    @property
    def page(self) -> Page:
        """What wakes you up."""
        return page_of(self._hidden)

    @property
    def window(self) -> Play:
        """The run that all evidence is about, raw: records, samples and steps, for sums of your own."""
        return self._hidden.scene.now

    def questions(self) -> tuple[Question, ...]:
        """What can be asked: id, text, minutes."""
        return QUESTIONS

    def ask(self, id: str) -> Evidence:
        """Ask for evidence. It takes minutes, the first time.

        Raises:
            IncidentError: there is no such question.
        """
        question = find_question(id)
        if id not in self._asked:
            self._asked[id] = question.find_out(self._hidden.scene)
            self.minutes += question.minutes
        return self._asked[id]

    def interventions(self) -> tuple[Intervention, ...]:
        """What can be changed: id, phase, text, cost. The list is the same in every incident."""
        return ALL

    def answer(
        self,
        dominant_phase: str | None = None,
        secondary: str | None = None,
        evidence: Sequence[str] = (),
        ranked: Sequence[str] = (),
        open_questions: Sequence[str] = (),
        regime: str | None = None,
    ) -> None:
        """Commit to a diagnosis, once.

        Args:
            dominant_phase: queue, prefill, first_token, decode or stream. Whatever passes before an engine starts is
                queue.
            secondary: another phase with a problem of its own; None = there is none worth naming.
            evidence: ids of the questions whose answers convict.
            ranked: ids of interventions, the best first.
            open_questions: what you would still want to know, ids or words; no points, an answer comes with the grade.
            regime: "steady" or "spike"; None = as the first intervention suggests.
        Raises:
            IncidentError: it has been answered, a name does not exist, or nothing is said.
        """
        if self._answer is not None:
            raise IncidentError("this incident has its diagnosis: deploy something, or grade it")
        cited, ranked, still_open = listed(evidence), listed(ranked), listed(open_questions)
        for name in cited:
            find_question(name)
        for name in ranked:
            find_intervention(name)
        phases = [one_of("phase", phase, PHASES) for phase in (dominant_phase, secondary)]
        when = one_of("regime", regime, REGIMES)
        if phases[0] is None and not ranked:
            raise IncidentError("a diagnosis needs a dominant phase, or a change that would help: this one is blank")
        self._answer = Answer(*phases, cited, ranked, still_open, when, self.minutes, tuple(self._asked))

    def deploy(self, ids: Sequence[str]) -> Effect:
        """Make changes, and see what they do on held-out traffic. The first deployment is the one that is graded.

        Raises:
            IncidentError: there is no diagnosis yet, no such intervention, or none at all.
        """
        if self._answer is None:
            raise IncidentError(DIAGNOSE_FIRST)
        chosen = [find_intervention(name) for name in dict.fromkeys(listed(ids))]
        if not chosen:
            raise IncidentError("name at least one change to deploy")
        self._effects.append(effect_of(chosen, self._hidden.case.now, self._trials))
        self.minutes += MINUTES_TO_DEPLOY
        return self._effects[-1]

    @property
    def is_undeployed(self) -> bool:
        """There is a diagnosis, and nothing was deployed: a grade would now be one without a deployment."""
        return self._answer is not None and not self._effects

    def grade(self) -> Result:
        """Marks out of a hundred, with what should have ruled a wrong idea out.

        Raises:
            IncidentError: there is no answer yet.
        """
        if self._answer is None:
            raise IncidentError("there is nothing to grade: answer first")
        if self._result is None:
            now = self._hidden.case.now
            names = dict.fromkeys([*self._answer.ranked, *self._hidden.fixes])
            tried = [find_intervention(name) for name in names]
            values = {one.id: value_of(one, effect_of([one], now, self._trials)) for one in tried}
            first = self._effects[0] if self._effects else None
            self._result = mark(self._hidden, self._answer, first, values)
        return self._result

    def reveal(self, changes: Sequence[str] | None = None) -> Reveal:
        """The truth, and what every intervention would have done.

        Args:
            changes: ids of those that are tried out; None = all of them.
        Raises:
            IncidentError: it has not been graded.
        """
        if self._result is None:
            raise IncidentError("the truth comes after the grade: answer, deploy, grade")
        hidden, cause = self._hidden, self._hidden.cause
        tried = ALL if changes is None else tuple(find_intervention(name) for name in changes)
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
            effects=counterfactuals(hidden.case.now, self._trials, tried),
            **{name: getattr(cause, name) for name in shared},
        )

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self._asked)} questions, {self.minutes} minutes>"


def listed(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name, several or none, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def plain(name: object) -> str | None:
    """`First token` as `first_token`; None, "" and "none" are None."""
    written = "" if name is None else str(name).strip().lower().replace(" ", "_")
    return None if written in ("", "none") else written


def one_of(kind: str, name: object, known: Sequence[str]) -> str | None:
    """A name in its plain form, or None. Raises IncidentError: it's none of those known."""
    if (written := plain(name)) is not None and written not in known:
        raise IncidentError(f"no {kind} {name!r}: choose one of {', '.join(known)}, or none")
    return written


def find_question(name: str) -> Question:
    """By its id. Raises IncidentError: there is no such question."""
    return look_up("question", name, BY_ID)
