def plan_step(running, waiting, token_budget, max_num_seqs):
    def missing(slot):
        return slot.num_tokens - slot.num_computed_tokens

    def in_turn():
        yield from sorted(running, key=lambda slot: 0 if missing(slot) == 1 else 1)
        for position, slot in enumerate(waiting):
            if len(running) + position >= max_num_seqs:
                return
            yield slot

    spent = 0
    for slot in in_turn():
        share = missing(slot)
        if spent + share > token_budget:
            share = token_budget - spent
        if share > 0:
            yield slot.request_id, share
        spent += share
