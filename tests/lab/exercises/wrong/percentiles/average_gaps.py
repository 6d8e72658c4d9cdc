# feedback: average gap
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
    tpots = [(d[-1] - d[0]) / (len(d) - 1) for _, d in requests if len(d) > 1]
    return percentile(ttfts, q), percentile(tpots, q)
