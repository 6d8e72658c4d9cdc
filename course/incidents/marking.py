"""Marks out of a hundred, in three parts: how soon users were helped, what was said and shown of the cause, and what
stands for good. Helping needs no diagnosis. The other two count in proportion to the case that was made: a guess that
happens to be right is worth nothing.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from course.grading import Criterion, Result
from course.incidents.causes import CAUSES
from course.incidents.convict import read_off, rules_out
from course.incidents.disguise import ENOUGH
from course.incidents.generate import BRUTE_FORCE, BestAtOnce, Hidden
from course.incidents.interventions import BY_ID as CHANGES
from course.incidents.interventions import EFFORTS, NOW
from course.incidents.numbers import PLACES, answered, time_by_place
from course.incidents.outcome import Effect
from course.incidents.questions import BY_ID as QUESTIONS
from course.lab.style import seconds as in_seconds
from course.lab.visits import mean

MITIGATED = 25
CAUSE, PHASE, SECONDARY, REGIME, EVIDENCE, RULED_OUT, SOON = 12, 8, 2, 3, 8, 6, 5
RESTORED, HARM, COST, RANKING = 16, 4, 6, 5
"""Points, by part; they add up to 100. Who names no cause, or a wrong one that isn't near, has at most 32 of them."""
HALFWAY = 0.3
"""Share of the points for what was gained towards the SLO, without reaching it."""
TOGETHER = 2
"""Changes in one deployment. Of more, no one knows which it was: the points shrink in proportion."""
UNDONE = 0.85
"""What is left of the points for the mitigation after each attempt that all users had, and that was taken back."""
CANARY_UNDONE, ALL_UNDONE = 0.9, 0.6
"""What is left of the points for the follow-up after a change that a tenth of the users had for nothing, or all of
them. The second canary counts twice, the third three times: trying one thing after another is no diagnosis."""
TOLERATED = 1.25
"""A bill that is so much above that of the most expensive cure is no worse; beyond, the SLO was bought."""
PER_STRAY = 0.25
"""Share of the evidence's points taken off for each answer cited that convicts nothing."""
SPLITS = frozenset({"ttft_itl", "phases", "changes"})
"""The first split of the number, and the change log: part of every case, and no evidence for a cause by itself."""
UNNAMED = 0.5
"""What evidence, and ruling out, are worth where the cause itself isn't named."""
NEAR = 0.75
"""What a case is worth that names another cause of the same phase and with the same cure, once that cure has restored
the SLO: the mechanism is another one, and what it takes is right."""
WITHOUT_ALTERNATIVE = 0.5
"""What a case is worth that rules no other cause out."""
WITH_ANOTHER_PHASE = 0.5
"""What is left of a case whose cause and phase don't fit together: who knows the one knows the other."""
OF_THE_PHASE = 0.5
"""Share of the points for ruling out a cause that isn't the look-alike, but loses its seconds in the same phase."""
PROMPT, BRISK, SLOW = 20, 35, 75
"""Minutes on the incident clock. All points for a mitigation that is in place by the first, and for a diagnosis by the
second; none from the third on. Where the best mitigation takes longer to roll out than what is done at once, each is
later by as much."""
MOST_TOLD = 4
"""Questions that a note about the evidence names; in some incidents a dozen would be accepted."""
MOSTLY_UNANSWERED = 0.1
"""Share of requests without an answer from which the phases of the answered ones tell too little."""
NOTHING_HELPS = 0.05
"""Where nothing at hand saves more than one request in twenty, there is no mitigation to be had."""
MOST_LOST = 1 / 3
"""Share of the lost seconds that makes a place the dominant one, whatever must change."""
NOTABLE = 0.1
"""Share of the lost seconds that makes a phase the second problem."""
ON_PAPER = {
    "SLO restored": 50,
    "no harm": 5,
    "dominant phase": 10,
    "secondary problem": 2,
    "spike or steady": 3,
    "evidence": 10,
    "ranking": 5,
}
"""Points for what a written dump asks for: nobody waits there, causes aren't named, and what a change costs is in its
rank."""


