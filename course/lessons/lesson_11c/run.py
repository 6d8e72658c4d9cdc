"""What lesson 11c plays and prices: a missed SLO mended, hardware, tokens, routing, adapters."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course.lab import simulated_70b
from course.lab.prices import gpu_price
from course.lab.scale import enough, is_short
from course.lab.waiting import with_progress
from course.lessons.lesson_06 import simulated
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11.run import GPUS, SMALL, SMALL_GPUS
from course.simulator.cost.lora import Lora
from course.simulator.deployment import Deployment
from course.simulator.energy import Energy, energy_of
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.requests import make_workload
from course.summary import SLO
from minillm.core.brief import brief

# ---------------------------------------------------------------- a missed SLO: replicas, or one field

TARGET = 0.99
"""Share of the requests that must be in time."""
REPLICAS = (1, 2, 3, 4)
HOURS_A_DAY = 24


@dataclass(frozen=True)
class MissedSlo:
    """An SLO that is missed, and the field that is proposed."""

    name: str
    about: str
    change: str
    prompt: int
    answer: int
    qps: float
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    slo: SLO = fleet.LIMITS

    def run(self, replicas: int, changed: bool) -> fleet.Served:
        fields = self.after if changed else self.before
        return fleet.served(fleet.asking(self.prompt, self.answer), self.qps, 400, replicas=replicas, **fields)

    def enough(self, changed: bool) -> int | None:
        """The fewest replicas that meet the SLO; None = none of those that were tried."""
        return next((n for n in REPLICAS if self.run(n, changed).attainment(self.slo) >= TARGET), None)


TROUBLES = {
    each.name: each
    for each in (
        MissedSlo(
            "too few slots",
            "max_num_seqs was set long ago and is too small for this traffic.",
            "max_num_seqs 16 → 64",
            prompt=1500,
            answer=150,
            qps=3.5,
            before={"max_num_seqs": 16},
            after={"max_num_seqs": 64},
        ),
        MissedSlo(
            "too much work",
            "More prompt tokens arrive than the GPUs can process.",
            "max_num_seqs 64 → 256",
            prompt=1500,
            answer=150,
            qps=12.0,
            before={"max_num_seqs": 64},
            after={"max_num_seqs": 256},
        ),
        MissedSlo(
            "slow even when idle",
            "No CUDA graphs: each step waits for the host (vLLM's enforce_eager, left on after a debugging session).",
            "CUDA graphs on",
            prompt=500,
            answer=150,
            qps=0.5,
            before={"stack": fleet.STACKS[1]},
            after={"stack": fleet.STACKS[0]},
            slo=SLO(ttft=2.0, tpot=0.028),
        ),
    )
}


@dataclass(frozen=True)
class Bill:
    """One way to serve it."""

    replicas: int
    attainment: float
    per_hour: float
    per_million: float
    """Dollars per million output tokens that were really written."""


def bill(trouble: MissedSlo, replicas: int, changed: bool, price: float) -> Bill:
    """Args: price: dollars for a GPU and an hour."""
    run = trouble.run(replicas, changed)
    per_hour = replicas * GPUS * price
    per_million = 1e6 * per_hour / (3600 * run.throughput)
    return Bill(replicas, run.attainment(trouble.slo), per_hour, per_million)


# ---------------------------------------------------------------- hardware, for few requests a day

RARE_PROMPT, RARE_ANSWER = 500, 300
ARTICLE_GAIN = 1.4
FEW_A_DAY = 1000
DAY_S = 86400.0


@dataclass(frozen=True)
class GpuOption:
    """One way to serve 70B few requests. Seconds; dollars; requests per second."""

    name: str
    ttft: float
    tpot: float
    e2e: float
    """Medians when a thousand requests come in a day."""
    capacity: float
    per_day: float

    @property
    def load(self) -> float:
        """Share of its capacity that a thousand requests a day use."""
        return FEW_A_DAY / DAY_S / self.capacity


GPU_OPTIONS: dict[str, dict[str, Any]] = {
    "four A100s, bf16": {"profile": "a100-80gb", "tp": 4},
    "four H100s, bf16": {"profile": "h100-sxm", "tp": 4},
    "one H100, int4 (a setting)": {"profile": "h100-sxm", "tp": 1, "quantization": "int4"},
    "one A100, int4 (a setting)": {"profile": "a100-80gb", "tp": 1, "quantization": "int4"},
}


def gpu_option(name: str) -> GpuOption:
    """One of OPTIONS, simulated."""
    fields = GPU_OPTIONS[name]
    traffic = fleet.asking(RARE_PROMPT, RARE_ANSWER)
    rare = Poisson(rate=FEW_A_DAY / DAY_S)
    run = fleet.served(traffic, rare, 60, **fields)
    most = fleet.capacity(traffic, **{**fields, "max_num_seqs": 64})
    per_day = HOURS_A_DAY * fields["tp"] * gpu_price(fields["profile"])
    return GpuOption(name, run.p("ttft", 50), run.p("tpot", 50), run.p("e2e", 50), most, per_day)


def gpu_options() -> dict[str, GpuOption]:
    return {name: gpu_option(name) for name in with_progress(GPU_OPTIONS, "simulating hardware")}


# ---------------------------------------------------------------- dollars per million tokens, from capacity

REGIMES = {
    "chat, 1,500 in, 150 out": (1500, 150),
    "RAG, 6,000 in, 200 out": (6000, 200),
    "batch summaries, 4,000 in, 500 out": (4000, 500),
}
"""Tokens of prompt and answer, by kind of traffic; a reasoning model's is added to them."""
REASONING, REASONING_SHORT = 8000, 2000
"""Tokens that a reasoning model writes: usually, and in the short form."""


