# feedback: averaged by their sizes
import numpy as np


def empty(d):
    return 0, np.zeros(d)


def add(state, scores, values):
    count, mean = state
    if len(scores) == 0 or scores.max() == -np.inf:
        return state
    weights = np.exp(scores - scores.max())
    return merge(state, (len(scores), weights / weights.sum() @ values))


def merge(one, other):
    count = one[0] + other[0]
    if count == 0:
        return one
    return count, (one[0] * one[1] + other[0] * other[1]) / count


def result(state):
    return state[1]
