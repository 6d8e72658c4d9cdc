"""What lesson 11 plays: the knee on this machine and at 70B, bounds on paper, and a worksheet of replicas."""

import functools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.lab import Lab
from course.lab.prices import gpu_price
from course.lab.run import Run, itl_of, percentile
from course.lab.scale import enough, is_short
from course.lab.slo import attainment
from course.lab.speculation_gain import emitted
from course.lab.style import number
from course.lab.texts import CHAT_QUESTIONS
from course.lab.waiting import with_progress
from course.lab.workloads import LabWorkload, PromptArrival, document
from course.lessons.lesson_11 import fleet
from course.simulator.capacity.plan import worksheet_for
from course.simulator.capacity.worksheet import CapacityPlan, plan_capacity
from course.simulator.cost.hardware import find_hardware
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import AllAtOnce
from course.summary import SLO
from minillm.core.brief import brief

GPUS = 4
"""In a replica of 70B."""
SMALL, SMALL_GPUS = "llama-3.1-8b", 1

# ---------------------------------------------------------------- the knee at 70B

SLOTS = (8, 16, 24, 32, 48, 64, 96, 128, 256)


@dataclass(frozen=True)
class SlotsPoint:
    """One setting of max_num_seqs, and what came of it. Seconds, and rates per second."""

    slots: int
    throughput: float
    ttft: float
    """p99."""
    tpot: float
    """p99."""
    goodput: float
    in_time: float
    """Share of the requests that met every limit."""
    preemptions: int = 0


@dataclass(frozen=True)
class Sweep:
    """The same traffic, one setting after the other."""

    points: tuple[SlotsPoint, ...]
    slo: SLO
    rate: float
    """Requests per second that came."""
    room: float | None = None
    """Requests of this traffic whose KV fits at once; None = not known."""

    __repr__ = brief

    @property
    def best(self) -> SlotsPoint:
        """The smallest setting with the highest goodput, give or take a hundredth."""
        most = max(point.goodput for point in self.points)
        return next(point for point in self.points if point.goodput >= 0.99 * most)

    def at(self, slots: float) -> SlotsPoint:
        return min(self.points, key=lambda point: abs(point.slots - slots))


def sweep(
    prompt: int = 1500,
    answer: int = 150,
    load: float = 0.8,
    *,
    stack: str = fleet.STACKS[0],
    tp: int = 4,
    slo: SLO = fleet.LIMITS,
    slots: Sequence[int] = SLOTS,
    count: int = 240,
) -> Sweep:
    """Play the same arrivals to 70B under every setting.

    Args:
        load: arrivals as a share of what it can serve with many slots.
    Raises:
        PricingError: the model does not fit on so many GPUs.
    """
    traffic = fleet.asking(prompt, answer)
    rate = load * fleet.capacity(traffic, stack=stack, tp=tp)
    found = []
    for each in slots:
        run = fleet.served(traffic, rate, count, stack=stack, tp=tp, max_num_seqs=each)
        latencies, kept = (run.p("ttft", 99), run.p("tpot", 99)), (run.goodput(slo), run.attainment(slo))
        found.append(SlotsPoint(each, run.throughput, *latencies, *kept, run.preemptions))
    on = fleet.deployment(stack, tp=tp)
    return Sweep(tuple(found), slo, rate, simulated_70b.room_tokens(on) / (prompt + answer))


@dataclass(frozen=True)
class LoadTestPoint:
    """A load test: so many clients, each of whom asks again as soon as it has its answer."""

    clients: int
    throughput: float
    ttft: float
    """p99, seconds."""


def load_tests(clients: Sequence[int] = (4, 8, 16, 32, 64, 128), stack: str = fleet.STACKS[0]) -> list[LoadTestPoint]:
    """More and more clients in a closed loop, and slots for all of them."""
    found = []
    for each in clients:
        traffic = fleet.asking(1500, 150)
        run = fleet.served(traffic, AllAtOnce(), 5 * each + 40, in_flight=each, stack=stack, max_num_seqs=max(clients))
        found.append(LoadTestPoint(each, *_steady(run, each)))
    return found


