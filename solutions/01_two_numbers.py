# %% [markdown]
# # 01 · Exercises: two numbers
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

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

# %% [markdown] exercise="metrics-bug-hunt"
# ## A metrics bug hunt
#
# *metrics-bug-hunt · lesson 01 · ●●○ · 35 minutes · 18 points*
#
# Below is a small metrics module. It runs, its numbers look plausible, and almost every function has a bug that a published
# tool has had. Repair them, so that each does what this table says:
#
# | function | definition |
# |---|---|
# | `ttft(request)` | time to first token: from the moment the request was **due** to the first delivery, in seconds |
# | `tpot(request)` | time per output token: from the first delivery to the last, by the number of tokens **after the first token**, in seconds |
# | `gaps(request)` | the gaps between neighbouring deliveries, in seconds, as a list |
# | `percentile(samples, q)` | by linear interpolation at rank $(n - 1)\,q/100$. `None` for fewer than $100/(100 - q)$ samples: a p99 of fifty is one unlucky request |
# | `fleet_percentile(servers, q)` | the percentile of a service of several servers; `servers` holds a list of samples for each. The same rule for `None`, for all samples together |
# | `attainment(requests, limit_ms)` | the share (0 to 1) of **all** requests whose TTFT was at most the limit, given in **milliseconds**. One that failed has missed it. `None` if there are no requests |
#
# A **request** is a dictionary. All stamps are in seconds:
#
# - `"due"`: when its user wanted it sent. `"sent"`: when the client really sent it; a busy client may be late.
# - `"chunks"`: a list of pairs (moment, tokens): what came, when, and how many tokens were in it.
# - `"failed"`: True if it broke off, or was never answered. Then it has no TTFT, no TPOT (`None`) and no gaps (`[]`), whatever
#   came before it broke off.
#
# A **delivery** is a chunk that holds at least one token. (Servers also send chunks without any: one that opens the stream, one
# with the bill.) Tokens that come in one chunk are one delivery. A request without a delivery has no TTFT, one with a
# single token no TPOT: `None`.
#
# At last, catch a tool in the act. Write
#
# - `audit(printed, servers, q, limit_ms)`: `servers` holds a list of requests for each server. `printed` is what a tool
#   printed about them: `"ttft"`, `"tpot"`, `"gap"` (the fleet's percentile `q` of each) and `"met"` (attainment over all
#   requests). Give back the names that are **wrong** (a list or a set): more than one percent away from the definition
#   (tools round), a number where there should be None, or None where there should be a number.
#
# Leave what you are given as it is. `q` is below 100.

# %% [markdown]
# **A worked example.** One answer, and what the tool took for its deliveries:

# %%
answer = {"due": 0.0, "sent": 0.0, "failed": False, "chunks": [(0.02, 0), (0.90, 1), (0.95, 3), (1.00, 2), (1.01, 0)]}
believed = [at for at, tokens in answer["chunks"]]
print(
    f"the tool: TTFT {believed[0]:.2f} s. But that chunk has {answer['chunks'][0][1]} tokens: it only opens the stream"
)
delivered = [at for at, tokens in answer["chunks"] if tokens > 0]
print(f"by the definition of a delivery: TTFT {delivered[0]:.2f} s, {len(delivered)} deliveries")

# %% [markdown]
# The bug was found by working one small case by hand, beside the definition. It is repaired already: `deliveries`, below.
#
# **Now you.** Read first: the check tells you what is wrong, and takes the hunt away. `audit` is all yours.


# %% answer="metrics-bug-hunt"
def deliveries(request):
    """The chunks that hold tokens. (Repaired: chunks without tokens were counted.)"""
    if request["failed"]:
        return []
    return [(at, tokens) for at, tokens in request["chunks"] if tokens > 0]


def ttft(request):
    came = deliveries(request)
    if not came:
        return None
    # [solution]
    return came[0][0] - request["due"]
    # [stub]
    # return came[0][0] - request["sent"]
    # [end]


def tpot(request):
    came = deliveries(request)
    tokens = sum(count for _, count in came)
    if tokens < 2:
        return None
    # [solution]
    return (came[-1][0] - came[0][0]) / (tokens - 1)
    # [stub]
    # return (came[-1][0] - request["due"]) / tokens
    # [end]


def gaps(request):
    # [solution]
    moments = [at for at, _ in deliveries(request)]
    # [stub]
    # moments = [at for at, tokens in deliveries(request) for _ in range(tokens)]
    # [end]
    return [later - sooner for sooner, later in zip(moments, moments[1:])]


def percentile(samples, q):
    ranked = sorted(samples)
    # [solution]
    if len(ranked) * (100 - q) < 100:
        return None
    rank = (len(ranked) - 1) * q / 100
    low = int(rank)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (rank - low) * (ranked[high] - ranked[low])
    # [stub]
    # if not ranked:
    #     return None
    # return ranked[max(-int(-len(ranked) * q // 100) - 1, 0)]
    # [end]


def fleet_percentile(servers, q):
    # [solution]
    return percentile([sample for samples in servers for sample in samples], q)
    # [stub]
    # each = [own for samples in servers if (own := percentile(samples, q)) is not None]
    # return sum(each) / len(each) if each else None
    # [end]


def attainment(requests, limit_ms):
    # [solution]
    if not requests:
        return None
    waits = [ttft(request) for request in requests]
    return sum(wait is not None and wait * 1000 <= limit_ms for wait in waits) / len(requests)
    # [stub]
    # waits = [ttft(request) for request in requests if not request["failed"]]
    # return sum(wait is not None and wait <= limit_ms for wait in waits) / len(waits) if waits else None
    # [end]


def audit(printed, servers, q, limit_ms):
    # [solution]
    everybody = [request for server in servers for request in server]
    wanted = {"met": attainment(everybody, limit_ms)}
    for name, metric in {"ttft": ttft, "tpot": tpot}.items():
        values = [[metric(request) for request in server] for server in servers]
        wanted[name] = fleet_percentile([[value for value in own if value is not None] for own in values], q)
    wanted["gap"] = fleet_percentile([[gap for request in server for gap in gaps(request)] for server in servers], q)

    def is_wrong(name):
        told, right = printed[name], wanted[name]
        if told is None or right is None:
            return told is not right
        return abs(told - right) > 0.01 * abs(right)

    return [name for name in printed if is_wrong(name)]
    # [stub]
    # raise NotImplementedError("what should have been printed? Compare it column by column")
    # [end]


# %%
check("metrics-bug-hunt", ttft, tpot, gaps, percentile, fleet_percentile, attainment, audit)
