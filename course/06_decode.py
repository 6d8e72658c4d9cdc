# %% [markdown]
# # 06 · Decode and the memory wall
#
# You double the batch and ITL doesn't move. You keep doubling, and at some point every request is slower. In this
# lesson you measure what a decode step waits for, and learn to predict which doubling is free.
#
# By the end you can put a floor under the ITL of any dense model on any GPU on the back of an envelope, say whether a
# step waits for memory, arithmetic or overhead, and pick the largest batch that keeps an ITL SLO.
#
# - **Five minutes** (five): three clocks in every step, and a bet on doubling the batch.
# - **The lab** (ten): a 70B's step in parts, weights against KV, and long answers.
# - **In the interview** (fifteen): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (twenty, optional): your machine's SLO, utilization, launches and CUDA graphs, the roofline (with
#   three bets), the formulas.

# %%
from course.lab import model_shape, open_lab, simulated_70b
from course.lab.claims import in_short
from course.lab.display import stack
from course.lab.roof import on_paper, this_machine
from course.lessons.lesson_06 import pictures, run, simulated, words
from course.lessons.lesson_06.check import checks
from course.lessons.lesson_06.pictures import roofs_table
from course.lessons.lesson_06.run import room
from course.lessons.lesson_06.words import a4

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# A model generates one token per step. For that, the processor has to
#
# - **read**: every **weight** of the model comes in from memory, once a step, and so does the **KV cache** of each
#   request in the step (the keys and values of its earlier tokens);
# - **multiply**: each weight is used for two operations (**FLOPs**), a multiplication and an addition, per token
#   generated.
#
# Those are two of a step's three **clocks**; the third is **overhead**, everything else the step waits for. Reading
# and multiplying can overlap, and then only the slower of the two counts.
#
# How fast can this machine do either? The run below measures both limits on the spot and puts an NVIDIA H100's data
# sheet beside them.

# %%
roof = this_machine(lab)
roofs_table([roof, on_paper()])

# %% [markdown]
# The number to remember is **FLOP per byte**, how many operations fit into the time it takes to read one byte. A
# 16-bit weight is two bytes, and a single request uses it for two operations, so it needs one FLOP per byte. So at
# batch size 1 the arithmetic units are mostly idle. Here's one request, one step, on the lab's engine.

# %%
alone = run.measure(lab, batch=1)
roof = this_machine(lab, before=roof)
stack(pictures.draw_clocks([alone], roof), words.clocks(alone, roof, simulated.parts_of(lab, alone)))

# %% [markdown]
# The **batch** is the number of requests in a step together. Each brings its own multiplications and its own KV; the
# weights are read once for all of them. (That's true of dense models. A mixture of experts reads more weights as the
# batch grows: [lesson 06b](06b_moe.ipynb).)
#
# ### Predict
#
# So is doubling the batch free? What users see is **ITL** (inter-token latency), which for a decoding request is the
# length of a step.

# %%
four = run.doubled_batches(lab, roof)
bet = lab.predict(
    "doubling",
    f"The batch doubles from 1 to 2, then from {four[2]} to {four[3]} (short contexts). What happens to ITL?",
    list(run.DOUBLINGS.values()),
)
bet

# %%
doubled = run.dots(lab, [lab.run(each, **room(each)) for each in run.batches(lab, four)])
bet.score(run.doublings(doubled))

# %%
before, after = (simulated.parts_of(lab, dot) for dot in doubled[2:])
stack(pictures.draw_clocks([doubled[0], doubled[-1]], roof), words.doublings(doubled, roof, before, after))

# %% [markdown]
# With short contexts, reading barely changes with the batch. Multiplying grows in proportion to it, and so does the
# host's per-request work. *Batching is nearly free until they catch up with reading, at a batch that depends on the
# machine.*
#
# ## The lab
#
# ### The same at 70B
#
# Here's Llama-3 70B on four H100s, simulated. Each bar is one decode step, split by what it waits for, with an ITL SLO
# drawn across. Operators don't look for the "best" batch. They take the largest one that keeps the SLO, because more
# tokens per second per GPU means fewer GPUs. Change the stack, the card, the model.

# %%
simulated.step_parts()

# %%
stack(*(simulated_70b.error_band(simulated.stack(name)) for name in (simulated_70b.TODAY, simulated_70b.OLD)))

