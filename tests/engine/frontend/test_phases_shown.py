"""Five phases in a terminal: the bar's columns are the shares of the time, durations have the unit that suits."""

import pytest

from minillm.core.timeline import Timeline
from minillm.frontend.phases_shown import duration, phase_bar, phase_line


def test_a_bar_is_in_proportion_and_whole() -> None:
    timeline = Timeline(arrival=0.0)
    timeline.scheduled, timeline.prefill_end, timeline.first_token = 1.0, 3.0, 3.0
    timeline.last_token = timeline.finished = 10.0
    bar = phase_bar(timeline, width=20)
    assert len(bar) == 20 and [span.end - span.start for span in bar.spans] == [2, 4, 14]
    assert "decode 7 s" in phase_line(timeline).plain


@pytest.mark.parametrize(
    ("seconds", "said"), [(24.666, "24.7 s"), (214.2, "214 s"), (0.0412, "41.2 ms"), (3.1e-4, "310 µs"), (0.0, "0 ms")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
