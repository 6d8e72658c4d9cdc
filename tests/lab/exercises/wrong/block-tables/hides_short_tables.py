# feedback: keys would go to nobody's block
def more_blocks(num_held, num_tokens, block_size):
    num_needed = -(-num_tokens // block_size)  # rounded up
    return max(num_needed - num_held, 0)


def lay_out(requests, block_size, null_block):
    slots, rows = [], []
    for block_ids, start, end in requests:
        block_ids = [*block_ids, *[null_block] * more_blocks(len(block_ids), end, block_size)]
        slots += [block_ids[p // block_size] * block_size + p % block_size for p in range(start, end)]
        rows.append(list(block_ids[: more_blocks(0, end, block_size)]))
    width = max(map(len, rows), default=0)
    return slots, [row + [null_block] * (width - len(row)) for row in rows]
