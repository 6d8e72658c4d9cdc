from dataclasses import asdict, dataclass

import numpy as np


@dataclass
class Plan:
    replicas: int | None
    batch: int
    binding: str
    usd_per_million_tokens: float | None


def itl_seconds(replica, load, batch):
    held = load["prompt"] + 0.5 * load["answer"]
    weights = np.array([1.0, batch, batch * held, batch * load["prompt"] / load["answer"]])
    names = ("fixed_s", "per_request_s", "per_cached_token_s", "per_prompt_token_s")
    return weights @ np.array([replica[name] for name in names])


def largest_batch(replica, load, itl_limit_s):
    room = {"kv": int(replica["kv_tokens"] // (load["prompt"] + load["answer"])), "slots": int(replica["slots"])}
    low, high = 0, min(room.values())
    if high and itl_seconds(replica, load, high) <= itl_limit_s:
        return [high, min(room, key=room.get)]
    while high - low > 1:
        middle = (low + high) // 2
        if itl_seconds(replica, load, middle) <= itl_limit_s:
            low = middle
        else:
            high = middle
    return [low, "compute" if min(room.values()) > low else min(room, key=room.get)]


def plan(replica, load, itl_limit_s):
    batch, binding = largest_batch(replica, load, itl_limit_s)
    if not batch:
        return asdict(Plan(None, batch, binding, None))
    requests_per_s = batch / itl_seconds(replica, load, batch) / load["answer"]
    replicas = 1
    while replicas * requests_per_s < load["rate"] * load["burst"]:
        replicas += 1
    sold = load["rate"] * load["answer"]
    price = replicas * replica["usd_per_hour"] / 3.6e3 / sold * 1_000_000 if sold else None
    return asdict(Plan(replicas, batch, binding, price))
