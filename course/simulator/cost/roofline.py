"""What one step costs: a roofline, and a handful of constants that make it true.

A step with T new tokens, R rows of logits and B requests takes as long as

    linear       max[(2 P T + 2 P_head R) / (tp F MFU(T)), W / (tp BW eff)] + serial x min[the same] + dequantization
    attention    max[4 L q Σ n(c + n/2) / (tp F MFU_attn), kv_bytes Σ(c + n) / (tp BW eff_kv)], prompts + decodes
    all-reduce   2 L [waiting for the last of tp + min(α + β T h bytes, the same with other α, β)]: see all_reduce.py
    gaps         L x (what the small kernels of a layer take), and a little more with prompts
    host         the step waits for it where it is longer than all of the above

plus a fixed time per step and per request. n are a request's new tokens, c those already in the cache. Of a mixture of
experts, P are the parameters that a token goes through, and W grows with T: see `arithmetic.share_woken`. With expert
parallelism (experts.py) its layers wait for the busiest rank; with data-parallel attention, two all-to-alls take the
place of the all-reduce.
LoRA adapters are matrix products of their own beside the linear layers: see lora.py.

With pp pipeline stages (Huang et al. 2019, GPipe; Narayanan et al. 2021, "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM") the B requests run as m = min(pp, B) micro-batches, one behind the other:

    step         pp x (one stage's time for 1/m of the work) + pp x [α + T/m h bytes / link]

The first part is the formula above for 1/m of the work, with the FLOP/s and bandwidth of tp accelerators; the second
hands activations from stage to stage. A micro-batch is back at the first stage when that is done with the others, so
stages are kept full by pp requests or more; fewer leave some idle. Not in it: micro-batches with unequal work, such as
one that has a long prompt, and unequal stages, such as the last, which has the head. The others wait for both.

Williams et al. 2009 (roofline) give the two maxima, Shoeybi et al. 2019 (Megatron-LM) the two all-reduces a
layer, Pope et al. 2022 ("Efficiently Scaling Transformer Inference") the use of both for decoding.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated

from pydantic import Field

from course.simulator.cost.all_reduce import AllReduce, Line, small_exchange, waits_of_two
from course.simulator.cost.hardware import Hardware
from course.simulator.cost.lora import ADAPTER_BYTES
from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from course.simulator.cost.sizes import DTYPE_BYTES
from course.simulator.errors import PricingError
from minillm.core.batch import ScheduledRequest
from minillm.kernels.attention.window import Window
from minillm.model.arithmetic import share_woken
from minillm.strict_model import StrictModel

EVERYTHING = Window()
"""Every token sees all before it."""


MAX_SHARE = 1.1
"""A fit may end a little over a published peak: boost clocks do, and caches."""
Share = Annotated[float, Field(gt=0, le=MAX_SHARE)]
Seconds = Annotated[float, Field(ge=0)]


class Constants(StrictModel):
    """How far a real stack is from the paper roofline. Fractions of a peak, or seconds.

    They are meant to carry from model to model on one kind of hardware and one serving stack, so none of
    them knows a model's size: what grows with depth is stated per layer.
    """

    _error: type[Exception] = PricingError

    mfu: Share = 1.0
    """Model FLOPs utilization: share of peak FLOP/s that matrix products of many tokens reach."""
    expert_mfu: Share | None = None
    """The same in products with experts, each of which has a few of the tokens; None = as in all others."""
    half_tokens: float = Field(0.0, ge=0)
    """MFU(T) = mfu T / (T + half_tokens): with this many tokens a step reaches half of it."""
    bandwidth: Share = 1.0
    """Share of peak memory bandwidth when reading weights."""
    expert_bandwidth: Share | None = None
    """The same for the weights of experts, which are many small matrices; None = as for all others."""
    serial: float = Field(0.0, ge=0, le=1)
    """Share of the shorter of computing and reading weights that does not run beside the longer. 0 on a GPU, which
    has thousands of threads to wait with; near 1 on a CPU, whose cores stop multiplying while they wait."""
    kv_bandwidth: Share = 1.0
    """The same when attention reads the KV cache."""
    attention_mfu: Share = 1.0
    """Share of peak FLOP/s inside attention."""
    wait_s: Seconds | None = None
    """Seconds until the later of two ranks has reached an all-reduce (of more, longer: `waits_of_two`), whose own time
    is taken from measurements of such links where there are any (all_reduce.json); None = from the next three."""
    link: Share = 1.0
    """Share of the link's bandwidth that a large all-reduce or all-to-all reaches."""
    link_latency_s: Seconds = 0.0
    """Seconds per all-reduce or all-to-all, however small (α); of two ranks, if link_hop_s isn't 0."""
    link_hop_s: Seconds = 0.0
    """Further seconds per hop of an all-reduce among more than two ranks, which has 2 (tp - 2) hops more. 0 also where
    a fit was to the ranks themselves, so that link_latency_s has it."""
    layer_s: Seconds = 0.0
    """Seconds per layer that no other term has: small kernels, and the gaps between kernels."""
    expert_layer_s: Seconds = 0.0
    """Further seconds per layer with experts: routing, sorting tokens by expert, adding the parts up."""
    latent_layer_s: Seconds = 0.0
    """Further seconds per layer with latent attention: projections down and up, more kernels."""
    recurrent_layer_s: Seconds = 0.0
    """Further seconds per layer with a recurrent state in place of attention."""
    exchange_s: Seconds = 0.0
    """Seconds per all-to-all of data-parallel attention, waiting included; 0 = as link_latency_s. Within a server whose
    link was measured with so many accelerators, what they took counts instead, and wait_s."""
    rank_prefill_s: Seconds = 0.0
    """Further seconds of a step that computes prompts on data-parallel ranks, which wait for one another."""
    launch_s: Seconds = 0.0
    """Host seconds to launch one layer's kernels; near zero with CUDA graphs."""
    host_s: Seconds = 0.0
    """Host seconds per step beside launching."""
    prefill_host_s: Seconds = 0.0
    """Further host seconds of a step that computes prompts."""
    prefill_s: Seconds = 0.0
    """Further seconds of a step that computes prompts, which nothing hides: other kernels, that begin cold."""
    prefill_layer_s: Seconds = 0.0
    """The same per layer: kernels that no CUDA graph holds, launched one by one."""
    expert_prefill_layer_s: Seconds = 0.0
    """Further seconds of the same kind per layer with experts: routing, sorting, products of experts."""
    latent_prefill_layer_s: Seconds = 0.0
    """Further seconds of the same kind per layer with latent attention."""
    recurrent_prefill_layer_s: Seconds = 0.0
    """Further seconds of the same kind per layer with a recurrent state."""
    step_s: Seconds = 0.0
    """Seconds per step that nothing hides: sampling, copying the tokens back, waking up."""
    request_s: Seconds = 0.0
    """The same per request in the step."""
    tokenize_s: Seconds = 0.0
    """Host seconds per prompt token before a request reaches the scheduler, one prompt after the other: HTTP's body,
    tokenizing. Not part of a step's price."""
    cold_s: Seconds = 0.0
    """Seconds once, when the first requests come to a server that nothing has warmed up: libraries pick kernels and set
    themselves up. Not part of a step's price."""
    compile_s: Seconds = 0.0
    """Seconds once, when the first prompt is split: kernels that continue one are compiled when they are needed first.
    Not part of a step's price; servers are warmed up."""