def reasoning_tokens() -> int:
    """Tokens that a reasoning model writes."""
    return REASONING_SHORT if is_short() else REASONING


@dataclass(frozen=True)
class Regime:
    """One kind of traffic on one replica that is always full."""

    prompt: int
    answer: int
    rate: float
    """Requests per second."""
    prefill_share: float
    """Share of a replica's time that prompts take."""
    slots: int = fleet.SLOTS
    """Requests that run at a time: as many as there are slots, or as fit into KV memory at their full length."""

    def per_request(self, rent: float) -> float:
        return rent / 3600 / self.rate

    def input_price(self, rent: float) -> float:
        """Dollars per million prompt tokens: the rent of the time that prefill takes."""
        return 1e6 * self.per_request(rent) * self.prefill_share / self.prompt

    def output_price(self, rent: float) -> float:
        return 1e6 * self.per_request(rent) * (1 - self.prefill_share) / self.answer


@functools.cache
def regimes() -> dict[str, Regime]:
    """All four, at capacity."""
    on = fleet.deployment()
    found = {}
    reasoning = {f"reasoning, 800 in, {reasoning_tokens():,} out": (800, reasoning_tokens())}
    for name, (prompt, answer) in (REGIMES | reasoning).items():
        traffic = fleet.asking(prompt, answer, spread=False)
        slots = min(fleet.SLOTS, int(simulated_70b.room_tokens(on) / (prompt + answer)))  # more would be preempted
        rate = fleet.capacity(traffic, max_num_seqs=slots)
        prefill = simulated_70b.prefill_seconds(on, prompt)
        found[name] = Regime(prompt, answer, rate, min(rate * prefill, 1.0), slots)
    return found


# ---------------------------------------------------------------- watts

LOADS = (0.25, 0.5, 0.9)
"""Load, as a share of a replica's capacity."""
BOARDS: dict[str, dict[str, Any]] = {
    "four H100s": {"profile": "h100-sxm", "tp": GPUS},
    "two B200s": {"profile": "b200", "tp": 2},
}
KWH = 3.6e6
"""Joules."""


@dataclass(frozen=True)
class Metered:
    """A replica's draw under a chat load."""

    name: str
    gpus: int
    load: float
    output_tokens_per_s: float
    energy: Energy

    @property
    def kwh_per_million(self) -> float:
        """Joules per output token; prompts and idle time are in it."""
        return 1e6 * self.energy.joules_per_output_token / KWH


@functools.cache
def metered() -> tuple[Metered, ...]:
    """Chats on each kind of board, at each load."""
    traffic, found = fleet.asking(*REGIMES["chat, 1,500 in, 150 out"]), []
    for name, fields in BOARDS.items():
        on = fleet.deployment(**fields)
        for load in LOADS:
            rate = load * fleet.capacity(traffic, **fields)
            # So many that what runs out at the end, at a small batch, is little of it.
            asked = make_workload(traffic, Poisson(rate=rate), num_requests=enough(1200, fleet.LEAST))
            run = simulated_70b.play(on, asked)
            energy = energy_of(on, run)
            assert energy is not None, "what these boards draw has been measured"
            found.append(Metered(name, fields["tp"], load, simulated_70b.tokens_per_s(run), energy))
    return tuple(found)


# ---------------------------------------------------------------- a small model for easy requests

ROUTED_PROMPT, ROUTED_ANSWER = 1500, 150


