# feedback: computed already
def plan_step(running, waiting, token_budget, max_num_seqs):
    decodes = [r for r in running if r.num_computed_tokens + 1 == r.num_tokens]
    reads = [r for r in running if r.num_tokens - r.num_computed_tokens > 1]
    order = [*decodes, *reads, *waiting[: max(max_num_seqs - len(running), 0)]]
    plan = {}
    for request in order:
        tokens = min(request.num_tokens, token_budget)
        if tokens == 0:
            break
        plan[request.request_id] = tokens
        token_budget -= tokens
    return plan
