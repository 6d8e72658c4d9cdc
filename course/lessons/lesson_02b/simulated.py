"""Lesson 02b at 70B: batching, order, admission, tenants. The scheduler is unchanged; everything is cached."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from course.lab import simulated_70b
from course.lab.scale import enough
from course.lab.simulated_70b import capacity, served
from course.lab.visits import Visit, visits_of, waits
from course.lessons.lesson_02.simulated import CHAT, ENOUGH_FOR_A_QUEUE
from course.lessons.lesson_02b.run import GREEDY, SMALL, ByTenant, split_by_tenant
from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import AllAtOnce, Gamma, Poisson
from course.simulator.workload.kinds import AZURE_CHAT, Independent, TrafficModel
from course.simulator.workload.lengths import Fixed
from course.simulator.workload.requests import make_workload, merge

SHORT_ONES = Independent(prompt=Fixed(tokens=200), output=Fixed(tokens=60))
LONG_ONES = Independent(prompt=Fixed(tokens=6000), output=Fixed(tokens=60))
LONG = 4000
"""Tokens: a longer prompt is a long one."""
PATIENCE_S = 10.0
"""A client leaves when it has seen nothing for so long."""
IN_TIME_S = 2.0
"""The SLO: a first token within two seconds."""

# ---------------------------------------------------------------- who is next

ORDERS = {
    "first come": {},
    "shortest first": {"scheduling_order": "shortest_prompt"},
    "two lanes": {"scheduling_order": "two_lane", "two_lane_threshold": LONG},
    "limit on prompts": {"max_prompt_tokens": LONG},
}
"""Who is next. With a limit, long prompts are turned away."""
ORDER_SLOTS = 16
ORDER_LOAD = 1.1
ALL_NEARLY_AT_ONCE = 1000.0
"""Requests a second."""


def waits_by_length(visits: Iterable[Visit]) -> tuple[list[float], list[float]]:
    """Waits of the short prompts, and of the long ones."""
    lists = tuple(visits)
    return waits(v for v in lists if v.prompt <= LONG), waits(v for v in lists if v.prompt > LONG)


@functools.lru_cache(maxsize=64)
def ordered(order: str, load: float, count: int = 600) -> tuple[Visit, ...]:
    """One long prompt among ten, under one of ORDERS."""
    return tuple(visits_of(_mixed(load, enough(count, ENOUGH_FOR_A_QUEUE), **ORDERS[order])))


def orders_at(load: float = ORDER_LOAD) -> dict[str, tuple[Visit, ...]]:
    """All orders at one load."""
    return {order: ordered(order, load) for order in ORDERS}


def _mixed(load: float, count: int, **fields: Any) -> FleetRun:
    """One long prompt among ten, at a share of what first come first served can do."""
    return _short_and_long(load * _mixed_capacity(count), count, **fields)


def _short_and_long(rate: float, count: int, **fields: Any) -> FleetRun:
    shorts = make_workload(SHORT_ONES, Poisson(rate=rate * 0.9), num_requests=round(count * 0.9), name="short")
    longs = make_workload(LONG_ONES, Poisson(rate=rate * 0.1), num_requests=count - round(count * 0.9), name="long")
    on = simulated_70b.deployment(**{"max_num_seqs": ORDER_SLOTS, **fields})
    return simulated_70b.play(on, merge("short and long", shorts, longs))


@functools.lru_cache(maxsize=4)
def _mixed_capacity(count: int) -> float:
    return simulated_70b.steady_rate(visit.left for visit in visits_of(_short_and_long(ALL_NEARLY_AT_ONCE, count)))


# ---------------------------------------------------------------- a limit on the queue

LIMIT_SLOTS = 16
TIGHT_LIMIT = 4
"""max_queue_len of the server with a limit, where there are two."""
BURSTS = 3.0
"""Coefficient of variation of the gaps between arrivals in bursts; 1 = Poisson."""


@functools.lru_cache(maxsize=128)
def with_queue_limit(load: float, limit: int | None, cv: float = 1.0, patience: float | None = PATIENCE_S) -> FleetRun:
    """Chats, some clients lose patience; a server that lets so many wait and refuses the rest.

    Args:
        limit: max_queue_len; None = no limit.
        patience: seconds until a client that has seen no token gives up; None = never.
    """
    count, rate = enough(400, ENOUGH_FOR_A_QUEUE), load * capacity(CHAT, max_num_seqs=LIMIT_SLOTS)
    arrivals = Poisson(rate=rate) if cv == 1 else Gamma(rate=rate, cv=cv)
    on = simulated_70b.deployment(max_num_seqs=LIMIT_SLOTS, **({"max_queue_len": limit} if limit else {}))
    clients = ClientConfig(first_byte_timeout_s=patience)
    return simulated_70b.play(on, make_workload(CHAT, arrivals, num_requests=count), clients=clients)


def outcomes(run: FleetRun) -> dict[str, int]:
    """Requests answered in time, answered late, given up on, and refused."""
    found = dict.fromkeys(("within SLO", "late", "gave up", "refused"), 0)
    for visit in visits_of(run):
        found[visit.ending if visit.ending != "answered" else "within SLO" if visit.ttft <= IN_TIME_S else "late"] += 1
    return found


def open_and_limited(load: float, cv: float = 1.0) -> dict[str, dict[str, int]]:
    """What became of all requests without a limit, and with a tight one."""
    limits = {"open": None, "limit": TIGHT_LIMIT}
    return {name: outcomes(with_queue_limit(load, limit, cv)) for name, limit in limits.items()}


# ---------------------------------------------------------------- how slots are filled


def throughput(traffic: TrafficModel, count: int, **fields: Any) -> float:
    """Output tokens a second when all come at once."""
    return simulated_70b.tokens_per_s(served(traffic, AllAtOnce(), count, **fields))


def dynamic_gains(slots: Sequence[int] = (2, 8)) -> dict[str, dict[int, tuple[float, float]]]:
    """By traffic and slots: tokens a second of a closed batch, and of continuous batching, over one at a time."""
    equal = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=125))
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for name, traffic in {"equal answers": equal, "answers of all lengths": CHAT}.items():
        alone = throughput(traffic, 16, batching="none", max_num_seqs=1)
        found[name] = {
            n: tuple(throughput(traffic, 64, max_num_seqs=n, batching=way) / alone for way in ("static", "continuous"))
            for n in slots
        }
    return found


def tenfold(tp: int) -> dict[str, float]:
    """Output tokens a second of Azure-like chats on `tp` H100s.

    A static batch that reserves 8192 tokens for each member; continuous batching on the same slots; continuous
    batching that takes memory as it is needed, and so has more slots.
    """
    window = 8192
    room = simulated_70b.room_tokens(simulated_70b.deployment(tp=tp)) // window
    kept = {"tp": tp, "max_model_len": window, "kv_reservation": "max_len", "max_num_seqs": room}
    count = min(8 * room, 180)
    return {
        f"static, {room} slots": throughput(AZURE_CHAT, count, batching="static", **kept),
        f"continuous, {room} slots": throughput(AZURE_CHAT, count, **kept),
        "continuous, memory as needed": throughput(
            AZURE_CHAT,
            5 * room if room > 30 else 120,
            tp=tp,
            max_model_len=window,
            max_num_seqs=256 if room > 30 else 40,
        ),
    }


def chunks_and_limit(load: float) -> dict[str, FleetRun]:
    """Chats and one prompt of 6000 tokens among ten: whole or in chunks, with a limit on the queue and without."""
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}
    chunked, limit = {"max_num_batched_tokens": 2048}, {"max_queue_len": 8}
    ways = {"neither": whole, "chunks": chunked, "limit": {**whole, **limit}, "both": {**chunked, **limit}}
    return {name: _mixed(load, enough(300, ENOUGH_FOR_A_QUEUE), **fields) for name, fields in ways.items()}


BIG_WAYS = {
    "static": {"batching": "static", "enable_chunked_prefill": False},
    "continuous": {"enable_chunked_prefill": False},
    "continuous, chunked": {"long_prefill_token_threshold": 512},
}


def three_ways(load: float = 0.7) -> dict[str, FleetRun]:
    """The very same arrivals, short and long, under each of BIG_WAYS. The load is a share of what chunking can do."""
    return {name: _mixed(load, enough(300, ENOUGH_FOR_A_QUEUE), **fields) for name, fields in BIG_WAYS.items()}


def saturated_ways() -> dict[str, float]:
    """Requests a second of the same mix when all come at once, under each of BIG_WAYS."""
    count = enough(200, 20)
    return {
        name: count / _short_and_long(ALL_NEARLY_AT_ONCE, count, **fields).duration for name, fields in BIG_WAYS.items()
    }


# ---------------------------------------------------------------- one greedy tenant

TENANT_SLOTS = 16
SENDS = {
    "chats": CHAT,
    "long prompts": Independent(prompt=Fixed(tokens=8000), output=Fixed(tokens=100)),
    "long answers": Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=1500)),
}
"""What the greedy tenant asks for; the small ones chat."""
GREEDY_LOADS = {"30%": 0.3, "80%": 0.8, "120%": 1.2, "200%": 2.0}
SMALL_LOAD = 0.08
"""Load of each small tenant, as a share of the capacity."""


@functools.lru_cache(maxsize=64)
def tenants_at_70b(order: str, greedy: str, sends: str) -> ByTenant:
    """One replica: the small tenants chat, the greedy one sends `sends`."""
    count, each = enough(360, ENOUGH_FOR_A_QUEUE), capacity(CHAT, max_num_seqs=TENANT_SLOTS)
    span = count / (each * (GREEDY_LOADS["80%"] + 3 * SMALL_LOAD))
    on = simulated_70b.deployment(max_num_seqs=TENANT_SLOTS, scheduling_order=order)
    loads = {GREEDY: (SENDS[sends], GREEDY_LOADS[greedy] * capacity(SENDS[sends], 100, max_num_seqs=TENANT_SLOTS))}
    loads |= dict.fromkeys(SMALL, (CHAT, SMALL_LOAD * each))
    parts = [
        make_workload(
            traffic, Poisson(rate=rate), num_requests=max(round(rate * span), 8), seed=seed, name=name
        ).with_tenant(name)
        for seed, (name, (traffic, rate)) in enumerate(loads.items())
    ]
    run = simulated_70b.play(on, merge("tenants", *parts))
    return split_by_tenant(visits_of(run), [record.request.tenant for record in run.records])
