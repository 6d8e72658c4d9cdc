import numpy as np


class Sample:
    def __init__(self, values):
        self.values = np.fromiter(values, dtype=float)

    def at(self, q):
        return np.percentile(self.values, q) if self.values.size else None


def percentile(samples, q):
    return Sample(iter(samples)).at(q)


def two_numbers(requests, q):
    waits, gaps = [], []
    for arrival, moments in requests:
        previous = None
        for moment in moments:
            if previous is None:
                waits.append(moment - arrival)
            else:
                gaps.append(moment - previous)
            previous = moment
    return [percentile(waits, q), percentile(gaps, q)]
