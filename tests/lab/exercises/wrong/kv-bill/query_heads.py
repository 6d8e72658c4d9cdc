# feedback: only KV heads have
def bytes_per_token(shape, dtype):
    bytes_of_a_number = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}[dtype]
    vector = shape["head_dim"] * bytes_of_a_number + (2 if dtype in ("int8", "fp8") else 0)
    num_vectors = shape["layers"] * shape["num_heads"] * 2
    return num_vectors * vector


def blocks_held(num_tokens, block_size, window):
    first_seen = 0 if window is None else max(num_tokens - window + 1, 0)
    return -(-num_tokens // block_size) - first_seen // block_size


def bytes_per_request(shape, dtype, num_tokens, block_size, window=None):
    return blocks_held(num_tokens, block_size, window) * block_size * bytes_per_token(shape, dtype)


def requests_that_fit(shape, dtype, memory_bytes, num_tokens, block_size, window=None, shared_tokens=0):
    pool = memory_bytes // (block_size * bytes_per_token(shape, dtype))
    shared = shared_tokens // block_size
    own = blocks_held(num_tokens, block_size, window) - shared
    return max(pool - shared, 0) // own
