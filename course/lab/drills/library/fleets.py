"""Drills about how many machines: sizing, spikes, sharing, buying, and the question of why not to."""

from course.lab.drills.drill import Draw, Drill, FollowUp, Rubric
from course.lab.drills.library.units import count, gpu, kv_room, model, money, prefill_floor, rate, ratio, seconds, size, step_floor, token_rate, tokens
from course.lab.drills.reading import Numbers

HOURS_A_MONTH = 730


def _why_not_gpus(draw: Draw) -> Numbers:
    price, replicas, gpus = gpu("h100-sxm").price_per_hour, draw(6, 5, 7), 4
    wait, seats, used, need = draw(3.0, 2.5, 3.5), 16, draw(0.35, 0.3, 0.4), 40
    return Numbers(
        {"price": money(price), "replicas": count(replicas), "gpus": count(gpus), "wait": seconds(wait), "seats": count(seats), "used": ratio(used)},
        {
            "replica_hour": money(price * gpus),
            "month_now": money(price * gpus * replicas * HOURS_A_MONTH),
            "month_more": money(price * gpus * replicas * HOURS_A_MONTH),
            "one_month": money(price * gpus * HOURS_A_MONTH),
            "room": count(int(seats / used)),
            "times": ratio(1 / used),
            "doubled": count(2 * seats),
        },
    )  # fmt: skip


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
        {"qps": rate(qps), "prompt": tokens(prompt), "output": tokens(output), "mfu": ratio(mfu), "step": seconds(step), "batch": count(batch), "at": ratio(at)},
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
    )  # fmt: skip


def _spike(draw: Draw) -> Numbers:
    usual, capacity, start, lasts = draw(8, 7, 9), draw(20, 18, 22), draw(240, 200, 280), draw(300, 280, 320)
    peak = 10 * usual
    line = (peak - capacity) * lasts
    return Numbers(
        {"usual": rate(usual), "capacity": rate(capacity), "start": seconds(start), "lasts": seconds(lasts), "slo": seconds(2)},
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
    )  # fmt: skip


