import math

import numpy as np


def largest_chunk(step, decodes, itl_s):
    room = math.floor((itl_s - step["fixed_s"]) / step["per_token_s"])
    return np.int64(max(0, min(room, step["max_tokens"]) - decodes))


def mixed_ttft(step, decodes, prompt, itl_s):
    chunk, left, times = largest_chunk(step, decodes, itl_s), prompt, []
    if not chunk:
        return None
    while left:
        tokens = min(chunk, left)
        times.append(step["fixed_s"] + (decodes + tokens) * step["per_token_s"])
        left -= tokens
    return np.sum(times)


def kv_arrival(layer_ready, layer_s, latency_s):
    """Whichever layer is the last to hold up the link: from its readiness on, all behind it are sent without a pause."""
    count = len(layer_ready)
    return max(ready + (count - i) * layer_s for i, ready in enumerate(layer_ready)) + latency_s


def plan(step, decodes, prompt, itl_s, prefill, link):
    whole = prefill["fixed_s"] + prompt * prefill["per_token_s"]
    ready = np.linspace(0, whole, prefill["layers"] + 1)[1:]
    times = {
        "mixed": mixed_ttft(step, decodes, prompt, itl_s),
        "apart": kv_arrival(ready, link["kv_bytes"] * prompt / link["bytes_per_s"], link["latency_s"]),
    }
    known = [name for name, seconds in times.items() if seconds is not None]
    return dict(times, better=min(known, key=times.get))
