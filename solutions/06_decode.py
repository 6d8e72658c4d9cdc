# %% [markdown]
# # 06 · Exercises: decode and the memory wall
#
# Write your answer where the stub says so, run its cell, then run the check below it. A check says what you earned and
# what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="roofline-knee"
# ## The roofline of a decode step, and its knee
#
# *roofline-knee · lesson 06 · ●●○ · 30 minutes · 12 points*
#
# A decode step computes one new token for each of $B$ requests (the **batch**), each of which has $c$ tokens of **context**. Two
# clocks run side by side, and the longer one is the **floor**, the shortest time the step can take:
#
# - **reading**: all weights once, and every request's own KV cache, `kv_bytes` for each token of its context;
# - **multiplying**: two operations (FLOPs) for every weight and every new token, and `attention_flops` for every token of
#   context of every request.
#
# You get a `model` with `parameters` (how many weights), `weight_bits` (of one weight; 8 bits are a byte), `kv_bytes` and
# `attention_flops`; and a `machine` with `flops_per_s` and `bytes_per_s`. $B \ge 1$, $c \ge 0$. Write
#
# - `step_floor(model, machine, batch, context)`: the floor, in seconds.
# - `intensity(model, batch, context)`: FLOPs per byte of such a step.
# - `knee(model, machine, context)`: the smallest whole $B \ge 1$ at which multiplying takes at least as long as reading;
#   `None` if that happens at no batch, however large.
# - `gain(model, machine, batch, context, bits)`: how many times faster the floor gets when the weights have `bits` instead. KV
#   keeps its bytes, and the multipliers do what they did. The model is not changed.

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
# The multipliers wait. A second request adds its KV to the reading and as much again to the multiplying: one clock hardly
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
    # raise NotImplementedError("both clocks are straight lines over the batch: where do they meet, if they do?")
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
