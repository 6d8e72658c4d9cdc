from typing import NamedTuple

import numpy as np


class State(NamedTuple):
    top: float
    total: float
    weighted: np.ndarray

    def at(self, top):
        factor = np.exp(self.top - top) if self.top > -np.inf else 0.0
        return State(top, self.total * factor, self.weighted * factor)


def empty(d):
    return State(-np.inf, 0.0, np.zeros(d))


def add(state, scores, values):
    top = scores.max(initial=-np.inf)
    weights = np.exp(scores - top) if top > -np.inf else np.zeros(len(scores))
    return merge(state, State(top, weights.sum(), weights @ values))


def merge(one, other):
    one, other = (each.at(max(one.top, other.top)) for each in (one, other))
    return State(one.top, one.total + other.total, one.weighted + other.weighted)


def result(state):
    return state.weighted / (state.total or 1.0)
