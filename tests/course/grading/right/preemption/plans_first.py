from bisect import bisect
from itertools import takewhile


def preempt(victim, running, waiting, free):
    place = bisect([each.arrival for each in waiting], victim.arrival)
    waiting.insert(place, victim)
    del running[running.index(victim)]
    while victim.blocks:
        free.insert(0, victim.blocks.pop())
    victim.num_computed_tokens = 0


def pick_victim(running, planned):
    for i in range(len(running) - 1, -1, -1):
        if running[i].request_id in planned:
            continue
        return running[i]


def make_room(request, count, running, waiting, free, planned):
    """First who goes, then all of them at once."""
    others = sum(len(each.blocks) for each in running if each is not request)
    if count > len(free) + others:
        raise ValueError(count)
    missing, going = count - len(free), []
    candidates = [each for each in running[::-1] if each.request_id not in planned]
    for each in [*takewhile(lambda each: each is not request, candidates), request]:
        if missing <= 0:
            break
        going.append(each)
        missing -= len(each.blocks)
    for each in going:
        preempt(each, running, waiting, free)
    return request not in going
