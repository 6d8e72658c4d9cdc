# feedback: -inf - (-inf)
import numpy as np


def empty(d):
    return -np.inf, 0.0, np.zeros(d)


def add(state, scores, values):
    largest, total, weighted = state
    new = max(largest, np.max(scores, initial=-np.inf))
    weights = np.exp(scores - new)
    shrink = np.exp(largest - new)
    return new, total * shrink + weights.sum(), weighted * shrink + weights @ values


def merge(one, other):
    new = max(one[0], other[0])
    if new == -np.inf:
        return one
    shrinks = np.exp(one[0] - new), np.exp(other[0] - new)
    total, weighted = (one[i] * shrinks[0] + other[i] * shrinks[1] for i in (1, 2))
    return new, total, weighted


def result(state):
    _, total, weighted = state
    return weighted / total if total > 0 else weighted
