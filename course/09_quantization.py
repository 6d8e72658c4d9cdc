# %% [markdown]
# # 09 · Quantization, by phase
#
# "It is too slow." "Then quantize it." It is the most popular answer there is, and nobody in the room has asked which
# of the five phases is slow. In this lesson you round a model's weights by hand, watch which phases move, and refuse to
# call a model better that is only faster.
#
# You will be able to say beforehand which traffic gains from fewer bits and which loses, to compute the best speed-up
# on the back of an envelope, and to state a quality floor before anybody shows you a number.
#
# - **Surface**: move weights to a grid; one reader before and after.
# - **Guided**: five phases in pairs, the batch at which it stops paying, a quality gate, zeros, 70 billion weights.
# - **Deep dive**: the arithmetic, the code, three claims put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_06.roofline import this_machine
from course.lab.lesson_09 import gate, phases, sim_70b, sparsity, steps, traffic
from course.lab.lesson_09.checks import checks
from course.lab.lesson_09.claims import a7, b4, b5, d10
from course.lab.lesson_09.formats import Shelf, formats_table
from course.lab.lesson_09.rounding import load_matrix
from course.lab.lesson_09.rounding_pictures import errors_table, rounding_lab

lab = open_lab()
shelf = Shelf(lab, instead_of=globals().get("shelf"))

# %% [markdown]
# ## Surface
#
# A model is a few hundred large matrices of numbers, its **weights**. They are published in 16 bits each. **Quantization**
# keeps them in fewer: each weight is moved to the nearest line of a **grid**, and what is stored is the number of
# that line. With 4 bits there are 16 lines. Where the lowest line lies, and how far apart the lines are (the **scale**),
# is stored once for a **group** of weights.
#
# Here are real weights of the model in this lab. Move the bits. Then move the largest weight further out, and watch what
# happens to its neighbours.

# %%
matrix = load_matrix(lab)
rounding_lab(matrix)

# %% [markdown]
# A dot is a weight, the short orange bar is where it is moved to. Things to find:
#
# - One bit less: half as many lines, so the error about doubles. An outlier twice as far out: up to double, too.
# - One **outlier** stretches the grid of its whole group. All of its neighbours are moved further because of it. Small groups
#   keep the damage small; but each group's grid costs bits, too.
# - *As it came*, at 4 bits in groups of 32: look at the error. Somebody has been here before you! (More on that below.)
#
# Now the model is loaded again in four other formats. **KV** are the keys and values that a model keeps of each token
# that it has seen; they can be rounded as well.

# %%
formats_table(shelf)

# %% [markdown]
# ### Predict
#
# Fewer bytes; so what gets faster? A request lives through five phases: **queue** (waiting for a seat), **prefill** (its prompt is
# read), **first token**, **decode** (the rest of the answer, a token a step) and **stream** (the
# text travels to the reader). One reader, a short question, a long answer;
# weights in int8 instead of 16 bits:

# %%
bet = lab.predict("alone", "One reader, long answer, int8 weights. Where is the gain?", list(phases.GAINS))
bet

# %%
alone = phases.compare(shelf, traffic.long_answer(lab))
bet.score(phases.where_gained(alone))

# %%
phases.draw_pairs(alone, "one reader, long answer", "int8")

# %% [markdown]
# Hollow is before, filled is after. Which bars are long enough to win something, and which of those moved? To write one
# token, a machine reads every weight once and does next to nothing else with it (lesson 06); half the bytes can be half
# the reading. Is the phase that gained one that waits for that? Where the picture says *not told apart*, the runs of both
# kinds overlap: on a busy laptop, or on a GPU far too large for this small model, that may be the whole result.
#
# That is the surface: *quantized weights shorten the reading of weights. A phase gains as far as it waits for that.*

# %% [markdown]
# ## Guided
#
# ### Two other kinds of traffic
#
# The same int8 model. A **full batch**: many readers share each step. And a **long prompt** with an answer of a few words.

# %%
others = lab.predict("others", "int8 weights: what becomes of E2E there?", list(phases.BOTH.values()))
others

# %%
batch = phases.compare(shelf, traffic.full_batch(lab))
prompt = phases.compare(shelf, traffic.long_prompt(lab))
others.score(phases.who_gained(batch, prompt))

# %%
phases.draw_pairs(batch, "a full batch", "int8")

# %%
phases.draw_pairs(prompt, "one reader, long prompt", "int8")