# %% [markdown]
# Find out:
#
# 1. Turn CUDA graphs off. What happens to a batch of 1, to one of 256, and to the largest batch within the SLO?
# 2. Set contexts to 8192. Which is the largest batch shown that still fits, and what's the largest part of its step?
# 3. Move to B200s. Which parts shrink, and which don't?
#
# <details><summary>Answer</summary>
#
# 1. A batch of 1 takes over half as long again, because the GPUs wait for launches. Batch 256 doesn't change at all.
#    The largest batch within the SLO falls to less than a third, because no step can be shorter than its launches.
# 2. A batch of 32 fits; 64 doesn't. Weights are still the longest part, but KV is catching up, and no batch makes
#    it cheaper.
# 3. Weights and KV shrink, by the ratio of the bandwidths. Launch gaps, host time and much of the communication stay,
#    so the better the card, the more of the step is overhead. (The host's part is what vLLM 0.19 took per step and
#    request. Newer versions take less: vLLM 0.30 served 256 short requests at a time in up to 30% less time than this
#    forecast ([compared](../docs/simulator.md)). So don't conclude from the large batches that host time dominates.)
#
# </details>
#
# ### Where it hurts: batching past the knee
#
# Where ITL against batch is flat, a larger batch buys throughput for almost nothing. Where it's steep, past the
# **knee**, it mostly costs latency. A throughput chart only levels off there (it falls once requests are preempted), so
# it raises no alarm. Set `max_num_seqs` from the SLO, leave some headroom (prompts share these steps, too: lesson 05),
# and alert on ITL.
#
# ### Weights or KV?
#
# The batch shares the weights. It doesn't share KV, which grows by a token per request and step. At some point a step
# reads as much KV as weights. Where that is depends on the contexts of *all* requests together and on the attention. In
# **multi-head attention** (MHA) each head has its own keys and values; in **grouped-query attention** (GQA) a group
# of heads shares them.

# %%
three = model_shape.three(lab)
pictures.weights_or_kv(three, "Llama-3-70B")

# %% [markdown]
# <details><summary>Things to try, and what they show</summary>
#
# - A single request's step reads more weights than KV, at any length these models were trained for.
# - 16 chats of 2048 tokens: Llama-2-13B (MHA) is over the border, Llama-3-70B (GQA) is nowhere near it.
# - Weights in 4 bits move the border left, since KV overtakes smaller weights sooner. KV in 8 bits moves it back.
# - KV traffic can exceed weight traffic only if the KV cache is larger than the weights, unless requests share a
#   prefix, which is stored once and read for each of them. The dotted line is the KV capacity.
#
# </details>
#
# ### Long answers: ITL drifts
#
# Contexts also grow *while* a request decodes. A reasoning model may write 8,000 tokens before it answers; by the
# end each step reads the KV of them all. The server is the same, and prompts have 1,000 tokens; choose how many
# requests decode together.

# %%
simulated.drift()

# %% [markdown]
# How much longer does the last token take than the first? And where does the line end with 64 requests, or with 128?
# The dashed line is what a dashboard shows when requests are at different places in their answers. It's steady, and
# above what a test with short answers measured. So test an ITL SLO with answers of the length you expect, and size the
# KV cache for prompt *and* answer.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "A dense model's decode step reads all weights once, so ITL's floor is weight bytes over bandwidth. Extra requests
# > are nearly free until the linear layers are compute-bound, at a batch of about 300 on an H100. KV reads and
# > overhead bend ITL sooner."
#
# **Follow-ups**
#
# <details><summary>"You've got CUDA graphs on. What's left of the overhead?"</summary>
#
# Graphs replace a step's launches with one. That leaves the host's other work: scheduling, preparing inputs, sampling's
# bookkeeping, detokenizing. Async scheduling hides most of it behind the step before. What remains is what step n+1
# needs from step n, kernels that fall short of the peaks, all-reduces (with tensor parallelism, the GPUs adding up
# their partial results), and sampling itself (top-p over a large vocabulary isn't free).
#
# </details>
# <details><summary>"GPU utilization is 100%. Are we at the limit?"</summary>
#
# That number only says that some kernel was running. It can read 100% for a single request, with the arithmetic units
# mostly idle. I'd look at DRAM activity (close to MBU) and tensor-pipe activity (close to MFU):
# `DCGM_FI_PROF_DRAM_ACTIVE` and `DCGM_FI_PROF_PIPE_TENSOR_ACTIVE`. High MBU with a small batch means there's
# arithmetic to spare for more requests, if KV has room.
#
# </details>
#
# **"How large a batch should we run?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "As large as fits in memory." | "The largest whose ITL p99 meets the SLO." | "I'd measure ITL against batch at our contexts, with answers at their longest. Then I'd take whichever comes first of the SLO, KV capacity and the knee, minus headroom for prompts in the same steps. And I'd alert on ITL, because throughput won't tell us." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>Where's the knee, and why doesn't attention have one?</summary>
#
# P weights in W bytes, a card with F FLOP/s and M bytes/s, B requests with c tokens of context each, k bytes of KV per
# token, L layers, q numbers in a query (heads × head size).
#
# 1. Linear layers: read W bytes once, do 2 P B FLOPs for a batch of B.
# 2. Memory-bound while 2 P B / F < W / M, so up to B = (F / M) × W / (2 P). In 16 bits W = 2 P: B = F / M.
# 3. H100: 989e12 / 3.35e12 ≈ 295. Contexts don't appear in it.
# 4. Attention: each request reads its own KV, c k bytes, for 4 L q c FLOPs. Its intensity is 4 L q / k, with neither B
#    nor c in it.
# 5. In 16 bits that's query heads per KV head: 1 with MHA, 8 for a 70B. That's far below 295, so attention is
#    memory-bound at every batch. (MLA is the exception: 06b.)
# 6. The step is their sum: ITL ≥ max(W/M, 2PB/F) + B c k / M + overhead.
#
# </details>
#
# ## Check yourself

