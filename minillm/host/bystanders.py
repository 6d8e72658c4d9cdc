"""How busy the machine is with other work: what is measured beside it says little."""

import time

import psutil

GLANCE_S = 0.1
"""Long enough for a system that counts in hundredths of a second."""
MUCH = 0.1
"""Share of all processors from which on other work counts."""


class Bystanders:
    """What other processes do from now on."""

    def __init__(self) -> None:
        self._start = _moment()

    def share(self) -> float:
        """The share of all processors' time since then that wasn't idle, and wasn't this process's; 0 to 1."""
        busy, total, own = (now - before for now, before in zip(_moment(), self._start))
        return min(max(busy - own, 0.0) / total, 1.0) if total > 0 else 0.0

    @property
    def are_busy(self) -> bool:
        return self.share() > MUCH


def is_busy() -> bool:
    """Whether the machine is busy with other work just now. Takes a moment to look."""
    bystanders = Bystanders()
    time.sleep(GLANCE_S)
    return bystanders.are_busy


def _moment() -> tuple[float, float, float]:
    """Seconds so far of all processors: busy, and in all; and of this process."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # those are in `user`, too
    return total - times.idle - getattr(times, "iowait", 0.0), total, time.process_time()
