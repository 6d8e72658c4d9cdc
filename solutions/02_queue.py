# %% [markdown]
# # 02 · Exercises: the queue
#
# Write your answer where the stub says so, run its cell, then run the check below it. A check says what you earned and
# what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="continuous-batching-step"
# ## One step of continuous batching under a token budget
#
# *continuous-batching-step · lesson 02 · ●●○ · 35 minutes · 11 points*
#
# An engine works in steps. In **continuous batching** each step is put together anew: who computes how many tokens? You
# write that decision, `plan_step`, and then the real engine serves the real model with it.
#
# A request is an object with three attributes:
#
# - `request_id`, a string;
# - `num_tokens`: how many tokens it has, prompt and output so far;
# - `num_computed_tokens`: how many of those have their keys and values in the cache already.
#
# It **misses** the difference, at least one token. Who misses exactly one *decodes*: the step yields its next token. Who
# misses more reads a prompt. (That is the whole difference; there is no other state.)
#
# `plan_step(running, waiting, token_budget, max_num_seqs)` returns a dictionary: tokens by request id.
#
# 1. All tokens of a step together are at most `token_budget`.
# 2. **Running** requests come first. Among them, those that decode come before those that read; otherwise keep their order.
# 3. Then **waiting** requests, first come, first served, as far as there are seats: at most `max_num_seqs` requests run,
#    those that run already included.
# 4. Each gets all it misses, or what is left of the budget. (A prompt that is cut goes on in the next step: *chunked
#    prefill*.) Who gets nothing is not in the dictionary, and nobody overtakes the first one that gets nothing.
#
# Only plan: change neither lists nor requests.

# %% [markdown]
# **A worked example.** A budget of 64 tokens, four seats.
#
# | | has | computed | misses | gets | why |
# |---|---|---|---|---|---|
# | `b`, running | 41 | 40 | 1 | 1 | decodes: first |
# | `c`, running | 12 | 11 | 1 | 1 | decodes: first |
# | `a`, running | 90 | 48 | 42 | 42 | reads; there is room for all it misses |
# | `d`, waiting | 200 | 0 | 200 | 20 | takes the fourth seat, and what is left |
# | `e`, waiting | 8 | 0 | 8 | – | no seat, no budget |

# %%
from dataclasses import dataclass


@dataclass
class Seat:
    request_id: str
    num_tokens: int
    num_computed_tokens: int


running = [Seat("a", 90, 48), Seat("b", 41, 40), Seat("c", 12, 11)]
waiting = [Seat("d", 200, 0), Seat("e", 8, 0)]

# %% [markdown]
# **Now you.** Handing out (`hand_out`) has one gap; in which order to hand out (`plan_step`) is all yours.


# %% answer="continuous-batching-step"
def hand_out(order, token_budget):
    """Walk along the requests; each takes what it misses, as long as there is budget."""
    plan = {}
    for request in order:
        # [solution]
        tokens = min(request.num_tokens - request.num_computed_tokens, token_budget)
        # [stub]
        # raise NotImplementedError("how many tokens does it get? then take this line out")
        # tokens = ...
        # [end]
        if tokens == 0:
            break
        plan[request.request_id] = tokens
        token_budget -= tokens
    return plan


def plan_step(running, waiting, token_budget, max_num_seqs):
    # [solution]
    decodes = [request for request in running if request.num_tokens - request.num_computed_tokens == 1]
    reads = [request for request in running if request.num_tokens - request.num_computed_tokens > 1]
    free_seats = max(max_num_seqs - len(running), 0)
    return hand_out([*decodes, *reads, *waiting[:free_seats]], token_budget)
    # [stub]
    # raise NotImplementedError("in which order does who get tokens?")
    # [end]


# %%
# [solution]
plan_step(running, waiting, 64, 4)
# [stub]
# # plan_step(running, waiting, 64, 4)
# [end]

# %%
check("continuous-batching-step", plan_step)

# %% [markdown]
# **Your code serves the real model** (optional; takes a few seconds). The lab's engine asks your `plan_step` before every
# step. First a run with the engine's own scheduler, then one with yours; the dashboard shows yours, and the engine's as a
# ghost. What your plan gets wrong is noted, and the engine's rule steps in, so that nobody waits for ever.

# %%
from course.lab.grading.plug_in import OpenLab

lab = OpenLab()
ours = lab.run("burst")
# [solution]
yours = lab.run_with("burst", scheduler_step=plan_step)
lab.beside(ours, yours)
# [stub]
# # yours = lab.run_with("burst", scheduler_step=plan_step)
# # lab.beside(ours, yours)
# [end]
