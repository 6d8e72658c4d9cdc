"""The claims of lesson 09."""

from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import Claim, say
from course.lab.lab import Lab
from course.lab.lesson_09 import gate, phases, sim_70b, sparsity, steps, traffic
from course.lab.lesson_09.formats import PLAIN, Shelf
from course.lab.lesson_09.phases import Pair
from course.lab.lesson_09.rounding import load_matrix
from course.lab.lesson_09.sparsity import Timed
from minillm.bench.quality import Floors

FASTER = 1.1
"""A smaller gain is none that a noisy machine shows."""
LITTLE = 0.5
"""Prefill gains little where its gain is less than half of decode's."""
CLAIMED, ABOUT = 1.5, 0.1
"""D10's throughput, and how near to it counts as it."""
ROUNDED_BEFORE = 0.9
"""A larger share of weights on a grid is no accident."""
ACCURACY_LOST, ITEMS = 0.02, 500
"""D10's loss, and the size of a usual set of test questions."""
USUAL = Floors()
"""Those of `minillm bench quality`."""
ANSWERED = 0.8
"""Of the questions of such a set, the share that a model gets right; for the error of a share."""


def a7(decode: Mapping[str, Pair], prompt: Mapping[str, Pair], line: Mapping[str, Pair], large: float) -> Claim:
    """Which phases do int8 weights move?

    Args:
        decode, prompt, line: pairs of a long answer, of a long prompt, and of a line before one seat.
        large: the gap between two tokens at the largest batch, over that of 16 bits.
    """
    found = (("decode", decode["decode"]), ("prefill of a long prompt", prompt["prefill"]), ("queue", line["queue"]))
    told = "; ".join(f"{name}, {pair.told}" for name, pair in found)
    return Claim(
        "A7",
        say("A7.measured", plain=PLAIN, told=told, large=large),
        _phases_verdict(decode["decode"], prompt["prefill"], line["queue"], large),
    )


def _phases_verdict(decode: Pair, prefill: Pair, queue: Pair, large: float) -> str:
    if decode.is_too_good:
        return say("A7.not_shown")
    if not decode.is_clear:
        return say("A7.not_shown_2")
    if decode.is_slower:
        return say("A7.wrong")
    saved, saved_reading = 1 - decode.ratio, 1 - prefill.ratio if prefill.is_clear else 0.0
    reading = (
        "prefill even lost"
        if prefill.is_slower
        else "prefill gained little"
        if saved_reading < LITTLE * saved
        else say("A7.reading")
    )
    waiting = (
        "the queue got shorter: whoever waits, waits for other people's decoding"
        if queue.is_faster
        else "the queue got longer"
        if queue.is_slower
        else "the queue did not change by more than noise"
    )
    late = "the gaps of the largest batch grew" if large > FASTER else "the gaps of the largest batch did not grow"
    return say("A7.only_when", reading=reading, waiting=waiting, late=late)


def b4(scores: gate.Scores, on_grid: float, floors: Floors = USUAL) -> Claim:
    """Does the number of bits tell whether quality holds?

    Args:
        on_grid: share of the weights that lie on int4's grid already, as they came.
    """
    names = list(scores)[1:]
    verdicts = {name: gate.verdict(scores, name, floors) for name in names}
    told = "; ".join(
        say(
            "B4.told",
            name=name,
            rise=gate.rise(scores, name),
            kl=scores[name].quality.kl,
            agreement=scores[name].quality.agreement,
            num_name=len(verdicts[name].broken),
        )
        for name in names
    )
    passed = [name for name in names if not verdicts[name].broken]
    failed = [name for name in names if verdicts[name].broken]
    alike = [(a, b) for a in passed for b in failed if a[:4] == b[:4]]
    lucky = on_grid > ROUNDED_BEFORE
    return Claim(
        "B4",
        say("B4.measured", plain=scores[PLAIN].positions, floors=floors, told=told),
        (
            say("B4.holds", passed=", ".join(passed), failed=", ".join(failed))
            + (
                f"; {alike[0][0]} and {alike[0][1]} have the same bits and another group"
                + (
                    f" ({alike[0][0]} costs nothing here because this copy was rounded to that grid before)"
                    if lucky
                    else ""
                )
                if alike
                else ""
            )
            + ". A floor on a text is the least: evaluate the work that you serve, too."
        )
        if passed and failed
        else say("B4.not_shown", passed="every" if passed else "no"),
    )


