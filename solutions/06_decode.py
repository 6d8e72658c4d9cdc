# %% [markdown]
# # 06 · Exercises: decode and the memory wall
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="roofline-knee"
# ## The roofline of a decode step, and its knee
#
# *roofline-knee · lesson 06 · ●●○ · 30 minutes · 12 points*
#
# A decode step computes one new token for each of $B$ requests (the **batch**), each with $c$ tokens of **context**. Memory and
# compute work side by side, and the slower of the two sets the **floor**, the shortest time the step can take:
#
# - **reading**: all weights once (the model is dense), and each request's own KV cache, `kv_bytes` per token of context;
# - **multiplying**: two operations (FLOPs) per weight and new token, and `attention_flops` per token of context of each
#   request.
#
# You get a `model` with `parameters` (how many weights), `weight_bits` (of one weight; 8 bits are a byte), `kv_bytes` and
# `attention_flops`; and a `machine` with `flops_per_s` and `bytes_per_s`. $B \ge 1$, $c \ge 0$. Write
#
# - `step_floor(model, machine, batch, context)`: the floor, in seconds.
# - `intensity(model, batch, context)`: FLOPs per byte of such a step.
# - `knee(model, machine, context)`: the smallest whole $B \ge 1$ at which multiplying takes at least as long as reading;
#   `None` if that happens at no batch, however large.
# - `gain(model, machine, batch, context, bits)`: how many times faster the floor gets when the weights have `bits` instead. KV
#   and arithmetic stay as they were. Don't change the model.

# %% [markdown]
# **A worked example.** 8 billion weights of 16 bits, 131 072 bytes of KV a token, on a machine with 1000 TFLOP/s and 3.3 TB/s. One
# request with 2000 tokens of context:

# %%
parameters, kv_bytes, context = 8e9, 131_072, 2000
read_bytes = parameters * 16 / 8 + 1 * context * kv_bytes
flops = 1 * (2 * parameters + context * 524_288)  # attention_flops: 4 x 32 layers x 4096 numbers in a query
print(f"reading {read_bytes / 3.3e12 * 1000:.2f} ms, multiplying {flops / 1000e12 * 1000:.3f} ms")
print(f"{flops / read_bytes:.2f} FLOPs per byte; this machine could do {1000e12 / 3.3e12:.0f} while it reads one")

# %% [markdown]
# The compute units sit idle. A second request adds only its KV to the reading but doubles the multiplying: one time hardly
# moves, the other doubles. Where they meet is the knee.
#
# **Now you.** `step_floor` has one gap.


# %% answer="roofline-knee"
import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """To try your functions with; the checker brings its own."""

    parameters: float
    weight_bits: float
    kv_bytes: float
    attention_flops: float


@dataclass(frozen=True)
class Machine:
    flops_per_s: float
    bytes_per_s: float


def step_bytes(model, batch, context):
    # [solution]
    return model.parameters * model.weight_bits / 8 + batch * context * model.kv_bytes
    # [stub]
    # raise NotImplementedError("all that a step reads, in bytes")
    # [end]


def step_flops(model, batch, context):
    return batch * (2 * model.parameters + context * model.attention_flops)


def step_floor(model, machine, batch, context):
    reading = step_bytes(model, batch, context) / machine.bytes_per_s
    multiplying = step_flops(model, batch, context) / machine.flops_per_s
    return max(reading, multiplying)


def intensity(model, batch, context):
    # [solution]
    return step_flops(model, batch, context) / step_bytes(model, batch, context)
    # [stub]
    # raise NotImplementedError("FLOPs per byte")
    # [end]


def knee(model, machine, context):
    # [solution]
    read_weights = step_bytes(model, 0, context) / machine.bytes_per_s
    read_kv = context * model.kv_bytes / machine.bytes_per_s
    multiply = step_flops(model, 1, context) / machine.flops_per_s
    if multiply <= read_kv:
        return None
    return max(math.ceil(read_weights / (multiply - read_kv)), 1)
    # [stub]
    # raise NotImplementedError("both times are straight lines over the batch: where do they meet, if they do?")
    # [end]


def gain(model, machine, batch, context, bits):
    # [solution]
    fewer = replace(model, weight_bits=bits)
    return step_floor(model, machine, batch, context) / step_floor(fewer, machine, batch, context)
    # [stub]
    # raise NotImplementedError("the floor before, over the floor after")
    # [end]


# %%
check("roofline-knee", step_floor, intensity, knee, gain)

