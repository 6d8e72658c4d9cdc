import math

import numpy as np


class Seen:
    """What one request saw."""

    def __init__(self, request):
        chunks = () if request["failed"] else request["chunks"]
        pairs = np.array([pair for pair in chunks if pair[1]], dtype=float).reshape(-1, 2)
        self.due, self.moments, self.tokens = request["due"], pairs[:, 0], pairs[:, 1].sum()


def ttft(request):
    seen = Seen(request)
    return np.float64(seen.moments[0] - seen.due) if len(seen.moments) else None


def tpot(request):
    seen = Seen(request)
    return None if seen.tokens <= 1 else np.ptp(seen.moments) / (seen.tokens - 1)


def gaps(request):
    return np.diff(Seen(request).moments)


def percentile(samples, q):
    values = np.fromiter(samples, dtype=float)
    if values.size < math.ceil(100 / (100 - q)):
        return None
    return np.percentile(values, q)


def fleet_percentile(servers, q):
    return percentile((sample for own in servers for sample in own), q)


def attainment(requests, limit_ms):
    good = everyone = 0
    for request in requests:
        everyone += 1
        wait = ttft(request)
        if wait is not None and wait <= limit_ms / 1000:
            good += 1
    return good / everyone if everyone else None


def audit(printed, servers, q, limit_ms):
    flat = [request for server in servers for request in server]
    truth = {
        "ttft": percentile([x for x in map(ttft, flat) if x is not None], q),
        "tpot": percentile([x for x in map(tpot, flat) if x is not None], q),
        "gap": percentile(np.concatenate([gaps(request) for request in flat]), q),
        "met": attainment(flat, limit_ms),
    }
    for name, right in truth.items():
        told = printed[name]
        if (told is None) != (right is None) or (right is not None and not math.isclose(told, right, rel_tol=0.01)):
            yield name
