"""What the runs of lesson 09 showed: its findings and its claims."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from course.lab import matrix_zeros
from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.matrix_rounding import GRID_BITS, load_matrix
from course.lab.matrix_zeros import Timed
from course.lab.roof import Roof
from course.lab.simulated_70b import phase_means
from course.lab.style import PHASE_LABELS
from course.lessons.lesson_09 import run, simulated
from course.lessons.lesson_09.run import PLAIN, PhasePair, Shelf
from course.measure.quality import QualityLimits
from course.simulator.cluster.run import FleetRun
from course.simulator.cost.hardware import find_hardware

# ---------------------------------------------------------------- findings


def alone(found: Mapping[str, PhasePair]) -> Finding:
    """One request, a long answer: which phases moved."""
    way = {True: "shorter", False: "longer"}
    clear = {n: p for n, p in found.items() if n in PHASE_LABELS and p.is_clear and p.matters(found["E2E"])}
    moved = [f"{PHASE_LABELS[n]} ({way[p.is_faster]})" for n, p in clear.items()]
    outcome = moved_of(found["decode"])
    told = {
        "verdict": found["decode"].told,
        "was": found["decode"].was,
        "now": found["decode"].now,
        "gain": 1 / found["decode"].ratio,
    }
    return tell("09", "alone", outcome, moved=", ".join(moved) or "none", **told)


def moved_of(pair: PhasePair) -> str:
    """Which way a phase went, as findings name it. The same: only if the medians are near as well; else unclear."""
    if not pair.is_clear and abs(pair.ratio - 1) > run.TELLING:
        return "unclear"
    return "faster" if pair.is_faster else "slower" if pair.is_slower else "same"


def others(batch: Mapping[str, PhasePair], prompt: Mapping[str, PhasePair], share: float) -> Finding:
    """A full batch and a long prompt: each by which way it went, for they may differ.

    Args:
        share: of a 16-bit step of the full batch, explained by its reads.
    """
    found = [
        tell("09", scene, moved_of(pairs["E2E"]), told=pairs["E2E"].told, ratios=_ratios(pairs))
        for scene, pairs in (("full_batch", batch), ("long_prompt", prompt))
    ]
    full, long = (each.here for each in found)
    if moved_of(batch["E2E"]) in ("same", "slower"):
        full += f" {tell('09', 'why_not', 'kernel' if share >= READS else 'no_reads', share=share).here}"
    return Finding(f"{full} {long}", [road for each in found for road in each.otherwise])


def _ratios(pairs: Mapping[str, PhasePair]) -> str:
    return f"prefill ×{pairs['prefill'].ratio:.2f}, decode ×{pairs['decode'].ratio:.2f}"


READS = 0.5
"""A 16-bit step of which reads explain that share still waits for memory, for the most part."""


def by_batch(found: run.Sweep, roof: Roof) -> Finding:
    """From which batch on int8 stops paying here, and whether that's because 16-bit steps no longer wait for reads."""
    border = run.break_even(found, "int8")
    ends = {"first": run.speedup(found, "int8", 0), "last": run.speedup(found, "int8", -1)}
    int4 = run.speedup(found, "int4", 0) if "int4" in found else float("nan")
    ends |= {"largest": found["int8"][-1].batch, "int4": int4}
    if run.is_restless(found):
        return tell("09", "batch", "restless", **ends)
    if border is None:
        return tell("09", "batch", "never_stops_paying", **ends)
    if border != found["int8"][0].batch and ends["last"] > 1:
        return tell("09", "batch", "uneven", border=border, **ends)
    share = run.memory_share(found, border, roof)
    if border == found["int8"][0].batch:
        return tell("09", "batch", "never_pays", share=share, **ends)
    outcome = "kernel_stops_paying" if share >= READS else "stops_paying"
    return tell("09", "batch", outcome, border=border, share=share, **ends)


def quality(scores: run.Scores, on_grid: float) -> Finding:
    """Which formats keep the usual limits.

    Args:
        on_grid: share of the weights that lie on int4's grid already, as they came.
    """
    broken = [name for name in scores if run.verdict(scores, name, QualityLimits()).broken]
    kept = [name for name in scores if name not in (PLAIN, *broken)]
    outcome = "all_kept" if not broken else "some_broke" if kept else "all_broke"
    finding = tell("09", "quality", outcome, kept=", ".join(kept), broken=", ".join(broken))
    if on_grid <= ROUNDED_BEFORE or "int4" not in kept:
        return finding
    return replace(finding, here=f"{finding.here} {tell('09', 'quality', 'rounded_before').here}")


