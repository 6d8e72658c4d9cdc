# feedback: round up
import math


def itl_seconds(replica, load, batch):
    cached_tokens = batch * (load["prompt"] + load["answer"] / 2)
    prompt_tokens = batch / load["answer"] * load["prompt"]
    seconds = replica["fixed_s"] + batch * replica["per_request_s"]
    return seconds + cached_tokens * replica["per_cached_token_s"] + prompt_tokens * replica["per_prompt_token_s"]


def largest_batch(replica, load, itl_limit_s):
    batch = 0
    while True:
        more = batch + 1
        if more > replica["seats"]:
            return batch, "seats"
        if more * (load["prompt"] + load["answer"]) > replica["kv_tokens"]:
            return batch, "kv"
        if itl_seconds(replica, load, more) > itl_limit_s:
            return batch, "compute"
        batch = more


def plan(replica, load, itl_limit_s):
    batch, binding = largest_batch(replica, load, itl_limit_s)
    replicas = price = None
    if batch > 0:
        tokens_per_s = batch / itl_seconds(replica, load, batch)
        peak_tokens_per_s = load["rate"] * load["burst"] * load["answer"]
        replicas = max(math.floor(peak_tokens_per_s / tokens_per_s), 1)
        if load["rate"] > 0:
            tokens_per_hour = load["rate"] * load["answer"] * 3600
            price = replicas * replica["usd_per_hour"] / tokens_per_hour * 1e6
    return {"batch": batch, "binding": binding, "replicas": replicas, "usd_per_million_tokens": price}
