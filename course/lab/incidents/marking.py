"""Marks an answer: against what convicts the cause, and against what every proposed change really did.

A hundred points. What is not backed by evidence counts little, even where it is right: a lucky guess helps once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from course.lab.grading import Criterion, Result
from course.lab.incidents.causes import CAUSES
from course.lab.incidents.generate import Hidden
from course.lab.incidents.interventions import BY_ID as CHANGES
from course.lab.incidents.numbers import answered, mean
from course.lab.incidents.outcome import Effect
from course.lab.incidents.questions import BY_ID as QUESTIONS
from course.lab.incidents.service import Play
from minillm.core.timeline import PHASES

PHASE, SECONDARY, REGIME, EVIDENCE, RANKING, RESTORED, HARM, COST, CLOCK = 20, 5, 5, 20, 20, 15, 5, 5, 5
"""Points; they add up to 100."""
UNBACKED = 0.3
"""What the rest of an answer is worth without any convicting evidence."""
ENOUGH = 2
"""Convicting answers that make a case."""
PER_STRAY = 0.25
"""Taken off the evidence for each answer cited that doesn't convict the cause."""
NEUTRAL = frozenset({"ttft_itl", "phases", "config", "changes", "arrivals", "queue_over_time"})
"""Always fair to cite: they narrow it down."""
BRISK, SLOW = 15, 45
"""Minutes on the incident clock: full marks up to the first, none from the second."""
NOTABLE = 0.1
"""Share of the lost seconds that makes a phase the second problem."""
FOR_SPIKES = frozenset({"warm_pool", "bound_queue", "backoff"})
"""Interventions that answer a spike and cost little between two."""
NOT_ON_PAPER = frozenset({"clock", "cost"})
"""No question takes time, and what a change costs is in its rank."""


@dataclass(frozen=True)
class Answer:
    """What the learner committed to."""

    dominant_phase: str | None
    secondary: str | None
    evidence: tuple[str, ...]
    ranked: tuple[str, ...]
    open_questions: tuple[str, ...]
    regime: str | None
    minutes: int
    """On the clock when it was given."""
    asked: tuple[str, ...]


def lost_by_phase(hidden: Hidden) -> dict[str, float]:
    """Seconds that a mean answered request takes longer than last week, by phase, as its client saw it."""

    def means(play: Play) -> dict[str, float]:
        rows = [record.as_request_record().timeline.phases() for record in answered(play)]
        return {phase: mean([row[phase] for row in rows]) for phase in PHASES}

    now, before = means(hidden.scene.now), means(hidden.scene.before)
    return {phase: max(now[phase] - before[phase], 0.0) for phase in PHASES}


def second_phases(hidden: Hidden) -> set[str | None]:
    """What may fairly be named as the second problem; None where there is hardly one."""
    lost = lost_by_phase(hidden)
    total = sum(lost.values()) or 1.0
    named: set[str | None] = {p for p in PHASES if p != hidden.cause.phase and lost[p] / total >= NOTABLE}
    named |= {hidden.also.phase} if hidden.also else set()
    return (named or {None}) | set(hidden.cause.also)


def mark(
    hidden: Hidden,
    answer: Answer,
    deployed: Effect | None,
    values: Mapping[str, float],
    on_paper: Collection[str] | None = None,
) -> Result:
    """Grade an answer.

    Args:
        on_paper: for a written dump, the questions it answers: nothing else can be cited; None = all could be asked.
        deployed: what the deployed changes did; None = nothing was deployed.
        values: what each ranked intervention, and each true fix, is worth alone; see `value_of`.
    """
    share, evidence = _evidence(hidden, answer, on_paper)
    backed = UNBACKED + (1 - UNBACKED) * share
    rest = [
        _phase(hidden, answer), _secondary(hidden, answer), _regime(hidden, answer),
        _ranking(hidden, answer, values), *_deployed(hidden, deployed), _clock(answer, share),
    ]  # fmt: skip
    left_out = frozenset() if on_paper is None else NOT_ON_PAPER
    scaled = [_scaled(criterion, backed) for criterion in rest if criterion.name not in left_out]
    return Result("incident", (*scaled[:3], evidence, *scaled[3:]), _left_open(hidden, answer))


