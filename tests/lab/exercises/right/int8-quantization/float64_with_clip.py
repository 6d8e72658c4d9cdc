import numpy as np


def quantize(weight):
    numbers, scales = quantize_groups(weight, weight.shape[1])
    return numbers, scales[:, 0]


def dequantize(numbers, scales):
    return np.asarray(scales, dtype=np.float64).reshape(-1, 1) * numbers.astype(np.float64)


def error_bound(scales):
    return np.multiply(scales, 0.5)


def quantize_groups(weight, group):
    if weight.shape[1] % group:
        raise ValueError
    grouped = weight.astype(np.float64).reshape(weight.shape[0], -1, group)
    low, high = grouped.min(-1), grouped.max(-1)
    scales = np.maximum(np.maximum(high, -low) / 127, np.finfo(np.float64).tiny)
    return np.clip(np.round(grouped / scales[..., None]), -127, 127).astype(np.int8).reshape(weight.shape), scales


def dequantize_groups(numbers, scales):
    out, count = scales.shape
    return (numbers.reshape(out, count, -1) * scales[:, :, np.newaxis]).reshape(out, -1)
