"""Numbers of drills about decoding: speculation, chunks, a new draft model, one token's life."""

from course.lab.drills.amounts import Amount
from course.lab.drills.drill import Draw
from course.lab.drills.library import units as u
from course.lab.drills.reading import Numbers


def accepted(alpha: float, k: float) -> float:
    """Tokens a verification brings: (1 - alpha^(k+1)) / (1 - alpha), each draft accepted with probability alpha."""
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def code_drafts(draw: Draw) -> Numbers:
    alpha, k, cost, itl = draw(0.8, 0.82, 0.78), 4, 0.1, draw(0.024, 0.026, 0.022)
    chat = 0.5
    gain = accepted(alpha, k) / (1 + k * cost)
    return Numbers(
        {
            "alpha": u.ratio(alpha),
            "chat": u.ratio(chat),
            "k": u.count(k),
            "cost": u.ratio(cost),
            "itl": u.seconds(itl),
            "output": u.tokens(60),
        },
        {
            "per_step": Amount(accepted(alpha, k), tolerance=0.02),
            "round": u.ratio(1 + k * cost),
            "gain": u.ratio(gain),
            "new_itl": u.seconds(itl / gain),
            "chat_gain": u.ratio(accepted(chat, k) / (1 + k * cost)),
            "tokens_checked": u.ratio(k + 1),
            "time": u.seconds(60 * itl),
            "new_time": u.seconds(60 * itl / gain),
        },
        {"popular": u.ratio(alpha * k)},
    )


def chunk_size(draw: Draw) -> Numbers:
    step, per_token, slo, prompt = draw(0.030, 0.028, 0.032), draw(0.00005, 0.000055, 0.000045), 0.080, 6000
    largest = (slo - step) / per_token
    chunk = 512
    return Numbers(
        {
            "step": u.seconds(step),
            "rate": u.token_rate(round(1 / per_token)),
            "slo": u.seconds(slo),
            "prompt": u.tokens(prompt),
        },
        {
            "largest": u.tokens(largest),
            "whole": u.seconds(prompt * per_token),
            "stall": u.seconds(step + prompt * per_token),
            "chunks": u.count(prompt / largest),
            "ttft": u.seconds(prompt / largest * slo),
            "small_chunks": u.count(prompt / chunk),
            "small_step": u.seconds(step + chunk * per_token),
            "small_ttft": u.seconds(prompt / chunk * (step + chunk * per_token)),
        },
    )


def _break_even(wanted: float, k: float) -> float:
    """The acceptance, in hundredths, from which on a verification brings as many tokens as wanted; at most 0.99."""
    return next((a / 100 for a in range(99) if accepted(a / 100, k) >= wanted), 0.99)


def new_draft(draw: Draw) -> Numbers:
    old, k, cost = draw(0.62, 0.6, 0.64), 4, draw(0.08, 0.07, 0.09)
    new = round(old + 0.1, 2)
    before, after = accepted(old, k) / (1 + k * 0.05), accepted(new, k) / (1 + k * cost)
    share = 0.05
    return Numbers(
        {
            "old": u.ratio(old),
            "new": u.ratio(new),
            "k": u.count(k),
            "cost": u.ratio(cost),
            "old_cost": u.ratio(0.05),
            "qps": u.count(400),
        },
        {
            "tokens_old": u.count(accepted(old, k)),
            "tokens_new": u.count(accepted(new, k)),
            "before": u.ratio(before),
            "after": u.ratio(after),
            "win": u.ratio(after / before),
            "percent": u.ratio(after / before - 1),
            "round_new": u.ratio(1 + k * cost),
            "canary": u.count(share * 400),
            "jump": u.ratio((new - old) / old),
            "break_even": u.ratio(_break_even(before * (1 + k * cost), k)),
        },
    )


def one_token(draw: Draw) -> Numbers:
    shape, h100 = u.model("llama-3-8b"), u.gpu("h100-sxm")
    prompt, batch = draw(1000, 1200, 900), draw(32, 24, 40)
    kv = shape.kv_bytes_per_token("bfloat16")
    weights = shape.read_bytes("bfloat16")
    return Numbers(
        {"prompt": u.tokens(prompt), "batch": u.count(batch), "bandwidth": u.count(h100.bandwidth / 1e12)},
        {
            "weights": u.size(weights),
            "floor": u.seconds(u.step_floor(shape, h100, 1)),
            "kv_token": u.size(kv),
            "kv_request": u.size(prompt * kv),
            "kv_batch": u.size(batch * prompt * kv),
            "step": u.seconds((weights + batch * prompt * kv) / h100.bandwidth),
            "kv_share": u.ratio(batch * prompt * kv / (weights + batch * prompt * kv)),
            "prefill": u.seconds(u.prefill_floor(shape, h100, 1, prompt)),
            "speed": u.token_rate(batch / ((weights + batch * prompt * kv) / h100.bandwidth)),
        },
    )