def cramped(found: Mapping[str, FleetRun]) -> Finding:
    """Two GPUs that barely hold 16-bit weights."""
    names = ("bf16", "int8", "KV int8")
    took, room = ([each(name) for name in names] for each in (lambda n: phase_means(found[n]), simulated.cramped_room))
    return tell("09", "cramped", "queue_vanished", took=took, room=room)


# ---------------------------------------------------------------- claims

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
USUAL = QualityLimits()
"""Those of `minillm bench quality`."""
ANSWERED = 0.8
"""Share of such a set's questions that a model gets right; for the error of a share."""


def a7(
    decode: Mapping[str, PhasePair], prompt: Mapping[str, PhasePair], line: Mapping[str, PhasePair], large: float
) -> Claim:
    """Which phases do int8 weights move?

    Args:
        decode, prompt, line: pairs of a long answer, of a long prompt, and of a line before one slot.
        large: the gap between two tokens at the largest batch, over that of 16 bits.
    """
    writing, reading, queue = decode["decode"], prompt["prefill"], line["queue"]
    found = {"decode": writing, "prefill of a long prompt": reading, "queue": queue}
    if writing.is_too_good:
        verdict = "more_than_bytes_explain"
    elif not writing.is_clear:
        verdict = "decode_did_not_move"
    else:
        verdict = "decode_lost" if writing.is_slower else "only_where_weights_are_read"
    saved_reading = 1 - reading.ratio if reading.is_clear else 0.0
    if reading.is_slower:
        prefill = "A7.prefill_lost"
    else:
        gained_little = saved_reading < LITTLE * (1 - writing.ratio)
        prefill = "A7.prefill_gained_little" if gained_little else "A7.prefill_gained_as_much"
    if queue.is_faster:
        waiting = "A7.queue_shorter"
    elif queue.is_slower:
        waiting = "A7.queue_longer"
    else:
        waiting = "A7.queue_same"
    return conclude(
        "A7",
        verdict,
        plain=PLAIN,
        told="; ".join(f"{name}, {pair.told}" for name, pair in found.items()),
        large=large,
        reading=say(prefill),
        waiting=say(waiting),
        late=f"the gaps of the largest batch {'grew' if large > FASTER else 'did not grow'}",
    )


def b4(scores: run.Scores, on_grid: float, limits: QualityLimits = USUAL) -> Claim:
    """Does the number of bits tell whether quality holds?

    Args:
        on_grid: share of the weights that lie on int4's grid already, as they came.
    """
    names = list(scores)[1:]
    broken = {name: run.verdict(scores, name, limits).broken for name in names}
    told = (
        say(
            "B4.one_format",
            name=name,
            rise=run.rise(scores, name),
            quality=scores[name].quality,
            broken=len(broken[name]),
        )
        for name in names
    )
    passed = [name for name in names if not broken[name]]
    failed = [name for name in names if broken[name]]
    same_grid = ""
    if pair := next(((a, b) for a in passed for b in failed if a[:4] == b[:4]), None):
        same_grid = say("B4.same_bits_other_groups", one=pair[0], other=pair[1])
        same_grid += say("B4.rounded_before", one=pair[0]) if on_grid > ROUNDED_BEFORE else ""
    counted = {"plain": scores[PLAIN].positions, "limits": limits, "told": "; ".join(told)}
    if passed and failed:
        return conclude(
            "B4",
            "some_pass_and_some_fail",
            **counted,
            passed=", ".join(passed),
            failed=", ".join(failed),
            same_grid=same_grid,
        )
    return conclude("B4", "limits_decide_nothing", **counted, passed="every" if passed else "no")


def b5(found: Sequence[Timed]) -> Claim:
    """Are zeros anywhere in a matrix free?"""
    parts, dense, sparse = [], [], []
    for kind in matrix_zeros.ROWS:
        dense.append(matrix_zeros.dense_change(found, kind))
        sparse.append(matrix_zeros.sparse_change(found, kind))
        pays = matrix_zeros.pays_from(found, kind)
        ahead = "never ahead" if pays is None else f"ahead from {pays:.0%} zeros on"
        parts.append(f"{kind}: half of them zero, dense ×{dense[-1]:.2f}, sparse ×{sparse[-1]:.2f} ({ahead})")
    if any(abs(change - 1) > 2 * matrix_zeros.SAME for change in dense):
        verdict = "dense_times_differ"
    else:
        verdict = "sparse_ahead_at_half" if min(sparse) < 1 - matrix_zeros.SAME else "dense_ignores_zeros"
    return conclude("B5", verdict, parts="; ".join(parts))


