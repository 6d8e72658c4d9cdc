"""The same questions at 70B: the unchanged scheduler on simulated hardware, many more requests, no noise.

Everything is cached: moving a handle back costs nothing.
"""

import functools
from collections.abc import Sequence
from typing import Any

from course.lab import simulated_70b
from course.lab.lesson_02.visits import Visit, mean, visits_of, waits
from course.lab.run import percentile
from course.lab.scale import enough
from minillm.simulate.cluster.clients import ClientConfig
from minillm.simulate.cluster.run import FleetRun
from minillm.simulate.workload.arrivals import AllAtOnce, Arrivals, Gamma, Poisson
from minillm.simulate.workload.kinds import AZURE_CHAT, Independent, TrafficModel
from minillm.simulate.workload.lengths import Fixed, LogNormal
from minillm.simulate.workload.requests import make_workload, merge

ONE_TOKEN = Independent(prompt=Fixed(tokens=200), output=Fixed(tokens=1))
CHAT = Independent(
    prompt=LogNormal(median=300, sigma=0.6, high=2000), output=LogNormal(median=100, sigma=0.7, high=800)
)
"""Lighter than Azure's chat trace, so that a slider answers in a moment."""
LONG_PROMPTS = Independent(prompt=Fixed(tokens=4000), output=Fixed(tokens=4))
SHORT_ONES = Independent(prompt=Fixed(tokens=200), output=Fixed(tokens=60))
LONG_ONES = Independent(prompt=Fixed(tokens=6000), output=Fixed(tokens=60))
LONG = 4000
"""Tokens: a longer prompt is a long one."""
PATIENCE_S = 10.0
"""A client leaves when it has seen nothing for so long."""
IN_TIME_S = 2.0
"""The promise: a first token within two seconds."""


A_LINE = 160
"""Requests without which no line has time to grow."""


@functools.lru_cache(maxsize=256)
def _served(traffic: TrafficModel, arrivals: Arrivals, count: int, seed: int, fields: tuple) -> FleetRun:
    return simulated_70b.play(
        simulated_70b.deployment(**dict(fields)), make_workload(traffic, arrivals, num_requests=count, seed=seed)
    )


def serve(
    traffic: TrafficModel, arrivals: Arrivals, count: int = 300, seed: int = 0, least: int = 20, **fields: Any
) -> FleetRun:
    """One replica of Llama-3 70B under this traffic.

    Args:
        least: requests, even in the short form.
        fields: as of `simulated_70b.deployment`.
    """
    return _served(traffic, arrivals, enough(count, least), seed, tuple(sorted(fields.items())))


@functools.lru_cache(maxsize=256)
def capacity(traffic: TrafficModel, count: int = 300, **fields: Any) -> float:
    """Requests a second when nobody is ever missing: over the middle of a run in which all come at once, so that
    neither the filling of the seats nor the last long answers count.
    """
    return simulated_70b.steady_rate(visit.left for visit in visits_of(serve(traffic, AllAtOnce(), count, **fields)))


def at_load(traffic: TrafficModel, load: float, count: int = 300, cv: float = 1.0, **fields: Any) -> FleetRun:
    """Random arrivals at this share of its capacity; with cv above 1 they come in clumps."""
    rate = load * capacity(traffic, **fields)
    return serve(traffic, Poisson(rate=rate) if cv == 1 else Gamma(rate=rate, cv=cv), count, **fields)


def one_seat_curve(loads: Sequence[float] = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)) -> tuple[list[float], list[float]]:
    """Loads, and the mean wait in service times with one seat and equal requests."""
    fields = {"max_num_seqs": 1}
    service = 1 / capacity(ONE_TOKEN, 100, **fields)
    runs = [serve(ONE_TOKEN, Poisson(rate=load / service), 1500, **fields) for load in loads]
    return list(loads), [mean(waits(visits_of(run))) / service for run in runs]


