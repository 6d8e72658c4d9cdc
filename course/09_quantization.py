# %% [markdown]
# # 09 · Quantization, by phase
#
# "It's too slow." "Then quantize it." It's the most popular answer there is, and no one in the room has asked which
# of the five phases is slow. Fewer bits per weight means fewer bytes to read. So this lesson asks one question, of one
# kind of traffic after another: **is it waiting for those bytes?**
#
# Each section says where its numbers come from: *measured here* (on two CPU cores in the example run), *measured on an
# H100* with this engine's kernels, *simulated*, *computed*, or *from data sheets*.
#
# You'll be able to say in advance which traffic gains from fewer bits and which loses, compute the best possible
# speedup on the back of an envelope, and set a quality floor before you trust a benchmark.
#
# - **Five minutes** (five): round weights to a grid; one request before and after.
# - **The lab** (five): bytes over bandwidth, by batch; the price, in quality; and which format when.
# - **In the interview** (fifteen): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (twenty): other traffic, 70B, NVFP4, memory as the bottleneck, pruning, the arithmetic.

# %%
from course.lab import matrix_zeros, open_lab, simulated_70b
from course.lab.claims import in_short
from course.lab.display import stack
from course.lab.matrix_rounding import load_matrix
from course.lab.roof import this_machine
from course.lessons.lesson_09 import pictures, run, simulated, words
from course.lessons.lesson_09.check import checks
from course.lessons.lesson_09.run import Shelf
from course.lessons.lesson_09.words import a7, b4, b5, d10

lab = open_lab()
shelf = Shelf(lab, instead_of=globals().get("shelf"))

# %% [markdown]
# ## Five minutes
#
# A model is a few hundred large matrices of **weights**, published in 16 bits each. **Quantization** stores them in
# fewer. Each weight is rounded to the nearest level of a **grid** (the charts draw levels as lines), and what's stored
# is that level's number. With 4 bits there are 16 levels. The lowest level and the distance between levels (the
# **scale**) are stored once per **group** of weights.
#
# Here are real weights of this lab's model. A dot is a weight; the short orange bar is where it ends up. Change the
# bits. Then push the largest weight further out, and watch its neighbours.

# %%
matrix = load_matrix(lab)
pictures.rounding_lab(matrix)

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - One bit less means half as many levels, so the error roughly doubles.
# - One **outlier** stretches its whole group's grid, and all its neighbours are rounded more coarsely. Small groups
#   contain the damage, but each group's scale and offset cost bits.
# - *As it came*, at 4 bits in groups of 32: is the error nearly zero? The course's default checkpoint was rounded to
#   that very grid to shrink the download, then converted back to 16 bits. Benchmark int4 on such a checkpoint, and 4
#   bits seem to cost nothing. Before you believe a quality table, ask what the model had been rounded to already.
#
# </details>
#
# Here's the same model in four other formats. (**KV**, the cached keys and values, can be rounded as well.)

# %%
pictures.formats_table(shelf)  # loads four sets of weights: on a GPU that takes most of a minute

# %% [markdown]
# ### Predict
#
# There are fewer bytes to read, so what gets faster? Take one request with a short question and a long answer, and
# weights in int8 instead of 16 bits.

# %%
bet = lab.predict(
    "alone", "Batch 1, long answer. How many times as fast is decode with int8 weights?", unit="x", between=(0.5, 4)
)
bet

# %%
alone = run.compare(shelf, run.long_answer(lab))
bet.score(run.decode_gain(alone))

# %%
stack(pictures.draw_pairs(alone, "batch 1, long answer", "int8"), words.alone(alone))

# %% [markdown]
# **Quantized weights take less time to read. A phase speeds up only as far as it is bound by weight reads.**

# %% [markdown]
# ## The lab
#
# ### Bytes over bandwidth
#
# *Measured here.* If a step does wait for weights, how much should it save? *Bytes saved, over the machine's peak bytes
# per second.* The rest stays as it was.

# %%
found, roof = run.sweep(shelf), this_machine(lab)
pictures.promises_table(found, roof)

