import numpy as np


def empty(d):
    """The output so far (normalized), and the log of the sum behind it, in one array."""
    state = np.zeros(d + 1, dtype=np.float32)
    state[-1] = -np.inf
    return state


def add(state, scores, values):
    seen = scores > -np.inf
    if not np.any(seen):
        return state
    scores, values = scores[seen], values[seen]
    top = scores.max()
    weights = np.exp(scores - top)
    tile = np.append(weights @ values / weights.sum(), top + np.log(weights.sum())).astype(np.float64)
    return merge(state, tile)


def merge(one, other):
    top = max(one[-1], other[-1])
    if np.isneginf(top):
        return one
    shares = np.exp(np.array([one[-1], other[-1]], dtype=np.float64) - top)
    out = (shares[0] * one[:-1] + shares[1] * other[:-1]) / shares.sum()
    return np.append(out, top + np.log(shares.sum()))


def result(state):
    return state[:-1].copy()
