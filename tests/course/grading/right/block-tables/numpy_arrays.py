import math

import numpy as np


def more_blocks(num_held, num_tokens, block_size):
    return np.maximum(math.ceil(num_tokens / block_size) - np.int64(num_held), 0)


def lay_out(requests, block_size, null_block):
    widths = [math.ceil(end / block_size) for _, _, end in requests]
    for (table, _, end), width in zip(requests, widths):
        if len(table) < width:
            raise ValueError(end)
    rectangle = np.full((len(requests), max(widths, default=0)), null_block)
    slots = [np.zeros(0, int)]
    for row, width, (table, start, end) in zip(rectangle, widths, requests):
        row[:width] = table[:width]
        p = np.arange(start, end)
        slots.append(row[p // block_size] * block_size + p % block_size)
    return np.concatenate(slots), rectangle