# %% [markdown]
# Where *measured* is longer than *step, if only reading changed*, the kernel used up part of the saving. Where it's
# shorter, the step reads below peak bandwidth. (Your bet was about a whole answer; these are single steps.) In a
# larger batch reading weights is a smaller part of the work, because all requests share one read:

# %%
stack(pictures.draw_speedups(found), words.by_batch(found, roof))

# %% [markdown]
# Curves like these belong to **kernels**, not to formats. *Measured on an H100*, with this engine's own (at the time,
# fp8 used PyTorch's):

# %%
pictures.h100_table()

# %% [markdown]
# At batch 128 our int4 and int8 lose to bf16, although its step still waits for memory, because they unpack the same
# weights again for each block of rows. (A simulated H100 prices bytes, and doesn't show that.) Production kernels push
# that border out; beyond it FP8 leads, because it multiplies in 8 bits.

# %% [markdown]
# ### Faster, but is it still the same model?
#
# *Measured here.* A faster model with worse answers is a cheaper product, not an optimization. So before you believe a
# speedup, write down a **quality floor**, the worst you'll accept. In numbers it's three limits, on a text the model
# didn't write. A worse model raises **perplexity** (how surprised it is by what really comes next) and **KL
# divergence** (how far its next-token probabilities have moved, in nats), so each gets an upper limit. It lowers how
# often both would pick the **same most likely token**, so that gets a lower one.

# %%
scores = run.score_formats(shelf)
pictures.floors_explorer(scores)

# %%
words.quality(scores, matrix.share_on_grid)

# %% [markdown]
# `minillm bench quality` applies the same rule to more tokens. A few hundred tokens expose a broken model, not a
# slightly worse one, so evaluate on your own tasks.
#
# ### Which format when?
#
# Ask what the traffic is bound by, and read the row. WxAy means weights in x bits, multiplied with activations in y.
#
# | format | bound by | what it buys | what it risks | hardware |
# |---|---|---|---|---|
# | **int8 weights** (W8A16) | weight reads: decode at small batch | half the bytes, so at most twice the speed | large batches and prefill, where dequantizing is pure cost | any, with a good kernel |
# | **int4 weights** (W4A16) | the same, or memory | about a quarter of the bytes; the rest is free for KV | the same, and the gain shrinks from a quarter of bf16's batch on; quality, by group size | any, with a good kernel |
# | **FP8** or int8 (**W8A8**) | weight reads or arithmetic: prefill and large batches, too | half the bytes, and products at twice the rate | outliers of activations (scales per token or per block contain them) | FP8 from Ada and Hopper on; int8 from Turing to Hopper (vLLM has none for Blackwell) |
# | **NVFP4** (W4A4) | the same | bytes and time of products nearly halved again | 4-bit activations: calibrate, and test long reasoning | Blackwell on |
# | **KV in 8 bits** | KV reads or KV memory: long contexts, many requests | nearly twice the tokens that fit | quality; no help where weights are what you wait for | any, with an attention kernel for it |
# | **16 bits** | launches, slots, the network | nothing to gain from fewer bits | | any |
#
# Of these, int8, int4 and FP8 weights and int8 KV were measured above. The NVFP4 row comes from data sheets (below).

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "Weight-only quantization helps whatever waits for weight reads: decode at small batch, at most twice as fast with
# > int8. Once you're compute-bound it saves nothing, and dequantizing adds time. FP8 also multiplies faster, so
# > prefill gains too. And I'd set a quality floor first."
#
# **Follow-ups**
#
# <details><summary>"We went to W4A16, and p99 at peak got worse. Why?"</summary>
#
# Probably the batch at peak is past W4A16's knee. It multiplies in 16 bits like bf16 but reads about a quarter of the
# bytes, so it turns compute-bound at about a quarter of bf16's batch, 78 on an H100 by the data sheet. From there its
# step grows with every request, and unpacking comes on top, so it loses before bf16's own knee at 295. I'd run FP8 at
# peak, or more replicas with smaller batches.
#
# </details>
#
# <details><summary>"Can it shorten a queue?"</summary>
#
# If requests wait for others' decode steps or for KV memory, yes: shorter steps serve more, and smaller weights leave
# room for more requests. If they wait for prefill arithmetic, weight-only formats make it worse and FP8 makes it
# better. If slots are all that's missing, raise `max_num_seqs`.
#
# </details>
#
# **"Finance wants us on half the GPUs. Can we quantize?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Yes: int4 is a quarter of the size, so it's about four times as fast." | "FP8 nearly doubles compute-bound throughput and halves weight memory. int4 mostly helps latency at small batch. We'd need an eval first." | "First, what are we bound by at peak? If it's prefill, FP8, measured at our prompt lengths. If it's KV memory, smaller weights make room for more requests, so I'd count those. If it's decode at small batch, W4A16. Then I'd agree a quality floor with the product team before anyone sees a speedup, on our own tasks, long reasoning and tool calls included. And I'd keep the 16-bit fleet until the canary has seen a peak." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>The batch at which fewer bits stop paying.</summary>
#
# 1. $P$ weights of $b$ bits: reading takes $Pb/8M$ seconds at $M$ bytes/s.
# 2. $B$ tokens in the step: multiplying takes $2PB/F$ at $F$ FLOP/s.
# 3. The step takes the longer of the two. They're equal at $B^* = bF/16M$.
# 4. H100 in bf16: 989e12 / 3.35e12 = 295.
# 5. W4A16 reads 4.25 bits and multiplies at the same rate, so 78. FP8 reads half the bytes at twice the FLOP/s: 295
#    again, with both sides half as long.
# 6. Beyond the 16-bit $B^*$, fewer bits save nothing. A real kernel adds its unpacking, so it loses sooner.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# Answers come from your runs, from shapes and from arithmetic.

