"""What one step costs: a roofline, and a handful of constants that make it true.

A step with T new tokens, R rows of logits and B requests takes as long as

    linear       max[(2 P T + 2 P_head R) / (tp F MFU(T)), W / (tp BW eff)] + serial x min[the same] + dequantisation
    attention    max[4 L q Σ n(c + n/2) / (tp F MFU_attn), kv_bytes Σ(c + n) / (tp BW eff_kv)]
    all-reduce   2 L [α + min(2 (tp-2) hop + 2 (tp-1)/tp T h bytes / link, (tp-1) T h bytes / link)]
    gaps         L x (what the small kernels of a layer take), and a little more with prompts
    host         the step waits for it where it is longer than all of the above

plus a fixed time per step and per request. n are a request's new tokens, c those already in the cache. Of a mixture of
experts, P are the parameters that a token goes through, and W grows with T: see `arithmetic.share_woken`; with expert
parallelism (experts.py), its layers have two all-to-alls in place of one all-reduce, and wait for the busiest rank.
LoRA adapters are matrix products of their own beside the linear layers: see lora.py.

An all-reduce goes the faster of two ways: in 2 (tp-1) hops, as a reduce-scatter and an all-gather (Patarasuk and Yuan
2009), or at once, every rank reading all that the others have. The second needs a kernel of its own, which vLLM has for
NVLink (pull request 2192). Either way large messages reach more of the bandwidth: hops take as long for small ones.

With pp pipeline stages (Huang et al. 2019, GPipe; Narayanan et al. 2021, "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM") the B requests run as m = min(pp, B) micro-batches, one behind the other:

    step         pp x (one stage's time for 1/m of the work) + pp x [α + T/m h bytes / link]

The first part is the formula above for 1/m of the work, with the FLOP/s and bandwidth of tp accelerators; the second
hands activations from stage to stage. A micro-batch is back at the first stage when that is done with the others, so
stages are kept full by pp requests or more; fewer leave some idle. Not in it: micro-batches with unequal work, such as
one that has a long prompt, and unequal stages, such as the last, which has the head. The others wait for both.

Williams et al. 2009 (roofline) give the two maxima, Shoeybi et al. 2019 (Megatron-LM) the two all-reduces a
layer, Pope et al. 2022 ("Efficiently Scaling Transformer Inference") the use of both for decoding.

The formula is written once, for floats and for numpy arrays: simulating prices one step at a time, fitting
prices ten thousand.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from course.simulator.cost.hardware import Hardware
from course.simulator.cost.lora import ADAPTER_BYTES
from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from course.simulator.errors import PricingError
from minillm.core.batch import ScheduledRequest
from minillm.core.params import StrictModel
from minillm.kernels.attention.window import Window
from minillm.model.arithmetic import DTYPE_BYTES, LAYER_BYTES, share_woken

Number = Any
"""A float, or a numpy array of floats: one for each step."""
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
    """Model FLOPs utilisation: share of peak FLOP/s that matrix products of many tokens reach."""
    half_tokens: float = Field(0.0, ge=0)
    """MFU(T) = mfu T / (T + half_tokens): with this many tokens a step reaches half of it."""
    bandwidth: Share = 1.0
    """Share of peak memory bandwidth when reading weights."""
    serial: float = Field(0.0, ge=0, le=1)
    """Share of the shorter of computing and reading weights that does not run beside the longer. 0 on a GPU, which
    has thousands of threads to wait with; near 1 on a CPU, whose cores stop multiplying while they wait."""
    kv_bandwidth: Share = 1.0
    """The same when attention reads the KV cache."""
    attention_mfu: Share = 1.0
    """Share of peak FLOP/s inside attention."""
    link: Share = 1.0
    """Share of the link's bandwidth that a large all-reduce reaches."""
    link_latency_s: Seconds = 0.0
    """Seconds per all-reduce or all-to-all, however small (α); of two ranks, if link_hop_s isn't 0."""
    link_hop_s: Seconds = 0.0
    """Further seconds per hop of an all-reduce among more than two ranks, which has 2 (tp - 2) hops more. 0 also where
    a fit was to the ranks themselves, so that link_latency_s has it."""
    layer_s: Seconds = 0.0
    """Seconds per layer that no other term has: small kernels, and the gaps between kernels."""
    launch_s: Seconds = 0.0
    """Host seconds to launch one layer's kernels; near zero with CUDA graphs."""
    host_s: Seconds = 0.0
    """Host seconds per step beside launching."""
    prefill_host_s: Seconds = 0.0
    """Further host seconds of a step that computes prompts."""
    prefill_s: Seconds = 0.0
    """Further seconds of a step that computes prompts, which nothing hides: other kernels, that begin cold."""
    step_s: Seconds = 0.0
    """Seconds per step that nothing hides: sampling, copying the tokens back, waking up."""
    request_s: Seconds = 0.0
    """The same per request in the step."""


