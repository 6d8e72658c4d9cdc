"""Use cases: what each of them was promised, and which configuration keeps most of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course.lab.display import Html, as_table
from course.lab.lesson_11 import fleet
from course.lab.lesson_11.money import GPUS, dollars, gpu_price
from course.lab.progress_bar import with_progress
from course.lab.slo import USE_CASES
from course.lab.style import number, seconds
from minillm.observe.summary import SLO
from minillm.simulate.workload.arrivals import AllAtOnce, Arrivals, Poisson

STACK = fleet.STACKS[1]
"""Without CUDA graphs not even an idle 70B keeps these promises."""
CONFIGS: dict[str, Mapping[str, Any]] = {
    "short steps": {"max_num_seqs": 32, "max_num_batched_tokens": 512},
    "in between": {"max_num_seqs": 64, "max_num_batched_tokens": 2048},
    "full steps": {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
}


@dataclass(frozen=True)
class Regime:
    """One use case: its traffic and its promise."""

    name: str
    prompt: int
    answer: int
    qps: float | None
    """Requests per second; None = all of them are there already."""
    slo: SLO
    source: str
    count: int = 240

    def run(self, config: str, stack: str = STACK) -> fleet.Served:
        arrivals: Arrivals = AllAtOnce() if self.qps is None else Poisson(rate=self.qps)
        return fleet.served(
            fleet.asking(self.prompt, self.answer), arrivals, self.count, stack=stack, **CONFIGS[config]
        )

    def throughput(self, config: str) -> float:
        """Tokens per second, prompts and answers."""
        run = self.run(config)
        until = float(run.stamps.max())
        return len(run.sent) * (self.prompt + self.answer) / until


REGIMES = {
    each.name: each
    for each in (
        Regime("chat", 800, 150, 7.0, *USE_CASES["chat"]),
        Regime("code completion", 1500, 30, 2.0, *USE_CASES["code completion"]),
        Regime("document (RAG)", 6000, 200, 1.0, *USE_CASES["summary of a document"]),
        Regime("classification", 400, 1, 5.0, *USE_CASES["classification"]),
        Regime("batch, overnight", 1500, 300, None, SLO(e2e=8 * 3600.0), "a night"),
    )
}


def regimes_table() -> Html:
    """A row a use case, a column a configuration: goodput as a share of what came; for batch, the bill."""
    rows = []
    for regime in with_progress(REGIMES.values(), "simulating use cases"):
        limits = ", ".join(
            f"{name} ≤ {seconds(limit)}"
            for name, limit in (("TTFT", regime.slo.ttft), ("TPOT", regime.slo.tpot), ("E2E", regime.slo.e2e))
            if limit is not None
        )
        cells = []
        for config in CONFIGS:
            if regime.qps is None:
                cells.append(f"{dollars(_per_million(regime, config))} a million")
            else:
                cells.append(f"{regime.run(config).attainment(regime.slo):.0%}")
        came = "all at once" if regime.qps is None else f"{number(regime.qps)}/s"
        rows.append((regime.name, f"{regime.prompt} + {regime.answer}", came, limits, *cells))
    return as_table(("use case", "tokens", "arrive", "promise", *CONFIGS), rows)


def _per_million(regime: Regime, config: str) -> float:
    """Dollars per million tokens, read or written."""
    return 1e6 * GPUS * gpu_price() / 3600 / regime.throughput(config)
