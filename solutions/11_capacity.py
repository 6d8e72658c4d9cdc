# %% [markdown]
# # 11 · Exercises: capacity
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="littles-law"
# ## Little's law, and the client cap it exposes
#
# *littles-law · lesson 11 · ●●○ · 30 minutes · 13 points*
#
# **Little's law**: $L = \lambda W$. $L$ is the mean number of requests in a system; $\lambda$ is the arrival rate, per second; $W$ is
# the mean time one spends there, in seconds. It holds for any system, whatever happens inside, over a window that starts and
# ends **empty**. That makes it a lie detector: measure all three, and see whether they agree.
#
# A **stay** is a pair `(arrival, departure)`, in seconds. Stays come in any order. At the instant of its departure a request is
# no longer in the system. Write
#
# - `mean_in_system(stays, start, end)`: the mean number of requests in the system from `start` to `end`: the integral of the count,
#   divided by the length of the window. Of a stay that overlaps the window's edge, count the part inside.
# - `little(stays, start, end)`: the triple (L, λ, W), each **measured independently**: L as above; λ, the arrivals with
#   start ≤ arrival < end, per second; W, the mean of those requests' full stays, even if they depart after the window. W is `None`
#   if none arrived.
# - `busy_periods(stays)`: the windows over which the law must hold: a list of pairs (start, end), in time order, each from when
#   a request arrives at an empty system until it's empty again. If one arrives at the very instant the last one departs, the
#   period continues. Every stay has a positive length (here and below).
# - `client_cap(stays)`: many load generators keep at most a fixed number of requests open, a **cap**, and send the next one
#   when one returns. The count then sits at its maximum. Return the largest count there ever is, if the count is at it for
#   **more than half** of the time from the first arrival to the last, otherwise `None`. Also `None` if they arrive at the
#   same time.
#
# There may be many stays: don't compare every pair. Don't modify the list.

# %% [markdown]
# **A worked example.** Three stays, and how many requests are in the system:

# %%
stays = [(0.0, 4.0), (1.0, 3.0), (6.0, 7.0)]
count_of = {"0 to 1": 1, "1 to 3": 2, "3 to 4": 1, "4 to 6": 0, "6 to 7": 1}
print("in the system:", count_of)
integral = 1 * 1 + 2 * 2 + 1 * 1 + 2 * 0 + 1 * 1
print(f"integral {integral}, by adding up stays {sum(b - a for a, b in stays):g}: the same area, sliced the other way")
print(f"from 0 to 7: L = {integral / 7:.3f}, λ = {3 / 7:.3f}, W = {integral / 3:.3f}, λ·W = {3 / 7 * integral / 3:.3f}")

# %% [markdown]
# Slicing the same area both ways is the whole proof. In the window from 0 to 2 the slices differ: the area is 3, but the two
# requests that arrived in it stay 6 s in total. Neither had finished when the window ended.
#
# **Now you.** `mean_in_system` has one gap to fill; the others are all yours.


# %% answer="littles-law"
def mean_in_system(stays, start, end):
    area = 0.0
    for arrival, departure in stays:
        # [solution]
        area += max(0.0, min(departure, end) - max(arrival, start))
        # [stub]
        # raise NotImplementedError("how much of this stay lies inside the window?")
        # [end]
    return area / (end - start)


def little(stays, start, end):
    # [solution]
    inside = [departure - arrival for arrival, departure in stays if start <= arrival < end]
    mean_stay = sum(inside) / len(inside) if inside else None
    return mean_in_system(stays, start, end), len(inside) / (end - start), mean_stay
    # [stub]
    # raise NotImplementedError("L, λ and W, each measured by itself")
    # [end]


def busy_periods(stays):
    # [solution]
    periods = []
    for arrival, departure in sorted(stays):
        if periods and arrival <= periods[-1][1]:
            periods[-1] = (periods[-1][0], max(periods[-1][1], departure))
        else:
            periods.append((arrival, departure))
    return periods
    # [stub]
    # raise NotImplementedError("from empty to empty")
    # [end]


def client_cap(stays):
    # [solution]
    if not stays:
        return None
    arrivals = [arrival for arrival, _ in stays]
    first, last = min(arrivals), max(arrivals)
    # Of equal moments, -1 comes first: who departs is gone before the next arrives.
    events = sorted([(arrival, 1) for arrival, _ in stays] + [(departure, -1) for _, departure in stays])
    count, before, seconds_at = 0, first, {}
    for moment, step in events:
        seconds_at[count] = seconds_at.get(count, 0.0) + max(0.0, min(moment, last) - before)
        count, before = count + step, moment
    most = max(seconds_at)
    return most if seconds_at[most] > (last - first) / 2 else None
    # [stub]
    # raise NotImplementedError("the maximum of the count, if it stands there for more than half of the time")
    # [end]


# %%
check("littles-law", mean_in_system, little, busy_periods, client_cap)

# %% [markdown]
# **Use it.** A published benchmark says: 4.0 requests per second, mean end-to-end latency 8.0 s, "at a load of 100 requests per
# second". How many requests did its client keep open?

# %%
# [solution]
print(f"L = λ·W = {4.0 * 8.0:.0f}: a client with {4.0 * 8.0:.0f} open, whatever load it was asked for")
# [stub]
# # L = ...
# [end]

