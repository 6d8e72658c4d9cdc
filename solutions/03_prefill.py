# %% [markdown]
# # 03 · Exercises: prefill
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="chunked-prefill"
# ## Chunked prefill: which prompt when
#
# *chunked-prefill · lesson 03 · ●●○ · 35 minutes · 12 points*
#
# A **step** computes at most `token_budget` tokens. Requests that already **decode** need one token each in every step, and
# come first. The rest of the budget is for **prefill**, at most `chunk` tokens of one prompt per step. What doesn't fit now
# follows in later steps.
#
# - `split(prompt_len, chunk)`: the chunk sizes of a prompt (at least 1 token) that has the engine and the budget to itself:
#   full chunks, then the remainder.
# - `schedule(prompts, num_decodes, token_budget, chunk)`: a list with one entry per step, until every prompt is prefilled: a
#   dictionary from prompt to the tokens of it that the step computes.
#   - `prompts` are the lengths (at least 1) of prompts that are all waiting when the first step begins; their names are 0, 1,
#     2, ... In each step they take turns in that order: the first takes as much as it may, then the next, while budget is
#     left. A prompt that gets nothing in a step isn't in its dictionary.
#   - `num_decodes` other requests decode in every step. A request whose prompt is done decodes too, **from the next step
#     on**, in every step: these answers are long.
#   - `ValueError` if a prompt can never be prefilled because decodes use up the whole budget.
# - `first_token_times(prompts, num_decodes, token_budget, chunk, fixed_s, token_s)`: for each prompt, the time of its first
#   token, in seconds from the start of the first step: the end of the step that computes its last token. A step takes
#   `fixed_s` plus `token_s` for each token it computes, decodes included. Steps follow one another without a gap.
# - `largest_budget(itl_s, fixed_s, token_s)`: the largest token budget with which no step takes longer than `itl_s`; 0 if
#   there is none. This is the bound that chunking gives to every request that decodes.

# %% [markdown]
# **A worked example.** Prompts of 10 and 6 tokens, 2 others decode, a budget of 8, no limit by the chunk:
#
# | step | decodes | room | prompt 0 reads | prompt 1 reads |
# |---|---|---|---|---|
# | 0 | 2 | 6 | 6 | - |
# | 1 | 2 | 6 | 4: done, its first token | 2 |
# | 2 | **3** | 5 | decodes | 4: done |
#
# With 10 ms a step and 1 ms a token, each of these steps takes 18, 18 and 17 ms (in the last one, one token of the budget is
# not used), so the first tokens come after 36 and 53 ms.

# %% [markdown]
# **Now you.** `split` has one gap; the rest is all yours.


# %% answer="chunked-prefill"
def split(prompt_len, chunk):
    sizes = []
    while prompt_len > 0:
        # [solution]
        size = min(chunk, prompt_len)
        # [stub]
        # raise NotImplementedError("how large is the next chunk?")
        # size = ...
        # [end]
        sizes.append(size)
        prompt_len -= size
    return sizes


def schedule(prompts, num_decodes, token_budget, chunk):
    # [solution]
    left = list(prompts)
    steps = []
    while any(left):
        room = token_budget - num_decodes - left.count(0)
        if room <= 0:
            raise ValueError("decodes use up the whole budget")
        step = {}
        for i, unread in enumerate(left):
            tokens = min(unread, chunk, room)
            if tokens > 0:
                step[i] = tokens
                left[i] -= tokens
                room -= tokens
        steps.append(step)
    return steps
    # [stub]
    # raise NotImplementedError("step by step: what is left for prompts, and who takes how much of it?")
    # [end]


def first_token_times(prompts, num_decodes, token_budget, chunk, fixed_s, token_s):
    # [solution]
    left = list(prompts)
    times = [None] * len(left)
    now = 0.0
    for step in schedule(prompts, num_decodes, token_budget, chunk):
        now += fixed_s + token_s * (num_decodes + left.count(0) + sum(step.values()))
        for i, tokens in step.items():
            left[i] -= tokens
            if left[i] == 0:
                times[i] = now
    return times
    # [stub]
    # raise NotImplementedError("walk along the schedule: when does each step end, and who is done then?")
    # [end]


