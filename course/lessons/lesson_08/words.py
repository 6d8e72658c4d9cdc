"""What the runs of lesson 08 showed: its findings and its claims."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from course.lab import simulated_70b, verify_costs
from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.draft_story import DraftStory
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.noise import CEILING, ratio_of
from course.lab.speculation_gain import accepted_share, best_k, break_even, emitted, speedup
from course.lab.style import number
from course.lab.verify_costs import VerifyCosts
from course.lessons.lesson_08 import run
from course.lessons.lesson_08.run import (
    ALWAYS,
    CROWDED,
    INT8,
    NGRAM,
    NOISE,
    WITHOUT,
    AcceptancePoint,
    PayBack,
    WorkloadRuns,
    at_once,
    base_of,
    crowded,
    faster,
    is_apart,
    quantized_or_drafted,
)
from minillm.speculation.draft_length import PRIOR_ACCEPTANCE

# ---------------------------------------------------------------- findings

K, ORDINARY = 4, 0.6
"""A draft's length, and the acceptance of text that isn't a copy."""
CHEAP = 1.15
"""A verification that takes no more plain steps than that is cheap, for what it may yield."""
AS_MANY = 0.1
"""Two ways whose shares of steps with a draft differ by no more drafted in about as many."""


CROWD_OUTCOMES = dict(zip(CROWDED, ("faster", "same", "slower")))
WHERE_CHECKING_IS_CHEAP = {"faster": "faster_checking_is_cheap", "slower": "slower_checking_is_cheap"}


def watched(told: Mapping[str, tuple[DraftStory, DraftStory]]) -> Finding:
    """How many steps each watched answer took, with and without drafts."""
    lines = [
        f"*{name}*: {len(plain.steps)} steps without, {len(story.steps)} with" for name, (story, plain) in told.items()
    ]
    copying, chat = (_is_shorter(*told[name]) for name in run.LOOKED_UP)
    outcome = (
        "in_both" if copying and chat else "where_text_is_copied" if copying else "in_chat" if chat else "in_neither"
    )
    lookup = tell("08", "looked_up", outcome).here
    return tell("08", "watched", "steps_taken", told="; ".join(lines), lookup=lookup)


def _is_shorter(story: DraftStory, plain: DraftStory) -> bool:
    """Whether drafts saved a tenth of the steps."""
    return NOISE * len(story.steps) < len(plain.steps)


def checking(costs: VerifyCosts) -> Finding:
    """How free checking is here, alone and at the largest batch."""
    small, large = costs.batches[0], costs.batches[-1]
    most = max(costs.relative(batch, K) for batch in costs.batches)
    ratios = {"alone": costs.relative(small, K), "crowd": costs.relative(large, K), "extra": max(most - 1, 0.0)}
    border = break_even(K, 0.0, ratios["crowd"])
    if costs.is_restless:
        outcome = "restless"
    elif border is None:
        outcome = "never_pays"
    elif most <= CHEAP:
        outcome = "cheap_at_every_batch"
    else:
        outcome = "costlier_in_a_batch" if ratios["crowd"] > CHEAP * ratios["alone"] else "same_in_a_batch"
    return tell("08", "checking", outcome, batch=large, k=K, border=border or 1.0, **ratios)


RARELY = 0.05
"""Gates that draft in a smaller share of the turns haven't tried."""


def kinds(every: Sequence[WorkloadRuns]) -> Finding:
    """What drafting gained on each kind of text: always, and with the gates.

    Equal work differs by noise at most, and a request by itself gains at most the steps that it saves.
    """
    lines, by_noise = [], [1.0]
    drafting = [one for one in every if one.way == ALWAYS]
    cost = {
        "lookup": max(one.draft_s for one in drafting),
        "ahead": _lost_overlap(drafting[0], base_of(drafting[0], every)),
    }
    for one in every:
        if one.way == ALWAYS:
            gates = next(each for each in every if each.workload == one.workload and each.way == "gates")
            base = base_of(one, every)
            passed = (
                f"{one.acceptance:.0%} of tested draft tokens accepted" if one.acceptance is not None else "no draft"
            )
            gains = f"always ×{faster(one, base):.2f}, gates ×{faster(gates, base):.2f}"
            if abs(one.drafting_share - gates.drafting_share) <= AS_MANY:
                by_noise.append(ratio_of(one.decode_s, gates.decode_s))
            by_noise.append(faster(one, base) / one.tokens_per_step)
            lines.append(f"**{one.workload.partition(',')[0]}**: {passed}, {gains}")
    outcome = "compared" if any(one.acceptance is not None for one in drafting) else "no_guesses"
    if max(by_noise) > CEILING:
        outcome = "disturbed"
    return tell("08", "kinds", outcome, told="; ".join(lines), most=max(by_noise), **cost)


def _lost_overlap(drafted: WorkloadRuns, plain: WorkloadRuns) -> str:
    """What drafts cost where an engine without them plans a step while the one before runs; nothing elsewhere."""
    is_lost = plain.plans_ahead and not drafted.plans_ahead
    return f" {tell('08', 'overlap', 'lost').here}" if is_lost else ""