def _steady(run: fleet.Served, clients: int) -> tuple[float, float]:
    """Throughput and TTFT p99 of a closed loop, after the first rush and before the clients run out."""
    since = min(run.sent[clients:])
    waits = [ttft for ttft in run.ttft[clients:] if not math.isnan(ttft)]
    return run.tokens_per_s(since, max(run.until, since + 1e-9)), percentile(waits, 99)


# ---------------------------------------------------------------- the knee on this machine

REAL_SLOTS, SHORT_SLOTS = (1, 2, 4, 8, 16), (1, 2, 8)
LOAD = 0.75
"""Share of what the engine serves with all slots: enough spare time for bursts to drain."""


def mixed(count: int, answer: int) -> list[tuple[str, int]]:
    """Short questions, every third behind a paragraph; none of them alike."""
    rng = random.Random(11)
    asked = []
    for i in range(count):
        text = f"({i}) {CHAT_QUESTIONS[i % len(CHAT_QUESTIONS)]}"
        asked.append((f"{document(rng, 2)}\n\n{text}" if i % 3 == 2 else text, answer))
    return asked


def sized(lab: Lab) -> tuple[int, int]:
    """Requests, and tokens of an answer."""
    return (16, 16) if lab.scale == 1 else (8, 8)


def together(lab: Lab) -> LabWorkload:
    """All at the same moment: the engine is never idle."""
    return LabWorkload(
        "all at once", "Mixed questions.", tuple(PromptArrival(0.0, text, n) for text, n in mixed(*sized(lab)))
    )


def one_by_one(lab: Lab, rate: float) -> LabWorkload:
    """The same questions at random moments, so many a second on average."""
    rng, moment, arrivals = random.Random(5), 0.0, []
    for text, tokens in mixed(*sized(lab)):
        arrivals.append(PromptArrival(moment, text, tokens))
        moment += rng.expovariate(rate)
    return LabWorkload(f"{number(rate)} a second", "Mixed questions, at random moments.", tuple(arrivals))


@dataclass(frozen=True)
class RealKnee:
    """The same arrivals on this machine under one max_num_seqs after the other."""

    runs: Mapping[int, Run]
    rate: float

    __repr__ = brief

    @property
    def limits(self) -> SLO:
        """What this machine could keep: four times its best median TTFT, and twice its best median TPOT."""
        ttft = min(percentile(run.ttft, 50) for run in self.runs.values())
        tpot = min(percentile(_tpots(run), 50) for run in self.runs.values())
        return SLO(ttft=4 * ttft, tpot=2 * tpot)

    @property
    def sweep(self) -> Sweep:
        slo = self.limits
        return Sweep(tuple(_point(slots, run, slo) for slots, run in self.runs.items()), slo, self.rate)


def _tpots(run: Run) -> list[float]:
    gaps = [itl_of(view) for view in run.finished]
    return [sum(each) / len(each) for each in gaps if each]


def _point(slots: int, run: Run, slo: SLO) -> SlotsPoint:
    in_time = attainment(run, slo)
    return SlotsPoint(
        slots,
        run.throughput,
        percentile(run.ttft, 99),
        percentile(_tpots(run), 99),
        in_time * len(run.rows) / run.duration,
        in_time,
        run.snapshot.num_preemptions,
    )


def real_knee(lab: Lab) -> RealKnee:
    """Measures what the engine can do with all slots, then offers most of that to every setting."""
    slots = REAL_SLOTS if lab.scale == 1 else SHORT_SLOTS
    full = lab.run(together(lab), max_num_seqs=slots[-1], enable_prefix_caching=False)
    rate = LOAD * len(full.finished) / full.duration
    arrivals = one_by_one(lab, rate)
    runs = {
        each: lab.run(arrivals, max_num_seqs=each, enable_prefix_caching=False)
        for each in with_progress(slots, "the real engine, setting by setting")
    }
    return RealKnee(runs, rate)


# ---------------------------------------------------------------- one replica, on paper


