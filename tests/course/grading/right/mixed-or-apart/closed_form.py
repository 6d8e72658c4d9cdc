"""No loop over steps or layers."""

import math


def largest_chunk(step, decodes, itl_s):
    room = math.floor(round((itl_s - step["fixed_s"]) / step["per_token_s"], 6))
    return max(min(room, step["max_tokens"]) - decodes, 0)


def mixed_ttft(step, decodes, prompt, itl_s):
    chunk = largest_chunk(step, decodes, itl_s)
    if chunk == 0:
        return None
    steps = math.ceil(prompt / chunk)
    return steps * step["fixed_s"] + (steps * decodes + prompt) * step["per_token_s"]


def kv_arrival(layer_ready, layer_s, latency_s):
    n = len(layer_ready)
    return latency_s + max(r + (n - i) * layer_s for i, r in enumerate(layer_ready))


def plan(step, decodes, prompt, itl_s, prefill, link):
    out = dict(mixed=mixed_ttft(step, decodes, prompt, itl_s))
    end = prefill["fixed_s"] + prefill["per_token_s"] * prompt
    each = end / prefill["layers"]
    out["apart"] = kv_arrival(
        [each * k for k in range(1, prefill["layers"] + 1)],
        link["kv_bytes"] * prompt / link["bytes_per_s"],
        link["latency_s"],
    )
    if out["mixed"] is None:
        out["better"] = "apart"
    else:
        out["better"] = min(("mixed", "apart"), key=out.get)
    return out
