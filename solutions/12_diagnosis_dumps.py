# %% [markdown]
# # 12 · Exercises: dumps
#
# A **dump** is what someone wrote down about a service in trouble. You can't ask for more: that's how interviews and post-mortems
# start. For each of the six, write
#
# - `dominant_phase`: the phase to blame (`queue`, `prefill`, `first_token`, `decode`, `stream`, or `outside` the engine), and
#   `secondary`: another one that suffers, or `None`.
# - `regime`: `"steady"`, or a `"spike"` that passes on its own.
# - `evidence`: the labels of the lines that prove it. A line that would read the same on a healthy day costs points.
# - `ranked`: up to three changes by id, the best first. The first is **deployed** in the simulated service behind the dump, and all are
#   scored by what they actually do, less what they cost.
# - `open_questions`: ids of what you would ask next. The dump leaves out something decisive.
# - `capacity`: what the dump's own numbers imply, by arithmetic.
#
# Half of this is pencil and paper. Take twelve minutes for each, then run its check, as often as you like.

# %%
from math import ceil

from course.incidents.dumps import changes, check, numbers, questions, read

changes()

# %%
questions()

# %% [markdown]
# ## The arithmetic
#
# `numbers("13b")` has the inputs: `rate` (requests a second), `prompt` and `output` (tokens, means), `ttft` and `gap` (seconds;
# a gap is the time between two tokens), `gpus`, `peak` (FLOP/s of one GPU on its data sheet), `weights`, `pool` (KV tokens that fit).
# Write a function that returns
#
# - `in_flight`: requests in the system, by **Little's law**: arrivals per second x seconds in the system, arrival to last token;
# - `prefill_share`: the FLOP/s that prefilling all prompts takes, over the peak of all GPUs. A token takes two FLOPs per weight;
# - `kv_requests`: how many average requests fit in the pool at once, with half of each answer generated;
# - `servers`: how many such servers the prompts alone need, at least, whatever else they do.


# %%
def capacity(n):
    # [solution]
    stay = n["ttft"] + (n["output"] - 1) * n["gap"]
    share = n["rate"] * n["prompt"] * 2 * n["weights"] / (n["gpus"] * n["peak"])
    return {
        "in_flight": n["rate"] * stay,
        "prefill_share": share,
        "kv_requests": n["pool"] / (n["prompt"] + n["output"] / 2),
        "servers": max(ceil(share), 1),
    }
    # [stub]
    # return {
    #     "in_flight": ...,
    #     "prefill_share": ...,
    #     "kv_requests": ...,
    #     "servers": ...,
    # }
    # [end]


# %% [markdown]
# ## 1 · A 13B model

# %%
read("13b")

# %%
capacity(numbers("13b"))

# %% [markdown]
# # [solution]
# These numbers can't be one server's. The prompts alone need several times the data-sheet FLOP/s, and by Little's law an order
# of magnitude more requests are in flight than fit. So it's a fleet, or a cache holds most of the prompts, or the rate isn't what
# it seems. On a server with its fair share of that load, most of the time goes into decode, because each step also prefills other
# requests' prompts, and a queue builds behind it. More machines help both, at twice the
# price; so would shorter prompts, if users can do without what is cut. What the
# dump leaves out is the split of TTFT into queue and prefill.
# # [stub]
# *Your notes: can this be one server?*
# # [end]

# %%
check(
    "13b",
    # [solution]
    dominant_phase="decode",
    secondary="queue",
    regime="steady",
    evidence=["queue_over_time", "arrivals"],
    ranked=["double_fleet", "trim_prompts"],
    open_questions=["phases"],
    # [stub]
    # dominant_phase=...,
    # secondary=...,
    # regime=...,
    # evidence=[...],
    # ranked=[...],
    # open_questions=[...],
    # [end]
    capacity=capacity(numbers("13b")),
)

# %% [markdown]
# ## 2 · Essays

# %%
read("essays")

# %% [markdown]
# # [solution]
# Prefill needs next to none of the GPUs' FLOP/s: compute isn't what's short. More requests are in flight than fit, so running
# requests are preempted and recomputed. A bigger batch would preempt more.
# # [stub]
# *Your notes: what is short here, compute or memory?*
# # [end]

