"""How many replicas there should be, decided from what has been, not from what comes."""

import math
from collections import deque
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from minillm.core.errors import WorkloadError
from minillm.core.params import StrictModel


class Autoscaling(StrictModel):
    """Rules of Kubernetes' HorizontalPodAutoscaler: replicas = total of a signal / target per replica, rounded up.

    Its lag has three parts: the signal is an average over the past, it is looked at now and then, and a new
    replica takes `ClusterConfig.cold_start_s` to come up.
    """

    _error: type[Exception] = WorkloadError

    signal: Literal["outstanding", "waiting", "arrival_rate"] = Field(
        "outstanding", description="requests in the pool, in its queues only, or arriving per second"
    )
    target: float = Field(gt=0, description="of the signal, per replica")
    min_replicas: int = Field(1, ge=0, description="never fewer; 0 = scale to zero")
    max_replicas: int = Field(16, ge=1, description="never more")
    interval_s: float = Field(15.0, gt=0, description="seconds between two looks")
    window_s: float = Field(30.0, ge=0, description="the signal is averaged over so many seconds")
    scale_down_after_s: float = Field(300.0, ge=0, description="fewer replicas only when so long fewer would have done")

    @model_validator(mode="after")
    def _order(self) -> "Autoscaling":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas ({self.min_replicas}) must not exceed max_replicas ({self.max_replicas})")
        return self


class Autoscaler:
    """Keeps the signal's history, and decides.

    Args:
        num_replicas: how many there are at the start; they are not taken down at once.
    """

    def __init__(self, config: Autoscaling, num_replicas: int) -> None:
        self.config = config
        self._signal: deque[tuple[float, float]] = deque()
        self._wanted: deque[tuple[float, int]] = deque([(0.0, num_replicas)])

    def decide(self, now: float, signal: float) -> int:
        """The number of replicas there should be.

        Args:
            now: seconds; ascending from call to call.
            signal: its total over the pool at this moment.
        """
        config = self.config
        remember(self._signal, now, signal, config.window_s)
        mean = sum(value for _, value in self._signal) / len(self._signal)
        wanted = min(max(math.ceil(mean / config.target), config.min_replicas), config.max_replicas)
        remember(self._wanted, now, wanted, config.scale_down_after_s)
        return max(value for _, value in self._wanted)


Amount = TypeVar("Amount", int, float)


def remember(history: deque[tuple[float, Amount]], now: float, value: Amount, seconds: float) -> None:
    """Append a value, and drop those older than `seconds`."""
    history.append((now, value))
    while history[0][0] < now - seconds:
        history.popleft()
