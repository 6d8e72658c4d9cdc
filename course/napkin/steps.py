"""Sums about one step: what prefill, decode, experts and speculation take at least."""

import math

from course.drills.amounts import BYTE_RATE, BYTES, FLOPS, RATIO, SECONDS, TOKEN_RATE, TOKENS
from course.drills.library.formulas import DTYPE, accepted, prefill_floor, step_floor
from course.napkin.draw import FP8_CARDS, MACHINES, SPARSE_MACHINES, Pick, pick_machine, pick_mfu
from course.napkin.napkin import Napkin
from course.napkin.quantity import Quantity
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model
from course.simulator.cost.sizes import DTYPE_BYTES
from minillm.model.arithmetic import share_woken

MILLI, MICRO = 1e-3, 1e-6
MIXTURES = ("qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3", "kimi-k2.5")


def prefill_time(pick: Pick) -> Napkin:
    machine, mfu, tokens = pick_machine(pick, MACHINES), pick_mfu(pick), pick("tokens", 1_000, 2_000, 4_000, 8_000)
    taken = Quantity(prefill_floor(machine.model, machine.gpu, machine.cards, tokens) / mfu.value, SECONDS)
    work = Quantity(2 * machine.weights.value * tokens)
    return Napkin(
        "03",
        f"{machine.name} has {machine.weights} weights in its layers, and runs on {machine.told}: {machine.flops} "
        f"each, at an MFU of {mfu}. How long does a prompt of {tokens:,} tokens take, attention aside?",
        taken,
        (
            f"a multiplication and an addition: 2 x {machine.weights} x {tokens:,} tokens = {work} operations",
            f"{work} / ({machine.cards} x {machine.flops} x {mfu}) = {taken}",
        ),
    )


def decode_floor(pick: Pick) -> Napkin:
    machine = pick_machine(pick, MACHINES)
    weights = Quantity(machine.model.read_bytes(DTYPE), BYTES)
    floor = Quantity(step_floor(machine.model, machine.gpu, machine.cards), SECONDS)
    return Napkin(
        "06",
        f"{machine.name} has {weights} of weights to read, spread over {machine.told}, each with {machine.bandwidth}. "
        "How long does a decode step at batch size 1 take, at the very least?",
        floor,
        (f"each step reads all weights once: {weights} / ({machine.cards} x {machine.bandwidth}) = {floor}",),
    )


def sparse_decode_floor(pick: Pick) -> Napkin:
    machine = pick_machine(pick, SPARSE_MACHINES)
    active, all_weights = Quantity(machine.model.read_params), Quantity(machine.model.stored_bytes(DTYPE) / 2)
    weights = Quantity(machine.model.read_bytes(DTYPE), BYTES)
    floor = Quantity(step_floor(machine.model, machine.gpu, machine.cards), SECONDS)
    return Napkin(
        "06b",
        f"Each token goes through {active} of the {all_weights} weights of {machine.name}, in 16 bits. It runs on "
        f"{machine.told}, each with {machine.bandwidth}. How long does a step at batch size 1 take, at the very least?",
        floor,
        (
            f"only what the token goes through is read: {active} x 2 bytes = {weights}",
            f"{weights} / ({machine.cards} x {machine.bandwidth}) = {floor}",
        ),
    )


def decode_rate(pick: Pick) -> Napkin:
    machine = pick_machine(pick, MACHINES)
    batch, context = pick("batch", 16, 32, 64), pick("context", 1_000, 2_000, 4_000)
    weights, each = Quantity(machine.model.read_bytes(DTYPE), BYTES), machine.model.kv_bytes_per_token(DTYPE)
    kv, kv_each = Quantity(batch * context * each, BYTES), Quantity(each, BYTES)
    floor = step_floor(machine.model, machine.gpu, machine.cards)
    step = Quantity(floor * (1 + kv.value / weights.value), SECONDS)
    rate = Quantity(batch / step.value, TOKEN_RATE)
    return Napkin(
        "06",
        f"{machine.name} decodes {batch} requests with {context:,} tokens of context each, on {machine.told} with "
        f"{machine.bandwidth} each. It has {weights} of weights to read, and {kv_each} of KV cache a token. If reading "
        "is all that takes time: how many tokens a second come out?",
        rate,
        (
            f"KV cache: {batch} x {context:,} tokens x {kv_each} = {kv}",
            f"a step: ({weights} + {kv}) / ({machine.cards} x {machine.bandwidth}) = {step}",
            f"one token each: {batch} / {step} = {rate}",
        ),
    )


