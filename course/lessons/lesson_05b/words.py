"""What the runs of lesson 05b showed: its finding, and what its prediction is scored by. It measures no claim."""

from collections.abc import Callable
from statistics import median

from course.lab.claims import Claim
from course.lab.display import Html, as_table
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.simulated_70b import Served, itl, phase_means, ttft
from course.lab.style import seconds, size, told_seconds
from course.lessons.lesson_05b.run import LOADS, mean_tokens, need, token_bytes, transfer_s
from course.simulator.cluster.run import FleetRun

FELT = 0.05
"""A TTFT that's longer by a smaller share costs nothing to speak of."""


def smoother(found: dict[str, FleetRun]) -> MeasuredAnswer:
    """ITL p99 with whole prompts over that of the split fleet: the answer to a prediction."""
    whole, _, apart = (itl(run, 99) for run in found.values())
    return MeasuredAnswer(whole / apart, f"ITL p99 {seconds(whole)} with whole prompts, {seconds(apart)} disaggregated")


def load(found: dict[str, FleetRun], qps: float) -> Finding:
    """Three ways to run four replicas under one load."""
    whole, chunk, apart = (
        {
            "ttft": ttft(run, 99),
            "gap": itl(run, 99),
            "longest": Served.of(run).p("stall", 50),
            "queue": phase_means(run)["queue"],
            "moving": _usually_lost(run, "kv_transfer"),
            "waiting": _usually_lost(run, "decode_queue"),
        }
        for run in found.values()
    )
    if apart["ttft"] <= (1 + FELT) * chunk["ttft"]:
        outcome = "split_costs_no_ttft"
    else:
        outcome = "prompts_queue" if apart["queue"] > 2 * chunk["queue"] else "split_costs_ttft"
    return tell("05b", "load", outcome, qps=qps, whole=whole, chunk=chunk, apart=apart)


def _usually_lost(run: FleetRun, cause: str) -> float:
    """Seconds that a request lost to a cause, in the median."""
    return median(each.timeline.lost.get(cause, 0.0) for each in run.records if each.completed)


def goodput(found: dict[str, dict[str, float]]) -> Finding:
    """How many requests a second the same GPUs serve within both limits, by way and by how strict TPOT's limit is."""
    loose, strict = ({"chunk": way["chunks of 512"], "apart": best_split(way)} for way in found.values())
    if strict["chunk"] == strict["apart"] == max(LOADS):
        outcome = "not_reached"
    elif strict["apart"] <= strict["chunk"]:
        outcome = "never_more"
    else:
        outcome = "more_when_tpot_binds" if loose["apart"] <= loose["chunk"] else "always_more"
    ends = " (the highest load tried)" if loose["chunk"] == max(LOADS) else ""
    return tell("05b", "goodput", outcome, loose=loose, strict=strict, names=list(found), ends=ends)


def best_split(goodput: dict[str, float]) -> float:
    """The goodput of the better of the splits."""
    return max(rate for name, rate in goodput.items() if name.startswith("disaggregated"))


REPLICAS = 4
LIMITS = (0.025, 0.05)
"""On ITL, seconds."""


def three_numbers() -> Html:
    one_card = transfer_s(4096, 400)
    return know_cold(
        (f"{size(token_bytes())} a token", "KV of a 70B with GQA, in 16 bits", "2 × 80 × 8 × 128 × 2 bytes"),
        (
            f"{told_seconds(one_card)}, or {told_seconds(one_card / 4)}",
            "to move the KV of 4,096 tokens: one 400 Gb/s card, or one for each of four GPUs",
            "bytes × 8 ÷ bit/s",
        ),
        (
            " or ".join(f"{need(limit).ratio:.1f} : 1" for limit in LIMITS),
            f"prefill to decode replicas for this traffic, at an ITL of {' or '.join(map(seconds, LIMITS))}",
            "(n / r_p) / (m / r_d), by the step model",
        ),
    )


def token_mix() -> Html:
    """The whiteboard's derivation, with the numbers of this lesson's traffic."""
    rows = []
    for limit in LIMITS:
        found = need(limit)
        prefill, tokens_per_s = found.prefill_part(REPLICAS), mean_tokens()[1] / found.decode
        rows.append(
            (
                seconds(limit),
                f"{found.batch}, {'all that KV has room for' if found.is_full else 'by ITL'}",
                f"{tokens_per_s:,.0f} tokens/s",
                seconds(found.prefill),
                seconds(found.decode),
                f"{found.ratio:.1f} : 1",
                f"{prefill:.1f} + {REPLICAS - prefill:.1f}",
            )
        )
    header = ("ITL limit", "batch", "a replica decodes", "n / r_p", "m / r_d", "prefill : decode", f"of {REPLICAS}")
    return as_table(header, rows)


MEASURE: dict[str, Callable[[Lab], Claim]] = {}
