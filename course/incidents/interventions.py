"""What can be changed. The list is the same in every incident: an intervention is given a service and never knows
what ails it. Whether it helps is found out by playing the service it returns.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from course.incidents.service import Flow, SimulatedService
from course.simulator.cluster.pool import Autoscaling
from course.simulator.cluster.routers import RouterConfig
from course.simulator.speculation import SimulatedSpeculation
from course.simulator.workload.kinds import SharedPrefix
from course.simulator.workload.lengths import LogNormal

MOST_SLOTS = 256
SMALL_CHUNK, MIDDLE_CHUNK, LARGE_CHUNK = 512, 1024, 2048
"""Tokens in one step: good for ITL, a compromise, good for prefill."""
PROMPT_LIMIT = 4000
ANSWER_LIMIT = 256
TRIMMED = 0.4
"""Share of a prompt that is left when fewer passages are retrieved."""
SPARE = 8
"""A warm pool lets the fleet grow to so many times its size. Batch work uses and pays for what is not lent."""
RESPONSE_S = 0.25
"""How often an autoscaler with a warm pool looks."""
LET_IN = 0.5
"""Share of requests that are let in while load is shed."""
OTHER_REGION_S = 0.12
"""Round trip to the other region, seconds."""
BRIEF = 0.2
"""How long answers are, of their length, when the system prompt asks for brief ones."""
NOW, SOON, DAY, WEEKS, MONTHS = "right away", "half an hour", "a day", "some weeks", "three months"
EFFORTS = {NOW: 10, SOON: 30, DAY: 24 * 60, WEEKS: 21 * 24 * 60, MONTHS: 91 * 24 * 60}
"""Minutes from the decision until all users have it, by the effort of the people who do it."""

Change = Callable[[SimulatedService], SimulatedService]


@dataclass(frozen=True)
class Intervention:
    """One change. What it costs is read off the service it makes, and `effort` and `loss` say the rest."""

    id: str
    phase: str
    """The phase it means to shorten."""
    text: str
    effort: str
    """How much work it is for the people who do it."""
    change: Change
    loss: str = ""
    """What users lose, if they do."""
    quality: float = 0.0
    """What fewer bits cost of each answer's worth, a share. Tokens that users lose are counted apart."""

    @property
    def minutes(self) -> int:
        """From the decision until all users have it."""
        return EFFORTS[self.effort]

    @property
    def is_quick(self) -> bool:
        """Whether it can end an incident; anything slower is for the days after it."""
        return self.minutes <= EFFORTS[SOON]

    @property
    def cost(self) -> str:
        """Effort, and what users lose."""
        return f"{self.effort}; {self.loss}" if self.loss else self.effort

    def apply(self, service: SimulatedService) -> SimulatedService:
        """The changed service, or the same when the change means nothing here."""
        changed = self.change(service)
        return service if changed == service else changed


def applied(service: SimulatedService, chosen: Sequence[Intervention]) -> SimulatedService:
    """The service after all of them, in that order; but a rollback comes first, or it would take the others back."""
    for intervention in sorted(chosen, key=lambda each: each.id != "revert"):
        service = intervention.apply(service)
    return service


# ---------------------------------------------------------------- right away


def revert(s: SimulatedService) -> SimulatedService:
    if s.released is None:
        return s
    return replace(s.released, slo=s.slo, target=s.target, released=None)


def fail_over(s: SimulatedService) -> SimulatedService:
    """Half of the traffic goes to as many machines in another region; far clients are near to that one."""
    now = s.fleet.network
    if now.far_share:
        return network(double_fleet(s), far_rtt_s=now.rtt_s, handshakes=0)
    return network(double_fleet(s), far_share=0.5, far_rtt_s=now.rtt_s + OTHER_REGION_S)


def evict_neighbour(s: SimulatedService) -> SimulatedService:
    if not s.memory_taken:
        return s
    return replace(s.with_engine(num_kv_blocks=None, kv_cache_memory_gb=None), memory_taken=False)


