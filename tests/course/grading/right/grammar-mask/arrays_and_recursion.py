from functools import cache

import numpy as np


def follow(grammar, state, text):
    if not text:
        return state
    try:
        return follow(grammar, grammar["next"][state][text[0]], text[1:])
    except KeyError:
        return None


class Matcher:
    def __init__(self, grammar, vocabulary, eos):
        arrows = grammar["next"]

        def can_end(state, seen):
            if state in grammar["final"]:
                return True
            return any(can_end(to, seen | {state}) for to in arrows.get(state, {}).values() if to not in seen)

        @cache
        def mask(state):
            found = np.zeros(len(vocabulary), dtype=bool)
            if state is not None:
                for number, text in enumerate(vocabulary):
                    end = follow(grammar, state, text) if text and number != eos else None
                    found[number] = end is not None and can_end(end, frozenset())
                found[eos] = state in grammar["final"]
            return found

        self._mask, self._state = mask, grammar["start"]
        self._next = lambda state, token: None if token == eos else follow(grammar, state, vocabulary[token])

    def allowed(self):
        return self._mask(self._state).copy()

    def accept(self, token):
        if not self._mask(self._state)[token]:
            raise ValueError(token)
        self._state = self._next(self._state, token)
