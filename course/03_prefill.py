# %% [markdown]
# # 03 · Prefill: what does a prompt cost?
#
# Before a model can write its first word, it has to read everything it was given. That is **prefill**. Somebody
# pastes a document four times as long as usual. Does the first word take four times as long? Sixteen times? And who
# else in the building notices?
#
# At the end you can say how the cost of a prompt grows, for any model, from its shape alone; what fused attention
# (FlashAttention) changes and what it does not; and what a chunk size trades against what.
#
# - **Surface**: a prompt four times as long. Place your bet.
# - **Guided**: the square of all pairs, textbook against fused, and chunks.
# - **Deep dive**: the formula, the code, six claims put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_03 import attention, chunks, costs, instrument, reading, sim_70b, traffic
from course.lab.lesson_03.checks import checks
from course.lab.lesson_03.claims import a3, big_savings, d7, d11, d17, d18, f4, halved_4k
from course.lab.lesson_03.measured import FACTORS, Ladder, both_ways, four_times
from course.lab.lesson_03.pictures import draw_ladder, draw_saving, draw_time_and_memory

lab = open_lab()

# %% [markdown]
# ## Surface
#
# A prompt is cut into **tokens**, pieces of words. Two things happen to each of them, in every **layer** of the
# model:
#
# 1. It is multiplied by the layer's **matrices**, the weights. This costs the same for every token.
# 2. It looks back at itself and all tokens before it, and takes something from each. This is **attention**. The
#    hundredth token looks at a hundred tokens, the thousandth at a thousand.
#
# All tokens of a prompt are there from the start, so all of them are computed at once. Think of attention as a table:
# a row for each token, and in it a cell for each token that it looks at. The table is a triangle, because no token
# looks ahead. Every **head** (many look in parallel) of every layer has such a table.
#
# Twice the tokens make twice the rows, and the rows become twice as long: four times the cells. So the first kind of
# work grows in proportion to the prompt, and the second with its square. You will often hear that prefill is "O(n²)",
# so that a prompt four times as long takes sixteen times as long.
#
# ### Predict
#
# The next cell sends prompts of several lengths to the engine, one at a time, three rounds, and keeps the fastest
# of each (whatever disturbs a machine can only slow it down). Nothing is shared, nothing is found in a cache. Commit yourself first.

# %%
longest = traffic.lengths(lab)[-1]
bet = lab.predict(
    "four",
    f"A prompt of {longest // 4} tokens, then one of {longest}: the time to the first token grows how many times?",
    list(FACTORS),
)
bet

# %%
climb = lab.run(traffic.ladder(lab), **traffic.fields(lab, longest))
ladder = Ladder.of(climb)
bet.score(four_times(ladder))

# %%
draw_ladder(ladder)

# %% [markdown]
# Both axes are logarithmic: equal distances are equal factors, so straight growth and growth with the square are both
# straight lines, one steeper. Three stretches to look for, from left to right (how wide each is depends on the machine):
#
# - Is the measured curve **flatter than both**? A step has fixed costs, for one token as for thirty: all weights are
#   read once, hundreds of small operations are started.
# - Is it as steep as **straight growth**? There the matrices rule, and twice the prompt takes about twice the time.
# - Does it **bend upwards**? That is the square.
#
# In which of them do the two prompts of your bet lie? That is the surface: *a prompt costs its length, plus a square.
# Which of the two it feels depends on how long it is.*

# %% [markdown]
# ## Guided
#
# ### Any length
#
# Move the handle and press **Send it**: a prompt of that length goes to the engine, and its point joins the others.

# %%
instrument.length_explorer(lab, ladder)

# %% [markdown]
# ### When does the square win?
#
# Count instead of measuring. A **FLOP** is one floating-point operation, a multiplication or an addition; a TFLOP is
# a million million of them. Each weight in the matrices costs two FLOPs a token, and each pair of tokens costs four
# FLOPs for every number in a head's vector, in every head of every layer. Move the handle, and compare the model on
# this machine with one of 70 billion weights.

# %%
instrument.flops_explorer(lab)

# %% [markdown]
# On most models the square comes late, and most prompts are too short to feel it. The larger model feels its square
# *later* still. Its matrices grow with the square of its width, its attention only with the width. So a rule of thumb
# from a small model overstates attention for a large one.
#
# ### The square, built or not
#
# Textbook attention computes the **scores** of all pairs (how well does this token suit that one?), keeps them, and
# then takes the softmax, which turns each row into shares that sum to 1. **Fused** attention, known as
# FlashAttention, walks over the same pairs in small tiles, adds each tile's part to the result, and forgets the tile.
# Same result, same useful work; but the square is never in memory.
#
# Move the length and watch both. Then compute fewer **rows a step**: the prompt in chunks.

