"""Lesson 02b on the real engine: how slots are filled, and one greedy tenant among small ones."""

import random
from collections.abc import Iterable, Mapping, Sequence

from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.run import Run, percentile
from course.lab.style import seconds
from course.lab.visits import Visit, end_of, mean, visits_of
from course.lab.workloads import LabWorkload, PromptArrival, document
from course.lessons.lesson_02.run import question

# ---------------------------------------------------------------- how slots are filled

PAYERS = ("the long one itself", "the three that share its batch", "the four queued behind them")
DOCUMENT = 5
"""The index of the document in the mixed crowd."""


def straggler(lab: Lab, times: int = 8) -> LabWorkload:
    """Eight at once; the first wants an answer `times` as long as the others'."""
    output = 8 if lab.scale == 1 else 4
    arrivals = tuple(PromptArrival(0.0, question(i), output * times if i == 0 else output) for i in range(8))
    return LabWorkload("straggler", "Eight arrive together, one with a long answer.", arrivals)


def growth_of_payers(static: Run, continuous: Run) -> dict[str, float]:
    """By how many seconds the mean E2E of each of PAYERS grew, from continuous to static batching."""
    groups = dict(zip(PAYERS, (range(1), range(1, 4), range(4, 8))))
    e2e = [{i: run.row_of(i).borders[-1] - run.row_of(i).borders[0] for i in range(8)} for run in (continuous, static)]
    return {name: mean([e2e[1][i] - e2e[0][i] for i in group]) for name, group in groups.items()}


def most_paid(static: Run, continuous: Run) -> str:
    """The one of PAYERS whose E2E grew the most, from continuous to static batching."""
    grew = growth_of_payers(static, continuous)
    return max(grew, key=grew.get)


def who_pays(static: Run, continuous: Run) -> MeasuredAnswer | str:
    """Whose E2E grew the most: the answer to a prediction, unless static batching can't have delayed it."""
    grew = growth_of_payers(static, continuous)
    each = "; ".join(f"{name} {'+' if value >= 0 else '−'}{seconds(abs(value))}" for name, value in grew.items())
    winner, told = most_paid(static, continuous), f"end to end, on average, {each}"
    if winner != PAYERS[-1]:
        return f"{told}; but static batching can't delay a request in the batch, so something else did"
    return MeasuredAnswer(winner, told)


CROWDING = 4 / 3
"""How many times as fast the mixed crowd arrives as four slots serve it: there's always a queue."""
TOKENS_OF_CROWD = 1024
"""A step's budget: the whole document fits."""


def crowd_pace(lab: Lab) -> float:
    """Seconds between two arrivals of the mixed crowd: measured, so that every machine has a queue."""
    at_once = lab.run(mixed_crowd(lab), max_num_batched_tokens=TOKENS_OF_CROWD, enable_chunked_prefill=False)
    return at_once.duration / len(at_once.finished) / CROWDING


def mixed_crowd(lab: Lab, apart: float = 0.0) -> LabWorkload:
    """Short questions with answers of very different lengths; a long document comes in between.

    Args:
        apart: seconds between two arrivals; 0 = all come in the same instant.
    """
    rng, scale = random.Random(2), lab.scale
    paragraphs = 9 if scale == 1 or lab.simulated is not None else 3  # a simulated one takes no time to read
    lengths = [6, 40, 8, 6, 10, 32, 6, 8, 12, 6, 24, 8]
    arrivals = []
    for i, length in enumerate(lengths):
        prompt = question(i) if i != DOCUMENT else f"{document(rng, paragraphs)}\n\nWhich rule is the oddest?"
        arrivals.append(PromptArrival(apart * i, prompt, max(3, round(length * scale))))
    return LabWorkload("mixed crowd", "Answers of all lengths, and one document.", tuple(arrivals))


WAYS = {
    "static": {"batching": "static", "enable_chunked_prefill": False},
    "continuous": {"enable_chunked_prefill": False},
    "continuous, chunked": {"long_prefill_token_threshold": 64},
}
"""Three ways to fill the slots. All else is the same: model, slots, arrivals."""


def three_ways(lab: Lab, traffic: LabWorkload) -> dict[str, Run]:
    """The very same arrivals under each of WAYS, with room in a step for the whole document."""
    budget = TOKENS_OF_CROWD
    return {name: lab.run(traffic, max_num_batched_tokens=budget, **fields) for name, fields in WAYS.items()}


