"""Which difference between two runs is noise? Measured on this machine, by settings that were run more than once.

**The model.** A figure's logarithm scatters around the mean of its settings with a standard deviation s that is the
machine's, whatever the traffic and the configuration. A *repeat* is a run whose settings had been run before. Its
distance from the median of the k runs before it, times sqrt(k / (k + 1)), scatters by s: one estimate a repeat, pooled
over all settings. The third run of its settings is measured from the nearer of the two before it, times AFTER_TWO: if
one of those was wild (often the first, on a cold machine), that makes one wild repeat and not two.

**The prior.** A few repeats say little about s, so they are added to what other machines say: a scaled inverse
chi-square prior for s², worth PRIOR_REPEATS repeats of PRIOR_SPREAD each. It comes from pairs of equal runs that
builds of lessons 00 and 01 recorded (`course/data/measured/equal_runs_2core.json`): the middle one of 25 differed by
4%, one in five by more than 13%, one in eight by more than 50%. With four repeats' worth, a spread of 0.06 fits them
best; it's rounded up to 0.08, since a laptop does other things as well.

**The band.** With that prior and repeats d, s² has the posterior mean square
(PRIOR_REPEATS · PRIOR_SPREAD² + Σ w·d²) / (PRIOR_REPEATS + Σ w), and the difference of two runs follows Student's t
with PRIOR_REPEATS + Σ w degrees of freedom, sqrt(2)·s wide. The band is where 95% of it lies: ×1.30 after one quiet
repeat, ×1.14 after twenty. A repeat's weight w halves with every ten that follow it.

**Outliers.** One run beside a busy browser tab must not hide what comes after it. So no repeat counts as further away
than OUTLIER spreads, measured by the prior and, from FEWEST_HALVED repeats on, by their quieter half: a single wild
run, the first of its settings or a later one, makes the band ×1.6, and no wider. If most repeats are wild, then that's
how the machine is, and the band says so.

**What is claimed.** Two equal runs are called different in at most 5% of cases on a machine whose runs scatter by
up to 8%. On one whose runs scatter by 20%, it's one case in five after three repeats, one in eight after eight, and
one in eleven after twenty. (`tests/course/lab/test_noise.py` simulates both.)
"""

import enum
import hashlib
import math
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from course.lab.json_store import JsonStore, StoredModel
from course.lab.run import Run, percentile
from minillm.core.brief import brief

Figures = dict[str, float]
"""What was measured of a run, by name: seconds, or tokens per second."""
CONFIDENCE = 0.95
CEILING = 1.5
"""No larger ratio is called noise, and where the band is wider nothing is: there, repeats are missing."""
ENOUGH = 3
"""With fewer repeats, only a ratio beyond CEILING is called a change."""
PRIOR_REPEATS, PRIOR_SPREAD = 4, 0.08
HALF_LIFE = 10
"""After so many more, a repeat counts half."""
OUTLIER = 3.0
"""Spreads: a repeat that lies further away counts as being this far away."""
QUIETER_HALF = 0.1426
"""Mean square of the half of normal deviates that is nearest to zero: by it, that half's gives the one of all."""
FEWEST_HALVED = 4
"""Repeats from which on the quieter half counts. Of fewer, that half is one run: if it is wild, it hides everything."""
AFTER_TWO = (2 - math.sqrt(12) / math.pi) ** -0.5
"""The square of a normal deviate's distance from the nearer of two others has the mean 2 - sqrt(12) / π."""
LATEST = 30
"""Repeats that are looked at."""
MOST_REPEATS, MOST_SETTINGS = 8, 60
"""What is kept: the latest."""
SHORTEST_S = 1e-4
"""A shorter phase counts as this long: of 3 µs, twice as much is nothing."""


def _only_numbers(stored: Any) -> Any:
    """The figures of a stored run without those that are no finite number: JSON has null for infinity and NaN."""
    if not isinstance(stored, Mapping):
        return stored  # for pydantic to refuse
    return {name: value for name, value in stored.items() if isinstance(value, (int, float)) and math.isfinite(value)}


class Repeats(StoredModel):
    """What is kept of the runs on this machine."""

    settings: dict[str, list[Annotated[Figures, BeforeValidator(_only_numbers)]]] = Field(default_factory=dict)
    """Runs by `machine-traffic/configuration`, oldest first; the settings that ran last stand last."""


FILE = JsonStore("noise.json", Repeats)


class NoiseVerdict(enum.Enum):
    """What noise has to do with a difference."""

    SAME = "within the noise"
    CHANGED = "more than noise"
    UNSURE = "not enough repeats"


def figures(run: Run) -> Figures:
    """What is compared between runs: only what the run has, and only finite numbers."""
    pooled = {"TTFT": run.ttft, "ITL": run.itl, "E2E": run.e2e}
    found = {f"{name} p50": percentile(values, 50) for name, values in pooled.items() if values}
    found |= {"tokens/s": run.throughput, **run.mean_phases()}
    return {name: value for name, value in found.items() if value and math.isfinite(value)}


def ratio_of(before: float, after: float) -> float:
    """How many times as large the larger one is; infinite if the other is nothing."""
    low, high = sorted((before, after))
    return 1.0 if low == high else high / low if low > 0 else math.inf


