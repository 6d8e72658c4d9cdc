"""Simulates many rows, on all cores, and puts each beside what was measured."""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence

from course.simulator.accuracy.engines import model_of, shape_of
from course.simulator.accuracy.play import Forecast, Plan, forecast, plan_of
from course.simulator.accuracy.points import Point, Refusal
from course.simulator.accuracy.report import Checked

Progress = Callable[[str, float], None]
Answer = Forecast | str
"""Or the reason why there is none."""


def check(
    points: Sequence[Point], workers: int | None = None, progress: Progress | None = None, today: bool = False
) -> list[Checked]:
    """Every point with its forecast, in their order. Points that come to the same plan are simulated once.

    Args:
        workers: processes; None = one for each core.
        today: see `plan_of`.
    """
    plans = [_plan_or_reason(point, today) for point in points]
    distinct = list(dict.fromkeys(plan for plan in plans if isinstance(plan, Plan)))
    answers: dict[Plan, Answer] = {}
    for plan, answer in zip(distinct, _forecasts(distinct, workers or os.cpu_count() or 1)):
        answers[plan] = answer
        if progress is not None:
            progress("simulating points", len(answers) / len(distinct))
    return [_checked(point, plan, answers) for point, plan in zip(points, plans)]


def _forecasts(plans: Sequence[Plan], workers: int) -> Iterator[Answer]:
    if workers == 1 or len(plans) < 2:
        yield from map(_forecast_or_reason, plans)
        return
    with multiprocessing.get_context("spawn").Pool(min(workers, len(plans))) as pool:
        yield from pool.imap(_forecast_or_reason, plans, chunksize=4)


def _forecast_or_reason(plan: Plan) -> Answer:
    gc.collect()  # a fleet is full of cycles, and Python looks for those rarely: thousands of them fill the memory
    try:
        return forecast(plan)
    except Refusal as refusal:
        return str(refusal)


def _plan_or_reason(point: Point, today: bool) -> Plan | str:
    try:
        return plan_of(point, today)
    except Refusal as refusal:
        return str(refusal)


def _checked(point: Point, plan: Plan | str, answers: dict[Plan, Answer]) -> Checked:
    if isinstance(plan, str):
        return Checked(point, _is_mixture(point), None, None, plan)
    answer = answers[plan]
    if isinstance(answer, str):
        return Checked(point, _is_mixture(point), plan.layout, None, answer)
    return Checked(point, _is_mixture(point), plan.layout, answer)


def _is_mixture(point: Point) -> bool | None:
    try:
        return model_of(shape_of(point.model)).num_experts > 0
    except Refusal:
        return None
