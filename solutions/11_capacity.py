# %% [markdown]
# # 11 · Exercises: capacity
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="littles-law"
# ## Little's law, and the cap it gives away
#
# *littles-law · lesson 11 · ●●○ · 30 minutes · 13 points*
#
# **Little's law**: $L = \lambda W$. $L$ is how many requests are in a system, on average over time; $\lambda$ is how many arrive per
# second; $W$ is how long one stays, on average, in seconds. It holds for any system, whatever happens inside, over a window that
# begins and ends **empty**. That makes it a lie detector: measure all three, and see whether they agree.
#
# A **stay** is a pair `(arrival, departure)` of moments, in seconds. Stays come in any order. At the moment of its departure a
# request is no longer there. Write
#
# - `mean_in_system(stays, start, end)`: the mean number of requests in the system over the window from `start` to `end`: the integral of
#   the count, divided by the length of the window. A stay that reaches out of the window counts with the part inside.
# - `little(stays, start, end)`: the triple (L, λ, W), each **measured by itself**: L as above; λ, the arrivals with
#   start ≤ arrival < end, per second; W, the mean stay of just these requests, whole, even if they depart behind the window. W is `None`
#   if no request arrived.
# - `busy_periods(stays)`: the windows over which the law must hold: a list of pairs (start, end), in order of time, from a moment when
#   an empty system gets a request to the moment when it is empty again. If one arrives in the very moment in which the last one departs,
#   the period goes on. Every stay lasts longer than nothing (here and below).
# - `client_cap(stays)`: many load generators keep at most a fixed number of requests open, a **cap**, and send the next one the
#   moment one comes back. Then the count sits at its maximum. Return the maximum of the count if the count is at it for
#   **more than half** of the time from the first arrival to the last, otherwise `None`. Also `None` if there's no time
#   between them.
#
# There may be many stays: don't compare every pair. Leave the list as it is.

# %% [markdown]
# **A worked example.** Three stays, and who is there:

# %%
stays = [(0.0, 4.0), (1.0, 3.0), (6.0, 7.0)]
count_of = {"0 to 1": 1, "1 to 3": 2, "3 to 4": 1, "4 to 6": 0, "6 to 7": 1}
print("how many are there:", count_of)
integral = 1 * 1 + 2 * 2 + 1 * 1 + 2 * 0 + 1 * 1
print(f"integral {integral}, by adding up stays {sum(b - a for a, b in stays):g}: the same area, cut the other way")
print(f"from 0 to 7: L = {integral / 7:.3f}, λ = {3 / 7:.3f}, W = {integral / 3:.3f}, λ·W = {3 / 7 * integral / 3:.3f}")

# %% [markdown]
# The two ways to cut the same area are the whole proof. In the window from 0 to 2 they differ: the area is 3, but the two that
# arrived there stay 6 s in all. Two requests had not ended when the window did.
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
# second". How many requests did its client have open?

# %%
# [solution]
print(f"L = λ·W = {4.0 * 8.0:.0f}: a client with {4.0 * 8.0:.0f} open, whatever load it was told to make")
# [stub]
# # L = ...
# [end]

# %% [markdown] exercise="capacity-plan"
# ## A capacity plan
#
# *capacity-plan · lesson 11 · ●●○ · 40 minutes · 14 points*
#
# Given the requests per second, the lengths of prompts and answers, and a limit on the time between two tokens (the **ITL**):
# how many copies of the model (**replicas**) does it take, what stops each of them from serving more, and what does a
# million tokens cost?
#
# Everything is given as dictionaries:
#
# - `load`: `"rate"`, requests per second, on average; `"burst"`, by what factor the peak is higher; `"prompt"` and
#   `"answer"`, tokens per request.
# - `replica`: `"slots"`, the most requests at a time; `"kv_tokens"`, how many tokens its KV cache holds; `"usd_per_hour"`; and what a **step**
#   takes, in which each request of the batch gets one token: `"fixed_s"` once (the weights are read),
#   `"per_request_s"` for each request, `"per_cached_token_s"` for each token that is in the cache, `"per_prompt_token_s"` for each token of a
#   prompt that is read in the step.
#
# Write
#
# - `itl_seconds(replica, load, batch)`: the mean time of a step with `batch` requests at work, all the time. A request has its prompt in
#   the cache, and on average **half** of its answer. An answer takes `answer` steps, and with its end a new request comes, whose
#   prompt must be read: so a step reads `batch / answer` prompts on average.
# - `largest_batch(replica, load, itl_limit_s)`: the pair of the largest batch and what **binds** it, the resource that refuses one
#   more: `"slots"`; `"kv"`, because each request needs room for its prompt and its **whole** answer; or
#   `"compute"`, because the ITL would be above the limit. What is exactly full fits, and an ITL of exactly the limit meets it.
#   If several refuse, any of them is right. The batch is 0 if not even one request fits.
# - `plan(replica, load, itl_limit_s)`: a dictionary with
#   - `"batch"`, `"binding"`: as above;
#   - `"replicas"`: how many it takes at the **peak** (rate × burst), each with its largest batch. At least one. `None`
#     if the batch is 0: then no number of replicas helps;
#   - `"usd_per_million_tokens"`: dollars for a million tokens of **answers**. All replicas are paid all the time, and the tokens are those of the
#     **average** rate: headroom costs. `None` if nothing is sold, or nothing fits.
#
# Such a plan says nothing about TTFT: a queue grows long before the peak fills all slots. (Lesson 11 shows by how much.)

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
# A batch of 64 gives each reader about half of the speed, and all of them together many times the tokens: the fixed time is shared. It is
# not the cache that makes the step longer here, but other people's prompts.
#
# **Now you.** `itl_seconds` has one gap to fill; the others are all yours.


# %% answer="capacity-plan"
import math


def itl_seconds(replica, load, batch):
    cached_tokens = batch * (load["prompt"] + load["answer"] / 2)
    # [solution]
    prompt_tokens = batch / load["answer"] * load["prompt"]
    # [stub]
    # raise NotImplementedError("how many tokens of prompts does a step read, on average?")
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
    # raise NotImplementedError("which of the three refuses one more?")
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
    # raise NotImplementedError("the peak decides how many, the average decides what a token costs")
    # [end]


# %%
check("capacity-plan", itl_seconds, largest_batch, plan)

# %% [markdown]
# **Use it.** What does a tighter promise cost, and what does headroom?

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