def drain_worst(s: SimulatedService) -> SimulatedService:
    """The replica with the fault is the one that looks worst; without one, any is as good."""
    if s.fleet.replicas < 2 or s.fleet.autoscaling is not None:
        return s
    return replace(s.with_fleet(replicas=s.fleet.replicas - 1), fault=None)


def without_fault(s: SimulatedService, *kinds: str) -> SimulatedService:
    return replace(s, fault=None) if s.fault is not None and s.fault.kind in kinds else s


# ---------------------------------------------------------------- machines


def double_fleet(s: SimulatedService) -> SimulatedService:
    scaling = s.fleet.autoscaling
    if scaling is not None:
        scaling = scaling.replace(min_replicas=2 * scaling.min_replicas, max_replicas=2 * scaling.max_replicas)
    return s.with_fleet(replicas=2 * s.fleet.replicas, autoscaling=scaling)


def warm_pool(s: SimulatedService) -> SimulatedService:
    scaling = s.fleet.autoscaling or Autoscaling(
        signal="outstanding",
        target=max(s.engine.max_num_seqs / 8, 4),
        min_replicas=s.fleet.replicas,
        max_replicas=SPARE * s.fleet.replicas,
        interval_s=RESPONSE_S,
        window_s=RESPONSE_S,
        scale_down_after_s=10.0,
    )
    return s.with_fleet(autoscaling=scaling, cold_start_s=0.0, warm_up_s=0.0)


