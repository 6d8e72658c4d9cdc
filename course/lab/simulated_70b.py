"""The same questions at the size that production has: the simulator, under the unchanged scheduler.

on_70b = simulated_70b.deployment()                                  # Llama-3 70B on four H100s
run = simulated_70b.serve(on_70b, AZURE_CHAT, qps=3)                 # a FleetRun: run.summary(), run.records
run = simulated_70b.served(AZURE_CHAT, Poisson(rate=3))              # the same by fields; played once, remembered
simulated_70b.error_band(on_70b)                                     # how far its step times were from real ones
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import Any, TypeVar

from course.lab.display import Html
from course.lab.run import percentile
from course.lab.scale import enough
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.record import ClientRecord
from course.simulator.cluster.run import FleetRun
from course.simulator.cost.bands import band_of
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.profile import Profile, find_profile, moved, roofline_profile
from course.simulator.cost.work import decode_work, prefill_work
from course.simulator.deployment import Deployment
from course.simulator.report import engines_for
from course.simulator.simulated_runner import StepWatch
from course.simulator.workload.arrivals import AllAtOnce, Arrivals, Poisson
from course.simulator.workload.kinds import TrafficModel
from course.simulator.workload.requests import Workload, make_workload
from course.summary import SLO
from minillm.core.brief import brief
from minillm.core.timeline import PHASES

Item = TypeVar("Item")
ALL_ERRORS = "../docs/simulator.md"
"""Where the errors of all constants are listed, as seen from a lesson."""
MODEL, HARDWARE, TP = "llama-3-70b", "h100-sxm", 4
TODAY, OLD, SHEET = "vLLM 0.19, spring 2026", "of 2023, no CUDA graphs", "the data sheet"
STACKS: dict[str, Callable[[str], Profile]] = {
    TODAY: find_profile,
    OLD: lambda hardware: moved(find_profile("h100-sxm-2023"), find_hardware(hardware)),
    SHEET: lambda hardware: roofline_profile(find_hardware(hardware)),
}
"""What the price of a step stands on, by hardware. The first was fitted to vLLM on an RTX 4090, and is moved; the
second was fitted to an H100 of 2023."""
SETTLED = 0.2
"""The first share of the arrivals: the replica is still filling up, and they are left out of a Served's figures."""


def deployment(*, stack: str = TODAY, **fields: Any) -> Deployment:
    """Llama-3 70B on four H100s.

    Args:
        stack: one of STACKS.
        fields: fields of EngineConfig; or `model`, `profile` (a hardware's name), `tp`, `kv_heads`, `weight_dtype`,
            `kv_dtype`.
    Raises:
        PricingError, ConfigError: such a deployment is not possible; the words say why.
    """
    fields = {"model": MODEL, "profile": HARDWARE, "tp": TP, **fields}
    return Deployment.of(**{**fields, "profile": STACKS[stack](fields["profile"])})


def serve(
    on: Deployment,
    traffic: TrafficModel,
    *,
    qps: float = 1.0,
    arrivals: Arrivals | None = None,
    num_requests: int = 400,
    least: int = 20,
    seed: int = 0,
    **fleet: Any,
) -> FleetRun:
    """Play traffic to it. In the lab's short form, a quarter of the requests.

    Args:
        qps: requests per second, Poisson, unless `arrivals` says otherwise.
        least: requests, even in the short form.
        fleet: as of `play`, such as replicas=2.
    """
    count = enough(num_requests, least)
    workload = make_workload(traffic, arrivals or Poisson(rate=qps), num_requests=count, seed=seed)
    return play(on, workload, keep_prefixes=True, **fleet)


@functools.lru_cache(maxsize=512)
def _served(
    traffic: TrafficModel, arrivals: Arrivals, count: int, seed: int, fields: tuple[tuple[str, Any], ...]
) -> FleetRun:
    workload = make_workload(traffic, arrivals, num_requests=count, seed=seed)
    return play(deployment(**dict(fields)), workload)


