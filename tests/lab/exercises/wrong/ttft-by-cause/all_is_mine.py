# feedback: every second of the steps is your own prefill
def ttft_by_cause(request_id, arrival, first_token, steps):
    spent = {"queue": 0.0, "own prefill": 0.0, "others' prompts": 0.0, "others' answers": 0.0, "between steps": 0.0}
    own_steps = [step for step in steps if request_id in step["tokens"] and step["end"] <= first_token]
    spent["queue"] = own_steps[0]["start"] - arrival
    for step in own_steps:
        each = (step["end"] - step["start"]) / sum(step["tokens"].values())
        for who, tokens in step["tokens"].items():
            if who == request_id:
                cause = "own prefill"
            else:
                cause = "own prefill"
            spent[cause] += tokens * each
    spent["between steps"] = first_token - arrival - sum(spent.values())
    return spent
