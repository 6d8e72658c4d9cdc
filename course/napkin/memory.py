"""Sums about bytes: what a KV cache keeps, what fits, and how long it takes to move."""

from course.drills.amounts import BYTE_RATE, BYTES, RATIO, SECONDS
from course.drills.library.formulas import DTYPE, kv_room, prefill_floor
from course.napkin.draw import MACHINES, SPARSE_MACHINES, Pick, pick_machine, pick_mfu
from course.napkin.napkin import Napkin
from course.napkin.quantity import Quantity
from course.simulator.cost.models import find_model

GIGA = 1e9
LATENT = ("deepseek-v3", "kimi-k2.5")
WEIGHT_BITS = {"bfloat16": 16, "fp8": 8}
LARGE = ("llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3")


def kv_per_token(pick: Pick) -> Napkin:
    name = pick("model", *MACHINES, *SPARSE_MACHINES, "llama-2-13b", "llama-3.2-3b", "qwen3-8b")
    model = find_model(name)
    layers, heads, size = model.layers, model.num_kv_heads, model.head_dim
    each = Quantity(model.kv_bytes_per_token(DTYPE), BYTES)
    return Napkin(
        "07",
        f"{name} has {layers} layers, and in each {heads} KV heads of {size} numbers. Keys and values are kept in 16 "
        "bits. How much does the KV cache keep of each token?",
        each,
        (f"a key and a value: 2 x {layers} layers x {heads} heads x {size} numbers x 2 bytes = {each}",),
    )


def kv_of_context(pick: Pick) -> Napkin:
    name = pick("model", *MACHINES, *SPARSE_MACHINES)
    each = Quantity(find_model(name).kv_bytes_per_token(DTYPE), BYTES)
    tokens, requests = pick("tokens", 4_000, 8_000, 32_000, 128_000), pick("requests", 1, 8, 50)
    total = Quantity(each.value * tokens * requests, BYTES)
    who = "One request has" if requests == 1 else f"{requests} requests have"
    return Napkin(
        "07",
        f"{name} keeps {each} of keys and values for each token. {who} a context of {tokens:,} tokens"
        f"{'' if requests == 1 else ' each'}. How much KV memory is that?",
        total,
        (f"{requests} x {tokens:,} tokens x {each} = {total}",),
    )


def latent_kv(pick: Pick) -> Napkin:
    name, tokens = pick("model", *LATENT), pick("tokens", 8_000, 32_000, 100_000)
    model = find_model(name)
    total = Quantity(model.kv_bytes_per_token(DTYPE) * tokens, BYTES)
    each = Quantity(model.kv_bytes_per_token(DTYPE), BYTES)
    return Napkin(
        "07b",
        f"{name} has latent attention: {model.layers} layers, each of which keeps one vector of {model.latent_size} "
        f"numbers for a token, in 16 bits. How much KV memory does a context of {tokens:,} tokens take?",
        total,
        (
            f"a token: {model.layers} layers x {model.latent_size} numbers x 2 bytes = {each}",
            f"all of them: {each} x {tokens:,} tokens = {total}",
        ),
    )


def requests_that_fit(pick: Pick) -> Napkin:
    machine = pick_machine(pick, MACHINES)
    tokens = pick("tokens", 1_500, 3_000, 6_000, 12_000)
    memory, each = Quantity(machine.gpu.memory, BYTES), Quantity(machine.model.kv_bytes_per_token(DTYPE), BYTES)
    weights = Quantity(machine.model.stored_bytes(DTYPE), BYTES)
    room = Quantity(kv_room(machine.model, machine.gpu, machine.cards), BYTES)
    one = Quantity(each.value * tokens, BYTES)
    fit = Quantity(room.value / one.value)
    return Napkin(
        "07",
        f"{machine.name} on {machine.told}, with {memory} of memory each: {weights} of weights, and {each} of KV cache "
        f"a token. How many requests of {tokens:,} tokens fit at most, if weights and KV cache are all there is?",
        fit,
        (
            f"left by the weights: {machine.cards} x {memory} - {weights} = {room}",
            f"one request: {each} x {tokens:,} tokens = {one}",
            f"{room} / {one} = {fit}",
        ),
        counted="requests",
    )


