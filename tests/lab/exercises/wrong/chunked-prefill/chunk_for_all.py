# feedback: all prompts of a step together
def split(prompt_len, chunk):
    sizes = []
    while prompt_len > 0:
        size = min(chunk, prompt_len)
        sizes.append(size)
        prompt_len -= size
    return sizes


def schedule(prompts, num_decodes, token_budget, chunk):
    left = list(prompts)
    steps = []
    while any(left):
        room = token_budget - num_decodes - left.count(0)
        if room <= 0:
            raise ValueError("decodes use up the whole budget")
        step = {}
        room = min(room, chunk)
        for i, unread in enumerate(left):
            tokens = min(unread, chunk, room)
            if tokens > 0:
                step[i] = tokens
                left[i] -= tokens
                room -= tokens
        steps.append(step)
    return steps


def first_token_times(prompts, num_decodes, token_budget, chunk, fixed_s, token_s):
    left = list(prompts)
    times = [None] * len(left)
    now = 0.0
    for step in schedule(prompts, num_decodes, token_budget, chunk):
        now += fixed_s + token_s * (num_decodes + left.count(0) + sum(step.values()))
        for i, tokens in step.items():
            left[i] -= tokens
            if left[i] == 0:
                times[i] = now
    return times


def largest_budget(itl_s, fixed_s, token_s):
    return max(int((itl_s - fixed_s) // token_s), 0)
