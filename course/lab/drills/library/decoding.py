"""Drills about decoding: speculation, chunks, a new draft model, one token's life."""

from course.lab.drills.amounts import Amount
from course.lab.drills.drill import Draw, Drill, FollowUp, Rubric, Trap
from course.lab.drills.library.units import (
    count,
    gpu,
    model,
    prefill_floor,
    ratio,
    seconds,
    size,
    step_floor,
    token_rate,
    tokens,
)
from course.lab.drills.reading import Numbers


def accepted(alpha: float, k: float) -> float:
    """Tokens a verification brings: (1 - alpha^(k+1)) / (1 - alpha), each draft accepted with probability alpha."""
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def _code_assistant(draw: Draw) -> Numbers:
    alpha, k, cost, itl = draw(0.8, 0.82, 0.78), 4, 0.1, draw(0.024, 0.026, 0.022)
    chat = 0.5
    gain = accepted(alpha, k) / (1 + k * cost)
    return Numbers(
        {
            "alpha": ratio(alpha),
            "chat": ratio(chat),
            "k": count(k),
            "cost": ratio(cost),
            "itl": seconds(itl),
            "output": tokens(60),
        },
        {
            "per_step": Amount(accepted(alpha, k), tolerance=0.02),
            "round": ratio(1 + k * cost),
            "gain": ratio(gain),
            "new_itl": seconds(itl / gain),
            "chat_gain": ratio(accepted(chat, k) / (1 + k * cost)),
            "tokens_checked": ratio(k + 1),
            "time": seconds(60 * itl),
            "new_time": seconds(60 * itl / gain),
        },
        {"popular": ratio(alpha * k)},
    )


def _chunk(draw: Draw) -> Numbers:
    step, per_token, slo, prompt = draw(0.030, 0.028, 0.032), draw(0.00005, 0.000055, 0.000045), 0.080, 6000
    largest = (slo - step) / per_token
    chunk = 512
    return Numbers(
        {
            "step": seconds(step),
            "rate": token_rate(round(1 / per_token)),
            "slo": seconds(slo),
            "prompt": tokens(prompt),
        },
        {
            "largest": tokens(largest),
            "whole": seconds(prompt * per_token),
            "stall": seconds(step + prompt * per_token),
            "chunks": count(prompt / largest),
            "ttft": seconds(prompt / largest * slo),
            "small_chunks": count(prompt / chunk),
            "small_step": seconds(step + chunk * per_token),
            "small_ttft": seconds(prompt / chunk * (step + chunk * per_token)),
        },
    )


def _break_even(wanted: float, k: float) -> float:
    """The acceptance, in hundredths, from which on a verification brings as many tokens as wanted; at most 0.99."""
    return next((a / 100 for a in range(99) if accepted(a / 100, k) >= wanted), 0.99)


def _new_draft(draw: Draw) -> Numbers:
    old, k, cost = draw(0.62, 0.6, 0.64), 4, draw(0.08, 0.07, 0.09)
    new = round(old + 0.1, 2)
    before, after = accepted(old, k) / (1 + k * 0.05), accepted(new, k) / (1 + k * cost)
    share = 0.05
    return Numbers(
        {
            "old": ratio(old),
            "new": ratio(new),
            "k": count(k),
            "cost": ratio(cost),
            "old_cost": ratio(0.05),
            "qps": count(400),
        },
        {
            "tokens_old": count(accepted(old, k)),
            "tokens_new": count(accepted(new, k)),
            "before": ratio(before),
            "after": ratio(after),
            "win": ratio(after / before),
            "percent": ratio(after / before - 1),
            "round_new": ratio(1 + k * cost),
            "canary": count(share * 400),
            "jump": ratio((new - old) / old),
            "break_even": ratio(_break_even(before * (1 + k * cost), k)),
        },
    )


