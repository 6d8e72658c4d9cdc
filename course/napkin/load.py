"""Sums about load: Little's law, queues, knees, spikes, and how many replicas it takes."""

import math

from course.drills.amounts import RATE, RATIO, SECONDS, TOKEN_RATE
from course.lab.queueing import md1_wait
from course.napkin.draw import Pick
from course.napkin.napkin import Napkin
from course.napkin.quantity import Quantity

MILLI, MINUTE = 1e-3, 60.0


def in_flight(pick: Pick) -> Napkin:
    rate, tokens = Quantity(pick("rate", 4, 8, 12, 20), RATE), pick("tokens", 150, 200, 300, 400)
    ttft, gap = Quantity(pick("ttft", 0.2, 0.5, 1.0, 2.0), SECONDS), Quantity(pick("itl", 20, 25, 40) * MILLI, SECONDS)
    stay = Quantity(ttft.value + tokens * gap.value, SECONDS)
    many = Quantity(rate.value * stay.value)
    return Napkin(
        "02",
        f"{rate} arrive. Each gets its first token after {ttft}, and then {tokens} more, one every {gap}. How many "
        "requests are in flight on average?",
        many,
        (f"each stays {ttft} + {tokens} x {gap} = {stay}", f"Little's law: {rate} x {stay} = {many}"),
        counted="requests",
    )


def most_requests(pick: Pick) -> Napkin:
    slots, tokens = pick("slots", 32, 64, 128, 256), pick("tokens", 200, 300, 500, 800)
    gap, ttft = Quantity(pick("itl", 15, 25, 40) * MILLI, SECONDS), Quantity(pick("prefill", 0.1, 0.3, 0.5), SECONDS)
    stay = Quantity(ttft.value + tokens * gap.value, SECONDS)
    rate = Quantity(slots / stay.value, RATE)
    return Napkin(
        "02",
        f"A server runs at most {slots} requests together (`max_num_seqs`). Each holds its slot for {ttft} of prefill "
        f"and {tokens} tokens, one every {gap}. How many requests a second can it serve at most?",
        rate,
        (f"each holds its slot for {ttft} + {tokens} x {gap} = {stay}", f"Little's law: {slots} / {stay} = {rate}"),
    )


def ttft_from_queue(pick: Pick) -> Napkin:
    slots, queued = pick("slots", 16, 32, 64), pick("queued", 20, 40, 80, 120)
    stay, prefill = Quantity(pick("stay", 6, 10, 16), SECONDS), Quantity(pick("prefill", 0.2, 0.4, 0.8), SECONDS)
    free = Quantity(slots / stay.value, RATE)
    wait = Quantity(queued / free.value, SECONDS)
    ttft = Quantity(wait.value + prefill.value, SECONDS)
    return Napkin(
        "02",
        f"All {slots} slots of a server are taken, each for {stay} by each request. {queued} requests are queued "
        f"before yours, whose prefill takes {prefill}. What TTFT do you expect?",
        ttft,
        (
            f"slots come free at {slots} / {stay} = {free}",
            f"the queue before you: {queued} / {free} = {wait}",
            f"TTFT: {wait} + {prefill} = {ttft}",
        ),
    )


def wait_for_prefill(pick: Pick) -> Napkin:
    service, load = Quantity(pick("service", 50, 100, 200) * MILLI, SECONDS), pick("load", 0.6, 0.8, 0.9, 0.95)
    rate, share = Quantity(load / service.value, RATE), Quantity(load, RATIO)
    wait = Quantity(md1_wait(load) * service.value, SECONDS)
    return Napkin(
        "02",
        f"Prefills run one at a time, and each takes {service}. {rate} arrive, at random (Poisson). How long does a "
        "request wait on average before its prefill begins?",
        wait,
        (
            f"load: {rate} x {service} = {share}",
            f"M/D/1, load / (2 x (1 - load)): {share} / (2 x (1 - {share})) x {service} = {wait}",
        ),
    )


def wait_with_long_tails(pick: Pick) -> Napkin:
    load, spread = Quantity(pick("load", 0.5, 0.75, 0.8, 0.9), RATIO), pick("spread", 1, 1.5, 2, 3)
    service = Quantity(pick("service", 200, 400, 800) * MILLI, SECONDS)
    variability = Quantity((1 + spread**2) / 2)
    wait = Quantity(load.value / (1 - load.value) * variability.value * service.value, SECONDS)
    return Napkin(
        "02",
        f"One slot, random arrivals, a load of {load}. Service takes {service} on average, with a standard deviation "
        f"of {spread} times that. How long is the mean wait?",
        wait,
        (
            f"half of arrivals' variability (random: 1) and services', squared: (1 + {spread}^2) / 2 = {variability}",
            f"{load} / (1 - {load}) x {variability} x {service} = {wait}",
        ),
    )


