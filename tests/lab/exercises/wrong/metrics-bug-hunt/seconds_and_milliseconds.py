# feedback: the limit is in milliseconds
def deliveries(request):
    """The chunks that hold tokens. (Repaired: chunks without tokens were counted.)"""
    if request["failed"]:
        return []
    return [(at, tokens) for at, tokens in request["chunks"] if tokens > 0]


def ttft(request):
    came = deliveries(request)
    if not came:
        return None
    return came[0][0] - request["due"]


def tpot(request):
    came = deliveries(request)
    tokens = sum(count for _, count in came)
    if tokens < 2:
        return None
    return (came[-1][0] - came[0][0]) / (tokens - 1)


def gaps(request):
    moments = [at for at, _ in deliveries(request)]
    return [later - sooner for sooner, later in zip(moments, moments[1:])]


def percentile(samples, q):
    ranked = sorted(samples)
    if len(ranked) * (100 - q) < 100:
        return None
    rank = (len(ranked) - 1) * q / 100
    low = int(rank)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (rank - low) * (ranked[high] - ranked[low])


def fleet_percentile(servers, q):
    return percentile([sample for samples in servers for sample in samples], q)


def attainment(requests, limit_ms):
    if not requests:
        return None
    waits = [ttft(request) for request in requests]
    return sum(wait is not None and wait <= limit_ms for wait in waits) / len(requests)


def audit(printed, servers, q, limit_ms):
    everybody = [request for server in servers for request in server]
    wanted = {"met": attainment(everybody, limit_ms)}
    for name, metric in {"ttft": ttft, "tpot": tpot}.items():
        values = [[metric(request) for request in server] for server in servers]
        wanted[name] = fleet_percentile([[value for value in own if value is not None] for own in values], q)
    wanted["gap"] = fleet_percentile([[gap for request in server for gap in gaps(request)] for server in servers], q)

    def is_wrong(name):
        told, right = printed[name], wanted[name]
        if told is None or right is None:
            return told is not right
        return abs(told - right) > 0.01 * abs(right)

    return [name for name in printed if is_wrong(name)]