def many_seats_curves(
    seats: Sequence[int] = (8, 32), loads: Sequence[float] = (0.5, 0.7, 0.85, 0.95, 1.1, 1.25)
) -> dict[int, list[tuple[float, float]]]:
    """By seats: (load, p99 of the wait in seconds) of chats."""
    return {
        n: [(load, percentile(waits(visits_of(at_load(CHAT, load, 300, max_num_seqs=n))), 99)) for load in loads]
        for n in seats
    }


# ---------------------------------------------------------------- order

ORDERS = {
    "first come": {},
    "shortest first": {"scheduling_order": "shortest_prompt"},
    "two lanes": {"scheduling_order": "two_lane", "two_lane_threshold": LONG},
    "priority to short": {"scheduling_order": "priority"},
    "limit on prompts": {"max_prompt_tokens": LONG},
}
"""Who is next. With a limit, long prompts are turned away."""
ORDER_SLOTS = 16
ALL_NEARLY_AT_ONCE = 1000.0
"""Requests a second."""


@functools.lru_cache(maxsize=64)
def ordered(order: str, load: float, count: int = 300) -> tuple[Visit, ...]:
    """One long prompt among ten, under one of ORDERS."""
    return tuple(visits_of(_mixed(load, enough(count, A_LINE), **ORDERS[order])))


def _mixed(load: float, count: int, **fields: Any) -> FleetRun:
    """One long prompt among ten, at a share of what first come first served can do."""
    return _short_and_long(load * _mixed_capacity(count), count, **fields)


def _short_and_long(rate: float, count: int, **fields: Any) -> FleetRun:
    shorts = make_workload(SHORT_ONES, Poisson(rate=rate * 0.9), num_requests=round(count * 0.9), name="short")
    longs = make_workload(LONG_ONES, Poisson(rate=rate * 0.1), num_requests=count - round(count * 0.9), name="long")
    on = simulated_70b.deployment(**{"max_num_seqs": ORDER_SLOTS, **fields})
    return simulated_70b.play(on, merge("short and long", shorts, longs.with_priority(1)))


@functools.lru_cache(maxsize=4)
def _mixed_capacity(count: int) -> float:
    return simulated_70b.steady_rate(visit.left for visit in visits_of(_short_and_long(ALL_NEARLY_AT_ONCE, count)))


# ---------------------------------------------------------------- the queue limit

LIMIT_SLOTS = 16
CLUMPS = 3.0
"""Coefficient of variation of the gaps, for arrivals in clumps; 1 = independent people."""


@functools.lru_cache(maxsize=128)
def with_queue_limit(load: float, limit: int | None, cv: float = 1.0, patience: float | None = PATIENCE_S) -> FleetRun:
    """Chats, some clients lose patience; a server that lets so many wait and refuses the rest.

    Args:
        limit: max_queue_len; None = everybody may wait.
        patience: seconds until a client that has seen no token gives up; None = never.
    """
    count, rate = enough(400, A_LINE), load * capacity(CHAT, max_num_seqs=LIMIT_SLOTS)
    arrivals = Poisson(rate=rate) if cv == 1 else Gamma(rate=rate, cv=cv)
    on = simulated_70b.deployment(max_num_seqs=LIMIT_SLOTS, **({"max_queue_len": limit} if limit else {}))
    clients = ClientConfig(first_byte_timeout_s=patience)
    return simulated_70b.play(on, make_workload(CHAT, arrivals, num_requests=count), clients=clients)


def outcomes(run: FleetRun) -> dict[str, int]:
    """Requests answered in time, answered late, given up on, and refused."""
    found = dict.fromkeys(("in time", "late", "gave up", "refused"), 0)
    for visit in visits_of(run):
        found[visit.ending if visit.ending != "answered" else "in time" if visit.ttft <= IN_TIME_S else "late"] += 1
    return found


# ---------------------------------------------------------------- what the claims need


CASES = {
    "seats are short (4 H100s, 32 seats, chat)": (CHAT, {"tp": 4, "max_num_seqs": 32}),
    "bytes are short (4 H200s, 8 seats, chat)": (CHAT, {"profile": "h200", "tp": 4, "max_num_seqs": 8}),
    "arithmetic is short (4 H100s, 4000-token prompts)": (LONG_PROMPTS, {"tp": 4, "max_num_seqs": 32}),
    "memory is short (2 H100s, chat)": (CHAT, {"tp": 2, "max_num_seqs": 256}),
}
"""What capacity is short of, in four servers whose queue is about to grow without end."""


