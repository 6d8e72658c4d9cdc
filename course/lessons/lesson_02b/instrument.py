"""Pictures with sliders: orders and queue limits at 70B, slot maps of real runs."""

from collections.abc import Mapping

from course.lab.explorer import Explorer, buttons, choices
from course.lab.run import Run
from course.lab.svg import Picture
from course.lessons.lesson_02.visits import visits_of
from course.lessons.lesson_02b import simulated
from course.lessons.lesson_02b.slot_map import draw_slot_maps
from course.lessons.lesson_02b.tables import order_table, outcomes_table
from course.simulator.cluster.run import FleetRun

LOADS = {f"{load}%": load / 100 for load in (30, 50, 70, 80, 90, 95, 100, 110, 130)}
LIMITS = (None, 1, 4, 16, 64)


def orders() -> Explorer:
    """Who is next? The waits at any load."""
    return Explorer(lambda load: order_table(LOADS[load]), slow=True, load=choices("load", list(LOADS), "110%"))


def queue_limit_runs(load: str, arrivals: str = "one by one") -> dict[str, FleetRun]:
    """A run for each queue limit."""
    cv = simulated.BURSTS if arrivals == "in bursts" else 1.0
    names = {limit: f"at most {limit} queued" if limit else "no limit" for limit in LIMITS}
    return {name: simulated.with_queue_limit(LOADS[load], limit, cv) for limit, name in names.items()}


def queue_limits() -> Explorer:
    """The queue limit under any load: what became of every request."""
    return Explorer(
        lambda load, arrivals: outcomes_table(queue_limit_runs(load, arrivals)),
        slow=True,
        load=choices("load", list(LOADS), "130%"),
        arrivals=buttons("they arrive", ["one by one", "in bursts"]),
    )


def slots_of(runs: Mapping[str, Run], title: str = "Which request runs in which slot?") -> Picture:
    """Slot maps of real runs."""
    slots = next(iter(runs.values())).config.max_num_seqs
    return draw_slot_maps({name: visits_of(run) for name, run in runs.items()}, slots, title)
