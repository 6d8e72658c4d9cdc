# feedback: the departure comes first
def mean_in_system(stays, start, end):
    area = 0.0
    for arrival, departure in stays:
        area += max(0.0, min(departure, end) - max(arrival, start))
    return area / (end - start)


def little(stays, start, end):
    inside = [departure - arrival for arrival, departure in stays if start <= arrival < end]
    mean_stay = sum(inside) / len(inside) if inside else None
    return mean_in_system(stays, start, end), len(inside) / (end - start), mean_stay


def busy_periods(stays):
    periods = []
    for arrival, departure in sorted(stays):
        if periods and arrival <= periods[-1][1]:
            periods[-1] = (periods[-1][0], max(periods[-1][1], departure))
        else:
            periods.append((arrival, departure))
    return periods


def client_cap(stays):
    if not stays:
        return None
    arrivals = [arrival for arrival, _ in stays]
    first, last = min(arrivals), max(arrivals)
    # Of equal moments, -1 comes first: who departs is gone before the next arrives.
    events = sorted([(arrival, -1) for arrival, _ in stays] + [(departure, 1) for _, departure in stays])
    events = [(moment, -step) for moment, step in events]
    count, before, seconds_at = 0, first, {}
    for moment, step in events:
        seconds_at[count] = seconds_at.get(count, 0.0) + max(0.0, min(moment, last) - before)
        count, before = count + step, moment
    most = max(seconds_at)
    return most if seconds_at[most] > (last - first) / 2 else None
