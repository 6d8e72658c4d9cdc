# feedback: those who run sit on seats
def plan_step(running, waiting, token_budget, max_num_seqs):
    decodes = [r for r in running if r.num_tokens - r.num_computed_tokens == 1]
    reads = [r for r in running if r.num_tokens - r.num_computed_tokens > 1]
    order = [*decodes, *reads, *waiting[:max_num_seqs]]
    plan = {}
    for request in order:
        tokens = min(request.num_tokens - request.num_computed_tokens, token_budget)
        if tokens == 0:
            break
        plan[request.request_id] = tokens
        token_budget -= tokens
    return plan
