# %% [markdown]
# # 06 · Decode and the memory wall
#
# "We doubled the batch and nobody noticed. We doubled it again, and everybody complained." Both can be true of one
# server. In this lesson you measure what a decode step waits for, and learn to say beforehand which doubling is free.
#
# You will be able to work out the shortest possible ITL of any model on any GPU on the back of an envelope, to say
# when the KV cache matters and when the weights do, and to tell where batching stops paying.
#
# - **Surface**: two clocks in every step, and a bet on doubling the batch.
# - **Guided**: a roofline that you fill with real steps; weights against KV; the same at 70 billion weights.
# - **Deep dive**: the formula, the code, a claim put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_06 import bets, bytes_map, instrument, pictures, shapes, sim_70b, steps
from course.lab.lesson_06.checks import checks
from course.lab.lesson_06.claims import a4
from course.lab.lesson_06.roofline import on_paper, roofs_table, this_machine
from course.lab.lesson_06.traffic import room, side_by_side

lab = open_lab()

# %% [markdown]
# ## Surface
#
# A model writes one token a step. For that, the processor must do two things:
#
# - **Read.** Every **weight** (the numbers the model is made of) comes in from memory, once a step. So does the **KV cache** of
#   each request in the step: the keys and values that the model has kept of every earlier token.
# - **Multiply.** Each weight is used in two operations, a multiplication and an addition, for each token being written. One
#   such operation is a **FLOP** (floating-point operation).
#
# How fast can this machine do either? Memory **bandwidth** is bytes read per second. The cell below measures both limits on
# the spot, and puts an NVIDIA H100 beside them, from its data sheet.

# %%
roof = this_machine(lab)
roofs_table([roof, on_paper()])

# %% [markdown]
# The last number is the one to remember. **FLOP per byte**: how many operations fit into the time of reading one byte. A weight
# in 16 bits is two bytes, and a lone request uses it for two operations: one FLOP per byte. So for a lone request the
# multipliers have next to nothing to do. See it happen: one request, one step of the real engine.

# %%
alone = steps.measure(lab, batch=1)
pictures.draw_two_clocks([alone], roof)

# %% [markdown]
# Sky blue is what reading takes at least, and it is nearly all weights. Yellow is what multiplying takes at least. Green is
# what the step took: longer than either, since no program reaches the machine's limits. (If it is not, something else
# was running while the limits were measured: run that cell again.)
#
# Whoever waits for memory with the multipliers idle is at the **memory wall**. The way out: let more requests share one
# reading. The **batch** is the number of requests that are in a step together; each brings its own multiplications, and
# the weights are still read once.
#
# ### Predict
#
# So doubling the batch is free. Is it? Readers feel **ITL** (inter-token latency: the gap between one token and the next), which
# for a request that is decoding is the length of a step.

# %%
bet = lab.predict(
    "doubling",
    "The batch doubles from 1 to 2, then from 64 to 128 (short contexts). What happens to ITL?",
    list(bets.DOUBLINGS.values()),
)
bet

# %%
traffic = [side_by_side(batch) for batch in (1, 2, 64, 128)] * steps.rounds(lab)
doubled = steps.dots(lab, [lab.run(each, **room(each)) for each in traffic])
bet.score(bets.doublings(doubled))

# %%
pictures.draw_two_clocks(doubled[:2], roof)

# %%
pictures.draw_two_clocks(doubled[2:], roof)

# %% [markdown]
# Two clocks run in every step. Reading hardly changes with the batch: the weights are the same. Multiplying doubles
# whenever the batch does. Compare the two pictures: as long as blue is *much* the longer bar, another reader is
# nearly free. Once yellow is the longer one, every reader pays for each newcomer, and all of them together gain
# next to nothing.
#
# That is the surface: *batching is free until the multipliers catch up with the memory, and where that happens is a property
# of the machine.*

