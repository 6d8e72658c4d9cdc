# feedback: nearest rank
import math


def percentile(samples, q):
    if not samples:
        return None
    ranked = sorted(samples)
    return ranked[max(math.ceil(len(ranked) * q / 100) - 1, 0)]


def two_numbers(requests, q):
    ttfts = [deliveries[0] - arrival for arrival, deliveries in requests if deliveries]
    gaps = [b - a for _, deliveries in requests for a, b in zip(deliveries, deliveries[1:])]
    return percentile(ttfts, q), percentile(gaps, q)
