"""Numbers of drills about machines and money: sizing, spikes, sharing, buying, and which limits a product needs."""

from course.lab.drills.drill import Draw
from course.lab.drills.library import units as u
from course.lab.drills.reading import Numbers

HOURS_A_MONTH = 730


def why_not_gpus(draw: Draw) -> Numbers:
    price, replicas, gpus = u.gpu("h100-sxm").price_per_hour, draw(6, 5, 7), 4
    wait, slots, used = draw(3.0, 2.5, 3.5), 16, draw(0.35, 0.3, 0.4)
    return Numbers(
        {
            "price": u.money(price),
            "replicas": u.count(replicas),
            "gpus": u.count(gpus),
            "wait": u.seconds(wait),
            "slots": u.count(slots),
            "used": u.ratio(used),
        },
        {
            "replica_hour": u.money(price * gpus),
            "month_now": u.money(price * gpus * replicas * HOURS_A_MONTH),
            "month_more": u.money(price * gpus * replicas * HOURS_A_MONTH),
            "one_month": u.money(price * gpus * HOURS_A_MONTH),
            "room": u.count(int(slots / used)),
            "times": u.ratio(1 / used),
            "doubled": u.count(2 * slots),
        },
    )


def size_a_fleet(draw: Draw) -> Numbers:
    shape, h100 = u.model("llama-3-70b"), u.gpu("h100-sxm")
    qps, prompt, output, mfu = draw(100, 90, 110), draw(1500, 1600, 1400), 150, 0.5
    per_prompt = u.prefill_floor(shape, h100, 4, prompt) / mfu
    kv = shape.kv_bytes_per_token("bfloat16")
    step, batch = 0.040, 64
    per_answer = output * step / batch
    busy = qps * (per_prompt + per_answer)
    at = 0.7
    return Numbers(
        {
            "qps": u.rate(qps),
            "prompt": u.tokens(prompt),
            "output": u.tokens(output),
            "mfu": u.ratio(mfu),
            "step": u.seconds(step),
            "batch": u.count(batch),
            "at": u.ratio(at),
        },
        {
            "prompt_rate": u.token_rate(qps * prompt),
            "per_prompt": u.seconds(per_prompt),
            "prefill_servers": u.ratio(qps * per_prompt),
            "decode_rate": u.token_rate(qps * output),
            "replica_rate": u.token_rate(batch / step),
            "decode_servers": u.ratio(qps * output / (batch / step)),
            "busy": u.ratio(busy),
            "fleet": u.count(-(-busy // at)),
            "one": u.rate(1 / (per_prompt + per_answer)),
            "kv_request": u.size(kv * (prompt + output)),
            "fit": u.count(int(u.kv_room(shape, h100, 4) / (kv * (prompt + output)))),
            "hour": u.money(-(-busy // at) * 4 * h100.price_per_hour),
        },
    )


def tenfold_spike(draw: Draw) -> Numbers:
    usual, capacity, start, lasts = draw(8, 7, 9), draw(20, 18, 22), draw(240, 200, 280), draw(300, 280, 320)
    peak = 10 * usual
    queued = (peak - capacity) * lasts
    return Numbers(
        {
            "usual": u.rate(usual),
            "capacity": u.rate(capacity),
            "start": u.seconds(start),
            "lasts": u.seconds(lasts),
            "slo": u.seconds(2),
        },
        {
            "peak": u.rate(peak),
            "excess": u.rate(peak - capacity),
            "load": u.ratio(peak / capacity),
            "steady_load": u.ratio(usual / capacity),
            "queued": u.count(queued),
            "queued_at_start": u.count((peak - capacity) * start),
            "drain": u.seconds(queued / (capacity - usual)),
            "wait": u.seconds(queued / capacity),
            "allowed": u.count(capacity * 2),
            "served": u.ratio(capacity / peak),
            "replicas": u.ratio(peak / capacity),
        },
    )


def batch_beside_chat(draw: Draw) -> Numbers:
    documents, length, speed, window = draw(20_000, 18_000, 22_000), draw(6000, 5500, 6500), 12_000, 8
    chat_prompt, chat_qps = 800, draw(6, 5, 7)
    work = documents * length / speed
    return Numbers(
        {
            "documents": u.count(documents),
            "length": u.tokens(length),
            "speed": u.token_rate(speed),
            "chat_prompt": u.tokens(chat_prompt),
            "chat_qps": u.rate(chat_qps),
            "window": u.count(window),
            "slo": u.seconds(0.06),
        },
        {
            "total": u.tokens(documents * length),
            "work": u.seconds(work),
            "hours": u.count(work / 3600),
            "stall": u.seconds(length / speed),
            "chat_load": u.ratio(chat_qps * chat_prompt / speed),
            "left": u.ratio(1 - chat_qps * chat_prompt / speed),
            "hours_beside": u.count(work / 3600 / (1 - chat_qps * chat_prompt / speed)),
            "servers": u.ratio(work / 3600 / window),
        },
    )


SCALE = "queue|capacity|cost|spike|steady|ttft|load|number"


def buy_hardware(draw: Draw) -> Numbers:
    h100 = u.gpu("h100-sxm")
    price, running, used = draw(30_000, 28_000, 32_000), draw(0.5, 0.45, 0.55), draw(0.3, 0.25, 0.35)
    rent = h100.price_per_hour
    hours = price / (rent - running)
    requests, seconds_each = 1000, 2
    return Numbers(
        {
            "price": u.money(price),
            "rent": u.money(rent),
            "running": u.money(running),
            "used": u.ratio(used),
            "requests": u.count(requests),
            "each": u.seconds(seconds_each),
        },
        {
            "hours": u.count(hours),
            "years": u.count(hours / 8760),
            "years_used": u.count(hours / 8760 / used),
            "rent_year": u.money(rent * 8760),
            "rent_used": u.money(rent * 8760 * used),
            "busy_day": u.seconds(requests * seconds_each),
            "busy_share": u.ratio(requests * seconds_each / 86400),
            "saved_hour": u.money(rent - running),
            "rent_busy": u.money(rent * requests * seconds_each / 3600),
        },
    )


def halve_the_cost(draw: Draw) -> Numbers:
    shape, h100 = u.model("llama-3-70b"), u.gpu("h100-sxm")
    batch, step, wider, longer, slo = draw(16, 14, 18), draw(0.032, 0.030, 0.034), 48, draw(0.044, 0.042, 0.046), 0.05
    hour = 4 * h100.price_per_hour
    now, then = batch / step, wider / longer
    return Numbers(
        {
            "batch": u.count(batch),
            "step": u.seconds(step),
            "wider": u.count(wider),
            "longer": u.seconds(longer),
            "slo": u.seconds(slo),
            "hour": u.money(hour),
            "idle": u.ratio(0.5),
            "gpus": u.count(4),
        },
        {
            "now": u.token_rate(now),
            "then": u.token_rate(then),
            "cost_now": u.money(hour / now / 3600 * 1e6),
            "cost_then": u.money(hour / then / 3600 * 1e6),
            "gain": u.ratio(then / now),
            "floor": u.seconds(u.step_floor(shape, h100, 4)),
            "idle_cost": u.money(hour / now / 3600 * 1e6 / 0.5),
            "saved": u.ratio(1 - now / then),
        },
    )


def slo_autocomplete(draw: Draw) -> Numbers:
    pause, network, output, step = (
        draw(0.3, 0.28, 0.32),
        draw(0.06, 0.05, 0.07),
        draw(24, 20, 28),
        draw(0.012, 0.011, 0.013),
    )
    prefill, drop = draw(0.04, 0.035, 0.045), draw(0.7, 0.65, 0.75)
    return Numbers(
        {
            "pause": u.seconds(pause),
            "network": u.seconds(network),
            "output": u.tokens(output),
            "step": u.seconds(step),
            "prefill": u.seconds(prefill),
            "abandoned": u.ratio(drop),
        },
        {
            "left": u.seconds(pause - network),
            "decode": u.seconds(output * step),
            "e2e": u.seconds(network + prefill + output * step),
            "over": u.ratio((network + prefill + output * step) / pause),
            "allowed": u.tokens((pause - network - prefill) / step),
            "needed": u.seconds((pause - network - prefill) / output),
            "speedup": u.ratio(output * step / (pause - network - prefill)),
            "useful": u.ratio(1 - drop),
        },
    )


def dashboard(draw: Draw) -> Numbers:
    long, share, ttft_short, ttft_long = (8000, draw(0.03, 0.025, 0.035), draw(0.3, 0.28, 0.32), draw(6.0, 5.5, 6.5))
    qps, e2e = draw(40, 36, 44), draw(9.0, 8.5, 9.5)
    return Numbers(
        {
            "share": u.ratio(share),
            "short": u.seconds(ttft_short),
            "long": u.seconds(ttft_long),
            "qps": u.rate(qps),
            "e2e": u.seconds(e2e),
            "prompt": u.tokens(long),
        },
        {
            "mean": u.seconds(share * ttft_long + (1 - share) * ttft_short),
            "hit": u.rate(share * qps),
            "a_minute": u.count(share * qps * 60),
            "ratio": u.ratio(ttft_long / ttft_short),
            "in_flight": u.count(qps * e2e),
        },
    )
