"""Pictures with sliders: the waiting room on the real engine, and two questions at 70B."""

from collections.abc import Iterator, Mapping

from course.lab.explorer import Explorer, buttons, choices
from course.lab.lab import Lab
from course.lab.lesson_02 import simulated, traffic
from course.lab.lesson_02.queue_pictures import draw_lines, draw_room
from course.lab.lesson_02.slot_map import draw_slot_maps
from course.lab.lesson_02.tables import order_table, outcomes_table
from course.lab.lesson_02.visits import Visit, end_of, mean, visits_of, waits
from course.lab.run import Run
from course.lab.style import seconds
from course.lab.svg import Picture
from minillm.simulate.cluster.run import FleetRun

FRAME_S = 0.25
REAL_LOADS = {"50%": 0.5, "80%": 0.8, "95%": 0.95, "110%": 1.1, "150%": 1.5}
BIG_LOADS = {f"{load}%": load / 100 for load in (30, 50, 70, 80, 90, 95, 100, 110, 130)}
ROOM_SLOTS = (1, 2, 4)
LIMITS = (None, 1, 4, 16, 64)


class WaitingRoom(Explorer):
    """The real engine under a load of your choice, watched as it goes.

    Args:
        per_second: what one seat can serve.
        first: shown before the first run: a run at 80%.
    """

    def __init__(self, lab: Lab, per_second: float, first: Run) -> None:
        self.lab, self.per_second = lab, per_second
        self.run: Run | None = None
        """The last run, when it is over."""
        super().__init__(
            self._play,
            button="Open the doors",
            load=choices("load on one seat", list(REAL_LOADS), "80%"),
            seats=choices("seats", ROOM_SLOTS),
        )
        self.showing(_at_its_longest(visits_of(first), 1, "80%"))

    def _play(self, load: str, seats: int) -> Iterator[Picture]:
        arrivals = traffic.at_load(self.lab, self.per_second, REAL_LOADS[load])
        session = self.lab.start(arrivals, self.lab.config(max_num_seqs=seats))
        span = max(arrivals.arrivals[-1].offset, len(arrivals.arrivals) / self.per_second) * 1.1
        while not session.wait(FRAME_S):
            run = session.run()
            now = max(run.snapshot.now - run.start, 0.0)
            yield draw_room(visits_of(run), now, seats, max(span, now), f"Who waits? {load}, live")
        self.run = session.run()
        yield _at_its_longest(visits_of(self.run), seats, load)


def _at_its_longest(visits: list[Visit], seats: int, load: str) -> Picture:
    """A run that is over: the room at the moment its line was longest, the line over all of it."""
    moment = max((v.arrival for v in visits), key=lambda t: sum(v.in_line(t) for v in visits))
    title = (
        f"{load}, {seats} seat{'s' * (seats > 1)}: mean wait {seconds(mean(waits(visits)))}; here the line is longest"
    )
    return draw_room(visits, moment, seats, end_of(visits) * 1.02, title, whole=True)


def orders() -> Explorer:
    """Who is next? The waits at any load."""
    return Explorer(lambda load: order_table(BIG_LOADS[load]), slow=True, load=choices("load", list(BIG_LOADS), "110%"))


def queue_limit_runs(load: str, arrivals: str = "one by one") -> dict[str, FleetRun]:
    """A run for each queue limit."""
    cv = simulated.CLUMPS if arrivals == "in clumps" else 1.0
    names = {limit: f"at most {limit} in line" if limit else "everybody may wait" for limit in LIMITS}
    return {name: simulated.with_queue_limit(BIG_LOADS[load], limit, cv) for limit, name in names.items()}


def queue_limits() -> Explorer:
    """The queue limit under any load: what became of every request."""
    return Explorer(
        lambda load, arrivals: outcomes_table(queue_limit_runs(load, arrivals)),
        slow=True,
        load=choices("load", list(BIG_LOADS), "130%"),
        arrivals=buttons("they arrive", ["one by one", "in clumps"]),
    )


def lines(runs: Mapping[str, Run]) -> Picture:
    """The same people at several loads."""
    return draw_lines(
        {f"load {name}": visits_of(run) for name, run in runs.items()},
        f"{len(next(iter(runs.values())).rows)} questions, one seat: how long is the line?",
    )


def seats_of(runs: Mapping[str, Run], title: str = "Who sits where?") -> Picture:
    """Seat maps of real runs."""
    seats = next(iter(runs.values())).config.max_num_seqs
    return draw_slot_maps({name: visits_of(run) for name, run in runs.items()}, seats, title)
