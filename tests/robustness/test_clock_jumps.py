"""The wall clock jumps, back by years or forward: what was measured does not notice, and what is kept stays whole."""

import datetime
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from robustness.judge import check_steps, check_timeline

from course.lab import progress
from course.lab.grading.exercises import find
from course.lab.grading.history import History
from course.lab.start import cards
from minillm.core.params import SamplingParams
from minillm.frontend.engine_thread import EngineThread
from minillm.policies.config import EngineConfig

YEAR_S = 365 * 24 * 3600
MOMENTS = [datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2026, 1970, 2037, 2026)]


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the wall clock is years from the one before."""
    jumps: Iterator[float] = itertools.cycle([0.0, -YEAR_S, 10 * YEAR_S, -3 * YEAR_S])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + next(jumps))


@pytest.mark.usefixtures("jumping")
def test_phases_do_not_notice(tiny_llama_path: Path) -> None:
    config = EngineConfig(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=64, queue_timeout_s=600)
    assert time.time() != pytest.approx(time.time(), abs=YEAR_S / 2), "the clock does not jump"
    before = time.perf_counter()
    with EngineThread(config) as thread:
        streams = [thread.submit([i, 2, 3], SamplingParams(max_tokens=10, temperature=0)) for i in range(1, 7)]
        outputs = [stream.result(timeout=120) for stream in streams]
        thread.call(check_steps).result(timeout=60)
    elapsed = time.perf_counter() - before
    for output in outputs:
        timeline = output.completions[0].timeline
        check_timeline(timeline)
        assert timeline.e2e <= elapsed, "no request took longer than all of them together"


class Calendar(datetime.datetime):
    """A datetime whose `now` goes where MOMENTS say."""

    moments: Iterator[datetime.datetime] = itertools.cycle(MOMENTS)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return next(cls.moments)


def test_what_is_kept_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    monkeypatch.setenv("JPY_SESSION_NAME", "course/06_decode.ipynb")
    monkeypatch.setattr(progress, "datetime", Calendar)
    monkeypatch.setattr("course.lab.grading.history.datetime", Calendar)
    exercise, history = find("percentiles"), History()
    for i in range(len(MOMENTS)):
        progress.note_opened()
        progress.note_check("q1", float(i == 1), 1.0)
        assert history.add_attempt(exercise, 0, float(i)) is None
    kept = progress.FILE.read()
    assert kept.latest == "06" and kept.lessons["06"].checks["q1"].score == 1.0
    assert history.standing(exercise).attempts == len(MOMENTS)
    assert not list(tmp_path.glob("*.broken"))


def test_cards_are_reviewed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    deck = cards.Deck([cards.Card("a fact", "06", "Decode", "What?", "That.")])
    for moment in MOMENTS:
        for rating in cards.RATINGS:
            assert deck.review("a fact", rating, now=moment) >= moment
        assert isinstance(deck.due(now=moment), list)
