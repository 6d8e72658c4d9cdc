"""Lessons 00 and 01 at 70B: eight at once, and two services with one p99 and opposite problems."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.run import percentile
from course.lab.style import seconds
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import AllAtOnce
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed, LogNormal
from minillm.core.timeline import PHASES

EQUAL = Independent(prompt=Fixed(tokens=237), output=Fixed(tokens=96))
"""The prompts and answers of lesson 00."""
PROMPT = LogNormal(median=300, sigma=0.5, high=2000)
LOAD_OF_A = 0.85
"""Share of what A's slot can serve: enough for a queue, and below capacity, so that a p99 doesn't grow with the run."""
QPS_OF_B = 6.0
SLOTS = {"A": 1, "B": 256}
"""A has one slot and a queue before them. B admits every request, and its answers are long."""
SHORT_ANSWER = 60
"""Median tokens, of service A."""
TOLERANCE = 0.05
MOST_TRIES = 8


def together(count: int, slots: int = 4) -> FleetRun:
    """So many equal prompts that arrive in the same instant, at a server with so many slots."""
    return simulated_70b.serve(
        simulated_70b.deployment(max_num_seqs=slots), EQUAL, arrivals=AllAtOnce(), num_requests=count, least=count
    )


def phases_table(runs: Mapping[str, FleetRun]) -> Html:
    """Mean seconds of each phase, a column a run; they add up to the mean of E2E."""
    means = {name: simulated_70b.phase_means(run) for name, run in runs.items()}
    rows = [(phase.replace("_", " "), *(seconds(mean[phase]) for mean in means.values())) for phase in PHASES]
    total = ("sum", *(seconds(sum(mean.values())) for mean in means.values()))
    return as_table(("phase, mean", *means), [*rows, total])


def service(name: str, answer: float, **fields: Any) -> FleetRun:
    """Service A or B; `answer`: median tokens. `fields` as of `simulated_70b.deployment`; the arrivals stay."""
    traffic = _traffic(answer)
    qps = QPS_OF_B if name == "B" else LOAD_OF_A * simulated_70b.capacity(traffic, max_num_seqs=SLOTS["A"])
    on = simulated_70b.deployment(**{"max_num_seqs": SLOTS[name], **fields})
    return simulated_70b.serve(on, traffic, qps=qps, num_requests=300, least=120)


def _traffic(answer: float) -> Independent:
    return Independent(prompt=PROMPT, output=LogNormal(median=answer, sigma=0.4, high=1500))


def answers_of_equal_p99() -> dict[str, float]:
    """Median answers of A and of B, in tokens, with which their p99 of E2E agree: found by running."""
    wanted = e2e(service("A", SHORT_ANSWER))
    low, high, middle = 20.0, 1200.0, 250.0
    for _ in range(MOST_TRIES):
        found = e2e(service("B", middle))
        if abs(found / wanted - 1) < TOLERANCE:
            break
        low, high = (low, middle) if found > wanted else (middle, high)
        middle = (low + high) / 2
    return {"A": SHORT_ANSWER, "B": middle}


@dataclass(frozen=True)
class ServiceFigures:
    """One service, once; seconds."""

    e2e: float
    ttft: float
    itl: float
    worst_itl: float

    @classmethod
    def of(cls, run: FleetRun) -> "ServiceFigures":
        first = [record.timeline.ttft for record in run.records]
        gaps = simulated_70b.token_gaps(run)
        return cls(e2e(run), percentile(first, 99), percentile(gaps, 50), percentile(gaps, 99))


BEFORE, INT8, MORE_SLOTS = "as they are", "int8 weights", "256 slots"
LEVERS: dict[str, dict[str, Any]] = {BEFORE: {}, INT8: {"weight_dtype": "int8"}, MORE_SLOTS: {"max_num_seqs": 256}}


def two_services() -> dict[str, dict[str, ServiceFigures]]:
    """What each service is like with each lever: by lever, then by service."""
    answers = answers_of_equal_p99()
    return {
        lever: {name: ServiceFigures.of(service(name, answer, **fields)) for name, answer in answers.items()}
        for lever, fields in LEVERS.items()
    }


def services_table(measured: Mapping[str, Mapping[str, ServiceFigures]]) -> Html:
    """The number the services share, the two in which they differ, and what each lever does."""
    rows = [
        (lever, name, *(seconds(each) for each in astuple(found)))
        for lever, services in measured.items()
        for name, found in services.items()
    ]
    return as_table(("Llama-3 70B, simulated", "service", "E2E p99", "TTFT p99", "ITL p50", "ITL p99"), rows)


def e2e(run: FleetRun, q: float = 99) -> float:
    return percentile([record.timeline.e2e for record in run.records], q)