# %%
check(
    "essays",
    # [solution]
    dominant_phase="decode",
    secondary="queue",
    regime="steady",
    evidence=["preemptions", "kv_use"],
    ranked=["kv_budget", "int8_kv", "double_fleet"],
    open_questions=["batch", "changes"],
    # [stub]
    # dominant_phase=...,
    # secondary=...,
    # regime=...,
    # evidence=[...],
    # ranked=[...],
    # open_questions=[...],
    # [end]
    capacity=capacity(numbers("essays")),
)

# %% [markdown]
# ## 3 · Completions

# %%
read("completions")

# %% [markdown]
# # [solution]
# The acceptance rate hasn't changed, so the draft isn't to blame. With a full batch a step is no longer memory-bound: verifying
# nine tokens per request is real work, and most of it is thrown away. Longer drafts would throw away more.
# # [stub]
# *Your notes: what changed, the drafts or the batch?*
# # [end]

# %%
check(
    "completions",
    # [solution]
    dominant_phase="decode",
    secondary="queue",
    regime="steady",
    evidence=["decode_steps", "acceptance"],
    ranked=["gate_speculation", "fp8"],
    open_questions=["arrivals"],
    # [stub]
    # dominant_phase=...,
    # secondary=...,
    # regime=...,
    # evidence=[...],
    # ranked=[...],
    # open_questions=[...],
    # [end]
    capacity=capacity(numbers("completions")),
)

# %% [markdown]
# ## 4 · The help desk

# %%
read("helpdesk")

# %% [markdown]
# # [solution]
# Without cache hits, prefill needs more FLOP/s than the GPUs have. The service only ever worked because almost every prompt token
# was a hit. Now none is: the prompts share as much as before, but no longer at the start. A larger cache keeps blocks that no
# request will ever match.
# # [stub]
# *Your notes: how could this ever have worked?*
# # [end]

# %%
check(
    "helpdesk",
    # [solution]
    dominant_phase="prefill",
    secondary="queue",
    regime="steady",
    evidence=["hit_rate", "shared_prefix"],
    ranked=["static_first"],
    open_questions=["changes"],
    # [stub]
    # dominant_phase=...,
    # secondary=...,
    # regime=...,
    # evidence=[...],
    # ranked=[...],
    # open_questions=[...],
    # [end]
    capacity=capacity(numbers("helpdesk")),
)

# %% [markdown]
# ## 5 · The client's view

# %%
read("reader")

# %% [markdown]
# # [solution]
# There's headroom everywhere: compute, memory, slots. The server's own gaps are short and even; only the client's are long.
# Something in between buffers tokens and passes them on in batches. The first batch is late too, so the client sees a slow first
# token that the server never had.
# # [stub]
# *Your notes: where are the gaps made?*
# # [end]

# %%
check(
    "reader",
    # [solution]
    dominant_phase="stream",
    secondary="first_token",
    regime="steady",
    evidence=["client_server", "ttft_itl"],
    ranked=["unbuffer"],
    open_questions=["changes"],
    # [stub]
    # dominant_phase=...,
    # secondary=...,
    # regime=...,
    # evidence=[...],
    # ranked=[...],
    # open_questions=[...],
    # [end]
    capacity=capacity(numbers("reader")),
)

# %% [markdown]
# ## 6 · The push notification

# %%
read("push")

# %% [markdown]
# # [solution]
# On average there's capacity to spare. The queue jumped with the arrivals and then drained: a spike. A second machine would be too
# small for those seconds and idle for the rest of the day; a warm pool costs only while it's used. Decode got slower as well: the
# batch was full for as long as there was a queue.
# # [stub]
# *Your notes: is the mean load above capacity?*
# # [end]

# %%
check(
    "push",
    # [solution]
    dominant_phase="queue",
    secondary="decode",
    regime="spike",
    evidence=["queue_over_time", "arrivals"],
    ranked=["warm_pool"],
    open_questions=["changes"],
    # [stub]
    # dominant_phase=...,
    # secondary=...,
    # regime=...,
    # evidence=[...],
    # ranked=[...],
    # open_questions=[...],
    # [end]
    capacity=capacity(numbers("push")),
)
