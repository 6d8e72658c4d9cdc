"""One greedy tenant against three small ones, in first-come and in fair order: on the real engine, and at 70B."""

import functools
from collections.abc import Iterable, Mapping, Sequence

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices
from course.lab.lab import Lab
from course.lab.predict import Outcome
from course.lab.run import Run, percentile
from course.lab.scale import enough
from course.lab.style import number, seconds
from course.lab.workloads import Arrival, Workload
from course.lessons.lesson_02.simulated import CHAT, ENOUGH_FOR_A_QUEUE, capacity
from course.lessons.lesson_02.traffic import question
from course.lessons.lesson_02.visits import Visit, end_of, visits_of
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload, merge

GREEDY, SMALL = "greedy", ("small 1", "small 2", "small 3")
ORDERS = ("fcfs", "fair")
SLOTS = 16
SENDS = {
    "chats": CHAT,
    "long prompts": Independent(prompt=Fixed(tokens=8000), output=Fixed(tokens=100)),
    "long answers": Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=1500)),
}
"""What the greedy tenant asks for; the small ones chat."""
GREEDY_LOADS = {"30%": 0.3, "80%": 0.8, "120%": 1.2, "200%": 2.0}
SMALL_LOAD = 0.08
"""Of the capacity, each small tenant."""


def crowd(lab: Lab) -> Workload:
    """The greedy tenant sends all at once; each small one sends a question now and then."""
    many, few, output = (32, 5, 12) if lab.scale == 1 else (10, 2, 6)
    arrivals = [Arrival(0.0, question(i), output, GREEDY) for i in range(many)]
    for k, name in enumerate(SMALL):
        arrivals += [
            Arrival((0.1 + 0.1 * k + 0.4 * i) * lab.scale, question(100 * (k + 1) + i), output, name)
            for i in range(few)
        ]
    return Workload("tenants", "One greedy tenant, three small ones.", tuple(sorted(arrivals, key=lambda a: a.offset)))


ByTenant = dict[str, list[Visit]]
"""Answered requests, the greedy tenant's first."""


def split(visits: Iterable[Visit], tenants: Sequence[str]) -> ByTenant:
    """By tenant; `tenants` has one for each request."""
    found: ByTenant = {name: [] for name in (GREEDY, *SMALL)}
    for visit in visits:
        if visit.ttft is not None:
            found[tenants[visit.index]].append(visit)
    return found


def by_tenant(runs: Mapping[str, Run], lab: Lab) -> dict[str, ByTenant]:
    """Of the crowd's runs, by order."""
    tenants = [arrival.tenant for arrival in crowd(lab).arrivals]
    return {order: split(visits_of(run), tenants) for order, run in runs.items()}


def p99(found: ByTenant, names: Sequence[str] = SMALL) -> float:
    """p99 TTFT over all requests of these tenants."""
    return percentile([visit.ttft for name in names for visit in found[name]], 99)


def speed(visits: list[Visit]) -> float:
    """A tenant's output tokens a second, from its first arrival to its last token."""
    return sum(v.output for v in visits) / (end_of(visits) - min(v.arrival for v in visits))


def tenants_table(by_order: Mapping[str, ByTenant]) -> Html:
    """A row a tenant, p99 TTFT and tokens a second in each order."""
    rows = []
    for name in (GREEDY, *SMALL):
        ttfts = [seconds(p99(found, [name])) for found in by_order.values()]
        rows.append((name, *ttfts, *(number(speed(found[name])) for found in by_order.values())))
    heads = [f"{what}, {order}" for what in ("p99 TTFT", "tokens/s") for order in by_order]
    return as_table(("tenant", *heads), rows)


def small_gain(runs: Mapping[str, Run], lab: Lab) -> Outcome:
    """By what factor the small tenants' p99 TTFT fell, from fcfs to fair."""
    before, after = map(p99, by_tenant(runs, lab).values())
    return Outcome(before / after, f"p99 TTFT of the small tenants: {seconds(before)} to {seconds(after)}")


@functools.lru_cache(maxsize=64)
def at_70b(order: str, greedy: str, sends: str) -> ByTenant:
    """One replica: the small tenants chat, the greedy one sends `sends`."""
    count, each = enough(360, ENOUGH_FOR_A_QUEUE), capacity(CHAT, max_num_seqs=SLOTS)
    span = count / (each * (GREEDY_LOADS["80%"] + 3 * SMALL_LOAD))
    on = simulated_70b.deployment(max_num_seqs=SLOTS, scheduling_order=order)
    loads = {GREEDY: (SENDS[sends], GREEDY_LOADS[greedy] * capacity(SENDS[sends], 100, max_num_seqs=SLOTS))}
    loads |= dict.fromkeys(SMALL, (CHAT, SMALL_LOAD * each))
    parts = [
        make_workload(traffic, Poisson(rate=rate), num_requests=max(round(rate * span), 8), seed=seed, name=name)
        .with_tenant(name)
        for seed, (name, (traffic, rate)) in enumerate(loads.items())
    ]  # fmt: skip
    run = simulated_70b.play(on, merge("tenants", *parts))
    return split(visits_of(run), [record.request.tenant for record in run.records])


def explorer() -> Explorer:
    """Both orders, as greedy as you like."""

    def draw(greedy: str, sends: str) -> Html:
        return tenants_table({order: at_70b(order, greedy, sends) for order in ORDERS})

    return Explorer(
        draw,
        slow=True,
        greedy=choices("greedy tenant's load", list(GREEDY_LOADS), "120%"),
        sends=buttons("it sends", list(SENDS)),
    )
