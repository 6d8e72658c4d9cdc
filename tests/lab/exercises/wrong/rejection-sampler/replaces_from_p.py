# feedback: favours what p likes twice
import numpy as np


def verify(target, proposal, drafts, rng):
    tokens = []
    for p, q, draft in zip(target, proposal, drafts):
        if rng.random() * q[draft] >= p[draft]:
            rest = p
            return [*tokens, int(rng.choice(len(p), p=rest / rest.sum()))]
        tokens.append(int(draft))
    return [*tokens, int(rng.choice(len(target[-1]), p=target[-1]))]
