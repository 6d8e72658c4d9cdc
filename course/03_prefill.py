# %% [markdown]
# # 03 · Prefill: what does a prompt cost?
#
# Someone pastes a document four times as long as usual. Does the first token take four times as long? Sixteen times?
# And which other requests slow down?
#
# By the end you'll be able to tell from any model's shape how the cost of a prompt grows, estimate a TTFT on the back
# of an envelope, and derive a chunk size on a whiteboard.
#
# - **Five minutes** (five): a prompt four times as long, and a bet.
# - **The lab** (five): linear against quadratic, the envelope, and chunks at 70B.
# - **In the interview** (fifteen): the line, follow-ups, three numbers, a derivation, and a check.
# - **Going deeper** (fifteen, optional): chunks on your machine (with a bet), fused attention, the formulas, the
#   code.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.display import stack
from course.lessons.lesson_03 import pictures, run, simulated, words
from course.lessons.lesson_03.check import checks
from course.lessons.lesson_03.pictures import draw_ladder, draw_saving, draw_time_and_memory
from course.lessons.lesson_03.run import Ladder, both_ways, four_times
from course.lessons.lesson_03.words import a3, big_savings, d7, d11, d17, d18, f4, halved_4k

lab = open_lab()
shape, name = run.lab_shape(lab), run.short_name(lab)
bend = run.bend(lab)  # how fast this machine reads, and multiplies
reading_s = run.reading_s(lab, bend)  # its weights, once

# %% [markdown]
# ## Five minutes
#
# Before a model can generate, it has to process the whole prompt: **prefill**. Two things happen to every token, in
# every layer:
#
# 1. It's multiplied by the layer's **matrices**, the weights. That costs the same for every token.
# 2. It **attends** to itself and all tokens before it. It's compared with each of them, and takes in more from the
#    ones that matter to it. The hundredth token attends to a hundred tokens, the thousandth to a thousand.
#
# A prompt's tokens are all known from the start, so they're computed in parallel. Think of attention as a table with
# a row per token, and in each row a cell for every token it attends to. That makes a triangle, since no token looks
# ahead. With twice the tokens it has four times the cells. So the first kind of work grows in proportion to the
# prompt, the second with its square. You'll often hear that prefill is "O(n²)", so a prompt four times as long takes
# sixteen times as long.
#
# ### Predict
#
# The run below sends prompts of several lengths, one at a time, in three rounds, and keeps the fastest of each (a
# disturbance can only slow a run down). Nothing is shared or cached. On a CPU this lesson runs in **32 bits**, so
# that both kinds of attention below are compared in the same number format. A step therefore takes longer here than
# in lesson 00.

# %%
longest = run.prompt_lengths(lab)[-1]
question = f"A prompt of {longest // 4} tokens, then one of {longest}: TTFT grows by what factor?"
bet = lab.predict("four", question, unit="x", between=(1, 20))
bet

# %%
climb = lab.run(run.ladder(lab), **run.fields_for(lab, longest))
ladder = Ladder.of(climb)
bet.score(four_times(ladder))

# %%
stack(draw_ladder(ladder), words.ladder(ladder, reading_s, shape))

# %% [markdown]
# Both axes are logarithmic, so linear and quadratic growth are both straight lines, the second twice as steep. **A
# prompt's cost has a fixed part, a linear term and a quadratic term. Its length decides which of them you notice.**
#
# ## The lab
#
# ### When does the quadratic term win?
#
# This time, count instead of measuring. A **FLOP** is one floating-point operation. Each weight in the matrices costs
# two FLOPs per token (a multiplication and an addition). Each pair of tokens costs four FLOPs per number in a head's
# vector, in every head of every layer. (**Heads** are separate attentions that run in parallel.) Compare the model on
# this machine with one of another size, which has 70 billion weights unless yours does.

# %%
pictures.flops_explorer(lab)

