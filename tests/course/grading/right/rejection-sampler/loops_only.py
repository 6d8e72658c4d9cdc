def draw(weights, rng):
    mark, last = rng.random() * sum(weights), None
    for token, weight in enumerate(weights):
        if weight > 0:
            last = token
            mark -= weight
            if mark < 0:
                break
    return last


def verify(target, proposal, drafts, rng):
    target, proposal = [list(row) for row in target], [list(row) for row in proposal]
    for place, token in enumerate(drafts):
        p, q = target[place], proposal[place]
        chance = min(1.0, p[token] / q[token])
        if rng.random() < chance:
            yield token
        else:
            yield draw([max(a - b, 0.0) for a, b in zip(p, q)], rng)
            return
    yield draw(target[len(drafts)], rng)
