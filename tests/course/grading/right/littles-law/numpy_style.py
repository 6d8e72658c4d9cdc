import heapq

import numpy as np


def columns(stays):
    table = np.array(list(stays), dtype=float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def mean_in_system(stays, start, end):
    arrival, departure = columns(stays)
    return (np.clip(departure, start, end) - np.clip(arrival, start, end)).sum() / (end - start)


def little(stays, start, end):
    arrival, departure = columns(stays)
    inside = (arrival >= start) & (arrival < end)
    stay = (departure - arrival)[inside].mean() if inside.any() else None
    return [mean_in_system(stays, start, end), np.count_nonzero(inside) / (end - start), stay]


def busy_periods(stays):
    arrival, departure = columns(stays)
    order = np.argsort(arrival)
    latest = -np.inf
    begin = None
    for a, d in zip(arrival[order], departure[order]):
        if a > latest:
            if begin is not None:
                yield begin, latest
            begin = a
        latest = max(latest, d)
    if begin is not None:
        yield begin, latest


def client_cap(stays):
    open_until, peak, at_peak, last = [], 0, 0.0, None
    ordered = sorted(stays)
    for arrival, departure in ordered:
        moment = last
        while open_until and open_until[0] <= arrival:
            gone = heapq.heappop(open_until)
            if len(open_until) + 1 == peak:
                at_peak += gone - moment
            moment = gone
        if len(open_until) == peak and last is not None:
            at_peak += arrival - moment
        heapq.heappush(open_until, departure)
        if len(open_until) > peak:
            peak, at_peak = len(open_until), 0.0
        last = arrival
    span = ordered[-1][0] - ordered[0][0] if ordered else 0
    return np.int64(peak) if span and at_peak / span > 0.5 else None
