# feedback: that is TTFT
def percentile(samples, q):
    ranked = sorted(samples)
    if not ranked:
        return None
    rank = (len(ranked) - 1) * q / 100
    low = int(rank)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (rank - low) * (ranked[high] - ranked[low])


def two_numbers(requests, q):
    ttfts = [deliveries[0] - arrival for arrival, deliveries in requests if deliveries]
    gaps = [b - a for arrival, d in requests for a, b in zip([arrival, *d], d)]
    return percentile(ttfts, q), percentile(gaps, q)