def _batch_beside_chat(draw: Draw) -> Numbers:
    documents, length, speed, window = draw(20_000, 18_000, 22_000), draw(6000, 5500, 6500), 12_000, 8
    chat_prompt, chat_qps = 800, draw(6, 5, 7)
    work = documents * length / speed
    return Numbers(
        {
            "documents": count(documents), "length": tokens(length), "speed": token_rate(speed), "chat_prompt": tokens(chat_prompt),
            "chat_qps": rate(chat_qps), "window": count(window), "slo": seconds(0.06),
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
    )  # fmt: skip


def _buy(draw: Draw) -> Numbers:
    h100 = gpu("h100-sxm")
    price, running, used = draw(30_000, 28_000, 32_000), draw(0.5, 0.45, 0.55), draw(0.3, 0.25, 0.35)
    rent = h100.price_per_hour
    hours = price / (rent - running)
    requests, seconds_each = 1000, 2
    return Numbers(
        {"price": money(price), "rent": money(rent), "running": money(running), "used": ratio(used), "requests": count(requests), "each": seconds(seconds_each)},
        {
            "hours": count(hours),
            "years": count(hours / 8760),
            "years_used": count(hours / 8760 / used),
            "rent_year": money(rent * 8760),
            "rent_used": money(rent * 8760 * used),
            "busy_day": seconds(requests * seconds_each),
            "busy_share": ratio(requests * seconds_each / 86400),
            "saved_hour": money(rent - running),
            "rent_busy": money(rent * requests * seconds_each / 3600),
        },
    )  # fmt: skip


def _halve_cost(draw: Draw) -> Numbers:
    shape, h100 = model("llama-3-70b"), gpu("h100-sxm")
    batch, step, wider, longer, slo = draw(16, 14, 18), draw(0.032, 0.030, 0.034), 48, draw(0.044, 0.042, 0.046), 0.05
    hour = 4 * h100.price_per_hour
    now, then = batch / step, wider / longer
    return Numbers(
        {"batch": count(batch), "step": seconds(step), "wider": count(wider), "longer": seconds(longer), "slo": seconds(slo), "hour": money(hour), "idle": ratio(0.5), "gpus": count(4)},
        {
            "now": token_rate(now),
            "then": token_rate(then),
            "cost_now": money(hour / now / 3600 * 1e6),
            "cost_then": money(hour / then / 3600 * 1e6),
            "gain": ratio(then / now),
            "floor": seconds(step_floor(shape, h100, 4)),
            "idle_cost": money(hour / now / 3600 * 1e6 / 0.5),
            "saved": ratio(1 - now / then),
        },
    )  # fmt: skip


SCALE = "queue|capacity|cost|spike|steady|ttft|load|number"

DRILLS = (
    Drill("why-not-gpus", '"Why not just add GPUs?"', 4, "queue, cost", _why_not_gpus, Rubric(
        diagnosis=("queue + seats|kv|because|trouble", "seats + kv|because", "queue + derived", "replicas + queue + cost|because"),
        mechanism=("~ seats|kv|cost|replicas|queue + derived", "~ seats + kv + given + because"),
        apart=("replicas + depend|!effect|capacity|steady|spike", "!replicas", "prefill|decode + replicas", "capacity + seats|cost"),
        secondary=("itl|preemption|spike|warm|monitor|straggler|ttft + because|depend|trouble|secondary|effect",),
        secondary_why=("~ itl|preemption|warm|spike + because|depend|number|measure",),
        moves={"seats": "queue|kv|itl|cost|ttft", "admission": "queue|spike|ttft|capacity", "replicas": SCALE, "autoscaling": "spike|queue|warm", "chunking": "prefill|itl|ttft", "prefix_cache": "prefill|ttft|capacity", "fallback": "spike|queue|cost"},
        unknowns="kv|queue|seats|capacity|load|spike|itl|ttft|prompt_length|preemption|cost|steady|percentile|goodput|output_length",
        beyond=("derived.room|derived.times + seats|kv|queue|because|impossible", "derived.one_month|derived.month_more + replicas|cost|because"),
    )),
    Drill("size-a-fleet", "Size a fleet: 70B, 100 requests a second", 8, "capacity", _size_fleet, Rubric(
        diagnosis=("prefill + compute|derived|trouble|capacity", "capacity|replicas + prefill|decode|derived", "decode + derived"),
        mechanism=("~ prefill|decode|capacity|load|replicas + derived", "prefill|decode + number + because"),
        apart=("prefill + decode", "kv + !trouble|derived|memory", "split", "~ prefill + decode + because|number"),
        secondary=("spike|queue|kv|percentile|steady|load|prompt_length|shared_prefix + because|depend|derived|trouble|secondary|number",),
        secondary_why=("~ spike|queue|kv|percentile|load|steady + because|derived|depend",),
        moves={"replicas": SCALE + "|prefill|decode", "prefix_cache": "prefill|capacity|cost|ttft|replicas", "admission": "spike|queue|load", "autoscaling": "spike|warm|load|cost", "quantization": "decode|prefill|quality", "chunking": "prefill|itl",
               "routing": "queue|hit_rate|prefix_cache", "fallback": "spike|load", "smaller_model": "cost|prefill|capacity|spike", "lanes": "prefill|decode"},
        unknowns="prompt_length|shared_prefix|hit_rate|percentile|spike|load|ttft|itl|output_length|cost|goodput|steady|quality|capacity",
        beyond=("derived.one|derived.prefill_servers|derived.busy|derived.fleet + impossible|capacity|replicas|because|prefill", "~ derived.one|derived.busy + capacity|impossible|replicas"),
        follow_ups=(FollowUp("derived.fleet|derived.busy", "Which of your numbers is softest, and how would you firm it up in a day?"),),
    )),
    Drill("tenfold-spike", "Steady state versus a tenfold spike", 6, "queue, capacity", _spike, Rubric(
        diagnosis=("queue|capacity|load + spike|derived|because", "spike + capacity|queue|admission", "steady + spike"),
        mechanism=("~ queue|capacity|load|spike|warm + derived", "~ autoscaling|warm + given + because"),
        apart=("steady + spike", "autoscaling|warm|replicas + depend|!effect|because|trouble|impossible", "!replicas|!autoscaling"),
        secondary=("warm|autoscaling|cost|admission|queue|e2e|steady + because|derived|trouble|secondary",),
        secondary_why=("~ warm|autoscaling|admission|queue|cost + because|derived|given",),
        moves={"admission": "queue|spike|ttft|load|capacity", "fallback": "spike|quality|capacity|load", "autoscaling": "spike|warm|steady|cost|load", "smaller_model": "spike|quality|capacity", "replicas": "steady|spike|cost|capacity|warm",
               "lanes": "spike|queue|load", "warm": "spike|cost|autoscaling", "output_limit": "capacity|spike|decode", "routing": "spike|quality|capacity"},
        unknowns="spike|load|cost|warm|steady|quality|ttft|admission|percentile|queue|capacity|client|goodput|fallback|output_length",
        beyond=("derived.served|derived.line|derived.drain|derived.wait + impossible|queue|capacity|because|admission|spike",),
    )),
    Drill("batch-beside-chat", "The batch summariser shares GPUs with chat", 5, "prefill, queue", _batch_beside_chat, Rubric(
        diagnosis=("prefill|prompt_length|retrieval|straggler|batching + itl|decode|straggler|queue", "~ prefill|prompt_length + itl|ttft|straggler + because"),
        mechanism=("prefill|load|itl|straggler|capacity|prompt_length|queue|lanes|chunking|retrieval + derived", "~ prefill|prompt_length + because + straggler + number"),
        apart=("e2e|steady|cost|goodput|load + lanes|spike|because", "!ttft|!itl", "split", "capacity + because|load|depend", "lanes + chunking"),
        secondary=("capacity|kv|queue|ttft|preemption|load + because|derived|trouble|secondary|depend",),
        secondary_why=("~ capacity|kv|queue|load|preemption + because|derived|depend",),
        moves={"lanes": "queue|itl|ttft|prefill|cost|load|preemption|straggler|capacity|batching", "chunking": "itl|prefill|straggler", "admission": "queue|load", "seats": "kv|queue|itl", "spot": "cost|load", "replicas": SCALE, "prefix_cache": "prefill", "autoscaling": "cost|load"},
        unknowns="load|cost|itl|ttft|prompt_length|percentile|kv|capacity|utilised|chunking|lanes|preemption|steady|spike|e2e|output_length",
        beyond=("derived.hours|derived.work|derived.hours_beside|derived.left|derived.servers + impossible|capacity|load|because|depend|lanes|utilised",),
    )),
    Drill("buy-hardware", "When is buying hardware right?", 5, "cost", _buy, Rubric(
        diagnosis=("utilised|cost|steady + because|depend|trouble|derived", "cost + utilised|load|steady"),
        mechanism=("cost|utilised|steady|load|spot|quantization|replicas + derived", "~ utilised|cost + derived"),
        apart=("steady + spike", "spot|utilised + depend|split", "load + depend|utilised|steady|spike", "depend + cost + utilised"),
        secondary=("spike|hbm_buy|utilised|cost|warm|kv|memory|quality|capacity + because|depend|trouble|secondary|effect",),
        secondary_why=("~ spike|hbm_buy|utilised|capacity|warm|cost + because|depend|number",),
        moves={"spot": "cost|steady|spike|utilised", "hbm_buy": "cost|kv|memory|steady", "batching": "utilised|cost|capacity", "seats": "cost|capacity|utilised", "autoscaling": "cost|spike|utilised", "replicas": "cost|steady|spike|utilised|capacity",
               "smaller_model": "cost|quality", "lanes": "cost|utilised|load", "utilised": "cost|steady|load|spike|capacity", "quantization": "cost|capacity|quality", "measure": "cost|utilised|capacity|load"},
        unknowns="utilised|load|cost|spike|steady|capacity|prompt_length|percentile|quality|network|warm|output_length|memory|goodput",
        beyond=("derived.years_used|derived.busy_share|derived.busy_day|derived.rent_busy + impossible|utilised|cost|because|load",),
    )),
    Drill("halve-the-cost", "Halve the cost per token without touching p99", 6, "decode, cost", _halve_cost, Rubric(
        diagnosis=("cost + batching|seats|decode|capacity|bandwidth|utilised", "seats|batching + bandwidth|decode|derived"),
        mechanism=("cost|batching|seats|decode|itl|capacity + derived", "~ batching|seats + bandwidth + because"),
        apart=("itl|ttft|percentile + cost|seats|batching", "prefill + decode", "split", "!itl", "quality + quantization|smaller_model"),
        secondary=("utilised|spike|load|prefill|kv|queue|quality + cost|because|derived|depend|trouble|secondary",),
        secondary_why=("~ utilised|spike|load|prefill|kv|queue|quality + because|derived|depend|given",),
        moves={"seats": "itl|decode|kv|cost|capacity|bandwidth", "batching": "itl|decode|cost|bandwidth|capacity", "prefix_cache": "prefill|cost|ttft|capacity", "quantization": "decode|quality|bandwidth|kv", "smaller_model": "quality|cost|decode", "autoscaling": "cost|utilised|load",
               "lanes": "cost|utilised|load", "spot": "cost|load", "kv_quant": "kv|seats|memory", "output_limit": "decode|cost", "prompt_limit": "prefill|cost", "routing": "quality|cost|hit_rate", "speculation": "itl|decode|batching"},
        unknowns="itl|ttft|percentile|batching|seats|kv|load|utilised|shared_prefix|hit_rate|quality|prompt_length|output_length|spike|cost|goodput|steady",
        beyond=("derived.gain|derived.cost_then|derived.idle_cost|derived.saved + itl|cost|because|impossible|capacity",),
    )),
)  # fmt: skip