def quantized_waits() -> dict[str, dict[str, float]]:
    """By case: the mean wait in seconds with weights in bf16, int8 (widened before they are multiplied) and fp8, on the
    same arrivals, which are 1.15 times what bf16 can serve.
    """
    found = {}
    for name, (traffic, fields) in CASES.items():
        rate = 1.15 * capacity(traffic, **fields)
        found[name] = {
            weights: mean(waits(visits_of(serve(traffic, Poisson(rate=rate), 240, least=A_LINE, **fields, **changed))))
            for weights, changed in {
                "bf16": {}, "int8": {"quantization": "int8"}, "fp8": {"quantization": "fp8"},
            }.items()
        }  # fmt: skip
    return found


def throughput(traffic: TrafficModel, count: int, **fields: Any) -> float:
    """Output tokens a second when everybody comes at once."""
    run = serve(traffic, AllAtOnce(), count, **fields)
    return sum(record.num_tokens for record in run.records) / run.duration


def dynamic_gains(seats: Sequence[int] = (2, 8)) -> dict[str, dict[int, tuple[float, float]]]:
    """By traffic and seats: tokens a second of a closed batch, and of continuous batching, over one at a time."""
    equal = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=125))
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for name, traffic in {"equal answers": equal, "answers of all lengths": CHAT}.items():
        alone = throughput(traffic, 16, batching="none", max_num_seqs=1)
        found[name] = {
            n: tuple(
                throughput(traffic, 64, max_num_seqs=n, batching=way) / alone for way in ("static", "continuous")
            )
            for n in seats
        }  # fmt: skip
    return found


def tenfold(tp: int) -> dict[str, float]:
    """Output tokens a second of Azure-like chats on `tp` H100s.

    A static batch that reserves 8192 tokens for each member; continuous batching on the same seats; continuous
    batching that takes memory as it is needed, and so has more seats.
    """
    window = 8192
    room = simulated_70b.deployment(tp=tp).num_kv_blocks * 16 // window
    kept = {"tp": tp, "max_model_len": window, "kv_reservation": "max_len", "max_num_seqs": room}
    count = min(8 * room, 180)
    return {
        f"static, {room} seats": throughput(AZURE_CHAT, count, batching="static", **kept),
        f"continuous, {room} seats": throughput(AZURE_CHAT, count, **kept),
        "continuous, memory as needed": throughput(
            AZURE_CHAT,
            5 * room if room > 30 else 120,
            tp=tp,
            max_model_len=window,
            max_num_seqs=256 if room > 30 else 40,
        ),
    }


def chunks_and_limit(load: float) -> dict[str, FleetRun]:
    """Chats and one prompt of 6000 tokens among ten, with whole prompts or chunks, and with or without a limit of
    8."""
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}
    chunked, limit = {"max_num_batched_tokens": 2048}, {"max_queue_len": 8}
    ways = {"neither": whole, "chunks": chunked, "limit": {**whole, **limit}, "both": {**chunked, **limit}}
    return {name: _mixed(load, enough(300, A_LINE), **fields) for name, fields in ways.items()}


BIG_WAYS = {
    "static": {"batching": "static", "enable_chunked_prefill": False},
    "continuous": {"enable_chunked_prefill": False},
    "continuous, chunked": {"long_prefill_token_threshold": 512},
}


def three_ways(load: float = 0.7) -> dict[str, FleetRun]:
    """The very same arrivals, short and long, under each of BIG_WAYS. The load is a share of what chunking can do."""
    return {name: _mixed(load, enough(300, A_LINE), **fields) for name, fields in BIG_WAYS.items()}


def saturated_ways() -> dict[str, float]:
    """Requests a second of the same mix when all come at once, under each of BIG_WAYS."""
    count = enough(200, 20)
    return {
        name: count / _short_and_long(ALL_NEARLY_AT_ONCE, count, **fields).duration for name, fields in BIG_WAYS.items()
    }