# %%
check = checks(found, scores)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### Two other kinds of traffic
#
# *Measured here.* Test the rule on steps that do more than read. Take the same int8 model with a **full batch**,
# where many requests share each step (as in lesson 01's service B), and with a **long prompt** and an answer of a few
# tokens.

# %%
others = lab.predict("others", "What happens to E2E there, with int8 weights?", list(run.BOTH.values()))
others

# %%
batch = run.compare(shelf, run.full_batch(lab))
prompt = run.compare(shelf, run.long_prompt(lab))
others.score(run.who_gained(batch, prompt))

# %%
both = pictures.draw_pairs(batch, "a full batch", "int8"), pictures.draw_pairs(prompt, "batch 1, long prompt", "int8")
stack(*both, words.others(batch, prompt, run.share_in_full_batch(lab, found, roof)))

# %% [markdown]
# ### Your own comparison
#
# *Measured here.* Combine five kinds of traffic with four formats. Before you press, ask what the requests wait for,
# and say which bar will move. Each press alternates runs of both formats, so that noise hits both.

# %%
own = pictures.PhasesLab(shelf).show("one slot, a queue", "int8")
own

# %% [markdown]
# | traffic | format | ask yourself |
# |---|---|---|
# | one slot, a queue | int8 | "No model runs in a queue." Does the queue get shorter, and why? |
# | short of KV memory | KV int8 | There are slots for all, and KV memory for four. How many fit now, and which phase shows it? |
# | short of KV memory | int8 | Weights take half the bytes, and the KV pool is the same. What happens to the queue? |
# | batch 1, long answer | int4 | It reads about a third of the bytes, grids included. Does it take a third of the time? |
# | a full batch | int4 g64 | It reads even fewer bytes. Does that still matter? |
#
# <details><summary>Answers</summary>
#
# "Quantization can't help a queue" (claim A2, lesson 02) sounds right, because nothing is computed while a request
# waits. But it waits for other requests' decode, or for the memory they hold. Shorten their decode or make room for
# more of them, and the queue shrinks. With the pool fixed, smaller weights free no KV blocks, so only faster decode
# shortens the queue. int4 reads a third of the bytes but has to unpack them. Past the knee fewer bytes don't matter.
# On two cores that's within the first dozen requests (lesson 06 measures yours), on an H100 in bf16 at some three
# hundred. A kernel can lose before that, as ours do.
#
# </details>