def _one_token(draw: Draw) -> Numbers:
    shape, h100 = model("llama-3-8b"), gpu("h100-sxm")
    prompt, batch = draw(1000, 1200, 900), draw(32, 24, 40)
    kv = shape.kv_bytes_per_token("bfloat16")
    weights = shape.read_bytes("bfloat16")
    return Numbers(
        {"prompt": tokens(prompt), "batch": count(batch), "bandwidth": count(h100.bandwidth / 1e12)},
        {
            "weights": size(weights),
            "floor": seconds(step_floor(shape, h100, 1)),
            "kv_token": size(kv),
            "kv_request": size(prompt * kv),
            "kv_batch": size(batch * prompt * kv),
            "step": seconds((weights + batch * prompt * kv) / h100.bandwidth),
            "kv_share": ratio(batch * prompt * kv / (weights + batch * prompt * kv)),
            "prefill": seconds(prefill_floor(shape, h100, 1, prompt)),
            "speed": token_rate(batch / ((weights + batch * prompt * kv) / h100.bandwidth)),
        },
    )


BLIND_DRAFT = Trap(
    "speculation + effect|order",
    ("acceptance|batching|seats|gate|cost|measure|derived|load|depend|rollback",),
    "Speculation pays only where drafts are accepted and the batch leaves arithmetic idle: say both.",
)
K_TIMES_ALPHA = Trap(
    "tempting.popular + effect|decode|itl|speculation",
    ("derived.gain|derived.per_step|impossible",),
    "k times acceptance is no speedup: drafts take time, and it counts neither the rejections nor the model's own "
    "token.",
)