def served(
    traffic: TrafficModel, arrivals: Arrivals, count: int = 300, *, seed: int = 0, least: int = 20, **fields: Any
) -> FleetRun:
    """One replica under this traffic; no two prompts share a prefix. The same call again costs nothing. In the lab's
    short form, a quarter of the requests.

    Args:
        least: requests, even in the short form.
        fields: as of `deployment`.
    """
    return _served(traffic, arrivals, enough(count, least), seed, tuple(sorted(fields.items())))


def capacity(traffic: TrafficModel, count: int = 300, *, least: int = 20, **fields: Any) -> float:
    """Requests a second that `served` answers while one always waits: over the middle of a run in which all come at
    once, so that neither filling the slots nor the last long answers count.
    """
    return steady_rate(record.ended for record in served(traffic, AllAtOnce(), count, least=least, **fields).records)


def play(
    on: Deployment,
    workload: Workload,
    small: Deployment | None = None,
    *,
    keep_prefixes: bool = False,
    watch: StepWatch | None = None,
    **fleet: Any,
) -> FleetRun:
    """Serve a workload; nothing is sampled over time.

    Args:
        small: the small model, with model_routing or degrading.
        keep_prefixes: prompts share prefixes, or are handed over; otherwise no prefix is looked up.
        watch: sees every step.
        fleet: fields of ClusterConfig.
    """
    config = ClusterConfig(**{"sample_every_s": None, **fleet})
    if not keep_prefixes:
        on, workload = on.without_prefix_lookups(), workload.anonymous()
        small = small and small.without_prefix_lookups()
    make_small = small and engines_for(small, config)
    return simulate(workload, config, engines_for(on, config, watch), make_small_engine=make_small)


def phase_means(run: FleetRun) -> dict[str, float]:
    """Mean seconds of each phase, up to the client; they add up to the mean of E2E."""
    shares = [record.timeline.phases() for record in run.request_records()]
    return {phase: sum(each[phase] for each in shares) / len(shares) for phase in PHASES}


def token_gaps(run: FleetRun) -> list[float]:
    """Seconds between two tokens of completed answers, as the engine hands them over."""
    return [gap for record in run.records if record.completed for gap in record.timeline.itl]


def ttft(run: FleetRun, q: float) -> float:
    """A percentile of TTFT at the clients, seconds."""
    return percentile([record.ttft() for record in run.records if record.completed], q)


def itl(run: FleetRun, q: float) -> float:
    """A percentile of `token_gaps`, seconds."""
    return percentile(token_gaps(run), q)


def tokens_per_s(run: FleetRun) -> float:
    """Output tokens per second, over the whole run."""
    return sum(record.num_tokens for record in run.records) / run.duration


def room_tokens(on: Deployment) -> int:
    """Tokens whose KV fits."""
    return on.num_kv_blocks * on.block_size


def token_bytes(on: Deployment) -> float:
    """KV of one token over all GPUs, copies included."""
    return on.block_bytes * on.placement.tp / on.block_size


def prefill_seconds(on: Deployment, tokens: int) -> float:
    """One prompt alone, in one step, on an idle replica."""
    return on.step_time().price(prefill_work(tokens)).total


def decode_seconds(on: Deployment, batch: int, context: float) -> float:
    """A step in which so many requests write a token each."""
    return on.step_time().price(decode_work(batch, context)).total


def steady_rate(ends: Iterable[float]) -> float:
    """Answers a second over the middle three fifths of a run in which all come at once: filling and emptying the slots
    do not count.

    Args:
        ends: when each answer was done, seconds.
    """
    done = sorted(ends)
    first, last = len(done) // 5, 4 * len(done) // 5
    return (last - first) / (done[last] - done[first])