@dataclass(frozen=True)
class Diagnosis:
    """What the learner committed to."""

    dominant_phase: str | None
    secondary: str | None
    evidence: tuple[str, ...]
    ranked: tuple[str, ...]
    regime: str | None
    asked: tuple[str, ...]
    cause: str | None = None
    """Its name."""
    ruled_out: tuple[tuple[str, str], ...] = ()
    """(question, cause): the answer that rules another cause out."""
    minute: int = 0
    """On the incident clock."""


@dataclass(frozen=True)
class Mitigation:
    """A quick change that all users had, before or after there was a diagnosis."""

    effect: Effect
    minute: int
    """When all users had it, on the incident clock."""


@dataclass(frozen=True)
class Rollout:
    """What was deployed in the end, and what it took to get there."""

    effect: Effect | None
    """What stands for good; None = nothing is deployed."""
    mitigations: tuple[Mitigation, ...] = ()
    """Those that weren't rolled back."""
    best: BestAtOnce | None = None
    """What helps most within half an hour."""
    attempts_undone: int = 0
    """Quick changes that all users had, that didn't restore the SLO, and that were taken back."""
    canaries_undone: int = 0
    all_undone: int = 0
    """Rollouts after the diagnosis that were taken back."""
    needed: float = 0.0
    """Dollars an hour with the most expensive of the true cures."""

    @property
    def longer(self) -> int:
        """See `longer_than_at_once`."""
        return 0 if self.best is None else longer_than_at_once(self.best)


def longer_than_at_once(best: BestAtOnce) -> int:
    """Minutes that the best mitigation takes, beyond those of what is done at once."""
    return CHANGES[best.id].minutes - EFFORTS[NOW]


def lost_by_phase(hidden: Hidden) -> dict[str, float]:
    """Seconds that a mean answered request takes longer than last week, by phase, and outside the engine."""
    now, before = (time_by_place(play) for play in (hidden.scene.now, hidden.scene.before))
    return {place: max(mean(now[place]) - mean(before[place]), 0.0) for place in PLACES}


def dominant_phases(hidden: Hidden) -> set[str]:
    """What may fairly be blamed: what must change, or where a large part of the seconds is lost."""
    lost = lost_by_phase(hidden)
    most = {place for place, seconds in lost.items() if seconds and seconds >= MOST_LOST * sum(lost.values())}
    return {hidden.cause.phase, *hidden.cause.also, *most}


def second_phases(hidden: Hidden) -> set[str | None]:
    """What may fairly be named as the second problem; None where there is hardly one."""
    lost = lost_by_phase(hidden)
    total = sum(lost.values()) or 1.0
    named: set[str | None] = {p for p in PLACES if p != hidden.cause.phase and lost[p] / total >= NOTABLE}
    named |= {hidden.also.phase} if hidden.also else set()
    return (named or {None}) | set(hidden.cause.also)


def mark(
    hidden: Hidden,
    answer: Diagnosis,
    rollout: Rollout,
    values: Mapping[str, float],
    on_paper: Collection[str] | None = None,
) -> Result:
    """Grade an answer.

    Args:
        on_paper: for a written dump, the questions it answers: nothing else can be cited; None = all could be asked.
        values: what each ranked intervention, and each true fix, is worth; see `Effect.value`.
    """
    said = (
        _phase(hidden, answer),
        _secondary(hidden, answer),
        _regime(hidden, answer),
        _evidence(hidden, answer, on_paper),
    )
    done = (*_deployed(hidden, rollout), _ranking(hidden, answer, values))
    if on_paper is not None:
        worth = {each.name: each for each in (*done[:2], *said, done[-1])}
        return Result("incident", tuple(_rescaled(worth[name], points) for name, points in ON_PAPER.items()))
    alternative = _ruled_out(hidden, answer)
    named = named_as(hidden, answer, rollout)
    case = case_of(named, said[0], said[-1], alternative)
    weighed = [_weighed(each, case) for each in (*said[:-1], _soon(answer, rollout.longer))]
    shown = [_weighed(each, max(named, UNNAMED)) for each in (said[-1], alternative)]
    follow_up = [_weighed(each, case) for each in done]
    cause = _cause(hidden, answer, named, case)
    criteria = (_mitigated(hidden, answer, rollout, case), cause, *weighed, *shown, *follow_up)
    return Result("incident", criteria)