# %% [markdown] exercise="capacity-plan"
# ## A capacity plan
#
# *capacity-plan · lesson 11 · ●●○ · 40 minutes · 14 points*
#
# You know the request rate, the prompt and answer lengths, and a limit on the time between two tokens (the **ITL**). How many
# copies of the model (**replicas**) does it take, what keeps each of them from serving more, and what does a million tokens
# cost?
#
# Everything is given as dictionaries:
#
# - `load`: `"rate"`, mean requests per second; `"burst"`, peak rate over mean rate; `"prompt"` and `"answer"`, tokens per
#   request.
# - `replica`: `"slots"`, its maximum number of running requests; `"kv_tokens"`, how many tokens its KV cache holds; `"usd_per_hour"`;
#   and the time of a **step**, in which each request of the batch gets one token: `"fixed_s"` once (reading the weights),
#   `"per_request_s"` per request, `"per_cached_token_s"` per token in the cache, `"per_prompt_token_s"` per prompt token
#   prefilled in the step.
#
# Write
#
# - `itl_seconds(replica, load, batch)`: the mean step time with `batch` requests always running. A request has its prompt in the
#   cache, and on average **half** of its answer. An answer takes `answer` steps; when it ends a new request starts, whose prompt
#   has to be prefilled: so a step prefills `batch / answer` prompts on average.
# - `largest_batch(replica, load, itl_limit_s)`: the largest batch, and what **binds** it: the resource that rules out one
#   more request: `"slots"`; `"kv"`, because each request needs room for its prompt and its **whole** answer; or
#   `"compute"`, because the ITL would be above the limit. Exactly full fits, and an ITL exactly at the limit meets it.
#   If several bind, any of them is right. The batch is 0 if not even one request fits.
# - `plan(replica, load, itl_limit_s)`: a dictionary with
#   - `"batch"`, `"binding"`: as above;
#   - `"replicas"`: how many it takes at the **peak** (rate × burst), each at its largest batch. At least one. `None`
#     if the batch is 0: no number of replicas helps then;
#   - `"usd_per_million_tokens"`: dollars per million **answer** tokens. You pay for all replicas around the clock, but sell tokens at
#     the **average** rate: headroom costs. `None` if nothing is sold, or nothing fits.
#
# Such a plan says nothing about TTFT: the queue grows long before the peak fills all slots. (Lesson 11 shows by how much.)

# %% [markdown]
# **A worked example.** Where a step's time goes as the batch grows:

# %%
replica = {
    "slots": 128, "kv_tokens": 120_000, "usd_per_hour": 2.5,
    "fixed_s": 0.012, "per_request_s": 5e-5, "per_cached_token_s": 2e-8, "per_prompt_token_s": 4e-5,
}  # fmt: skip
load = {"rate": 12.0, "burst": 2.0, "prompt": 900, "answer": 250}
for batch in (1, 16, 64):
    cache = batch * (load["prompt"] + load["answer"] / 2) * replica["per_cached_token_s"]
    prompts = batch / load["answer"] * load["prompt"] * replica["per_prompt_token_s"]
    itl = replica["fixed_s"] + batch * replica["per_request_s"] + cache + prompts
    print(
        f"batch {batch:3}: cache {cache * 1e3:4.1f} ms, prompts {prompts * 1e3:4.1f} ms, ITL {itl * 1e3:4.1f} ms, {batch / itl:6.0f} tokens/s"
    )

# %% [markdown]
# At a batch of 64 each request runs at about half the speed, but the replica makes many times the tokens: the fixed time is
# shared. What makes the step longer here isn't the cache, it's other requests' prompts.
#
# **Now you.** `itl_seconds` has one gap to fill; the others are all yours.


# %% answer="capacity-plan"
import math


def itl_seconds(replica, load, batch):
    cached_tokens = batch * (load["prompt"] + load["answer"] / 2)
    # [solution]
    prompt_tokens = batch / load["answer"] * load["prompt"]
    # [stub]
    # raise NotImplementedError("how many prompt tokens does a step prefill, on average?")
    # [end]
    seconds = replica["fixed_s"] + batch * replica["per_request_s"]
    return seconds + cached_tokens * replica["per_cached_token_s"] + prompt_tokens * replica["per_prompt_token_s"]


def largest_batch(replica, load, itl_limit_s):
    # [solution]
    batch = 0
    while True:
        more = batch + 1
        if more > replica["slots"]:
            return batch, "slots"
        if more * (load["prompt"] + load["answer"]) > replica["kv_tokens"]:
            return batch, "kv"
        if itl_seconds(replica, load, more) > itl_limit_s:
            return batch, "compute"
        batch = more
    # [stub]
    # raise NotImplementedError("which of the three rules out one more?")
    # [end]


def plan(replica, load, itl_limit_s):
    # [solution]
    batch, binding = largest_batch(replica, load, itl_limit_s)
    replicas = price = None
    if batch > 0:
        tokens_per_s = batch / itl_seconds(replica, load, batch)
        peak_tokens_per_s = load["rate"] * load["burst"] * load["answer"]
        replicas = max(math.ceil(peak_tokens_per_s / tokens_per_s), 1)
        if load["rate"] > 0:
            tokens_per_hour = load["rate"] * load["answer"] * 3600
            price = replicas * replica["usd_per_hour"] / tokens_per_hour * 1e6
    return {"batch": batch, "binding": binding, "replicas": replicas, "usd_per_million_tokens": price}
    # [stub]
    # raise NotImplementedError("the peak sets how many, the average sets what a token costs")
    # [end]


# %%
check("capacity-plan", itl_seconds, largest_batch, plan)

# %% [markdown]
# **Use it.** What does a tighter SLO cost, and what does headroom?

# %%
# [solution]
for limit_ms in (15, 20, 30, 40):
    for burst in (1.0, 3.0):
        found = plan(replica, {**load, "burst": burst}, limit_ms / 1000)
        size = f"{found['replicas']} replicas of batch {found['batch']} ({found['binding']})"
        print(
            f"ITL at most {limit_ms} ms, burst {burst:g}: {size}, ${found['usd_per_million_tokens']:.2f} per million tokens"
        )
# [stub]
# # plan(replica, load, 0.020)
# [end]