# %% [markdown]
# ### The same at 70B
#
# *Simulated*: Llama-3 70B on four H100s. int8 and int4 weights are dequantized to 16 bits before they're multiplied, as
# in this engine's kernels. fp8 is multiplied as it is, at twice the 16-bit rate.

# %%
simulated.phases_lab()

# %% [markdown]
# <details><summary>Three things to try, answered</summary>
#
# - *Chat, quiet, int8*: decode gains. On the **stack of 2023** it barely moves, because kernel launches set a floor
#   that no format lowers.
# - *Long prompts, busy, int8 against fp8*: prefill is compute-bound. Dequantizing makes it longer and multiplying in
#   8 bits makes it shorter; "quantization helps prefill a little" describes neither.
# - *Overrun*: more requests arrive than 16 bits can serve. fp8 raises capacity the most, so its queue vanishes first.
#
# </details>

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# That error is for 16-bit steps. Other formats are scaled from them by bytes and peak rates, and nothing here checks
# that scaling.
#
# ### NVFP4: four bits, floating point
#
# The stored format decides the memory side of a step, the multiplied format the compute side. **NVFP4** is 4 bits on
# both: each number has a sign, two bits of exponent and one of mantissa, so its magnitudes are 0, ½, 1, 1½, 2, 3, 4
# and 6. Every 16 of them share an FP8 scale, and the tensor has one in FP32. **MXFP4**, gpt-oss's format, has groups
# of 32, and a power of two as scale. The table is *computed* from a row of this lab's model. Push its largest weight
# out, and see how far all the *other* weights move.

# %%
pictures.four_bits_explorer(matrix)

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - As they are, four bits move weights by about a tenth in any of these formats. It takes an outlier to separate the
#   formats.
# - int4's levels are evenly spaced, so one outlier coarsens its whole group. FP4's are dense near zero, and NVFP4's
#   groups are small, so fewer neighbours pay.
# - A power of two wastes up to half of the range: MXFP4 is the coarser of the two, and on Hopper it runs as W4A16,
#   because nothing there multiplies in 4 bits.
# - Activations have worse outliers than weights. NVFP4 rounds those as well (W4A4), so calibrate (PTQ), or train with
#   it (QAT), and test long reasoning.
#
# </details>
#
# *From data sheets*: the weights' part of Llama-3 70B's shortest possible decode step on four GPUs. KV comes on top.

# %%
pictures.formats_explorer()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - At small batch the order is by bytes: W4A16 and NVFP4 first, bf16 last.
# - W4A16 turns upwards first, at about a quarter of bf16's knee, because it multiplies at the same rate and has less
#   to read. At large batch it's no faster than bf16 (and a real kernel is slower, because it unpacks).
# - FP8 halves both sides, so on paper it beats bf16 everywhere. NVFP4 nearly halves them again, on hardware that has
#   it.
#
# </details>

# %% [markdown]
# ### When you're out of memory
#
# *Simulated*: two H100s hold the 16-bit weights and little else, and chats arrive faster than that setup can serve.

# %%
cramped = simulated.cramped()
stack(simulated.cramped_table(cramped), words.cramped(cramped))

# %% [markdown]
# ### Pruning and distillation
#
# <details><summary>Two other ways to a smaller model, with the same gate: limits, your own evals, then speed</summary>
#
# **Pruning** sets small weights to zero. If the zeros can be anywhere, each remaining number needs its position: CSR
# stores a 4-byte column index beside each 2-byte number, so it saves bytes only above two thirds zeros. *2 of every 4*
# needs two bits of position each, and some GPUs multiply exactly that pattern at up to twice the rate. Removing whole
# columns, heads or layers makes a smaller dense model: fast everywhere, and hardest on quality. Claim B5 measures the
# first kind.
#
# **Distillation** trains a smaller model on a larger one's outputs. For latency it's simply another model. Half the
# parameters means about half the bytes and half the FLOPs in every phase, with nothing to unpack. It costs a training
# run, and quality on whatever the training data didn't cover.
#
# </details>

