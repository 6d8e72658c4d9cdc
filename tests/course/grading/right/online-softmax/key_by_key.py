"""No NumPy: lists, one key after the other, in a state that is changed."""

import math


class State:
    def __init__(self, d):
        self.m, self.z, self.v = None, 0.0, [0.0] * d


def empty(d):
    return State(d)


def add_key(st, s, row):
    if s == -math.inf:
        return
    if st.m is None or s > st.m:
        f = 0.0 if st.m is None else math.exp(st.m - s)
        st.z *= f
        st.v = [x * f for x in st.v]
        st.m = s
    w = math.exp(s - st.m)
    st.z += w
    st.v = [x + w * float(y) for x, y in zip(st.v, row)]


def add(state, scores, values):
    for s, row in zip(scores.tolist(), values.tolist()):
        add_key(state, s, row)
    return state


def merge(one, other):
    if other.m is None:
        return one
    if one.m is None:
        return other
    if one.m < other.m:
        return merge(other, one)
    f = math.exp(other.m - one.m)
    one.z += f * other.z
    one.v = [a + f * b for a, b in zip(one.v, other.v)]
    return one


def result(state):
    return [x / state.z for x in state.v] if state.z else [0.0 for _ in state.v]