CHIP = ("mfu", "expert_mfu", "half_tokens", "bandwidth", "expert_bandwidth", "serial", "kv_bandwidth", "attention_mfu")
"""What the chip reaches of its data sheet, by shape and accumulation: another chip reaches other shares."""
LINK = ("link", "link_latency_s", "link_hop_s")
"""Constants of the wires between accelerators: they belong to the server."""
HOST = ("launch_s", "host_s", "prefill_host_s", "request_s", "tokenize_s")
"""What the host does, for each step and each request, and how long it takes to launch."""
STACK = (
    "layer_s",
    "expert_layer_s",
    "latent_layer_s",
    "recurrent_layer_s",
    "wait_s",
    "exchange_s",
    "prefill_s",
    "prefill_layer_s",
    "expert_prefill_layer_s",
    "latent_prefill_layer_s",
    "recurrent_prefill_layer_s",
    "rank_prefill_s",
    "step_s",
    "cold_s",
    "compile_s",
)
"""Constants of the software on the device: small kernels and their gaps, sampling. With HOST, this is what carries
over to another accelerator in a server like the one that was measured."""
SHARES = frozenset({"mfu", "expert_mfu", "bandwidth", "expert_bandwidth", "kv_bandwidth", "attention_mfu", "link"})
HIGHEST = {**dict.fromkeys(SHARES, MAX_SHARE), "serial": 1.0}
"""The constants that are limited from above."""
ROOFLINE = Constants()
"""The paper roofline: every peak is reached, nothing else takes time. Known to be far off; kept to compare with."""


