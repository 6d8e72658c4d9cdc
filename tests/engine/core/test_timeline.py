"""Five phases that always sum to the end-to-end time, in flight and after any ending."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason, Request
from minillm.core.step_log import clip_stages, close_timeline
from minillm.core.timeline import PHASES, STAMPS, Timeline, VirtualClock


def test_a_virtual_clock_never_goes_back() -> None:
    assert VirtualClock().now() == 0.0
    clock = VirtualClock(1.0)
    clock.advance(0.5)
    clock.advance(0.0)
    clock.advance_to(1.5)
    clock.advance_to(4.0)
    assert clock.now() == 4.0
    for backwards in (lambda: clock.advance(-0.1), lambda: clock.advance_to(3.9)):
        with pytest.raises(ValueError, match="backwards"):
            backwards()
    assert clock.now() == 4.0


def test_a_request_is_in_one_phase_at_a_time() -> None:
    timeline, seen = Timeline(0.0), []
    for stamp in (None, "scheduled", "prefill_end", "first_token", "finished"):
        if stamp:
            setattr(timeline, stamp, 1.0)
        seen.append(timeline.current_phase)
    assert seen == ["queue", "prefill", "first_token", "decode", None]


def test_derived_times() -> None:
    timeline = Timeline(1.0, scheduled=2.0, prefill_end=4.0)
    with pytest.raises(ValueError, match="now="):
        timeline.phases()
    assert timeline.phases(5.0) == dict(zip(PHASES, (1.0, 2.0, 1.0, 0.0, 0.0)))
    timeline.deliver(5.0, 1)
    assert timeline.tpot is None and timeline.e2e is None and timeline.ttft == 4.0
    timeline.deliver(6.0, 2)
    timeline.deliver(8.5, 1)
    assert timeline.phases(9.0) == dict(zip(PHASES, (1.0, 2.0, 1.0, 4.0, 0.0))), "more tokens may come"
    timeline.accept(9.0)
    timeline.accept(8.0)
    assert timeline.finished == 9.0 and timeline.itl == [1.0, 2.5]
    assert timeline.phases() == dict(zip(PHASES, (1.0, 2.0, 1.0, 3.5, 0.5)))
    assert timeline.e2e == 8.0 and timeline.tpot == 4 / 3 and timeline.first_token == 5.0


@given(st.lists(st.floats(0, 100), min_size=6, max_size=6), st.integers(0, 4))
def test_phases_sum_to_the_whole(moments: list[float], num_happened: int) -> None:
    arrival, *stamps = sorted(moments)
    timeline = Timeline(arrival, **dict(zip(STAMPS[1:], stamps[:num_happened])))
    assert sum(timeline.phases(stamps[-1]).values()) == pytest.approx(stamps[-1] - arrival)
    assert all(seconds >= 0 for seconds in timeline.phases(stamps[-1]).values())


@pytest.mark.parametrize("reason", FinishReason)
def test_who_is_cut_off_ends_in_decode(reason: FinishReason) -> None:
    request = Request("a", [1], SamplingParams(), Timeline(0.0, 0.0, 0.0))
    request.timeline.deliver(1.0, 1)
    request.finish_reason, request.preempted_at = reason, 1.5
    request.timeline.lost["preempted"] += 0.5
    close_timeline(request, 3.0)
    cut_off = reason in (FinishReason.ABORT, FinishReason.ERROR)
    assert (request.timeline.phases()["decode"], request.timeline.phases()["stream"]) == ((2, 0) if cut_off else (0, 2))
    assert request.timeline.lost == {"preempted": 2.0} and request.preempted_at is None
    assert request.timeline.last_token == (3.0 if cut_off else 1.0)


def test_stages_hidden_behind_the_step_before_count_nothing() -> None:
    assert clip_stages({"schedule": 2.0, "forward": 3.0}, 1.0, 2.5) == {"schedule": 0.5, "forward": 3.0}
