# %% [markdown]
# # 12 · Exercises: dumps
#
# A **dump** is what someone wrote down about a sick service. Nothing can be asked any more: that is how interviews and post-mortems
# begin. For each of the six, write
#
# - `dominant_phase`: the phase that is to blame (`queue`, `prefill`, `first_token`, `decode`, `stream`), and `secondary`: another one
#   that suffers, or `None`. What passes before an engine begins counts as queue.
# - `regime`: `"steady"`, or a `"spike"` that passes by itself.
# - `evidence`: the labels of the lines that convict. A line that would read the same without the trouble takes some off.
# - `ranked`: up to three changes by id, the best first. The first is **deployed** in the simulated service behind the dump, and all are
#   ranked by what they really do, less what they cost.
# - `open_questions`: ids of what you would ask next. The dump leaves out something that decides.
# - `capacity`: what the dump's own numbers imply, by arithmetic.
#
# Half of the work is paper. Take twelve minutes for each, then run its check; run it as often as you like.

# %%
from math import ceil

from course.lab.incidents.dumps import changes, check, numbers, questions, read

changes()

# %%
questions()

# %% [markdown]
# ## The arithmetic
#
# `numbers("13b")` has what can be multiplied: `rate` (requests a second), `prompt` and `output` (tokens, means), `ttft` and `gap` (seconds;
# a gap is the time between two tokens), `gpus`, `peak` (FLOP/s of one GPU on its data sheet), `weights`, `pool` (KV tokens that fit).
# Write a function that gives back
#
# - `in_flight`: requests in the system, by **Little's law**: arrivals per second x seconds that one stays, first wait to last token;
# - `prefill_share`: what reading all prompts asks for, over the peak of all GPUs. Each weight is used twice for a token;
# - `kv_requests`: how many mean requests have room in the pool at once, with half of each answer written;
# - `servers`: at least so many such servers, for the prompts alone, whatever else they do.


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
# ## 1 · Thirteen billion weights

# %%
read("13b")

# %%
capacity(numbers("13b"))

# %% [markdown]
# # [solution]
# The given numbers cannot be one server's. The prompts alone ask for several times the data sheet, and by Little's law an order of
# magnitude more requests are in flight than have room. So it is a fleet, or a cache knows most of the prompts, or the rate is
# not what it seems. Of a server that does get its share: most seconds pass in decode, because each step also reads other
# people's prompts, and a queue builds behind it. Shorter prompts act on both; more machines do, too, at twice the price. What the dump
# leaves out is the split of TTFT into queue and prefill.
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
    ranked=["trim_prompts", "double_fleet"],
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
# Prompts ask for next to nothing of the GPUs: arithmetic is not what is short. More requests are in flight than have room, so those who
# run lose their blocks, and what they had is computed again. A bigger batch would evict more.
# # [stub]
# *Your notes: what is short here, arithmetic or memory?*
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
# As many drafts pass as before, so the proposer is not to blame. With a full batch a step is no longer waiting for memory:
# checking nine tokens for each request is work, and most of it is thrown away. Longer drafts would throw away more.
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
# Read without a cache, the prompts ask for more than the GPUs have. The service only ever worked because nearly all of it was found in
# the cache. Now nothing is: the prompts have as much in common as before, but not at their start. A larger cache keeps what no request
# can find.
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
# ## 5 · The reader's view

# %%
read("reader")

# %% [markdown]
# # [solution]
# There is room everywhere: by arithmetic, by memory, by slots. The server's own gaps are short and even; only the client's are long.
# Something in between collects tokens and passes them on in slabs. The first slab is late as well: the client sees a slow first token that
# the server never had.
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
# ## 6 · The push message

# %%
read("push")

# %% [markdown]
# # [solution]
# On average there is capacity to spare. The queue jumped with the arrivals and then drained: a spike, for which a second machine would be too
# small for a few seconds and idle for the rest of the day. A pool of warm replicas costs while it is used. Writing got slower as well: the
# batch was full for as long as the queue was there.
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
