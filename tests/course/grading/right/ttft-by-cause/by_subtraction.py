from collections import Counter


def ttft_by_cause(request_id, arrival, first_token, steps):
    result, queue_end = Counter(), None
    for step in steps:
        amounts = step["tokens"]
        if amounts.get(request_id, 0) == 0 or step["end"] > first_token:
            continue
        if queue_end is None:
            queue_end = step["start"]
        length, total = step["end"] - step["start"] - step["fixed_s"], sum(amounts.values())
        result["fixed cost"] += step["fixed_s"]
        mine = amounts[request_id]
        prompts = sum(n for who, n in amounts.items() if who in step["reading"] and who != request_id)
        result["own prefill"] += length * mine / total
        result["others' prompts"] += length * prompts / total
        result["others' answers"] += length * (total - mine - prompts) / total
    result["queue"] = queue_end - arrival
    result["between steps"] = (first_token - arrival) - sum(result.values())
    return list(result.items())
