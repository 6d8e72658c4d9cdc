# %% [markdown]
# # 05 · Exercises: the first token
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

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
# - `step["fixed_s"]`: seconds of it that it takes whatever is in it: the weights are read once for all tokens.
# - `step["tokens"]`: request id -> tokens of it that the step computed. A request that isn't in it had none computed.
# - `step["reading"]`: the ids in **prefill** in this step; all others **decode**.
#
# `ttft_by_cause(request_id, arrival, first_token, steps)` gets all steps in order, including those before the request
# came and after its first token. Its **own steps** are those that hold tokens of it and end no later than
# `first_token`. Return a dictionary of seconds:
#
# | key | what |
# |---|---|
# | `"queue"` | from the arrival to the start of its first own step |
# | `"own prefill"` | in its own steps: what its tokens added |
# | `"others' prompts"` | in its own steps: what the tokens of other requests in prefill added |
# | `"others' answers"` | in its own steps: what the tokens of requests that decode added |
# | `"fixed cost"` | in its own steps: `fixed_s` |
# | `"between steps"` | everything else until the first token: pauses, steps that it sat out, sampling |
#
# Inside a step every token adds the same: the step's duration without `fixed_s`, over all its tokens. The six sum to
# `first_token - arrival`. Leave the records as they are. (A real engine measures a step's duration only. What it takes
# whatever is in it has to be estimated: lesson 05's deep dive.)

# %% [markdown]
# **A worked example.** One step of 120 ms, of which 20 are fixed: 30 tokens of your prompt, 60 of `p`'s, and 10 for `w`, which decodes (it
# verifies a long draft).

# %%
step = {"start": 2.0, "end": 2.12, "fixed_s": 0.02, "tokens": {"me": 30, "p": 60, "w": 10}, "reading": {"me", "p"}}
each = (step["end"] - step["start"] - step["fixed_s"]) / sum(step["tokens"].values())
{"own prefill": 30 * each, "others' prompts": 60 * each, "others' answers": 10 * each, "fixed cost": step["fixed_s"]}

# %% [markdown]
# **Now you.** `share_out` books one step and has one gap; which steps count, and what lies between them, is all yours.


# %% answer="ttft-by-cause"
def share_out(spent, step, request_id):
    """Book one step's seconds under their causes."""
    spent["fixed cost"] += step["fixed_s"]
    each = (step["end"] - step["start"] - step["fixed_s"]) / sum(step["tokens"].values())
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
    spent = dict.fromkeys(
        ["queue", "own prefill", "others' prompts", "others' answers", "fixed cost", "between steps"], 0.0
    )
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

# %% [markdown] exercise="mixed-or-apart"
# ## A mixed step's budget, or a transfer
#
# *mixed-or-apart · lesson 05 · ●●○ · 35 minutes · 13 points*
#
# A prompt arrives at a machine that is decoding. Either its prefill shares **mixed steps** with the decodes, in chunks small enough that
# the ITL (the time between two tokens) stays within its limit; or it runs **apart**, on a machine of its own, and its KV is sent over
# (*disaggregation*). Which first token comes sooner?
#
# A `step` is a dictionary: a step of `n` tokens takes `fixed_s + n * per_token_s` seconds, and has at most `max_tokens` tokens. Each decode is
# one token of it. Write
#
# - `largest_chunk(step, decodes, itl_s)`: the most prompt tokens that fit into a step beside `decodes` decodes, so that the step takes
#   at most `itl_s` (exactly `itl_s` is within). 0 if none do.
# - `mixed_ttft(step, decodes, prompt, itl_s)`: seconds until the last of `prompt` prompt tokens is computed, if every step takes the
#   largest chunk, and the last one what is left. The decodes go on all the while. `None` if the largest chunk is 0.
# - `kv_arrival(layer_ready, layer_s, latency_s)`: the moment at which all KV has arrived. `layer_ready` lists the moments at which the layers'
#   KV is computed, in order. The link sends one layer at a time, in order, each as soon as it's ready and the link is free; sending one takes
#   `layer_s`. The last byte arrives `latency_s` after it was sent.
# - `plan(step, decodes, prompt, itl_s, prefill, link)`: a dictionary with `"mixed"`, as `mixed_ttft` says, `"apart"`, and `"better"`: the
#   name of the sooner one (`"mixed"` if both take equally long; `"apart"` if `"mixed"` is `None`). Apart, the prefill takes
#   `prefill["fixed_s"] + prompt * prefill["per_token_s"]`, and its `prefill["layers"]` layers are ready evenly over that time, the last one at
#   its end. A layer of the prompt has `link["kv_bytes"]` bytes **per token**; the link sends `link["bytes_per_s"]` and has `link["latency_s"]`.
#   The first token is there once all KV has arrived.
#
# Don't change the dictionaries or the list.