def crowd(every: Sequence[WorkloadRuns], costs: VerifyCosts) -> Finding:
    """Many copying together, gates open, against one at a time; and what an ordinary acceptance would give."""
    bet, batch = crowded(every), costs.batches[-1]
    always, gates = (next(each for each in every if each.way == way) for way in (ALWAYS, "gates"))
    if isinstance(bet, str) and always.acceptance is not None:
        return tell("08", "crowd", "unclear", why=bet)
    outcome = "no_guesses" if isinstance(bet, str) else CROWD_OUTCOMES[bet.answer]
    if costs.relative(batch, K) <= CHEAP:
        outcome = WHERE_CHECKING_IS_CHEAP.get(outcome, outcome)
    base = next(each for each in every if each.way == WITHOUT)
    told = {"share": ORDINARY, "yields": emitted(ORDINARY, K), "takes": costs.relative(batch, K)}
    gains = {"gain": faster(always, base), "gates": faster(gates, base), "ordinary": told["yields"] / told["takes"]}
    missed = gains["gain"] > NOISE * gains["gates"]
    how = "untried" if gates.drafting_share < RARELY else "learned"
    why = f" {tell('08', 'missed', how, prior=PRIOR_ACCEPTANCE).here}" if missed else ""
    gains |= {"drafting": gates.drafting_share, "at_once": at_once(base), "missed": why}
    gains |= {"lookup": always.draft_s, "ahead": _lost_overlap(always, base)}
    return tell("08", "crowd", outcome, passed=always.acceptance or 0.0, **gains, **told)


# ---------------------------------------------------------------- claims

KS, PRICES = (2, 4, 8), (0.0, 0.1, 0.3)
HALF, NEAR_HALF = 0.5, 0.1
SHORTEST_GATE = 50
"""Tokens below which the claim would switch speculation off."""
CLEAR = 0.05
"""A formula that is off by less than this is not called wrong."""


def a14(every: Sequence[WorkloadRuns]) -> Claim:
    """Speculation or quantization first?

    Args:
        every: workloads one request at a time, each WITHOUT, with NGRAM and with INT8.
    """
    gains = {(one.workload, one.way): faster(one, base_of(one, every)) for one in every if one.way != WITHOUT}
    kinds = list(dict.fromkeys(one.workload for one in every))
    found = "; ".join(
        f"{kind.split(',')[0]}: drafts ×{gains[kind, NGRAM]:.2f}, int8 ×{gains[kind, INT8]:.2f}" for kind in kinds
    )
    apart = [kind for kind in kinds if is_apart(_of(every, kind, NGRAM), _of(every, kind, INT8))]
    wins = [kind for kind in apart if gains[kind, NGRAM] > NOISE * gains[kind, INT8]]
    losses = [kind for kind in apart if gains[kind, INT8] > NOISE * gains[kind, NGRAM]]
    if all(_of(every, kind, NGRAM).acceptance is None for kind in kinds):
        verdict = "nothing_was_guessed"
    elif len(wins) == len(kinds):
        verdict = "drafts_gain_more"
    elif wins:
        verdict = "only_for_guessable_text"
    else:
        verdict = "int8_gains_more" if losses else "too_close_to_call"
    helps_alone = min(gains[kind, INT8] for kind in kinds) > NOISE
    claim = conclude("A14", verdict, found=found)
    return replace(claim, verdict=claim.verdict + say("A14.int8_helps_directly")) if helps_alone else claim


def d4(measured: VerifyCosts) -> Claim:
    """Is 50% acceptance the border between gain and loss?"""
    alone, crowd = measured.batches[0], measured.batches[-1]
    borders, crowded = (
        {(k, c): break_even(k, c, measured.relative(batch, k)) for k in KS for c in PRICES} for batch in (alone, crowd)
    )
    values = [1.0 if each is None else each for each in borders.values()]
    if measured.is_restless:
        verdict = "machine_was_busy"
    elif all(abs(value - HALF) <= NEAR_HALF for value in values):
        verdict = "near_half_everywhere"
    else:
        on_one_side = min(values) > HALF or max(values) < HALF
        verdict = "nowhere_near_half" if on_one_side else "on_both_sides_of_half"
    return conclude(
        "D4",
        verdict,
        alone=alone,
        listed=_listed(borders),
        crowd=crowd,
        range=_range(crowded),
        paper=speedup(0.8, 4, 0.1),
        gain=verify_costs.gain(measured, alone, 4, 0.8, 0.1),
        right=say("D4.where_it_breaks_even"),
    )


def _listed(borders: Mapping[tuple[int, float], float | None]) -> str:
    parts = [f"{'never' if a is None else f'{a:.0%}'} (k = {k}, c = {c:g})" for (k, c), a in borders.items()]
    return ", ".join(parts)


def _range(borders: Mapping[tuple[int, float], float | None]) -> str:
    gains = [each for each in borders.values() if each is not None]
    if not gains:
        return "never, at any of these"
    often = "" if len(gains) == len(borders) else f", and never at {len(borders) - len(gains)} of {len(borders)}"
    return f"{min(gains):.0%} to {max(gains):.0%}{often}"