def _scaled(criterion: Criterion, backed: float) -> Criterion:
    if backed == 1 or not criterion.earned:
        return criterion
    feedback = f"{criterion.feedback} Counts {backed:.0%}: the evidence cited does not make the case."
    return Criterion(criterion.name, round(criterion.earned * backed, 2), criterion.possible, feedback)


def _phase(hidden: Hidden, answer: Answer) -> Criterion:
    cause, named = hidden.cause, answer.dominant_phase
    lost = lost_by_phase(hidden)
    told = ", ".join(f"{phase.replace('_', ' ')} {1e3 * s:.0f} ms" for phase, s in lost.items() if s > 0)
    right = named == cause.phase or named in cause.also
    text = f"It is {cause.phase}: {cause.title}. A mean request takes longer than last week by: {told or 'nothing'}."
    if named not in PHASES:
        return Criterion("dominant phase", 0, PHASE, f"Name one of {', '.join(PHASES)}. {text}")
    return Criterion("dominant phase", PHASE if right else 0, PHASE, text)


def _secondary(hidden: Hidden, answer: Answer) -> Criterion:
    allowed = second_phases(hidden)
    if answer.dominant_phase in hidden.cause.also:  # the two may change places
        allowed = {*allowed, hidden.cause.phase} - {None}
    told = " or ".join(sorted(str(name) for name in allowed))
    right = any(answer.secondary == name for name in allowed)
    return Criterion("secondary problem", SECONDARY if right else 0, SECONDARY, f"The second problem: {told}.")


REGIMES = {
    "steady": "It is a steady state: it doesn't pass by itself.",
    "spike": "It is a spike: permanent machines would stand idle most of the time.",
}


def _regime(hidden: Hidden, answer: Answer) -> Criterion:
    named, truth = answer.regime, hidden.cause.regime
    if named is None and answer.ranked:
        named = truth if answer.ranked[0] in hidden.fixes else "spike" if answer.ranked[0] in FOR_SPIKES else "steady"
    return Criterion("spike or steady", REGIME if named == truth else 0, REGIME, REGIMES[truth])


def _evidence(hidden: Hidden, answer: Answer, on_paper: Collection[str] | None) -> tuple[float, Criterion]:
    """How far the evidence makes the case, 0 to 1, and the mark."""
    of_cause = (*hidden.cause.convicting, hidden.cause.told_apart_by)
    possible = (*of_cause, *(hidden.also.convicting if hidden.also else ()))
    convicting = [name for name in possible if on_paper is None or name in on_paper]
    core = {*of_cause} & {*convicting}
    seen = [name for name in dict.fromkeys(answer.evidence) if name in answer.asked]
    hits = [name for name in seen if name in core]
    stray = [name for name in dict.fromkeys(answer.evidence) if name not in convicting and name not in NEUTRAL]
    share = min(len(hits) / min(ENOUGH, len(core)), 1.0) * max(1 - PER_STRAY * len(stray), 0.0)
    words = [f"It is convicted by: {_texts(dict.fromkeys(convicting))}."]
    if unseen := [name for name in answer.evidence if name not in answer.asked]:
        words.append(f"Cited without having been asked for: {_texts(unseen)}.")
    if "gpu" in stray:
        words.append("GPU utilisation reads high in nearly every incident: it points at no cause.")
    if others := [name for name in stray if name != "gpu"]:
        words.append(f"These would look the same in a healthy service: {_texts(others)}.")
    return share, Criterion("evidence", round(EVIDENCE * share, 2), EVIDENCE, " ".join(words))


