import math


def gather(cache, block_table, context_len):
    size = cache.shape[1]
    return [cache[block_table[p // size], p % size].copy() for p in range(context_len)]


def one_head(q, keys, values):
    scores = [float(q @ k) / math.sqrt(len(q)) for k in keys]
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    return sum(w * v for w, v in zip(weights, values)) / sum(weights)


def paged_attention(query, key_cache, value_cache, block_tables, context_lens, query_lens):
    rows = []
    for b in range(len(context_lens)):
        keys = gather(key_cache, block_tables[b], int(context_lens[b]))
        values = gather(value_cache, block_tables[b], int(context_lens[b]))
        heads_of_each = query.shape[1] // key_cache.shape[2]
        for i in range(query_lens[b]):
            position = context_lens[b] - query_lens[b] + i
            q = query[len(rows)]
            rows.append(
                [
                    one_head(
                        q[h],
                        [k[h // heads_of_each] for k in keys[: position + 1]],
                        [v[h // heads_of_each] for v in values[: position + 1]],
                    )
                    for h in range(query.shape[1])
                ]
            )
    return rows