# %% [markdown]
# **A worked example.** A step takes 10 ms and 0.1 ms a token; 20 requests decode, and the ITL may be 30 ms.

# %%
step = {"fixed_s": 0.010, "per_token_s": 0.0001, "max_tokens": 2048}
print("tokens in 30 ms:", round((0.030 - 0.010) / 0.0001), "of which 20 are the decodes': chunks of 180")
print("400 tokens: 180, 180 and 40, in 30 + 30 + 16 ms")
print(
    "Apart, 4 layers ready at 4, 8, 12, 16 ms, 6 ms to send each: sent at 10, 16, 22, 28 ms. The link is the bottleneck"
)

# %% [markdown]
# **Now you.** `largest_chunk` has one gap; the others are all yours.


# %% answer="mixed-or-apart"
def step_seconds(step, tokens):
    return step["fixed_s"] + tokens * step["per_token_s"]


def largest_chunk(step, decodes, itl_s):
    # [solution]
    spare = itl_s - step["fixed_s"] + 1e-9  # a nanosecond, so that rounding doesn't make 199 of 200 tokens
    tokens = min(int(spare // step["per_token_s"]), step["max_tokens"])
    # [stub]
    # raise NotImplementedError("how many tokens may the step have in all? then take this line out")
    # tokens = ...
    # [end]
    return max(tokens - decodes, 0)


def mixed_ttft(step, decodes, prompt, itl_s):
    # [solution]
    chunk = largest_chunk(step, decodes, itl_s)
    if chunk == 0:
        return None
    full, rest = divmod(prompt, chunk)
    last = step_seconds(step, decodes + rest) if rest else 0.0
    return full * step_seconds(step, decodes + chunk) + last
    # [stub]
    # raise NotImplementedError("how many full steps, and how long is the last one?")
    # [end]


def kv_arrival(layer_ready, layer_s, latency_s):
    # [solution]
    sent = 0.0
    for ready in layer_ready:
        sent = max(sent, ready) + layer_s
    return sent + latency_s
    # [stub]
    # raise NotImplementedError("layer by layer: when does its sending begin?")
    # [end]


def plan(step, decodes, prompt, itl_s, prefill, link):
    # [solution]
    mixed = mixed_ttft(step, decodes, prompt, itl_s)
    done, layers = step_seconds(prefill, prompt), prefill["layers"]
    ready = [done * (i + 1) / layers for i in range(layers)]
    apart = kv_arrival(ready, prompt * link["kv_bytes"] / link["bytes_per_s"], link["latency_s"])
    better = "mixed" if mixed is not None and mixed <= apart else "apart"
    return {"mixed": mixed, "apart": apart, "better": better}
    # [stub]
    # raise NotImplementedError("both first tokens, and the sooner one")
    # [end]


# %%
check("mixed-or-apart", largest_chunk, mixed_ttft, kv_arrival, plan)

# %% [markdown]
# **Your budget on the real engine** (optional; takes a few seconds). The first run computes each prompt in one step; the second cuts prompts
# into chunks of your size, for a step that costs about what a small CPU's does. Look at the gaps of the requests that decode meanwhile.

# %%
from course.grading.plug_in import OpenLab

lab = OpenLab(instead_of=globals().get("lab"))
ours = lab.run("burst", max_num_batched_tokens=2048)
# [solution]
cpu = {"fixed_s": 0.03, "per_token_s": 0.001, "max_tokens": 2048}
yours = lab.run("burst", max_num_batched_tokens=4 + largest_chunk(cpu, 4, 0.1))
lab.beside(ours, yours)
# [stub]
# # yours = lab.run("burst", max_num_batched_tokens=4 + largest_chunk(..., 4, 0.1))
# # lab.beside(ours, yours)
# [end]

# %% [markdown] exercise="grammar-mask"
# ## A grammar mask
#
# *grammar-mask · lesson 05 · ●●○ · 40 minutes · 14 points*
#
# **Structured output**: before each token is sampled, a mask rules out every token that the grammar doesn't allow. Here a
# grammar is an automaton over characters, a dictionary:
#
# - `grammar["start"]`: the state it begins in. A state is a string.
# - `grammar["final"]`: the set of states in which the text may end.
# - `grammar["next"]`: state -> character -> state. A character that isn't there can't come; a state that isn't there has no
#   transitions.
#
# But a model samples **tokens**, of several characters each. `vocabulary` is a list of their texts; `eos` is the number of the token
# that ends the answer, whatever text it has in the list. Write
#
# - `follow(grammar, state, text)`: the state after all characters of `text` (for the empty text, `state` itself), or `None` if one of them
#   can't come.
# - `Matcher(grammar, vocabulary, eos)`, a class that follows one answer:
#   - `allowed()`: the mask in the present state, a list (or array) of `True` and `False`, one for each token. A token may come if all its
#     characters can be followed and it doesn't end in a **dead end**, a state from which no final state can be reached (a final
#     state reaches itself). A token without characters never may. `eos` may come in a final state only.
#   - `accept(token)`: this token was sampled; move on. `ValueError` if the mask rules it out; then nothing changes. After
#     `eos`, nothing is allowed any more.
#
# A mask costs time in every step, and the same states come again and again: compute each state's mask **once** per matcher. A caller
# may change the list it gets. Don't change the grammar or the vocabulary.

# %% [markdown]
# **A worked example.** A grammar for one or more `a`, then `b`, or `x` into a trap:

# %%
ab = {
    "start": "s",
    "final": {"end"},
    "next": {"s": {"a": "more", "x": "trap"}, "more": {"a": "more", "b": "end"}, "trap": {"x": "trap"}},
}
words = ["a", "b", "aab", "ba", "x", "", "</s>"]  # the last one is eos
print("at the start: 'a' and 'aab'. 'b' and 'ba' can't be followed, 'x' is a dead end, '' gets nowhere")
print("after 'a':    'a', 'b', 'aab'. After 'aab': only the end")

# %% [markdown]
# **Now you.** `follow` has one gap; `Matcher` is all yours.


# %% answer="grammar-mask"
def follow(grammar, state, text):
    for character in text:
        # [solution]
        state = grammar["next"].get(state, {}).get(character)
        # [stub]
        # raise NotImplementedError("which state comes after this character? None if there is none")
        # [end]
        if state is None:
            return None
    return state


class Matcher:
    def __init__(self, grammar, vocabulary, eos):
        # [solution]
        self.grammar, self.vocabulary, self.eos = grammar, list(vocabulary), eos
        self.state = grammar["start"]
        self.masks = {None: [False] * len(self.vocabulary)}
        self.alive = set(grammar["final"])
        while more := {
            state
            for state, arrows in grammar["next"].items()
            if state not in self.alive and self.alive & set(arrows.values())
        }:
            self.alive |= more
        # [stub]
        # raise NotImplementedError("what does it need to know, and which states are dead ends?")
        # [end]

    def allowed(self):
        # [solution]
        if self.state not in self.masks:
            self.masks[self.state] = [self.may_come(token) for token in range(len(self.vocabulary))]
        return list(self.masks[self.state])
        # [stub]
        # raise NotImplementedError("the mask of this state, computed once")
        # [end]

    def accept(self, token):
        # [solution]
        if not self.allowed()[token]:
            raise ValueError(f"token {token} is ruled out")
        self.state = None if token == self.eos else follow(self.grammar, self.state, self.vocabulary[token])
        # [stub]
        # raise NotImplementedError("move on, if the mask allows it")
        # [end]

    # [solution]
    def may_come(self, token):
        if token == self.eos:
            return self.state in self.grammar["final"]
        text = self.vocabulary[token]
        return bool(text) and follow(self.grammar, self.state, text) in self.alive

    # [stub]
    # [end]


# %%
check("grammar-mask", follow, Matcher)

# %% [markdown]
# **Your code masks the real model** (optional; takes some seconds). The lab's engine asks a `Matcher` of yours before every token it
# samples, over its whole vocabulary of 49,152 tokens. The grammar: "yes" or "no", a reason of letters and spaces, and a full stop.

# %%
from course.grading.plug_in import OpenLab
from course.lab.workloads import LabWorkload, PromptArrival

letters = dict.fromkeys("abcdefghijklmnopqrstuvwxyz ", "why")
verdict = {
    "start": "s",
    "final": {"end"},
    "next": {
        **{"s": {"y": "y", "n": "n"}, "y": {"e": "ye"}, "ye": {"s": "said"}, "n": {"o": "said"}, "said": {",": "why"}},
        "why": {**letters, ".": "end"},
    },
}
lab = OpenLab(instead_of=globals().get("lab"))
question = LabWorkload(
    "one question", "a short question, a short answer", (PromptArrival(0.0, "Is the sky blue?", 16),)
)
ours = lab.run(question)
# [solution]
yours = lab.run_with(question, grammar=verdict, matcher=Matcher)
print(yours.outputs[0].text)
# [stub]
# # yours = lab.run_with(question, grammar=verdict, matcher=Matcher)
# # print(yours.outputs[0].text)
# [end]