def mbu(pick: Pick) -> Napkin:
    machine = pick_machine(pick, MACHINES)
    weights = Quantity(machine.model.read_bytes(DTYPE), BYTES)
    floor = step_floor(machine.model, machine.gpu, machine.cards)
    step = Quantity(floor / pick("share", 0.3, 0.45, 0.6, 0.75), SECONDS)
    share = Quantity(floor / step.value, RATIO)
    reached = Quantity(weights.value / step.value, BYTE_RATE)
    return Napkin(
        "06",
        f"A decode step at batch size 1 takes {step}. It reads {weights} of weights ({machine.name}) on "
        f"{machine.told}, with {machine.bandwidth} each. What's the MBU, the share of the bandwidth that's reached?",
        share,
        (
            f"reached: {weights} / {step} = {reached}",
            f"{reached} / ({machine.cards} x {machine.bandwidth}) = {share}",
        ),
    )


def mfu(pick: Pick) -> Napkin:
    machine = pick_machine(pick, MACHINES)
    a_token = prefill_floor(machine.model, machine.gpu, machine.cards, 1)
    speed = Quantity(round(pick("share", 0.2, 0.35, 0.5, 0.65) / a_token, -2), TOKEN_RATE)
    share = Quantity(a_token * speed.value, RATIO)
    done = Quantity(2 * machine.weights.value * speed.value, FLOPS)
    return Napkin(
        "03",
        f"A replica of {machine.name}, {machine.weights} weights in its layers, prefills {speed} on {machine.told}, "
        f"with {machine.flops} each. What's the MFU, the share of the FLOP/s that's reached? Leave attention aside.",
        share,
        (
            f"two operations a weight: 2 x {machine.weights} x {speed} = {done}",
            f"{done} / ({machine.cards} x {machine.flops}) = {share}",
        ),
    )


def bend(pick: Pick) -> Napkin:
    card, dtype = pick("card", *FP8_CARDS), pick("dtype", DTYPE, "fp8")
    share, reading = Quantity(pick("mfu", 0.5, 0.6, 1.0), RATIO), Quantity(pick("mbu", 0.7, 0.8, 1.0), RATIO)
    gpu, size = find_hardware(card), DTYPE_BYTES[dtype]
    flops, bandwidth = Quantity(gpu.peak_flops(dtype), FLOPS), Quantity(gpu.bandwidth, BYTE_RATE)
    computed, read = flops.value * share.value, bandwidth.value * reading.value
    tokens = Quantity(size / 2 * computed / read, TOKENS)
    return Napkin(
        "06",
        f"Weights in {8 * size:.0f} bits, on a {card} that multiplies them at {flops} and reads {bandwidth}. Products "
        f"reach {share} of that, reading {reading}. From how many tokens a step on does computing take longer than "
        "reading the weights?",
        tokens,
        (
            f"a token takes two operations a weight; bytes of a weight: {8 * size:.0f} bits / 8 = {size:.0f}",
            f"{size:.0f} / 2 x {flops} x {share} / ({bandwidth} x {reading}) = {tokens}",
        ),
    )


def chunk_for_itl(pick: Pick) -> Napkin:
    machine, mfu = pick_machine(pick, MACHINES), pick_mfu(pick)
    limit = Quantity(pick("limit", 25, 40, 60, 100) * MILLI, SECONDS)
    tokens = Quantity(limit.value * mfu.value / prefill_floor(machine.model, machine.gpu, machine.cards, 1), TOKENS)
    return Napkin(
        "03",
        f"Prompts are computed in chunks beside the decodes, and no step may take longer than {limit}. {machine.name} "
        f"has {machine.weights} weights in its layers, on {machine.told} with {machine.flops} each, at an MFU of "
        f"{mfu}. If products are all that takes time: how many tokens may a step have?",
        tokens,
        (f"{limit} x {machine.cards} x {machine.flops} x {mfu} / (2 x {machine.weights}) = {tokens}",),
    )


def experts_read(pick: Pick) -> Napkin:
    name, batch = pick("model", *MIXTURES), pick("batch", 8, 16, 32, 64)
    model = find_model(name)
    experts, chosen = model.num_experts, model.experts_per_token
    woken = Quantity(chosen + (experts - chosen) * share_woken(model.skip, batch))
    idle = f"{100 * model.skip:.2f}%"
    return Napkin(
        "06b",
        f"In each layer of {name} a token chooses {chosen} of {experts} experts. If all are equally popular: how many "
        f"of a layer's experts does a decode step of {batch} requests read?",
        woken,
        (
            f"a token leaves a given expert out with probability 1 - {chosen} / {experts} = {idle}",
            f"all of them leave it out: {idle}^{batch} = {100 * model.skip**batch:.3g}%",
            f"the others are read: {experts} x (1 - {100 * model.skip**batch:.3g}%) = {woken}",
        ),
        counted="experts",
    )


