"""The engines that are compared: each runs the same workload, and says what it really ran with.

All of them have the same three methods, so that the comparison does not know which one it measures. Here are
their base and minillm itself; each of the others has a module in peers/.
"""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from course.measure.workloads import BenchmarkWorkload
from minillm import LLM, SamplingParams
from minillm.bench.errors import BenchmarkError
from minillm.bench.report import describe_engine

WARM_UP_TOKENS = 4


class MissingBaselineError(BenchmarkError):
    """A baseline is not installed, or this machine cannot run it."""


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One measured run. All requests arrive at its start; times in seconds."""

    seconds: float
    num_tokens: int
    ttft: list[float]
    """One per request."""
    itl: list[float]
    """Gaps between deliveries, pooled over requests."""

    @classmethod
    def of(
        cls, start: float, stamps: Sequence[Sequence[float]], num_tokens: int | None = None, end: float | None = None
    ) -> "TimedRun":
        """Args:
        stamps: for each request, when its tokens were delivered.
        num_tokens: None = one a delivery.
        end: None = now.
        """
        return cls(
            seconds=(time.perf_counter() if end is None else end) - start,
            num_tokens=sum(map(len, stamps)) if num_tokens is None else num_tokens,
            ttft=[own[0] - start for own in stamps],
            itl=[later - earlier for own in stamps for earlier, later in itertools.pairwise(own)],
        )


class Peer(ABC):
    """An engine that can be given a workload, and timed."""

    name: str

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The settings that decide its speed, as they are in force."""

    def warm_up(self, workload: BenchmarkWorkload) -> None:
        """Anything that is paid once: allocation, compilation, first calls."""
        self.run(workload.truncated(WARM_UP_TOKENS))

    @abstractmethod
    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        """Serve the workload with cold prefix caches, and time it.

        Raises:
            BenchmarkError: some request did not emit exactly what it was asked for.
        """


def check_counts(name: str, workload: BenchmarkWorkload, counts: Iterable[int]) -> None:
    """Fewer tokens would make an engine look fast."""
    counts = list(counts)
    if counts != workload.output_lens:
        raise BenchmarkError(
            f"{name} emitted {counts} tokens on workload {workload.name!r}, asked for {workload.output_lens}: "
            "its time means nothing. Check that its KV pool holds the longest request"
        )


class Minillm(Peer):
    """This engine, in its default configuration but for `fields`."""

    name = "minillm"

    def __init__(self, **fields: Any) -> None:
        self.llm = LLM(**fields)

    def describe(self) -> dict[str, Any]:
        return describe_engine(self.llm.engine)

    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        engine = self.llm.engine
        engine.reset_prefix_cache()
        params = [
            SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True) for length in workload.output_lens
        ]
        start = time.perf_counter()
        outputs = self.llm.generate(workload.prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        check_counts(self.name, workload, (len(output.token_ids) for output in outputs))
        return TimedRun(
            seconds=seconds,
            num_tokens=workload.num_output_tokens,
            ttft=[output.timeline.ttft for output in outputs if output.timeline.ttft is not None],
            itl=[gap for output in outputs for gap in output.timeline.itl],
        )
