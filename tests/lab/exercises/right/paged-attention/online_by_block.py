import numpy as np


def gather(cache, block_table, context_len):
    flat = cache.reshape(-1, *cache.shape[2:])
    p = np.arange(context_len)
    size = cache.shape[1]
    return flat[np.asarray(block_table)[p // size] * size + p % size]


def paged_attention(query, key_cache, value_cache, block_tables, context_lens, query_lens):
    """FlashAttention's way: block after block, with the queries of a group folded together."""
    size, kv_heads, d = key_cache.shape[1:]
    total, heads, _ = query.shape
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    folded = query.reshape(total, kv_heads, heads // kv_heads, d)
    out = np.zeros(folded.shape)
    for b, context in enumerate(context_lens):
        rows = slice(starts[b], starts[b + 1])
        q = folded[rows] * d**-0.5
        own = context - query_lens[b] + np.arange(query_lens[b])
        top = np.full(q.shape[:3], -np.inf)
        norm = np.zeros(q.shape[:3])
        acc = np.zeros(q.shape)
        for number in range(-(-context // size)):
            first = number * size
            used = min(size, context - first)
            k = key_cache[block_tables[b, number], :used]
            v = value_cache[block_tables[b, number], :used]
            scores = np.einsum("qgrd,kgd->qgrk", q, k)
            hidden = own[:, None] < first + np.arange(used)
            scores = np.where(hidden[:, None, None, :], -np.inf, scores)
            new = np.maximum(top, scores.max(axis=-1))  # the first block is seen by all, so it is finite
            shrink = np.exp(top - new)
            weights = np.exp(scores - new[..., None])
            norm = norm * shrink + weights.sum(axis=-1)
            acc = acc * shrink[..., None] + np.einsum("qgrk,kgd->qgrd", weights, v)
            top = new
        out[rows] = acc / norm[..., None]
    return out.reshape(query.shape)
