# feedback: all drafts behind it
import numpy as np


def verify(target, proposal, drafts, rng):
    tokens = []
    for p, q, draft in zip(target, proposal, drafts):
        if rng.random() * q[draft] >= p[draft]:
            rest = np.maximum(p - q, 0)
            tokens.append(int(rng.choice(len(p), p=rest / rest.sum())))
        else:
            tokens.append(int(draft))
    return [*tokens, int(rng.choice(len(target[-1]), p=target[-1]))]
