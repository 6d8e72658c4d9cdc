"""A row of measurements, simulated: the same load on one rank of what it describes, or on a few of each pool.

The client keeps `concurrency` requests open: all are sent at the start, the next when one is done. TTFT counts from
when a request was sent; TTFT and TPOT are means over requests. Some rows are of one batch, which nothing follows. In
all others ten times as many requests are played as are open at a time, as InferenceX does (a wave is as many as are
open). To save time fewer are, and weighed: the first wave, which comes all together, and the last, which meets an
emptying server, count as they are; those between, for the eight waves between.
"""

import dataclasses
import functools
import math
import random
from dataclasses import dataclass
from typing import Any

from course.simulator.accuracy.engines import (
    Memory,
    Waits,
    budget_of,
    card_of,
    compiles_late,
    formats_of,
    link_of,
    memory_of,
    model_of,
    profile_for,
    separates_prompts,
    shape_of,
    slots_of,
    waits_of,
)
from course.simulator.accuracy.layout import ServerShape, ServingLayout, deployment_of
from course.simulator.accuracy.points import DISTINCT_PROMPTS, Point, Refusal
from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.network import Network
from course.simulator.cluster.paths import Disaggregation
from course.simulator.cluster.record import ClientRecord
from course.simulator.cluster.replica import EngineFactory, Intake
from course.simulator.cluster.routers import RouterConfig
from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import WORKING_BYTES
from course.simulator.cost.profile import Profile, find_profile
from course.simulator.deployment import Deployment
from course.simulator.errors import DoesNotFitError, PricingError
from course.simulator.workload.requests import Piece, Workload, WorkloadRequest

NO_CONCURRENCY = "concurrency: neither stated, nor a batch to tell it from"
NO_ROOM = "memory: the weights don't fit, in the formats that are known"
NO_SPACE = "memory: the KV cache that is left does not hold one request"
NO_PLACE = "parallelism: heads or experts can't be shared among so many"
WAVES = 10
FEWEST_WAVES = 3
ENOUGH, ENOUGH_FIXED = 300, 2000
"""Requests that tell enough, of drawn and of fixed lengths: beyond, not more than FEWEST_WAVES are played. Fixed ones
lose the first wave's order slowly: TTFT of three waves would be a third too long."""
SHORTEST = 0.8
"""InferenceX's `random-range-ratio`: lengths are drawn from that share of isl and osl up to all of it."""
MOST_REPLICAS, MOST_OPEN = 8, 1600
"""Most ranks of each pool of a disaggregated deployment that are simulated, and most requests open at a time."""
BLOCK = 64
"""Tokens of a KV block between pools. Prompts are whole blocks there: the simulator computes a tail again, where real
servers send it along."""
SPREAD = 0.05
"""Where lengths are fixed, answers differ by so much all the same. Else all requests of a wave would end in one step,
and the next wave begin in another, for ever: clients and networks, whose milliseconds prevent that, take no time."""
SLOTS = 256
"""Requests that run together on a rank, at least."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Means over a run's requests, seconds."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a forecast depends on, so that equal ones are played once."""

    shape: str
    profile: str
    layout: ServingLayout
    concurrency: int
    isl: int
    osl: int
    draws_lengths: bool
    waves: int
    """How often as many requests are played as are open at a time."""
    weights: str
    kv_cache: str
    budget: int
    chunks: bool
    """Long prompts may take several steps."""
    separates: bool
    """Prompts are computed in steps of their own."""
    waits: Waits
    """Before the server looks at a request."""
    memory: Memory
    slots: int | None
    """Most requests that run together on a rank; disaggregated, of those that write answers. None = not limited."""
    kv_tokens: int | None
    """Most tokens in a rank's KV cache; disaggregated, of those that write answers. None = what memory holds."""
    prefill_budget: int
    """Most tokens in a step of a rank of the prefill pool."""
    is_cold: bool
    """The first requests wait for a server that nothing has warmed up."""
    compiles: bool
    """The first requests wait for kernels to be compiled."""
    fresh: int | None
    """Prompts that come before the prefix cache has all of them; None = it never has any."""
    link: float
    """Bytes/s of one accelerator of the prefill pool."""

    @property
    def sharers(self) -> int:
        """Ranks whose prompts one process tokenizes; 0 = nobody waits for it."""
        return self.layout.server.dp if self.layout.prefill is None else 0


