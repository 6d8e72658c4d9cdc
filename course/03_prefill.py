# %% [markdown]
# # 03 · Prefill: what does a prompt cost?
#
# Someone pastes a document four times as long as usual. Does the first token take four times as long? Sixteen times?
# And which other requests slow down?
#
# By the end you can say how the cost of a prompt grows, for any model, from its shape alone; estimate a TTFT on the
# back of an envelope; and say what a smaller chunk buys and what it costs.
#
# - **Surface** (ten minutes): a prompt four times as long. Place your bet.
# - **Guided** (twenty): linear and quadratic, textbook and fused attention, and chunks.
# - **Deep dive** (fifteen): the formulas, the code, six claims put to the test.

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
# ## Surface
#
# Before a model can generate, it has to process the whole prompt: **prefill**. Two things happen to every token, in
# every layer:
#
# 1. It's multiplied by the layer's **matrices**, the weights. That costs the same for every token.
# 2. It **attends** to itself and all tokens before it: it's compared with each of them, and takes in more from the ones
#    that matter to it. The hundredth token attends to a hundred tokens, the thousandth to a thousand.
#
# All tokens of a prompt are known from the start, so all of them are computed at once. Think of attention as a table
# with a row per token, and in each row a cell for every token it attends to: a triangle, since no token looks ahead.
# Twice the tokens, four times the cells. So the first kind of work grows in proportion to the prompt, the second with
# its square. You'll often hear that prefill is "O(n²)", so a prompt four times as long takes sixteen times as long.
#
# ### Predict
#
# The next cell sends prompts of several lengths, one at a time, three rounds, and keeps the fastest of each (a
# disturbance can only slow a run down). Nothing is shared, nothing is cached. On a CPU this lesson runs in **32 bits**,
# so that both kinds of attention below are compared in the same numbers; a step takes longer here than in lesson 00.

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
# prompt's cost is a floor, a linear term and a quadratic one. Its length decides which you notice.**

# %% [markdown]
# ## Guided
#
# ### Any length
#
# Move the slider and press **Send it**: a prompt of that length goes to the engine, and its point joins the others.

# %%
pictures.length_explorer(lab, ladder)

# %% [markdown]
# ### When does the quadratic term win?
#
# Count instead of measuring. A **FLOP** is one floating-point operation. Each weight in the matrices costs two FLOPs
# per token; each pair of tokens costs four FLOPs per number in a head's vector, in every head of every layer.
# (**Heads** are separate attentions that run side by side.) Compare the model on this machine with one of another size:
# 70 billion weights, unless yours has that many.

# %%
pictures.flops_explorer(lab)

# %% [markdown]
# Most prompts are too short for the quadratic term to matter, and in a larger model it matters *later*: matrices grow
# with the square of the width, attention only with the width. A rule of thumb from a small model overstates attention
# for a large one.
#
# ### TTFT on the back of an envelope
#
# So on an idle server a prompt of $n$ tokens takes about $2 P n$ FLOPs, divided by what the GPUs deliver: their number
# × the data sheet's FLOP/s (an H100: 989 TFLOP/s in 16 bits) × the share of it that prefill
# reaches (**MFU**, typically 40 to 60%).

# %%
pictures.envelope_explorer()

# %% [markdown]
# ### The square, materialized or not
#
# Textbook attention computes the **scores** of all pairs, stores them, and then turns each row of them into shares that
# add up to one (*softmax*). **Fused** attention (FlashAttention) walks over the same pairs in small tiles, adds each
# tile's contribution to the result, and forgets the tile. Same result, same useful work, but the square is never in
# memory. Move the length; then compute fewer **rows per step**: the prompt in chunks.

# %%
pictures.square_explorer(lab)

# %% [markdown]
# Now measured: one layer's attention as this engine calls it, both ways, in the same number format.

# %%
measured = run.compare_attention(lab)
stack(*draw_time_and_memory(measured), words.square(measured, shape, bend.roof.bandwidth))

# %% [markdown]
# ### Where it does nothing: fused attention on short prompts

# %%
both = both_ways(lab)
stack(draw_saving(both), words.request(both, shape))

# %% [markdown]
# ### One long prompt, and the others
#
# Three chats are decoding; every step gives each of them a token. Then a long prompt arrives. If one step computes all
# of it, the chats get no token until that step ends. **Chunked prefill** caps how many of its tokens a step computes,
# and the chats' tokens ride along. Articles say that this bounds the TTFT of the long prompt, too.

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

# %%
pictures.chunk_explorer(lab, swept)

# %% [markdown]
# ### The same question at 70B
#
# Llama-3.1 70B (Llama-3's shape with a longer context) on four H100s, simulated, with the same scheduler. Sixteen
# chats, then one long prompt. The dashed line is the time it takes just to read all the weights that many times: no
# chunked prefill can be faster.

# %%
pictures.explore_70b()

# %%
simulated_70b.error_band(simulated.deployment())

# %% [markdown]
# From the right: halving the chunk halves the others' longest gap and costs the long prompt little. That's the bargain
# people mean. Then it stops paying. The gap approaches a floor (what a step costs, however little of the prompt is in it),
# while the long prompt's TTFT nearly doubles with every further halving. Below that size you pay a lot and get little back.
#
# Where's the bend? It follows from two numbers of the card: how many operations it does, and how many bytes it reads,
# in the same time. Of a data sheet's numbers, prefill typically reaches half the FLOP/s (its MFU), and reading weights
# 70% of the bandwidth:

# %%
words.bend(bend)

# %% [markdown]
# That's the whiteboard answer to "which chunk size?" In practice start at a small multiple of it, since a step has
# overhead as well, and then let your ITL SLO decide.

# %% [markdown]
# ## Deep dive
#
# **The formula.** A prompt of $n$ tokens, nothing cached. $P$ weights in the layers' matrices, $L$ layers, $H$ heads
# of size $d$:
#
# $$\text{FLOPs}(n) \approx \underbrace{2 P n}_{\text{matrices}} + \underbrace{4 L H d \cdot \tfrac{n^2}{2}}_{\text{attention}},
# \qquad n_{\text{half}} = \frac{P}{L H d}$$
#
# $n_{\text{half}}$ is the **crossover**: where both terms are equal. The half in $n^2/2$ is the triangle: no token
# looks ahead. With $a(n)$ for attention's share of the sum, the slope on logarithmic axes is
#
# $$\frac{d \log \text{FLOPs}}{d \log n} = 1 + a(n)$$
#
# So "is it linear or quadratic?" has one answer for all lengths: the exponent is one plus attention's share. And the
# envelope:
#
# $$\text{TTFT} \approx \text{queue} + \frac{\text{FLOPs}(n)}{\text{GPUs} \times \text{FLOP/s} \times \text{MFU}}$$
#
# **The bend.** With $b$ bytes a weight, a chunk's arithmetic takes as long as reading the weights at
#
# $$c^* = \frac{b}{2} \cdot \frac{\text{FLOP/s} \times \text{MFU}}{\text{bytes/s} \times \text{the share of it that is reached}}$$
#
# **A chunk** of $c$ tokens after $s$ cached ones adds $c\,(s + c/2)$ pairs. Summed over all chunks that's $n^2/2$
# again: chunking adds no pairs. It adds one more read of the weights per step, and of the cached keys and values.
#
# **The code.** Textbook attention in this engine is a dozen lines. Find the one that builds the square:

# %%
import inspect

from minillm.kernels.attention import eager

print(inspect.getsource(eager.attend))

# %% [markdown]
# And the fused way: one call of a **kernel** (a routine compiled for the processor) that never builds it.

# %%
from minillm.kernels.attention.sdpa import Prefill

print("\n".join(inspect.getsource(Prefill.__call__).splitlines()[:8]))

# %% [markdown]
# **The claims, measured.**

# %%
a3(ladder, measured, shape)

# %%
d11(ladder)

# %%
d18(measured, ladder, shape, name)

# %%
d17(measured, both)

# %%
f4(both, big_savings())

# %% [markdown]
# And one on **prompt compression**, dropping the sentences that have little to do with the question. (Mind the prefix
# cache, lesson 04: once each prompt is cut to fit its question, no two begin alike.) Having a small model *summarize* a
# long history is the same trade with one more cost, its own prefill and decode, and one more risk, facts that were
# never said. Either needs a **quality gate**: write down beforehand how many right answers you can lose (the *floor*),
# then count.

# %%
d7(halved_4k(), run.compare_cuts(lab))

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
# Double `--random-input-len` from 1024 up. TTFT doubles, too, and then more than doubles as attention's share grows;
# `vllm:request_prefill_time_seconds` should agree with your client.
#
# For the chunks, keep chats running in a second terminal (`--random-input-len 256 --random-output-len 512`), and
# restart the server with 2048, then 512, in its first flag. The chats' ITL p99 falls, the long prompt's TTFT rises, and
# below some size it only rises. `vllm:iteration_tokens_total` is a histogram of tokens per step, so it shows your
# chunks; in SGLang `#new-token` in each `Prefill batch` line does. `--long-prefill-token-threshold` limits a single
# prompt and leaves the budget alone (vLLM).
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## Say it in an interview
#
# > "Prefill is one big matrix multiplication, proportional to the prompt, plus attention, which grows with the square
# > but stays the smaller part until about a hundred thousand tokens on a 70B. So four times the prompt takes about four
# > times as long: less if it's short, more if it's very long. My estimate is 2 P n over GPUs times FLOP/s times MFU.
# > Fused attention does the same FLOPs with far fewer reads and writes: the score matrix never leaves the chip. Chunked
# > prefill doesn't speed up the long prompt; it protects the others. On an H100 chunks under about 210 tokens
# > cost more than they give, FLOP/s times MFU over bytes per second; above that I'd tune to the ITL SLO. But first I'd ask which tokens
# > need to be in the prompt."
#
# ## Check yourself
#
# Answers come from the model's shape and from the runs above.

# %%
check = checks(shape, swept)
check.card()

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Where your curve bends.** FLOPs are counted; seconds aren't proportional to them. Attention and matrices reach
#   different shares of a machine's peak, and a short prompt doesn't come close to filling a GPU.
# - **How fast your FlashAttention is.** Here "fused" is PyTorch's kernel: a FlashAttention on GPUs, one in 32 bits on CPUs.
# - **Whether a compressed prompt is good enough.** A handful of questions exposes a broken cut but can't tell two good
#   ones apart. Build a gate from your own questions, hundreds of them.
#
# <details><summary>Other ways to handle long prompts</summary>
#
# Several GPUs can share one prompt's tokens (sequence or context parallelism: each computes its share of the rows, and
# they exchange keys and values), and prefill can run on GPUs of its own ([lesson 05b](05b_disaggregation.ipynb)).
#
# </details>
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
