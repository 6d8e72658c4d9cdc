# feedback: as if each draft passed on its own
def expected_tokens(alpha, k):
    return 1 + alpha * k


def speedup(alpha, k, draft_cost):
    return expected_tokens(alpha, k) / (k * draft_cost + 1)


def best_k(alpha, draft_cost, largest):
    return max(range(largest + 1), key=lambda k: speedup(alpha, k, draft_cost))
