"""Lesson 04, prefix caching: workloads for the real engine, its eviction policies, and tenants at 70B."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from course.lab import simulated_70b
from course.lab.bend import worthwhile_tokens
from course.lab.lab import Lab
from course.lab.prefix_cache import (
    FIFO,
    LRU,
    UNLIMITED,
    CachePolicy,
    CacheRequest,
    block_size_of,
    model_hit_rate,
    replay_cache,
    trace_of,
    users_trace,
)
from course.lab.run import Run
from course.lab.scale import is_short
from course.lab.texts import CHAT_QUESTIONS, MANUAL, MANUAL_QUESTIONS
from course.lab.workloads import LabWorkload, PromptArrival
from course.simulator.cluster.run import FleetRun
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import Deterministic
from course.simulator.workload.kinds import Sessions, SharedPrefix
from course.simulator.workload.lengths import Fixed

# ---------------------------------------------------------------- workloads

PARAGRAPH_TOKENS = 75
"""Tokens in a paragraph of the handbook, roughly."""
ROOM_TOKENS = 300
"""Tokens of a context that are left for the text around the handbook."""
OFFICE = "You are the assistant of a small harbour office. Answer from the handbook below, in one sentence."
ANSWER_TOKENS = 4


def times(lab: Lab) -> int:
    """How many times as long prompts are as on a CPU, so that their prefill takes time: on a GPU a paragraph becomes as
    many as fill one step before it gets longer."""
    return max(1, math.ceil(worthwhile_tokens(lab, 1, 0) / PARAGRAPH_TOKENS))


def paragraphs(lab: Lab, count: int) -> list[str]:
    """Paragraphs of the handbook, for so many on a CPU; as many as a context has room for. Those after the last one of
    the handbook begin again, under another number."""
    context = lab.window if lab.is_remote else lab.config().max_model_len
    most = (context - ROOM_TOKENS) // PARAGRAPH_TOKENS
    count = max(count, min(count * times(lab), most))
    return [MANUAL[i] if i < len(MANUAL) else f"Section {i + 1}. {MANUAL[i % len(MANUAL)]}" for i in range(count)]


def handbook(lab: Lab, count: int | None = None) -> str:
    """The handbook: so many paragraphs on a CPU."""
    return "\n\n".join(paragraphs(lab, count or (8 if lab.scale == 1 else 2)))


def stamp(number: int) -> str:
    """The time at which request `number` was sent, to the second."""
    return f"It is 09:{14 + number // 8:02}:{(2 + 7 * number) % 60:02}, on 14 March 2026."


def stamped(lab: Lab, place: str, count: int = 4) -> LabWorkload:
    """The same handbook before different questions, with the time in the first line, the last, or nowhere."""
    body = f"{OFFICE}\n\n{handbook(lab)}\n\n"
    prompts = []
    for i in range(count):
        first = f"{stamp(i)}\n\n" if place == "first line" else ""
        last = f"{stamp(i)}\n\n" if place == "last line" else ""
        prompts.append(f"{first}{body}{last}Question: {MANUAL_QUESTIONS[i % len(MANUAL_QUESTIONS)]}")
    return one_by_one(f"the time: {place}", "One handbook, different questions.", prompts)


def unique(lab: Lab) -> LabWorkload:
    """Prompts as long as the others, no two of which begin the same way."""
    count = 4 if lab.scale == 1 else 2
    rng = random.Random("unique")
    pages = paragraphs(lab, 8 if lab.scale == 1 else 2)
    prompts = []
    for i in range(count):
        rng.shuffle(pages)
        prompts.append(f"Letter {i + 1} of {count}.\n\n" + "\n\n".join(pages) + f"\n\n{CHAT_QUESTIONS[i]}")
    return one_by_one("unique prompts", "Nothing is shared.", prompts)


def tenants(lab: Lab, grouped: bool, count: int = 3, visits: int | None = None) -> LabWorkload:
    """Each tenant has a long handbook of its own; they ask in turns (A B C A B C), or grouped (A A B B C C)."""
    visits = visits or (4 if lab.scale == 1 else 2)
    order = [(tenant, visit) for visit in range(visits) for tenant in range(count)]
    prompts = [_tenant_prompt(lab, *each) for each in (sorted(order) if grouped else order)]
    how = "grouped" if grouped else "in turns"
    return one_by_one(f"{count} tenants {how}", f"Each tenant has its own handbook; they ask {how}.", prompts)


def _tenant_prompt(lab: Lab, tenant: int, visit: int) -> str:
    pages = paragraphs(lab, 4 if lab.scale == 1 else 1)
    random.Random(tenant).shuffle(pages)
    name = "ABCDEFGHIJ"[tenant]
    question = MANUAL_QUESTIONS[(3 * tenant + visit) % len(MANUAL_QUESTIONS)]
    return f"Handbook of harbour {name}.\n\n" + "\n\n".join(pages) + f"\n\nQuestion: {question}"


def room_for(run: Run, requests: int) -> int:
    """KV blocks that hold so many of a run's largest requests, prompt and answer."""
    size = run.snapshot.block_size
    return requests * max(-(-(view.num_prompt_tokens + view.num_output_tokens) // size) for view in run.views)


def conversation(lab: Lab, turns: int | None = None) -> LabWorkload:
    """One user, turn after turn: each prompt repeats everything before it and adds a message.

    The answers in the history are written here, not by the model, so a turn finds the former prompt, but not the
    former answer.
    """
    turns = turns or (6 if lab.scale == 1 else 3)
    text, prompts = f"{OFFICE}\n\n{handbook(lab, 1)}", []
    for i in range(turns):
        text += f"\n\nVisitor: {MANUAL_QUESTIONS[i]}"
        prompts.append(f"{text}\n\nOffice:")
        text += f"\n\nOffice: {' '.join([MANUAL[(i + 1) % len(MANUAL)]] * times(lab))}"
    return one_by_one("conversation", "Each turn repeats everything before it.", prompts)


def short_prefix(lab: Lab, block_size: int, share: float, count: int = 4) -> LabWorkload:
    """Prompts that share a beginning of about `share` blocks of `block_size` tokens, and nothing after it."""
    words = f"{OFFICE} {handbook(lab)}".split()
    beginning = " ".join(words[: round(share * block_size / 1.35)])
    prompts = [f"{beginning}\n\nCase {i + 1}. {CHAT_QUESTIONS[i]}" for i in range(count)]
    return one_by_one(f"a shared beginning of {share:g} blocks", "A short common beginning.", prompts)


def one_by_one(name: str, about: str, prompts: Iterable[str], in_flight: int = 1) -> LabWorkload:
    """These prompts, each sent when the one before it has been answered."""
    return LabWorkload(name, about, tuple(PromptArrival(0.0, prompt, ANSWER_TOKENS) for prompt in prompts), in_flight)


def block_runs(lab: Lab, share: float = 6.5, sizes: tuple[int, ...] = (1, 4, 16)) -> dict[int, Run]:
    """Block size -> a run of prompts that share about `share` of this machine's usual blocks."""
    usual = block_size_of(lab)
    traffic = short_prefix(lab, usual, share)
    return {usual * times: lab.run(traffic, block_size=usual * times, num_kv_blocks=384 // times) for times in sizes}


# ---------------------------------------------------------------- what runs show


def hit_rate(run: Run) -> float:
    """Prompt tokens found in the cache / prompt tokens looked up."""
    looked_up = sum(view.num_prompt_tokens for view in run.views)
    return sum(view.num_cached_tokens for view in run.views) / looked_up if looked_up else 0.0


def ttfts(run: Run) -> list[float | None]:
    """TTFT of each request by its row, seconds; None while it has none."""
    return [
        row.view.deliveries[0] - row.view.borders[0] if row.view and row.view.deliveries else None for row in run.rows
    ]


def later_ttft(run: Run) -> float:
    """Median TTFT of all requests but the first, which finds every cache cold. Seconds."""
    return median([value for value in ttfts(run)[1:] if value is not None])


def shared_tokens(run: Run) -> int:
    """Leading tokens that all prompts of a run have in common."""
    prompts = [output.prompt_token_ids for output in run.outputs]
    return next((i for i, ids in enumerate(zip(*prompts)) if len(set(ids)) > 1), min(map(len, prompts)))


def cache_savings(with_cache: Run, without: Run) -> dict[int, float]:
    """Turn (from 1) -> share of TTFT that the cache saved."""
    pairs = zip(with_cache.rows, without.rows)
    return {i + 1: 1 - _ttft(cached) / _ttft(plain) for i, (cached, plain) in enumerate(pairs)}


def _ttft(row: object) -> float:
    view = row.view
    return view.deliveries[0] - view.borders[0]


# ---------------------------------------------------------------- eviction policies

LIMIT_S = 300.0
"""The time limit of the article behind claim D13: five minutes."""


def policies(limit_s: float = LIMIT_S) -> dict[str, CachePolicy]:
    """The engine's policy and three others."""
    return {
        "LRU": LRU,
        "FIFO": FIFO,
        f"limit {limit_s:g} s since use": CachePolicy(renews=True, limit_s=limit_s),
        f"limit {limit_s:g} s since creation": CachePolicy(renews=False, limit_s=limit_s),
    }


def smallest_cache(trace: Sequence[CacheRequest]) -> int:
    """Blocks of the largest single request."""
    return max(request.num_blocks for request in trace)


def working_set(trace: Sequence[CacheRequest]) -> int:
    """Blocks with different contents in the whole trace: a cache of this size never forgets."""
    return len({name for request in trace for name in request.names}) + len({request.who for request in trace})


def by_gap(gaps_s: Sequence[float], limit_s: float = LIMIT_S, users: int = 10) -> dict[float, dict[str, float]]:
    """Mean gap between a user's turns -> policy -> hit rate, in a cache with room for all users; and LRU with a
    quarter of that room, and with no limit at all."""
    found: dict[float, dict[str, float]] = {}
    for gap in gaps_s:
        trace = users_trace(users, 6, gap)
        room = working_set(trace)
        rates = {name: model_hit_rate(trace, room, policy) for name, policy in policies(limit_s).items()}
        tight = max(room // 4, smallest_cache(trace))
        found[gap] = {
            **rates,
            "LRU, a quarter of the room": model_hit_rate(trace, tight),
            "ceiling": model_hit_rate(trace, UNLIMITED),
        }
    return found


def agreement(run: Run, policy: CachePolicy = LRU) -> tuple[int, int]:
    """Requests for which the model found exactly what the engine found, and how many there were.

    The run must have had one request open at a time: the model serves them one after the other.
    """
    predicted = replay_cache(trace_of(run), len(run.snapshot.block_owners), policy)
    views = sorted(run.finished, key=lambda view: view.borders[0])
    size = run.snapshot.block_size
    return sum(view.num_cached_tokens == blocks * size for view, blocks in zip(views, predicted)), len(views)


PLAIN: dict[str, object] = {"async_scheduling": False}
"""A step that is scheduled ahead does not know its newest token, so an answer's last block may stay without a name; the
cache model gives every full block one."""


def order_runs(lab: Lab) -> dict[str, Run]:
    """Three tenants, in turns and grouped, in a cache with room for all, and in one with room for two."""
    roomy = {how: lab.run(tenants(lab, how == "grouped"), **PLAIN) for how in ("in turns", "grouped")}
    room = room_for(roomy["in turns"], 2)
    small = {how: lab.run(tenants(lab, how == "grouped"), num_kv_blocks=room, **PLAIN) for how in roomy}
    return {
        f"{size} cache, {how}": run for size, runs in (("roomy", roomy), ("small", small)) for how, run in runs.items()
    }


def rates_of(runs: Mapping[str, Run]) -> dict[str, float]:
    """The engine's own hit rate of each run, from its counters."""
    return {name: run.snapshot.prefix_hits / max(run.snapshot.prefix_queries, 1) for name, run in runs.items()}


# ---------------------------------------------------------------- tenants at 70B

ROUTERS = {"round robin": "round_robin", "least busy": "least_outstanding", "prefix-aware": "prefix_aware"}
TENANT_PREFIX = 2000
TENANT_REPLICAS = 4


def serve_tenants(
    on: Deployment, router: str, tenants: int = 60, skew: float = 0.0, qps: float = 10.0, count: int = 300, **kind: Any
) -> FleetRun:
    """Tenants with system prompts of 2000 tokens, on four replicas behind a router."""
    traffic = SharedPrefix(
        tenants=tenants, prefix=Fixed(tokens=TENANT_PREFIX), output=Fixed(tokens=60), skew=skew, **kind
    )
    policy = {"policy": ROUTERS[router]}
    return simulated_70b.serve(on, traffic, qps=qps, num_requests=count, replicas=TENANT_REPLICAS, router=policy)


def routers(on: Deployment, names: Sequence[str] = tuple(ROUTERS), **load: Any) -> dict[str, FleetRun]:
    """The same load behind each router."""
    return {name: serve_tenants(on, name, **load) for name in names}


def busiest_share(run: FleetRun) -> float:
    """Share of all prompt tokens that went to the busiest replica: a quarter where the four share evenly."""
    sent: Counter[str] = Counter()
    for record in run.records:
        sent[record.replica] += record.request.num_prompt_tokens
    return max(sent.values()) / sum(sent.values())


def cold_and_warm(on: Deployment, lengths: Sequence[int], question: int = 60) -> dict[int, tuple[float, float]]:
    """Prefix length -> TTFT of the first request, and the median of the later ones, on an idle server."""
    found = {}
    for tokens in lengths:
        traffic = SharedPrefix(prefix=Fixed(tokens=tokens), question=Fixed(tokens=question), output=Fixed(tokens=2))
        run = simulated_70b.serve(on, traffic, arrivals=Deterministic(rate=0.2), num_requests=5)
        times = [record.ttft() for record in run.records]
        found[tokens] = (times[0], median(times[1:]))
    return found


def session_cuts(on: Deployment, count: int = 24) -> dict[int, float]:
    """Turn of a conversation -> share of mean TTFT that prefix caching saves. Light load; answers are remembered."""
    if is_short():
        count *= 2  # simulated_70b.serve takes a share of them
    traffic = Sessions(turns=Fixed(tokens=5), output=Fixed(tokens=120), think_s=20.0)
    times: list[dict[int, list[float]]] = []
    for caching in (True, False):
        with_it = on if caching else on.without_prefix_lookups()
        run, by_turn = simulated_70b.serve(with_it, traffic, qps=0.05, num_requests=count), {}
        for record in run.records:
            if record.completed:
                by_turn.setdefault(_turn_of(run, record.request.index), []).append(record.ttft())
        times.append(by_turn)
    return {
        turn: 1 - (sum(on_) / len(on_)) / (sum(times[1][turn]) / len(times[1][turn])) for turn, on_ in times[0].items()
    }


def _turn_of(run: FleetRun, index: int) -> int:
    turn, request = 1, run.records[index].request
    while request.after is not None:
        turn, request = turn + 1, run.records[request.after].request
    return turn
