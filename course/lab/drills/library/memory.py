"""Numbers of drills about what is kept: prefixes, KV memory, long contexts, growing conversations."""

from course.lab.drills.library import units as u
from course.lab.drills.library.units import Follows, Given


def hit_rate_zero(g: Given) -> Follows:
    return {
        "prefill_before": u.seconds((g.prompt - g.before * g.prefix) / g.speed),
        "prefill_after": u.seconds(g.prompt / g.speed),
        "load_before": u.ratio(g.qps * (g.prompt - g.before * g.prefix) / g.speed),
        "load_after": u.ratio(g.qps * g.prompt / g.speed),
        "times": u.ratio(g.prompt / (g.prompt - g.before * g.prefix)),
        "saved": u.seconds(g.before * g.prefix / g.speed),
    }


def long_contexts(g: Given) -> Follows:
    shape, h100 = u.model("llama-3.1-70b"), u.gpu("h100-sxm")
    kv = shape.kv_bytes_per_token("bfloat16")
    room = u.kv_room(shape, h100, 4)
    linear = u.prefill_floor(shape, h100, 4, g.length)
    return {
        "kv_token": u.size(kv),
        "kv_long": u.size(kv * g.length),
        "kv_usual": u.size(kv * g.usual),
        "room": u.size(room),
        "fit": u.count(int(room / (kv * g.length))),
        "fit_usual": u.count(int(room / (kv * g.usual))),
        "prefill": u.seconds(linear),
        "read": u.seconds(kv * g.length / (4 * h100.bandwidth)),
        "worth": u.count(g.length / g.usual),
        "chunks": u.count(g.length / 2048),
    }


def shrink_the_kv(g: Given) -> Follows:
    shape, h100 = u.model("llama-2-13b"), u.gpu("h100-sxm")
    kv = shape.kv_bytes_per_token("bfloat16")
    room = u.kv_room(shape, h100, 1)
    return {
        "kv_token": u.size(kv),
        "kv_request": u.size(kv * g.length),
        "room": u.size(room),
        "fit": u.count(int(room / (kv * g.length))),
        "fit_int8": u.count(int(2 * room / (kv * g.length))),
        "need": u.size(g.wanted * kv * g.length),
        "weights": u.size(shape.stored_bytes("bfloat16")),
        "times": u.ratio(g.wanted * kv * g.length / room),
    }


def growing_agents(g: Given) -> Follows:
    kv = u.model("llama-3.1-8b").kv_bytes_per_token("bfloat16")
    total = sum(g.start + g.added * turn for turn in range(int(g.turns)))
    last = g.start + g.added * (g.turns - 1)
    return {
        "last": u.tokens(last),
        "total": u.tokens(total),
        "new": u.tokens(last),
        "times": u.ratio(total / last),
        "last_prefill": u.seconds(last / g.speed),
        "new_prefill": u.seconds(g.added / g.speed),
        "kv_agent": u.size(last * kv),
        "kv_all": u.size(g.agents * last * kv),
        "kv_token": u.size(kv),
    }
