"""A heap of those who are still there."""

import heapq


def mean_in_system(stays, start, end):
    area = 0
    for a, d in stays:
        a, d = (start if a < start else a), (end if d > end else d)
        if d > a:
            area += d - a
    return area / (end - start)


def little(stays, start, end):
    inside = list(filter(lambda s: start <= s[0] < end, stays))
    W = None
    if inside:
        W = sum(d - a for a, d in inside) / len(inside)
    return mean_in_system(stays, start, end), len(inside) / (end - start), W


def busy_periods(stays):
    periods = []
    begin = finish = None
    for a, d in sorted(stays):
        if begin is None:
            begin, finish = a, d
        elif a > finish:
            periods.append([begin, finish])
            begin, finish = a, d
        else:
            finish = max(finish, d)
    if begin is not None:
        periods.append([begin, finish])
    return periods


def client_cap(stays):
    stays = sorted(stays)
    if len(stays) < 2:
        return None
    t0, t1 = stays[0][0], stays[-1][0]
    open_, levels = [], []
    times = sorted({t for s in stays for t in s})
    i = 0
    for x, y in zip(times, times[1:]):
        while open_ and open_[0] <= x:
            heapq.heappop(open_)
        while i < len(stays) and stays[i][0] <= x:
            heapq.heappush(open_, stays[i][1])
            i += 1
        levels.append((len(open_), x, y))
    if t0 == t1:
        return None
    top = max(l for l, _, _ in levels)
    at = sum(max(0, min(y, t1) - max(x, t0)) for l, x, y in levels if l == top)
    return top if at > (t1 - t0) / 2 else None