@dataclass(frozen=True)
class Noise:
    """How far two runs of equal settings may lie apart on this machine.

    Args:
        repeats: by figure, each repeat's distance from the runs before it (`repeats_of`), newest last.
    """

    repeats: Mapping[str, Sequence[float]] = field(default_factory=dict)

    __repr__ = brief

    @property
    def num_repeats(self) -> int:
        """How many repeats are known of the figure that has the most."""
        return max(map(len, self.repeats.values()), default=0)

    def limit(self, name: str) -> float | None:
        """The largest ratio of two equal runs to be expected, such as 1.2; None if the figure was never repeated."""
        return band(self.repeats[name]) if self.repeats.get(name) else None

    def verdict(self, name: str, before: float, after: float) -> NoiseVerdict:
        """Whether a figure changed between two runs, as far as this machine's repeats can tell.

        What was not measured (infinity, NaN) is compared with nothing.
        """
        limit, ratio = self.limit(name), ratio_of(before, after)
        if limit is None or not (math.isfinite(before) and math.isfinite(after)):
            return NoiseVerdict.UNSURE
        if ratio_of(max(before, SHORTEST_S), max(after, SHORTEST_S)) > limit:
            is_known = len(self.repeats[name]) >= ENOUGH or ratio > CEILING
            return NoiseVerdict.CHANGED if is_known else NoiseVerdict.UNSURE
        return NoiseVerdict.SAME if max(ratio, limit) <= CEILING else NoiseVerdict.UNSURE


def band(repeats: Sequence[float]) -> float:
    """The ratio that two equal runs exceed in one of twenty cases, from the repeats of one figure, newest last."""
    squares = [distance**2 for distance in repeats[-LATEST:]]
    furthest = OUTLIER**2 * _quiet_square(squares)
    weights = [0.5 ** (age / HALF_LIFE) for age in reversed(range(len(squares)))]
    freedom = PRIOR_REPEATS + sum(weights)
    total = sum(weight * min(square, furthest) for weight, square in zip(weights, squares))
    spread = math.sqrt((PRIOR_REPEATS * PRIOR_SPREAD**2 + total) / freedom)
    reach = student_t((1 + CONFIDENCE) / 2, freedom) * math.sqrt(2) * spread
    return math.exp(min(reach, 50.0))


def student_t(probability: float, freedom: float) -> float:
    """The quantile of Student's t, by its expansion around the normal one (Abramowitz and Stegun, 26.7.5).

    From four degrees of freedom on it's within a thousandth at 95%; SciPy's exact one is a download of 35 MB.
    """
    z = statistics.NormalDist().inv_cdf(probability)
    corrections = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(each / freedom**power for power, each in enumerate(corrections, start=1))


def _quiet_square(squares: Sequence[float]) -> float:
    """The spread's square by the prior and the quieter half: no outlier is in it, unless half of them are outliers."""
    quiet = sorted(squares)[: len(squares) // 2] if len(squares) >= FEWEST_HALVED else []
    return (PRIOR_REPEATS * PRIOR_SPREAD**2 + sum(quiet) / QUIETER_HALF) / (PRIOR_REPEATS + len(quiet))


def repeats_of(groups: Iterable[Sequence[Figures]]) -> dict[str, list[float]]:
    """How far each repeat lay from the runs before it, by figure: logarithms, which scatter by the machine's spread.

    Args:
        groups: runs of equal settings, oldest first; the groups in the order in which they ran last.
    """
    found = defaultdict[str, list[float]](list)
    for group in groups:
        for name in dict.fromkeys(name for each in group for name in each):
            logs = [math.log(max(each[name], SHORTEST_S)) for each in group if 0 <= each.get(name, -1) < math.inf]
            for k in range(1, len(logs)):
                found[name].append(_distance(logs[k], logs[:k]))
    return dict(found)


def _distance(repeat: float, earlier: Sequence[float]) -> float:
    """How far a repeat lies from the runs before it, scaled so that it scatters as one run does. All are logarithms."""
    if len(earlier) == 2:
        return AFTER_TWO * min((repeat - each for each in earlier), key=abs)
    return (repeat - statistics.median(earlier)) * math.sqrt(len(earlier) / (len(earlier) + 1))


class NoiseLog:
    """Remembers runs: in this process always, on this machine where a notebook is in use."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Figures]] | None = None

    def add(self, run: Run) -> None:
        """A run that ended by itself; others say nothing."""
        if not run.done or run.stopped or not run.finished:
            return
        setting, found = f"{_machine(run)}-{_traffic(run)}/{_hash(run.config.model_dump_json())}", figures(run)

        def note(kept: dict[str, list[Figures]]) -> None:
            kept[setting] = [*kept.pop(setting, []), found][-MOST_REPEATS:]
            for oldest in list(kept)[:-MOST_SETTINGS]:
                del kept[oldest]

        note(self._all())
        FILE.change(lambda content: note(content.settings))

    def of(self, run: Run) -> Noise:
        """The noise of the machine that this run was made on, whatever the traffic and the configuration."""
        machine = _machine(run)
        return Noise(repeats_of(group for setting, group in self._all().items() if _machine_of(setting) == machine))

    def _all(self) -> dict[str, list[Figures]]:
        if self._kept is None:
            self._kept = FILE.read().settings
        return self._kept


def _machine(run: Run) -> str:
    """This one, the server that was watched from it, or the device that it simulated."""
    if run.simulated_on:
        return run.simulated_on
    return f"{run.remote.server} from {platform.node()}" if run.remote else platform.node()


def _machine_of(setting: str) -> str:
    """The machine in `machine-traffic/configuration`: its name may have hyphens, the traffic's has one."""
    return setting.rpartition("/")[0].rsplit("-", 2)[0]


def _traffic(run: Run) -> str:
    """The same requests at the same times: `workload-hash`, with no other hyphen."""
    sent = [(row.due, row.view.num_prompt_tokens, row.view.max_tokens) if row.view else row.due for row in run.rows]
    return f"{run.workload.replace('-', '_')}-{_hash(str(sent))}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