def fan_out(pick: Pick) -> Napkin:
    many, each = pick("many", 5, 10, 20, 50), Quantity(pick("each", 0.9, 0.95, 0.99), RATIO)
    together = Quantity(each.value**many, RATIO)
    return Napkin(
        "01",
        f"An agent sends {many} requests in the same moment and waits for all of them. Each is in time with a "
        f"probability of {each}, whatever the others do. How likely is it that all of them are?",
        together,
        (f"{each}^{many} = {together}",),
    )


def knee(pick: Pick) -> Napkin:
    before, after = pick("before", 0.4, 0.5, 0.6, 0.7, 0.8), pick("after", 0.9, 0.95, 0.98)
    low, high = Quantity(before, RATIO), Quantity(after, RATIO)
    times = Quantity(md1_wait(after) / md1_wait(before), RATIO)
    first, second = Quantity(before / (1 - before)), Quantity(after / (1 - after))
    return Napkin(
        "02",
        f"Traffic grows until a server that takes one request at a time is {high} busy; it was {low}. Arrivals are "
        "random. How many times as long is the mean wait in its queue?",
        times,
        (
            f"the wait grows with load / (1 - load): it was {low} / (1 - {low}) = {first}",
            f"it is {high} / (1 - {high}) = {second}",
            f"{second} / {first} = {times}",
        ),
    )


def drain(pick: Pick) -> Napkin:
    can, usual = Quantity(pick("can", 40, 50), RATE), Quantity(pick("usual", 20, 25, 30, 35), RATE)
    spike, minutes = Quantity(pick("spike", 60, 80, 120), RATE), pick("minutes", 2, 3, 5)
    queued = Quantity((spike.value - can.value) * minutes * MINUTE)
    taken = Quantity(queued.value / (can.value - usual.value), SECONDS)
    return Napkin(
        "11b",
        f"A fleet serves {can} at most. For {minutes} minutes {spike} arrive, then {usual} again, as usual. How long "
        "after the spike is the queue empty?",
        taken,
        (
            f"queued by then: ({spike} - {can}) x {minutes} x 60 s = {queued} requests",
            f"{queued} / ({can} - {usual}) = {taken}",
        ),
    )


def replicas_for_prefill(pick: Pick) -> Napkin:
    rate, tokens = Quantity(pick("rate", 40, 60, 80, 120), RATE), pick("tokens", 2_000, 3_000, 4_000)
    can, busy = Quantity(pick("can", 12_000, 15_000, 20_000), TOKEN_RATE), Quantity(pick("busy", 0.6, 0.7), RATIO)
    needed = Quantity(rate.value * tokens, TOKEN_RATE)
    exact = Quantity(needed.value / (can.value * busy.value))
    return _whole(
        exact,
        f"{rate} arrive, of {tokens:,} prompt tokens each. A replica prefills {can}, and should be {busy} busy at "
        "most. How many replicas does prefill alone take?",
        (f"prompts: {rate} x {tokens:,} tokens = {needed}", f"{needed} / ({can} x {busy}) = {exact}"),
    )


def replicas_for_decode(pick: Pick) -> Napkin:
    rate, slots = Quantity(pick("rate", 60, 100, 150), RATE), pick("slots", 48, 64, 96)
    tokens, gap = pick("tokens", 300, 400, 600), Quantity(pick("itl", 25, 30, 40) * MILLI, SECONDS)
    busy = Quantity(pick("busy", 0.7, 0.8), RATIO)
    many = Quantity(rate.value * tokens * gap.value)
    exact = Quantity(many.value / (slots * busy.value))
    return _whole(
        exact,
        f"{rate} arrive, and each gets {tokens} tokens, one every {gap}. A replica runs {slots} requests together and "
        f"should be filled to {busy} on average. How many replicas does decode take?",
        (
            f"in flight, by Little's law: {rate} x {tokens} x {gap} = {many}",
            f"{many} / ({slots} x {busy}) = {exact}",
        ),
    )


def prefill_after_hits(pick: Pick) -> Napkin:
    rate, tokens = Quantity(pick("rate", 10, 20, 40), RATE), pick("tokens", 4_000, 6_000, 8_000)
    shared, hits = pick("shared", 2_000, 3_000, 3_500), Quantity(pick("hits", 0.5, 0.7, 0.9), RATIO)
    left = Quantity(tokens - hits.value * shared)
    needed = Quantity(rate.value * left.value, TOKEN_RATE)
    return Napkin(
        "04",
        f"{rate} arrive, of {tokens:,} prompt tokens each. The first {shared:,} are a system prompt that the prefix "
        f"cache has for {hits} of requests. How many prompt tokens a second are left to compute?",
        needed,
        (f"on average {tokens:,} - {hits} x {shared:,} = {left} tokens a prompt", f"{rate} x {left} = {needed}"),
    )


def _whole(exact: Quantity, question: str, working: tuple[str, ...]) -> Napkin:
    """Replicas come whole."""
    replicas = Quantity(math.ceil(exact.value))
    return Napkin("11", question, replicas, (*working, f"whole ones: {replicas}"), counted="replicas")
