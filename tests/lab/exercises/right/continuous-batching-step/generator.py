def plan_step(running, waiting, token_budget, max_num_seqs):
    def missing(seat):
        return seat.num_tokens - seat.num_computed_tokens

    def in_turn():
        yield from sorted(running, key=lambda seat: 0 if missing(seat) == 1 else 1)
        for position, seat in enumerate(waiting):
            if len(running) + position >= max_num_seqs:
                return
            yield seat

    spent = 0
    for seat in in_turn():
        share = missing(seat)
        if spent + share > token_budget:
            share = token_budget - spent
        if share > 0:
            yield seat.request_id, share
        spent += share
