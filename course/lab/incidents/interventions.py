"""What can be changed. The list is the same in every incident: an intervention is given a service and never knows
what ails it. Whether it helps is found out by playing the service it returns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course.lab.incidents.service import Flow, Service
from minillm.policies.config import SpeculativeConfig
from minillm.simulate.cluster.pool import Autoscaling
from minillm.simulate.cluster.routers import RouterConfig
from minillm.simulate.workload.kinds import SharedPrefix
from minillm.simulate.workload.lengths import LogNormal

MOST_SEATS = 256
SMALL_CHUNK, MIDDLE_CHUNK, LARGE_CHUNK = 512, 1024, 2048
"""Tokens in one step: kind to those who read along, a compromise, kind to prompts."""
PROMPT_LIMIT = 4000
ANSWER_LIMIT = 256
TRIMMED = 0.4
"""Share of a prompt that is left when fewer passages are retrieved."""
SPARE = 8
"""A warm pool lets the fleet grow to so many times its size. Batch work uses and pays for what is not lent."""
RESPONSE_S = 0.25
"""How often an autoscaler with a warm pool looks."""


@dataclass(frozen=True)
class Intervention:
    """One change. What it costs is read off the service it makes, and `effort` and `loss` say the rest."""

    id: str
    phase: str
    """The phase it means to shorten."""
    text: str
    effort: str
    """Of the people who do it."""
    change: Callable[[Service], Service]
    loss: str = ""
    """What users lose, if they do."""

    @property
    def cost(self) -> str:
        return f"{self.effort}; {self.loss}" if self.loss else self.effort

    def apply(self, service: Service) -> Service:
        """The changed service, or the same when the change means nothing here."""
        changed = self.change(service)
        return service if changed == service else changed


def applied(service: Service, chosen: Sequence[Intervention]) -> Service:
    """The service after all of them, in that order."""
    for intervention in chosen:
        service = intervention.apply(service)
    return service


# ---------------------------------------------------------------- machines


def double_fleet(s: Service) -> Service:
    scaling = s.fleet.autoscaling
    if scaling is None:
        return s.with_fleet(replicas=2 * s.fleet.replicas)
    more = scaling.replace(min_replicas=2 * scaling.min_replicas, max_replicas=2 * scaling.max_replicas)
    return s.with_fleet(replicas=2 * s.fleet.replicas, autoscaling=more)


def warm_pool(s: Service) -> Service:
    if s.fleet.autoscaling is not None:
        return s.with_fleet(cold_start_s=0.0, warm_up_s=0.0)
    scaling = Autoscaling(
        signal="outstanding", target=max(s.engine.max_num_seqs / 8, 4), min_replicas=s.fleet.replicas,
        max_replicas=SPARE * s.fleet.replicas, interval_s=RESPONSE_S, window_s=RESPONSE_S, scale_down_after_s=10.0,
    )  # fmt: skip
    return s.with_fleet(autoscaling=scaling, cold_start_s=0.0, warm_up_s=0.0)


def smaller_tp(s: Service) -> Service:
    """As few accelerators a replica as hold the model with half their memory free; the same number in all."""
    for tp in range(1, s.tp):
        if s.tp % tp == 0 and has_room(replace(s, tp=tp)):
            return replace(s.with_fleet(replicas=s.fleet.replicas * s.tp // tp), tp=tp)
    return s


def has_room(s: Service) -> bool:
    """Whether half of the memory is left when the weights are in."""
    on = s.deployment()
    return on.placement.weight_bytes(on.model) / s.tp < on.profile.hardware.memory / 2


def larger_tp(s: Service) -> Service:
    return replace(s, tp=2 * s.tp) if s.tp < 8 else s


# ---------------------------------------------------------------- batch and queue


def seats(s: Service, num: int) -> Service:
    num = max(1, min(num, MOST_SEATS))
    return s.with_engine(max_num_seqs=num, max_num_batched_tokens=max(s.engine.max_num_batched_tokens, num))


def budget(s: Service, tokens: int) -> Service:
    return s.with_engine(max_num_batched_tokens=max(tokens, s.engine.max_num_seqs))


def chunked_prefill(s: Service) -> Service:
    if s.engine.enable_chunked_prefill:
        return s
    on = s.with_engine(enable_chunked_prefill=True)
    return budget(on, min(s.engine.max_num_batched_tokens, MIDDLE_CHUNK))


def bound_queue(s: Service) -> Service:
    deadline = s.slo.ttft or 1.0
    shedding = s.fleet.shedding.replace(deadline_s=0.4 * deadline)
    return s.with_fleet(shedding=shedding, clients=s.fleet.clients.replace(cancel_on_timeout=True))


def slow_lane(s: Service) -> Service:
    return s.with_engine(
        scheduling_order="two_lane", two_lane_threshold=PROMPT_LIMIT, enable_chunked_prefill=True,
        long_prefill_token_threshold=max(s.engine.max_num_batched_tokens // 8, 1),
    )  # fmt: skip


def backoff(s: Service) -> Service:
    clients = s.fleet.clients
    if clients.max_attempts == 1 and clients.timeout_s is None and clients.first_byte_timeout_s is None:
        return s
    pause = 2 * (s.slo.ttft or 1.0)
    calm = clients.replace(backoff_s=pause, backoff_factor=2.0, jitter=0.5, cancel_on_timeout=True)
    return s.with_fleet(clients=calm, shedding=s.fleet.shedding.replace(deadline_s=s.slo.ttft))


def timeouts(s: Service) -> Service:
    return s.with_fleet(clients=s.fleet.clients.replace(timeout_s=s.slo.e2e, first_byte_timeout_s=None))


def patience(s: Service) -> Service:
    clients = s.fleet.clients
    if clients.timeout_s is None and clients.first_byte_timeout_s is None:
        return s
    longer = {name: 4 * getattr(clients, name) for name in ("timeout_s", "first_byte_timeout_s")
              if getattr(clients, name) is not None}  # fmt: skip
    return s.with_fleet(clients=clients.replace(**longer))


# ---------------------------------------------------------------- traffic


def of_flows(s: Service, change: Callable[[Flow], Flow]) -> Service:
    return replace(s, flows=tuple(change(flow) for flow in s.flows))


def trimmed(flow: Flow) -> Flow:
    prompt = getattr(flow.kind, "prompt", None)
    if not isinstance(prompt, LogNormal):
        return flow
    shorter = prompt.replace(median=max(TRIMMED * prompt.median, prompt.low), high=max(int(TRIMMED * prompt.high), 1))
    return replace(flow, kind=flow.kind.replace(prompt=shorter))


def shorter_answers(flow: Flow) -> Flow:
    output = getattr(flow.kind, "output", None)
    if not isinstance(output, LogNormal) or output.high <= ANSWER_LIMIT:
        return flow
    return replace(flow, kind=flow.kind.replace(output=output.replace(high=ANSWER_LIMIT)))


def static_first(flow: Flow) -> Flow:
    if not isinstance(flow.kind, SharedPrefix) or not flow.kind.stamp_tokens:
        return flow
    return replace(flow, kind=flow.kind.replace(stamp_first=False))


# ---------------------------------------------------------------- speculation


def speculation(s: Service, **fields: object) -> Service:
    now = s.engine.speculative
    return s if now is None else s.with_engine(speculative=now.replace(**fields))


def gate(s: Service) -> Service:
    return speculation(s, max_batch=4, acceptance_floor=0.4, adaptive_k=True)


def other_proposer(s: Service) -> Service:
    now = s.engine.speculative
    if now is None or now.method == "synthetic" or "head" not in s.acceptance:
        return s
    fields = {"method": "synthetic", "acceptance_rate": s.acceptance["head"], "draft_cost": 0.05}
    kept = {"k": now.k, "max_batch": now.max_batch, "adaptive_k": now.adaptive_k}
    return s.with_engine(speculative=SpeculativeConfig(**fields, **kept, acceptance_floor=now.acceptance_floor))


def speculate(s: Service) -> Service:
    if s.engine.speculative is not None or s.engine.batching == "static":
        return s
    rate = s.acceptance.get("ngram", 0.3)
    return s.with_engine(speculative=SpeculativeConfig(method="ngram", k=4, acceptance_rate=rate))


def network(s: Service, **fields: object) -> Service:
    return s.with_fleet(network=s.fleet.network.replace(**fields))


def quantized(dtype: str) -> Callable[[Service], Service]:
    return lambda s: s.with_engine(quantization=dtype)


HOUR, DAY, WEEKS, MONTHS = "an hour", "a day", "some weeks", "three months"
ALL = (
    Intervention("double_fleet", "queue", "Double the replicas", DAY, double_fleet),
    Intervention("warm_pool", "queue", "Autoscale onto warm, loaded replicas that batch work lends, paid while used",
                 WEEKS, warm_pool),
    Intervention("more_seats", "queue", "Eight times the seats (max_num_seqs)", HOUR,
                 lambda s: seats(s, 8 * s.engine.max_num_seqs)),
    Intervention("fewer_seats", "queue", "A third of the seats (max_num_seqs)", HOUR,
                 lambda s: seats(s, s.engine.max_num_seqs // 3)),
    Intervention("continuous_batching", "queue", "Admit into the running batch, step by step", DAY,
                 lambda s: s.with_engine(batching="continuous")),
    Intervention("bound_queue", "queue", "Bound the queue: refuse what nobody began in time", DAY, bound_queue,
                 "the refused must ask again"),
    Intervention("slow_lane", "queue", "A lane of their own for long prompts, in small pieces", DAY, slow_lane),
    Intervention("least_outstanding", "queue", "Route to the replica with the fewest open requests, no stickiness", DAY,
                 lambda s: s.with_fleet(router=RouterConfig(policy="least_outstanding"))),
    Intervention("raise_client_cap", "queue", "Lift the clients' limit on open requests", HOUR,
                 lambda s: s.with_fleet(clients=s.fleet.clients.replace(max_in_flight=None))),
    Intervention("backoff", "queue", "Clients: back off with jitter, cancel, and a deadline at the door", DAY, backoff),
    Intervention("longer_timeouts", "queue", "Four times the clients' time-outs", HOUR, patience),
    Intervention("timeouts", "queue", "Cut every request off at the promised E2E", HOUR, timeouts,
                 "whoever is late gets nothing"),
    Intervention("ingress_workers", "queue", "Eight ingress workers; logging and templates off the path", DAY,
                 lambda s: network(s, ingress_s=s.fleet.network.ingress_s / 8,
                                   ingress_s_per_token=s.fleet.network.ingress_s_per_token / 8)),
    Intervention("near_clients", "queue", "An entry in the far region, connections kept alive", WEEKS,
                 lambda s: network(s, handshakes=0, far_rtt_s=s.fleet.network.rtt_s)),
    Intervention("prefix_aware", "prefill", "Route to the replica that has the prompt's beginning in its cache", DAY,
                 lambda s: s.with_fleet(router=RouterConfig(policy="prefix_aware"))),
    Intervention("static_first", "prefill", "Put what all prompts share first, what differs last", DAY,
                 lambda s: of_flows(s, static_first)),
    Intervention("chunked_prefill", "prefill", "Read prompts in chunks, beside others' decoding", HOUR,
                 chunked_prefill),
    Intervention("larger_chunks", "prefill", "Four times the tokens a step, at least 2048", HOUR,
                 lambda s: budget(s, max(4 * s.engine.max_num_batched_tokens, LARGE_CHUNK))),
    Intervention("smaller_chunks", "prefill", "At most 512 tokens a step", HOUR,
                 lambda s: budget(s, min(s.engine.max_num_batched_tokens, SMALL_CHUNK))),
    Intervention("prompt_limit", "prefill", "Refuse prompts of more than 4000 tokens", HOUR,
                 lambda s: s.with_engine(max_prompt_tokens=PROMPT_LIMIT), "long prompts are not served"),
    Intervention("trim_prompts", "prefill", "Retrieve fewer passages: prompts at 40% of their length", DAY,
                 lambda s: of_flows(s, trimmed), "answers rest on less"),
    Intervention("fp8", "prefill", "fp8 weights and products", WEEKS, quantized("fp8"), "quality to be checked"),
    Intervention("int8_weights", "decode", "int8 weights, widened for each product", MONTHS, quantized("int8"),
                 "quality to be checked"),
    Intervention("int4_weights", "decode", "int4 weights, widened for each product", MONTHS, quantized("int4"),
                 "quality to be checked"),
    Intervention("int8_kv", "decode", "int8 KV cache: twice the tokens in the same memory", WEEKS,
                 lambda s: s.with_engine(kv_cache_dtype="int8", **doubled_pool(s)), "quality to be checked"),
    Intervention("kv_budget", "decode", "Give the KV cache all the memory that the weights leave", HOUR,
                 lambda s: s.with_engine(num_kv_blocks=None, kv_cache_memory_gb=None)),
    Intervention("cuda_graphs", "decode", "Replay captured steps: CUDA graphs", DAY,
                 lambda s: replace(s, cuda_graphs=True)),
    Intervention("smaller_tp", "decode", "A smaller tensor-parallel degree, and more replicas on the same GPUs", DAY,
                 smaller_tp),
    Intervention("larger_tp", "decode", "Twice the tensor-parallel degree", DAY, larger_tp),
    Intervention("speculate", "decode", "Speculate: four tokens looked up in the prompt (n-grams)", DAY, speculate),
    Intervention("gate_speculation", "decode", "No drafts in batches over 4, nor where few pass", HOUR, gate),
    Intervention("other_proposer", "decode", "A draft head trained on this traffic", WEEKS, other_proposer),
    Intervention("larger_k", "decode", "Twice the draft tokens", HOUR,
                 lambda s: speculation(s, k=min(2 * s.engine.speculative.k, 32)) if s.engine.speculative else s),
    Intervention("output_limit", "decode", "max_tokens of 256", HOUR, lambda s: of_flows(s, shorter_answers),
                 "long answers are cut"),
    Intervention("unbuffer", "stream", "No buffering at the proxy: flush every chunk", HOUR,
                 lambda s: network(s, hold_chunks=1, hold_s=None)),
)  # fmt: skip
BY_ID = {intervention.id: intervention for intervention in ALL}


def doubled_pool(s: Service) -> dict[str, int]:
    """A pool given in blocks was given in memory: with half the bytes a token it has twice as many."""
    if s.engine.num_kv_blocks is None or s.engine.kv_cache_dtype != "auto":
        return {}
    return {"num_kv_blocks": 2 * s.engine.num_kv_blocks}
