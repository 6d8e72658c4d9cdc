# %% [markdown]
# # 03 · Exercises: prefill
#
# Write your answer where the stub says so, run its cell, then run the check below it. A check says what you earned and
# what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="online-softmax"
# ## Online softmax: attention in one pass
#
# *online-softmax · lesson 03 · ●●○ · 35 minutes · 13 points*
#
# One query has a **score** $s_i$ for each key, and each key has a **value** $v_i$, $d$ numbers. Attention gives
#
# $$\sum_i \frac{e^{s_i - m}}{\sum_j e^{s_j - m}} \; v_i, \qquad m = \max_i s_i$$
#
# ($m$ changes nothing but keeps $e^{s}$ from overflowing.) The textbook needs the whole row of scores to find $m$.
# **FlashAttention** walks over the keys in **tiles** and forgets each tile: it keeps the largest score so far, the sum
# $\sum e^{s_j - m}$ for it, and the weighted values $\sum e^{s_i - m} v_i$ for it (Milakov and Gimelshein, 2018). When a tile
# brings a larger score, what was summed so far is **rescaled**. Write, with NumPy:
#
# - `empty(d)`: the **state** before any key was seen. What a state looks like is your choice.
# - `add(state, scores, values)`: the state after a tile, scores [n] and values [n, d]. Tiles have any size, 0 too, and come in any
#   order. You may change the old state or make a new one; leave the arrays as they are.
# - `merge(one, other)`: two states of the same query, which saw different keys, become one. This is how several processors
#   share a long context (**Flash-Decoding**). Again you may change them.
# - `result(state)`: the output, $d$ numbers. It may be asked for at any time, and changes nothing.
#
# A score of `-inf` is a key that the query must not see (**masked**): its weight is 0. A tile may have no other keys. Where
# nothing visible was seen, the result is zeros. Scores may be in the thousands, on either side of zero.
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