CHIP = ("mfu", "half_tokens", "bandwidth", "serial", "kv_bandwidth", "attention_mfu")
"""What the chip reaches of its data sheet, by shape and accumulation: another chip reaches other shares."""
LINK = ("link", "link_latency_s", "link_hop_s")
"""Constants of the wires between accelerators: they belong to the server."""
HOST = ("launch_s", "host_s", "prefill_host_s", "request_s")
"""What the host does, for each step and each request, and how long it takes to launch."""
STACK = ("layer_s", "prefill_s", "step_s")
"""Constants of the software on the device: small kernels and their gaps, sampling. With HOST, this is what carries
over to another accelerator in a server like the one that was measured."""
SHARES = frozenset({"mfu", "bandwidth", "kv_bandwidth", "attention_mfu", "link"})
HIGHEST = {**dict.fromkeys(SHARES, MAX_SHARE), "serial": 1.0}
"""The constants that are limited from above."""
ROOFLINE = Constants()
"""The paper roofline: every peak is reached, nothing else takes time. Known to be far off; kept to compare with."""


@dataclass(slots=True)
class StepWork:
    """What a price depends on. Numbers, or arrays with one entry per step."""

    tokens: Number
    """T: new tokens."""
    logits: Number
    """R: rows that sample, or check a draft."""
    requests: Number
    """B: requests in the step."""
    pairs: Number
    """Σ n c + n (n + 1) / 2: (query, key) pairs that causal attention scores, per head; fewer with a window."""
    context: Number
    """Σ (c + n): tokens whose keys and values are read; fewer with a window."""
    prefills: Number
    """1 if the step computes more than one token of some request, else 0."""


def work_of(requests: tuple[ScheduledRequest, ...], window: Window = EVERYTHING) -> StepWork:
    """The work in a scheduled batch.

    Args:
        window: what a token sees.
    """
    tokens = logits = pairs = context = drafts = 0
    for scheduled in requests:
        new, start = scheduled.num_tokens, scheduled.start
        tokens += new
        drafts += scheduled.num_drafts
        logits += scheduled.samples + scheduled.num_drafts
        context += start + new
        pairs += new * start + new * (new + 1) // 2
        if window.size is not None:
            # No token sees more than `most`: take off the keys that have left its sight, 1, 2, ... of the last ones.
            most = window.size + window.sinks
            context -= max(start + 1 - most, 0)
            before, after = max(start - most, 0), max(start + new - most, 0)
            pairs -= (after * (after + 1) - before * (before + 1)) // 2
    return StepWork(tokens, logits, len(requests), pairs, context, int(tokens - drafts > len(requests)))


def micro_batch(work: StepWork, pp: int, maximum: Callable[[Number, Number], Number]) -> StepWork:
    """The work of one of min(pp, requests) equal parts of a step; `prefills` is the whole step's."""
    num = -maximum(-pp, -work.requests)
    tokens, logits, requests = work.tokens / num, work.logits / num, work.requests / num
    return StepWork(tokens, logits, requests, work.pairs / num, work.context / num, work.prefills)


@dataclass(slots=True)
class StepTime:
    """Seconds of one step, by cause."""

    linear: Number
    attention: Number
    all_reduce: Number
    """And all-to-all of expert parallelism, and hand-overs between pipeline stages."""
    gaps: Number
    waiting_for_host: Number
    """How much longer the host took to launch the step than the device to do it."""
    fixed: Number
    """Per step and per request: not hidden behind anything."""
    work: StepWork
    """What this is the price of."""

    @property
    def forward(self) -> Number:
        """Until the pass is done; `fixed` comes after it."""
        return self.linear + self.attention + self.all_reduce + self.gaps + self.waiting_for_host

    @property
    def total(self) -> Number:
        return self.forward + self.fixed


DEQUANT_OPS = 4
"""Operations to widen one quantized weight: shift, mask, convert, scale."""
DEQUANT_TILE = 256
"""Tokens that share one widening of the weights: the height of a matrix product's tile."""
WIDENED = ("int8", "int4")
"""Weights of these dtypes are widened before they are multiplied. fp8 is multiplied as it is, where a chip can."""


