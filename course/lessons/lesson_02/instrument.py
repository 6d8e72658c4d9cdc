"""Pictures with sliders: the curve, and a live queue on the real engine."""

from collections.abc import Iterator, Mapping

from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lessons.lesson_02 import curve, traffic
from course.lessons.lesson_02.queue_pictures import draw_queues, draw_server
from course.lessons.lesson_02.visits import Visit, end_of, mean, visits_of, waits

FRAME_S = 0.25
LOADS = {"50%": 0.5, "80%": 0.8, "95%": 0.95, "110%": 1.1, "150%": 1.5}
SLOTS = (1, 2, 4)


class LiveQueue(Explorer):
    """The real engine under a load of your choice, watched as it goes.

    Args:
        per_second: what one slot can serve.
        first: shown before the first run: a run at 80%.
    """

    def __init__(self, lab: Lab, per_second: float, first: Run) -> None:
        self.lab, self.per_second = lab, per_second
        self.run: Run | None = None
        """The last run, when it is over."""
        controls = {"load": choices("load on one slot", list(LOADS), "80%"), "slots": choices("slots", SLOTS)}
        super().__init__(self._play, button="Send the requests", **controls)
        self.showing(_at_its_longest(visits_of(first), 1, "80%"))

    def _play(self, load: str, slots: int) -> Iterator[Picture]:
        arrivals = traffic.at_load(self.lab, self.per_second, LOADS[load])
        session = self.lab.start(arrivals, self.lab.config(max_num_seqs=slots))
        span = max(arrivals.arrivals[-1].offset, len(arrivals.arrivals) / self.per_second) * 1.1
        while not session.wait(FRAME_S):
            run = session.run()
            now = max(run.snapshot.now - run.start, 0.0)
            yield draw_server(visits_of(run), now, slots, max(span, now), f"How long is the queue? {load}, live")
        self.run = session.run()
        yield _at_its_longest(visits_of(self.run), slots, load)


def _at_its_longest(visits: list[Visit], slots: int, load: str) -> Picture:
    """A run that is over: the server at the moment its queue was longest, the queue over all of it."""
    moment = max((v.arrival for v in visits), key=lambda t: sum(v.is_waiting(t) for v in visits))
    many = "s" * (slots > 1)
    title = f"{load}, {slots} slot{many}: mean wait {seconds(mean(waits(visits)))}; slots and queue where it's longest"
    return draw_server(visits, moment, slots, end_of(visits) * 1.02, title, whole=True)


def wait_curve() -> Explorer:
    """Drag the load through the curve."""
    return Explorer(
        curve.draw_curve,
        load=slider("load, %", 10, 120, 80),
        arrivals=buttons("arrivals come", list(curve.ARRIVALS), "independent (Poisson)"),
        services=buttons("service times", list(curve.SERVICES)),
    )


def queues(runs: Mapping[str, Run]) -> Picture:
    """The same requests at several loads."""
    return draw_queues(
        {f"load {name}": visits_of(run) for name, run in runs.items()},
        f"{len(next(iter(runs.values())).rows)} questions, one slot: how long is the queue?",
    )
