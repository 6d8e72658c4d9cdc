import numpy as np


def expected_tokens(alpha, k):
    if alpha == 1:
        return np.int64(k + 1)
    return np.float64(1 - alpha ** (k + 1)) / (1 - alpha)


def speedup(alpha, k, draft_cost):
    return expected_tokens(alpha, k) / (1.0 + draft_cost * k)


def best_k(alpha, draft_cost, largest):
    winner = 0
    for candidate in range(1, largest + 1):
        if speedup(alpha, candidate, draft_cost) > speedup(alpha, winner, draft_cost) + 1e-15:
            winner = candidate
    return np.int64(winner)
