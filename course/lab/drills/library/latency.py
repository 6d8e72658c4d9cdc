"""Numbers of drills that begin with a symptom or a dashboard: which phase is it, and what does it cost?"""

from course.lab.drills.drill import Draw
from course.lab.drills.library import units as u
from course.lab.drills.reading import Numbers


def dump_13b(draw: Draw) -> Numbers:
    shape, a100 = u.model("llama-2-13b"), u.gpu("a100-80gb")
    ttft, itl, qps = draw(3.2, 2.8, 3.6), draw(0.080, 0.070, 0.090), draw(60, 50, 70)
    prompt, output = draw(2200, 2000, 2400), draw(180, 160, 200)
    decode = itl * output
    kv = (prompt + output / 2) * shape.kv_bytes_per_token("bfloat16")
    floor = u.prefill_floor(shape, a100, 2, prompt)
    return Numbers(
        {
            "ttft": u.seconds(ttft),
            "itl": u.seconds(itl),
            "qps": u.rate(qps),
            "prompt": u.tokens(prompt),
            "output": u.tokens(output),
        },
        {
            "decode": u.seconds(decode),
            "e2e": u.seconds(ttft + decode),
            "share": u.ratio(ttft / (ttft + decode)),
            "decode_share": u.ratio(decode / (ttft + decode)),
            "prompt_rate": u.token_rate(qps * prompt),
            "output_rate": u.token_rate(qps * output),
            "asked": u.flops(qps * prompt * 2 * shape.layer_params),
            "peak": u.flops(2 * a100.peak_flops("bfloat16")),
            "servers": u.ratio(qps * floor),
            "prefill": u.seconds(floor),
            "in_flight": u.count(qps * (ttft + decode)),
            "kv_token": u.size(shape.kv_bytes_per_token("bfloat16")),
            "kv_request": u.size(kv),
            "slots": u.count(u.kv_room(shape, a100, 2) / kv),
            "weights": u.size(shape.read_bytes("bfloat16")),
            "floor": u.seconds(u.step_floor(shape, a100, 2)),
        },
    )


def p99_8s(draw: Draw) -> Numbers:
    p99, output, qps = draw(8.0, 9.0, 7.0), draw(150, 140, 160), draw(12, 10, 14)
    return Numbers(
        {"p99": u.seconds(p99), "output": u.tokens(output), "qps": u.rate(qps)},
        {
            "slow_ttft": u.seconds(p99 - 0.02 * output),
            "slow_itl": u.seconds((p99 - 0.2) / output),
            "all_decode": u.seconds(p99 / output),
            "in_flight": u.count(p99 * qps),
        },
    )


def ttft_7s(draw: Draw) -> Numbers:
    ttft, itl, output, prefill = draw(7.0, 6.0, 8.0), 0.050, draw(120, 110, 130), draw(0.35, 0.3, 0.4)
    qps = draw(20, 18, 22)
    return Numbers(
        {
            "ttft": u.seconds(ttft),
            "itl": u.seconds(itl),
            "output": u.tokens(output),
            "prefill": u.seconds(prefill),
            "qps": u.rate(qps),
        },
        {
            "decode": u.seconds(itl * output),
            "e2e": u.seconds(ttft + itl * output),
            "wait": u.seconds(ttft - prefill),
            "wait_share": u.ratio((ttft - prefill) / ttft),
            "queued": u.count(qps * (ttft - prefill)),
        },
    )


def itl_250ms(draw: Draw) -> Numbers:
    shape, h100 = u.model("llama-3-70b"), u.gpu("h100-sxm")
    ttft, itl, output = draw(0.2, 0.22, 0.18), draw(0.25, 0.22, 0.28), draw(300, 280, 320)
    floor = u.step_floor(shape, h100, 4)
    return Numbers(
        {"ttft": u.seconds(ttft), "itl": u.seconds(itl), "output": u.tokens(output), "gpus": u.count(4)},
        {
            "decode": u.seconds(itl * output),
            "share": u.ratio(itl * output / (ttft + itl * output)),
            "speed": u.token_rate(1 / itl),
            "weights": u.size(shape.read_bytes("bfloat16")),
            "floor": u.seconds(floor),
            "above": u.ratio(itl / floor),
        },
    )


