# feedback: keeps the tiles
import numpy as np


def empty(d):
    return [np.empty(0)], [np.empty((0, d))]


def add(state, scores, values):
    return [*state[0], scores.copy()], [*state[1], values.copy()]


def merge(one, other):
    return one[0] + other[0], one[1] + other[1]


def result(state):
    scores, values = np.concatenate(state[0]), np.concatenate(state[1])
    if not np.isfinite(scores).any():
        return np.zeros(values.shape[1])
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()
