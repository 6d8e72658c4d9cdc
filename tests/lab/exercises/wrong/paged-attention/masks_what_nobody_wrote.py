# feedback: 0 x NaN
import numpy as np


def gather(cache, block_table, context_len):
    block_size = cache.shape[1]
    num_blocks = -(-context_len // block_size)
    pages = cache[block_table[:num_blocks]]
    return pages.reshape(num_blocks * block_size, *cache.shape[2:])[:context_len]


def paged_attention(query, key_cache, value_cache, block_tables, context_lens, query_lens):
    group = query.shape[1] // key_cache.shape[2]
    output, end = np.empty_like(query), 0
    for table, context, new in zip(block_tables, context_lens, query_lens):
        begin, end = end, end + new
        keys, values = (
            np.repeat(cache[table].reshape(-1, *cache.shape[2:]), group, axis=1) for cache in (key_cache, value_cache)
        )
        capacity = len(keys)
        scores = np.einsum("qhd,khd->hqk", query[begin:end], keys) / np.sqrt(query.shape[2])
        positions = np.arange(capacity)
        scores[:, positions[context - new : context, None] < positions] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        output[begin:end] = np.einsum("hqk,khd->qhd", weights, values)
    return output
