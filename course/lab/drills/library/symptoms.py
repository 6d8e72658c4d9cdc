"""Drills that begin with a symptom: one number or two, and a phase to be found."""

from course.lab.drills.drill import Draw, Drill, FollowUp, Rubric, Trap
from course.lab.drills.library.units import (
    count,
    flops,
    gpu,
    kv_room,
    model,
    prefill_floor,
    rate,
    ratio,
    seconds,
    size,
    step_floor,
    token_rate,
    tokens,
)
from course.lab.drills.reading import Numbers

TWO_NUMBERS = FollowUp(
    "ttft + itl|decode", "You have one minute with the dashboard. Which two numbers do you ask for?", True
)
BATCH_TRAP = Trap(
    "seats + effect",
    ("queue|ttft|itl|kv|capacity|memory|derived|decode|number",),
    "A larger batch is not free: say what it costs in ITL, and whether KV has room for it.",
    price=0.1,
)

PREFILL_IS_GIVEN = Trap(
    "prefill + trouble",
    ("queue|!prefill|given.prefill",),
    "The prompt says how long prefill takes: what is the rest of the TTFT?",
)
NOT_THE_WEIGHTS = Trap(
    "bandwidth + because|trouble",
    ("derived.floor|derived.above|!bandwidth|straggler|kv|batching",),
    "Work out what reading the weights takes here, and compare it with the ITL: something else is in the step.",
)


def _dump(draw: Draw) -> Numbers:
    shape, a100 = model("llama-2-13b"), gpu("a100-80gb")
    ttft, itl, qps = draw(3.2, 2.8, 3.6), draw(0.080, 0.070, 0.090), draw(60, 50, 70)
    prompt, output = draw(2200, 2000, 2400), draw(180, 160, 200)
    decode = itl * output
    kv = (prompt + output / 2) * shape.kv_bytes_per_token("bfloat16")
    floor = prefill_floor(shape, a100, 2, prompt)
    return Numbers(
        {
            "ttft": seconds(ttft),
            "itl": seconds(itl),
            "qps": rate(qps),
            "prompt": tokens(prompt),
            "output": tokens(output),
        },
        {
            "decode": seconds(decode),
            "e2e": seconds(ttft + decode),
            "share": ratio(ttft / (ttft + decode)),
            "decode_share": ratio(decode / (ttft + decode)),
            "prompt_rate": token_rate(qps * prompt),
            "output_rate": token_rate(qps * output),
            "asked": flops(qps * prompt * 2 * shape.layer_params),
            "peak": flops(2 * a100.peak_flops("bfloat16")),
            "servers": ratio(qps * floor),
            "prefill": seconds(floor),
            "in_flight": count(qps * (ttft + decode)),
            "kv_token": size(shape.kv_bytes_per_token("bfloat16")),
            "kv_request": size(kv),
            "seats": count(kv_room(shape, a100, 2) / kv),
            "weights": size(shape.read_bytes("bfloat16")),
            "floor": seconds(step_floor(shape, a100, 2)),
        },
    )


def _one_number(draw: Draw) -> Numbers:
    p99, output, qps = draw(8.0, 9.0, 7.0), draw(150, 140, 160), draw(12, 10, 14)
    return Numbers(
        {"p99": seconds(p99), "output": tokens(output), "qps": rate(qps)},
        {
            "slow_ttft": seconds(p99 - 0.02 * output),
            "slow_itl": seconds((p99 - 0.2) / output),
            "all_decode": seconds(p99 / output),
            "in_flight": count(p99 * qps),
        },
    )


def _late_first(draw: Draw) -> Numbers:
    ttft, itl, output, prefill = draw(7.0, 6.0, 8.0), 0.050, draw(120, 110, 130), draw(0.35, 0.3, 0.4)
    qps = draw(20, 18, 22)
    return Numbers(
        {
            "ttft": seconds(ttft),
            "itl": seconds(itl),
            "output": tokens(output),
            "prefill": seconds(prefill),
            "qps": rate(qps),
        },
        {
            "decode": seconds(itl * output),
            "e2e": seconds(ttft + itl * output),
            "wait": seconds(ttft - prefill),
            "wait_share": ratio((ttft - prefill) / ttft),
            "line": count(qps * (ttft - prefill)),
        },
    )


