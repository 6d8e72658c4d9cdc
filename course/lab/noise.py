"""Which difference between two runs is noise? Measured: settings that were run more than once on this machine.

Every run of the dashboard is kept by its traffic and its configuration. Runs that share both differ by noise alone;
their spread (pooled, of logarithms, so that it is a ratio) and Student's t give what two runs may differ by. Nothing
is claimed before something has been repeated.
"""

import hashlib
import math
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field
from scipy.stats import t as student

from course.lab.json_store import JsonStore, StoredModel
from course.lab.run import Run, percentile

Figures = dict[str, float]
"""Of a run, by name: seconds, or tokens per second."""
CONFIDENCE = 0.95
MOST_REPEATS, MOST_SETTINGS = 8, 60
"""What is kept: the latest."""
SHORTEST_S = 1e-4
"""A shorter phase counts as this long: of 3 µs, twice as much is nothing."""


class Repeats(StoredModel):
    settings: dict[str, list[Figures]] = Field(default_factory=dict)
    """By `traffic/configuration`."""


FILE = JsonStore("noise.json", Repeats)


def figures(run: Run) -> Figures:
    """What is compared between runs; only what the run has."""
    pooled = {"TTFT": run.ttft, "ITL": run.itl, "E2E": run.e2e}
    found = {f"{name} p50": percentile(values, 50) for name, values in pooled.items() if values}
    found |= {"tokens/s": run.throughput, **run.mean_phases()}
    return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class Noise:
    """How far two runs of equal settings may lie apart, by figure."""

    num_repeats: int
    """Runs beyond the first of their settings: the degrees of freedom."""
    deviations: Mapping[str, float]
    """Standard deviation of one run's logarithm."""

    def limit(self, name: str) -> float | None:
        """The largest ratio of two runs that noise explains, such as 1.12; None if that wasn't measured."""
        if name not in self.deviations:
            return None
        reach = student.ppf((1 + CONFIDENCE) / 2, self.num_repeats) * math.sqrt(2) * self.deviations[name]
        return math.exp(min(reach, 50.0))

    def explains(self, name: str, before: float, after: float) -> bool | None:
        """Whether noise alone could have done it; None = it wasn't measured."""
        limit = self.limit(name)
        ratio = max(after, SHORTEST_S) / max(before, SHORTEST_S)
        return None if limit is None else max(ratio, 1 / ratio) <= limit


def noise_of(repeated: Iterable[Sequence[Figures]]) -> Noise | None:
    """From runs, grouped by settings; None if no group has two."""
    groups = [group for group in repeated if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return None
    names = set.intersection(*(set(each) for group in groups for each in group))
    squares = {name: sum(_square(group, name) for group in groups) for name in names}
    return Noise(freedom, {name: math.sqrt(total / freedom) for name, total in squares.items()})


def _square(group: Sequence[Figures], name: str) -> float:
    logs = [math.log(max(each[name], SHORTEST_S)) for each in group]
    return statistics.variance(logs) * (len(logs) - 1)


class NoiseLog:
    """Remembers runs: in this process always, on this machine where a notebook is in use."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Figures]] | None = None

    def add(self, run: Run) -> None:
        """A run that ended by itself; others say nothing."""
        if not run.done or run.stopped or not run.finished:
            return
        setting, found = f"{_traffic(run)}/{_hash(run.config.model_dump_json())}", figures(run)

        def note(kept: dict[str, list[Figures]]) -> None:
            kept[setting] = [*kept.pop(setting, []), found][-MOST_REPEATS:]
            for oldest in list(kept)[:-MOST_SETTINGS]:
                del kept[oldest]

        note(self._all())
        FILE.change(lambda content: note(content.settings))

    def of(self, run: Run) -> Noise | None:
        """Of this traffic on this machine, whatever the configuration; None = nothing has been repeated yet."""
        traffic = _traffic(run) + "/"
        return noise_of(group for setting, group in self._all().items() if setting.startswith(traffic))

    def _all(self) -> dict[str, list[Figures]]:
        if self._kept is None:
            self._kept = FILE.read().settings
        return self._kept


def _traffic(run: Run) -> str:
    """The machine, and what was sent: the same requests at the same times."""
    sent = [(row.due, row.view.num_prompt_tokens, row.view.max_tokens) if row.view else row.due for row in run.rows]
    return f"{platform.node()}-{run.workload}-{_hash(str(sent))}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