@dataclass(slots=True)
class StepWork:
    """What a price depends on."""

    tokens: float
    """T: new tokens."""
    logits: float
    """R: rows that sample, or check a draft."""
    requests: float
    """B: requests in the step."""
    pairs: float
    """Σ n c + n (n + 1) / 2: (query, key) pairs that causal attention scores, per head; fewer with a window."""
    context: float
    """Σ (c + n): tokens whose keys and values are read; fewer with a window."""
    prefills: float
    """Requests of which more than one token is computed; a draft's don't count."""
    prompt_tokens: float = 0
    """Tokens of such requests, among `tokens`."""
    prompt_pairs: float = 0
    """Pairs of such requests, among `pairs`."""
    prompt_context: float = 0
    """Context of such requests, among `context`."""

    def add(self, tokens: int, logits: int, pairs: int, context: int, is_prompt: bool) -> None:
        """Count one more request."""
        self.tokens += tokens
        self.logits += logits
        self.requests += 1
        self.pairs += pairs
        self.context += context
        if is_prompt:
            self.prefills += 1
            self.prompt_tokens += tokens
            self.prompt_pairs += pairs
            self.prompt_context += context

    @classmethod
    def of_prompt(cls, tokens: int, cached: int = 0) -> "StepWork":
        """One prompt's tokens behind so many cached ones; the last of them samples."""
        pairs, context = tokens * cached + tokens * (tokens + 1) // 2, cached + tokens
        return cls(tokens, 1, 1, pairs, context, 1, tokens, pairs, context)

    @classmethod
    def of_decodes(cls, requests: int, context: float) -> "StepWork":
        """One token for each of the requests, which see so many tokens each."""
        return cls(requests, requests, requests, requests * context, requests * context, 0)


def work_of(requests: tuple[ScheduledRequest, ...], window: Window = EVERYTHING) -> StepWork:
    """The work in a scheduled batch.

    Args:
        window: what a token sees.
    """
    work = StepWork(0, 0, 0, 0, 0, 0)
    for scheduled in requests:
        new, start = scheduled.num_tokens, scheduled.start
        context = start + new
        pairs = new * start + new * (new + 1) // 2
        if window.size is not None:
            # No token sees more than `most`: take off the keys that have left its sight, 1, 2, ... of the last ones.
            most = window.size + window.sinks
            context -= max(start + 1 - most, 0)
            before, after = max(start - most, 0), max(start + new - most, 0)
            pairs -= (after * (after + 1) - before * (before + 1)) // 2
        is_prompt = new - scheduled.num_drafts > 1
        work.add(new, scheduled.samples + scheduled.num_drafts, pairs, context, is_prompt)
    return work