def kv_transfer(pick: Pick) -> Napkin:
    name, tokens = pick("model", *MACHINES, *SPARSE_MACHINES), pick("tokens", 4_000, 16_000, 64_000)
    each = Quantity(find_model(name).kv_bytes_per_token(DTYPE), BYTES)
    bits, share = pick("gigabits", 100, 200, 400), Quantity(pick("share", 0.7, 0.8, 0.9), RATIO)
    link = Quantity(bits * GIGA / 8, BYTE_RATE)
    taken = Quantity(each.value * tokens / (link.value * share.value), SECONDS)
    total = Quantity(each.value * tokens, BYTES)
    return Napkin(
        "05b",
        f"Prefill and decode run on different machines. {name} keeps {each} a token; a prompt has {tokens:,}. The "
        f"network between them has {bits} Gbit/s, of which {share} is reached. How long does the KV cache take to get "
        "across?",
        taken,
        (
            f"KV cache: {each} x {tokens:,} tokens = {total}",
            f"bits are not bytes: {bits} Gbit/s / 8 = {link}",
            f"{total} / ({link} x {share}) = {taken}",
        ),
    )


def swap_or_recompute(pick: Pick) -> Napkin:
    machine, mfu = pick_machine(pick, MACHINES), pick_mfu(pick)
    tokens = pick("tokens", 2_000, 4_000, 8_000)
    each = Quantity(machine.model.kv_bytes_per_token(DTYPE), BYTES)
    link = Quantity(machine.gpu.host_link, BYTE_RATE)
    swap = Quantity(each.value * tokens / (machine.cards * link.value), SECONDS)
    recompute = Quantity(prefill_floor(machine.model, machine.gpu, machine.cards, tokens) / mfu.value, SECONDS)
    times = Quantity(recompute.value / swap.value, RATIO)
    return Napkin(
        "07",
        f"A preempted request of {tokens:,} tokens comes back, on {machine.told}. Its KV cache of {each} a token can "
        f"be copied from the host, over {link} for each card. Or it's computed again: {machine.weights} weights, "
        f"{machine.flops} a card, an MFU of {mfu}; attention aside. How many times as long as the copy does that take?",
        times,
        (
            f"copying: {tokens:,} tokens x {each} / ({machine.cards} x {link}) = {swap}",
            f"computing: 2 x {machine.weights} x {tokens:,} tokens / ({machine.cards} x {machine.flops} x {mfu}) = "
            f"{recompute}",
            f"{recompute} / {swap} = {times}",
        ),
    )


def weights_to_a_node(pick: Pick) -> Napkin:
    name, dtype = pick("model", *LARGE), pick("dtype", *WEIGHT_BITS)
    model, bits = find_model(name), WEIGHT_BITS[dtype]
    gigabits, share = pick("gigabits", 10, 25, 100), Quantity(pick("share", 0.5, 0.8), RATIO)
    weights, link = Quantity(model.stored_bytes(dtype), BYTES), Quantity(gigabits * GIGA / 8, BYTE_RATE)
    reached = Quantity(link.value * share.value, BYTE_RATE)
    taken = Quantity(weights.value / reached.value, SECONDS)
    params = Quantity(model.stored_bytes("bfloat16") / 2)
    return Napkin(
        "11b",
        f"A new node loads {name}, {params} weights in {bits} bits, over a network of {gigabits} Gbit/s, and gets "
        f"{share} of that. How long is that alone?",
        taken,
        (
            f"weights: {params} x {bits} bits / 8 = {weights}",
            f"network: {gigabits} Gbit/s / 8 x {share} = {reached}",
            f"{weights} / {reached} = {taken}",
        ),
    )


def weights_to_a_fleet(pick: Pick) -> Napkin:
    name = pick("model", *LARGE)
    nodes, gigabytes = pick("nodes", 20, 100, 500), pick("egress", 10, 25, 50)
    weights, egress = Quantity(find_model(name).stored_bytes("fp8"), BYTES), Quantity(gigabytes * GIGA, BYTE_RATE)
    copies = Quantity(nodes * weights.value, BYTES)
    taken = Quantity(copies.value / egress.value, SECONDS)
    return Napkin(
        "11b",
        f"{nodes} nodes restart together, and each pulls {weights} of weights ({name} in 8 bits) from one object store "
        f"that delivers {egress} in all. How long until the last one has them?",
        taken,
        (
            f"all copies: {nodes} x {weights} = {copies}",
            f"{copies} / {egress} = {taken}; a tree of nodes that pass it on needs one copy",
        ),
    )