# %% [markdown]
# ### Where it hurts
#
# In both, every weight that is read is used for many tokens: many readers, or many tokens of one prompt. Then
# multiplying takes the time, not reading. These int8 weights are multiplied in 16 or 32 bits, so each must be **widened**
# first. A processor with 16-bit multipliers (a GPU, a CPU with AMX) is fast with 16-bit weights and pays for widening: there
# the ratio is red. One without them widens 16-bit weights as well: there the two come out nearly equal, or int8 gains.
# (Kernels that multiply *in* 8 bits are another thing: see 70B below.)
#
# ### Your own comparison
#
# Five kinds of traffic, four formats. Each press runs both formats by turns, so that whatever disturbs the machine
# disturbs both. Say first which bar will move.

# %%
own = phases.PhasesLab(shelf).show("one seat, a line", "int8")
own

# %% [markdown]
# | traffic | format | ask yourself |
# |---|---|---|
# | one seat, a line | int8 | the queue: "the model never runs there". Does it move? Why? |
# | short of KV memory | KV int8 | seats for all, memory for four. How many fit now, and which phase says so? |
# | short of KV memory | int8 | half the weights, the same KV pool: the queue? |
# | one reader, long answer | int4 | about a third of the bytes (grids included). A third of the time? |
# | a full batch | int4 g64 | fewer bytes still: does it matter any more? |
#
# **A queue is made of other people's service.** "Quantization cannot help a queue" (claim A2, lesson 02) is true of
# the phase's own work: nothing is computed in a line. But whoever waits, waits for somebody's decoding to end, or for
# somebody's memory to come back. Shorten the one, or make room for more of the other, and the line gets shorter.
#
# ### Bytes over bandwidth
#
# How much can it be at best? *Bytes saved, over bytes per second.* Everything else in a step stays as it was.

# %%
found = steps.sweep(shelf)
steps.promises_table(found, this_machine(lab))

# %% [markdown]
# Compare *step, if only reading changed* with *measured*. If measured is longer, unpacking took part of what
# reading saved. int4 shows it best: its bytes promise more than int8's, but two weights share a byte, and must be taken
# apart, scaled and shifted. Whether int4 beats int8 at all is a question to the kernel, not to the bits.
# (If a step is shorter than *at least*, something else was running while the bandwidth was measured: run it again. Or
# the rounded weights fit into the processor's cache, which is faster than memory; the 16-bit ones do not.)
#
# And by batch? Every point is the decode speed of a format over that of 16 bits.

# %%
steps.draw_speedups(found)

# %% [markdown]
# Look for the place where a curve falls below the line, if it does here. It is the knee of lesson 06 from another
# side: the bytes saved are the same at each batch, but past the knee nobody waits for them, and what widening costs
# remains. On a GPU this engine also changes its int8 kernel above 16 rows: a step there is the kernel's, not the machine's.
#
# ### Faster, but is it still the same model?
#
# A faster model that answers worse is a cheaper product, not an optimisation. So before anybody looks at a speed, write down a
# **floor**: the worst that you will accept. Three measures on a text that the model has not written:
#
# - **Perplexity**: how surprised the model is by what really comes next. 1 would be never; higher is worse. Look at its rise.
# - **KL divergence**: how far the probabilities of the next token have moved from those of the 16-bit model, in nats (0: not at all).
# - **Same likeliest token**: how often both would write the same next word. Greedy answers part at the first that differs.

# %%
scores = gate.measure(shelf)
gate.gate(scores)

# %% [markdown]
# Drag the floors. Crosses are measures that broke one; then the gate refuses to call the format better, *whatever it
# gains*. It is the same rule as in `minillm bench quality`, with fewer tokens,
# and without its questions. Things to find:
#
# - *int4* and *int4 g64* have the same 4 bits. Do both keep the same floor?
# - Is there a floor that lets everything pass? What would you be saying with it?
# - Which format keeps its floors and gains nothing but memory? Is that worthless? (Think of the queue.)
#
# ### Why groups of 32 are free here, and not elsewhere
#
# The model was published in 16 bits. The copy that this lab fetches had been rounded to 4 bits on the way, in groups of 32 (it is
# a smaller download), and is widened to 16 again. So rounding it to that very grid moves nothing. Groups of 64 are a new grid. The last column shakes every weight by up to half a step first: what
# a model has to lose that has never been rounded.

