"""Numbers of drills about machines and money: sizing, spikes, sharing, buying, and which limits a product needs."""

from course.lab.drills.library import units as u
from course.lab.drills.library.units import Follows, Given

HOURS_A_MONTH = 730


def why_not_gpus(g: Given) -> Follows:
    price = u.gpu("h100-sxm").price_per_hour
    return {
        "replica_hour": u.money(price * g.gpus),
        "month_now": u.money(price * g.gpus * g.replicas * HOURS_A_MONTH),
        "month_more": u.money(price * g.gpus * g.replicas * HOURS_A_MONTH),
        "one_month": u.money(price * g.gpus * HOURS_A_MONTH),
        "room": u.count(int(g.slots / g.used)),
        "times": u.ratio(1 / g.used),
        "doubled": u.count(2 * g.slots),
        "price": u.money(price),
    }


def size_a_fleet(g: Given) -> Follows:
    shape, h100 = u.model("llama-3-70b"), u.gpu("h100-sxm")
    per_prompt = u.prefill_floor(shape, h100, 4, g.prompt) / g.mfu
    kv = shape.kv_bytes_per_token("bfloat16")
    per_answer = g.output * g.step / g.batch
    busy = g.qps * (per_prompt + per_answer)
    return {
        "prompt_rate": u.token_rate(g.qps * g.prompt),
        "per_prompt": u.seconds(per_prompt),
        "prefill_servers": u.ratio(g.qps * per_prompt),
        "decode_rate": u.token_rate(g.qps * g.output),
        "replica_rate": u.token_rate(g.batch / g.step),
        "decode_servers": u.ratio(g.qps * g.output / (g.batch / g.step)),
        "busy": u.ratio(busy),
        "fleet": u.count(-(-busy // g.at)),
        "running": u.count(g.qps * g.output * g.step),
        "half_busy": u.ratio(g.qps * (per_prompt / 2 + per_answer)),
        "half_fleet": u.count(-(-g.qps * (per_prompt / 2 + per_answer) // g.at)),
        "one": u.rate(1 / (per_prompt + per_answer)),
        "kv_request": u.size(kv * (g.prompt + g.output)),
        "fit": u.count(int(u.kv_room(shape, h100, 4) / (kv * (g.prompt + g.output)))),
        "hour": u.money(-(-busy // g.at) * 4 * h100.price_per_hour),
    }


def tenfold_spike(g: Given) -> Follows:
    peak = 10 * g.usual
    queued = (peak - g.capacity) * g.lasts
    return {
        "peak": u.rate(peak),
        "excess": u.rate(peak - g.capacity),
        "load": u.ratio(peak / g.capacity),
        "steady_load": u.ratio(g.usual / g.capacity),
        "queued": u.count(queued),
        "queued_at_start": u.count((peak - g.capacity) * g.start),
        "drain": u.seconds(queued / (g.capacity - g.usual)),
        "wait": u.seconds(queued / g.capacity),
        "allowed": u.count(g.capacity * g.slo),
        "served": u.ratio(g.capacity / peak),
        "replicas": u.ratio(peak / g.capacity),
    }


def batch_beside_chat(g: Given) -> Follows:
    work = g.documents * g.length / g.speed
    return {
        "total": u.tokens(g.documents * g.length),
        "work": u.seconds(work),
        "hours": u.count(work / 3600),
        "stall": u.seconds(g.length / g.speed),
        "chat_load": u.ratio(g.chat_qps * g.chat_prompt / g.speed),
        "left": u.ratio(1 - g.chat_qps * g.chat_prompt / g.speed),
        "hours_beside": u.count(work / 3600 / (1 - g.chat_qps * g.chat_prompt / g.speed)),
        "servers": u.ratio(work / 3600 / g.window),
        "largest": u.tokens(g.slo * g.speed),
    }


def buy_hardware(g: Given) -> Follows:
    h100 = u.gpu("h100-sxm")
    rent = h100.price_per_hour
    hours = g.price / (rent - g.running)
    return {
        "hours": u.count(hours),
        "years": u.count(hours / 8760),
        "years_used": u.count(hours / 8760 / g.used),
        "rent_year": u.money(rent * 8760),
        "rent_used": u.money(rent * 8760 * g.used),
        "busy_day": u.seconds(g.requests * g.each),
        "busy_share": u.ratio(g.requests * g.each / 86400),
        "saved_hour": u.money(rent - g.running),
        "rent_busy": u.money(rent * g.requests * g.each / 3600),
        "rent": u.money(rent),
    }


def halve_the_cost(g: Given) -> Follows:
    shape, h100 = u.model("llama-3-70b"), u.gpu("h100-sxm")
    hour = 4 * h100.price_per_hour
    now, then = g.batch / g.step, g.wider / g.longer
    return {
        "now": u.token_rate(now),
        "then": u.token_rate(then),
        "cost_now": u.money(hour / now / 3600 * 1e6),
        "cost_then": u.money(hour / then / 3600 * 1e6),
        "gain": u.ratio(then / now),
        "floor": u.seconds(u.step_floor(shape, h100, 4)),
        "idle_cost": u.money(hour / now / 3600 * 1e6 / g.busy),
        "saved": u.ratio(1 - now / then),
        "slack": u.seconds(g.slo - g.longer),
        "slack_tokens": u.tokens((g.slo - g.longer) / u.prefill_floor(shape, h100, 4, 1)),
        "slack_before": u.seconds(g.slo - g.step),
        "both_cost": u.money(hour / then / 3600 * 1e6 / g.busy),
        "hour": u.money(hour),
    }


def slo_autocomplete(g: Given) -> Follows:
    return {
        "left": u.seconds(g.pause - g.network),
        "decode": u.seconds(g.output * g.step),
        "e2e": u.seconds(g.network + g.prefill + g.output * g.step),
        "over": u.ratio((g.network + g.prefill + g.output * g.step) / g.pause),
        "allowed": u.tokens((g.pause - g.network - g.prefill) / g.step),
        "needed": u.seconds((g.pause - g.network - g.prefill) / g.output),
        "speedup": u.ratio(g.output * g.step / (g.pause - g.network - g.prefill)),
        "useful": u.ratio(1 - g.abandoned),
    }


def dashboard(g: Given) -> Follows:
    return {
        "mean": u.seconds(g.share * g.long + (1 - g.share) * g.short),
        "hit": u.rate(g.share * g.qps),
        "a_minute": u.count(g.share * g.qps * 60),
        "ratio": u.ratio(g.long / g.short),
        "in_flight": u.count(g.qps * g.e2e),
    }
