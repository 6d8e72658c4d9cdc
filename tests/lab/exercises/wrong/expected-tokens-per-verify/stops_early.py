# feedback: the largest k is never tried
def expected_tokens(alpha, k):
    return sum(alpha**i for i in range(k + 1))


def speedup(alpha, k, draft_cost):
    return expected_tokens(alpha, k) / (k * draft_cost + 1)


def best_k(alpha, draft_cost, largest):
    return max(range(max(largest, 1)), key=lambda k: speedup(alpha, k, draft_cost))
