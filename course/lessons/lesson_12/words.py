"""What the runs of lesson 12 showed: its verdicts on claims, and what its predictions are scored by."""

from collections.abc import Callable, Mapping, Sequence

from course.incidents import Incident
from course.incidents.dumps.sums import sums_of
from course.incidents.interventions import BY_ID as CHANGES
from course.lab.claims import Claim, conclude, say
from course.lab.display import Html, as_table
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.style import seconds
from course.lessons.lesson_12 import simulated
from course.lessons.lesson_12.pictures import side_by_side
from course.lessons.lesson_12.run import ALIKE, NONE_HELPS, TOLD_BY, reading


def apart(one: Incident, other: Incident) -> tuple[MeasuredAnswer, Html]:
    """Which question tells them apart: the one whose numbers differ by the largest factor."""
    pairs = {question: (reading(one, question), reading(other, question)) for question in TOLD_BY}
    factors = {name: max(pair) / max(min(pair), 1e-9) for name, pair in pairs.items()}
    best = max(factors, key=factors.get)
    rows = [
        (
            TOLD_BY[name],
            *(f"{value:.3g}" for value in pair),
            f"× {factors[name]:.1f}" if factors[name] > ALIKE else "no",
        )
        for name, pair in pairs.items()
    ]
    told = "; ".join(f"{TOLD_BY[name]}: {a:.3g} and {b:.3g}" for name, (a, b) in pairs.items())
    return MeasuredAnswer(TOLD_BY[best], told), as_table(
        ("question (ratios; GPU and KV in %)", "yours", "the paged service", "tells them apart?"), rows
    )


def tried(incident: Incident, ids: Sequence[str]) -> tuple[MeasuredAnswer, Html]:
    """Deploy each change by itself, on held-out traffic; which one restores the SLO best?

    Args:
        ids: the first one is the deployment that is graded.
    """
    first = incident.deploy(ids[:1])
    incident.grade()  # from here on nothing counts
    effects = [first, *(incident.deploy([name]) for name in ids[1:])]
    kept = [effect for effect in effects if effect.restored]
    best = CHANGES[max(kept, key=lambda effect: effect.after).chosen[0]].text if kept else NONE_HELPS
    told = "; ".join(f"{CHANGES[e.chosen[0]].text}: {e.before:.0%} to {e.after:.0%}" for e in effects)
    return MeasuredAnswer(best, f"requests within the SLO. {told}"), side_by_side(effects)


HALF = 0.5
"""A wait that fell below half has been cured, whatever the noise."""
NO_WAIT_S = 1.0
"""A shorter p99 of the wait is none."""


def a18(
    before: simulated.WaitAndPrefill,
    after: Mapping[str, simulated.WaitAndPrefill],
    by_slots: Mapping[str, Mapping[int, simulated.WaitAndPrefill]],
    lighter: simulated.WaitAndPrefill,
) -> Claim:
    """Is it the slots?

    Args:
        before: short prompts, 96 slots.
        after: long prompts at the same rate, 96 slots, by pool of KV.
        by_slots: long prompts at the same rate, by pool of KV and by other numbers of slots.
        lighter: long prompts, 96 slots, as many prompt tokens a second as before.
    """
    cures = [
        f"{slots} slots with {pool}"
        for pool, by in by_slots.items()
        for slots, line in by.items()
        if slots < simulated.SLOTS and line.wait < HALF * after[pool].wait
    ]
    told = "; ".join(
        f"{pool}: {seconds(after[pool].wait)} with {simulated.SLOTS} slots, "
        + ", ".join(f"{seconds(line.wait)} with {slots}" for slots, line in by.items())
        for pool, by in by_slots.items()
    )
    longest = max(after.values(), key=lambda line: line.wait)
    return conclude(
        "A18",
        "not_shown" if longest.wait < NO_WAIT_S else "holds" if cures else "only_when",
        rate=simulated.RATE,
        before=simulated.BEFORE,
        before_line=before,
        after=simulated.AFTER,
        told=told,
        lighter=lighter,
        cures="; ".join(cures),
        share=longest.prefill / max(longest.prefill + longest.wait, 1e-9),
        slots=simulated.SLOTS,
    )


TWICE = 2.0
"""A tail that grew by less has not shown it."""
CLAIMED = 6.0
"""The article's 12 s over 2 s."""


def d23(tails: Mapping[str, simulated.Tail]) -> Claim:
    """By way of batching, what one long request in eight does to the overall p99, and to the others'."""
    told = "; ".join(
        f"{way}: {seconds(tail.without)} without, {seconds(tail.overall_s)} with, {seconds(tail.short)} for the short"
        for way, tail in tails.items()
    )
    static, chunks = tails[simulated.STATIC], tails[simulated.CHUNKS]
    others = "; ".join(f"{way} × {tail.on_others:.1f}" for way, tail in tails.items())
    if chunks.on_others < TWICE and static.on_others < TWICE:
        verdict = "not_shown"
    else:
        verdict = "only_when_a_trend" if chunks.on_others >= TWICE else "only_when_static"
    return conclude(
        "D23",
        verdict,
        members=simulated.MEMBERS,
        told=told,
        static=static,
        size="about as much as it says" if static.overall >= CLAIMED * 2 / 3 else "less than it says",
        lesson=say("D23.lesson", members=simulated.MEMBERS, others=others),
    )


def three_numbers(page: Incident) -> Html:
    """The lesson's three numbers, of the first page."""
    found = sums_of(page.window)
    return know_cold(
        (
            f"{found.in_flight:.0f} requests",
            "in flight early in the incident, if the load were steady",
            "arrivals per second × E2E (Little)",
        ),
        (
            f"{found.prefill_share:.0%}",
            "of the GPUs' peak FLOP/s is what its prompts need: compute isn't the limit",
            "2 × weights × tokens/s",
        ),
        ("2 questions", "that tell load, slots and memory apart", "requests running, and KV usage"),
    )


EXPERIMENT = ("lab/visits.py",)
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A18": lambda lab: a18(*simulated.post_mortem()),
    "D23": lambda lab: d23(simulated.straggler_tails()),
}