# %%
check = checks(doubled, roof)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### The largest batch that keeps the SLO
#
# Now on this machine. Suppose your SLO allows three times the ITL of a single request (the shortest measured so far).

# %%
single = [alone, doubled[0]]
largest = lab.predict(
    "slo",
    f"What's the largest batch that keeps ITL within {run.SLO:g} times that of a single request, on this machine?",
    unit="requests",
    between=(1, run.furthest(single, roof)),
)
largest

# %%
sweep = run.sweep(lab, single)  # one run a batch, up to the batch that breaks the SLO
largest.score(run.slo(sweep, single))

# %% [markdown]
# Drag the SLO. Every point is a batch size.

# %%
pictures.slo_explorer(sweep, run.slo_seconds(single) / run.SLO, run.SLO)

# %%
words.slo(sweep, single)

# %% [markdown]
# ### How much of the machine is used?
#
# **MBU** (model bandwidth utilization) is the least time that reading could take, as a share of the step. **MFU** is
# the same for arithmetic. The two can go on side by side, so what's left is 1 - max(MBU, MFU): overhead, and
# **kernels** (the processor's programs, about one per operation) that fall short of its peaks. Read MBU at small
# batches and MFU at large ones.

# %%
roof = this_machine(lab, before=roof)
stack(roofs_table([roof]), pictures.dots_table(sweep, roof))

# %% [markdown]
# ### The third clock: profile a step
#
# Where does overhead come from? PyTorch's profiler can record every operation of a step, if the engine launches them
# one by one from Python. That makes the step longer.

# %%
profiled = run.profile_steps(lab, batch=1)
stack(pictures.profile_table(profiled), words.profiled(profiled, alone))

# %% [markdown]
# <details><summary>Look at the timeline yourself, here or on a GPU server</summary>
#
# `profiled.save()` writes a trace that opens in [Perfetto](https://ui.perfetto.dev): zoom into one step and look at
# the gaps.
#
# On a GPU box (*not yet measured here*), Nsight Systems shows kernels and host side by side, at lower overhead:
#
# ```sh
# nsys profile --trace-fork-before-exec=true --cuda-graph-trace=node \
#     vllm bench latency --model meta-llama/Llama-3.1-8B-Instruct \
#     --num-iters-warmup 5 --num-iters 1 --batch-size 16 --input-len 512 --output-len 8
# nsys stats report1.nsys-rep        # kernels by total time: products (gemm), attention (flash), the small ones
# ```
#
# In the timeline, look for white space between kernels of a decode step, where the GPU waits for its host. For
# PyTorch's view of a vLLM server: `--profiler-config '{"profiler": "torch", "torch_profiler_dir": "./trace"}'`, then
# POST to `/start_profile` and `/stop_profile`.
#
# </details>
#
# The cure is to launch less often. **CUDA graphs** record a step's kernels once and replay them with one call.
# **torch.compile** fuses small operations (norm and residual, SiLU and multiplication) into fewer kernels. On a CPU,
# this engine does the same: one call into C++ for all layers.

# %%
slower = lab.predict(
    "launches",
    "Python launches each operation instead. How many times as long does a single request's step take?",
    unit="x",
    between=(1, 8),
)
slower

# %%
one_by_one = [lab.run(each, **room(each), **run.OP_BY_OP) for each in run.batches(lab, (1, four[2]))]
apart, whole = run.dots(lab, one_by_one), [doubled[0], doubled[2]]
slower.score(run.launches(whole, apart))

# %%
words.launches(whole, apart)

