"""Whatever is switched on, and whatever happens: right tokens, no leak, budget kept, no request waits for ever."""

import pytest
from core.soak import TickingClock, soak

from minillm.core.timeline import VirtualClock

CLOCKS = [VirtualClock, TickingClock]


@pytest.mark.parametrize("clock", CLOCKS)
def test_everything_holds_under_random_traffic(clock: type[VirtualClock]) -> None:
    soak(range(60), clock)


@pytest.mark.slow
@pytest.mark.parametrize("clock", CLOCKS)
def test_everything_holds_for_many_seeds(clock: type[VirtualClock]) -> None:
    soak(range(60, 3000), clock)
