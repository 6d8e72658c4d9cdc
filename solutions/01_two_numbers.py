# %% [markdown]
# # 01 · Exercises: two numbers
#
# Write your answer where the stub says so, run its cell, then run the check below it. A check says what you earned and
# what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="percentiles"
# ## Percentiles, and the two numbers from raw stamps
#
# *percentiles · lesson 01 · ●○○ · 20 minutes · 12 points*
#
# A **percentile** $p_q$ is a value that $q$ percent of the samples stay below. With $n$ samples, sorted and counted from 0,
# it sits at rank $(n - 1)\,q/100$. A rank is rarely whole: then $p_q$ lies between the two neighbours, in proportion
# (linear interpolation, as `numpy.percentile` does it).
#
# A **request** is a pair `(arrival, deliveries)`: the moment it came and the moments at which its tokens were handed
# over, in order, in seconds. Some requests got no token at all, and some only one.
#
# - **TTFT**, time to first token: first delivery minus arrival.
# - **ITL**, inter-token latency: the gap between two neighbouring deliveries *of one request*. The gaps of all requests
#   go into one pool.
#
# Write
#
# - `percentile(samples, q)`: the percentile; `q` goes from 0 to 100; the samples come in any order; `None` if there are none.
# - `two_numbers(requests, q)`: the pair (percentile of TTFT, percentile of ITL); `None` for one that has no samples.
#
# Write it without NumPy's percentile: the point is to know what it does. Leave the data you are given as it is.

# %% [markdown]
# **A worked example.** p75 of 7, 1, 4, 2, 9, 5:

# %%
ranked = sorted([7, 1, 4, 2, 9, 5])
rank = (len(ranked) - 1) * 75 / 100
below = int(rank)
print(f"{ranked}: rank {rank}, between {ranked[below]} and {ranked[below + 1]}, {rank - below:.0%} of the way up")
ranked[below] + (rank - below) * (ranked[below + 1] - ranked[below])

# %% [markdown]
# **Now you.** `percentile` has one gap to fill: the last line. `two_numbers` is all yours.


# %% answer="percentiles"
def percentile(samples, q):
    ranked = sorted(samples)
    if not ranked:
        return None
    rank = (len(ranked) - 1) * q / 100
    low = int(rank)
    high = min(low + 1, len(ranked) - 1)  # at p100 there is no neighbour above
    # [solution]
    return ranked[low] + (rank - low) * (ranked[high] - ranked[low])
    # [stub]
    # raise NotImplementedError("how far between ranked[low] and ranked[high]?")
    # [end]


def two_numbers(requests, q):
    # [solution]
    ttfts = [deliveries[0] - arrival for arrival, deliveries in requests if deliveries]
    gaps = [later - sooner for _, deliveries in requests for sooner, later in zip(deliveries, deliveries[1:])]
    return percentile(ttfts, q), percentile(gaps, q)
    # [stub]
    # raise NotImplementedError("collect all TTFTs and all gaps, then rank")
    # [end]


# %%
check("percentiles", percentile, two_numbers)

# %% [markdown]
# **Look at your own numbers.** Below are two requests. One stalls for a second in the middle. Compare p50 and p99 of ITL, and
# both with the average gap: which of the three would have told you?

# %%
smooth = (0.0, [0.2 + 0.05 * i for i in range(40)])
stalls = (0.0, [0.2 + 0.05 * i + (1.0 if i > 20 else 0.0) for i in range(40)])
# [solution]
for q in (50, 99):
    print(f"p{q}: TTFT {two_numbers([smooth, stalls], q)[0]:.3f} s, ITL {two_numbers([smooth, stalls], q)[1]:.3f} s")
print(f"average gap of the request that stalls: {(stalls[1][-1] - stalls[1][0]) / 39:.3f} s")
# [stub]
# # two_numbers([smooth, stalls], 50)
# [end]