@dataclass(frozen=True, eq=False)
class Served:
    """What a simulated run's clients saw, an item a request in order of arrival. Seconds; NaN = that never happened."""

    sent: Sequence[float]
    ttft: Sequence[float]
    """Time to first token: from sending to the first byte."""
    tpot: Sequence[float]
    """Mean gap of the answer; NaN for an answer of one token."""
    stall: Sequence[float]
    """The longest gap."""
    e2e: Sequence[float]
    slot_at: Sequence[float]
    """The moment at which it got a slot."""
    queue: Sequence[float]
    """How long it had waited then."""
    tokens: Sequence[float]
    """How many tokens it received."""
    stamps: Sequence[float]
    """When each token reached its client."""
    preemptions: int

    __repr__ = brief

    @classmethod
    def of(cls, run: FleetRun) -> "Served":
        rows = [row_of(record) for record in run.records if record.sent is not None]
        columns = ([math.nan if value is None else value for value in column] for column in zip(*rows))
        stamps = [stamp for record in run.records for stamp in record.deliveries]
        preemptions = sum(report.num_preemptions for report in run.reports)
        return cls(*columns, stamps=stamps, preemptions=preemptions)

    @functools.cached_property
    def until(self) -> float:
        """The last arrival: after it there is less and less to do."""
        return max(self.sent)

    @functools.cached_property
    def settled(self) -> list[bool]:
        """Requests that came when the replicas had filled up."""
        since = SETTLED * self.until
        return [sent >= since for sent in self.sent]

    @property
    def throughput(self) -> float:
        """Output tokens per second that reached clients while requests came in."""
        until = self.until
        since = SETTLED * until
        return sum(since <= stamp <= until for stamp in self.stamps) / (until - since)

    def tokens_per_s(self, since: float, until: float) -> float:
        """Output tokens per second that reached clients from one moment until just before the other."""
        return sum(since <= stamp < until for stamp in self.stamps) / (until - since)

    def p(self, what: str, q: float) -> float:
        """A percentile of one of the columns, of the requests that got that far; NaN when none did."""
        values = [value for value in self.of_settled(getattr(self, what)) if not math.isnan(value)]
        return percentile(values, q) if values else math.nan

    def of_settled(self, values: Iterable[Item]) -> list[Item]:
        """Those of `settled` requests."""
        return list(itertools.compress(values, self.settled))

    def met(self, slo: SLO) -> list[bool]:
        """Which requests were answered within every limit, as their clients saw it."""
        limits = ((slo.ttft, self.ttft), (slo.tpot, self.tpot), (slo.itl, self.stall), (slo.e2e, self.e2e))
        found = [not math.isnan(e2e) for e2e in self.e2e]
        for limit, values in limits:
            if limit is not None:
                found = [is_met and not value > limit for is_met, value in zip(found, values)]
        return found

    def attainment(self, slo: SLO) -> float:
        """Share of the requests that met every limit; one without an answer did not."""
        return fmean(self.of_settled(self.met(slo)))

    def goodput(self, slo: SLO) -> float:
        """Requests per second that met every limit."""
        return sum(self.of_settled(self.met(slo))) / ((1 - SETTLED) * self.until)


def row_of(record: ClientRecord) -> tuple[float | None, ...]:
    """The columns of Served for one request; None where something never happened."""
    line = record.timeline
    gaps = [after - before for before, after in itertools.pairwise(record.deliveries)]
    return (
        record.sent,
        record.ttft("sent"),
        fmean(gaps) if gaps else None,
        max(gaps, default=None),
        record.e2e("sent"),
        None if line is None else line.scheduled,
        None if line is None or line.scheduled is None else line.scheduled - line.arrival,
        record.num_tokens,
    )


def error_band(on: Deployment) -> Html:
    """One line: whose constants a simulation rests on, and how far they were from real measurements."""
    fitted = on.profile.provenance.get("held_out_error")
    if band := band_of(on.profile, on.model, on.placement):
        told = f"step-time constants of {on.profile.provenance['stack']}, scaled to this card. {band.line}"
    elif fitted:
        told = f"constants of a stack without CUDA graphs, in the median {fitted['all']['median_percent']:g}% off "
        told += f"on {fitted['all']['steps']} steps they had not seen"
    else:
        told = "constants that haven't been compared with measurements"
    words = f"Simulated on {on.placement.tp} x {on.profile.hardware.name}: {told}."
    link = f'<a href="{ALL_ERRORS}">All comparisons</a>'
    return Html(f"<p><em>{escape(words)}</em> {link}</p>", words)
