"""What the runs of lesson 00 showed: its findings, its claim, and what its prediction is scored by."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course.lab import services
from course.lab.claims import Claim, conclude
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.model_shape import LLAMA_70B
from course.lab.noise import SHORTEST_S
from course.lab.predict import MeasuredAnswer
from course.lab.roof import on_paper
from course.lab.run import Run, itl_of, percentile, phases_of
from course.lab.style import PHASE_LABELS, number, seconds

# ---------------------------------------------------------------- findings

NOISE = 0.15
"""Steps that take longer by a smaller share than this are told apart only where their times don't scatter as much."""
LEAST_PRICE = 0.02
"""A price that is a smaller share of a step than this isn't worth a sentence."""
WORTH = 0.05
"""A phase that moved by a smaller share of its own time than this is told as not having moved."""

TIE = 0.1
"""Phases whose growth differs by a smaller share grew equally, as the bet has it (predict.py, `grew_most`)."""


def eight_together(one: Run, eight: Run) -> Finding:
    """Which phase grew when eight requests shared four slots, and why."""
    most, grown = _grew_most(one, eight)
    was, now = (run.mean_phases()["prefill"] for run in (one, eight))
    step, shared_step = (percentile(run.itl, 50) for run in (one, eight))
    if shared_step < (1 - NOISE) * step:  # no step gets shorter with more requests in it
        most = "disturbed"
    told = {"grown": grown, "was": was, "now": now, "step": step, "shared_step": shared_step}
    prefill = tell("00", "prefill_of_eight", "grew" if now > was else "did_not_grow", **told)
    longer = "longer" if shared_step > (1 + NOISE) * step else "as_long"
    steps = tell("00", "steps_of_eight", longer, times=shared_step / step, **told)
    return tell("00", "eight_together", most, prefill=prefill, steps=steps, **told)


def rag(on: Run, off: Run) -> Finding:
    """Which phase grew without prefix caching where every prompt begins the same way."""
    most, grown = _grew_most(on, off)
    was, now = on.mean_phases(), off.mean_phases()
    overlapped = any(step.num_running > 1 for run in (on, off) for step in run.steps)
    others = {phase: abs(grown[phase]) > WORTH * max(was[phase], SHORTEST_S) for phase in ("queue", "decode")}
    tied = abs(grown["prefill"] - grown["decode"]) < TIE * max(grown["prefill"], grown["decode"])
    if tied and overlapped and most in ("prefill", "decode") and grown["prefill"] > WORTH * was["prefill"]:
        most = "prefill_and_decode"
    elif most == "prefill" or not overlapped:  # then nothing else can have grown because of it
        if others.get(most):
            most = "unexplained"
        elif grown["prefill"] <= WORTH * was["prefill"]:
            most = "prefill_is_free"
        else:
            fell = any(others[phase] and grown[phase] < 0 for phase in others)
            most = "prefill_and_noise" if fell else "prefill" if any(others.values()) else "prefill_alone"
    cached = sum(view.num_cached_tokens for view in on.views) / len(on.views)
    told = {"name": PHASE_LABELS[max(grown, key=grown.get)].capitalize(), "was": was, "now": now, "cached": cached}
    return tell("00", "rag", most, grown=grown, **told)


def _grew_most(before: Run, after: Run) -> tuple[str, dict[str, float]]:
    """The phase whose mean grew most, "unexplained" if it's none that a technique moves; and seconds by phase."""
    was, now = before.mean_phases(), after.mean_phases()
    grown = {phase: now[phase] - was[phase] for phase in was}
    most = max(grown, key=grown.get)
    return most if most in ("queue", "prefill", "decode") else "unexplained", grown


@dataclass(frozen=True)
class StepTimes:
    """How long steps took, by what was in them; medians, seconds."""

    mixed: list[float]
    decode: list[float]
    worst_gap: float
    """The longest ITL of the first request."""
    chunk: float = 0
    """Prompt tokens of a mixed step, median."""

    @classmethod
    def of(cls, run: Run) -> "StepTimes":
        mixed = [s.end - s.start for s in run.steps if 0 < s.num_prefill_tokens < s.num_tokens]
        decode = [s.end - s.start for s in run.steps if s.num_tokens and not s.num_prefill_tokens]
        chunks = [s.num_prefill_tokens for s in run.steps if 0 < s.num_prefill_tokens < s.num_tokens]
        chunk = statistics.median(chunks) if chunks else 0
        return cls(mixed, decode, max(itl_of(run.row_of(0)), default=0.0), chunk)

    @property
    def ratio(self) -> float:
        return statistics.median(self.mixed) / statistics.median(self.decode)

    @property
    def usually_up_to(self) -> float:
        """Nine in ten of the steps that only decode take no longer: seconds."""
        return percentile(self.decode, 90)