# %% [markdown] exercise="paged-attention"
# ## Causal attention over a paged cache
#
# *paged-attention · lesson 06 · ●●● · 45 minutes · 14 points*
#
# The KV cache is cut into **blocks** of `block_size` **slots**; a slot holds one token's key and value. A request's **block
# table** lists its blocks in text order, so the token at position $p$ is in block `table[p // block_size]`, slot
# `p % block_size`. A step computes some **new tokens** of each request: one if it's decoding, several if it's prefilling (a
# chunk of) its prompt. They are the last tokens of its context, and their own keys and values are already in the cache.
#
# With NumPy:
#
# - `gather(cache, block_table, context_len)`: the first `context_len` tokens of one request, in order. `cache` is
#   [num_blocks, block_size, n_kv_heads, d]; return [context_len, n_kv_heads, d].
# - `paged_attention(query, key_cache, value_cache, block_tables, context_lens, query_lens)`, which returns [T, n_heads, d]:
#   - `query` [T, n_heads, d]: the new tokens of all requests, concatenated; `query_lens` [B] says how many each
#     request has (at least 1);
#   - `key_cache`, `value_cache`: as `cache` above;
#   - `block_tables` [B, max_blocks]: entries beyond the blocks a request needs are padding and mean nothing;
#   - `context_lens` [B]: how many tokens each request has, **new ones included**.
#
# Each new token's output is $\text{softmax}(q \cdot k / \sqrt{d})\,v$ over the keys up to and including its own position
# (**causal**). With fewer key heads than query heads (**grouped-query attention**), neighbours share: with 6 query heads and 2
# key heads, query heads 0, 1, 2 read the first, and 3, 4, 5 the second.
#
# Slots that were never written hold garbage: another request's old numbers, or even NaN, and $0 \times$ NaN is NaN. Scores may be
# in the hundreds. Don't modify your arguments.

# %% [markdown]
# **A worked example.** Blocks of 2, a table of 5, 0, 3, and 5 tokens: position 4 is in block 3, slot 0; slot 1 is unwritten.

# %%
import numpy as np

cache = np.full((6, 2, 1, 1), np.nan)  # 6 blocks of 2 slots; one head, d = 1
for position, block in enumerate([5, 5, 0, 0, 3]):
    cache[block, position % 2] = 10 * position
print(cache[:, :, 0, 0])
print("its blocks, end to end:", cache[[5, 0, 3]].reshape(-1))

# %% [markdown]
# If 2 of the 5 tokens are new, they have positions 3 and 4: the first sees 4 keys, the second 5.
#
# **Now you.** `gather` has one gap; `paged_attention` is all yours. Looping over the requests is fine.


# %% answer="paged-attention"
import numpy as np