@dataclass(frozen=True)
class Ask:
    """What is wanted of one replica of 70B."""

    qps: float = 100.0
    prompt: int = 1500
    answer: int = 150
    slots: int = 64
    gpus: int = 4
    stack: str = fleet.STACKS[0]

    @property
    def on(self) -> Deployment:
        return fleet.deployment(self.stack, tp=self.gpus, max_num_seqs=self.slots)

    @property
    def params(self) -> float:
        """Weights that a prompt token goes through. The output head is left out: it reads only the last token."""
        return self.on.model.layer_params

    @property
    def flops_of_prompt(self) -> float:
        """Two for each weight and token; attention comes on top, and is little at such lengths."""
        return 2 * self.params * self.prompt

    @property
    def flops(self) -> float:
        """FLOPs of a whole request: prompt and answer."""
        return 2 * self.params * (self.prompt + self.answer)

    @property
    def peak(self) -> float:
        """FLOP/s of all GPUs on the data sheet, dense, 16 bits."""
        return self.gpus * find_hardware(simulated_70b.HARDWARE).peak_flops("bfloat16")

    @property
    def share_reached(self) -> float:
        """Share of the peak that large matrix products reach: fitted, or typical."""
        return self.on.profile.constants.mfu

    @property
    def shortest_stay(self) -> float:
        """Seconds that a lone request keeps a slot: no request is quicker in a full batch."""
        first = simulated_70b.prefill_seconds(self.on, self.prompt)
        further = simulated_70b.decode_seconds(self.on, 1, self.prompt + self.answer / 2)
        return first + (self.answer - 1) * further

    @property
    def room(self) -> float:
        """Requests whose KV fits at once."""
        return simulated_70b.room_tokens(self.on) / (self.prompt + self.answer)

    def bounds(self) -> dict[str, float]:
        """Requests per second: what each resource alone would allow, then what a simulation served."""
        traffic = fleet.asking(self.prompt, self.answer)
        return {
            "arithmetic, at the data sheet's FLOP/s": self.peak / self.flops,
            f"arithmetic, at {self.share_reached:.0%} of that": self.share_reached * self.peak / self.flops,
            f"{self.slots} slots": self.slots / self.shortest_stay,
            "KV memory": self.room / self.shortest_stay,
            "all of these together, simulated": fleet.capacity(
                traffic, self.stack, tp=self.gpus, max_num_seqs=self.slots
            ),
        }


def a_hundred(qps: float = 100.0, slots: int = 64) -> fleet.Served:
    """100 requests a second of 1500 + 150 tokens to one replica of 70B on four H100s, for a while."""
    return fleet.served(fleet.asking(1500, 150), qps, 1600, max_num_seqs=slots)


def served_share(run: fleet.Served, qps: float) -> float:
    """Requests served per second while others were queued, over those that came."""
    return fleet.requests_per_s(run) / qps


# ---------------------------------------------------------------- the worksheet

WORKSHEET_REQUESTS = 500
WORKSHEET_TARGET = 0.95


@dataclass(frozen=True)
class Filled:
    """A worksheet with its answers, and what was put in."""

    found: CapacityPlan
    hardware: str
    gpus: int
    """In a replica."""
    headroom: float
    """Share of the knee that stays unused."""
    price: float | None
    """Dollars for a GPU and hour as given; None = the catalogue's."""


@functools.lru_cache(maxsize=32)
def plan(
    qps: float = 100.0,
    prompt: int = 1500,
    answer: int = 150,
    ttft: float = 2.0,
    tpot: float = 0.05,
    *,
    hardware: str = "h100-sxm",
    gpus: int = 4,
    slots: int = fleet.SLOTS,
    headroom: float = 0.2,
    price: float | None = None,
    stack: str = fleet.STACKS[0],
    requests: int = WORKSHEET_REQUESTS,
) -> Filled:
    """The worksheet of 70B, filled in by simulation.

    Args:
        price: dollars for a GPU and hour; None = the catalogue's.
        requests: in each simulated run: few, so that it answers in seconds.
    Raises:
        MinillmError: such a replica cannot be, or no number of them meets the SLO.
    """
    on = fleet.deployment(stack, profile=hardware, tp=gpus, max_num_seqs=slots)
    sheet = worksheet_for(
        on.without_prefix_lookups(),
        fleet.asking(prompt, answer),
        SLO(ttft=ttft, tpot=tpot),
        target=WORKSHEET_TARGET,
        num_requests=enough(requests, 80),
    )
    per_hour = gpus * (gpu_price(hardware) if price is None else price)
    found = plan_capacity(sheet, qps, price_per_hour=per_hour, headroom=headroom, try_out=False)
    return Filled(found, hardware, gpus, headroom, price)


