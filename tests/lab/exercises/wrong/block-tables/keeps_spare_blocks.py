# feedback: are not part of the row
def more_blocks(num_held, num_tokens, block_size):
    num_needed = -(-num_tokens // block_size)  # rounded up
    return max(num_needed - num_held, 0)


def lay_out(requests, block_size, null_block):
    slots, rows = [], []
    for block_ids, start, end in requests:
        if more_blocks(len(block_ids), end, block_size) > 0:
            raise ValueError(f"{len(block_ids)} blocks are too few for {end} tokens")
        slots += [block_ids[p // block_size] * block_size + p % block_size for p in range(start, end)]
        rows.append(list(block_ids))
    width = max(map(len, rows), default=0)
    return slots, [row + [null_block] * (width - len(row)) for row in rows]
