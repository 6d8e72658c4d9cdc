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
    square = 2 * shape.layers * shape.query_size * g.length**2 / (4 * h100.peak_flops("bfloat16"))
    return {
        "kv_token": u.size(kv),
        "kv_long": u.size(kv * g.length),
        "kv_usual": u.size(kv * g.usual),
        "room": u.size(room),
        "fit": u.count(int(room / (kv * g.length))),
        "fit_usual": u.count(int(room / (kv * g.usual))),
        "linear": u.seconds(linear),
        "square": u.seconds(square),
        "prefill": u.seconds(linear + square),
        "real": u.seconds(2 * (linear + square)),
        "a_minute": u.count(30 / (linear + square)),
        "read": u.seconds(kv * g.length / (4 * h100.bandwidth)),
        "worth": u.count(g.length / g.usual),
        "chunks": u.count(g.length / 2048),
    }


def shrink_the_kv(g: Given) -> Follows:
    shape, h100 = u.model("llama-2-13b"), u.gpu("h100-sxm")
    kv = shape.kv_bytes_per_token("bfloat16")
    room, stored = u.kv_room(shape, h100, 1), shape.stored_bytes("bfloat16")
    fewer_heads = u.model("llama-2-13b", 8).kv_bytes_per_token("bfloat16")
    return {
        "kv_token": u.size(kv),
        "kv_request": u.size(kv * g.length),
        "room": u.size(room),
        "fit": u.count(int(room / (kv * g.length))),
        "fit_int8": u.count(int(2 * room / (kv * g.length))),
        "fit_weights": u.count(int((room + stored / 2) / (kv * g.length))),
        "fit_both": u.count(int(2 * (room + stored / 2) / (kv * g.length))),
        "fit_h200": u.count(int(u.kv_room(shape, u.gpu("h200"), 1) / (kv * g.length))),
        "fit_gqa": u.count(int(room / (fewer_heads * g.length))),
        "need": u.size(g.wanted * kv * g.length),
        "weights": u.size(stored),
        "times": u.ratio(g.wanted * kv * g.length / room),
    }


def growing_agents(g: Given) -> Follows:
    kv = u.model("llama-3.1-8b").kv_bytes_per_token("bfloat16")
    total = sum(g.start + g.added * turn for turn in range(int(g.turns)))
    last, mean = g.start + g.added * (g.turns - 1), total / g.turns
    room = u.kv_room(u.model("llama-3.1-8b"), u.gpu("a100-80gb"), 1)
    return {
        "last": u.tokens(last),
        "total": u.tokens(total),
        "new": u.tokens(last),
        "times": u.ratio(total / last),
        "last_prefill": u.seconds(last / g.speed),
        "new_prefill": u.seconds(g.added / g.speed),
        "kv_agent": u.size(last * kv),
        "kv_all": u.size(g.agents * last * kv),
        "mean": u.tokens(mean),
        "mean_prefill": u.seconds(mean / g.speed),
        "cycle": u.seconds(g.agents * mean / g.speed),
        "load": u.ratio(g.agents * mean / g.speed / g.pause),
        "load_cached": u.ratio(g.agents * g.added / g.speed / g.pause),
        "kv_mean": u.size(g.agents * mean * kv),
        "room": u.size(room),
        "fit": u.count(int(room / (last * kv))),
    }