# %% [markdown]
# vLLM does both by default (`-O2`); `--enforce-eager` turns both off. SGLang's switch is `--cuda-graph-backend-decode
# disabled`. You pay with start-up time, memory for the graphs, and padding to the recorded batch sizes. By default
# vLLM replays a step of decodes alone as one graph, and a step that also prefills as several pieces with attention
# launched between them (`FULL_AND_PIECEWISE`). Steps larger than the largest recorded one gain little from graphs,
# because the GPU is busy long enough for its host to run ahead.
#
# <details><summary>What graphs don't remove: the host's other work, and sampling</summary>
#
# **Async scheduling** hides the host's other work: [lesson 05](05_first_token.ipynb) has a picture to drag.
# **Sampling** runs on the GPU, after the last layer. Top-p over a vocabulary of 128k took this engine 1.3 milliseconds
# more than greedy for 128 requests on an H100, an eighth of the step ([measured](../docs/measured.md)). At another
# batch size kernels also add numbers up in another order, so greedy output can change with the load. Batch-invariant
# kernels (vLLM: `VLLM_BATCH_INVARIANT=1`) avoid that, but they're slower.
#
# </details>
#
# ### The roofline
#
# The x axis is **arithmetic intensity**, operations per byte read; the y axis is operations per second. The roof is
# what the machine allows. Memory is the limit on the slope and arithmetic on the flat part, and they meet at the
# **bend** (the *ridge point*). A step is its **linear layers**, then its **attention**, each with an intensity of its
# own, so its limit lies at or below the roof. Each press adds a dot.

# %%
pictures.roofline_lab(lab, roof, sweep)

# %% [markdown]
# Say where the dot will land before you press: batch 4 with a few words; batch 8; batch 8 with about 1000 tokens.
#
# <details><summary>Answer</summary>
#
# With short contexts and 16-bit weights, intensity is about the batch, so each doubling moves the dot right by a
# factor of two, and up by nearly as much until it nears the bend. Long contexts move it left, since each request
# brings bytes that it shares with no other. How far depends on the model, since a large one has many weights for each
# token of KV.
#
# The linear layers bend at a batch of about *FLOP/s divided by bytes/s*, at any context: small for most CPUs (not those
# with matrix units, such as Intel's AMX), about 300 for an H100. Attention's intensity is the same in any batch, so
# more requests never bring it to the bend. Dots stay below even that, because the roofline leaves out overhead and
# kernels that fall short of the peaks. On a CPU they also bend more gently, because reading and multiplying take turns
# on the same few cores.
#
# </details>
#
# ### Longer contexts, on this machine
#
# Here one batch runs with longer and longer contexts, until KV outweighs the weights (if memory allows).

# %%
batch, context = run.longest_contexts(lab, roof)
growth = lab.predict(
    "contexts",
    f"{batch} requests, and contexts grow from a few words to about {context:,} tokens. How much does ITL grow?",
    list(run.GROWTH),
)
growth

# %%
longer = [lab.run(each, **room(each)) for each in run.longer_and_longer(lab, roof)]
grown = run.dots(lab, longer)
growth.score(run.growth(grown))

# %%
words.growth(grown, roof)

# %% [markdown]
# ### The arithmetic
#
# $P$ weights ($W$ bytes), $k$ bytes of KV per token; $B$ requests with contexts of $c$ tokens; $L$ layers, $q$
# numbers in a query (heads × head size); $F$ FLOP/s and $M$ bytes/s; $o$ seconds of overhead that nothing hides:
#
# $$t_{\text{linear}} = \max\!\left(\frac{W}{M},\; \frac{2\,P\,B}{F}\right), \qquad t_{\text{attention}} =
# \max\!\left(\frac{B\,c\,k}{M},\; \frac{4\,L\,q\,c\,B}{F}\right), \qquad \text{ITL} \ge t_{\text{linear}} +
# t_{\text{attention}} + o$$
#
# - **The linear layers** are compute-bound from $B = \frac{F}{M} \cdot \frac{W}{2P}$ on, at *any* context. With
#   16-bit weights that's $B = F/M$; in $b$ bits $\frac{b}{16} F/M$, if products still run in 16 bits.
# - **Attention** has $4\,L\,q/k$ operations per byte in any batch and context. In 16 bits that's the query heads per
#   KV head: 1 with MHA, 8 for Llama-3-70B. GPUs bend far above that, so it's memory-bound at *every* batch. (MLA comes
#   close to the bend: [lesson 06b](06b_moe.ipynb).) At small batch and long context a kernel also has to split each
#   request's KV over the GPU and merge the parts, as FlashDecoding does, or most of the GPU would idle.
# - **KV equals weights** at $B\,c = W/k$. Going from MHA to GQA multiplies that by the group size.
#
# On the back of an envelope, *weight bytes over bandwidth is a floor under ITL*. With an 8B on one H100, good servers
# land at some 1.4 times that at batch size 1; with a 70B on four, at 1.5 to 1.8 times. Small models land much higher.
#
# **Tensor parallelism** splits every matrix over $n$ GPUs, so $F$ and $M$ both grow $n$-fold. The floor drops, and the
# bend stays. But twice per layer the GPUs have to add up their partial results (an **all-reduce**), and that isn't
# free (batch 64, contexts of 1024; two H100s have no room for that much KV):