def micro_batch(work: StepWork, pp: int) -> StepWork:
    """The work of one of min(pp, requests) equal parts of a step; `prefills` is the whole step's."""
    num = min(pp, work.requests)
    part = StepWork(*(getattr(work, each.name) / num for each in fields(work)))
    part.prefills = work.prefills
    return part


@dataclass(frozen=True, slots=True)
class Reduces:
    """All of a step's all-reduces, done in one way: seconds, as a straight line over its tokens."""

    latency_s: float
    token_s: float


@dataclass(slots=True)
class StepTime:
    """Seconds of one step, by cause."""

    linear: float
    attention: float
    all_reduce: float
    """And all-to-all of expert parallelism, and hand-overs between pipeline stages."""
    gaps: float
    waiting_for_host: float
    """How much longer the host took to launch the step than the device to do it."""
    fixed: float
    """Per step and per request: not hidden behind anything."""
    work: StepWork
    """What this is the price of."""

    @property
    def forward(self) -> float:
        """Until the pass is done; `fixed` comes after it."""
        return self.linear + self.attention + self.all_reduce + self.gaps + self.waiting_for_host

    @property
    def total(self) -> float:
        return self.forward + self.fixed

    def __add__(self, later: "StepTime") -> "StepTime":
        """Two steps, one after the other, as one; `work` is the first one's."""
        parts = (each.name for each in fields(self) if each.name != "work")
        return StepTime(**{name: getattr(self, name) + getattr(later, name) for name in parts}, work=self.work)


DEQUANT_OPS = 4
"""Operations to widen one quantized weight: shift, mask, convert, scale."""
DEQUANT_TILE = 256
"""Tokens that share one widening of the weights: the height of a matrix product's tile."""
WIDENED = ("int8", "int4")
"""Weights of these dtypes are widened before they are multiplied. fp8 is multiplied as it is, where a chip can."""


def exchange_line(hardware: Hardware, ranks: int, constants: Constants) -> Line:
    """One exchange of data-parallel attention: a straight line over the bytes of all ranks' tokens.

    Within a server its latency is as measured, and the wait. So are its bytes, unless `link` was fitted to exchanges:
    an all-gather before the experts and a reduce-scatter behind them (vLLM's default) are the halves of an all-reduce.
    """
    small, wait_s = small_exchange(hardware, ranks), constants.wait_s
    byte_s = (ranks - 1) / ranks / (hardware.link * constants.link)  # the rest of the tokens are a rank's own
    if small is None or wait_s is None:
        return Line(constants.exchange_s or constants.link_latency_s, byte_s)
    latency_s = small + wait_s * waits_of_two(ranks)
    if constants.exchange_s:
        return Line(latency_s, byte_s)
    reduce = AllReduce.of(hardware, ranks, wait_s, constants.link, constants.link_latency_s, constants.link_hop_s)
    return Line(latency_s, reduce.ways[-1].byte_s / 2)


