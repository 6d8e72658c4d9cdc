# %% [markdown]
# # 09 · Exercises: quantization
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="int8-quantization"
# ## Weights in 8 bits, by row and by group
#
# *int8-quantization · lesson 09 · ●●○ · 30 minutes · 12 points*
#
# A decode step reads every weight once, so fewer bits a weight are fewer bytes to wait for. A weight matrix is an array
# [out, in]: one **row** for each output. In **symmetric int8** each row has a **scale** $s$, what one step of its grid is worth,
# and each weight becomes the number $q$ of the nearest step, a whole number from -127 to 127: $w \approx s\,q$. The row's
# largest $|w|$ lies exactly on step 127 or -127. (-128 is never used, so that the grid looks the same on both sides of zero.)
#
# With NumPy:
#
# - `quantize(weight)`: float32 [out, in] to a pair: numbers, **int8** [out, in], and scales, floats [out]. A weight
#   halfway between two steps may go to either.
# - `dequantize(numbers, scales)`: back to floats [out, in].
# - `error_bound(scales)`: [out]; the most by which any weight of a row can be off after `quantize` and `dequantize`, for
#   rows that we know nothing else about.
# - `quantize_groups(weight, group)`: the same, but every `group` inputs **next to each other** in a row (the first `group`, then
#   the next, ...) share a scale: numbers int8 [out, in], scales [out, in / group]. `ValueError` if the inputs do not divide
#   into whole groups.
# - `dequantize_groups(numbers, scales)`: back to floats [out, in]; how many share a scale follows from the shapes.
#
# A row (or group) of zeros has numbers 0, and any finite scale. The weights of a row may be as small as a millionth: a row
# next to it must not matter, nor anything that you add against a division by zero. Do not change what you are given.

# %% [markdown]
# **A worked example.** One row, its largest $|w|$ is 2.54, so a step is worth 0.02.

# %%
import numpy as np

row = np.array([0.5, -2.54, 0.013, 1.009])
scale = np.abs(row).max() / 127
steps = row / scale  # 25, -127, 0.65, 50.45
nearest = np.rint(steps)
print(scale, nearest)
print("off by", nearest * scale - row)

# %% [markdown]
# Cutting off behind the point (which is what `astype(np.int8)` does) would have made 0 of 0.65.
#
# **Now you.** `quantize` has one gap; the rest is all yours.


# %% answer="int8-quantization"
import numpy as np


def quantize(weight):
    # [solution]
    scales = np.abs(weight).max(axis=1) / 127
    # [stub]
    # raise NotImplementedError("what is a step of each row worth?")
    # scales = ...
    # [end]
    steps = weight / np.where(scales > 0, scales, 1)[:, None]
    return np.rint(steps).astype(np.int8), scales


def dequantize(numbers, scales):
    # [solution]
    return numbers * scales[:, None]
    # [stub]
    # raise NotImplementedError("each number times the scale of its row")
    # [end]


def error_bound(scales):
    # [solution]
    return scales / 2
    # [stub]
    # raise NotImplementedError("how far is a weight from its nearest step, at most?")
    # [end]


def quantize_groups(weight, group):
    # [solution]
    out, inputs = weight.shape
    if inputs % group:
        raise ValueError(f"{inputs} inputs do not divide into groups of {group}")
    numbers, scales = quantize(weight.reshape(-1, group))
    return numbers.reshape(out, inputs), scales.reshape(out, inputs // group)
    # [stub]
    # raise NotImplementedError("quantize() knows how to do it, if every group is a row")
    # [end]


def dequantize_groups(numbers, scales):
    # [solution]
    group = numbers.shape[1] // scales.shape[1]
    return numbers * np.repeat(scales, group, axis=1)
    # [stub]
    # raise NotImplementedError("which scale belongs to which number?")
    # [end]


# %%
check("int8-quantization", quantize, dequantize, error_bound, quantize_groups, dequantize_groups)