# %%
simulated.tp_table()

# %% [markdown]
# Small all-reduces are limited by latency, so they don't get shorter with more GPUs, and neither does overhead. Their
# share grows, so twice the GPUs don't halve ITL. (One-shot all-reduces, reductions in the switch (NVLS), and fusing the
# all-reduce with the norm after it shorten that latency. An NVLink domain of 72 GPUs lets TP go beyond eight; the
# argument stays.)
#
# **The code** that counts bytes in `minillm bench decode`, and the code that prices a step in the simulator:

# %%
import inspect

from course.simulator.cost.roofline import StepTimeModel
from minillm.model.arithmetic import ModelBytes

print(inspect.getsource(ModelBytes.step))
print(inspect.getsource(StepTimeModel.price))
print(inspect.getsource(StepTimeModel._linear))
print(inspect.getsource(StepTimeModel._attention))

# %% [markdown]
# ### What articles say

# %%
in_short(
    a4(grown, list(three.values())),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --enable-mfu-metrics
# sglang serve --model-path Qwen/Qwen3-8B --enable-mfu-metrics --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --random-input-len 512 --random-output-len 256 --ignore-eos \
#     --max-concurrency 32 --num-prompts 320
# ```
#
# Go through `--max-concurrency` 1, 2, 4 and so on until ITL breaks your SLO; `vllm:num_requests_running`
# (`sglang:num_running_reqs`) says whether the batch really got that large. ITL should start out nearly flat and then
# climb while throughput levels off.
#
# MBU is `rate(vllm:estimated_read_bytes_per_gpu_total[1m])` over your card's bytes per second, MFU
# `rate(vllm:estimated_flops_per_gpu_total[1m])` over its FLOP/s (estimates; the same names under `sglang:`). MBU is
# high from the start, MFU grows with the batch. Restart with `--enforce-eager` (SGLang: `--cuda-graph-backend-decode
# disabled`): small batches suffer most, because launches are a larger share of a short step.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your GPU's knee.** The data sheet says where the roof bends; kernels reach a share of either limit, and not the
#   same share. Measure ITL against batch on your own server.
# - **A 70B without CUDA graphs.** Its steps are extrapolated: vLLM 0.19 with 2023's launch overhead. Measure yours with
#   `--enforce-eager`.
# - **Caches.** A CPU with a very large cache keeps part of a small model in it, and MBU can then exceed 100%.
# - **Noise.** Each point is the median of a few steps; "restless" means that something else ran. The machine's limits
#   are medians, too, here and in lesson 09.
#
# ## Sources
#
# - A4: *Serving LLMs: The Latency Anatomy Framework*.
# - The roofline: Williams, Waterman and Patterson, *Roofline: An Insightful Visual Performance Model*, 2009. Both
#   clocks for decoding: Pope et al., *Efficiently Scaling Transformer Inference*, 2022. GQA: Ainslie et al., 2023.
# - H100: NVIDIA's data sheet. The stack of 2023: times of Llama-2-70B published with *Splitwise* (Patel et al.,
#   2024). vLLM 0.19 (spring 2026) on an RTX 4090: from the validation data of LLMServingSim, moved to the H100.
# - This engine on an H100: [measured](../docs/measured.md). At batch 1 an MBU of 81% with an 8B model and of 32% with
#   a 0.6B one, against a copy's bandwidth (6.18 ms for the 8B's 15.0 GB: 1.38 times the data sheet's floor);
#   attention over large batches reads KV at 98% of it. At TP 4, Llama 3.1 70B: ML.ENERGY's leaderboard has 16.6 ms at
#   batch 8, 1.6 times the floor.
# - MBU: Agarwal et al., *LLM Inference Performance Engineering: Best Practices* (Databricks, 2023).
# - CUDA graphs and compilation: vLLM's documentation, *Optimization Levels* and *CUDA Graphs*. Profiling: vLLM's
#   *Profiling vLLM*; the profiler of PyTorch. GPU counters: NVIDIA DCGM's field identifiers.
