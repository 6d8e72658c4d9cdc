"""Drills about how many machines: sizing, spikes, sharing, buying, and the question of why not to."""

from course.lab.drills.drill import Draw, Drill, FollowUp, Rubric
from course.lab.drills.library.units import (
    count,
    gpu,
    kv_room,
    model,
    money,
    prefill_floor,
    rate,
    ratio,
    seconds,
    size,
    token_rate,
    tokens,
)
from course.lab.drills.reading import Numbers

HOURS_A_MONTH = 730


def _why_not_gpus(draw: Draw) -> Numbers:
    price, replicas, gpus = gpu("h100-sxm").price_per_hour, draw(6, 5, 7), 4
    wait, seats, used = draw(3.0, 2.5, 3.5), 16, draw(0.35, 0.3, 0.4)
    return Numbers(
        {
            "price": money(price),
            "replicas": count(replicas),
            "gpus": count(gpus),
            "wait": seconds(wait),
            "seats": count(seats),
            "used": ratio(used),
        },
        {
            "replica_hour": money(price * gpus),
            "month_now": money(price * gpus * replicas * HOURS_A_MONTH),
            "month_more": money(price * gpus * replicas * HOURS_A_MONTH),
            "one_month": money(price * gpus * HOURS_A_MONTH),
            "room": count(int(seats / used)),
            "times": ratio(1 / used),
            "doubled": count(2 * seats),
        },
    )