def _texts(names: Iterable[str]) -> str:
    """Questions in the words of the desk, which shows no ids."""
    return "; ".join(QUESTIONS[name].text for name in names)


def _left_open(hidden: Hidden, answer: Answer) -> tuple[str, ...]:
    """What was left open, beside the question that mattered most. Words cannot be marked fairly: no points."""
    if not answer.open_questions:
        return ()
    cause = hidden.cause
    asked = "you asked" if cause.told_apart_by in answer.asked else "you did not ask"
    listed = "; ".join(QUESTIONS[name].text if name in QUESTIONS else name for name in answer.open_questions)
    return (
        f"You left open: {listed}. (No points either way.) What tells it from its look-alike, "
        f"'{CAUSES[cause.looks_like].title}': {_texts([cause.told_apart_by])}, which {asked}.",
    )


def _ranking(hidden: Hidden, answer: Answer, values: Mapping[str, float]) -> Criterion:
    """The ranked interventions' measured values, the first counted most, against the best order there is."""
    ranked = list(dict.fromkeys(answer.ranked))
    if not ranked:
        return Criterion("ranking", 0, RANKING, "Nothing was ranked.")
    best = sorted(values.values(), reverse=True)[: len(ranked)]
    reached = sum(max(values[name], 0.0) / place for place, name in enumerate(ranked, 1))
    possible = sum(max(value, 0.0) / place for place, value in enumerate(best, 1))
    share = reached / possible if possible else 0.0
    order = sorted(values, key=lambda name: -values[name])
    told = "; ".join(f"{CHANGES[name].text} {values[name]:+.2f}" for name in order)
    words = f"What each is worth alone, as share of requests saved, less its cost: {told}."
    cause = hidden.cause
    if cause.tempting in ranked[:2]:
        words += f" {CHANGES[cause.tempting].text}: {cause.why_not}"
    return Criterion("ranking", round(RANKING * share, 2), RANKING, words)


def _deployed(hidden: Hidden, effect: Effect | None) -> Sequence[Criterion]:
    if effect is None:
        nothing = "Nothing was deployed."
        worth = {"SLO restored": RESTORED, "no harm": HARM, "cost": COST}
        return [Criterion(name, 0, points, nothing) for name, points in worth.items()]
    told = f"{effect.before:.0%} of requests before, {effect.after:.0%} after, target {effect.target:.0%}."
    gained = max(effect.after - effect.before, 0.0) / max(effect.target - effect.before, 1e-9)
    kept = RESTORED if effect.restored else round(0.4 * RESTORED * min(gained, 1.0), 2)
    if not effect.restored and hidden.cause.tempting in effect.chosen:
        told += f" {hidden.cause.why_not}"
    harmed = bool(effect.regressions) or not effect.restored
    harm = f"Worse than before: {', '.join(effect.regressions)}." if effect.regressions else "Nothing got worse."
    spare = max(len(effect.chosen) - 2, 0)
    cost = COST / (1 + max(effect.growth, 0.0)) / (1 + spare) if effect.restored else 0.0
    bill = f"${effect.bill_before:.2f} an hour before, ${effect.bill_after:.2f} after"
    extra = f"; {spare} changes more than two at once" if spare else ""
    return [
        Criterion("SLO restored", kept, RESTORED, told),
        Criterion("no harm", 0 if harmed else HARM, HARM, harm),
        Criterion("cost", round(cost, 2), COST, f"{bill}{extra}."),
    ]


def _clock(answer: Answer, share: float) -> Criterion:
    """Minutes count only if something was found in them."""
    brisk = min(max((SLOW - answer.minutes) / (SLOW - BRISK), 0.0), 1.0) if share else 0.0
    told = f"{answer.minutes} minutes, {len(answer.asked)} questions; {BRISK} minutes are enough."
    return Criterion("clock", round(CLOCK * brisk, 2), CLOCK, told)
