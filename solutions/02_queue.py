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
# 3. Then **waiting** requests, first come, first served, as far as there are slots: at most `max_num_seqs` requests run,
#    those that run already included.
# 4. Each gets all it misses, or what is left of the budget. (A prompt that is cut goes on in the next step: *chunked
#    prefill*.) A request that gets nothing is not in the dictionary, and none overtakes the first one that gets nothing.
#
# Only plan: change neither lists nor requests.

# %% [markdown]
# **A worked example.** A budget of 64 tokens, four slots.
#
# | | has | computed | misses | gets | why |
# |---|---|---|---|---|---|
# | `b`, running | 41 | 40 | 1 | 1 | decodes: first |
# | `c`, running | 12 | 11 | 1 | 1 | decodes: first |
# | `a`, running | 90 | 48 | 42 | 42 | reads; there is room for all it misses |
# | `d`, waiting | 200 | 0 | 200 | 20 | takes the fourth slot, and what is left |
# | `e`, waiting | 8 | 0 | 8 | – | no slot, no budget |

# %%
from dataclasses import dataclass


@dataclass
class Request:
    request_id: str
    num_tokens: int
    num_computed_tokens: int


running = [Request("a", 90, 48), Request("b", 41, 40), Request("c", 12, 11)]
waiting = [Request("d", 200, 0), Request("e", 8, 0)]

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
    free_slots = max(max_num_seqs - len(running), 0)
    return hand_out([*decodes, *reads, *waiting[:free_slots]], token_budget)
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
# ghost. What your plan gets wrong is noted, and the engine's rule steps in, so that no request waits for ever.

# %%
from course.lab.grading.plug_in import OpenLab

lab = OpenLab(instead_of=globals().get("lab"))
ours = lab.run("burst")
# [solution]
yours = lab.run_with("burst", scheduler_step=plan_step)
lab.beside(ours, yours)
# [stub]
# # yours = lab.run_with("burst", scheduler_step=plan_step)
# # lab.beside(ours, yours)
# [end]

# %% [markdown] exercise="admission-control"
# ## Admission control that meets an SLO
#
# *admission-control · lesson 02 · ●●○ · 35 minutes · 11 points*
#
# More requests come than the server can serve. If all are admitted, the queue grows, and in the end every request waits too
# long. So some are refused at once (HTTP 429: try later), and those who are let in are served well. What counts is
# **goodput**: the requests per second that meet the **SLO** (service level objective), here a TTFT (time to first
# token) of at most `slo_s` seconds.
#
# The model of the server is simple. It has some **slots**. An admitted request waits in one queue, first come, first
# served, for the first slot that is free. There its prompt is prefilled, `prefill_s` seconds a token; then the first token is
# there. Then the answer is decoded, `decode_s` seconds an output token, and the slot is free again. All output lengths
# are known here. At the start all slots are free; times are seconds from the start.
#
# - `predict_ttft(slot_free_at, arrival, prompt_tokens, prefill_s)`: `slot_free_at` lists for each slot when it is free,
#   with all that were let in so far served (perhaps long ago, perhaps in the future). The TTFT of a request that
#   arrives now, from its arrival to its first token.
# - `Admission(slots, slo_s, prefill_s, decode_s)`, a class with one method, `admit(arrival, prompt_tokens, output_tokens)`:
#   called for each request in order of arrival (several may arrive in the same moment). True, and the request is let
#   in, exactly if its TTFT will be at most `slo_s`; else False, and it is gone.
#
# A decision must not take longer the more requests came before.

# %% [markdown]
# **A worked example.** One slot, an SLO of 1 s, 1 ms to prefill a token, 20 ms to decode one.
#
# | arrives | prompt | output | slot free at | waits | TTFT | | slot free again |
# |---|---|---|---|---|---|---|---|
# | 0.0 | 300 | 50 | 0.0 | 0.0 | 0.30 | in | 0.0 + 0.3 + 1.0 = 1.3 |
# | 0.5 | 100 | 20 | 1.3 | 0.8 | 0.90 | in | 1.3 + 0.1 + 0.4 = 1.8 |
# | 0.6 | 50 | 10 | 1.8 | 1.2 | 1.25 | refused | 1.8 |
# | 1.0 | 100 | 10 | 1.8 | 0.8 | 0.90 | in | 1.8 + 0.1 + 0.2 = 2.1 |
# | 5.0 | 100 | 10 | 2.1 | 0.0 | 0.10 | in | 5.0 + 0.1 + 0.2 = 5.3 |
#
# Had the third been let in, it would have been too late, and the fourth, too.

# %% [markdown]
# **Now you.** `predict_ttft` has one gap; the class is all yours.


# %% answer="admission-control"
def predict_ttft(slot_free_at, arrival, prompt_tokens, prefill_s):
    # [solution]
    start = max(min(slot_free_at), arrival)
    # [stub]
    # raise NotImplementedError("when does it get a slot? then take this line out")
    # start = ...
    # [end]
    return start + prompt_tokens * prefill_s - arrival


class Admission:
    def __init__(self, slots, slo_s, prefill_s, decode_s):
        self.slo_s, self.prefill_s, self.decode_s = slo_s, prefill_s, decode_s
        self.slot_free_at = [0.0] * slots

    def admit(self, arrival, prompt_tokens, output_tokens):
        # [solution]
        ttft = predict_ttft(self.slot_free_at, arrival, prompt_tokens, self.prefill_s)
        if ttft > self.slo_s:
            return False
        slot = self.slot_free_at.index(min(self.slot_free_at))
        self.slot_free_at[slot] = arrival + ttft + output_tokens * self.decode_s
        return True
        # [stub]
        # raise NotImplementedError("will it meet the SLO? and if so: which slot does it take, and until when?")
        # [end]


# %% [markdown]
# What is it worth? Two minutes of traffic, somewhat more than the server can do. Once all requests are admitted, once you
# decide.

# %%
import random


def ttfts_of(requests, slots, prefill_s, decode_s):
    """Play them all, first come, first served."""
    free, ttfts = [0.0] * slots, []
    for arrival, prompt, output in requests:
        free.sort()
        first_token = max(free[0], arrival) + prompt * prefill_s
        free[0] = first_token + output * decode_s
        ttfts.append(first_token - arrival)
    return ttfts


rng = random.Random(0)
moments = sorted(rng.uniform(0, 120) for _ in range(300))
requests = [(moment, rng.randint(50, 400), rng.randint(10, 120)) for moment in moments]
server = {"slots": 3, "prefill_s": 0.001, "decode_s": 0.02}
everything = ttfts_of(requests, **server)
print(f"everything: {sum(ttft <= 1 for ttft in everything) / 120:.2f} requests per second with a TTFT of at most 1 s")
# [solution]
door = Admission(slo_s=1.0, **server)
let_in = [request for request in requests if door.admit(*request)]
print(
    f"with a door: {sum(ttft <= 1 for ttft in ttfts_of(let_in, **server)) / 120:.2f}, {len(requests) - len(let_in)} refused"
)
# [stub]
# # door = Admission(slo_s=1.0, **server)
# # let_in = [request for request in requests if door.admit(*request)]
# # print(f"with a door: {sum(ttft <= 1 for ttft in ttfts_of(let_in, **server)) / 120:.2f}")
# [end]

# %%
check("admission-control", predict_ttft, Admission)