def _rescaled(criterion: Criterion, points: float) -> Criterion:
    return replace(criterion, earned=round(criterion.earned / criterion.possible * points, 2), possible=points)


def _weighed(criterion: Criterion, case: float) -> Criterion:
    """In proportion to the case. What was right and counts in part says so: its points alone look like a mistake."""
    told = criterion.feedback
    if case < 1 and criterion.earned == criterion.possible:
        told = f"Right, and counts {case:.0%}. {told}"
    return replace(criterion, earned=round(criterion.earned * case, 2), feedback=told)


# ---------------------------------------------------------------- the case


def is_named(hidden: Hidden, answer: Diagnosis) -> bool:
    """Whether the cause is named, or one that may fairly be."""
    return answer.cause in {hidden.cause.name, *hidden.cause.names}


def is_near(hidden: Hidden, cause: str) -> bool:
    """Whether another cause loses its seconds in the same phase and has the same cure. Twice the machines don't make
    two causes one: that cures whatever is a matter of load.
    """
    true, other = hidden.cause, CAUSES[cause]
    phases = {true.phase, *true.also} & {other.phase, *other.also}
    return bool(phases and set(true.fixes) & set(other.fixes) - {BRUTE_FORCE}) and not true.together


def named_as(hidden: Hidden, answer: Diagnosis, rollout: Rollout) -> float:
    """What the named cause is worth, 0 to 1: all for the true one, NEAR for a near one whose cure stands and has
    restored the SLO. Beside twice the machines it can't be said which of the two did.
    """
    if is_named(hidden, answer):
        return 1.0
    if answer.cause is None or not is_near(hidden, answer.cause):
        return 0.0
    cures = set(hidden.cause.fixes) & set(CAUSES[answer.cause].fixes)
    effect = rollout.effect
    if effect is None or not effect.restored or BRUTE_FORCE in effect.chosen:
        return 0.0
    return NEAR if cures.intersection(effect.chosen) else 0.0


def case_of(named: float, phase: Criterion, evidence: Criterion, alternative: Criterion) -> float:
    """How strong the case is, 0 to 1: the cause is named, its phase fits, and there is evidence for it and against
    another one.

    Args:
        named: see `named_as`.
    """
    fits = 1.0 if phase.earned else WITH_ANOTHER_PHASE
    against = WITHOUT_ALTERNATIVE + (1 - WITHOUT_ALTERNATIVE) * alternative.earned / RULED_OUT
    return named * fits * evidence.earned / EVIDENCE * against


def _cause(hidden: Hidden, answer: Diagnosis, named: float, case: float) -> Criterion:
    told = f"It was '{hidden.cause.title}'."
    if answer.cause is None:
        told = f"You named no cause. {told}"
    elif not is_named(hidden, answer) and is_near(hidden, answer.cause):
        told = f"'{CAUSES[answer.cause].title}' is near: {_near_miss(hidden, answer.cause, bool(named))} {told}"
    told += f" Your case is worth {case:.0%}: everything but mitigation, evidence and ruling out is scaled by that."
    return Criterion("cause", round(CAUSE * case, 2), CAUSE, told)


