# %% [markdown]
# # 05 · Exercises: the first token
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="ttft-by-cause"
# ## Whose tokens did the first token wait for?
#
# *ttft-by-cause · lesson 05 · ●●○ · 30 minutes · 11 points*
#
# An engine keeps a record of every **step**: when it began and ended, and how many tokens of which request it computed. From
# these you split one request's TTFT (time to first token) by cause, with nothing left over.
#
# A step is a dictionary:
#
# - `step["start"]`, `step["end"]`: seconds.
# - `step["tokens"]`: request id -> tokens of it that the step computed. A request that isn't in it had none computed.
# - `step["reading"]`: the ids in **prefill** in this step; all others **decode**.
#
# `ttft_by_cause(request_id, arrival, first_token, steps)` gets all steps in order, also those before the request came and
# after its first token. Its **own steps** are those that hold tokens of it and end no later than `first_token`. Return a
# dictionary of seconds:
#
# | key | what |
# |---|---|
# | `"queue"` | from the arrival to the start of its first own step |
# | `"own prefill"` | in its own steps: its tokens' share |
# | `"others' prompts"` | in its own steps: the share of other requests in prefill |
# | `"others' answers"` | in its own steps: the share of other requests that decode |
# | `"between steps"` | everything else until the first token: pauses, steps that it sat out, sampling |
#
# Inside a step every token costs the same: the step's duration over all its tokens. The five sum to
# `first_token - arrival`. Leave the records as they are.

# %% [markdown]
# **A worked example.** One step of 100 ms: 30 tokens of your prompt, 60 of `p`'s, and 10 for `w`, which decodes (it verifies a long draft).

# %%
step = {"start": 2.0, "end": 2.1, "tokens": {"me": 30, "p": 60, "w": 10}, "reading": {"me", "p"}}
each = (step["end"] - step["start"]) / sum(step["tokens"].values())
{"own prefill": 30 * each, "others' prompts": 60 * each, "others' answers": 10 * each}

# %% [markdown]
# **Now you.** `share_out` books one step and has one gap; which steps, and what lies around them, is all yours.


# %% answer="ttft-by-cause"
def share_out(spent, step, request_id):
    """Book one step's seconds under their causes."""
    each = (step["end"] - step["start"]) / sum(step["tokens"].values())
    for who, tokens in step["tokens"].items():
        if who == request_id:
            cause = "own prefill"
        else:
            # [solution]
            cause = "others' prompts" if who in step["reading"] else "others' answers"
            # [stub]
            # raise NotImplementedError("does this neighbour read or write?")
            # [end]
        spent[cause] += tokens * each


def ttft_by_cause(request_id, arrival, first_token, steps):
    spent = {"queue": 0.0, "own prefill": 0.0, "others' prompts": 0.0, "others' answers": 0.0, "between steps": 0.0}
    # [solution]
    own_steps = [step for step in steps if request_id in step["tokens"] and step["end"] <= first_token]
    spent["queue"] = own_steps[0]["start"] - arrival
    for step in own_steps:
        share_out(spent, step, request_id)
    spent["between steps"] = first_token - arrival - sum(spent.values())
    return spent
    # [stub]
    # raise NotImplementedError("find its own steps, share them out, and say what is left")
    # [end]


# %%
check("ttft-by-cause", ttft_by_cause)
