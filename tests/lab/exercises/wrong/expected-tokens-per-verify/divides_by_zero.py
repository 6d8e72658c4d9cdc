# feedback: divides by zero
def expected_tokens(alpha, k):
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def speedup(alpha, k, draft_cost):
    return expected_tokens(alpha, k) / (k * draft_cost + 1)


def best_k(alpha, draft_cost, largest):
    return max(range(largest + 1), key=lambda k: speedup(alpha, k, draft_cost))