def _near_miss(hidden: Hidden, cause: str, is_cured: bool) -> str:
    """What two near causes share, and where they part."""
    true, other = hidden.cause, CAUSES[cause]
    shared = next(name for name in true.fixes if name in other.fixes)
    apart = true.told_apart_by
    if true.looks_like != cause:
        apart = next((name for name in true.convicting if name not in other.convicting), apart)
    told = f"'{CHANGES[shared].text}' cures both, and '{QUESTIONS[apart].text}' tells them apart."
    return told if is_cured else f"{told} It would have counted {NEAR:.0%} with that cure in place."


def likeness(hidden: Hidden, cause: str) -> float:
    """What ruling another cause out is worth: all for the look-alike, half for one that loses its seconds in the same
    phase, nothing for one that nobody would have thought of.
    """
    if cause == hidden.cause.looks_like:
        return 1.0
    return OF_THE_PHASE if CAUSES[cause].phase in (hidden.cause.phase, *hidden.cause.also) else 0.0


def _ruled_out(hidden: Hidden, answer: Diagnosis) -> Criterion:
    """One answer, put to the look-alike, is enough; a wrong one takes half of the points off."""
    best, wrong, words = 0.0, 0, []
    for question, cause in answer.ruled_out:
        what = f"'{CAUSES[cause].title}' by {QUESTIONS[question].text}"
        if question not in answer.asked:
            words.append(f"Not asked for: {what}.")
        elif cause in (hidden.cause.name, *hidden.cause.names) or not rules_out(hidden, question, cause):
            wrong += 1
            words.append(f"That doesn't rule it out: {what}.")
        elif worth := likeness(hidden, cause):
            best = max(best, worth)
            words.append(f"Right: {what}.")
        else:
            words.append(f"True, but no one would have thought of it: {what}.")
    twin = CAUSES[hidden.cause.looks_like].title
    words.append(f"It looks like '{twin}'; '{QUESTIONS[hidden.cause.told_apart_by].text}' tells them apart.")
    return Criterion("ruled out", round(RULED_OUT * max(best - wrong / 2, 0.0), 2), RULED_OUT, " ".join(words))


def _soon(answer: Diagnosis, longer: int) -> Criterion:
    told = (
        f"Committed at minute {answer.minute}, after {len(answer.asked)} questions; {BRISK + longer} are soon enough."
    )
    return Criterion("minutes to diagnosis", round(SOON * _in_time(answer.minute - longer, BRISK), 2), SOON, told)


def _in_time(minute: float, enough: float) -> float:
    """1 up to the minute that is soon enough, and down to 0 at SLOW."""
    return min(max((SLOW - minute) / (SLOW - enough), 0.0), 1.0)


# ---------------------------------------------------------------- helping users


def most_of_all(best: BestAtOnce) -> str:
    """What would have helped most, in a sentence."""
    return f"What helps most within half an hour: {CHANGES[best.id].text}."


def _mitigated(hidden: Hidden, answer: Diagnosis, rollout: Rollout, case: float) -> Criterion:
    """The best of the quick changes that stood, by what it was worth and when it was in place."""
    most = rollout.best
    if most is None or most.relief <= NOTHING_HELPS:
        told = "Nothing at hand would have helped many: the sooner the cause is known, the better."
        earned = MITIGATED * case * _in_time(answer.minute, BRISK)
        return Criterion("minutes to mitigation", round(earned, 2), MITIGATED, told)
    words = most_of_all(most)
    if not rollout.mitigations:
        told = f"Nothing was in place for all users within half an hour, so they weren't helped. {words}"
        return Criterion("minutes to mitigation", 0, MITIGATED, told)

    def share(each: Mitigation) -> float:
        in_time = _in_time(each.minute - rollout.longer, PROMPT)
        return min(max(each.effect.relief, 0.0) / most.relief, 1.0) * in_time

    best = max(rollout.mitigations, key=share)
    kept = share(best) * UNDONE**rollout.attempts_undone
    told = f"{best.effect.before:.0%} to {best.effect.after_told} of requests within the SLO by minute {best.minute} "
    told += (
        f"({PROMPT + rollout.longer} is soon enough), worth {best.effect.relief:+.2f} of {most.relief:+.2f}. {words}"
    )
    if undone := rollout.attempts_undone:
        told += f" {undone} attempt{'s' * (undone > 1)} before it didn't restore the SLO: counts {UNDONE**undone:.0%}."
    return Criterion("minutes to mitigation", round(MITIGATED * kept, 2), MITIGATED, told)


