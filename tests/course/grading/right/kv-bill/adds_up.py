import math


def bytes_per_token(shape, dtype):
    size = 4.0 if dtype == "float32" else 2.0 if dtype.endswith("float16") else 1.0
    numbers = shape["head_dim"] * size
    if dtype == "int8" or dtype == "fp8":
        numbers += 2
    total = 0.0
    for _layer in range(shape["layers"]):
        for _vector in "kv":
            total += shape["num_kv_heads"] * numbers
    return total


def held(num_tokens, block_size, window):
    everything = math.ceil(num_tokens / block_size)
    gone = 0
    while window is not None and (gone + 1) * block_size <= num_tokens - window + 1:
        gone += 1
    return everything - gone


def bytes_per_request(shape, dtype, num_tokens, block_size, window=None):
    return held(num_tokens, block_size, window) * (block_size * bytes_per_token(shape, dtype))


def requests_that_fit(shape, dtype, memory_bytes, num_tokens, block_size, window=None, shared_tokens=0):
    once = math.floor(shared_tokens / block_size)
    blocks = memory_bytes // (bytes_per_token(shape, dtype) * block_size) - once
    return max(0, blocks // (held(num_tokens, block_size, window) - once))