def all_reduces(pick: Pick) -> Napkin:
    name, each = pick("model", "qwen3-32b", "llama-3.1-70b", "qwen3-235b-a22b"), pick("microseconds", 8, 12, 20, 30)
    layers = find_model(name).layers
    taken = Quantity(2 * layers * each * MICRO, SECONDS)
    return Napkin(
        "06",
        f"Tensor parallelism adds up what the cards have after attention and after the MLP of each of {name}'s "
        f"{layers} layers. A small all-reduce takes {each} µs. How much of a decode step is that?",
        taken,
        (f"2 x {layers} layers x {each} µs = {taken}",),
    )


def tokens_per_verification(pick: Pick) -> Napkin:
    k, alpha = pick("k", 3, 4, 5, 7), Quantity(pick("alpha", 0.5, 0.6, 0.7, 0.8, 0.9), RATIO)
    tokens = Quantity(accepted(alpha.value, k), TOKENS)
    return Napkin(
        "08",
        f"Speculation drafts {k} tokens at a time. Each is accepted with a probability of {alpha}, if those before it "
        "were. How many tokens does a verification yield on average?",
        tokens,
        (
            f"1 + a + ... + a^{k}, the last for the model's own token",
            f"(1 - {alpha}^({k} + 1)) / (1 - {alpha}) = {tokens}",
        ),
    )


def speculation_speedup(pick: Pick) -> Napkin:
    k, alpha = pick("k", 3, 4, 5), Quantity(pick("alpha", 0.7, 0.8, 0.9), RATIO)
    draft, verify = Quantity(pick("draft", 0.04, 0.06, 0.1), RATIO), pick("verify", 1.05, 1.1, 1.2)
    tokens = Quantity(accepted(alpha.value, k), TOKENS)
    times = Quantity(tokens.value / (verify + k * draft.value), RATIO)
    return Napkin(
        "08",
        f"A draft of {k} tokens, each accepted with a probability of {alpha} if those before it were. Drafting a token "
        f"takes {draft} of a plain decode step, verifying all of them {verify} steps. How many times as fast is "
        "decoding?",
        times,
        (
            f"a verification yields (1 - {alpha}^({k} + 1)) / (1 - {alpha}) = {tokens}",
            f"in plain steps it takes {verify} + {k} x {draft} = {verify + k * draft.value:.3g}",
            f"{tokens} / {verify + k * draft.value:.3g} = {times}",
        ),
    )


def dashboards_acceptance(pick: Pick) -> Napkin:
    k, alpha = pick("k", 3, 4, 5, 7), Quantity(pick("alpha", 0.5, 0.6, 0.7, 0.8, 0.9), RATIO)
    drafted = Quantity(accepted(alpha.value, k) - 1, TOKENS)  # without the model's own
    rate = Quantity(drafted.value / k, RATIO)
    return Napkin(
        "08",
        f"Drafts have {k} tokens. Each is accepted with a probability of {alpha}, if those before it were. Which "
        "acceptance rate does a dashboard show that divides accepted tokens by proposed ones?",
        rate,
        (
            f"accepted in a verification, a + ... + a^{k}: {alpha} x (1 - {alpha}^{k}) / (1 - {alpha}) = {drafted}",
            f"{drafted} / {k} = {rate}",
        ),
    )


MULTIPROCESSORS = {"an A100": 108, "an H100": 132, "a B200": 148}
"""Streaming multiprocessors of each card (SXM), from NVIDIA's architecture whitepapers."""


def context_splits(pick: Pick) -> Napkin:
    card, heads, requests = pick("card", *MULTIPROCESSORS), pick("heads", 2, 4, 8), pick("requests", 1, 2, 4)
    programs, most = requests * heads, MULTIPROCESSORS[card]
    shares = Quantity(most / programs)
    splits = Quantity(math.ceil(shares.value))
    return Napkin(
        "06",
        f"A decode-attention kernel runs a program for each request and KV head, and {card} has {most} multiprocessors "
        f"(SMs). The model has {heads} KV heads, and {requests} of its requests decode. Into how many splits must each "
        "context be cut, so that every SM has one to work on?",
        splits,
        (
            f"without splits: {requests} x {heads} = {programs} programs",
            f"{most} / {programs} = {shares}",
            f"whole ones: {splits}",
        ),
        counted="splits",
    )