def gather(cache, block_table, context_len):
    block_size = cache.shape[1]
    num_blocks = -(-context_len // block_size)
    # [solution]
    pages = cache[block_table[:num_blocks]]
    return pages.reshape(num_blocks * block_size, *cache.shape[2:])[:context_len]
    # [stub]
    # raise NotImplementedError("these blocks, end to end, as far as the context goes")
    # [end]


def paged_attention(query, key_cache, value_cache, block_tables, context_lens, query_lens):
    # [solution]
    group = query.shape[1] // key_cache.shape[2]
    output, end = np.empty_like(query), 0
    for table, context, new in zip(block_tables, context_lens, query_lens):
        begin, end = end, end + new
        keys, values = (np.repeat(gather(cache, table, context), group, axis=1) for cache in (key_cache, value_cache))
        scores = np.einsum("qhd,khd->hqk", query[begin:end], keys) / np.sqrt(query.shape[2])
        positions = np.arange(context)
        scores[:, positions[context - new :, None] < positions] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        output[begin:end] = np.einsum("hqk,khd->qhd", weights, values)
    return output
    # [stub]
    # raise NotImplementedError("request by request: its keys and values, its scores, who sees what, softmax")
    # [end]


# %%
check("paged-attention", gather, paged_attention)

# %% [markdown]
# **Your code serves the real model** (optional; takes some seconds). Every layer of every step calls your function: first with the
# whole question as new tokens, then with one token per step. The dashboard shows that run, with the engine's own attention as the
# baseline. The tokens should be the same; where two are almost equally likely, rounding may decide.

# %%
from course.grading.plug_in import OpenLab
from course.lab.workloads import LabWorkload, PromptArrival

lab = OpenLab(instead_of=globals().get("lab"))
one_question = LabWorkload(
    "one question", "a short question, a short answer", (PromptArrival(0.0, "Why is the sky blue?", 8),)
)
ours = lab.run(one_question)
# [solution]
yours = lab.run_with(one_question, attention=paged_attention)
lab.beside(ours, yours)
# [stub]
# lab.serve_yours(ours, lambda: lab.run_with(one_question, attention=paged_attention))
# [end]

# %% [markdown] exercise="expert-routing"
# ## Top-k expert routing
#
# *expert-routing · lesson 06 · ●●○ · 35 minutes · 13 points*
#
# In a **mixture of experts** (MoE) a layer has $E$ small MLPs, the **experts**. A **router** gives each token a logit for each
# expert; the token goes to the $k$ experts with the largest ones. Each of them weighs in with its **share**: the softmax of the
# logits, over *all* $E$ experts. Some models then divide a token's $k$ shares by their sum, so that they sum to 1 (`normalize`),
# others don't.
#
# With NumPy:
#
# - `route(logits, k, normalize)`: for `logits` [T, E], the pair (experts, shares), both [T, k]. Each token's experts come with
#   the largest share first; of equal logits, the lower expert number comes first. Logits may be in the hundreds.
# - `rows_of(experts, num_experts)`: which rows each expert gets. `experts` [T, k], as from `route`, or a list of lists. Return a list of
#   `num_experts` lists: the numbers of the tokens that chose this expert, in increasing order; empty for an idle expert.
# - `mixture(x, logits, k, mlps, normalize)`: the layer's output, [T, h], for `x` [T, h]. `mlps` is a list of $E$ functions, each from
#   rows [n, h] to rows [n, h]. A token's output is the sum of its experts' outputs, each times its share.
#
# Reading an expert's weights is what costs, so `mixture` calls each expert that has rows **once**, with all of them together, and
# an idle expert not at all. Don't modify your arguments.

# %% [markdown]
# **A worked example.** One token, four experts, k = 2: what the softmax says, and what it becomes when normalized.

# %%
import numpy as np

logits = np.array([2.0, 0.5, 1.5, -1.0])
weights = np.exp(logits - logits.max())
probabilities = weights / weights.sum()
print("over all experts:", probabilities.round(3), "so it goes to 0 and 2")
print("normalized:      ", (probabilities[[0, 2]] / probabilities[[0, 2]].sum()).round(3))

# %% [markdown]
# **Now you.** `route` has one gap; the other two are all yours.


# %% answer="expert-routing"
import numpy as np


def route(logits, k, normalize):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    # [solution]
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    # [stub]
    # raise NotImplementedError("the k largest of each row, largest first; then take this line out")
    # experts = ...
    # [end]
    shares = np.take_along_axis(probabilities, experts, axis=1)
    # [solution]
    if normalize:
        shares = shares / shares.sum(axis=1, keepdims=True)
    # [stub]
    # [end]
    return experts, shares


def rows_of(experts, num_experts):
    # [solution]
    rows = [[] for _ in range(num_experts)]
    for token, chosen in enumerate(experts):
        for expert in chosen:
            rows[expert].append(token)
    return rows
    # [stub]
    # raise NotImplementedError("which tokens chose each expert?")
    # [end]


def mixture(x, logits, k, mlps, normalize):
    # [solution]
    experts, shares = route(logits, k, normalize)
    output = np.zeros_like(x)
    for expert, rows in enumerate(rows_of(experts, len(mlps))):
        if rows:
            share = shares[rows][experts[rows] == expert]
            output[rows] += share[:, None] * mlps[expert](x[rows])
    return output
    # [stub]
    # raise NotImplementedError("expert by expert: its rows, its output, each token's share of it")
    # [end]


# %%
check("expert-routing", route, rows_of, mixture)

# %% [markdown]
# **Your code serves a real model** (optional; takes some seconds): a small mixture of experts with random weights, 8 of 128 experts in each
# layer. Every layer of every step asks your `route`. The tokens should be those of the engine's own router.

# %%
from course.grading.plug_in import OpenLab
from course.lessons.lesson_06b.run import small_moe

moe = OpenLab(short=True, model=str(small_moe(lab)), load_format="dummy", dtype="float32")
ours = moe.run(one_question)
# [solution]
yours = moe.run_with(one_question, router=route)
moe.beside(ours, yours)
# [stub]
# moe.serve_yours(ours, lambda: moe.run_with(one_question, router=route))
# [end]