# %% [markdown]
# Most prompts are too short for the quadratic term to matter, and in a larger model it matters *later*, because
# matrices grow with the square of the width, attention only with the width. So a rule of thumb from a small model
# overstates attention for a large one.
#
# ### TTFT on the back of an envelope
#
# So a prompt of $n$ tokens takes about $2 P n$ FLOPs, where $P$ is the number of weights (in a mixture of experts,
# only those that each token uses). On an idle server its TTFT is that, divided by what the GPUs deliver: their number
# × the data sheet's FLOP/s (989 TFLOP/s in 16 bits for an H100) × the share of it that prefill reaches (**MFU**,
# model FLOPs utilization, typically 40 to 60%).

# %%
pictures.envelope_explorer()

# %% [markdown]
# ### Chunks
#
# If one step computes all of a long prompt, requests that are decoding get no token until it ends. **Chunked
# prefill** caps how many of its tokens a step computes, and each of those steps also gives every decoding request its
# next token. Here's that trade-off for Llama-3.1 70B on four H100s, simulated, with sixteen chats and then one long
# prompt. The dashed line is the time it takes just to read all the weights once per step. No chunked prefill can be
# faster.

# %%
pictures.explore_70b()

# %%
simulated_70b.error_band(simulated.deployment())

# %% [markdown]
# Read it from right to left. At first, halving the chunk halves the others' longest gap and costs the long prompt
# little, which is a good trade. Then it stops paying. The gap approaches a floor (what a step costs, however little
# of the prompt is in it), while the long prompt's TTFT nearly doubles with every further halving.
#
# Where's the bend? It follows from two numbers on the card's data sheet, FLOP/s and bytes/s. In practice prefill
# reaches about half of the first (its MFU), and reading weights about 70% of the second (*MBU*, model bandwidth
# utilization):

# %%
words.bend(bend)

# %% [markdown]
# That's the whiteboard answer to "which chunk size?" It only counts reading and arithmetic. Whatever else a step
# costs moves the bend to the right, and so do mixtures of experts, where a step reads nearly all experts but each
# token only uses a few. So start at a small multiple of it, and then let your ITL SLO decide.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "Prefill is 2 P n FLOPs plus a quadratic term that stays the smaller part up to a hundred thousand tokens on a
# > 70B. Chunking protects the other streams, not the long prompt, and chunks below about 210 tokens on an H100 mostly
# > re-read weights."
#
# **Follow-ups**
#
# <details><summary>"So what does FlashAttention buy, if attention is the smaller part?"</summary>
#
# It saves memory traffic, and memory. The FLOPs are the same, but the score matrix never leaves the chip's SRAM, so
# it isn't written to HBM (the GPU's memory) and read back. On a 70B, moving the scores would take a third of TTFT at
# 4k and three quarters at 32k, where they'd also fill over 100 GB per layer.
#
# </details>
# <details><summary>"TTFT of a 100k-token prompt is ten seconds. What can you do?"</summary>
#
# First I'd ask which tokens need to be in it, and whether a prefix of it is cached. Then I'd put more FLOP/s on the
# one prompt, with tensor parallelism, context parallelism (GPUs share its tokens), or chunks in a pipeline. Larger
# chunks only help if today's are below the bend. A faster attention kernel helps in proportion to attention's share,
# which at 100k is about half even on a 70B.
#
# </details>
#
# **"What chunk size would you set?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "512; that's the usual value." | "The largest whose step still meets the ITL SLO." | "At least the bend, FLOP/s × MFU over bytes/s × MBU: below it a step mostly reads weights. From there up, the largest whose mixed step stays within the ITL SLO at p99, measured with our contexts. And I'd watch the long prompts' TTFT, because they pay." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>The chunk size below which chunks stop paying</summary>
#
# 1. A step reads every weight once: b P bytes, at M bytes/s × MBU.
# 2. A chunk of c tokens does 2 P c FLOPs, at F FLOP/s × MFU.
# 3. Both take equally long at c = (b / 2) × (F × MFU) / (M × MBU). P has cancelled: it's the card, not the model.
# 4. H100, 16 bits: 989e12 × 0.5 / (3.35e12 × 0.7) ≈ 210.
# 5. GPUs that share a model share both, so tensor parallelism doesn't move it. 8-bit weights that are dequantized
#    halve it; multiplied in FP8, at twice the FLOP/s, they leave it where it was.
# 6. Below c, each of the n / c steps costs one read of the weights, so TTFT doubles with every halving.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# Answers are computed from the models' shapes and from the long prompt at 70B.

