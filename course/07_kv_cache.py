# %% [markdown]
# # 07 · KV cache: a working set
#
# The multipliers are half idle. The queue grows all the same, and nobody is let in. Somebody has bought a second GPU, and it
# helped, and nobody can say why. What ran short was neither arithmetic nor bandwidth: it was room, for the **working set** (what
# must be in memory at once).
#
# You will be able to work out on an envelope how many users fit on a GPU, to read a pool that is full, to say what
# happens to those who are thrown out of it, and to name the price of each way to make the cache smaller.
#
# - **Surface**: the room that a chat takes, and a bet on how many fit.
# - **Guided**: the pool, block by block and step by step; the bill; windows and rounding, and what they make the model
#   forget; the same at 70 billion weights.
# - **Deep dive**: the formula, the code, seven claims put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_07 import bets, charts, claims, instrument, kv_bytes, losses, needle, sim_70b, traffic
from course.lab.lesson_07.block_map import draw_frame
from course.lab.lesson_07.checks import checks
from course.lab.lesson_07.claims import a11, a12, a15, b2, d8, d12, d14
from course.lab.lesson_07.kv_bytes_picture import kv_bytes_explorer

lab = open_lab()

# %% [markdown]
# ## Surface
#
# To write a token, a model looks back at every token before it. It does not read them again: of each, it has kept two rows of
# numbers in every layer, a **key** (what the token can be found by) and a **value** (what it has to say). These are the **KV
# cache**. It grows by one token per token, and every running request has its own.
#
# The memory for it is set aside when the server starts: the **pool**. It is cut into **blocks** of some tokens each (often
# 16), and a request is given one block after another as its text grows. That is **paging**, as an operating system does it with
# a program's memory; the idea came to LLM servers as *PagedAttention*.
#
# Eight requests come to the real engine. Each cell below is a block, with the number of the request that holds it, filled
# as far as tokens are kept in it. Striped blocks are **shared**: requests that begin with the same page use the same blocks.

# %%
roomy = traffic.eight(lab, traffic.ROOMY_POOL)
draw_frame(roomy, title="Eight requests, room for all: who holds which block?")

# %% [markdown]
# Below the blocks is the whole run: a row a request (blue: it reads its prompt, green: it writes), then how much of the pool
# was held. The line marks the step that the blocks are shown after.
#
# What one token takes follows from the shape of the model alone:
#
# *2 (key and value) × layers × heads that have keys of their own × numbers in a head × bytes of a number*
#
# ### Predict
#
# That is all one needs to know how many users fit. Take the shape from the question; a block is 16 tokens, and a chat takes
# whole blocks.

# %%
how_many = kv_bytes.question(lab, traffic.seats_gb(lab), traffic.chat_tokens(lab))
bet = lab.predict("seats", how_many, unit="chats", whole=True)
bet

# %%
full = traffic.filling(lab)
bet.score(bets.seats(full, traffic.chat_tokens(lab)))

# %%
draw_frame(full, title="One chat more than fits: who waits?")

# %% [markdown]
# The last chat waits, and not for a faster processor: for somebody to leave. An engineer who looks at "GPU utilisation" sees
# nothing of that. That is the surface: **concurrency is memory for KV, divided by the KV of a request**.

# %% [markdown]
# ## Guided
#
# ### The pool, live
#
# Eight people again, in half the room. On demand it suffices; try *max_len*, then 32 and 24 blocks. Press play, or drag the step.
# *Follow* somebody: the line joins the blocks in the order of the text, and small numbers count them: the **block table**.

# %%
pool = instrument.Pool(lab, traffic.eight(lab, traffic.SMALL_POOL))
pool

# %% [markdown]
# Things to find:
#
# | do | look for |
# |---|---|
# | follow request 4, or 6 | its first blocks are striped: somebody else paid for them. The others lie anywhere in the pool. |
# | go to the last steps | dashed blocks: nobody holds them, and they still keep a prefix. They are *free*. |
# | *max_len*, run | nearly empty blocks, a long line of waiting requests |
# | *keep prefixes* off, run | no stripes, and more blocks held |
# | *on_demand*, 24 blocks, run | crossed-out stretches: somebody is thrown out, and reads everything again |
#
# ### Where the room goes
#
# How many blocks should a request be given when it arrives? Its prompt is known, the length of its answer is not. Early
# servers set the longest possible request aside (`kv_reservation="max_len"`). With paging a request gets a block when it
# has filled the last one (`"on_demand"`). The same eight requests, the same pool:

# %%
traces = traffic.reservations(lab)
charts.traces_table(traces)

# %%
draw_frame(traces["max_len"])

# %% [markdown]
# Empty room that somebody holds is **internal fragmentation**. With paging, it is less than one block for each request. Compare
# the columns *running* and *steps*: the machine did the same work, in more steps, with fewer at a time.
#
# ### Where it hurts: thrashing
#
# Paging lets in more than may fit in the end; that is the point of it. So the pool may run out under running requests. Then one
# of them, the last to come, is **preempted**: its blocks go to the others. Later it gets its place back in one of two ways.
# *Recompute*: it reads its prompt, and what it had written, once more. *Swap*: its blocks were copied to the host's memory,
# and are copied back.

# %%
twice = lab.predict(
    "twice",
    f"The pool shrinks to {traffic.TIGHT_POOL} blocks. How much of all computed tokens will have been computed before?",
    list(bets.TWICE),
)
twice

# %%
shrunk = traffic.thrash(lab, roomy, traces["on_demand"])
tight = shrunk["recompute"][traffic.TIGHT_POOL]
twice.score(bets.done_twice(tight))

# %%
draw_frame(tight)

# %%
charts.traces_table({f"{way}, {pool} blocks": trace for way, of in shrunk.items() for pool, trace in of.items()})

# %% [markdown]
# Look for the requests that are thrown out more than once. A pool that is a little too small costs a little; one that is much
# too small does much of its work twice, and serves no request sooner: compare the steps until all are done. An
# operating system calls that **thrashing**, and it ends there as here: by letting in fewer. (Slots, `max_num_seqs`, are a limit on that.
# So is admission by the whole prompt, which the chats above were admitted by.) Prefix caching softens the blow: the blocks of
# whoever is thrown out stay findable until somebody else is given them.
#
# ### The bill
#
# Now change the model instead of the traffic. In **multi-head attention** (MHA) each head keeps a key and a value of its own. In
# **grouped-query attention** (GQA) a group of heads shares one pair; in **multi-query attention** (MQA) all of them do.
# **Latent attention** (MLA) keeps one short vector from which all keys and values are made again.

# %%
shapes = kv_bytes.accounts(lab)
kv_bytes_explorer(shapes, "Llama-3-70B")

# %% [markdown]
# Things to find:
#
# - Llama-3-70B with the heads that it has, and with MHA: how many chats of 1500 tokens fit?
# - Double the tokens of a chat: does the bill double, or is it four times as high?
# - MQA and MLA on four GPUs: MQA has an eighth of GQA's heads, and its bar is half as long; MLA's is longer than GQA's. One head,
#   or one vector, cannot be cut in four, so each GPU keeps a copy. (Spreading requests over GPUs, not heads, avoids that.)
# - A window of 2048: at which length does it begin to help, and what does it do for chats of 1500?
#
# Is the arithmetic true? Claim A11, in the deep dive, holds it against what a pool of the engine really allocates.

# %% [markdown]
# ### More KV for each, fewer seats
#
# The same short requests, the same pool. The only change is how much each of them sets aside. Nobody computes a token more.

# %%
crowd = traffic.crowded(lab)
charts.crowd_table(crowd)

# %% [markdown]
# Fewer run at once, so each step reads all weights for fewer tokens (lesson 06), and throughput falls. How far it falls
# depends on where this machine's knee is. On an empty server, with room for everybody, the same change costs nothing.
#
# ### A window: what does it free, and what does it forget?
#
# A **sliding window** lets a token see only the last so many tokens. Whoever falls out of it is seen by nobody any more, so its
# blocks go back to the pool. **Sinks** are the first few tokens, which stay: models rest attention there that has to
# go somewhere. One request grows, on the real engine:

# %%
grown = traffic.growths(lab)
charts.draw_window(grown)