def waterfall_stages(ask: Ask, headroom: float) -> dict[str, float]:
    """Requests per second of one replica, after each step."""
    *_, simulated = ask.bounds().values()
    flops = ask.peak / ask.flops
    knee = plan(ask.qps, ask.prompt, ask.answer, gpus=ask.gpus, headroom=headroom).found.knee
    return {
        "the data sheet's FLOP/s": flops,
        "what matrix products reach": flops * ask.share_reached,
        "+ weights, links, launches (simulated)": simulated,
        "within the SLO (the knee)": knee,
        f"less {headroom:.0%} headroom": knee * (1 - headroom),
    }


# ---------------------------------------------------------------- small experiments, for the ledger

OVERLOAD_QPS = 9.0


def two_models() -> tuple[fleet.Served, fleet.Served, float]:
    """70B and 8B on the same four GPUs, under more than 70B can do."""
    asked = fleet.asking(1500, 150)
    runs = (fleet.served(asked, OVERLOAD_QPS, 300, model=model) for model in (fleet.MODEL, SMALL))
    return *runs, OVERLOAD_QPS


KNEE_COUNT = 960
"""Requests of a sweep that a verdict rests on: with 240, the best setting is another one for every second seed."""


def knees() -> dict[str, Sweep]:
    """Four kinds of traffic; the first and the last in the short form."""
    kinds = {
        "1500 + 150 tokens, load 80%": (1500, 150, 0.8),
        "1500 + 150, load 90%": (1500, 150, 0.9),
        "500 + 150, load 80%": (500, 150, 0.8),
        "4000 + 150, load 80%": (4000, 150, 0.8),
    }
    names = [*kinds]
    if is_short():
        names = [names[0], names[-1]]
    return {name: sweep(*kinds[name], count=KNEE_COUNT) for name in with_progress(names, "simulating knees")}


def knee_rate() -> float:
    """Requests per second that one 70B serves within the SLO, of A16's traffic."""
    return plan().found.knee


# ---------------------------------------------------------------- rollouts: a job that ends with its longest answer

ROLLOUT_PROMPT, ROLLOUT_MEDIAN, ROLLOUT_LONGEST = 500, 2000, 16_000
"""Tokens: of each prompt, of the usual answer, and where an answer is cut off."""
ACCEPTED, DRAFTED = 0.7, 4
"""Speculation that may help the tail: its acceptance, and tokens of a draft that costs nothing."""


@dataclass(frozen=True)
class Rollouts:
    """Answers that one replica of an 8B generates for a training step. All begin together."""

    lengths: tuple[int, ...]
    """Tokens, ascending."""
    speculates: bool = False

    @classmethod
    def drawn(cls, count: int, spread: float, speculates: bool = False) -> "Rollouts":
        """Lengths whose logarithm has this standard deviation."""
        draw = random.Random(0)
        found = (ROLLOUT_MEDIAN * draw.lognormvariate(0, spread) for _ in range(count))
        return cls(tuple(sorted(min(ROLLOUT_LONGEST, round(each)) for each in found)), speculates)

    def timeline(self) -> list[tuple[float, int]]:
        """When the number still running falls, seconds, and to what."""
        now, before, running = 0.0, 0, len(self.lengths)
        found = [(0.0, running)]
        for length in self.lengths:
            now += (length - before) * self.token_s(running, ROLLOUT_PROMPT + (before + length) / 2)
            before, running = length, running - 1
            found.append((now, running))
        return found

    def token_s(self, batch: int, context: float) -> float:
        """Seconds in which each running one gets a token. Speculation is used where it's faster."""
        price = small_replica().step_time().price
        plain = price(simulated_70b.decode_work(batch, context)).total
        if not self.speculates:
            return plain
        verify = price(simulated_70b.decode_work(batch, context, DRAFTED + 1)).total
        return min(plain, verify / emitted(ACCEPTED, DRAFTED))

    def done_s(self, share: float = 1.0) -> float:
        """Seconds until this share of the answers is complete."""
        return self.timeline()[round(share * len(self.lengths))][0]


@functools.cache
def small_replica() -> Deployment:
    return fleet.deployment(model=SMALL, tp=SMALL_GPUS)