class StepTimeModel:
    """Prices steps of one model on one kind of accelerator.

    Args:
        placement: dtypes, tensor and expert parallelism, pipeline stages, adapters.
        constants: ROOFLINE, or fitted ones.
    """

    def __init__(self, model: PricedModel, hardware: Hardware, placement: Placement, constants: Constants) -> None:
        tp, dtype = placement.tp, placement.weight_dtype
        compute_dtype = "bfloat16" if dtype in WIDENED else dtype
        peak = hardware.peak_flops(compute_dtype) * tp
        activation_bytes = DTYPE_BYTES["float32" if dtype == "float32" else "bfloat16"]
        attention_peak = hardware.peak_flops("float32" if dtype == "float32" else "bfloat16") * tp
        self.constants, self.skip, self.pp, self.lora = constants, model.skip, placement.pp, placement.lora
        copies = placement.copied_params(model)
        self.token_s = 2 * (model.layer_params + copies) / (peak * constants.mfu)
        self.logit_s = 2 * model.head_params / (peak * constants.mfu)
        bandwidth = tp * hardware.bandwidth * constants.bandwidth
        self.weights_s = (model.read_bytes(dtype) + copies * LAYER_BYTES[dtype]) / bandwidth
        self.idle_s = (model.read_bytes(dtype, math.inf) - model.read_bytes(dtype)) / bandwidth
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
        exchanges = 2 * model.sparse_layers if self.experts else 0
        reduces = 2 * model.layers - exchanges // 2 if tp > 1 else 0
        self.reduce_s = (reduces + exchanges) * constants.link_latency_s
        self.hops_s = reduces * 2 * max(tp - 2, 0) * constants.link_hop_s
        message = 2 * (tp - 1) / tp * model.hidden * activation_bytes
        self.reduce_token_s = reduces * message / (hardware.link * constants.link)
        self.at_once_token_s = self.reduce_token_s * tp / 2 if hardware.link_class == "nvlink" else math.inf
        # Of a rank's tokens, (tp - 1) / tp come from others.
        self.exchange_row_s = exchanges * message / 2 / (hardware.link * constants.link)
        self.expert_row_s = 2 * model.expert_params / (peak / tp * constants.mfu)
        hands_over = placement.pp > 1  # each stage does; the last one's tokens are counted like the others'
        self.hand_over_s = hands_over * placement.pp * constants.link_latency_s
        activations = model.hidden * activation_bytes
        self.hand_over_token_s = hands_over * placement.pp * activations / (hardware.link * constants.link)
        adapter = self.lora.params(model)
        self.adapter_s = ADAPTER_BYTES * adapter / bandwidth
        self.adapter_token_s = 2 * adapter / (tp * hardware.peak_flops("bfloat16") * constants.mfu)
        self.gaps_s = model.layers * constants.layer_s
        self.host_s = model.layers * constants.launch_s + constants.host_s

    def price(self, work: StepWork, maximum: Callable[[Number, Number], Number] = max) -> StepTime:
        """Seconds that a step takes.

        Args:
            maximum: `max`, or `numpy.maximum` when the work is made of arrays.
        """
        c, part = self.constants, work if self.pp == 1 else micro_batch(work, self.pp, maximum)
        tokens = part.tokens
        products, woken = self.token_s * tokens + self.logit_s * part.logits, share_woken(self.skip, tokens)
        rows: Number = 0.0
        if self.experts is not None:  # as if all ranks had as much to do as the busiest
            rows, woken = self.experts.rows(tokens, maximum), self.experts.woken(tokens, maximum)
            products += self.expert_row_s * (rows - self.experts.even_rows(tokens))
        products *= 1 + c.half_tokens / tokens
        weights = self.weights_s + self.idle_s * woken
        # The rows of one expert are seldom more than a tile.
        dequant = self.dequant_s * -(-tokens // DEQUANT_TILE) + self.idle_dequant_s * woken
        longer = maximum(products, weights)
        linear = longer + c.serial * (products + weights - longer) + dequant
        if self.lora.adapters:
            adapters_s = self.adapter_s * self.lora.distinct(part.requests)
            linear = linear + maximum(self.adapter_token_s * tokens, adapters_s)
        pair_s = self.pair_s + (self.prompt_pair_s - self.pair_s) * work.prefills
        attention = maximum(pair_s * part.pairs, self.context_s * part.context)
        faster = -maximum(-(self.hops_s + self.reduce_token_s * tokens), -self.at_once_token_s * tokens)
        all_reduce = self.reduce_s + faster + self.exchange_row_s * rows
        all_reduce = all_reduce + self.hand_over_s + self.hand_over_token_s * tokens
        gaps = self.gaps_s + c.prefill_s * work.prefills
        device = linear + attention + all_reduce + gaps
        host = self.host_s + c.prefill_host_s * work.prefills
        waiting = maximum(host - device, 0.0)
        fixed = c.step_s + c.request_s * work.requests
        return StepTime(linear, attention, all_reduce, gaps, waiting, fixed, work)

    def decode_seconds(self, requests: int, contexts: Iterable[int]) -> list[float]:
        """Totals of steps in which so many requests decode, by the sum of their contexts in each, tokens: what `price`
        says, of which only attention and the wait for the host depend on that. Most steps are priced here."""
        rest = self.price(StepWork(requests, requests, requests, 0, 0, 0))
        parts = min(self.pp, requests)
        attention_s = max(self.pair_s, self.context_s)
        totals = []
        for context in contexts:
            device = rest.linear + attention_s * (context / parts) + rest.all_reduce + rest.gaps
            totals.append(device + max(self.host_s - device, 0.0) + rest.fixed)
        return totals