def smaller_tp(s: SimulatedService) -> SimulatedService:
    """As few accelerators a replica as hold the model with half their memory free; the same number in all."""
    for tp in range(1, s.tp):
        if s.tp % tp == 0 and has_room(replace(s, tp=tp)):
            return replace(s.with_fleet(replicas=s.fleet.replicas * s.tp // tp), tp=tp)
    return s


def has_room(s: SimulatedService) -> bool:
    """Whether half of the memory is left when the weights are in."""
    on = s.deployment()
    return on.placement.weight_bytes(on.model) / s.tp < on.profile.hardware.memory / 2


# ---------------------------------------------------------------- batch and queue


def slots(s: SimulatedService, num: int) -> SimulatedService:
    num = max(1, min(num, MOST_SLOTS))
    return s.with_engine(max_num_seqs=num, max_num_batched_tokens=max(s.engine.max_num_batched_tokens, num))


def budget(s: SimulatedService, tokens: int) -> SimulatedService:
    return s.with_engine(max_num_batched_tokens=max(tokens, s.engine.max_num_seqs))


def chunked_prefill(s: SimulatedService) -> SimulatedService:
    if s.engine.enable_chunked_prefill:
        return s
    on = s.with_engine(enable_chunked_prefill=True)
    return budget(on, min(s.engine.max_num_batched_tokens, MIDDLE_CHUNK))


def bound_queue(s: SimulatedService) -> SimulatedService:
    shedding = s.fleet.shedding.replace(deadline_s=0.4 * (s.slo.ttft or 1.0))
    return s.with_fleet(shedding=shedding, clients=s.fleet.clients.replace(cancel_on_timeout=True))


def slow_lane(s: SimulatedService) -> SimulatedService:
    return s.with_engine(
        scheduling_order="two_lane",
        two_lane_threshold=PROMPT_LIMIT,
        enable_chunked_prefill=True,
        long_prefill_token_threshold=max(s.engine.max_num_batched_tokens // 8, 1),
    )


def clients(s: SimulatedService, **fields: object) -> SimulatedService:
    return s.with_fleet(clients=s.fleet.clients.replace(**fields))


def backoff(s: SimulatedService) -> SimulatedService:
    given = s.fleet.clients
    if given.max_attempts == 1 and given.timeout_s is None and given.first_byte_timeout_s is None:
        return s
    pause = 2 * (s.slo.ttft or 1.0)
    calm = clients(s, backoff_s=pause, backoff_factor=2.0, jitter=0.5, cancel_on_timeout=True)
    return calm.with_fleet(shedding=s.fleet.shedding.replace(deadline_s=s.slo.ttft))


def refuse_retries(s: SimulatedService) -> SimulatedService:
    """The gateway knows an attempt that isn't a request's first; its client gets an error, and gives up."""
    return clients(s, max_attempts=1) if s.fleet.clients.max_attempts > 1 else s


def longer_timeouts(s: SimulatedService) -> SimulatedService:
    given = {name: getattr(s.fleet.clients, name) for name in ("timeout_s", "first_byte_timeout_s")}
    return clients(s, **{name: 4 * limit for name, limit in given.items() if limit is not None})


def network(s: SimulatedService, **fields: object) -> SimulatedService:
    return s.with_fleet(network=s.fleet.network.replace(**fields))


def ingress_workers(s: SimulatedService) -> SimulatedService:
    now = s.fleet.network
    return network(s, ingress_s=now.ingress_s / 8, ingress_s_per_token=now.ingress_s_per_token / 8)


def routed(s: SimulatedService, policy: str) -> SimulatedService:
    return s.with_fleet(router=RouterConfig(policy=policy))


# ---------------------------------------------------------------- traffic


def of_flows(s: SimulatedService, change: Callable[[Flow], Flow]) -> SimulatedService:
    return replace(s, flows=tuple(change(flow) for flow in s.flows))


def trimmed(flow: Flow) -> Flow:
    prompt = getattr(flow.kind, "prompt", None)
    if not isinstance(prompt, LogNormal):
        return flow
    shorter = prompt.replace(median=max(TRIMMED * prompt.median, prompt.low), high=max(int(TRIMMED * prompt.high), 1))
    return replace(flow, kind=flow.kind.replace(prompt=shorter))


def brief(flow: Flow) -> Flow:
    output = getattr(flow.kind, "output", None)
    if not isinstance(output, LogNormal):
        return flow
    shorter = output.replace(median=max(BRIEF * output.median, output.low), high=max(int(BRIEF * output.high), 16))
    return replace(flow, kind=flow.kind.replace(output=shorter))


def static_first(flow: Flow) -> Flow:
    if not isinstance(flow.kind, SharedPrefix) or not flow.kind.stamp_tokens:
        return flow
    return replace(flow, kind=flow.kind.replace(stamp_first=False))


# ---------------------------------------------------------------- decoding


def int8_kv(s: SimulatedService) -> SimulatedService:
    """A pool given in blocks was given in memory: with half the bytes a token it has twice as many."""
    blocks = s.engine.num_kv_blocks
    if blocks is not None and s.engine.kv_cache_dtype == "auto":
        blocks *= 2
    return s.with_engine(kv_cache_dtype="int8", num_kv_blocks=blocks)


def speculation(s: SimulatedService, **fields: object) -> SimulatedService:
    now = s.engine.speculative
    return s if now is None else s.with_engine(speculative=now.replace(**fields))


def larger_k(s: SimulatedService) -> SimulatedService:
    return speculation(s, k=min(2 * s.engine.speculative.k, 32)) if s.engine.speculative else s


def other_proposer(s: SimulatedService) -> SimulatedService:
    now = s.engine.speculative
    if now is None or now.method == "synthetic" or "head" not in s.acceptance:
        return s
    fields = {"method": "synthetic", "acceptance_rate": s.acceptance["head"], "draft_cost": 0.05}
    kept = {"k": now.k, "max_batch": now.max_batch, "adaptive_k": now.adaptive_k}
    return s.with_engine(speculative=SimulatedSpeculation(**fields, **kept, acceptance_floor=now.acceptance_floor))


def speculate(s: SimulatedService) -> SimulatedService:
    if s.engine.speculative is not None or s.engine.batching == "static":
        return s
    rate = s.acceptance.get("ngram", 0.3)
    return s.with_engine(speculative=SimulatedSpeculation(method="ngram", k=4, acceptance_rate=rate))


def engine(**fields: object) -> Change:
    """A change of these settings."""
    return lambda s: s.with_engine(**fields)


CHANGES: Mapping[str, Change] = {
    "revert": revert,
    "fail_over": fail_over,
    "shed": lambda s: replace(s, admitted=LET_IN),
    "refuse_retries": refuse_retries,
    "drain_worst": drain_worst,
    "restart": lambda s: without_fault(s, "hung"),
    "evict_neighbour": evict_neighbour,
    "drafts_off": engine(speculative=None),
    "double_fleet": double_fleet,
    "warm_pool": warm_pool,
    "more_slots": lambda s: slots(s, 8 * s.engine.max_num_seqs),
    "fewer_slots": lambda s: slots(s, s.engine.max_num_seqs // 3),
    "continuous_batching": engine(batching="continuous"),
    "bound_queue": bound_queue,
    "slow_lane": slow_lane,
    "least_outstanding": partial(routed, policy="least_outstanding"),
    "raise_client_cap": partial(clients, max_in_flight=None),
    "backoff": backoff,
    "longer_timeouts": longer_timeouts,
    "timeouts": lambda s: clients(s, timeout_s=s.slo.e2e, first_byte_timeout_s=None),
    "ingress_workers": ingress_workers,
    "near_clients": lambda s: network(s, handshakes=0, far_rtt_s=s.fleet.network.rtt_s),
    "prefix_aware": partial(routed, policy="prefix_aware"),
    "static_first": partial(of_flows, change=static_first),
    "chunked_prefill": chunked_prefill,
    "larger_chunks": lambda s: budget(s, max(4 * s.engine.max_num_batched_tokens, LARGE_CHUNK)),
    "smaller_chunks": lambda s: budget(s, min(s.engine.max_num_batched_tokens, SMALL_CHUNK)),
    "prefix_caching": engine(enable_prefix_caching=True),
    "prompt_limit": engine(max_prompt_tokens=PROMPT_LIMIT),
    "trim_prompts": partial(of_flows, change=trimmed),
    "fp8": engine(quantization="fp8"),
    "int8_weights": engine(quantization="int8"),
    "int4_weights": engine(quantization="int4"),
    "int8_kv": int8_kv,
    "kv_budget": lambda s: s if s.memory_taken else s.with_engine(num_kv_blocks=None, kv_cache_memory_gb=None),
    "cuda_graphs": partial(replace, cuda_graphs=True),
    "attention_kernel": partial(replace, attention_speed=1.0),
    "smaller_tp": smaller_tp,
    "larger_tp": lambda s: replace(s, tp=2 * s.tp) if s.tp < 8 else s,
    "speculate": speculate,
    "draft_kv": partial(replace, restored_acceptance=None),
    "gate_speculation": partial(speculation, max_batch=4, acceptance_floor=0.4, adaptive_k=True),
    "other_proposer": other_proposer,
    "larger_k": larger_k,
    "output_limit": lambda s: replace(s, answer_limit=ANSWER_LIMIT),
    "brief_answers": partial(of_flows, change=brief),
    "unbuffer": partial(network, hold_chunks=1, hold_s=None),
    "swap_host": lambda s: without_fault(s, "throttled", "bad_link", "hung"),
    "watchdog": lambda s: without_fault(s, "hung"),
    "pin_weights": lambda s: without_fault(s, "wrong_weights"),
}
"""What each does, by id. Phases, texts and costs are in interventions.toml, in the order in which they are listed."""

BY_ID: Mapping[str, Intervention] = {
    name: Intervention(name, change=CHANGES[name], **words)
    for name, words in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
ALL = tuple(BY_ID.values())
AT_ONCE = tuple(one for one in ALL if one.effort == NOW)
"""What can be done before anything is known."""
FOR_GOOD = tuple(one for one in ALL if one.effort != NOW)
"""What can be a fix: on paper nobody waits to be helped."""
