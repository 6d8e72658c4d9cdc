"""Numbers of drills about today's stacks: split pools, experts, KV offload, grammars, adapters, drafts, reasoning."""

from course.lab.drills.library import units as u
from course.lab.drills.library.decoding import accepted
from course.lab.drills.library.units import Follows, Given
from minillm.simulate.cost.experts import ExpertRanks
from minillm.simulate.cost.lora import Lora


def split_pools(g: Given) -> Follows:
    shape, h100 = u.model("llama-3.1-70b"), u.gpu("h100-sxm")
    per_prompt = u.prefill_floor(shape, h100, 4, g.prompt) / g.mfu
    kv = shape.kv_bytes_per_token("bfloat16") * g.prompt
    prefill, decode = g.qps * per_prompt, g.qps * g.output * g.step / g.batch
    return {
        "per_prompt": u.seconds(per_prompt),
        "need": u.count(prefill),
        "load": u.ratio(prefill / g.pool),
        "limit": u.rate(g.pool / per_prompt),
        "backlog": u.count(round((g.qps - g.pool / per_prompt) * 60)),
        "decode_need": u.count(decode),
        "decode_load": u.ratio(decode / g.pool),
        "kv": u.size(kv),
        "transfer": u.seconds(kv / g.link),
        "link_load": u.ratio(g.qps * kv / g.pool / g.link),
        "floor": u.seconds(per_prompt + kv / g.link),
        "wait": u.seconds(g.ttft - per_prompt - kv / g.link),
        "five": u.ratio(prefill / 5),
        "three": u.ratio(decode / 3),
        "six": u.ratio(prefill / 6),
        "two": u.ratio(decode / 2),
        "total": u.ratio((prefill + decode) / (2 * g.pool)),
    }


