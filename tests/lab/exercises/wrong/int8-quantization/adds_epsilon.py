# feedback: added to it against division
import numpy as np


def quantize(weight):
    scales = np.abs(weight).max(axis=1) / 127 + 1e-8
    steps = weight / scales[:, None]
    return np.rint(steps).astype(np.int8), scales


def dequantize(numbers, scales):
    return numbers * scales[:, None]


def error_bound(scales):
    return scales / 2


def quantize_groups(weight, group):
    out, inputs = weight.shape
    if inputs % group:
        raise ValueError(f"{inputs} inputs do not divide into groups of {group}")
    numbers, scales = quantize(weight.reshape(-1, group))
    return numbers.reshape(out, inputs), scales.reshape(out, inputs // group)


def dequantize_groups(numbers, scales):
    group = numbers.shape[1] // scales.shape[1]
    return numbers * np.repeat(scales, group, axis=1)
