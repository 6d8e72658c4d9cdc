# feedback: average of percentiles
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
    each = [percentile([b - a for a, b in zip(d, d[1:])], q) for _, d in requests if len(d) > 1]
    return percentile(ttfts, q), sum(each) / len(each) if each else None
