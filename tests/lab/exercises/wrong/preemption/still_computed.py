# feedback: must be computed again
def preempt(victim, running, waiting, free):
    running.remove(victim)
    free.extend(victim.blocks)
    victim.blocks = []
    waiting.append(victim)
    waiting.sort(key=lambda request: request.arrival)


def pick_victim(running, planned):
    return next((request for request in reversed(running) if request.request_id not in planned), None)


def make_room(request, count, running, waiting, free, planned):
    total = len(free) + sum(len(each.blocks) for each in running)
    if len(request.blocks) + count > total:
        raise ValueError(f"{request.request_id} needs more than all {total} blocks")
    while len(free) < count:
        victim = pick_victim(running, planned)
        preempt(victim, running, waiting, free)
        if victim is request:
            return False
    return True