# %%
print(f"on a 4-bit grid of groups of 32 already: {matrix.share_on_grid:.0%} of {matrix.name}")
errors_table(matrix)

# %% [markdown]
# A benchmark of int4 on such a checkpoint says that 4 bits cost nothing. Ask what a model was rounded to *before* you
# believe a quality table. (Methods such as GPTQ and AWQ do better than rounding to the nearest line: they
# choose lines by what the **activations** need: the numbers that flow between the layers, new for every token. They move the point where a floor breaks. The gate stays.)
#
# ### Zeros: is sparsity the cheaper way?
#
# **Pruning** sets small weights to zero. Half of them gone: half the time? A **dense** product reads and multiplies zeros
# like any number. A **sparse** one keeps only the others, each with the number of its column.

# %%
b5(sparsity.measure(lab))

# %% [markdown]
# Zeros that may stand *anywhere* (unstructured) must say where each number stood. CSR, the usual format, writes a column of 4 bytes
# beside each, more than the number. *2 of every 4* needs two bits for each: some GPUs have multipliers for exactly this pattern,
# at up to twice the rate, where multiplying is what takes the time. *Whole columns* make a smaller dense matrix: fast on
# everything, and the coarsest cut into quality. For each of them, the gate above applies.

# %% [markdown]
# ### The same at 70 billion weights
#
# Llama-3 70B on four H100s, simulated. *int8* and *int4* weights are widened before they are multiplied, as here. *fp8* (8-bit
# floating point) is multiplied as it is, which an H100 does at twice its 16-bit rate.

# %%
sim_70b.phases_lab()

# %% [markdown]
# - *Chat, quiet*: which phase moves with int8? And with the **stack of 2023**, which launches its kernels one by one? That step
#   stands on a floor of launches that no format shortens. Ask what a step waits for before you take bytes off it.
# - *Long prompts, busy*: int8 against fp8. Prefill multiplies. Widening makes it longer, multiplying in 8 bits makes it shorter:
#   "quantization helps prefill a little" is true of neither.
# - *Overrun*: the server is asked for more than 16 bits can serve. Look at the queue, with int8, then with fp8.
#
# How far to trust it: the band below is of 16-bit steps. Formats are priced by bytes and peak rates on top, and no
# measurement has confirmed those.

# %%
simulated_70b.error_band(sim_70b.deployment(sim_70b.TODAY, "bf16"))

# %% [markdown]
# ### When capacity is what is short
#
# Two H100s hold the 16-bit weights, and hardly anything beside them. Chats arrive faster than that can serve.

# %%
cramped = sim_70b.cramped()
sim_70b.cramped_table(cramped)

# %% [markdown]
# Look at *int8*: its answers are written somewhat faster, but that isn't why the line is gone. Seats did it. Fewer bits left room for KV, room for
# KV is seats, and the line went. This is the other half of claim A2: *quantization helps the queue when memory is what
# capacity is short of*. *KV int8* does it, too, and leaves the weights alone; look at its decode, though. More seats are
# larger batches, and those who no longer wait in line share their steps with more people.

# %% [markdown]
# ## Deep dive
#
# **The arithmetic.** A step reads $W$ bytes of weights at $M$ bytes/s, and takes $t$ in all. Weights go from 16 to $b$ bits, with
# $s$ bits of scales for each group of $g$; widening costs $d$ (about the same for any batch up to a tile of the product).
#
# $$t' \approx t - \frac{W}{M}\left(1 - \frac{b + s/g}{16}\right) + d, \qquad
# \text{speed-up} \le \frac{1}{1 - f + f\,\frac{b + s/g}{16}}, \quad f = \frac{W/M}{t}$$
#
# - $f$ is the share of a step that *waits* for weights: the bound is Amdahl's law. With $f = 1$ int8 gives at most ×2. Above
#   the knee of the batch, $f$ is near 0: what remains is $d$.
# - **Rounding error**: lines $\Delta$ apart move a weight by at most $\Delta/2$, by $\Delta/\sqrt{12}$ on the root mean square if
#   weights fall anywhere between lines. $\Delta = (\max - \min) / (2^b - 1)$ of the group: one bit less about doubles it; an
#   outlier twice as far out up to doubles it.
# - **Names**: W8A16 is what this engine does (8-bit weights, 16- or 32-bit activations: less to read). W8A8 also rounds
#   activations and multiplies in 8 bits (more FLOP/s, so prefill gains; activations have the worse outliers). W4A16 is
#   for small batches and small memories.
# - **KV in 8 bits** shortens the reading of KV (long contexts, large batches: just where weights no longer count), and
#   nearly doubles the tokens that fit.
#
# **The code.** Rounding is a few lines (`minillm/kernels/quantization.py`); the gate's rule is one function.