# %% [markdown]
# ### The arithmetic
#
# A step reads $W$ bytes of weights at $M$ bytes/s (what it achieves, not the peak), and takes $t$ in all. Weights go
# from 16 to $b$ bits, with $s$ bits of scales for each group of $g$; dequantizing costs $d$.
#
# $$t' \approx t - \frac{W}{M}\left(1 - \frac{b + s/g}{16}\right) + d, \qquad
# \text{speedup} \le \frac{1}{1 - f + f\,\frac{b + s/g}{16}}, \quad f = \frac{W/M}{t}$$
#
# - $f$ is the share of a step that *waits* for weights, and the bound is Amdahl's law. With $f = 1$, int8 gives at
#   most ×2. Past the batch's knee, reads hide behind multiplying. No step waits for them, so nothing is saved and only
#   $d$ remains.
# - **Rounding error**: with levels $\Delta$ apart, a weight moves by at most $\Delta/2$, and by $\Delta/\sqrt{12}$ in
#   root mean square. $\Delta = (\max - \min) / (2^b - 1)$ over the group.
# - **8-bit KV** halves KV reads, which matter at long contexts and large batches, just where weights no longer do.
#
# Errors *computed* from the same weights:

# %%
pictures.errors_table(matrix)

# %% [markdown]
# **The code.** Rounding takes a few lines (`minillm/kernels/quantization.py`), and the quality gate is one function.

# %%
import inspect

from course.measure.quality import judge
from minillm.kernels.quantization import quantize_int4

print(inspect.getsource(quantize_int4))
print(inspect.getsource(judge))

# %% [markdown]
# It says `if not rise <= limit` rather than `if rise > limit`, so that a model that returns NaN breaks the limits, too.
#
# ### What articles say

# %%
in_short(
    a7(alone, prompt, own.found["one slot, a queue", "int8"], run.slowdown(found, "int8")),
    b4(scores, matrix.share_on_grid),
    b5(matrix_zeros.measure(lab)),
    d10(found, scores, simulated.throughput_gain()),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --quantization fp8
# sglang serve --model-path Qwen/Qwen3-8B --quantization fp8 --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --random-input-len 512 --random-output-len 256 --ignore-eos \
#     --max-concurrency 1 --num-prompts 20
# ```
#
# Run it without the flag, with it, and on a 4-bit checkpoint (`Qwen/Qwen3-8B-AWQ`), at concurrency 1 and at 128. Alone,
# ITL should fall with the bytes, so 4 bits win if the kernel is good. In a large batch FP8 stays ahead, and 4 bits lose
# ground, since those weights are dequantized before they're multiplied. TTFT of long prompts follows the arithmetic:
# FP8 helps, 4 bits don't.
#
# `GPU KV cache size` (`max_total_num_tokens`) grows by the bytes saved. If `vllm:num_requests_waiting` vanishes with
# it, you gained slots, not speed. No metric says whether the answers are as good, so run your evaluation on each.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your kernels.** int8 and int4 are only as fast as the code that unpacks them, and ours are a course's. With
#   Marlin, Machete or TensorRT-LLM, int4 pays off up to a much larger batch. Measure yours at *your* batch, at p99.
# - **Your quality.** Long reasoning, code, rare languages and tool calls tend to break first. Evaluate those, with
#   enough items that chance is smaller than the loss you allow.
# - **Large models.** They often lose less than this small one at the same bit width. And some have channels with huge
#   activations, which W8A8 must handle separately.
# - **Calibration.** Everything here rounds to nearest. GPTQ, AWQ and SmoothQuant do better.
#
# ## Sources
#
# - A7 (and A2, A14): *Serving LLMs: The Latency Anatomy Framework*. B4, B5: *Decomposing LLM Inference Latency for
#   Better Serving Performance*. D10: an article on techniques for lower LLM latency.
# - Dettmers et al., *LLM.int8()*, 2022 (outliers). Frantar et al., *GPTQ*, 2022. Lin et al., *AWQ*, 2023. Xiao et al.,
#   *SmoothQuant*, 2022. Frantar et al., *MARLIN*, 2024 (int4 at larger batches).
# - Mishra et al., *Accelerating Sparse Deep Neural Networks*, 2021 (2:4). H100 and B200: NVIDIA's data sheets.
