import numpy as np


def _row(values):
    largest = max(abs(float(value)) for value in values)
    if largest == 0:
        return [0] * len(values), 1.0
    step = largest / 127
    numbers = []
    for value in values:
        size = int(abs(float(value)) / step + 0.5)
        numbers.append(min(size, 127) * (1 if value > 0 else -1))
    return numbers, step


def quantize(weight):
    rows = [_row(row) for row in weight]
    return np.array([numbers for numbers, _ in rows], dtype=np.int8), [step for _, step in rows]


def dequantize(numbers, scales):
    return [[int(q) * float(s) for q in row] for row, s in zip(numbers, scales)]


def error_bound(scales):
    return (float(s) * 0.5 for s in scales)


def quantize_groups(weight, group):
    out, inputs = weight.shape
    if inputs % group != 0:
        raise ValueError("no whole groups")
    numbers = np.zeros((out, inputs), dtype=np.int8)
    scales = np.zeros((out, inputs // group), dtype=np.float32)
    for r in range(out):
        for g in range(inputs // group):
            part = slice(g * group, (g + 1) * group)
            numbers[r, part], scales[r, g] = _row(weight[r, part])
    return numbers, scales


def dequantize_groups(numbers, scales):
    size = len(numbers[0]) // len(scales[0])
    return [[int(q) * float(scales[r][i // size]) for i, q in enumerate(row)] for r, row in enumerate(numbers)]
