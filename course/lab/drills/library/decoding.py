"""Numbers of drills about decoding: speculation, chunks, a new draft model, one token's life."""

from course.lab.drills.amounts import Amount
from course.lab.drills.library import units as u
from course.lab.drills.library.units import Follows, Given


def accepted(alpha: float, k: float) -> float:
    """Tokens a verification brings: (1 - alpha^(k+1)) / (1 - alpha), each draft accepted with probability alpha."""
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def code_drafts(g: Given) -> Follows:
    gain = accepted(g.alpha, g.k) / (1 + g.k * g.cost)
    return {
        "per_step": Amount(accepted(g.alpha, g.k), tolerance=0.02),
        "round": u.ratio(1 + g.k * g.cost),
        "gain": u.ratio(gain),
        "new_itl": u.seconds(g.itl / gain),
        "chat_gain": u.ratio(accepted(g.chat, g.k) / (1 + g.k * g.cost)),
        "tokens_checked": u.ratio(g.k + 1),
        "time": u.seconds(g.output * g.itl),
        "new_time": u.seconds(g.output * g.itl / gain),
        "popular": u.ratio(g.alpha * g.k),
    }


def chunk_size(g: Given) -> Follows:
    per_token = 1 / g.rate
    chunk = 512
    largest = (g.slo - g.step) / per_token
    return {
        "largest": u.tokens(largest),
        "whole": u.seconds(g.prompt * per_token),
        "stall": u.seconds(g.step + g.prompt * per_token),
        "chunks": u.count(g.prompt / largest),
        "ttft": u.seconds(g.prompt / largest * g.slo),
        "small_chunks": u.count(g.prompt / chunk),
        "small_step": u.seconds(g.step + chunk * per_token),
        "small_ttft": u.seconds(g.prompt / chunk * (g.step + chunk * per_token)),
    }


def _break_even(wanted: float, k: float) -> float:
    """The acceptance, in hundredths, from which on a verification brings as many tokens as wanted; at most 0.99."""
    return next((a / 100 for a in range(99) if accepted(a / 100, k) >= wanted), 0.99)


def new_draft(g: Given) -> Follows:
    share = 0.05
    new = round(g.old + 0.1, 2)
    before, after = accepted(g.old, g.k) / (1 + g.k * g.old_cost), accepted(new, g.k) / (1 + g.k * g.cost)
    return {
        "tokens_old": u.count(accepted(g.old, g.k)),
        "tokens_new": u.count(accepted(new, g.k)),
        "before": u.ratio(before),
        "after": u.ratio(after),
        "win": u.ratio(after / before),
        "percent": u.ratio(after / before - 1),
        "round_new": u.ratio(1 + g.k * g.cost),
        "canary": u.count(share * g.qps),
        "jump": u.ratio((new - g.old) / g.old),
        "break_even": u.ratio(_break_even(before * (1 + g.k * g.cost), g.k)),
        "new": u.ratio(new),
    }


def one_token(g: Given) -> Follows:
    shape, h100 = u.model("llama-3-8b"), u.gpu("h100-sxm")
    kv = shape.kv_bytes_per_token("bfloat16")
    weights = shape.read_bytes("bfloat16")
    return {
        "weights": u.size(weights),
        "floor": u.seconds(u.step_floor(shape, h100, 1)),
        "kv_token": u.size(kv),
        "kv_request": u.size(g.prompt * kv),
        "kv_batch": u.size(g.batch * g.prompt * kv),
        "step": u.seconds((weights + g.batch * g.prompt * kv) / h100.bandwidth),
        "kv_share": u.ratio(g.batch * g.prompt * kv / (weights + g.batch * g.prompt * kv)),
        "prefill": u.seconds(u.prefill_floor(shape, h100, 1, g.prompt)),
        "speed": u.token_rate(g.batch / ((weights + g.batch * g.prompt * kv) / h100.bandwidth)),
        "bandwidth": u.count(h100.bandwidth / 1e12),
    }
