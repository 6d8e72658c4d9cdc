"""Numbers of drills that begin with a symptom or a dashboard: which phase is it, and what does it cost?"""

from course.lab.drills.library import units as u
from course.lab.drills.library.units import Follows, Given


def dump_13b(g: Given) -> Follows:
    shape, a100 = u.model("llama-2-13b"), u.gpu("a100-80gb")
    decode = g.itl * g.output
    kv = (g.prompt + g.output / 2) * shape.kv_bytes_per_token("bfloat16")
    floor, slots = u.prefill_floor(shape, a100, 2, g.prompt), u.kv_room(shape, a100, 2) / kv
    step = (shape.read_bytes("bfloat16") + slots * kv) / (2 * a100.bandwidth)
    return {
        "decode": u.seconds(decode),
        "e2e": u.seconds(g.ttft + decode),
        "share": u.ratio(g.ttft / (g.ttft + decode)),
        "decode_share": u.ratio(decode / (g.ttft + decode)),
        "prompt_rate": u.token_rate(g.qps * g.prompt),
        "output_rate": u.token_rate(g.qps * g.output),
        "asked": u.flops(g.qps * g.prompt * 2 * shape.layer_params),
        "peak": u.flops(2 * a100.peak_flops("bfloat16")),
        "servers": u.ratio(g.qps * floor),
        "prefill": u.seconds(floor),
        "in_flight": u.count(g.qps * (g.ttft + decode)),
        "kv_token": u.size(shape.kv_bytes_per_token("bfloat16")),
        "kv_request": u.size(kv),
        "slots": u.count(int(slots)),
        "full_step": u.seconds(step),
        "decode_rate": u.token_rate(slots / step),
        "decode_servers": u.ratio(g.qps * g.output / (slots / step)),
        "both": u.count(g.qps * floor + g.qps * g.output / (slots / step)),
        "weights": u.size(shape.read_bytes("bfloat16")),
        "floor": u.seconds(u.step_floor(shape, a100, 2)),
    }


def p99_8s(g: Given) -> Follows:
    return {
        "smooth": u.seconds(0.02 * g.output),
        "slow_ttft": u.seconds(g.p99 - 0.02 * g.output),
        "slow_itl": u.seconds((g.p99 - 0.2) / g.output),
        "all_decode": u.seconds(g.p99 / g.output),
        "in_flight": u.count(g.p99 * g.qps),
    }


def ttft_7s(g: Given) -> Follows:
    return {
        "decode": u.seconds(g.itl * g.output),
        "e2e": u.seconds(g.ttft + g.itl * g.output),
        "wait": u.seconds(g.ttft - g.prefill),
        "wait_share": u.ratio((g.ttft - g.prefill) / g.ttft),
        "queued": u.count(g.qps * (g.ttft - g.prefill)),
        "running": u.count(g.qps * (g.prefill + g.itl * g.output)),
    }


def itl_250ms(g: Given) -> Follows:
    shape, h100 = u.model("llama-3-70b"), u.gpu("h100-sxm")
    floor = u.step_floor(shape, h100, 4)
    return {
        "decode": u.seconds(g.itl * g.output),
        "share": u.ratio(g.itl * g.output / (g.ttft + g.itl * g.output)),
        "speed": u.token_rate(1 / g.itl),
        "weights": u.size(shape.read_bytes("bfloat16")),
        "floor": u.seconds(floor),
        "above": u.ratio(g.itl / floor),
        "memory": u.size(4 * h100.memory),
        "all_read": u.seconds(h100.memory / h100.bandwidth),
        "chunk": u.tokens(g.itl / u.prefill_floor(shape, h100, 4, 1) / 2),
    }


def rag_broke_chat(g: Given) -> Follows:
    return {
        "stall": u.seconds(g.long / g.speed),
        "chunks": u.count(g.long / g.chunk),
        "chunk_step": u.seconds(g.chunk / g.speed + g.itl),
        "load": u.ratio(g.share * g.long / (g.share * g.long + (1 - g.share) * g.short)),
        "times": u.ratio(g.spike / g.itl),
        "mean": u.tokens(g.share * g.long + (1 - g.share) * g.short),
    }


def quantized_in_vain(g: Given) -> Follows:
    e2e = g.wait + g.prefill + g.itl * g.output
    return {
        "decode": u.seconds(g.itl * g.output),
        "e2e": u.seconds(e2e),
        "saved": u.seconds(g.gain * g.itl * g.output),
        "best": u.ratio(g.gain * g.itl * g.output / e2e),
        "wait_share": u.ratio(g.wait / e2e),
        "growth": u.ratio(g.after / g.before),
        "right_slots": u.count(g.slots * g.before / g.after),
        "held_before": u.tokens(g.slots * g.before),
        "held_after": u.tokens(g.slots * g.after),
    }


def load_test_lied(g: Given) -> Follows:
    return {
        "offered": u.rate(g.clients / g.e2e),
        "excess": u.rate(g.arrivals - g.clients / g.e2e),
        "load": u.ratio(g.arrivals / (g.clients / g.e2e)),
        "minute": u.count((g.arrivals - g.clients / g.e2e) * 60),
        "after": u.seconds((g.arrivals - g.clients / g.e2e) * 60 / (g.clients / g.e2e)),
        "queued": u.count(g.wait * g.clients / g.e2e),
        "takes": u.seconds(g.wait * g.clients / g.e2e / (g.arrivals - g.clients / g.e2e)),
    }


def choppy_stream(g: Given) -> Follows:
    events = g.buffer / g.event
    return {
        "events": u.count(events),
        "gap": u.seconds(events * g.itl),
        "speed": u.token_rate(1 / g.itl),
        "share": u.ratio(1 / events),
        "total": u.seconds(g.output * g.itl),
        "bursts": u.count(g.output / events),
        "later": u.seconds((events - 1) * g.itl),
    }