def plan_of(point: Point, today: bool = False) -> Plan:
    """What is simulated for a row.

    Args:
        today: priced as `minillm simulate` prices it unless told otherwise, whatever the engine.

    Raises:
        Refusal: it can't be.
    """
    shape, card = shape_of(point.model), card_of(point.system)
    formats = formats_of(point, shape, card)
    layout = deployment_of(point, shape, card)
    engine = point.backend, point.version
    return Plan(
        shape=shape,
        profile=card if today else profile_for(*engine, card, shape, formats.weights, point.is_disaggregated),
        layout=layout,
        concurrency=(concurrency := concurrency_of(point, layout)),
        isl=point.isl,
        osl=point.osl,
        draws_lengths=point.is_inferencex,
        waves=1 if point.is_one_batch else WAVES,
        weights=formats.weights,
        kv_cache=formats.kv_cache,
        budget=(budget := budget_of(point, shape, card)),
        chunks=point.backend != "trtllm",
        separates=separates_prompts(point.backend),
        waits=waits_of(point, shape, card, layout.server.gpus, layout.server.dp),
        memory=memory_of(point, shape, card, layout.server.gpus),
        slots=layout.limits.slots or slots_of(point, shape),
        kv_tokens=layout.limits.kv_tokens,
        prefill_budget=layout.limits.budget or budget,
        is_cold=layout.prefill is None and point.is_cold,
        compiles=layout.prefill is None and compiles_late(point, budget),
        fresh=fresh_prompts(concurrency, layout) if point.repeats_prompts else None,
        link=link_of(card),
    )


def concurrency_of(point: Point, layout: ServingLayout) -> int:
    """Requests that are open at a time on all that is simulated: as stated, or one server's batch on each rank. Where a
    row has both, and leaves the number of ranks out, requests beyond the batch are those of other servers like it.

    Raises:
        Refusal: neither is stated.
    """
    batch = point.server.batch if point.server is not None else None  # pools' batches are their limits
    if point.concurrency is None:
        if batch is None:
            raise Refusal(NO_CONCURRENCY)
        return batch * layout.ranks
    if point.server is not None and point.server.dp is None and batch is not None:
        return min(point.concurrency, batch * layout.ranks)
    return point.concurrency


def fresh_prompts(concurrency: int, layout: ServingLayout) -> int:
    """The prompts among DISTINCT_PROMPTS that a rank hasn't seen in a warm-up with as many requests as are open."""
    return max(DISTINCT_PROMPTS - math.ceil(concurrency / layout.ranks), 0)


def forecast(plan: Plan) -> Forecast:
    """Simulate it.

    Raises:
        Refusal: weights or a request don't fit.
    """
    try:
        return _alone(plan) if plan.layout.prefill is None else _in_two_pools(plan, plan.layout.prefill)
    except DoesNotFitError:
        raise Refusal(NO_ROOM) from None
    except PricingError:
        raise Refusal(NO_PLACE) from None


def _alone(plan: Plan) -> Forecast:
    """One rank of one server, with its share of the requests."""
    open_requests = math.ceil(plan.concurrency / plan.layout.ranks)
    caches = {"enable_prefix_caching": plan.fresh is not None}
    deployment = deployment_of_rank(plan, plan.layout.server, open_requests, plan.concurrency, **caches)
    clients = ClientConfig(max_in_flight=open_requests)
    intake = Intake(look_every=plan.waits.look_every, hold_steps=plan.waits.hold_steps)
    fleet = ClusterConfig(clients=clients, network=_network(plan), intake=intake, sample_every_s=None)
    workload = workload_of(plan, open_requests)
    if plan.fresh is not None:
        run = simulate(workload, fleet, engine_of_latencies(deployment))
    else:
        run = simulate(workload.anonymous(), fleet, engine_of_latencies(deployment.without_prefix_lookups()))
    return means(run.records, open_requests, plan)


def _in_two_pools(plan: Plan, first: ServerShape) -> Forecast:
    """A few ranks of both pools, about in proportion, with their share of the requests."""
    layout = plan.layout
    busy = min(plan.concurrency, layout.ranks)
    prefill_ranks, decode_ranks = scaled(layout.prefill_servers * first.dp, busy, plan.concurrency / busy)
    open_requests = max(round(plan.concurrency * decode_ranks / busy), 1)
    decode = deployment_of_rank(
        dataclasses.replace(plan, separates=False),
        layout.server,
        math.ceil(open_requests / decode_ranks),
        plan.concurrency / layout.servers,
        block_size=BLOCK,
        enable_prefix_caching=True,
    )
    share = plan.concurrency / layout.prefill_servers
    prefill = deployment_of_rank(plan_of_prefill(plan), first, SLOTS, share, block_size=BLOCK)
    fleet = ClusterConfig(
        replicas=decode_ranks,
        clients=ClientConfig(max_in_flight=open_requests),
        network=_network(plan),
        disaggregation=Disaggregation(
            prefill_replicas=prefill_ranks,
            link_bytes_per_s=plan.link * first.tp * prefill_ranks,
            decode_answers=True,
        ),
        router=RouterConfig(policy="round_robin"),  # Dynamo's, unless told otherwise
        sample_every_s=None,
    )
    make_prefill_engine = engine_of_latencies(prefill.without_prefix_lookups())
    workload = workload_of(plan, open_requests)
    run = simulate(workload, fleet, engine_of_latencies(decode), make_prefill_engine=make_prefill_engine)
    return means(run.records, open_requests, plan)


