"""The wall clock jumps, back by years or forward: what was measured does not notice."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from robustness.judge import check_steps, check_timeline

from minillm.core.params import SamplingParams
from minillm.frontend.engine_thread import EngineThread
from minillm.policies.config import EngineConfig

YEAR_S = 365 * 24 * 3600


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