def _size_fleet(draw: Draw) -> Numbers:
    shape, h100 = model("llama-3-70b"), gpu("h100-sxm")
    qps, prompt, output, mfu = draw(100, 90, 110), draw(1500, 1600, 1400), 150, 0.5
    per_prompt = prefill_floor(shape, h100, 4, prompt) / mfu
    kv = shape.kv_bytes_per_token("bfloat16")
    step, batch = 0.040, 64
    per_answer = output * step / batch
    busy = qps * (per_prompt + per_answer)
    at = 0.7
    return Numbers(
        {
            "qps": rate(qps),
            "prompt": tokens(prompt),
            "output": tokens(output),
            "mfu": ratio(mfu),
            "step": seconds(step),
            "batch": count(batch),
            "at": ratio(at),
        },
        {
            "prompt_rate": token_rate(qps * prompt),
            "per_prompt": seconds(per_prompt),
            "prefill_servers": ratio(qps * per_prompt),
            "decode_rate": token_rate(qps * output),
            "replica_rate": token_rate(batch / step),
            "decode_servers": ratio(qps * output / (batch / step)),
            "busy": ratio(busy),
            "fleet": count(-(-busy // at)),
            "one": rate(1 / (per_prompt + per_answer)),
            "kv_request": size(kv * (prompt + output)),
            "fit": count(int(kv_room(shape, h100, 4) / (kv * (prompt + output)))),
            "hour": money(-(-busy // at) * 4 * h100.price_per_hour),
        },
    )


def _spike(draw: Draw) -> Numbers:
    usual, capacity, start, lasts = draw(8, 7, 9), draw(20, 18, 22), draw(240, 200, 280), draw(300, 280, 320)
    peak = 10 * usual
    line = (peak - capacity) * lasts
    return Numbers(
        {
            "usual": rate(usual),
            "capacity": rate(capacity),
            "start": seconds(start),
            "lasts": seconds(lasts),
            "slo": seconds(2),
        },
        {
            "peak": rate(peak),
            "excess": rate(peak - capacity),
            "load": ratio(peak / capacity),
            "steady_load": ratio(usual / capacity),
            "line": count(line),
            "line_at_start": count((peak - capacity) * start),
            "drain": seconds(line / (capacity - usual)),
            "wait": seconds(line / capacity),
            "allowed": count(capacity * 2),
            "served": ratio(capacity / peak),
            "replicas": ratio(peak / capacity),
        },
    )


def _batch_beside_chat(draw: Draw) -> Numbers:
    documents, length, speed, window = draw(20_000, 18_000, 22_000), draw(6000, 5500, 6500), 12_000, 8
    chat_prompt, chat_qps = 800, draw(6, 5, 7)
    work = documents * length / speed
    return Numbers(
        {
            "documents": count(documents),
            "length": tokens(length),
            "speed": token_rate(speed),
            "chat_prompt": tokens(chat_prompt),
            "chat_qps": rate(chat_qps),
            "window": count(window),
            "slo": seconds(0.06),
        },
        {
            "total": tokens(documents * length),
            "work": seconds(work),
            "hours": count(work / 3600),
            "stall": seconds(length / speed),
            "chat_load": ratio(chat_qps * chat_prompt / speed),
            "left": ratio(1 - chat_qps * chat_prompt / speed),
            "hours_beside": count(work / 3600 / (1 - chat_qps * chat_prompt / speed)),
            "servers": ratio(work / 3600 / window),
        },
    )


SCALE = "queue|capacity|cost|spike|steady|ttft|load|number"


DRILLS = (
    Drill(
        "why-not-gpus",
        '"Why not just add GPUs?"',
        4,
        "queue, cost",
        _why_not_gpus,
        Rubric(
            diagnosis=(
                "queue + seats|kv|because|trouble",
                "seats + kv|because",
                "queue + derived",
                "replicas + queue + cost|because",
            ),
            mechanism=("~ seats|kv|cost|replicas|queue + derived", "~ seats + kv + given + because"),
            apart=(
                "replicas + depend|!effect|capacity|steady|spike",
                "!replicas",
                "prefill|decode + replicas",
                "capacity + seats|cost",
            ),
            secondary=("itl|preemption|spike|warm|monitor|straggler|ttft + because|depend|trouble|secondary|effect",),
            secondary_why=("~ itl|preemption|warm|spike + because|depend|number|measure",),
            moves={
                "seats": "queue|kv|itl|cost|ttft",
                "admission": "queue|spike|ttft|capacity",
                "replicas": SCALE,
                "autoscaling": "spike|queue|warm",
                "chunking": "prefill|itl|ttft",
                "prefix_cache": "prefill|ttft|capacity",
                "fallback": "spike|queue|cost",
            },
            unknowns=(
                "kv|queue|seats|capacity|load|spike|itl|ttft|prompt_length|preemption|cost|steady|percentile|goodput|"
                "output_length"
            ),
            beyond=(
                "derived.room|derived.times + seats|kv|queue|because|impossible",
                "derived.one_month|derived.month_more + replicas|cost|because",
            ),
        ),
    ),
    Drill(
        "size-a-fleet",
        "Size a fleet: 70B, 100 requests a second",
        8,
        "capacity",
        _size_fleet,
        Rubric(
            diagnosis=(
                "prefill + compute|derived|trouble|capacity",
                "capacity|replicas + prefill|decode|derived",
                "decode + derived",
            ),
            mechanism=("~ prefill|decode|capacity|load|replicas + derived", "prefill|decode + number + because"),
            apart=("prefill + decode", "kv + !trouble|derived|memory", "split", "~ prefill + decode + because|number"),
            secondary=(
                (
                    "spike|queue|kv|percentile|steady|load|prompt_length|shared_prefix + because|depend|derived|"
                    "trouble|secondary|number"
                ),
            ),
            secondary_why=("~ spike|queue|kv|percentile|load|steady + because|derived|depend",),
            moves={
                "replicas": SCALE + "|prefill|decode",
                "prefix_cache": "prefill|capacity|cost|ttft|replicas",
                "admission": "spike|queue|load",
                "autoscaling": "spike|warm|load|cost",
                "quantization": "decode|prefill|quality",
                "chunking": "prefill|itl",
                "routing": "queue|hit_rate|prefix_cache",
                "fallback": "spike|load",
                "smaller_model": "cost|prefill|capacity|spike",
                "lanes": "prefill|decode",
            },
            unknowns=(
                "prompt_length|shared_prefix|hit_rate|percentile|spike|load|ttft|itl|output_length|cost|goodput|"
                "steady|quality|capacity"
            ),
            beyond=(
                (
                    "derived.one|derived.prefill_servers|derived.busy|derived.fleet + impossible|capacity|replicas|"
                    "because|prefill"
                ),
                "~ derived.one|derived.busy + capacity|impossible|replicas",
            ),
            follow_ups=(
                FollowUp(
                    "derived.fleet|derived.busy",
                    "Which of your numbers is softest, and how would you firm it up in a day?",
                ),
            ),
        ),
    ),
    Drill(
        "tenfold-spike",
        "Steady state versus a tenfold spike",
        6,
        "queue, capacity",
        _spike,
        Rubric(
            diagnosis=(
                "queue|capacity|load + spike|derived|because",
                "spike + capacity|queue|admission",
                "steady + spike",
            ),
            mechanism=("~ queue|capacity|load|spike|warm + derived", "~ autoscaling|warm + given + because"),
            apart=(
                "steady + spike",
                "autoscaling|warm|replicas + depend|!effect|because|trouble|impossible",
                "!replicas|!autoscaling",
            ),
            secondary=("warm|autoscaling|cost|admission|queue|e2e|steady + because|derived|trouble|secondary",),
            secondary_why=("~ warm|autoscaling|admission|queue|cost + because|derived|given",),
            moves={
                "admission": "queue|spike|ttft|load|capacity",
                "fallback": "spike|quality|capacity|load",
                "autoscaling": "spike|warm|steady|cost|load",
                "smaller_model": "spike|quality|capacity",
                "replicas": "steady|spike|cost|capacity|warm",
                "lanes": "spike|queue|load",
                "warm": "spike|cost|autoscaling",
                "output_limit": "capacity|spike|decode",
                "routing": "spike|quality|capacity",
            },
            unknowns=(
                "spike|load|cost|warm|steady|quality|ttft|admission|percentile|queue|capacity|client|goodput|"
                "fallback|output_length"
            ),
            beyond=(
                (
                    "derived.served|derived.line|derived.drain|derived.wait + impossible|queue|capacity|because|"
                    "admission|spike"
                ),
            ),
        ),
    ),
    Drill(
        "batch-beside-chat",
        "The batch summariser shares GPUs with chat",
        5,
        "prefill, queue",
        _batch_beside_chat,
        Rubric(
            diagnosis=(
                "prefill|prompt_length|retrieval|straggler|batching + itl|decode|straggler|queue",
                "~ prefill|prompt_length + itl|ttft|straggler + because",
            ),
            mechanism=(
                "prefill|load|itl|straggler|capacity|prompt_length|queue|lanes|chunking|retrieval + derived",
                "~ prefill|prompt_length + because + straggler + number",
            ),
            apart=(
                "e2e|steady|cost|goodput|load + lanes|spike|because",
                "!ttft|!itl",
                "split",
                "capacity + because|load|depend",
                "lanes + chunking",
            ),
            secondary=("capacity|kv|queue|ttft|preemption|load + because|derived|trouble|secondary|depend",),
            secondary_why=("~ capacity|kv|queue|load|preemption + because|derived|depend",),
            moves={
                "lanes": "queue|itl|ttft|prefill|cost|load|preemption|straggler|capacity|batching",
                "chunking": "itl|prefill|straggler",
                "admission": "queue|load",
                "seats": "kv|queue|itl",
                "spot": "cost|load",
                "replicas": SCALE,
                "prefix_cache": "prefill",
                "autoscaling": "cost|load",
            },
            unknowns=(
                "load|cost|itl|ttft|prompt_length|percentile|kv|capacity|utilised|chunking|lanes|preemption|steady|"
                "spike|e2e|output_length"
            ),
            beyond=(
                (
                    "derived.hours|derived.work|derived.hours_beside|derived.left|derived.servers + impossible|"
                    "capacity|load|because|depend|lanes|utilised"
                ),
            ),
        ),
    ),
)