def moe_8_gpus(g: Given) -> Follows:
    shape, h200 = u.model("deepseek-v3"), u.gpu("h200")
    bandwidth, stored = g.gpus * h200.bandwidth, shape.stored_bytes("fp8")
    one, many, wide = (shape.read_bytes("fp8", tokens) for tokens in (1, g.batch, 4 * g.batch))
    ranks = ExpertRanks(shape.num_experts, shape.experts_per_token, int(g.gpus), 1.0)
    kv = shape.kv_bytes_per_token("bfloat16") * g.context
    return {
        "stored": u.size(stored),
        "least": u.count(-(-stored // h200.memory)),
        "one": u.size(one),
        "floor_one": u.seconds(one / bandwidth),
        "experts": u.count(round(shape.num_experts * (1 - shape.skip**g.batch))),
        "of": u.count(shape.num_experts),
        "chosen": u.count(shape.experts_per_token),
        "rows": u.count(g.batch * shape.experts_per_token / shape.num_experts),
        "read": u.size(many),
        "floor": u.seconds(many / bandwidth),
        "above": u.ratio(g.itl * bandwidth / many),
        "claimed": u.ratio(g.itl * bandwidth / one),
        "wide": u.count(4 * g.batch),
        "wide_read": u.size(wide),
        "wide_itl": u.seconds(g.itl * wide / many),
        "rate": u.token_rate(g.batch / g.itl),
        "wide_rate": u.token_rate(4 * g.batch * many / wide / g.itl),
        "busiest": u.ratio(ranks.rows(g.batch) / ranks.even_rows(g.batch)),
        "kv_request": u.size(kv),
        "fit": u.count(int((g.gpus * h200.memory - stored) / kv)),
    }


def kv_offload(g: Given) -> Follows:
    shape, h100 = u.model("llama-3.1-70b"), u.gpu("h100-sxm")
    kv = shape.kv_bytes_per_token("bfloat16") * g.context
    again = u.prefill_floor(shape, h100, 4, g.context) / g.mfu
    new = u.prefill_floor(shape, h100, 4, g.added) / g.mfu
    return {
        "kv": u.size(kv),
        "again": u.seconds(again),
        "new": u.seconds(new),
        "load": u.ratio(g.turns * (again + new)),
        "load_hit": u.ratio(g.turns * new),
        "copy": u.seconds(kv / (4 * h100.host_link)),
        "faster": u.ratio(again * 4 * h100.host_link / kv),
        "disk_copy": u.seconds(kv / g.disk),
        "disk_load": u.ratio(g.turns * kv * 2 / g.disk),
        "away": u.count(g.turns * g.pause),
        "need": u.size(g.turns * g.pause * kv),
        "holds": u.count(int(g.host / kv)),
        "share": u.ratio(g.host / (g.turns * g.pause * kv)),
        "span": u.seconds(g.host / (g.turns * kv)),
        "room": u.size(u.kv_room(shape, h100, 4)),
    }


def slow_json(g: Given) -> Follows:
    shape, h100 = u.model("llama-3.1-8b"), u.gpu("h100-sxm")
    rows, kv = g.share * g.batch, g.batch * g.context * shape.kv_bytes_per_token("bfloat16")
    added = rows * g.mask
    now = g.step + added
    bits = rows * shape.vocab_size / 8
    return {
        "rows": u.count(rows),
        "added": u.seconds(added),
        "now": u.seconds(now),
        "idle": u.ratio(added / now),
        "floor": u.seconds((shape.read_bytes("bfloat16") + kv) / h100.bandwidth),
        "bits": u.size(bits),
        "copy": u.seconds(bits / h100.host_link),
        "e2e_before": u.seconds(g.before * g.step),
        "e2e_after": u.seconds(g.after * now),
        "growth": u.ratio(g.after * now / (g.before * g.step)),
        "longer": u.ratio(g.after / g.before),
        "slower": u.ratio(now / g.step),
        "hidden": u.seconds(g.after * g.step),
        "chat_loss": u.ratio(1 - g.step / now),
    }


def lora_tenants(g: Given) -> Follows:
    shape, h100 = u.model("llama-3.1-8b"), u.gpu("h100-sxm")
    small, large = (Lora(adapters=int(g.tenants), rank=int(rank)) for rank in (g.rank, g.largest))
    one, padded = (each.stored_bytes(shape) / g.tenants for each in (small, large))
    distinct, weights = float(small.distinct(g.slots)), shape.read_bytes("bfloat16")
    return {
        "adapter": u.size(one),
        "padded": u.size(padded),
        "waste": u.ratio(padded / one),
        "all": u.size(small.stored_bytes(shape)),
        "distinct": u.count(round(distinct)),
        "eligible": u.ratio(g.loaded / g.tenants),
        "read": u.size(distinct * one),
        "weights": u.size(weights),
        "more": u.ratio(distinct * one / weights),
        "copy": u.seconds(one / h100.host_link),
        "reserve": u.size(g.slots * one),
        "reserve_padded": u.size(g.slots * padded),
        "room": u.size(u.kv_room(shape, h100, 1)),
        "idle": u.ratio(1 - g.running / g.slots),
    }


def drafts_at_noon(g: Given) -> Follows:
    shape, h100 = u.model("llama-3.1-70b"), u.gpu("h100-sxm")
    kv = g.context * shape.kv_bytes_per_token("bfloat16") / (4 * h100.bandwidth)
    row = u.prefill_floor(shape, h100, 4, 1) / g.mfu
    weights, tokens = u.step_floor(shape, h100, 4), accepted(g.alpha, g.k)

    def plain(batch: float) -> float:
        return max(weights, batch * row) + batch * kv

    def check(batch: float) -> float:
        return max(weights, batch * (g.k + 1) * row) + batch * kv

    def cycle(batch: float) -> float:
        return check(batch) + g.k * g.cost * plain(batch)

    def gain(batch: float) -> float:
        return tokens * plain(batch) / cycle(batch)

    return {
        "tokens": u.count(tokens),
        "weights": u.seconds(weights),
        "night_plain": u.seconds(plain(g.night)),
        "night_cycle": u.seconds(cycle(g.night)),
        "night_gain": u.ratio(gain(g.night)),
        "night_rows": u.count(g.night * (g.k + 1)),
        "noon_plain": u.seconds(plain(g.noon)),
        "noon_rows": u.count(g.noon * (g.k + 1)),
        "noon_compute": u.seconds(g.noon * (g.k + 1) * row),
        "noon_cycle": u.seconds(cycle(g.noon)),
        "noon_itl": u.seconds(cycle(g.noon) / tokens),
        "noon_gain": u.ratio(gain(g.noon)),
        "loss": u.ratio(1 - gain(g.noon)),
        "load_after": u.ratio(g.load / gain(g.noon)),
        "even": u.count(next(batch for batch in range(1, 1000) if gain(batch) < 1)),
    }


def thinking_long(g: Given) -> Follows:
    shape, h100 = u.model("qwen3-32b"), u.gpu("h100-sxm")
    kv, room = shape.kv_bytes_per_token("bfloat16"), u.kv_room(shape, h100, 2)
    request = kv * (g.prompt + g.after / 2)
    capped = kv * (g.prompt + g.cap / 2)
    return {
        "e2e_before": u.seconds(g.before * g.itl),
        "e2e_after": u.seconds(g.after * g.itl),
        "in_flight_before": u.count(g.qps * g.before * g.itl),
        "in_flight": u.count(g.qps * g.after * g.itl),
        "canary_n": u.count(g.canary * g.qps * g.after * g.itl),
        "canary_load": u.ratio(g.canary * g.qps * g.after * g.itl * request / room),
        "kv_request": u.size(request),
        "kv_all": u.size(g.qps * g.after * g.itl * request),
        "room": u.size(room),
        "slots": u.count(int(room / request)),
        "servers": u.count(round(g.qps * g.after * g.itl * request / room, 1)),
        "token_rate": u.token_rate(g.qps * g.after),
        "silent": u.seconds((g.after - g.visible) * g.itl),
        "cut": u.tokens(g.timeout / g.itl),
        "capped": u.count(g.qps * g.cap * g.itl),
        "capped_e2e": u.seconds(g.cap * g.itl),
        "capped_servers": u.count(round(g.qps * g.cap * g.itl * capped / room, 1)),
        "longer": u.ratio(g.after / g.before),
    }


def hot_prefix(g: Given) -> Follows:
    shape, a100 = u.model("llama-3.1-8b"), u.gpu("a100-80gb")
    kv, hit = shape.kv_bytes_per_token("bfloat16") * g.prefix, g.suffix / g.speed
    hot = g.share * g.qps
    copies = -(-hot * hit // g.at)
    return {
        "hot": u.rate(hot),
        "hit": u.seconds(hit),
        "miss": u.seconds((g.prefix + g.suffix) / g.speed),
        "load": u.ratio(hot * hit),
        "limit": u.rate(1 / hit),
        "backlog": u.count(round((hot - 1 / hit) * 60)),
        "mean": u.ratio(g.qps * hit / g.replicas),
        "mean_given": u.ratio(g.qps * hit / g.replicas),
        "rest": u.ratio((g.qps - hot) / (g.replicas - 1) * hit),
        "copies": u.count(copies),
        "spread": u.ratio(hot * hit / copies),
        "copy": u.seconds(g.prefix / g.speed),
        "kv": u.size(kv),
        "room": u.size(u.kv_room(shape, a100, 1)),
        "fit": u.count(int(u.kv_room(shape, a100, 1) / kv)),
        "each": u.count(round(g.tenants / g.replicas)),
    }