def rag_broke_chat(draw: Draw) -> Numbers:
    long, short, rate_of = draw(12_000, 10_000, 14_000), 600, draw(10_000, 9_000, 11_000)
    itl, spike, share = 0.035, draw(1.3, 1.2, 1.4), draw(0.05, 0.04, 0.06)
    return Numbers(
        {
            "long": u.tokens(long),
            "short": u.tokens(short),
            "speed": u.token_rate(rate_of),
            "itl": u.seconds(itl),
            "spike": u.seconds(spike),
            "share": u.ratio(share),
            "chunk": u.tokens(1024),
        },
        {
            "stall": u.seconds(long / rate_of),
            "chunks": u.count(long / 1024),
            "chunk_step": u.seconds(1024 / rate_of + itl),
            "load": u.ratio(share * long / (share * long + (1 - share) * short)),
            "times": u.ratio(spike / itl),
            "mean": u.tokens(share * long + (1 - share) * short),
        },
    )


def quantized_in_vain(draw: Draw) -> Numbers:
    wait, prefill, output = draw(4.8, 5.2, 4.4), draw(0.18, 0.2, 0.16), draw(200, 220, 180)
    itl, faster, before, after = draw(0.030, 0.032, 0.028), 0.8, 800, draw(2400, 2600, 2200)
    e2e = wait + prefill + itl * output
    return Numbers(
        {
            "wait": u.seconds(wait),
            "prefill": u.seconds(prefill),
            "itl": u.seconds(itl),
            "output": u.tokens(output),
            "slots": u.count(96),
            "before": u.tokens(before),
            "after": u.tokens(after),
            "gain": u.ratio(1 - faster),
        },
        {
            "decode": u.seconds(itl * output),
            "e2e": u.seconds(e2e),
            "saved": u.seconds((1 - faster) * itl * output),
            "best": u.ratio((1 - faster) * itl * output / e2e),
            "wait_share": u.ratio(wait / e2e),
            "growth": u.ratio(after / before),
            "right_slots": u.count(96 * before / after),
            "held_before": u.tokens(96 * before),
            "held_after": u.tokens(96 * after),
        },
    )


def load_test_lied(draw: Draw) -> Numbers:
    clients, e2e, arrivals = draw(32, 30, 34), draw(2.0, 1.9, 2.1), draw(24, 22, 26)
    return Numbers(
        {"clients": u.count(clients), "e2e": u.seconds(e2e), "arrivals": u.rate(arrivals), "wait": u.seconds(40)},
        {
            "offered": u.rate(clients / e2e),
            "excess": u.rate(arrivals - clients / e2e),
            "load": u.ratio(arrivals / (clients / e2e)),
            "minute": u.count((arrivals - clients / e2e) * 60),
            "after": u.seconds((arrivals - clients / e2e) * 60 / (clients / e2e)),
            "in_flight": u.count(arrivals * e2e),
        },
    )


def choppy_stream(draw: Draw) -> Numbers:
    itl, event, buffer = draw(0.030, 0.028, 0.032), draw(160, 150, 170), draw(4096, 4000, 4200)
    events = buffer / event
    return Numbers(
        {"itl": u.seconds(itl), "event": u.size(event), "buffer": u.size(buffer), "output": u.tokens(200)},
        {
            "events": u.count(events),
            "gap": u.seconds(events * itl),
            "speed": u.token_rate(1 / itl),
            "share": u.ratio(1 / events),
            "total": u.seconds(200 * itl),
            "bursts": u.count(200 / events),
            "later": u.seconds((events - 1) * itl),
        },
    )