def mixed_steps(run: Run) -> MeasuredAnswer | str:
    """How many times as long a step takes that also prefills; the answer to a prediction."""
    steps = StepTimes.of(run)
    if not (steps.mixed and steps.decode):
        return "no step of this run held both prompt tokens and decodes"
    mixed, decode = statistics.median(steps.mixed), statistics.median(steps.decode)
    return MeasuredAnswer(
        steps.ratio, f"steps with prompt tokens took {seconds(mixed)}, steps without {seconds(decode)}"
    )


def gaps(run: Run) -> Finding:
    """What mixed steps did to the first request's ITL: more than the steps that only decode differ by themselves?"""
    steps = StepTimes.of(run)
    if not (steps.mixed and steps.decode):
        return tell("00", "gaps", "no_mixed_step")
    mixed, decode, high = statistics.median(steps.mixed), statistics.median(steps.decode), steps.usually_up_to
    costs = mixed > high and steps.ratio > 1 + LEAST_PRICE
    outcome = "jump" if steps.ratio > 1 + NOISE else "small_price" if costs else "free"
    if outcome == "jump" and steps.worst_gap > 2 * mixed:  # more than a neighbour's chunk
        outcome = "jump_and_stall"
    told = {"mixed": mixed, "decode": decode, "high": high, "extra": mixed - decode, "chunk": steps.chunk}
    usual = percentile(itl_of(run.row_of(0)), 50)
    return tell(
        "00", "gaps", outcome, num=len(steps.mixed), ratio=steps.ratio, worst=steps.worst_gap, usual=usual, **told
    )


# ---------------------------------------------------------------- numbers to know cold

READING = 240
"""Words a minute that adults read (Brysbaert, 2019)."""
TOKENS_A_WORD = 4 / 3
PUBLISHED_ITL_S = 0.017
"""Llama 3 70B in bf16 on four H100s under vLLM, a batch of eight (ML.ENERGY leaderboard)."""


def cold() -> Html:
    """How fast people read, how fast a 70B decodes, and its floor."""
    weights, bandwidth = LLAMA_70B.weight_bytes, on_paper().bandwidth
    floor = on_paper(gpus=4).reading(weights)
    reads = READING * TOKENS_A_WORD / 60
    return know_cold(
        (
            f"about {number(round(reads))} tokens/s",
            "how fast people read",
            f"{READING} words a minute, four tokens for three words",
        ),
        (
            f"about {seconds(PUBLISHED_ITL_S)}",
            "ITL of a 70B on four H100s, small batch",
            f"ML.ENERGY leaderboard, vLLM, bf16; {1 / PUBLISHED_ITL_S:.0f} tokens/s for each user",
        ),
        (
            seconds(floor),
            "the floor under that ITL",
            f"{weights / 1e9:.0f} GB of weights, read once a step, over 4 × {number(bandwidth / 1e12)} TB/s",
        ),
    )


# ---------------------------------------------------------------- the claim

ROUNDING_S = 1e-6


def a1(runs: Sequence[Run]) -> Claim:
    """Phases sum to E2E; TTFT is the first three."""
    views = [view for run in runs for view in run.finished]
    gap = max(abs(sum(phases_of(v).values()) - (v.borders[-1] - v.borders[0])) for v in views)
    first_three = [sum(list(phases_of(v).values())[:3]) for v in views]
    ttft_gap = max(abs(t - (v.deliveries[0] - v.borders[0])) for t, v in zip(first_three, views))
    extra = sum(_decode_steps_before_first_token(run) for run in runs)
    verdict = "holds" if gap < ROUNDING_S and ttft_gap < ROUNDING_S and extra == 0 else "wrong"
    return conclude("A1", verdict, num_views=len(views), gap=gap, ttft_gap=ttft_gap, extra=extra)


def _decode_steps_before_first_token(run: Run) -> int:
    first = {view.request_id: view.deliveries[0] for view in run.finished}
    shares = [(step, share) for step in run.steps for share in step.shares]
    return sum(not share.is_prefill and step.end < first.get(share.request_id, 0.0) for step, share in shares)


EXPERIMENT = ("lab/services.py", "lab/model_shape.py", "lab/roof.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {"A1": lambda lab: a1([lab.run(services.together(8, lab))])}