def d5(told: Mapping[str, tuple[DraftStory, DraftStory]]) -> Claim:
    """What happens to a draft in which a guess fails?"""
    failed = sum(story.corrections for story, _ in told.values())
    took_longer = any(len(story.steps) > len(plain.steps) for story, plain in told.values())
    if not failed:
        verdict = "no_guess_failed"
    elif took_longer:
        verdict = "took_more_steps"
    else:
        verdict = "right_token_in_the_same_step"
    return conclude(
        "D5",
        verdict,
        failed=failed,
        kept=sum(step.passed for story, _ in told.values() for step in story.steps if step.corrects),
        fewer="; ".join(f"{name}: {len(s.steps)} steps instead of {len(p.steps)}" for name, (s, p) in told.items()),
        same=sum(story.token_ids == plain.token_ids for story, plain in told.values()),
        num_told=len(told),
    )


def d6(every: Sequence[WorkloadRuns], pay_backs: Sequence[PayBack]) -> Claim:
    """Does speculation cost on short answers, and is 50 tokens the border?

    Args:
        every: short answers, WITHOUT and always drafting; the shortest first.
        pay_backs: of a draft model that has to read the prompt.
    """
    lengths = list(dict.fromkeys(one.workload for one in every))
    ratios = {name: _of(every, name, ALWAYS).e2e_s / _of(every, name, WITHOUT).e2e_s for name in lengths}
    shortest_lost, longest_lost = (_lost(every, name) for name in (lengths[0], lengths[-1]))
    early = [one.tokens is not None and one.tokens < SHORTEST_GATE for one in pay_backs]
    if all(_of(every, name, ALWAYS).acceptance is None for name in lengths):
        verdict = "nothing_was_guessed"
    elif longest_lost and not shortest_lost:
        verdict = "only_long_answers_lost"
    elif shortest_lost:
        verdict = "only_with_a_cost_up_front" if any(early) else "short_answers_lost"
    else:
        verdict = "no_short_answer_lost" if all(early) else "only_with_a_cost_up_front"
    found = "; ".join(f"{name}: ×{ratio:.2f} the time" for name, ratio in ratios.items())
    paid = "; ".join(f"{p.prompt} tokens of prompt: {p.words}" for p in pay_backs)
    return conclude("D6", verdict, found=found, paid=paid, right=say("D6.what_a_short_answer_loses"))


def _of(every: Sequence[WorkloadRuns], workload: str, way: str) -> WorkloadRuns:
    return next(one for one in every if one.workload == workload and one.way == way)


def _lost(every: Sequence[WorkloadRuns], name: str) -> bool:
    """Even the quickest run with drafts took longer than the slowest one without, and not by a hair."""
    drafted, plain = (_of(every, name, way) for way in (ALWAYS, WITHOUT))
    return min(drafted.each_e2e_s) > max(plain.each_e2e_s) and drafted.e2e_s > NOISE * plain.e2e_s


def f2(points: Sequence[AcceptancePoint]) -> Claim:
    """Is the gain k x acceptance, with a ceiling at 3 or 4?"""
    points = list(dict.fromkeys(points))
    wrong = statistics.fmean(abs(p.popular / p.emitted - 1) for p in points)
    right = statistics.fmean(abs(p.formula / p.emitted - 1) for p in points)
    found = "; ".join(
        f"α = {p.alpha:g}, k = {p.k}: {number(p.emitted)} "
        f"(the sum {number(p.formula)}, max(1, k × α) {number(p.popular)})"
        for p in points
    )
    best = best_k(0.9, 0.02, lambda k: 1.0)
    verdict = "formulas_equally_far" if wrong < max(CLEAR, right) else "the_sum_fits"
    return conclude("F2", verdict, found=found, wrong=wrong, right=right, speedup=speedup(0.9, best, 0.02), best=best)


AT_64 = 1.57
"""Plain steps that checking four guesses took an 8B on an H100, with 64 requests (docs/measured.md)."""


def three_numbers() -> Html:
    """The lesson's three numbers."""
    yields, share = emitted(ORDINARY, K), accepted_share(ORDINARY, K)
    return know_cold(
        (
            f"{yields:.1f} tokens",
            f"per verification at α = {ORDINARY:g}, k = {K}",
            "1 + α + … + α^k; never above 1 / (1 − α)",
        ),
        (f"{share:.0%}", "what dashboards call its acceptance rate", "(α + … + α^k) / k"),
        (
            f"α = {break_even(K, 0.0, AT_64):.2f}",
            "where free drafts break even: an 8B on an H100, 64 requests",
            f"checking four took {AT_64:g} plain steps (docs/measured.md)",
        ),
    )


EXPERIMENT = ("lab/draft_story.py", "lab/speculation_gain.py", "lab/verify_costs.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A14": lambda lab: a14(quantized_or_drafted(lab)),
    "D4": lambda lab: d4(verify_costs.measure(lab, (1, 8))),
    "D5": lambda lab: d5(run.stories(lab)),
    "D6": lambda lab: d6(run.short_answers(lab), run.pay_backs(simulated_70b.deployment())),
    "F2": lambda lab: f2(run.sweep(lab)),
}