def d10(found: run.Sweep, scores: run.Scores, big: Mapping[str, float]) -> Claim:
    """One figure for the gain, one for the loss. The simulated 70B alone spans the figure today, so that it "holds only
    when"; were its stack or card another one, it could be wrong.

    Args:
        found: decode steps here, by batch.
        big: by case, decode speed of 70B in int8 over 16 bits, simulated.
    """
    here = {f"batch {dot.batch}": run.speedup(found, "int8", i) for i, dot in enumerate(found["int8"])}
    gains = [*here.values(), *big.values()]
    if run.is_restless({name: found[name] for name in (PLAIN, "int8")}):
        verdict = "too_noisy"
    else:
        verdict = (
            "range_includes_the_figure" if min(gains) < CLAIMED - ABOUT <= max(gains) else "range_misses_the_figure"
        )
    claim = conclude(
        "D10",
        verdict,
        plain=PLAIN,
        scores=scores,
        rise=run.rise(scores, "int8"),
        listed=_listed(here),
        least_gains=min(here.values()),
        most_gains=max(here.values()),
        listed_70b=_listed(big),
        least_at_70b=min(big.values()),
        most_at_70b=max(big.values()),
        listed_h100=_listed(on_an_h100()),
    )
    by_luck = run.sampling_error(ANSWERED, ITEMS)
    why = say("D10.accuracy_is_of_a_task", items=ITEMS, answered=ANSWERED, by_luck=by_luck, accuracy_lost=ACCURACY_LOST)
    return claim if verdict == "too_noisy" else replace(claim, verdict=claim.verdict + why)


def on_an_h100() -> dict[str, float]:
    """Decode speed of an 8B model in int8 over 16 bits, by batch, as `make gpu-check` measured it there."""
    steps_of = run.h100_steps()
    return {f"batch {batch}": steps_of[PLAIN][batch] / step for batch, step in steps_of["int8"].items()}


def _listed(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ×{ratio:.2f}" for name, ratio in ratios.items())


def _with_shelf(work: Callable[[Shelf], Claim]) -> Callable[[Lab], Claim]:
    """Loads what it needs, and lets go of it."""

    def measured(lab: Lab) -> Claim:
        with closing(Shelf(lab)) as shelf:
            return work(shelf)

    return measured


def _measure_a7(shelf: Shelf) -> Claim:
    scenes = (run.long_answer, run.long_prompt, run.one_slot)
    decode, prompt, line = (run.compare(shelf, make(shelf.lab)) for make in scenes)
    found = run.sweep(shelf, (PLAIN, "int8"), run.batches_of(shelf.lab)[-1:])
    return a7(decode, prompt, line, run.slowdown(found, "int8"))


def _measure_d10(shelf: Shelf) -> Claim:
    found = run.sweep(shelf, (PLAIN, "int8"), (1, run.batches_of(shelf.lab)[-1]))
    return d10(found, run.score_formats(shelf, (PLAIN, "int8")), simulated.throughput_gain())


def three_numbers() -> Html:
    """The lesson's three numbers."""
    on = find_hardware("h100-sxm")
    knee = on.flops["bfloat16"] / on.bandwidth  # 2 FLOPs and 2 bytes a weight
    four = GRID_BITS / 128 + 4
    return know_cold(
        (
            f"{knee:.0f} and {knee * four / 16:.0f} rows",
            "where linear layers turn compute-bound on an H100: bf16, and W4A16 in groups of 128",
            "FLOP/s over bytes/s, by the data sheet; times 4.25 / 16",
        ),
        (
            f"×{1 / (1 - 0.5 + 0.5 / 2):.2f}",
            "the best speedup from int8 weights, if reading them was half of a step",
            "Amdahl's law",
        ),
        (
            f"{4 + GRID_BITS / 64:g} bits",
            "of a weight in int4, groups of 64; NVFP4 has as many",
            "4 + 32 / 64; 4 + 8 / 16",
        ),
    )


EXPERIMENT = (
    "lab/matrix_rounding.py",
    "lab/matrix_zeros.py",
    "lab/model_shape.py",
    "lab/roof.py",
    "lessons/lesson_02/simulated.py",
    "lessons/lesson_06",
)
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A7": _with_shelf(_measure_a7),
    "B4": _with_shelf(lambda shelf: b4(run.score_formats(shelf), load_matrix(shelf.lab).share_on_grid)),
    "B5": lambda lab: b5(matrix_zeros.measure(lab)),
    "D10": _with_shelf(_measure_d10),
}