def cost_of(model: str, gpus: int, price: float) -> float:
    """Dollars for a request, on a replica that is always full."""
    per_second = fleet.capacity(fleet.asking(ROUTED_PROMPT, ROUTED_ANSWER), model=model, tp=gpus)
    return gpus * price / 3600 / per_second


@dataclass(frozen=True)
class Route:
    """Who is easy, how often the router is wrong, and who notices. Shares of 1; dollars for one request."""

    small: float
    large: float
    easy: float = 0.7
    caught: float = 1.0
    """Share of the hard requests at the small model whose answer is found wrong, and asked of the large one."""
    harm: float = 0.0
    """What an uncaught wrong answer costs: a support call, a lost sale, a bug."""

    def routed(self, wrong: float) -> float:
        """Mean dollars for a request when this share is taken for the other kind."""
        to_small = self.easy * (1 - wrong) + (1 - self.easy) * wrong
        to_large = 1 - to_small
        missed = (1 - self.easy) * wrong
        again = missed * self.caught * self.large
        return to_small * self.small + to_large * self.large + again + missed * (1 - self.caught) * self.harm

    @property
    def break_even(self) -> float | None:
        """The misroute rate at which routing stops paying; None = it pays at any up to 1. 0 = it never does."""
        at_zero, at_one = self.routed(0.0) - self.large, self.routed(1.0) - self.large  # linear in between
        if at_zero >= 0:
            return 0.0
        return None if at_one <= 0 else at_zero / (at_zero - at_one)


@dataclass(frozen=True, eq=False)
class PlayedRouting:
    """Routing, played: E2E and TTFT in seconds, a row a request."""

    e2e: Sequence[float]
    ttft: Sequence[float]
    twice: Sequence[bool]
    """Hard requests that the small model was asked first."""

    __repr__ = brief


@functools.lru_cache(maxsize=32)
def play_routing(wrong: float) -> PlayedRouting:
    """One large replica under nine tenths of what it could do alone, and a small model beside it for the easy 70%.

    Args:
        wrong: misroute rate; below 0 = no routing at all.
    """
    traffic = fleet.asking(ROUTED_PROMPT, ROUTED_ANSWER)
    rate = 0.9 * fleet.capacity(traffic)
    workload = make_workload(traffic, Poisson(rate=rate), num_requests=enough(400, fleet.LEAST))
    small = fleet.deployment(model=SMALL, tp=SMALL_GPUS, max_num_seqs=fleet.SLOTS)
    routing = {"easy_share": 0.7, "misroute_rate": wrong} if wrong >= 0 else None
    run = simulated_70b.play(fleet.deployment(max_num_seqs=fleet.SLOTS), workload, small, model_routing=routing)
    ended = [r for r in run.records if r.completed]
    # Another model had it first: this one's engine saw it much later than its client sent it.
    again = [r.misrouted and r.replica.startswith("main") and r.timeline.arrival - r.intended > 0.1 for r in ended]
    return PlayedRouting([r.e2e() for r in ended], [r.ttft() for r in ended], again)


def routing_runs(price: float) -> tuple[Route, Route, PlayedRouting, PlayedRouting, PlayedRouting]:
    """Money and time of routing. Price: dollars for a GPU and hour."""
    small, large = cost_of(SMALL, SMALL_GPUS, price), cost_of(fleet.MODEL, GPUS, price)
    return (
        Route(small, large),
        Route(small, large, caught=0.5, harm=30 * large),
        *(play_routing(w) for w in (-1.0, 0.0, 0.3)),
    )


# ---------------------------------------------------------------- many fine-tunes: LoRA adapters over one base

ADAPTER_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ADAPTER_CONTEXT = 1000
ADAPTER_BASES = {"Llama-3.1 8B on one H100": ("llama-3.1-8b", 1), "Llama-3 70B on four H100s": ("llama-3-70b", 4)}


def with_adapters(model: str, adapters: int = 0, rank: int = 16) -> Deployment:
    """The model, with so many adapters in memory. Raises PricingError: they don't fit."""
    name, tp = ADAPTER_BASES[model]
    lora = Lora(adapters=adapters, rank=rank) if adapters else Lora()
    return simulated_70b.deployment(model=name, tp=tp, max_num_seqs=256, lora=lora)


def itl_with_adapters(model: str, batch: int, adapters: int = 0, rank: int = 16) -> float:
    """Seconds of a decode step, when each request is as likely to use one adapter as another."""
    return simulated.price(with_adapters(model, adapters, rank), batch, ADAPTER_CONTEXT).itl
