# %% [markdown]
# # 09 · Exercises: quantization
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="int8-quantization"
# ## Weights in 8 bits, per row and per group
#
# *int8-quantization · lesson 09 · ●●○ · 30 minutes · 12 points*
#
# A decode step reads every weight once, so fewer bits per weight mean fewer bytes to wait for. A weight matrix is an array
# [out, in]: one **row** per output. In **symmetric int8** each row has a **scale** $s$, the width of one step of its grid,
# and each weight is stored as the nearest step $q$, an integer from -127 to 127: $w \approx s\,q$. The row's largest $|w|$
# lands exactly on 127 or -127. (-128 is never used, so the grid is symmetric around zero.)
#
# With NumPy:
#
# - `quantize(weight)`: takes float32 [out, in] and returns a pair: the integers, **int8** [out, in], and the scales,
#   floats [out]. A weight halfway between two steps may go to either.
# - `dequantize(numbers, scales)`: back to floats [out, in].
# - `error_bound(scales)`: [out]; the largest error any weight of a row can have after a round trip, knowing nothing else
#   about the row.
# - `quantize_groups(weight, group)`: the same, but each run of `group` **consecutive** inputs of a row shares a scale: integers int8
#   [out, in], scales [out, in / group]. `ValueError` if the inputs don't divide into whole groups.
# - `dequantize_groups(numbers, scales)`: back to floats [out, in]; the group size follows from the shapes.
#
# A row (or group) of zeros becomes all 0, with any finite scale. The weights of a row may be as small as a millionth: neither
# its neighbours nor an epsilon against division by zero may spoil it. Don't modify your arguments.

# %% [markdown]
# **A worked example.** One row. Its largest $|w|$ is 2.54, so the scale is 2.54 / 127 = 0.02.

# %%
import numpy as np

row = np.array([0.5, -2.54, 0.013, 1.009])
scale = np.abs(row).max() / 127
steps = row / scale  # 25, -127, 0.65, 50.45
nearest = np.rint(steps)
print(scale, nearest)
print("off by", nearest * scale - row)

# %% [markdown]
# Truncating (which is what `astype(np.int8)` does) would have turned 0.65 into 0.
#
# **Now you.** `quantize` has one gap; the rest is all yours.


# %% answer="int8-quantization"
import numpy as np


def quantize(weight):
    # [solution]
    scales = np.abs(weight).max(axis=1) / 127
    # [stub]
    # raise NotImplementedError("what is the scale of each row?")
    # scales = ...
    # [end]
    steps = weight / np.where(scales > 0, scales, 1)[:, None]
    return np.rint(steps).astype(np.int8), scales


def dequantize(numbers, scales):
    # [solution]
    return numbers * scales[:, None]
    # [stub]
    # raise NotImplementedError("each integer times the scale of its row")
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
    # raise NotImplementedError("which scale belongs to which integer?")
    # [end]


# %%
check("int8-quantization", quantize, dequantize, error_bound, quantize_groups, dequantize_groups)