# %% [markdown]
# ## Guided
#
# ### What each doubling costs, and what it brings
#
# The whole range, short contexts. To the right is more text per second for everybody together; upwards is a longer
# wait for each. The cell measures every batch more than once, so give it a moment.

# %%
sweep = steps.sweep(lab)
pictures.draw_price(sweep)

# %% [markdown]
# Where the curve is flat, a larger batch brings throughput for almost nothing. Where it is steep, it brings waiting
# for almost nothing. In between is the **knee**. On most CPUs all three are in this picture; a large GPU may still
# be on the flat part at its right end. Good operating points are at the knee or just before it; which one depends
# on the ITL that you have promised.
#
# ### Where it hurts: batching past the knee
#
# Compare two rows of the next table: past the knee, each doubling raises ITL by a larger factor than throughput. Nothing in a throughput chart
# tells that a server has gone too far; it is as high as ever. Only ITL tells. So take the largest batch that keeps the ITL
# you have promised.
#
# ### How much of the machine is used?
#
# **MBU**, model bandwidth utilisation: the time that reading takes at least, as a share of the time that the step took. **MFU** is the
# same for multiplying. They answer "is there anything left to gain here?" without asking what a competitor reaches.

# %%
steps.dots_table(sweep, roof)

# %% [markdown]
# MBU is the honest figure at small batches, MFU at large ones. A dashboard's "GPU utilisation" is neither: it says that some kernel was
# running, and it reads 100% for a lone request with the multipliers idle.
#
# ### The roofline
#
# One picture holds all of this. Across: operations for each byte read, the **arithmetic intensity**. Upwards: operations per
# second. The roof is what the machine allows: on the slope memory is the limit, on the flat part arithmetic. Where the roof
# bends, both take equally long. Press the button: each press is a run of the real engine, and a dot.

# %%
instrument.RooflineLab(lab, roof, sweep)

# %% [markdown]
# Say first where the dot will fall.
#
# | batch | context | ask yourself |
# |---|---|---|
# | 4 | a few words | on the slope or on the flat part? |
# | 8 | a few words | one doubling: how far to the right, how far up? |
# | 8 | about 1000 | the same batch: why is the dot further left? |
# | 64 | a few words | how much of the roof is left above it? |
#
# ### Why a CPU gets there so early
#
# With short contexts and 16-bit weights, intensity is about the batch itself: two operations for each weight and
# request, two bytes for each weight. So the roof bends, roughly, at a batch of *FLOP/s divided by bytes/s*. That
# ratio is small for most CPUs (not for those with matrix units, such as Intel's AMX) and large for a GPU, whose
# multipliers grew much faster than its memory.
#
# Real steps bend more softly than the roof. A GPU has thousands of threads, some of which multiply while others wait for
# memory, so that the longer clock hides the shorter one. A CPU's few cores mostly do one after the other, and the two clocks add up.
#
# ### Weights or KV?
#
# Weights are shared by the batch. The KV cache is not: each request has its own, and it grows by a token a step. So there is
# a border at which a step reads as much KV as weights. It depends on the contexts of *all* requests together, and on how the
# model's attention keeps its keys and values. In **multi-head attention** (MHA) each head has its own. In **grouped-query
# attention** (GQA) a group of heads shares one.

# %%
three = shapes.three(lab)
bytes_map.crossover_table(list(three.values()))

# %%
bytes_map.weights_or_kv(three, "Llama-3-70B")

# %% [markdown]
# Move the handles. Things to find:
#
# - One request, however long its conversation: on which side of the border is it? (No border in the picture? Then it lies to
#   the right of it: the table above says where.)
# - Llama-2-13B (MHA) against Llama-3-70B (GQA): which one is over the border with 16 chats of 2048 tokens?
# - Weights in 4 bits: the border moves to the *left*. Shrinking the weights makes the KV matter sooner. KV in 8 bits moves it back.
# - A step reads everything that it keeps, once. So KV can only outweigh the weights in reading if it also fills more *memory*
#   than the weights do. Is there room for that? (Prefixes that requests share are the exception: kept once, but most
#   attention kernels read them once for each request.)
#
# And here? The same batch, longer and longer contexts, until the KV is a good part of the bytes. Commit yourself again.

