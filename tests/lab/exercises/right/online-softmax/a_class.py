import math


class Seen:
    def __init__(self, d):
        self.top = None
        self.sum = 0.0
        self.out = [0.0] * d

    def raise_to(self, score):
        if self.top is None:
            self.top = score
        elif score > self.top:
            factor = math.exp(self.top - score)
            self.sum *= factor
            self.out = [x * factor for x in self.out]
            self.top = score


def empty(d):
    return Seen(d)


def add(state, scores, values):
    for score, value in zip(scores.tolist(), values.tolist()):
        if score == -math.inf:
            continue
        state.raise_to(score)
        weight = math.exp(score - state.top)
        state.sum += weight
        state.out = [x + weight * v for x, v in zip(state.out, value)]
    return state


def merge(one, other):
    if other.top is None:
        return one
    if one.top is None:
        return other
    one.raise_to(other.top)
    factor = math.exp(other.top - one.top)
    one.sum += factor * other.sum
    one.out = [x + factor * y for x, y in zip(one.out, other.out)]
    return one


def result(state):
    return tuple(x / state.sum if state.sum else 0.0 for x in state.out)