DRILLS = (
    Drill(
        "code-drafts",
        "Design speculation for a code assistant",
        8,
        "decode",
        _code_assistant,
        Rubric(
            diagnosis=(
                "speculation + decode|bandwidth|itl + because|effect|trouble",
                "acceptance + derived|because|depend",
                "speculation + derived",
            ),
            mechanism=(
                "speculation|acceptance|decode|itl + derived",
                "~ speculation + bandwidth + because",
                "speculation + bandwidth|compute + because",
            ),
            apart=(
                "batching|seats|load|compute + depend|gate|acceptance",
                "acceptance + depend|split|prompt_length|output_length",
                "!speculation",
                "!ttft|!prefill|!queue",
            ),
            secondary=(
                (
                    "batching|seats|load|capacity|output_length|kv|memory|ttft + speculation|depend|because|gate|"
                    "trouble|secondary"
                ),
            ),
            secondary_why=("~ batching|seats|load|capacity|kv|compute|memory + because|derived|depend",),
            moves={
                "speculation": "decode|itl|acceptance|bandwidth",
                "gate": "batching|acceptance|load|seats|capacity|speculation",
                "measure": "acceptance|itl",
                "smaller_model": "decode|itl|ttft",
                "prefix_cache": "prefill|ttft",
                "kv_quant": "kv|memory",
                "quantization": "decode|itl",
            },
            unknowns=(
                "acceptance|batching|load|output_length|prompt_length|itl|cost|memory|quality|kv|seats|speculation|"
                "percentile|ttft|capacity"
            ),
            beyond=(
                "derived.gain|derived.chat_gain + tempting.popular|impossible|because|depend|batching|speculation",
                "derived.chat_gain + acceptance|depend|gate|because|speculation",
            ),
            traps=(BLIND_DRAFT, K_TIMES_ALPHA),
            follow_ups=(
                FollowUp(
                    "derived.gain|derived.per_step", "That formula takes acceptance as independent of position. Is it?"
                ),
                FollowUp(
                    "batching|seats|load", "How does the server find out that the batch is too large for drafts?", True
                ),
            ),
        ),
    ),
    Drill(
        "chunk-size",
        "Choose a chunk size, and defend it",
        5,
        "prefill, decode",
        _chunk,
        Rubric(
            diagnosis=("chunking + itl|decode + ttft|prefill", "chunking + derived", "~ chunking + itl + ttft|prefill"),
            mechanism=("chunking|itl|ttft|prefill|decode + derived", "~ chunking + because + itl|ttft + number"),
            apart=(
                "chunking + effect + ttft + itl",
                "split|because + ttft + itl",
                "~ ttft + itl + because|effect|depend",
                "chunking + !chunking",
            ),
            secondary=("ttft|bandwidth|cost|capacity|queue + chunking|because|derived|trouble|secondary",),
            secondary_why=("~ ttft|bandwidth|capacity|queue|launch + because|derived + chunking|effect|number",),
            moves={
                "chunking": "itl|ttft|prefill|decode",
                "lanes": "prefill|itl|ttft",
                "prefix_cache": "prefill|ttft",
                "prompt_limit": "prefill|ttft",
                "admission": "queue|ttft",
                "seats": "itl|decode",
                "measure": "itl|ttft",
                "replicas": "capacity|ttft|queue",
            },
            unknowns=(
                "itl|ttft|prompt_length|percentile|batching|seats|load|output_length|goodput|shared_prefix|monitor|"
                "queue|decode|prefill"
            ),
            beyond=("derived.largest|derived.ttft|derived.small_ttft + ttft|itl|chunking|impossible|because",),
            follow_ups=(
                FollowUp(
                    "derived.largest",
                    "The decode part of the step grows with the batch. What happens to your chunk then?",
                ),
            ),
        ),
    ),
    Drill(
        "new-draft",
        "Roll out a new draft model safely",
        6,
        "decode, operations",
        _new_draft,
        Rubric(
            diagnosis=(
                "acceptance + speculation|itl|because|derived|depend|trouble",
                "speculation + derived|itl|cost",
                "rollback + speculation|acceptance|itl",
            ),
            mechanism=(
                "acceptance|speculation|itl|decode|cost + derived",
                "~ acceptance + cost|itl|batching + because",
            ),
            apart=(
                "!quality",
                "quality + because|speculation|depend",
                "acceptance + load|batching|percentile|split|prompt_length",
                "itl + capacity|load|goodput",
            ),
            secondary=(
                "memory|kv|batching|load|capacity|seats|cost + speculation|because|depend|trouble|secondary|acceptance",
            ),
            secondary_why=("~ memory|kv|batching|load|capacity|cost|seats + because|derived|depend",),
            moves={
                "rollback": "itl|acceptance|goodput|ttft|speculation",
                "monitor": "acceptance|itl|ttft|goodput",
                "gate": "batching|acceptance|load|itl",
                "measure": "acceptance|itl|load",
                "speculation": "decode|itl|acceptance",
                "routing": "acceptance|load|itl",
                "lanes": "itl|load",
            },
            unknowns=(
                "acceptance|batching|load|itl|memory|kv|percentile|quality|rollback|goodput|cost|ttft|prompt_length|"
                "spike|seats|capacity"
            ),
            beyond=(
                "derived.win|derived.percent + itl|acceptance|cost|because|speculation",
                "~ derived.jump + derived.win|derived.percent",
            ),
            follow_ups=(
                FollowUp("quality", "Can a bad draft change the text? Under greedy decoding, under sampling?"),
            ),
        ),
    ),
    Drill(
        "one-token",
        "Walk me through one token's life",
        5,
        "all five",
        _one_token,
        Rubric(
            diagnosis=("queue + prefill", "prefill + decode", "decode + bandwidth|kv|because"),
            mechanism=(
                "decode|prefill|bandwidth|kv + derived",
                "~ decode + bandwidth + because",
                "bandwidth + derived",
            ),
            apart=("prefill + compute", "decode + bandwidth", "split", "ttft + queue|prefill"),
            secondary=(
                "stream|first_token|tokenize + because|ttft|itl|server_side|client|network|proxy|secondary|trouble",
                "kv + derived|memory",
            ),
            secondary_why=("~ stream|first_token|tokenize|kv + because|proxy|derived|client",),
            moves={
                "batching": "decode|bandwidth|queue",
                "seats": "queue|kv|decode|bandwidth",
                "chunking": "prefill|itl",
                "prefix_cache": "prefill|ttft",
                "speculation": "decode|itl",
                "kv_quant": "kv|decode",
                "quantization": "decode|bandwidth",
                "replicas": "queue|capacity",
                "admission": "queue",
                "unbuffer": "stream|proxy",
                "flash": "prefill|attention",
            },
            unknowns=(
                "batching|prompt_length|queue|kv|load|ttft|itl|proxy|shared_prefix|output_length|hit_rate|client|"
                "percentile|capacity|bandwidth"
            ),
            beyond=("derived.floor|derived.step|derived.kv_share + impossible|bandwidth|itl|decode|because|kv",),
        ),
    ),
)
