"""Drills about money: what a token costs, and who should own the GPU."""

from course.lab.drills.drill import Draw, Drill, Rubric
from course.lab.drills.library.units import count, gpu, model, money, ratio, seconds, step_floor, token_rate
from course.lab.drills.reading import Numbers


def _buy(draw: Draw) -> Numbers:
    h100 = gpu("h100-sxm")
    price, running, used = draw(30_000, 28_000, 32_000), draw(0.5, 0.45, 0.55), draw(0.3, 0.25, 0.35)
    rent = h100.price_per_hour
    hours = price / (rent - running)
    requests, seconds_each = 1000, 2
    return Numbers(
        {
            "price": money(price),
            "rent": money(rent),
            "running": money(running),
            "used": ratio(used),
            "requests": count(requests),
            "each": seconds(seconds_each),
        },
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
    )


def _halve_cost(draw: Draw) -> Numbers:
    shape, h100 = model("llama-3-70b"), gpu("h100-sxm")
    batch, step, wider, longer, slo = draw(16, 14, 18), draw(0.032, 0.030, 0.034), 48, draw(0.044, 0.042, 0.046), 0.05
    hour = 4 * h100.price_per_hour
    now, then = batch / step, wider / longer
    return Numbers(
        {
            "batch": count(batch),
            "step": seconds(step),
            "wider": count(wider),
            "longer": seconds(longer),
            "slo": seconds(slo),
            "hour": money(hour),
            "idle": ratio(0.5),
            "gpus": count(4),
        },
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
    )


DRILLS = (
    Drill(
        "buy-hardware",
        "When is buying hardware right?",
        5,
        "cost",
        _buy,
        Rubric(
            diagnosis=("utilised|cost|steady + because|depend|trouble|derived", "cost + utilised|load|steady"),
            mechanism=("cost|utilised|steady|load|spot|quantization|replicas + derived", "~ utilised|cost + derived"),
            apart=(
                "steady + spike",
                "spot|utilised + depend|split",
                "load + depend|utilised|steady|spike",
                "depend + cost + utilised",
            ),
            secondary=(
                "spike|hbm_buy|utilised|cost|warm|kv|memory|quality|capacity + because|depend|trouble|secondary|effect",
            ),
            secondary_why=("~ spike|hbm_buy|utilised|capacity|warm|cost + because|depend|number",),
            moves={
                "spot": "cost|steady|spike|utilised",
                "hbm_buy": "cost|kv|memory|steady",
                "batching": "utilised|cost|capacity",
                "seats": "cost|capacity|utilised",
                "autoscaling": "cost|spike|utilised",
                "replicas": "cost|steady|spike|utilised|capacity",
                "smaller_model": "cost|quality",
                "lanes": "cost|utilised|load",
                "utilised": "cost|steady|load|spike|capacity",
                "quantization": "cost|capacity|quality",
                "measure": "cost|utilised|capacity|load",
            },
            unknowns=(
                "utilised|load|cost|spike|steady|capacity|prompt_length|percentile|quality|network|warm|"
                "output_length|memory|goodput"
            ),
            beyond=(
                (
                    "derived.years_used|derived.busy_share|derived.busy_day|derived.rent_busy + impossible|utilised|"
                    "cost|because|load"
                ),
            ),
        ),
    ),
    Drill(
        "halve-the-cost",
        "Halve the cost per token without touching p99",
        6,
        "decode, cost",
        _halve_cost,
        Rubric(
            diagnosis=(
                "cost + batching|seats|decode|capacity|bandwidth|utilised",
                "seats|batching + bandwidth|decode|derived",
            ),
            mechanism=("cost|batching|seats|decode|itl|capacity + derived", "~ batching|seats + bandwidth + because"),
            apart=(
                "itl|ttft|percentile + cost|seats|batching",
                "prefill + decode",
                "split",
                "!itl",
                "quality + quantization|smaller_model",
            ),
            secondary=("utilised|spike|load|prefill|kv|queue|quality + cost|because|derived|depend|trouble|secondary",),
            secondary_why=("~ utilised|spike|load|prefill|kv|queue|quality + because|derived|depend|given",),
            moves={
                "seats": "itl|decode|kv|cost|capacity|bandwidth",
                "batching": "itl|decode|cost|bandwidth|capacity",
                "prefix_cache": "prefill|cost|ttft|capacity",
                "quantization": "decode|quality|bandwidth|kv",
                "smaller_model": "quality|cost|decode",
                "autoscaling": "cost|utilised|load",
                "lanes": "cost|utilised|load",
                "spot": "cost|load",
                "kv_quant": "kv|seats|memory",
                "output_limit": "decode|cost",
                "prompt_limit": "prefill|cost",
                "routing": "quality|cost|hit_rate",
                "speculation": "itl|decode|batching",
            },
            unknowns=(
                "itl|ttft|percentile|batching|seats|kv|load|utilised|shared_prefix|hit_rate|quality|prompt_length|"
                "output_length|spike|cost|goodput|steady"
            ),
            beyond=(
                "derived.gain|derived.cost_then|derived.idle_cost|derived.saved + itl|cost|because|impossible|capacity",
            ),
        ),
    ),
)