# %%
import inspect

from minillm.bench.quality import judge
from minillm.kernels.quantization import quantize_int4

print(inspect.getsource(quantize_int4))
print(inspect.getsource(judge))

# %% [markdown]
# `if not rise <= floor` instead of `if rise > floor`: a model that returns NaN breaks every floor, too.
#
# **The claims, measured.** First, that quantization helps decode, prefill a little, and the queue not at all.

# %%
a7(alone, prompt, own.found["one seat, a line", "int8"], steps.slowdown(found, "int8"))

# %% [markdown]
# That it wants a quality evaluation with a floor, before.

# %%
b4(scores, matrix.share_on_grid)

# %% [markdown]
# And that int8 is worth half as much throughput again, for two percent of accuracy.

# %%
d10(found, scores, sim_70b.throughput_gain())

# %% [markdown]
# ## Say it in an interview
#
# > "Before I quantize, I ask which phase is slow. Weight-only int8 or int4 takes bytes off each decode step, so it helps ITL
# > at small batches, by at most the share of the step that waits for weights. It does little for prefill and can hurt large
# > batches, since weights are widened first; fp8 or W8A8 also multiply faster, and then prefill gains. A queue gains if it waits
# > for decoding, or if memory is short: smaller weights or 8-bit KV are more seats. And I set a quality floor on our own
# > traffic first, because the number of bits does not tell me what it costs."
#
# For traffic that is all decode, some would rather reach for speculative decoding (claim A14): it takes no quality, and
# gains in the same place, small batches. Lesson 08 measures it. The two can be combined.
#
# ## Check yourself
#
# Replace the dots. Keys come from your runs, from shapes and from arithmetic.

# %%
check = checks(found, scores)

# 4 bits in groups of 64, a scale and an offset of 16 bits each: how many bits is a weight, in all?
check("q1", ...)

# %%
# reading 16-bit weights is half of a step. Weights in 8 bits: by which factor is decode faster, at best?
check("q2", ...)

# %%
# the smallest batch of the sweep at which int8 is no faster than 16 bits here (or "never")
check("q3", ...)

# %%
check("q4", ...)  # int4 in groups of 64, this lab's text, the usual floors: "pass" or "fail"?

# %%
# zeros anywhere, 16-bit numbers, 4-byte columns: above which percentage of zeros are that fewer bytes than dense?
check("q5", ...)

# %%
# Llama-3-70B (80 layers, 8 KV heads of 128 numbers) in int8, KV in 16 bits: at how many tokens of context, in all, is KV as many bytes as the weights?
check("q6", ...)

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your kernels.** int8 and int4 are as fast as the code that unpacks them. Marlin, Machete or a TensorRT engine move the
#   batch at which int4 stops paying far out. Measure yours at *your* batch, at p99.
# - **Your quality.** A few hundred tokens of text find a broken model, not a slightly worse one. Long reasoning, code, rare
#   languages and tool calls break first. Evaluate those, with enough items that luck is smaller than the floor.
# - **Large models.** They often lose less by the same rounding than this small one. And some have channels with huge
#   activations, which W8A8 must treat apart. Neither is visible here.
# - **Calibration.** Everything here rounds to the nearest line. GPTQ, AWQ, SmoothQuant and quantization-aware training do better.
# - **Sparsity on a GPU.** 2:4 wants a GPU with such multipliers, and a model retrained for it.
#
# ## Sources
#
# - A7 (and A2, A14): *Serving LLMs: The Latency Anatomy Framework*. B4, B5: *Decomposing LLM Inference Latency for Better
#   Serving Performance*. D10: an article on techniques for lower LLM latency.
# - Dettmers et al., *LLM.int8()*, 2022 (outliers). Frantar et al., *GPTQ*, 2022. Lin et al., *AWQ*, 2023. Xiao et al.,
#   *SmoothQuant*, 2022. Frantar et al., *MARLIN*, 2024 (int4 at larger batches).
# - Mishra et al., *Accelerating Sparse Deep Neural Networks*, 2021 (2:4). H100: NVIDIA's data sheet.