class StepTimeModel:
    """Prices steps of one model on one kind of accelerator.

    Args:
        placement: dtypes, tensor and expert parallelism, pipeline stages, adapters.
        constants: ROOFLINE, or fitted ones.
    """

    def __init__(self, model: PricedModel, hardware: Hardware, placement: Placement, constants: Constants) -> None:
        tp, dtype = placement.tp, placement.weight_dtype
        compute_dtype = "bfloat16" if dtype in WIDENED else model.multiplied_in(dtype, hardware)
        peak = hardware.peak_flops(compute_dtype) * tp
        wide = model.wide_params(dtype)
        activation_bytes = DTYPE_BYTES["float32" if dtype == "float32" else "bfloat16"]
        attention_peak = hardware.peak_flops("float32" if dtype == "float32" else "bfloat16") * tp
        self.constants, self.skip, self.pp, self.lora = constants, model.skip, placement.pp, placement.lora
        copies = placement.copied_params(model)
        repeated = placement.repeated_params(model)
        narrow = model.layer_params - wide + (0 if wide else repeated)
        wide += repeated if wide else 0
        wide_peak = hardware.peak_flops("bfloat16") * tp
        expert_mfu = constants.expert_mfu or constants.mfu
        chosen = model.experts_per_token * model.expert_params
        self.token_s = 2 * ((narrow - chosen) / peak + wide / wide_peak) / constants.mfu
        self.token_s += 2 * chosen / (peak * expert_mfu)
        self.logit_s = 2 * model.head_params / (peak * constants.mfu)
        bandwidth = tp * hardware.bandwidth * constants.bandwidth
        self.weights_s = (model.read_bytes(dtype) + copies * model.attention_bytes(dtype)) / bandwidth
        idle_bytes = model.read_bytes(dtype, math.inf) - model.read_bytes(dtype)
        expert_bandwidth = tp * hardware.bandwidth * (constants.expert_bandwidth or constants.bandwidth)
        self.idle_s = idle_bytes / expert_bandwidth
        attention_flops = attention_peak * constants.attention_mfu
        self.pair_s = 4 * model.layers * model.decode_size / attention_flops
        self.prompt_pair_s = 4 * model.layers * model.query_size / attention_flops
        context_bytes = placement.pp * placement.kv_bytes_per_token(model)  # of tp accelerators, if they had all layers
        self.context_s = context_bytes / (hardware.bandwidth * constants.kv_bandwidth)
        widened = model.layer_params + model.head_params if dtype in WIDENED else 0
        vector_peak = hardware.flops.get("float32", hardware.flops["bfloat16"])
        self.dequant_s = DEQUANT_OPS * widened / (tp * vector_peak)
        idle = model.idle_params if dtype in WIDENED else 0
        self.idle_dequant_s = DEQUANT_OPS * idle / (tp * vector_peak)
        self.experts = placement.expert_ranks(model)
        exchanges = 2 * model.sparse_layers if placement.dp > 1 else 0
        # Attention's, and the MLP's, which exchanges replace. A rank's all-reduce carries its own tokens.
        reduces = (1 if placement.dp > 1 else 2) * model.layers if placement.attention_tp > 1 else 0
        reduces_token = reduces / placement.dp
        reduce = AllReduce.of(
            hardware,
            placement.attention_tp,
            constants.wait_s,
            constants.link,
            constants.link_latency_s,
            constants.link_hop_s,
        )
        reduced_bytes = model.hidden * activation_bytes
        self.reduces = [
            Reduces(reduces * way.latency_s, reduces_token * way.byte_s * reduced_bytes) for way in reduce.ways
        ]
        exchange = exchange_line(hardware, tp, constants)
        self.exchange_s = exchanges * exchange.latency_s
        self.exchange_row_s = exchanges * exchange.byte_s * model.hidden * activation_bytes
        groups = self.experts.ranks if self.experts is not None else 1
        self.expert_row_s = 2 * model.expert_params / (peak / groups * expert_mfu)
        hands_over = placement.pp > 1  # each stage does; the last one's tokens are counted like the others'
        self.hand_over_s = hands_over * placement.pp * constants.link_latency_s
        activations = model.hidden * activation_bytes
        self.hand_over_token_s = hands_over * placement.pp * activations / (hardware.link * constants.link)
        adapter = self.lora.params(model)
        self.adapter_s = ADAPTER_BYTES * adapter / bandwidth
        self.adapter_token_s = 2 * adapter / (tp * hardware.peak_flops("bfloat16") * constants.mfu)
        latent = model.layers if model.latent_size else 0
        recurrent = model.layers - model.growing_layers if model.fixed_bytes else 0
        self.gaps_s = model.layers * constants.layer_s
        self.gaps_s += latent * constants.latent_layer_s + recurrent * constants.recurrent_layer_s
        self.gaps_s += model.sparse_layers * constants.expert_layer_s
        self.prefill_s = constants.prefill_s + model.layers * constants.prefill_layer_s
        self.prefill_s += latent * constants.latent_prefill_layer_s + recurrent * constants.recurrent_prefill_layer_s
        self.prefill_s += model.sparse_layers * constants.expert_prefill_layer_s
        self.prefill_s += constants.rank_prefill_s * (placement.dp > 1)
        self.host_s = model.layers * constants.launch_s + constants.host_s

    def price(self, work: StepWork) -> StepTime:
        """Seconds that a step takes."""
        c, part = self.constants, work if self.pp == 1 else micro_batch(work, self.pp)
        has_prompts = work.prefills > 0
        linear, attention, all_reduce = self._linear(part), self._attention(part), self._all_reduce(part)
        gaps = self.gaps_s + self.prefill_s * has_prompts
        device = linear + attention + all_reduce + gaps
        host = self.host_s + c.prefill_host_s * has_prompts
        waiting = max(host - device, 0.0)
        fixed = c.step_s + c.request_s * work.requests
        return StepTime(linear, attention, all_reduce, gaps, waiting, fixed, work)

    def _linear(self, work: StepWork) -> float:
        """Products with weights, while these are read."""
        tokens, c = work.tokens, self.constants
        products, woken = self.token_s * tokens + self.logit_s * work.logits, share_woken(self.skip, tokens)
        if self.experts is not None:  # as if all ranks had as much to do as the busiest
            woken = self.experts.woken(tokens)
            products += self.expert_row_s * (self.experts.rows(tokens) - self.experts.even_rows(tokens))
        products *= 1 + c.half_tokens / tokens
        weights = self.weights_s + self.idle_s * woken
        # The rows of one expert are seldom more than a tile.
        dequant = self.dequant_s * -(-tokens // DEQUANT_TILE) + self.idle_dequant_s * woken
        longer, shorter = max(products, weights), min(products, weights)
        linear = longer + c.serial * shorter + dequant
        if self.lora.adapters:
            adapters_s = self.adapter_s * self.lora.distinct(work.requests)
            linear += max(self.adapter_token_s * tokens, adapters_s)
        return linear

    def _attention(self, work: StepWork) -> float:
        """Scores, while keys and values are read: kernels for prompts, then those for decodes."""
        decode_pairs, decode_context = work.pairs - work.prompt_pairs, work.context - work.prompt_context
        prompts = max(self.prompt_pair_s * work.prompt_pairs, self.context_s * work.prompt_context)
        return prompts + max(self.pair_s * decode_pairs, self.context_s * decode_context)

    def _all_reduce(self, work: StepWork) -> float:
        """What goes over the links between accelerators."""
        tokens = work.tokens
        visits = tokens if self.experts is None else self.experts.visits(tokens)
        reduce = min([way.latency_s + way.token_s * tokens for way in self.reduces])
        exchanges = self.exchange_s + self.exchange_row_s * visits
        return reduce + exchanges + self.hand_over_s + self.hand_over_token_s * tokens

    def decode_seconds(self, requests: int, contexts: Iterable[int]) -> list[float]:
        """Totals of steps in which so many requests decode, by the sum of their contexts in each, tokens: what `price`
        says, of which only attention and the wait for the host depend on that. Most steps are priced here."""
        rest = self.price(StepWork(requests, requests, requests, 0, 0, 0))
        linear, all_reduce, gaps, fixed, host_s = rest.linear, rest.all_reduce, rest.gaps, rest.fixed, self.host_s
        parts = min(self.pp, requests)
        attention_s = max(self.pair_s, self.context_s)
        totals = []
        for context in contexts:
            device = linear + attention_s * (context / parts) + all_reduce + gaps
            totals.append(device + max(host_s - device, 0.0) + fixed)
        return totals