# %%
check = checks(shape, simulated.trades(words.LONG))
check.card()

# %% [markdown]
# ## Going deeper
#
# ### One long prompt, and the others
#
# Here's the same trade-off on the engine in front of you. Three chats are decoding, and every step gives each of them
# a token. Then a long prompt arrives. You've seen what that costs a 70B on GPUs. But where's the bend on *this*
# machine, and are these chunks above or below it?

# %%
sizes = run.sweep_sizes(lab)
chunk_bet = lab.predict(
    "chunks",
    f"{run.long_prompt(lab)} tokens in chunks of {sizes[0]} instead of in one step. The prompt's own TTFT becomes:",
    [run.SHORTER, run.SAME, run.LONGER],
)
chunk_bet

# %%
swept = {size: lab.run(run.long_among_chats(lab), **run.chunk_fields(lab, size)) for size in sizes}
chunk_bet.score(run.own_ttft(swept, sizes[0]))

# %%
words.chunks(swept, reading_s)

# %% [markdown]
# Each point is a run of the engine. Pick another chunk size and press **Run**: its points join the curves, with its
# timeline below. The long prompt is the last row; a green block above it is a step in which a chat got a token.
# Compare where the curve bends with the number of tokens computed above. If it's further to the right, a step on this
# machine costs more than reading weights. It may be launching operations, Python, or attention over what's cached.

# %%
pictures.chunk_explorer(lab, swept)

# %% [markdown]
# ### Any length
#
# Move the slider and press **Send it**: a prompt of that length goes to the engine, and its point joins those of the
# bet.

# %%
pictures.length_explorer(lab, ladder)

# %% [markdown]
# ### The square, materialized or not
#
# Textbook attention computes the **scores** of all pairs, stores them, and then turns each row of them into shares
# that add up to one (*softmax*). **Fused** attention (FlashAttention) walks over the same pairs in small tiles. It
# keeps a running softmax, so that it can add each tile's contribution to the result and forget the tile. The result
# and the useful work are the same, but the full table is never in memory. Move the length; then compute fewer **rows
# per step**, as chunked prefill does.

# %%
pictures.square_explorer(lab)

# %% [markdown]
# Now measure one layer's attention as this engine calls it, both ways, in the same number format.

# %%
measured = run.compare_attention(lab)
stack(*draw_time_and_memory(measured), words.square(measured, shape, bend.roof.bandwidth))

# %% [markdown]
# Then measure whole requests, both ways, down to prompts so short that **fused attention does nothing** for them.

# %%
both = both_ways(lab)
stack(draw_saving(both), words.request(both, shape))

# %% [markdown]
# ### The formulas
#
# A prompt of $n$ tokens, nothing cached. $P$ weights in the layers' matrices, $L$ layers, $H$ heads of size $d$:
#
# $$\text{FLOPs}(n) \approx \underbrace{2 P n}_{\text{matrices}} + \underbrace{4 L H d \cdot \tfrac{n^2}{2}}_{\text{attention}},
# \qquad n_{\text{half}} = \frac{P}{L H d}$$
#
# $n_{\text{half}}$ is the **crossover**: where both terms are equal. The half in $n^2/2$ is the triangle: no token
# looks ahead. With $a(n)$ for attention's share of the sum, the slope on logarithmic axes is
#
# $$\frac{d \log \text{FLOPs}}{d \log n} = 1 + a(n)$$
#
# So "is it linear or quadratic?" has one answer for all lengths: the exponent is one plus attention's share. The
# envelope then says:
#
# $$\text{TTFT} \approx \text{queue} + \frac{\text{FLOPs}(n)}{\text{GPUs} \times \text{FLOP/s} \times \text{MFU}}$$
#
# **A chunk** of $c$ tokens after $s$ cached ones adds $c\,(s + c/2)$ pairs. Summed over all chunks that's $n^2/2$
# again, so chunking adds no pairs. What it adds, with every further step, is another read of the weights and of the
# cached keys and values.
#
# Textbook attention in this engine is a dozen lines. Find the one that builds the full score matrix:

# %%
import inspect

from minillm.kernels.attention import eager
from minillm.kernels.attention.sdpa import Prefill

print(inspect.getsource(eager.attend))

# %% [markdown]
# The fused way is one call of a **kernel** (a routine compiled for the processor) that never builds it.

# %%
print("\n".join(inspect.getsource(Prefill.__call__).splitlines()[:8]))

# %% [markdown]
# ### What articles say
#
# The last one is about **prompt compression**, dropping the sentences that have little to do with the question. (It
# defeats the prefix cache of lesson 04, because every pruned prompt starts differently.) It needs a **quality gate**:
# write down beforehand how many right answers you can afford to lose, then count.

# %%
from course.lab.claims import in_short

in_short(
    a3(ladder, measured, shape),
    d11(ladder),
    d18(measured, ladder, shape, name),
    d17(measured, both),
    f4(both, big_savings()),
    d7(halved_4k(), run.compare_cuts(lab)),
)

# %% [markdown]
# <details><summary>Other ways to handle long prompts</summary>
#
# Several GPUs can share one prompt's tokens (context parallelism: each computes its share of the rows, and they
# exchange keys and values). Its chunks can go through a pipeline ([06b](06b_moe.ipynb)), or prefill can run on GPUs
# of its own ([05b](05b_disaggregation.ipynb)).
#
# </details>

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 16384 --no-enable-prefix-caching
# sglang serve --model-path Qwen/Qwen3-8B --chunked-prefill-size 16384 --disable-radix-cache \
#     --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --random-input-len 8192 --random-output-len 1 --max-concurrency 1 \
#     --num-prompts 10
# ```
#
# Double `--random-input-len` from 1024 up. TTFT doubles as well, and then more than doubles as attention's share
# grows; `vllm:request_prefill_time_seconds` should agree with your client.
#
# For the chunks, keep chats running in a second terminal (`--random-input-len 256 --random-output-len 512`), and
# restart the server with 2048, then 512, in its first flag. The chats' ITL p99 falls, the long prompt's TTFT rises,
# and below some size it only rises. `vllm:iteration_tokens_total` is a histogram of tokens per step, so it shows your
# chunks; in SGLang `#new-token` in each `Prefill batch` line does. `--long-prefill-token-threshold` limits a single
# prompt and leaves the budget alone (vLLM).
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Where your curve bends.** FLOPs are counted; seconds aren't proportional to them. Attention and matrices reach
#   different shares of a machine's peak, and a short prompt doesn't come close to filling a GPU.
# - **How fast your FlashAttention is.** Here "fused" is PyTorch's kernel: a FlashAttention on GPUs, one in 32 bits on
#   CPUs.
# - **Whether a compressed prompt is good enough.** A handful of questions exposes a broken cut but can't tell two
#   good ones apart. Build a gate from your own questions, hundreds of them.
#
# ## Sources
#
# - A3: *Serving LLMs: The Latency Anatomy Framework*. D7, D11, D17, D18: an article on techniques for lower LLM
#   latency, from batching to streaming. F4: an article on LLM latency in three layers.
# - Dao et al., *FlashAttention*, 2022; Dao, *FlashAttention-2*, 2023. Before them: Rabe and Staats, *Self-attention
#   Does Not Need O(n²) Memory*, 2021. Softmax in one pass: Milakov and Gimelshein, 2018.
# - Chunked prefill: Agrawal et al., *Sarathi-Serve*, 2024. Counting FLOPs: Kaplan et al., *Scaling Laws for Neural
#   Language Models*, 2020, section 2.1.
# - Relevance: BM25, Robertson and Zaragoza, 2009. Learned compression: Jiang et al., *LLMLingua*, 2023. Answers are
#   least accurate when the facts are in the middle of a long context: Liu et al., *Lost in the Middle*, 2023.
