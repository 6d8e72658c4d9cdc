from collections import deque


def split(prompt_len, chunk):
    full, rest = divmod(prompt_len, chunk)
    yield from [chunk] * full
    if rest:
        yield rest


class Reader:
    def __init__(self, name, tokens):
        self.name, self.tokens = name, tokens


def walk(prompts, num_decodes, token_budget, chunk):
    """Yields (decodes, pairs, who is done) for each step."""
    queue = deque(Reader(i, tokens) for i, tokens in enumerate(prompts))
    decoding = num_decodes
    while queue:
        free = token_budget - decoding
        if free < 1:
            raise ValueError(free)
        pairs, done = [], []
        for reader in queue:
            take = min(chunk, free, reader.tokens)
            if take == 0:
                break
            pairs.append((reader.name, take))
            reader.tokens -= take
            free -= take
            if reader.tokens == 0:
                done.append(reader.name)
        queue = deque(reader for reader in queue if reader.tokens)
        yield decoding, pairs, done
        decoding += len(done)


def schedule(prompts, num_decodes, token_budget, chunk):
    return tuple(pairs for _, pairs, _ in walk(prompts, num_decodes, token_budget, chunk))


def first_token_times(prompts, num_decodes, token_budget, chunk, fixed_s, token_s):
    clock, at = 0, {}
    for decoding, pairs, done in walk(prompts, num_decodes, token_budget, chunk):
        clock += fixed_s + token_s * decoding + token_s * sum(tokens for _, tokens in pairs)
        at.update(dict.fromkeys(done, clock))
    return [at[i] for i in range(len(prompts))]


def largest_budget(itl_s, fixed_s, token_s):
    tokens = 0.0
    if itl_s > fixed_s:
        tokens = ((itl_s - fixed_s) / token_s) // 1
    return tokens