# %%
instrument.square_explorer(lab)

# %% [markdown]
# Now measured: one layer's attention, as this engine calls it, both ways, in the same number format. The second
# picture counts the bytes of all tensors that exist at the same time.

# %%
measured = attention.compare(lab)
instrument.stack(*draw_time_and_memory(measured))

# %% [markdown]
# Memory first: on these axes textbook attention climbs twice as steeply as fused. That is the square against the
# straight line, and it is what makes long prompts possible at all. The time has two reasons. What is not built need
# not be written to memory and read back, once for each of the passes that our textbook version makes over the whole
# square. And tiles that lie in the future are skipped; the textbook computes them and masks them. At the short end
# there is hardly a square, and whatever is gained is gained on very little.
#
# ### Where it does nothing: fused attention on short prompts
#
# The same prompts as above on the whole engine, once with each kind of attention. What does a *request* gain?

# %%
both = both_ways(lab)
draw_saving(both)

# %% [markdown]
# At the short end the two curves differ by little more than the noise of the machine. No technique can save more of a
# request than the part it touches (**Amdahl's law**): attention is a few percent there. To the right its share
# grows, and so does the gain.
#
# ### One long prompt, and everybody else
#
# Three chats are being answered: in every step each gets its next token. Then a long prompt arrives. If one step
# computes all of it, the chats get no token until that step ends. **Chunked prefill** reads at most so many of its
# tokens a step, and the chats' tokens ride along. Articles say that this bounds the TTFT of the long prompt, too.
# Does it?

# %%
sizes = chunks.sizes(lab)
chunk_bet = lab.predict(
    "chunks",
    f"{traffic.long_prompt(lab)} tokens in chunks of {sizes[0]} instead of in one step. The prompt's own TTFT becomes:",
    [chunks.SHORTER, chunks.SAME, chunks.LONGER],
)
chunk_bet

# %%
swept = {size: lab.run(traffic.long_among_chats(lab), **chunks.fields(lab, size)) for size in sizes}
chunk_bet.score(chunks.own_ttft(swept, sizes[0]))

# %% [markdown]
# Each point is a run on the real engine. Move the handle to another chunk size and press **Run**: its points join the
# curves, and under them stands its timeline. The long prompt is the last row; a green block above it is a step in
# which a chat got one token. The wide ones are steps that also read a part of the long prompt.

# %%
instrument.chunk_explorer(lab, swept)

# %% [markdown]
# Read the two curves against each other. To the left: how much do the others notice of the long prompt, and does it pay
# for their peace? To the right: is it done sooner, and how long does everybody wait for it once? If one curve climbs
# where the other falls, chunking is a gift to the *others*. Then there is no chunk size that is best for both: there is
# one that meets both limits you promised.
#
# ### The same question at 70B
#
# Llama-3.1 70B on four H100s, in the simulator, under the same scheduler. Sixteen chats, then one long prompt. The
# dashed line is the time that reading all weights so many times takes: no chunked prefill can be faster than that.

# %%
instrument.explore_70b()

# %%
simulated_70b.error_band(sim_70b.deployment())

# %% [markdown]
# From the right: halving the chunk halves the others' longest gap and costs the long prompt next to nothing. That is
# the bargain people mean. Then it ends. The others' gap reaches a floor, what a step costs however little of the
# prompt is in it, while the long prompt's TTFT doubles with each further halving. A chunk left of that bend buys
# nothing and is paid in full. Where the bend lies depends on model, hardware and software (a stack without CUDA graphs begins
# each step with a long launch, so its floor is higher). Find your own before you copy anybody's number.
#
# **Where it hurts: chunks too small.** Each chunk is a step, and each step reads all weights again and pays its fixed
# costs again. On a GPU this is worse than on a CPU: it can multiply so fast that a few hundred tokens only just keep
# it busy while the weights stream by.

# %% [markdown]
# ## Deep dive
#
# **The formula.** A prompt of $n$ tokens, nothing cached. $P$ weights in the layers' matrices, $L$ layers, $H$ heads
# of size $d$:
#
# $$\text{FLOPs}(n) \approx \underbrace{2 P n}_{\text{matrices}} + \underbrace{4 L H d \cdot \tfrac{n^2}{2}}_{\text{attention}},
# \qquad n_{\text{half}} = \frac{P}{L H d}$$
#
# $n_{\text{half}}$ is the **crossover**: where both terms are equal. The half in $n^2/2$ is the triangle: nobody
# looks ahead. With $a(n)$ for attention's share of the sum, the slope on logarithmic axes is
#
# $$\frac{d \log \text{FLOPs}}{d \log n} = 1 + a(n)$$
#
# So "is it linear or quadratic?" has one answer for all lengths: the power is one plus attention's share.
#
# **A chunk** of $c$ tokens after $s$ that are in the cache looks at $c\,(s + c/2)$ pairs. Summed over all chunks that
# is $n^2/2$ again: chunking adds no pairs. What it adds is one reading of the weights a step, and of the cached keys
# and values before it.
#
# **The code.** Textbook attention in this engine is a dozen lines. Find the line that builds the square:

# %%
import inspect

from minillm.kernels.attention import eager

print(inspect.getsource(eager.attend))

# %% [markdown]
# And the fused way: one call of a **kernel** (one ready-made program that the processor runs) that never builds it. (The
# engine has faster ones for GPUs; this one exists everywhere.)

# %%
from minillm.kernels.attention.sdpa import Prefill

print("\n".join(inspect.getsource(Prefill.__call__).splitlines()[:8]))

# %% [markdown]
# **The claims, measured.** Six sentences from articles, against the runs above.

# %%
shape, name = costs.lab_shape(lab), costs.short_name(lab)
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
# ### A shorter prompt
#
# The cheapest token is the one you do not send. One can drop the sentences that have little to do with the question
# (**prompt compression**). Whether the answers survive is a matter for a **quality gate**: a floor stated before
# anything is measured. Ours: at most one right answer fewer than with the whole text. And mind the prefix cache
# (lesson 04): cut by question, no two prompts begin alike any more.

# %%
d7(halved_4k(), reading.compare(lab))

# %% [markdown]
# ## Say it in an interview
#
# > "Prefill is one big matrix job whose cost is proportional to the prompt, plus attention, which grows with its
# > square but is the smaller part until about a hundred thousand tokens on a 70B. So a prompt four times as long
# > takes about four times as long: less when it is short, more when it is very long. Fused attention makes long
# > contexts possible, above all in memory; on short ones it changes little. Chunked prefill does not make the long
# > prompt faster: it protects the others, and I would tune the chunk to the ITL I promised. Before any of that I
# > would ask which tokens need to be in the prompt at all."
#
# ## Check yourself
#
# Replace the dots. Keys come from the model's shape and from the runs above.

# %%
check = checks(shape, swept)

check("q1", ...)  # this lab's model: at how many tokens is attention as much work as the matrices?

# %%
check("q2", ...)  # textbook attention, 2048 tokens, one layer, float32: how many MB of scores? (shape.num_heads)

# %%
check("q3", ...)  # who gains when chunks become smaller: "the long prompt" or "the others"?

# %%
check("q4", ...)  # the smallest chunks of the sweep above: how often were all weights read for the long prompt?

# %%
check("q5", ...)  # a 70B, 4096 tokens: if attention were free, the prefill's FLOPs would fall by how many percent?

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Where your curve bends.** FLOPs are counted; seconds are not proportional to them. Attention and matrices reach
#   different shares of a machine's peak, and a short prompt does not fill a GPU at all.
# - **How fast a real FlashAttention is.** Here "fused" is PyTorch's own kernel, in float32 on a CPU. The square that
#   it avoids is the same everywhere; what that is worth depends on how fast memory is beside arithmetic. The saving
#   at 70B is arithmetic on bytes, not a run.
# - **Whether a compressed prompt is good enough.** A few questions and a small model show that cuts differ. They say
#   nothing about your documents: build a gate from your own questions.
# - **Other ways to long prompts.** Several machines can share one prompt (sequence parallelism), prefill can live on
#   machines of its own (disaggregation), attention can skip most pairs (sparse attention, a sliding window; lesson
#   07). None is in this lesson.
#
# ## Sources
#
# - A3: *Serving LLMs: The Latency Anatomy Framework*. D7, D11, D17, D18: an article on techniques for lower LLM
#   latency, from batching to streaming. F4: an article on LLM latency in three layers.
# - Dao et al., *FlashAttention*, 2022; Dao, *FlashAttention-2*, 2023. Before them: Rabe and Staats, *Self-attention
#   Does Not Need O(n²) Memory*, 2021. Softmax in one pass: Milakov and Gimelshein, 2018.
# - Chunked prefill: Agrawal et al., *Sarathi-Serve*, 2024. Counting FLOPs: Kaplan et al., *Scaling Laws for Neural
#   Language Models*, 2020, section 2.1.
# - Relevance: BM25, Robertson and Zaragoza, 2009. Learned compression: Jiang et al., *LLMLingua*, 2023. The middle of
#   a long context gets least attention: Liu et al., *Lost in the Middle*, 2023.
# - The 70B's step times: Patel et al., *Splitwise*, 2024, see the table under the simulation.
