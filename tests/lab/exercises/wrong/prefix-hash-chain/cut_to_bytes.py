# feedback: cut to a byte
from hashlib import sha256


def block_names(token_ids, block_size, extra_keys=()):
    parent = sha256(repr(tuple(extra_keys)).encode()).digest()
    names = []
    for end in range(block_size, len(token_ids) + 1, block_size):
        block = list(token_ids[end - block_size : end])
        parent = sha256(parent + bytes(token % 256 for token in block)).digest()
        names.append(parent)
    return names


def cached_tokens(known, token_ids, block_size, extra_keys=()):
    names = block_names(token_ids, block_size, extra_keys)
    most = max(len(token_ids) - 1, 0) // block_size
    found = 0
    while found < min(most, len(names)) and names[found] in known:
        found += 1
    return found * block_size
