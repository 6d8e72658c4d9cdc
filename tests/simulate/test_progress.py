"""The progress line: only on a terminal, only after a while, and gone in the end."""

import io

from minillm.core.batch import ScheduledBatch
from minillm.simulate.progress import PATIENCE_S, Progress

BATCH = ScheduledBatch(step_id=1, requests=(), saves=(), loads=(), preempted=(), timed_out=())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Seconds:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_watched_without_a_terminal() -> None:
    assert Progress(io.StringIO()).begin("a run", 10.0) is None


def test_quick_runs_stay_silent_and_slow_ones_say_how_far_they_are() -> None:
    stream, seconds = Terminal(), Seconds()
    with Progress(stream, seconds) as progress:
        watch = progress.begin("40 requests", 20.0)
        seconds.now = PATIENCE_S / 2
        watch(BATCH, None, 1.0)
        assert stream.getvalue() == ""
        seconds.now = PATIENCE_S
        watch(BATCH, None, 5.0)
        assert "40 requests: 5 of 20 s simulated (25%)" in stream.getvalue()
        before = stream.getvalue()
        watch(BATCH, None, 6.0)
        assert stream.getvalue() == before, "not at every step"
        progress.begin("80 requests", 20.0)
        seconds.now += PATIENCE_S
        watch(BATCH, None, 2.0)
        assert "run 2: 80 requests: 2 of 20 s" in stream.getvalue(), "each run starts anew, the patience does not"
    assert stream.getvalue().endswith(" \r"), "wiped"


def test_a_run_of_requests_that_all_come_at_once_has_no_end_to_divide_by() -> None:
    stream, seconds = Terminal(), Seconds()
    watch = Progress(stream, seconds).begin("a batch", 0.0)
    seconds.now = PATIENCE_S
    watch(BATCH, None, 5.0)
    assert "(100%)" in stream.getvalue()