def engine_of_latencies(deployment: Deployment) -> EngineFactory:
    """Engines of which only latencies are read: what others' prompts cost a request isn't told."""
    return functools.partial(deployment.fast_engine, tells_stalls=False)


def plan_of_prefill(plan: Plan) -> Plan:
    """The plan as ranks that compute prompts see it."""
    return dataclasses.replace(plan, slots=None, kv_tokens=None, budget=plan.prefill_budget)


def scaled(prefill_ranks: int, decode_ranks: int, open_on_each: float) -> tuple[int, int]:
    """A few ranks of each pool, about in proportion, to each other and to the requests: 4 and 32 become 1 and 4.

    Args:
        open_on_each: requests on a rank of the decode pool.
    """
    most = max(min(MOST_REPLICAS, decode_ranks, int(MOST_OPEN // open_on_each)), 1)

    def pools(decode: int) -> tuple[int, int]:
        return min(max(round(prefill_ranks * decode / decode_ranks), 1), MOST_REPLICAS, prefill_ranks), decode

    def unlike(prefill: int, decode: int) -> float:
        share = open_on_each * decode
        requests = abs(math.log(max(round(share), 1) / share))
        return requests + abs(math.log(prefill / decode * decode_ranks / prefill_ranks))

    return min((pools(decode) for decode in range(1, most + 1)), key=lambda few: unlike(*few))


def deployment_of_rank(plan: Plan, machine: ServerShape, own: float, on_server: float, **fields: Any) -> Deployment:
    """One rank of a machine.

    Args:
        own: requests open on the rank.
        on_server: requests open on all ranks of its server.
    """
    share = max(on_server / machine.dp, 1.0)
    others = (on_server / share - 1) / (machine.dp - 1) if machine.dp > 1 else 1.0
    slots = min(max(SLOTS, math.ceil(own)), plan.budget, plan.slots or plan.budget)
    made = Deployment.of(
        shaped(plan.shape, machine.expert_groups),
        profile_of(plan.profile, plan.shape),
        tp=machine.gpus,
        dp=machine.dp,
        weight_dtype=plan.weights,
        kv_dtype=plan.kv_cache,
        expert_parallel=machine.expert_groups > 1,
        expert_groups=machine.expert_groups if machine.expert_groups > 1 else None,
        others_load=min(max(others, 0.0), 1.0),
        separate_prompts=plan.separates,
        max_num_seqs=slots,
        max_num_batched_tokens=plan.budget,
        enable_chunked_prefill=plan.chunks,
        **{"enable_prefix_caching": False, **fields},
    )
    kv_bytes = kv_memory(made, plan.memory)
    if plan.kv_tokens is not None:
        kv_bytes = min(kv_bytes, plan.kv_tokens * made.placement.kv_bytes_per_token(made.model))
    if plan.memory.holds_answers:
        tokens = (plan.isl + plan.osl) * ((1 + SHORTEST) / 2 if plan.draws_lengths else 1.0)
        request = made.placement.kv_bytes_per_token(made.model) * tokens
        slots = max(min(slots, int(kv_bytes // request)), 1)
    config = made.config.replace(max_num_seqs=slots, kv_cache_memory_gb=kv_bytes / 1e9)
    return dataclasses.replace(made, config=config)


WORKING_BUDGET, WORKING_HIDDEN = 2048, 4096
"""Tokens of the steps for which WORKING_BYTES were measured, and the width of that model. About half of those bytes are
activations, which grow with both."""


def kv_memory(deployment: Deployment, memory: Memory) -> float:
    """Bytes of the KV cache on each accelerator.

    Raises:
        DoesNotFitError: weights, and what requests take whatever their length, leave none.
    """
    placement, config, whole = deployment.placement, deployment.config, deployment.profile.hardware.memory
    weights = placement.weight_bytes(deployment.model) / placement.accelerators
    size = config.max_num_batched_tokens / WORKING_BUDGET * deployment.model.hidden / WORKING_HIDDEN
    working = WORKING_BYTES * (1 + size) / 2
    states = config.max_num_seqs * placement.fixed_kv_bytes(deployment.model)
    if memory.of == "rest":
        left = memory.share * (whole - weights - working)
    else:
        left = memory.share * whole - weights - (working if memory.of == "all" else 0.0)
    if left - states < deployment.block_bytes:
        raise DoesNotFitError(f"{weights / 1e9:.0f} GB of weights leave no KV cache")
    return left - states


def _network(plan: Plan) -> Network:
    """The way between client and scheduler, as long as the engine's server takes. It tokenizes for all of its ranks, of
    which one is simulated; frontends of pools do it beside one another."""
    profile = profile_of(plan.profile, plan.shape)
    return Network(rtt_s=profile.client_s, ingress_s_per_token=profile.constants.tokenize_s * plan.sharers)


@functools.cache
def profile_of(name: str, shape: str) -> Profile:
    """What prices this model, by the profile's name."""
    return find_profile(name).for_model(model_of(shape))


@functools.cache
def shaped(shape: str, expert_groups: int) -> PricedModel:
    """The model's sizes. Where experts aren't a multiple of the groups, the places left over hold spare copies of some
    (DeepSeek's expert parallel load balancer)."""
    model = model_of(shape)
    spares = -model.num_experts % expert_groups
    if not spares:
        return model
    copies = spares * model.expert_params
    return dataclasses.replace(model, num_experts=model.num_experts + spares, idle_params=model.idle_params + copies)


def workload_of(plan: Plan, open_requests: int) -> Workload:
    """The requests, all sent as soon as there is room for one more. No two prompts share a token, but those
    that the prefix cache has, which are one."""
    rng = random.Random(0)
    if plan.draws_lengths:
        prompts, answers = ((math.ceil(SHORTEST * most), most) for most in (plan.isl, plan.osl))
    else:
        spread = 0 if plan.waves == 1 else round(SPREAD * plan.osl)
        prompts, answers = (plan.isl, plan.isl), (plan.osl - spread, plan.osl + spread)
    in_blocks = plan.layout.prefill is not None
    requests = []
    for index in range(num_requests(open_requests, plan)):
        prompt, answer = rng.randint(*prompts), rng.randint(*answers)
        if in_blocks:
            prompt = max(round(prompt / BLOCK), 1) * BLOCK
        head = min(prompt, BLOCK)
        is_known = plan.fresh is not None and index >= plan.fresh
        name = "known" if is_known else str(index)
        pieces = (Piece(f"head-{name}", head), Piece(f"tail-{name}" if is_known else "", prompt - head))
        requests.append(WorkloadRequest(index, pieces, answer, arrival=0.0, session=str(index)))
    return Workload("points", tuple(requests))


def num_requests(open_requests: int, plan: Plan) -> int:
    """How many are played: all waves, or enough."""
    enough = ENOUGH if plan.draws_lengths else ENOUGH_FIXED
    return min(plan.waves * open_requests, max(FEWEST_WAVES * open_requests, enough))


def means(records: tuple[ClientRecord, ...], open_requests: int, plan: Plan) -> Forecast:
    """Mean TTFT and TPOT of all waves, of which fewer were played. A server whose ranks wait for one another lets those
    wait that come one by one; one that compiles late, those that come first.

    Raises:
        Refusal: a request could not be served.
    """
    profile = profile_of(plan.profile, plan.shape)
    constants = profile.for_weights(plan.weights).constants
    cold_s = plan.is_cold * constants.cold_s + plan.compiles * constants.compile_s
    if not all(record.completed for record in records):
        raise Refusal(NO_SPACE)
    last_wave = len(records) - open_requests
    middle = (plan.waves - 2) * open_requests / max(last_wave - open_requests, 1)
    ttft = tpot = weight = answers = 0.0
    for index, record in enumerate(records):
        counts = middle if open_requests <= index < last_wave else 1.0
        first, last = record.first_byte, record.last_byte
        assert first is not None and last is not None and record.sent is not None, "it is done"
        per_token = (last - first) / max(record.num_tokens - 1, 1)
        unseen = plan.waits.for_ranks * per_token if index >= open_requests else cold_s
        ttft += counts * (first - record.sent + unseen)
        weight += counts
        if record.num_tokens > 1:
            tpot += counts * per_token
            answers += counts
    return Forecast(ttft / weight, tpot / answers if answers else math.nan)
