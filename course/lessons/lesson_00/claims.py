"""The claim of lesson 00."""

from collections.abc import Callable, Sequence

from course.lab import services
from course.lab.claims import Claim, conclude
from course.lab.lab import Lab
from course.lab.run import Run, phases_of

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


EXPERIMENT = ("lab/services.py",)
MEASURE: dict[str, Callable[[Lab], Claim]] = {"A1": lambda lab: a1([lab.run(services.together(8, lab))])}