def seven_and_one(lab: Lab, paragraphs: int = 5, *, padded: bool = False, short_only: bool = False) -> LabWorkload:
    """Seven short prompts and a long one in one batch.

    Args:
        padded: every prompt is made as long as the longest, as a batch in one rectangle of tokens makes it.
        short_only: the seven by themselves.
    """
    rng = random.Random(5)
    size = paragraphs if lab.scale == 1 else 2
    prompts = []
    for i in range(7 if short_only else 8):
        is_long = padded or i == 7
        prompts.append(f"({i}) {document(rng, size)}" if is_long else question(i))
    name = "padded" if padded else "short only" if short_only else "ragged"
    return LabWorkload(name, "Seven short prompts and a long one.", tuple(PromptArrival(0.0, p, 2) for p in prompts))


def one_batch(lab: Lab) -> dict[str, Run]:
    """The seven alone, with the long one beside them, and padded to its length: eight slots, whole prompts."""
    fields = {"max_num_seqs": 8, "max_num_batched_tokens": 4096, "enable_chunked_prefill": False, "num_kv_blocks": 512}
    shapes = {
        "seven short, alone": {"short_only": True},
        "with a long one": {},
        "padded to the long one": {"padded": True},
    }
    return {name: lab.run(seven_and_one(lab, **shape), **fields) for name, shape in shapes.items()}


# ---------------------------------------------------------------- one greedy tenant

GREEDY, SMALL = "greedy", ("small 1", "small 2", "small 3")
TENANT_ORDERS = ("fcfs", "fair")


def tenants_span(lab: Lab) -> float:
    """Seconds that four slots take for the requests of all tenants when they come in the same instant.

    Measured, so that the greedy tenant has a backlog on every machine while the small ones send."""
    return lab.run(tenant_crowd(lab).at_pace(0.0), max_num_seqs=4).duration


def tenant_crowd(lab: Lab, span: float = 1.0) -> LabWorkload:
    """The greedy tenant sends all at once; each small one sends a question now and then.

    Args:
        span: seconds that they take; the small ones' requests are spread over most of it.
    """
    many, few, output = (32, 5, 12) if lab.scale == 1 else (10, 2, 6)
    arrivals = [PromptArrival(0.0, question(i), output, GREEDY) for i in range(many)]
    for k, name in enumerate(SMALL):
        arrivals += [
            PromptArrival(span * (0.05 + 0.05 * k + 0.7 * i / few), question(100 * (k + 1) + i), output, name)
            for i in range(few)
        ]
    return LabWorkload(
        "tenants", "One greedy tenant, three small ones.", tuple(sorted(arrivals, key=lambda a: a.offset))
    )


ByTenant = dict[str, list[Visit]]
"""Answered requests, the greedy tenant's first."""


def split_by_tenant(visits: Iterable[Visit], tenants: Sequence[str]) -> ByTenant:
    """By tenant; `tenants` has one for each request."""
    found: ByTenant = {name: [] for name in (GREEDY, *SMALL)}
    for visit in visits:
        if visit.ttft is not None:
            found[tenants[visit.index]].append(visit)
    return found


def by_tenant(runs: Mapping[str, Run], lab: Lab) -> dict[str, ByTenant]:
    """Answered requests of the crowd's runs, by order."""
    tenants = [arrival.tenant for arrival in tenant_crowd(lab).arrivals]
    return {order: split_by_tenant(visits_of(run), tenants) for order, run in runs.items()}


def ttft_p99(found: ByTenant, names: Sequence[str] = SMALL) -> float:
    """p99 TTFT over all requests of these tenants."""
    return percentile([visit.ttft for name in names for visit in found[name]], 99)


def tenant_speed(visits: list[Visit]) -> float:
    """A tenant's output tokens a second, from its first arrival to its last token."""
    return sum(v.output for v in visits) / (end_of(visits) - min(v.arrival for v in visits))


APART = 1.25
"""The same requests are served at throughputs no further apart than this by any order, on a machine that's quiet."""


def is_disturbed(runs: Mapping[str, Run]) -> bool:
    """Whether runs of the same requests differ by more than an order can make them differ."""
    total = [run.throughput for run in runs.values()]
    return max(total) > APART * min(total) and not any(run.simulated_on for run in runs.values())


def small_gain(runs: Mapping[str, Run], lab: Lab) -> MeasuredAnswer | str:
    """By what factor the small tenants' p99 TTFT fell, from fcfs to fair: the answer to a prediction."""
    before, after = map(ttft_p99, by_tenant(runs, lab).values())
    told = f"p99 TTFT of the small tenants: {seconds(before)} to {seconds(after)}"
    if is_disturbed(runs):
        return f"{told}; but throughput differed too, and no order changes that"
    return MeasuredAnswer(before / after, told)