# ---------------------------------------------------------------- the diagnosis


def _phase(hidden: Hidden, answer: Diagnosis) -> Criterion:
    fair = dominant_phases(hidden)
    lost = {place: seconds for place, seconds in lost_by_phase(hidden).items() if seconds > 0}
    told = ", ".join(f"{place.replace('_', ' ')} {in_seconds(more)}" for place, more in lost.items())
    places = " or ".join(place.replace("_", " ") for place in PLACES if place in fair)
    text = f"You may fairly blame {places}. "
    text += f"The average answered request takes longer than last week by: {told or 'nothing'}."
    now = hidden.scene.now
    if (without := 1 - len(answered(now)) / max(len(now.run.records), 1)) > MOSTLY_UNANSWERED:
        text += f" {without:.0%} got no answer, and what those waited isn't in it."
    if answer.dominant_phase is None:
        return Criterion("dominant phase", 0, PHASE, f"Name one of {', '.join(PLACES)}. {text}")
    right = answer.dominant_phase in fair
    return Criterion("dominant phase", PHASE if right else 0, PHASE, text)


def _secondary(hidden: Hidden, answer: Diagnosis) -> Criterion:
    allowed = second_phases(hidden)
    if answer.dominant_phase in dominant_phases(hidden):  # the two may change places
        allowed = {*allowed, hidden.cause.phase} - {answer.dominant_phase}
    told = " or ".join(sorted("none" if name is None else name.replace("_", " ") for name in allowed))
    said = "There's no second problem." if allowed == {None} else f"The second problem: {told}."
    right = any(answer.secondary == name for name in allowed)
    return Criterion("secondary problem", SECONDARY if right else 0, SECONDARY, said)


REGIMES = {
    "steady": "It's a steady state: it doesn't pass by itself.",
    "spike": "It's a spike: permanent machines would sit idle most of the time.",
}


def _regime(hidden: Hidden, answer: Diagnosis) -> Criterion:
    truth = hidden.cause.regime
    return Criterion("spike or steady", REGIME if answer.regime == truth else 0, REGIME, REGIMES[truth])


def convicting(hidden: Hidden, on_paper: Collection[str] | None = None) -> tuple[list[str], int, set[str]]:
    """The questions whose answers convict, how many of them make a case, and all whose answers have changed at all."""
    apart, moved = read_off(hidden)
    of_cause = {*hidden.cause.convicting, hidden.cause.told_apart_by, *(hidden.also.convicting if hidden.also else ())}
    known = of_cause | apart
    core = [name for name in QUESTIONS if name in known and (on_paper is None or name in on_paper)]
    return core, min(ENOUGH, len(of_cause.intersection(core))), moved