def _slow_drip(draw: Draw) -> Numbers:
    shape, h100 = model("llama-3-70b"), gpu("h100-sxm")
    ttft, itl, output = draw(0.2, 0.22, 0.18), draw(0.25, 0.22, 0.28), draw(300, 280, 320)
    floor = step_floor(shape, h100, 4)
    return Numbers(
        {"ttft": seconds(ttft), "itl": seconds(itl), "output": tokens(output), "gpus": count(4)},
        {
            "decode": seconds(itl * output),
            "share": ratio(itl * output / (ttft + itl * output)),
            "speed": token_rate(1 / itl),
            "weights": size(shape.read_bytes("bfloat16")),
            "floor": seconds(floor),
            "above": ratio(itl / floor),
        },
    )


DRILLS = (
    Drill(
        "dump-13b",
        "The profiling dump: 13B on two A100s",
        12,
        "all five, capacity",
        _dump,
        Rubric(
            diagnosis=(
                "ttft + queue|prefill + trouble|because|depend|split",
                "decode|itl + trouble + number",
                "~ ttft + trouble + queue|prefill",
                "decode|itl|e2e + derived.decode",
                "ttft + trouble",
            ),
            mechanism=(
                "decode|itl|ttft|prefill|queue|e2e + derived",
                "~ queue|prefill + because + number + load|capacity|compute|prompt_length",
                "ttft|queue|prefill + given + because",
                "decode|e2e + derived.decode",
            ),
            apart=(
                "queue + prefill + split|question|depend|decides",
                "~ question + queue + prefill|decides",
                "ttft|prefill + decode|itl + split",
                "~ depend|decides + queue + prefill",
            ),
            secondary=(
                "itl|decode + secondary",
                "itl + trouble",
                "itl|decode + because + kv|mha|seats|batching|bandwidth",
                "secondary + kv|ttft|queue|prefill|decode",
            ),
            secondary_why=(
                (
                    "~ itl|decode|secondary + kv|mha|memory|seats|batching|bandwidth|straggler|chunking + because|"
                    "number|trouble|decides"
                ),
                "itl|decode + derived.floor|derived.seats|derived.kv_request",
            ),
            moves={
                "admission": "queue|ttft|capacity",
                "chunking": "prefill|ttft|itl|queue",
                "prefix_cache": "prefill|ttft",
                "speculation": "decode|itl",
                "kv_quant": "decode|itl|kv|memory|queue",
                "replicas": "queue|capacity|ttft|spike",
                "seats": "queue|kv|itl|decode|ttft",
                "prompt_limit": "prefill|ttft",
                "gqa": "decode|kv|itl",
            },
            unknowns=(
                "queue|prompt_length|shared_prefix|hit_rate|batching|seats|kv|load|percentile|mha|gqa|little|"
                "preemption|output_length|spike|replicas"
            ),
            beyond=(
                (
                    "~ derived.servers|derived.asked|derived.in_flight|derived.seats + impossible|capacity|compute|"
                    "kv|little"
                ),
                "~ impossible + given.qps|given.prompt + capacity|compute|replicas",
            ),
            traps=(BATCH_TRAP,),
            follow_ups=(
                FollowUp(
                    "derived.servers|derived.asked|derived.in_flight",
                    "How many such servers does this traffic take, and how sure are you?",
                ),
                FollowUp(
                    "derived.decode", "A p99 times a count: whose waiting time is that? What would you rather multiply?"
                ),
                FollowUp("queue + trouble", "Then why is ITL fine? Or is it?"),
            ),
            hints={
                "evidence": (
                    "Multiply ITL by the answer's length, and the request rate by the prompt's length: then ask what "
                    "two A100s can do."
                )
            },
        ),
    ),
    Drill(
        "p99-8s",
        "p99 is 8 s: where do you look first?",
        3,
        "all five",
        _one_number,
        Rubric(
            diagnosis=(
                "ttft + itl",
                "ttft + decode + split",
                "~ ttft + itl + split|question",
                "!percentile + e2e + ttft",
            ),
            mechanism=(
                "ttft + queue|prefill + depend|because|number",
                "itl|decode + depend|because + number|bandwidth|speculation",
                "~ ttft + depend + queue|prefill",
            ),
            apart=("~ queue|prefill|ttft + decode|itl + depend|split", "queue + prefill + split|depend|question"),
            moves={
                "admission": "queue|ttft",
                "replicas": "queue|capacity",
                "chunking": "prefill|ttft|itl",
                "prefix_cache": "prefill|ttft",
                "speculation": "decode|itl",
                "prompt_limit": "prefill|ttft",
                "seats": "queue|itl|decode",
                "unbuffer": "stream",
                "output_limit": "decode|e2e",
                "batching": "queue|decode|itl",
            },
            unknowns="ttft|itl|queue|prefill|prompt_length|output_length|client|server_side|load|percentile|e2e",
            beyond=(
                "~ derived.in_flight + little|load|capacity|queue",
                "~ derived.slow_ttft|derived.slow_itl|derived.all_decode + depend|because|itl|ttft",
            ),
            follow_ups=(TWO_NUMBERS,),
            hints={"diagnosis": "One number hides two systems: ask for TTFT and ITL apart before anything else."},
        ),
    ),
    Drill(
        "ttft-7s",
        "TTFT 7 s, ITL 50 ms",
        4,
        "queue, prefill",
        _late_first,
        Rubric(
            diagnosis=("queue + trouble|because|ttft", "queue + derived"),
            mechanism=("queue + derived", "~ queue + given + because|trouble", "prefill + given.prefill + queue|ttft"),
            apart=(
                "prefill + given + !trouble",
                "queue + prefill",
                "!decode",
                "!itl",
                "decode|itl + derived",
                "~ queue + prefill + because",
            ),
            secondary=(
                "load|capacity|spike|little|kv|seats|prompt_length + queue|because|trouble|depend",
                "secondary",
                "decode|e2e + derived",
            ),
            secondary_why=(
                "~ load|capacity|spike|little|kv|seats + because|depend|number|decides",
                "decode|e2e + derived",
            ),
            moves={
                "admission": "queue|ttft|capacity",
                "replicas": "queue|capacity|spike|steady",
                "seats": "queue|kv|itl|memory",
                "chunking": "prefill|itl|queue",
                "lanes": "queue|ttft",
                "kv_quant": "kv|memory|queue",
                "autoscaling": "spike|queue",
                "fallback": "spike|queue|capacity",
                "prefix_cache": "prefill|capacity|kv",
            },
            unknowns="kv|seats|load|spike|preemption|capacity|prompt_length|little|queue|steady|batching|output_length",
            beyond=(
                "~ derived.line + queue|little|because",
                "capacity + impossible|because|trouble",
                "queue + depend|because + spike|load|capacity",
            ),
            traps=(PREFILL_IS_GIVEN,),
            follow_ups=(FollowUp("queue + trouble|because", "Then why is ITL fine?"),),
        ),
    ),
    Drill(
        "itl-250ms",
        "TTFT 200 ms, ITL 250 ms",
        4,
        "decode",
        _slow_drip,
        Rubric(
            diagnosis=("decode + trouble|because", "itl + decode", "decode|itl + derived"),
            mechanism=("decode|itl|bandwidth + derived", "~ batching|straggler|kv + because + itl|decode"),
            apart=(
                "!queue",
                "!prefill",
                "ttft + given",
                "straggler|kv|batching + bandwidth|launch|straggler + depend|split|question",
                "prefill + straggler|split",
            ),
            secondary=(
                "straggler|chunking|kv|preemption|launch|seats|batching|proxy|tp + itl|because|depend|decode|trouble",
                "secondary",
            ),
            secondary_why=("~ straggler|chunking|kv|preemption|launch|seats|tp + because|depend|number|decides",),
            moves={
                "seats": "itl|decode|queue|kv",
                "chunking": "itl|prefill|straggler",
                "speculation": "decode|itl",
                "kv_quant": "kv|decode|itl",
                "gqa": "kv|decode",
                "quantization": "decode|itl|bandwidth",
                "smaller_model": "decode|itl",
                "launch": "decode|itl",
                "lanes": "itl|prefill|decode",
                "tp": "itl|decode|bandwidth",
            },
            unknowns=(
                "batching|seats|kv|prompt_length|straggler|prefill|preemption|launch|tp|percentile|little|chunking|"
                "client|acceptance|load"
            ),
            beyond=(
                "derived.above|derived.floor + bandwidth|decode|itl|because",
                "~ derived.floor|derived.above + impossible|because|bandwidth",
            ),
            traps=(NOT_THE_WEIGHTS,),
            hints={
                "evidence": "Bytes of weights over bandwidth is the shortest step there is: compare it with this ITL."
            },
        ),
    ),
)