# %%
growth = lab.predict(
    "contexts",
    "One batch, and contexts grow from a few words to the longest of the run. ITL grows by:",
    list(bets.GROWTH),
)
growth

# %%
longer = [lab.run(each, **room(each)) for each in steps.longer_and_longer(lab)]
grown = steps.dots(lab, longer)
growth.score(bets.growth(grown))

# %% [markdown]
# Compare the two factors: of the bytes, and of ITL. A byte of KV can cost more to read than a byte of weights: attention reads
# many small pieces from all over the pool, and it multiplies, too. No batch makes it cheaper, since no two requests share it.
#
# ### The same at 70 billion weights
#
# Llama-3 70B on four H100s, simulated: each bar is one decode step, cut by what it waits for. First under a stack of today, with
# **CUDA graphs** (a recorded step, launched as a whole). Then under one of 2023, measured on H100s, which launched each small
# program of the GPU by itself. Last, what the data sheet alone would promise. The two tables below say how far off the first two are.

# %%
sim_70b.step_parts()

# %%
simulated_70b.error_band(sim_70b.stack(simulated_70b.TODAY))

# %%
simulated_70b.error_band(sim_70b.stack(simulated_70b.OLD))

# %% [markdown]
# Things to find:
#
# - In the stack of 2023, small batches stand on a floor that is neither reading nor multiplying: the host launches
#   programs, and the GPUs wait for it. There, doubling a small batch costs next to nothing, for a reason that no roofline shows.
# - Doubling from 64 to 128 costs something in each stack, though the roof is far from bending. Which part grew?
# - Contexts of 8192 tokens: which batch is the largest with room, and what share of its step is KV?
#
# Can a batch of 70B get past the bend at all? Move the dot.

# %%
sim_70b.on_the_roof()

# %% [markdown]
# With short contexts a large batch can. Otherwise two things stop it. Some batches have no room for their KV on four
# H100s. And with long contexts there is a border (dotted) that no batch crosses: in the limit a step reads nothing
# but KV, and KV gets no cheaper by sharing. Decoding long contexts waits for memory at *every* batch. That is why
# GQA, KV in 8 bits and latent attention exist.

# %% [markdown]
# ## Deep dive
#
# **The arithmetic.** A model of $P$ weights ($W$ bytes of them), with $k$ bytes of KV a token; $B$ requests with contexts of $c$ tokens;
# attention over $L$ layers with $q$ numbers in a query (heads x head size). A machine with $F$ FLOP/s and $M$ bytes/s:
#
# $$t_{\text{read}} = \frac{W + B\,c\,k}{M}, \qquad t_{\text{multiply}} = \frac{B\,(2P + 4\,L\,q\,c)}{F}, \qquad
# \text{ITL} \ge \max(t_{\text{read}},\; t_{\text{multiply}})$$
#
# $$\text{intensity} = \frac{B\,(2P + 4\,L\,q\,c)}{W + B\,c\,k} \;\longrightarrow\; \frac{2P + 4\,L\,q\,c}{c\,k} \quad (B \to \infty)$$
#
# - **KV equals weights** when $B\,c = W/k$. MHA to GQA divides $k$ by the size of a group, and multiplies the border by it.
# - **The roof bends** at an intensity of $F/M$. With 16-bit weights ($W = 2P$) and short contexts that is $B \approx F/M$. In $b$ bits
#   it is $B \approx \frac{b}{16} F/M$, if it still multiplies in 16 bits: quantized weights bring the knee nearer.
# - **Never compute-bound** when the limit on the right is below $F/M$.
# - With **tensor parallelism** (each GPU holds a slice of every matrix) over $n$ GPUs, $F$ and $M$ both grow $n$-fold: the floor
#   sinks, and the knee stays where it is.
#
# The envelope version: *bytes of weights over bytes per second is the shortest ITL there is.*
#
# **The code.** `minillm bench decode` measures MBU just so (`minillm/model/arithmetic.py`), and this is how the simulator prices a step
# (`minillm/simulate/cost/roofline.py`): the same two clocks, each with a fitted share of its peak, and what a roofline leaves out.

