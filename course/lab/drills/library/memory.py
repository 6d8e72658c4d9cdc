"""Numbers of drills about what is kept: prefixes, KV memory, long contexts, growing conversations."""

from course.lab.drills.drill import Draw
from course.lab.drills.library import units as u
from course.lab.drills.reading import Numbers

GB = 1e9


def hit_rate_zero(draw: Draw) -> Numbers:
    prompt, prefix, speed = draw(2600, 2400, 2800), draw(2000, 1800, 2200), 10_000
    before, qps = draw(0.92, 0.94, 0.9), draw(3, 2.5, 3.5)
    return Numbers(
        {
            "prompt": u.tokens(prompt),
            "prefix": u.tokens(prefix),
            "speed": u.token_rate(speed),
            "before": u.ratio(before),
            "qps": u.rate(qps),
        },
        {
            "prefill_before": u.seconds((prompt - before * prefix) / speed),
            "prefill_after": u.seconds(prompt / speed),
            "load_before": u.ratio(qps * (prompt - before * prefix) / speed),
            "load_after": u.ratio(qps * prompt / speed),
            "times": u.ratio(prompt / (prompt - before * prefix)),
            "saved": u.seconds(before * prefix / speed),
        },
    )


def long_contexts(draw: Draw) -> Numbers:
    shape, h100 = u.model("llama-3.1-70b"), u.gpu("h100-sxm")
    length, usual, itl = draw(100_000, 90_000, 110_000), 2000, 0.04
    kv = shape.kv_bytes_per_token("bfloat16")
    room = u.kv_room(shape, h100, 4)
    linear = u.prefill_floor(shape, h100, 4, length)
    return Numbers(
        {"length": u.tokens(length), "usual": u.tokens(usual), "itl": u.seconds(itl), "gpus": u.count(4)},
        {
            "kv_token": u.size(kv),
            "kv_long": u.size(kv * length),
            "kv_usual": u.size(kv * usual),
            "room": u.size(room),
            "fit": u.count(int(room / (kv * length))),
            "fit_usual": u.count(int(room / (kv * usual))),
            "prefill": u.seconds(linear),
            "read": u.seconds(kv * length / (4 * h100.bandwidth)),
            "worth": u.count(length / usual),
            "chunks": u.count(length / 2048),
        },
    )


def shrink_the_kv(draw: Draw) -> Numbers:
    shape, h100 = u.model("llama-2-13b"), u.gpu("h100-sxm")
    length, wanted = draw(2500, 2400, 2600), draw(64, 60, 68)
    kv = shape.kv_bytes_per_token("bfloat16")
    room = u.kv_room(shape, h100, 1)
    return Numbers(
        {"length": u.tokens(length), "wanted": u.count(wanted)},
        {
            "kv_token": u.size(kv),
            "kv_request": u.size(kv * length),
            "room": u.size(room),
            "fit": u.count(int(room / (kv * length))),
            "fit_int8": u.count(int(2 * room / (kv * length))),
            "need": u.size(wanted * kv * length),
            "weights": u.size(shape.stored_bytes("bfloat16")),
            "times": u.ratio(wanted * kv * length / room),
        },
    )


def growing_agents(draw: Draw) -> Numbers:
    turns, added, speed, pause = draw(20, 18, 22), draw(1500, 1400, 1600), 8000, draw(30, 25, 35)
    agents, start = draw(40, 36, 44), 3000
    kv = u.model("llama-3.1-8b").kv_bytes_per_token("bfloat16")
    total = sum(start + added * turn for turn in range(int(turns)))
    last = start + added * (turns - 1)
    return Numbers(
        {
            "turns": u.count(turns),
            "added": u.tokens(added),
            "speed": u.token_rate(speed),
            "pause": u.seconds(pause),
            "agents": u.count(agents),
            "start": u.tokens(start),
        },
        {
            "last": u.tokens(last),
            "total": u.tokens(total),
            "new": u.tokens(last),
            "times": u.ratio(total / last),
            "last_prefill": u.seconds(last / speed),
            "new_prefill": u.seconds(added / speed),
            "kv_agent": u.size(last * kv),
            "kv_all": u.size(agents * last * kv),
            "kv_token": u.size(kv),
        },
    )
