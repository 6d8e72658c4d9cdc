# feedback: `planned` is not looked at
def preempt(victim, running, waiting, free):
    running.remove(victim)
    free.extend(victim.blocks)
    victim.blocks = []
    victim.num_computed_tokens = 0
    waiting.append(victim)
    waiting.sort(key=lambda request: request.arrival)


def pick_victim(running, planned):
    return running[-1]


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