def _evidence(hidden: Hidden, answer: Diagnosis, on_paper: Collection[str] | None) -> Criterion:
    core, enough, moved = convicting(hidden, on_paper)
    cited = list(dict.fromkeys(answer.evidence))
    hits = [name for name in cited if name in core and name in answer.asked]
    stray = [name for name in cited if name not in core and name not in SPLITS]
    share = min(len(hits) / enough, 1.0) * max(1 - PER_STRAY * len(stray), 0.0)
    twin = CAUSES[hidden.cause.looks_like].title
    first = sorted(core, key=lambda name: name not in (*hidden.cause.convicting, hidden.cause.told_apart_by))
    words = [f"What speaks for it and against '{twin}': {_texts(first[:MOST_TOLD])}."]
    if more := len(core) - MOST_TOLD:
        words[0] += f" {more} more would have been accepted." * (more > 0)
    if len(hits) < enough:
        counted = f"{len(hits) or 'nothing'} count{'s' * (len(hits) < 2)}"
        words.append(f"Of what you cited, {counted}; it takes {enough} to make a case.")
    if unseen := [name for name in cited if name not in answer.asked]:
        words.append(f"Cited without having been asked for: {_texts(unseen)}.")
    if "gpu" in stray:
        words.append("GPU utilization reads high in nearly every incident: it points at no cause.")
    if same := [name for name in stray if name not in moved and name != "gpu"]:
        words.append(f"No more than context, or as last week: {_texts(same)}.")
    if shared := [name for name in stray if name in moved and name != "gpu"]:
        words.append(f"These changed as well, but the look-alike would have changed them, too: {_texts(shared)}.")
    return Criterion("evidence", round(EVIDENCE * share, 2), EVIDENCE, " ".join(words))


def _texts(names: Iterable[str]) -> str:
    """Questions in the words of the desk, which shows no ids."""
    return "; ".join(QUESTIONS[name].text for name in names)


def _ranking(hidden: Hidden, answer: Diagnosis, values: Mapping[str, float]) -> Criterion:
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
    words = f"What each is worth, as share of requests saved, less its cost: {told}."
    cause = hidden.cause
    if cause.tempting in ranked[:2]:
        words += f" {CHANGES[cause.tempting].text}: {cause.why_not}"
    return Criterion("ranking", round(RANKING * share, 2), RANKING, words)


def _deployed(hidden: Hidden, rollout: Rollout) -> Sequence[Criterion]:
    effect = rollout.effect
    if effect is None:
        worth = {"SLO restored": RESTORED, "no harm": HARM, "cost": COST}
        return [Criterion(name, 0, points, "Nothing is deployed.") for name, points in worth.items()]
    told = f"{effect.before:.0%} of requests before, {effect.after_told} after, target {effect.target:.0%}."
    gained = max(effect.after - effect.before, 0.0) / max(effect.target - effect.before, 1e-9)
    reached = 1.0 if effect.restored else HALFWAY * min(gained, 1.0)
    if not effect.restored and hidden.cause.tempting in effect.chosen:
        told += f" {hidden.cause.why_not}"
    fair = min(max(effect.bill_before, rollout.needed) / max(effect.bill_after, 1e-9), 1.0)
    counts = {
        f"{len(effect.chosen)} changes together, no one can say which one did it": TOGETHER / len(effect.chosen),
        f"taken back on the way: {rollout.canaries_undone} canaries, {rollout.all_undone} full rollouts": (
            CANARY_UNDONE ** math.comb(rollout.canaries_undone + 1, 2) * ALL_UNDONE**rollout.all_undone
        ),
        f"bought for {1 / fair:.1f} times the bill of a cure": (TOLERATED * fair) ** 2,
        f"users lose {effect.lost:.0%} of what they asked for": 1 - effect.lost,
    }
    told += "".join(f" {words[0].upper()}{words[1:]}: counts {n:.0%}." for words, n in counts.items() if n < 1)
    kept = RESTORED * reached * math.prod(min(share, 1.0) for share in counts.values())
    harms = [f"Worse than before: {', '.join(effect.regressions)}."] * bool(effect.regressions)
    harms += [f"{effect.refusal} It contains the incident; the users it refuses aren't served."] * effect.turns_away
    harm = " ".join(harms) or "Nothing got worse."
    only_then = "" if effect.restored else " That counts only once the SLO is met."
    bill = f"${effect.bill_before:.2f} an hour before, ${effect.bill_after:.2f} after.{only_then}"
    return [
        Criterion("SLO restored", round(kept, 2), RESTORED, told),
        Criterion("no harm", HARM if effect.restored and not harms else 0, HARM, harm + only_then),
        Criterion("cost", round(COST * fair, 2) if effect.restored else 0, COST, bill),
    ]
