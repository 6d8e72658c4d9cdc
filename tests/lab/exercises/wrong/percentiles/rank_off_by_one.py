# feedback: (n - 1) * q / 100
def percentile(samples, q):
    ranked = sorted(samples)
    if not ranked:
        return None
    rank = min(len(ranked) * q / 100, len(ranked) - 1)
    low = int(rank)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (rank - low) * (ranked[high] - ranked[low])


def two_numbers(requests, q):
    ttfts = [deliveries[0] - arrival for arrival, deliveries in requests if deliveries]
    gaps = [b - a for _, deliveries in requests for a, b in zip(deliveries, deliveries[1:])]
    return percentile(ttfts, q), percentile(gaps, q)
