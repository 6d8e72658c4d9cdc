"""The claims of lesson 09."""

from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import ANATOMY, DECOMPOSING, TECHNIQUES, Claim
from course.lab.lab import Lab
from course.lab.lesson_09 import gate, phases, sim_70b, sparsity, steps, traffic
from course.lab.lesson_09.formats import PLAIN, Shelf
from course.lab.lesson_09.phases import Pair
from course.lab.lesson_09.rounding import load_matrix
from course.lab.lesson_09.sparsity import Timed
from course.lab.style import number
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
        "Quantization helps decode, prefill a little, the queue not at all; at large batches widening the weights "
        "hurts the tail.",
        ANATOMY,
        f"int8 weights against {PLAIN} here, seconds of a phase: {told}; the gap between tokens at the largest "
        f"batch ×{large:.2f}.",
        _phases_verdict(decode["decode"], prompt["prefill"], line["queue"], large),
    )


def _phases_verdict(decode: Pair, prefill: Pair, queue: Pair, large: float) -> str:
    if decode.is_too_good:
        return (
            "not shown: decode gained more than the bytes can explain. Something else was running (run it again), or "
            "the rounded weights fit into the processor's cache and the 16-bit ones do not."
        )
    if not decode.is_clear:
        return (
            "not shown: not even decode of a lone reader changed by more than this machine's noise. On a server with "
            "a floor that is not reading (launching kernels, a small model on a large GPU) that is what to expect."
        )
    if decode.is_slower:
        return "wrong here: this machine widens int8 more slowly than it reads 16 bits, and even decode lost."
    saved, saved_reading = 1 - decode.ratio, 1 - prefill.ratio if prefill.is_clear else 0.0
    reading = (
        "prefill even lost"
        if prefill.is_slower
        else "prefill gained little"
        if saved_reading < LITTLE * saved
        else "prefill gained about as much (these kernels read prompts no better than single tokens)"
    )
    waiting = (
        "the queue got shorter: whoever waits, waits for other people's decoding"
        if queue.is_faster
        else "the queue got longer"
        if queue.is_slower
        else "the queue did not change by more than noise"
    )
    late = "the gaps of the largest batch grew" if large > FASTER else "the gaps of the largest batch did not grow"
    return (
        f"holds only when a step waits for reading weights, and weights alone are rounded. Here decode gained, "
        f"{reading}; {waiting}; {late}. The phases follow from that rule, not from their names: formats that are also "
        "multiplied in 8 bits (fp8, W8A8) speed up "
        "prefill, and a shorter service, or more room for KV, shortens a line."
    )


def b4(scores: gate.Scores, on_grid: float, floors: Floors = USUAL) -> Claim:
    """Does the number of bits tell whether quality holds?

    Args:
        on_grid: share of the weights that lie on int4's grid already, as they came.
    """
    names = list(scores)[1:]
    verdicts = {name: gate.verdict(scores, name, floors) for name in names}
    told = "; ".join(
        f"{name}: perplexity {gate.rise(scores, name):+.2%}, KL {scores[name].quality.kl:.4f}, same token "
        f"{scores[name].quality.agreement:.1%}, floors broken {len(verdicts[name].broken)}"
        for name in names
    )
    passed = [name for name in names if not verdicts[name].broken]
    failed = [name for name in names if verdicts[name].broken]
    alike = [(a, b) for a in passed for b in failed if a[:4] == b[:4]]
    lucky = on_grid > ROUNDED_BEFORE
    return Claim(
        "B4",
        "Quantize only after an evaluation of quality with a stated floor.",
        DECOMPOSING,
        f"{scores[PLAIN].positions} tokens of a text, floors: perplexity {floors.perplexity_rise:+.1%}, "
        f"KL {floors.kl}, same token {floors.agreement:.0%}. {told}.",
        (
            f"holds. {', '.join(passed)} kept every floor, {', '.join(failed)} did not"
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
        else f"not shown: with these floors {'every' if passed else 'no'} format passes, so the evaluation decided "
        "nothing here. Which floors, and on which text, is the real question.",
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
        "Unstructured sparsity does not speed up dense hardware.",
        DECOMPOSING,
        f"time against a matrix without zeros. {'; '.join(parts)}.",
        "not shown: equal dense products took unequal times here. Run it again on a quiet machine."
        if any(abs(change - 1) > 2 * sparsity.SAME for change in changes)
        else "holds only when the kernel is dense: a dense product did not notice the zeros, but a sparse one was "
        "ahead at half of them already, here."
        if early
        else "holds for pruning as it is done (about half of the weights): a dense product reads and multiplies zeros "
        "like anything else. A sparse product, which stores where each number stood, pays only with many more zeros, "
        "if at all. What GPUs do speed up is a pattern: 2 of every 4, or whole rows and columns.",
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
        "int8 weights: 1.5 times the throughput, for 2% of accuracy.",
        TECHNIQUES,
        f"Decode speed over {PLAIN}, here: {_listed(here)}. 70B, simulated: {_listed(big)}. Quality of int8 here: "
        f"perplexity {gate.rise(scores, 'int8'):+.2%}, same likeliest token {scores['int8'].quality.agreement:.1%}.",
        "not shown: the machine was too restless to compare steps."
        if restless
        else (
            f"holds only when reading weights is what takes the time: between ×{number(min(gains))} and "
            f"×{number(max(gains))} by batch, here. "
            if min(gains) < CLAIMED - ABOUT and max(gains) >= CLAIMED - ABOUT
            else f"wrong as a figure, here: ×{number(min(gains))} to ×{number(max(gains))}, by batch. "
        )
        + f"And '2% of accuracy' is a property of a task: on {ITEMS} questions of which {ANSWERED:.0%} are answered, "
        f"luck alone moves a score by {by_luck:.1%} (one standard error), which is about the {ACCURACY_LOST:.0%}.",
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