# %%
import inspect

from minillm.model.arithmetic import ModelBytes
from minillm.simulate.cost.roofline import StepTimeModel

print(inspect.getsource(ModelBytes.step))
print(inspect.getsource(StepTimeModel.price))

# %% [markdown]
# Look for `serial`: the share of the shorter clock that does not run beside the longer one. It is 0 on a GPU and near 1 on a
# CPU; that is the soft bend of a moment ago.
#
# **The claim, measured.** An article says that decoding is dominated by reading the KV cache.

# %%
a4(grown, list(three.values()))

# %% [markdown]
# ## Say it in an interview
#
# > "A decode step reads all weights once, and each request's KV. At small batches that is mostly weights, so ITL is about weight bytes
# > over bandwidth, and more requests in the step are nearly free. That ends in one of two ways. With short contexts the multipliers
# > catch up, at a batch near FLOP/s over bytes/s. With long ones KV takes over, and batching does not help with it; then I want GQA,
# > 8-bit KV or shorter contexts. I would plot ITL against throughput by batch, and stay at the knee."
#
# ## Check yourself
#
# Replace the dots. Keys come from the steps above, from the models' shapes and from the data sheet.

# %%
check = checks(sweep, roof)

# Llama-3-70B in bf16 on four H100s, one request, no context yet: by the data sheet,
# how many milliseconds does a step take at least?
check("q1", ...)

# %%
# at how many tokens of context, in all, is Llama-2-13B's KV as many bytes as its weights? (both bf16)
check("q2", ...)

# %%
check("q3", ...)  # at the largest batch of the sweep, which clock runs longer here: "reading" or "multiplying"?

# %%
# the smallest batch of the sweep with at least 80% of its best throughput
check("q4", ...)

# %%
# Llama-3-70B on H100s, contexts of 8192 tokens: from which batch on does a step wait for
# arithmetic? or "never"
check("q5", ...)

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your GPU's knee.** The data sheet says where a roof bends; programs reach only a share of either limit, and not the same share.
#   Measure ITL against batch on your own server; it takes ten minutes.
# - **Caches.** A processor with a very large cache keeps part of a small model in it, and then reads faster than memory. MBU
#   above 100% can also mean that.
# - **Experts.** A mixture-of-experts model reads only the experts that some token in the batch was sent to. At small batches that is a
#   fraction of its weights, and it grows with the batch. Nothing in this lesson has that shape.
# - **Prompts in the same step.** Everything here is pure decoding. A prompt that is read in the same step brings hundreds of
#   tokens, and moves the whole step past the bend: lessons 03 and 05.
# - **Noise.** Each point is a median of few steps. The word "restless" under a prediction means that the machine did something else as well.
#
# ## Sources
#
# - A4: *Serving LLMs: The Latency Anatomy Framework*.
# - The roofline: Williams, Waterman and Patterson, *Roofline: An Insightful Visual Performance Model*, 2009. Both clocks for
#   decoding: Pope et al., *Efficiently Scaling Transformer Inference*, 2022. GQA: Ainslie et al., 2023.
# - H100: NVIDIA's data sheet. The stack of 2023: times of Llama-2-70B published with *Splitwise* (Patel et al., 2024). Today's:
#   vLLM 0.19 on an RTX 4090, from the validation data of LLMServingSim, moved to the H100.
# - MBU: Agarwal et al., *LLM Inference Performance Engineering: Best Practices* (Databricks, 2023).