def largest_budget(itl_s, fixed_s, token_s):
    # [solution]
    return max(int((itl_s - fixed_s) // token_s), 0)
    # [stub]
    # raise NotImplementedError("a full step should take itl_s at most")
    # [end]


# %%
check("chunked-prefill", split, schedule, first_token_times, largest_budget)

# %% [markdown] exercise="online-softmax"
# ## Online softmax: attention in one pass
#
# *online-softmax · lesson 03 · ●●○ · 35 minutes · 13 points*
#
# One query has a **score** $s_i$ for each key, and each key has a **value** $v_i$ of $d$ numbers. Attention computes
#
# $$\sum_i \frac{e^{s_i - m}}{\sum_j e^{s_j - m}} \; v_i, \qquad m = \max_i s_i$$
#
# ($m$ changes nothing but keeps $e^{s}$ from overflowing.) The textbook needs the whole row of scores to find $m$.
# **FlashAttention** walks over the keys in **tiles** and forgets each tile: it keeps the largest score so far, the sum
# $\sum e^{s_j - m}$ for it, and the weighted values $\sum e^{s_i - m} v_i$ for it (Milakov and Gimelshein, 2018). When a tile
# brings a larger score, what was summed so far is **rescaled**. Write, with NumPy:
#
# - `empty(d)`: the **state** before any key has been seen. What a state looks like is up to you.
# - `add(state, scores, values)`: the state after a tile, scores [n] and values [n, d]. Tiles have any size, 0 too, and come in any
#   order. You may change the old state or make a new one; leave the arrays as they are.
# - `merge(one, other)`: one state from two states of the same query that have seen different keys. This is how several
#   processors share a long context (**Flash-Decoding**). Again you may change them.
# - `result(state)`: the output, $d$ numbers. It may be called at any time, and changes nothing.
#
# A score of `-inf` marks a key that the query must not see (**masked**): its weight is 0. A tile may consist of nothing
# else. If no visible key has been seen, the result is zeros. Scores may be in the thousands, on either side of zero.
#
# The state must not grow: a tile's arrays are overwritten by the next one as soon as `add` returns.

# %% [markdown]
# **A worked example.** Scores 1, 2 in the first tile; 4 in the second. After the first, the largest is 2. The second makes it 4,
# so the sum so far shrinks by $e^{2-4}$.

# %%
import numpy as np

total = np.exp(1 - 2) + np.exp(2 - 2)
total = total * np.exp(2 - 4) + np.exp(4 - 4)
print(total, "and all at once:", np.exp(1 - 4) + np.exp(2 - 4) + np.exp(4 - 4))

# %% [markdown]
# **Now you.** `add` has one gap; `merge` and `result` are all yours.


# %% answer="online-softmax"
import numpy as np


def empty(d):
    return -np.inf, 0.0, np.zeros(d)


def add(state, scores, values):
    largest, total, weighted = state
    new = max(largest, np.max(scores, initial=-np.inf))
    if new == -np.inf:
        return state
    weights = np.exp(scores - new)
    # [solution]
    shrink = np.exp(largest - new)
    return new, total * shrink + weights.sum(), weighted * shrink + weights @ values
    # [stub]
    # raise NotImplementedError("what becomes of total and weighted, which were made with the old largest score?")
    # [end]


def merge(one, other):
    # [solution]
    new = max(one[0], other[0])
    if new == -np.inf:
        return one
    shrinks = np.exp(one[0] - new), np.exp(other[0] - new)
    total, weighted = (one[i] * shrinks[0] + other[i] * shrinks[1] for i in (1, 2))
    return new, total, weighted
    # [stub]
    # raise NotImplementedError("bring both to one largest score")
    # [end]


def result(state):
    # [solution]
    _, total, weighted = state
    return weighted / total if total > 0 else weighted
    # [stub]
    # raise NotImplementedError("weights that sum to 1; and where nothing was seen?")
    # [end]


# %%
check("online-softmax", empty, add, merge, result)

# %% [markdown] exercise="triton-kernel"
# ## A fused kernel in Triton
#
# *triton-kernel · lesson 03 · ●●● · 45 minutes · 13 points*
#
# On a GPU, PyTorch starts a **kernel** (a program for thousands of threads) for every operation, and each one reads its
# tensors from memory and writes them back. A **fused** kernel does several operations while the numbers are on the chip.
#
# **Triton** kernels are Python functions behind `@triton.jit`, launched on a **grid** of programs: `kernel[(rows,)](...)` starts
# `rows` of them, and `tl.program_id(0)` says which one this is. A program works on **blocks**: `tl.arange(0, BLOCK)` are `BLOCK`
# places at once, and `BLOCK` must be a power of two, known at compile time (`tl.constexpr`). A tensor that is handed to a kernel
# arrives as a pointer to its first number. What is beyond the data must be **masked**, in loads and stores.
#
# Every layer of a model adds what the last one computed (`delta`) to its running sum (`x`), and norms the total:
#
# $$\text{total} = x + \delta, \qquad \text{normed} = \frac{\text{total}}{\sqrt{\text{mean}(\text{total}^2) + \epsilon}} \cdot w$$
#
# (**RMSNorm**; the mean is over a row.) Write
#
# - `rms_norm(x, weight, eps, out)`: the norm of `x` into `out`.
# - `add_rms_norm(x, delta, weight, eps, total, normed)`: both results.
#
# All of them are PyTorch tensors [rows, size], `weight` is [size]; float32 or float16, all the same. **One launch**
# each, of a kernel that does all the arithmetic, in float32. `size` is any number from 1 to 300. Rows may lie further
# apart than they are long (`x.stride(0)`, different for each tensor); the numbers of a row are contiguous. Only the
# outputs are written.
#
# No GPU is needed: with `TRITON_INTERPRET=1` Triton runs kernels in Python. It does need the package `triton`, which exists for
# Linux; elsewhere, leave this exercise out.

# %% [markdown]
# **A worked example**: $y = a\,x$ for rows of 5 numbers, in blocks of 8. Three places of each block lie in the next row; without
# a mask, two programs would write them.

# %%
import os

os.environ["TRITON_INTERPRET"] = "1"  # set before kernels are defined

import torch
import triton
import triton.language as tl


@triton.jit
def scale_rows(x, y, a, x_stride, y_stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    mask = places < size
    numbers = tl.load(x + row * x_stride + places, mask=mask, other=0.0)
    tl.store(y + row * y_stride + places, a * numbers, mask=mask)


x = torch.arange(10.0).reshape(2, 5)
y = torch.empty_like(x)
scale_rows[(2,)](x, y, 10.0, x.stride(0), y.stride(0), 5, BLOCK=triton.next_power_of_2(5))
y

# %% [markdown]
# **Now you.** The first kernel has one gap, and so has its launch; the second is all yours. `tl.sum(values, axis=0)` and
# `tl.sqrt` do what they say, and `.to(tl.float32)` converts.


# %% answer="triton-kernel"
import os

os.environ["TRITON_INTERPRET"] = "1"

import triton
import triton.language as tl


@triton.jit
def norm_rows(x, weight, out, x_stride, out_stride, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    mask = places < size
    numbers = tl.load(x + row * x_stride + places, mask=mask, other=0.0).to(tl.float32)
    # [solution]
    mean_square = tl.sum(numbers * numbers, axis=0) / size
    # [stub]
    # mean_square = ...  # of the numbers of the row
    # [end]
    weights = tl.load(weight + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + places, numbers / tl.sqrt(mean_square + eps) * weights, mask=mask)


def rms_norm(x, weight, eps, out):
    rows, size = x.shape
    # [solution]
    block = triton.next_power_of_2(size)
    norm_rows[(rows,)](x, weight, out, x.stride(0), out.stride(0), size, eps, BLOCK=block)
    # [stub]
    # raise NotImplementedError("fill the gap in the kernel, then launch it: how many programs, and how large a block?")
    # [end]


# [solution]
@triton.jit
def add_and_norm_rows(
    x, delta, weight, total, normed, x_stride, delta_stride, total_stride, normed_stride, size, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    mask = places < size
    numbers = tl.load(x + row * x_stride + places, mask=mask, other=0.0).to(tl.float32)
    numbers += tl.load(delta + row * delta_stride + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(total + row * total_stride + places, numbers, mask=mask)
    mean_square = tl.sum(numbers * numbers, axis=0) / size
    weights = tl.load(weight + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(normed + row * normed_stride + places, numbers / tl.sqrt(mean_square + eps) * weights, mask=mask)


# [stub]
# [end]
def add_rms_norm(x, delta, weight, eps, total, normed):
    # [solution]
    tensors = x, delta, total, normed
    strides = [tensor.stride(0) for tensor in tensors]
    block = triton.next_power_of_2(x.shape[1])
    add_and_norm_rows[(len(x),)](x, delta, weight, total, normed, *strides, x.shape[1], eps, BLOCK=block)
    # [stub]
    # raise NotImplementedError("write a kernel for it, above, and launch it once")
    # [end]


# %%
check("triton-kernel", rms_norm, add_rms_norm)
