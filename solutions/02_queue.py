# %% [markdown]
# # 02 · Exercises: the queue
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="continuous-batching-step"
# ## One step of continuous batching under a token budget
#
# *continuous-batching-step · lesson 02 · ●●○ · 35 minutes · 11 points*
#
# An engine works in steps. With **continuous batching** each step is composed from scratch: which request computes how
# many tokens? You write that decision, `plan_step`, and then the real engine serves the real model with it.
#
# A request is an object with three attributes:
#
# - `request_id`, a string;
# - `num_tokens`: how many tokens it has, prompt and output so far;
# - `num_computed_tokens`: how many of those have their keys and values in the KV cache already.
#
# The difference, at least one token, is still **missing**. A request that's missing exactly one *decodes*: the step
# yields its next token. One that's missing more is in *prefill*. (That's the whole difference; there is no other
# state.)
#
# `plan_step(running, waiting, token_budget, max_num_seqs)` returns a dictionary: tokens by request id.
#
# 1. All tokens of a step together are at most `token_budget`.
# 2. **Running** requests come first. Among them, decodes come before prefills; otherwise keep their order. (vLLM goes
#    through the running list as it is; decodes first is this engine's own rule.)
# 3. Then **waiting** requests, first come, first served, while there are slots: at most `max_num_seqs` requests run,
#    including those already running. If more are running than that, none is admitted.
# 4. Each gets all it's missing, or what is left of the budget. (A prompt that is cut continues in the next step:
#    *chunked prefill*.) A request that gets nothing isn't in the dictionary, and no request overtakes the first that
#    gets nothing.
#
# Only plan: don't change the lists or the requests.

# %% [markdown]
# **A worked example.** A budget of 64 tokens, four slots.
#
# | | has | computed | missing | gets | why |
# |---|---|---|---|---|---|
# | `b`, running | 41 | 40 | 1 | 1 | decodes: first |
# | `c`, running | 12 | 11 | 1 | 1 | decodes: first |
# | `a`, running | 90 | 48 | 42 | 42 | prefill; the budget covers all it's missing |
# | `d`, waiting | 200 | 0 | 200 | 20 | takes the fourth slot and the rest of the budget |
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
# **Now you.** `hand_out` has one gap. `plan_step`, which decides the order, is all yours.


# %% answer="continuous-batching-step"
def hand_out(order, token_budget):
    """Go through the requests in order; each takes what it misses while the budget lasts."""
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
    # raise NotImplementedError("which requests get tokens, and in which order?")
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
# **Your code serves the real model** (optional, a few seconds). The lab's engine calls your `plan_step` before every step.
# The first run uses the engine's own scheduler, the second uses yours; the dashboard shows yours, with the engine's as a
# ghost. Where your plan breaks a rule, that's noted and the engine's rule takes over, so no request waits forever.

# %%
from course.grading.plug_in import OpenLab

lab = OpenLab(instead_of=globals().get("lab"))
ours = lab.run("burst")
# [solution]
yours = lab.run_with("burst", scheduler_step=plan_step)
lab.beside(ours, yours)
# [stub]
# lab.serve_yours(ours, lambda: lab.run_with("burst", scheduler_step=plan_step))
# [end]

# %% [markdown] exercise="admission-control"
# ## Admission control that meets an SLO
#
# *admission-control · lesson 02 · ●●○ · 35 minutes · 11 points*
#
# More requests arrive than the server can handle. If it admits all of them, the queue grows and in the end every request
# waits too long. So it refuses some right away (HTTP 429 here; vLLM and SGLang answer 503) and serves the admitted ones well.
# What counts is **goodput**: requests per second that meet the **SLO** (service level objective), here a TTFT (time to
# first token) of at most `slo_s` seconds.
#
# The server model is simple. It has a number of **slots**. Admitted requests wait in one queue, first come, first served,
# for the first free slot. There the prompt is prefilled at `prefill_s` seconds a token, which yields the first token. Then
# the slot stays busy for `decode_s` seconds for each output token, the first one included, and is free again. Output
# lengths are known in advance here. All slots start out free; times are seconds from the start.
#
# - `predict_ttft(slot_free_at, arrival, prompt_tokens, prefill_s)`: `slot_free_at` says for each slot when it will have
#   finished everything admitted so far (possibly in the past). Return the TTFT of a request that arrives now.
# - `Admission(slots, slo_s, prefill_s, decode_s)`, a class with one method, `admit(arrival, prompt_tokens, output_tokens)`:
#   called for each request in order of arrival (several may arrive at the same moment). Return True, which admits the
#   request, exactly if its TTFT will be at most `slo_s`; otherwise False, and it's gone.
#
# A decision must not get slower as more requests have come before it.

# %% [markdown]
# **A worked example.** One slot, an SLO of 1 s, 1 ms to prefill a token, 20 ms to decode one.
#
# | arrives | prompt | output | slot free at | waits | TTFT | | slot free again |
# |---|---|---|---|---|---|---|---|
# | 0.0 | 300 | 50 | 0.0 | 0.0 | 0.30 | admitted | 0.0 + 0.3 + 1.0 = 1.3 |
# | 0.5 | 100 | 20 | 1.3 | 0.8 | 0.90 | admitted | 1.3 + 0.1 + 0.4 = 1.8 |
# | 0.6 | 50 | 10 | 1.8 | 1.2 | 1.25 | refused | 1.8 |
# | 1.0 | 100 | 10 | 1.8 | 0.8 | 0.90 | admitted | 1.8 + 0.1 + 0.2 = 2.1 |
# | 5.0 | 100 | 10 | 2.1 | 0.0 | 0.10 | admitted | 5.0 + 0.1 + 0.2 = 5.3 |
#
# Had the third been admitted, it would have missed the SLO, and so would the fourth.

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
        # raise NotImplementedError("will it meet the SLO? If so, which slot does it take, and until when?")
        # [end]


# %% [markdown]
# What is it worth? Two minutes of traffic, somewhat more than the server can handle: first with every request admitted,
# then with your decisions.

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
limiter = Admission(slo_s=1.0, **server)
admitted = [request for request in requests if limiter.admit(*request)]
print(
    f"with admission control: {sum(ttft <= 1 for ttft in ttfts_of(admitted, **server)) / 120:.2f}, {len(requests) - len(admitted)} refused"
)
# [stub]
# # limiter = Admission(slo_s=1.0, **server)
# # admitted = [request for request in requests if limiter.admit(*request)]
# # print(f"with admission control: {sum(ttft <= 1 for ttft in ttfts_of(admitted, **server)) / 120:.2f}")
# [end]

# %%
check("admission-control", predict_ttft, Admission)