# %% [markdown]
# The blocks come back, and from there on the request costs the same however long it gets. Now the other side of it. A passage
# with numbers in it that nobody could guess (a **needle**; the other text is the hay) is said once; then comes other text; then
# the same passage again. A model that still sees the first time foresees nearly every token of the second.

# %%
window, distances = traffic.probe(lab)
lost = lab.predict(
    "needle",
    f"Window of {window} tokens, {traffic.SINKS} sinks. Of a passage said {distances[-1]} tokens ago, it foresees:",
    list(bets.FORESEEN),
)
lost

# %%
found = traffic.looking(lab)
lost.score(bets.needle(found))

# %%
charts.draw_needle(found, needle.reach(lab, window))

# %% [markdown]
# A slope, or a cliff? Compare the two points beside the line: what do a few tokens more between do to the passage? If it is
# gone, nothing in latency or throughput shows it. Models *trained* with windows (the first Mistral 7B in all layers, Gemma 3 in most)
# carry things on from layer to layer; here the window is put on a model that knows nothing of it.
#
# ### Rounding: KV in 8 bits
#
# A byte a number instead of two, and a scale for each token and head: nearly twice the blocks in the same memory. The gate of
# `minillm bench quality` decides what that costs. It decodes a text token by token with each configuration, and compares: how
# surprised each is by what really came (**perplexity**), how far apart their odds are (**KL**), how often they agree on the
# likeliest token. The floors stand in the heading; they were set before.

# %%
rounded = losses.measure(lab)
losses.losses_table(rounded)

# %% [markdown]
# Compare the rows, savings beside losses. Look also at the window with and without its sinks: four tokens of sight, one block of
# memory. Other models and other texts give other numbers: run the gate on yours, before you deploy.
#
# ### The same at 70 billion weights
#
# Llama-3 70B on four H100s, simulated: the same scheduler and pool, on steps that are priced. Shrink the pool, or raise the load.

# %%
sim_70b.pool_too_small()

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# Look for the cliff. To the right of it more memory changes nothing; to its left TTFT is all queue, and every gigabyte
# counts. Where it stands depends on the load: *requests per second × seconds each stays × KV of each* is the
# working set. The bill is worth paying down *until requests stop waiting for room*: to the right of the cliff a smaller cache
# changes nothing that a user could feel. Claim A15, in the deep dive, shrinks it step by step and names what limits the batch.
# (A pool that is too large does not exist for long: the weights and the work in progress need the same memory, and a server
# that promises more than there is does not start.)

# %% [markdown]
# ## Deep dive
#
# **The arithmetic.** $L$ layers, $n_{kv}$ heads that have keys and values of their own, $d$ numbers in each, $b$ bytes a
# number, contexts of $c$ tokens, a memory of $M$ bytes with weights of $W$ in it:
#
# $$\text{KV of a token} = 2\,L\,n_{kv}\,d\,b, \qquad \text{seats} = \frac{M - W}{2\,L\,n_{kv}\,d\,b\,c}$$
#
# - MHA: $n_{kv} d$ is the hidden size in most models, not in all. GQA divides it by the size of a group.
# - A window of $w$ replaces $c$ by $\min(c, w)$. It frees $1 - w/c$ of a long request, and nothing of a short one.
# - Reserving $m$ tokens for a request that ends with $c$ leaves $1 - c/m$ of the room empty at its end, more while it grows; on
#   demand, half a block on average.
# - The working set, by Little's law: arrivals per second × seconds in a seat × KV of a request.
#
# **The code.** A block table grows in `BlockManager.append`, which is also where a window gives blocks back. When the pool
# is short, the scheduler takes the blocks of the last request (`Scheduler._preempt`).

# %%
import inspect

from minillm.core.block_manager import BlockManager
from minillm.core.scheduler import Scheduler

print(inspect.getsource(BlockManager.append))
print(inspect.getsource(Scheduler._preempt))

# %% [markdown]
# Look for `> self.pool.num_free`: that line is the whole of "the cache is full". `reserve_tokens` is the whole difference
# between `on_demand` and `max_len`; swap and recompute differ by whether `copies` is `None`.
#
# **Claims, measured.** The formula and its example, of a 70B:

# %%
large = kv_bytes.large(shapes)
a11(large, kv_bytes.by_hand(lab), kv_bytes.in_pool(lab))

# %% [markdown]
# What happens when it is full:

# %%
a12(tight, roomy, shrunk["swap"][traffic.TIGHT_POOL])

# %% [markdown]
# Everything at once, at 70B. The article tells of a service with many long conversations, and of a tenfold cut. Here each step
# comes on top of those before, under chats that share nothing, and under long conversations that repeat everything said so
# far. Beside each gain stands what limits the batch: once that is no longer room, a smaller cache is of no more use.

# %%
ladders = sim_70b.ladders()
sim_70b.ladder_table(ladders)

# %%
a15(ladders, claims.cache_shrinks())

# %%
b2(crowd, traffic.with_and_without_prefixes(lab))

# %% [markdown]
# Does the cache grow with the square of the length? One request of each length, and the blocks it held:

# %%
d8(traffic.lengths(lab))

# %%
d12(traffic.limits(lab, roomy))

# %%
d14(large, traffic.with_sinks(grown), window, found)

# %% [markdown]
# ## Say it in an interview
#
# > "I treat the KV cache as a working set. A token takes 2 × layers × KV heads × head size × bytes, linear in length;
# > memory minus weights, divided by that and by the context, is how many users I can hold. If requests wait while KV is full, I
# > do not want a faster kernel, I want room: GQA models, 8-bit KV behind a quality gate, shared prefixes, shorter contexts, or
# > fewer seats if it thrashes. Preempted requests are read again or swapped, not lost. A sliding window frees room only beyond
# > its length, and forgets what it drops. And once nobody waits for room, I stop."
#
# ## Check yourself
#
# Replace the dots. Keys come from the runs above, and from the models' shapes.

# %%
check = checks(large, traces, tight, rounded)

# Llama-3-70B in bf16 (80 layers, 8 heads with keys of their own, 128 numbers each):
# how many MB (1e6 bytes) does a chat of 1500 tokens keep, in whole blocks of 16?
check("q1", ...)

# %%
check("q2", ...)  # how many such chats fit beside its weights on four H100s? (the bill says)

# %%
# max_len, in the small pool: which share (0 to 1) of the places that were held kept no token?
check("q3", ...)

# %%
# what became of the evicted requests in the tight pool: "killed", "started over" or "read again"?
check("q4", ...)

# %%
check("q5", ...)  # which share (0 to 1) of a 6000-token request's KV does a window of 2048 free (and 4 sinks)?

# %%
check("q6", ...)  # does KV in int8 keep the floors of the quality gate here: "yes" or "no"?

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Quality of MQA and MLA.** They are built into a model by its training. The bill compares their bytes, nothing else.
# - **Recall of your model.** Foreseeing a passage word for word is the easiest kind of recall. Questions, summaries and long
#   reasoning lose earlier, and differently. Test your own tasks at your own lengths.
# - **Swap on a busy link.** Real copies share the bus with everything else, and host memory is not always near. Most servers
#   recompute by default for that reason.
# - **KV beyond the GPU.** Pools in host memory, on disks and on other machines are a tier below this one; not measured here.
# - **Kernels.** Attention over blocks is a little slower than over one long row, and 8 bits have to be unpacked. What that costs
#   in seconds is lesson 09's.
#
# ## Sources
#
# - A11, A12, A15: *Serving LLMs: The Latency Anatomy Framework*. B2: *Decomposing LLM Inference Latency for Better Serving
#   Performance*. D8, D12, D14: an article on techniques for lower LLM latency.
# - Paging, preemption, and how much of reserved memory was in use: Kwon et al., *Efficient Memory Management for Large Language
#   Model Serving with PagedAttention*, 2023.
# - MQA: Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019. GQA: Ainslie et al., 2023. MLA: DeepSeek-AI,
#   *DeepSeek-V2*, 2024. Windows: Beltagy et al., *Longformer*, 2020; Jiang et al., *Mistral 7B*, 2023. Sinks: Xiao et al.,
#   *Efficient Streaming Language Models with Attention Sinks*, 2023.
# - The fitted stack at 70B: times of Llama-2-70B published with *Splitwise* (Patel et al., 2024).