def b5(found: Sequence[Timed]) -> Claim:
    """Are zeros anywhere in a matrix free?"""
    parts, changes = [], []
    for kind in sparsity.ROWS:
        change, pays = sparsity.dense_change(found, kind), sparsity.pays_from(found, kind)
        changes.append(change)
        parts.append(
            f"{kind}: half of them zero, dense ×{change:.2f}, sparse ×{sparsity.sparse_change(found, kind):.2f} "
            + (f"(ahead from {pays:.0%} zeros on)" if pays is not None else "(never ahead)")
        )
    early = any(sparsity.sparse_change(found, kind) < 1 - sparsity.SAME for kind in sparsity.ROWS)
    return Claim(
        "B5",
        say("B5.measured", parts="; ".join(parts)),
        say("B5.not_shown")
        if any(abs(change - 1) > 2 * sparsity.SAME for change in changes)
        else say("B5.only_when")
        if early
        else say("B5.holds"),
    )


def d10(found: steps.Sweep, scores: gate.Scores, big: Mapping[str, float]) -> Claim:
    """One figure for the gain, one for the loss.

    Args:
        found: decode steps here, by batch.
        big: by case, decode speed of 70B in int8 over 16 bits, simulated.
    """
    here = {f"batch {dot.batch}": steps.speedup(found, "int8", i) for i, dot in enumerate(found["int8"])}
    gains = list(here.values())
    by_luck = gate.sampling_error(ANSWERED, ITEMS)
    restless = steps.is_restless({name: found[name] for name in (PLAIN, "int8")})
    return Claim(
        "D10",
        say(
            "D10.measured",
            plain=PLAIN,
            listed=_listed(here),
            listed_70b=_listed(big),
            rise=gate.rise(scores, "int8"),
            scores=scores,
        ),
        say("D10.not_shown")
        if restless
        else (
            say("D10.only_when", least_gains=min(gains), most_gains=max(gains))
            if min(gains) < CLAIMED - ABOUT and max(gains) >= CLAIMED - ABOUT
            else say("D10.wrong", least_gains=min(gains), most_gains=max(gains))
        )
        + say("D10.why", items=ITEMS, answered=ANSWERED, by_luck=by_luck, accuracy_lost=ACCURACY_LOST),
    )


def _listed(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ×{ratio:.2f}" for name, ratio in ratios.items())


def _with_shelf(work: Callable[[Shelf], Claim]) -> Callable[[Lab], Claim]:
    """Loads what it needs, and lets go of it."""

    def measured(lab: Lab) -> Claim:
        shelf = Shelf(lab)
        try:
            return work(shelf)
        finally:
            shelf.close()

    return measured


def _measure_a7(shelf: Shelf) -> Claim:
    scenes = (traffic.long_answer, traffic.long_prompt, traffic.line)
    decode, prompt, line = (phases.compare(shelf, make(shelf.lab)) for make in scenes)
    found = steps.sweep(shelf, (PLAIN, "int8"), (steps.BATCHES[-1],))
    return a7(decode, prompt, line, steps.slowdown(found, "int8"))


def _measure_d10(shelf: Shelf) -> Claim:
    found = steps.sweep(shelf, (PLAIN, "int8"), (1, steps.BATCHES[-1]))
    return d10(found, gate.measure(shelf, found, (PLAIN, "int8")), sim_70b.throughput_gain())


EXPERIMENT = ("lesson_02/simulated.py", "lesson_06")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A7": _with_shelf(_measure_a7),
    "B4": _with_shelf(lambda shelf: b4(gate.measure(shelf), load_matrix(shelf.lab).share_on_grid)),
    "B5": lambda lab: b5(sparsity.measure(lab)),
    "D10": _with_shelf(_measure_d10),
}
