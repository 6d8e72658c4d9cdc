"""Drills about what is kept: prefixes, KV memory, long contexts, growing conversations."""

from course.lab.drills.drill import Draw, Drill, FollowUp, Rubric, Trap
from course.lab.drills.library.units import (
    count,
    gpu,
    kv_room,
    model,
    prefill_floor,
    rate,
    ratio,
    seconds,
    size,
    token_rate,
    tokens,
)
from course.lab.drills.reading import Numbers

GB = 1e9


def _hit_rate(draw: Draw) -> Numbers:
    prompt, prefix, speed = draw(2600, 2400, 2800), draw(2000, 1800, 2200), 10_000
    before, qps = draw(0.92, 0.94, 0.9), draw(3, 2.5, 3.5)
    return Numbers(
        {
            "prompt": tokens(prompt),
            "prefix": tokens(prefix),
            "speed": token_rate(speed),
            "before": ratio(before),
            "qps": rate(qps),
        },
        {
            "prefill_before": seconds((prompt - before * prefix) / speed),
            "prefill_after": seconds(prompt / speed),
            "load_before": ratio(qps * (prompt - before * prefix) / speed),
            "load_after": ratio(qps * prompt / speed),
            "times": ratio(prompt / (prompt - before * prefix)),
            "saved": seconds(before * prefix / speed),
        },
    )


def _long_contexts(draw: Draw) -> Numbers:
    shape, h100 = model("llama-3.1-70b"), gpu("h100-sxm")
    length, usual, itl = draw(100_000, 90_000, 110_000), 2000, 0.04
    kv = shape.kv_bytes_per_token("bfloat16")
    room = kv_room(shape, h100, 4)
    linear = prefill_floor(shape, h100, 4, length)
    return Numbers(
        {"length": tokens(length), "usual": tokens(usual), "itl": seconds(itl), "gpus": count(4)},
        {
            "kv_token": size(kv),
            "kv_long": size(kv * length),
            "kv_usual": size(kv * usual),
            "room": size(room),
            "fit": count(int(room / (kv * length))),
            "fit_usual": count(int(room / (kv * usual))),
            "prefill": seconds(linear),
            "read": seconds(kv * length / (4 * h100.bandwidth)),
            "worth": count(length / usual),
            "chunks": count(length / 2048),
        },
    )


def _shrink_kv(draw: Draw) -> Numbers:
    shape, h100 = model("llama-2-13b"), gpu("h100-sxm")
    length, wanted = draw(2500, 2400, 2600), draw(64, 60, 68)
    kv = shape.kv_bytes_per_token("bfloat16")
    room = kv_room(shape, h100, 1)
    return Numbers(
        {"length": tokens(length), "wanted": count(wanted)},
        {
            "kv_token": size(kv),
            "kv_request": size(kv * length),
            "room": size(room),
            "fit": count(int(room / (kv * length))),
            "fit_int8": count(int(2 * room / (kv * length))),
            "need": size(wanted * kv * length),
            "weights": size(shape.stored_bytes("bfloat16")),
            "times": ratio(wanted * kv * length / room),
        },
    )


def _agents(draw: Draw) -> Numbers:
    turns, added, speed, pause = draw(20, 18, 22), draw(1500, 1400, 1600), 8000, draw(30, 25, 35)
    agents, start = draw(40, 36, 44), 3000
    kv = model("llama-3.1-8b").kv_bytes_per_token("bfloat16")
    total = sum(start + added * turn for turn in range(int(turns)))
    last = start + added * (turns - 1)
    return Numbers(
        {
            "turns": count(turns),
            "added": tokens(added),
            "speed": token_rate(speed),
            "pause": seconds(pause),
            "agents": count(agents),
            "start": tokens(start),
        },
        {
            "last": tokens(last),
            "total": tokens(total),
            "new": tokens(last),
            "times": ratio(total / last),
            "last_prefill": seconds(last / speed),
            "new_prefill": seconds(added / speed),
            "kv_agent": size(last * kv),
            "kv_all": size(agents * last * kv),
            "kv_token": size(kv),
        },
    )


DRILLS = (
    Drill(
        "hit-rate-zero",
        "The hit rate fell to zero on Tuesday",
        5,
        "prefill",
        _hit_rate,
        Rubric(
            diagnosis=(
                "first_line|rollback|stable_first + hit_rate|prefix_cache|shared_prefix|ttft|because",
                "first_line + because|trouble|depend",
                "shared_prefix + first_line",
            ),
            mechanism=(
                "prefill|ttft|hit_rate|prefix_cache|load + derived",
                "~ first_line + because + shared_prefix|prefix_cache|hit_rate",
            ),
            apart=(
                "eviction + depend|split|question|!eviction",
                "routing + depend|split|question",
                "!eviction",
                "!memory",
                "eviction|routing + first_line",
            ),
            secondary=("queue|capacity|load|ttft + because|derived|secondary|trouble",),
            secondary_why=("~ queue|capacity|load + derived|prefill", "queue|capacity + because|depend"),
            moves={
                "stable_first": "prefill|ttft|hit_rate|shared_prefix|prefix_cache|first_line",
                "rollback": "ttft|prefill|hit_rate|shared_prefix|first_line",
                "monitor": "hit_rate|ttft|prefill",
                "admission": "queue|capacity",
                "measure": "hit_rate|shared_prefix|prefix_cache|first_line",
                "routing": "hit_rate|prefix_cache|ttft",
                "prefix_cache": "prefill|ttft|hit_rate",
            },
            unknowns=(
                "first_line|rollback|hit_rate|eviction|routing|shared_prefix|load|memory|queue|percentile|"
                "prompt_length|tokenize|measure"
            ),
            beyond=(
                "derived.load_after + capacity|load|queue|because|impossible",
                "~ derived.load_after|derived.load_before + queue|capacity|load|prefill|compute",
            ),
            traps=(
                Trap(
                    "memory|hbm_buy + effect|because",
                    ("eviction|!memory|routing",),
                    "A cache that is too small would leave some hits: zero has another cause.",
                ),
            ),
            follow_ups=(FollowUp("stable_first", "Who guards the prompt's first tokens from the next change?"),),
        ),
    ),
    Drill(
        "long-contexts",
        "100k-token contexts arrive",
        6,
        "prefill, KV",
        _long_contexts,
        Rubric(
            diagnosis=(
                "kv + memory|derived|because",
                "prefill + derived|straggler|chunking",
                "prompt_length + kv|prefill|memory",
            ),
            mechanism=("kv|prefill|memory|bandwidth|attention + derived", "~ kv|prefill + because + number"),
            apart=("prefill + decode|kv", "ttft + itl", "split + prefill|lanes|kv"),
            secondary=(
                "attention|straggler|itl|decode|queue|preemption|bandwidth + because|derived|trouble|secondary",
            ),
            secondary_why=("~ attention|straggler|itl|decode|queue|preemption|bandwidth + because|derived",),
            moves={
                "chunking": "prefill|itl|straggler|ttft",
                "lanes": "prefill|itl|kv|ttft|straggler",
                "kv_quant": "kv|memory",
                "prefix_cache": "prefill|ttft",
                "admission": "kv|queue|memory",
                "prompt_limit": "prefill|kv|cost|ttft",
                "offload": "kv|memory",
                "flash": "prefill|attention",
                "tp": "prefill|kv|memory|bandwidth",
                "hbm_buy": "kv|memory",
                "seats": "kv|memory",
            },
            unknowns=(
                "prompt_length|load|shared_prefix|ttft|itl|percentile|hit_rate|quality|turns|kv|memory|capacity|"
                "output_length|cost|retrieval"
            ),
            beyond=("derived.fit|derived.worth|derived.kv_long + impossible|kv|memory|capacity|because",),
        ),
    ),
    Drill(
        "shrink-the-kv",
        "GQA, int8 KV or more memory?",
        6,
        "KV, decode",
        _shrink_kv,
        Rubric(
            diagnosis=("kv + memory|derived|trouble|because|capacity", "kv|memory + derived"),
            mechanism=("kv|memory|seats|kv_quant|gqa + derived", "~ kv + because + memory|seats"),
            apart=(
                "gqa + !gqa|depend|order|quality|because",
                "quantization|kv_quant + split|!quantization|depend",
                "gqa + kv_quant",
                "!quantization",
            ),
            secondary=("quality|preemption|bandwidth|decode|queue + because|depend|kv|secondary|trouble",),
            secondary_why=("~ preemption|bandwidth|decode|queue|quality + because|depend|derived|kv",),
            moves={
                "kv_quant": "kv|memory|seats|decode|bandwidth|quality|derived",
                "gqa": "kv|memory|quality|decode",
                "hbm_buy": "kv|memory|cost|bandwidth",
                "seats": "kv|queue|memory",
                "prompt_limit": "kv|memory",
                "offload": "kv|memory|ttft",
                "window": "kv|quality|memory",
                "replicas": "cost|kv|capacity|memory",
                "tp": "kv|memory|cost",
            },
            unknowns=(
                "kv|prompt_length|quality|preemption|cost|queue|shared_prefix|load|output_length|memory|itl|little|"
                "capacity|hit_rate|percentile"
            ),
            beyond=("derived.times|derived.fit_int8|derived.need + impossible|memory|kv|because|depend",),
        ),
    ),
    Drill(
        "growing-agents",
        "Multi-turn agents with a growing context",
        6,
        "prefill, KV",
        _agents,
        Rubric(
            diagnosis=(
                "turns|prompt_length + prefill|kv",
                "prefill|prefix_cache|kv + derived",
                "~ turns + because + prefill|kv",
            ),
            mechanism=(
                "prefill|kv|turns|ttft|prefix_cache|prompt_length + derived",
                "~ turns + prefix_cache|prefill|kv + because",
            ),
            apart=(
                "prefill + decode|kv",
                "hit_rate + eviction|routing",
                "~ eviction|routing + hit_rate + depend|decides",
                "split",
            ),
            secondary=("eviction|kv|memory|routing + because|derived|trouble|secondary|depend",),
            secondary_why=("~ eviction|kv|memory + derived|because", "routing + because|hit_rate"),
            moves={
                "prefix_cache": "prefill|ttft|turns",
                "routing": "hit_rate|prefix_cache|kv|ttft|turns",
                "offload": "kv|memory|ttft|eviction",
                "stable_first": "prefill|hit_rate|prefix_cache|shared_prefix",
                "prompt_limit": "prefill|kv|ttft|turns",
                "kv_quant": "kv|memory",
                "chunking": "prefill|itl",
                "lanes": "prefill|ttft|turns",
                "admission": "kv|queue",
                "output_limit": "decode|e2e",
            },
            unknowns=(
                "turns|hit_rate|eviction|routing|prompt_length|kv|memory|load|shared_prefix|quality|percentile|ttft|"
                "little|output_length"
            ),
            beyond=(
                "derived.kv_all + memory|kv|eviction|impossible|because|capacity",
                "~ derived.kv_all|derived.kv_agent + memory|eviction|impossible",
            ),
        ),
    ),
)
