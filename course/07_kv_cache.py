# %% [markdown]
# # 07 · KV cache: a working set
#
# The GPU's arithmetic units are half idle. The queue grows anyway, and no new request is admitted. Someone bought a
# second GPU and it helped, and no one can say why. What had run out was neither arithmetic nor bandwidth but memory for
# the **working set**: the keys and values of all requests that run at the same time.
#
# After this lesson you can work out on the back of an envelope how many users fit on a GPU, recognize a full pool,
# and say what happens to the requests that are preempted. [Lesson 07b](07b_smaller_kv.ipynb) makes the cache smaller,
# or keeps it elsewhere.
#
# - **Five minutes** (five): the memory a chat takes, and a bet on how many fit.
# - **The lab** (five): the pool, block by block, and where its room goes.
# - **In the interview** (ten): the line, its follow-ups, a derivation. (The check is at the end.)
# - **Going deeper** (fifteen): thrashing, the KV bill, what fills a pool at 70B, the arithmetic, six claims.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.claims import in_short
from course.lab.display import stack
from course.lab.pictures.block_map import draw_frame
from course.lessons.lesson_07 import pictures, run, simulated, words
from course.lessons.lesson_07.check import checks
from course.lessons.lesson_07.pictures import draw_life, kv_bytes_explorer
from course.lessons.lesson_07.words import a11, a12, a15, b2, d8, d12

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# To generate a token, a model attends to every token before it. It doesn't recompute them. For each one, every layer
# keeps a **key** (what the token can be found by) and a **value** (what it contributes). That's the **KV cache**. It
# grows with every token, and every running request has its own.
#
# The memory for it, the **pool**, is set aside when the server starts. It's cut into **blocks**, often of 16 tokens. A
# request gets another block whenever it has filled the last one. That's **paging**, the way an operating system
# manages a program's memory; LLM servers got it from *PagedAttention*.
#
# Here are eight requests on the real engine. Each cell is a block, labelled with the request that holds it and filled
# as far as it has tokens. One with several numbers (×3 where there are three) is **shared**, because requests that
# begin with the same text use the same blocks.

# %%
roomy = run.eight(lab, run.ROOMY_POOL)
draw_frame(roomy, title="Eight requests, room for all: which one holds which block?")

# %% [markdown]
# Below the blocks is the whole run: a row per request (blue: prefill, green: decode), then how much of the pool was
# held. The line marks the step shown above.
#
# A token's KV follows from the model's shape and the number format:
#
# *2 (key and value) × layers × KV heads × head size × bytes per number*
#
# ### Predict
#
# That's all you need to know how many users fit. Take the shape from the question; a block is 16 tokens, and a chat
# takes whole blocks.

# %%
how_many = run.question(lab, run.slots_gb(lab), run.chat_tokens(lab))
bet = lab.predict("seats", how_many, unit="chats", between=(1, 30), whole=True)
bet

# %%
full = run.filling(lab)
bet.score(run.slots(full, run.chat_tokens(lab)))

# %%
stack(draw_frame(full, title="One chat more than fits: which one waits?"), words.full(full))

# %% [markdown]
# **How many requests can run is the memory for KV, divided by the KV of one request.** No panel of GPU utilization
# shows that limit.

# %% [markdown]
# ## The lab
#
# ### The pool, live
#
# These are the same eight requests in half the room. *On demand*, that's enough. Press play, or drag the step.
# *Follow* a request, and a line joins its blocks in the order of its text, with small numbers that count them. That's
# its **block table**. Then choose *max_len*, or 32 or 24 blocks, and press *Run these*.

# %%
pool = pictures.PoolMap(lab, run.eight(lab, run.SMALL_POOL))
pool

# %% [markdown]
# | do | what you'll see |
# |---|---|
# | follow request 4, or 6 | its first blocks carry other numbers, too: another request computed them. The rest are all over the pool. |
# | go to the last steps | dashed blocks: no request holds them, and they still cache a prefix. They count as *free*. |
# | *max_len*, run | nearly empty blocks, and a long queue |
# | *keep prefixes* off, run | no block with several numbers, and more blocks held |
# | *on_demand*, 24 blocks, run | crossed-out stretches: a request is preempted, and later prefills again what it had |
#
# ### Where the room goes
#
# How many blocks should a request get when it arrives? Its prompt is known; the length of its answer isn't. Early
# servers reserved the longest possible request (`kv_reservation="max_len"`). With paging, a request gets a block when
# it needs one (`"on_demand"`). Here are both, with the same eight requests and the same pool:

# %%
traces = run.reservations(lab)
stack(pictures.traces_table(traces), draw_frame(traces["max_len"]), words.reserved(traces))

# %% [markdown]
# Today's LLM servers page, so that reservation is history. The arithmetic still applies: **what a request holds, times
# how many would run, is the working set**. If it's larger than the pool, requests queue, however fast the GPU is. With
# paging it also grows as answers do, so the pool can run out under requests that are already running. *Going deeper*
# has a bet on what happens then.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "KV per token is two times layers times KV heads times head size times bytes. Divide free memory by that times
# > context length, and that's how many requests fit. If requests queue while KV is full, I'd free KV memory before I
# > bought compute."
#
# **Follow-ups**
#
# <details><summary>"Preemptions climb, and the GPU is 95% busy. Busy with what?"</summary>
#
# Partly with work it has done before, because a preempted request prefills its prompt and its answer so far again.
# `vllm:num_preemptions_total` rises, KV usage sits at 1, and throughput falls. I'd admit less first (`max_num_seqs`),
# because a restart is all it takes. If tokens per second go up with fewer running, it was thrashing.
#
# </details>
#
# <details><summary>"You doubled the pool and nothing changed. Why?"</summary>
#
# The working set already fit. Arrivals per second × seconds in a slot × KV of each was below the old pool, so no
# request was waiting for a block. KV usage well under 1 would have told you beforehand. If requests still queue, the
# limit is slots, or compute.
#
# </details>
#
# **"TTFT p99 went from 1 s to 20 s overnight. ITL hasn't moved."**
#
# | weak | senior | staff |
# |---|---|---|
# | "The GPUs are overloaded, so I'd add replicas or quantize." | "Flat ITL points to the queue. If KV usage is at 1 while slots are free, we're out of KV memory: 8-bit KV, shorter contexts, or more memory for the pool." | "Which factor of the working set grew overnight: arrivals, seconds in a slot, or context? Answers twice as long are worse than twice the traffic, because each holds more KV for longer. I'd cap `max_tokens` or admission now, since both can be undone, then put 8-bit KV behind an eval. I'd expect usage below 1 and TTFT back within one answer's time. If it isn't, I was wrong about memory." |
#
# **Three numbers to know cold**

# %%
words.three_numbers(run.large(run.accounts(lab)))

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>How large does the pool have to be?</summary>
#
# 1. Requests in a slot (Little): $N = \lambda S$.
# 2. A slot is held for about $S = m \cdot \text{ITL}$, with $m$ answer tokens.
# 3. Each holds $k\,(n + m/2)$ bytes on average: $n$ prompt tokens, and half of the answer.
# 4. Working set: $W = \lambda\, m \cdot \text{ITL} \cdot k\,(n + m/2)$.
# 5. With $m \gg n$ it grows with $m^2$, so answers twice as long need up to four times the pool.
# 6. Pool below $W$: the queue grows without end. So size it for the peak hour's $W$, with headroom for bursts.
#
# </details>

# %% [markdown]
# ## Going deeper
#
# ### Where it hurts: thrashing
#
# Paging admits more than may eventually fit; that's the point. When the pool runs out under running requests, one of
# them, the last to be admitted, is **preempted**, and its blocks go to the others. It comes back in one of two ways.
# With *recompute*, its prompt and what it had generated are prefilled once more. With *swap*, its blocks were copied
# to host memory and are copied back. (vLLM v1 recomputes, unless KV offloading is on and still has the blocks.)

# %%
twice = lab.predict(
    "twice",
    f"The pool shrinks to {run.TIGHT_POOL} blocks. What share of all tokens computed will be repeats?",
    unit="%",
    between=(1, 90),
)
twice

# %%
shrunk = run.thrash(lab, roomy, traces["on_demand"])
tight = shrunk["recompute"][run.TIGHT_POOL]
twice.score(run.done_twice(tight))

# %%
stack(draw_frame(tight), draw_life(tight))

# %%
every = {f"{way}, {pool} blocks": trace for way, of in shrunk.items() for pool, trace in of.items()}
stack(pictures.traces_table(every), words.thrashing(shrunk))

# %% [markdown]
# In an operating system this is **thrashing**, and the cure is the same: admit less. `max_num_seqs` limits it, and so
# does admitting a request only when its whole prompt fits (vLLM's default, `scheduler_reserve_full_isl`; SGLang
# reserves part of the expected answer as well). Prefix caching softens the blow, because a preempted request's blocks
# can be found again until another request needs them.
#
# ### The bill
#
# Now change the model instead of the traffic. In **multi-head attention** (MHA) each head has its own key and value.
# In **grouped-query attention** (GQA) a group of heads shares one pair; in **multi-query attention** (MQA) all of
# them do. **Latent attention** (MLA) keeps one short vector from which all keys and values are rebuilt.

# %%
shapes = run.accounts(lab)
kv_bytes_explorer(shapes, "Llama-3-70B")

# %% [markdown]
# <details><summary>Five questions to try on it, answered</summary>
#
# - *Llama-3-70B as it is, and with MHA: how many chats of 1,500 tokens fit?* MHA keeps eight times as much per token,
#   so about an eighth as many.
# - *Twice the tokens per chat?* Twice the bytes: KV is linear in length, not quadratic.
# - *MQA and MLA on four GPUs?* A single head, or a single latent vector, can't be split four ways. With tensor
#   parallelism each GPU keeps a copy, and the bar counts all four.
# - *The same with DCP?* **Decode context parallelism** deals out positions instead of heads. Each GPU keeps a quarter
#   of every chat's tokens, attends to those, and the four partial results are combined. Without copies, four times as
#   many chats fit. In return each layer exchanges queries and partial outputs (vLLM: `--decode-context-parallel-size`;
#   SGLang: `--dcp-size`). For GQA with eight heads on four GPUs it changes nothing, since heads divide evenly. DP
#   attention is the other way out (lesson 06b).
# - *A window of 2,048?* It saves nothing for chats of 1,500, and everything beyond the window for longer ones (07b).
#
# </details>
#
# ### More KV for each, fewer slots
#
# The same short requests run in the same pool. The only change is how much KV each of them reserves. No request
# computes a single extra token.

# %%
crowd = run.crowded(lab)
stack(pictures.crowd_table(crowd), words.crowd(crowd))

# %% [markdown]
# ### The same at 70B
#
# Llama-3 70B on four H100s, simulated with the same scheduler and block pool, and priced steps. Shrink the pool, or
# raise the load.

# %%
simulated.pool_too_small()

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# There's a cliff. To its right, more memory changes nothing a user could feel; to its left, TTFT is all queue, and
# every gigabyte counts. Where it is depends on the working set: *requests per second × seconds each one runs × KV of
# each*. (At 4 requests/s some 22 run at a time, with half a gigabyte each: 11 GB on average, and bursts take up to
# twice that.) To shorten TTFT, make KV smaller **until requests stop waiting for memory**, then stop.
#
# Those four H100s have far more memory than these pools, and chats like these won't fill it: the GPUs run out of
# arithmetic first (lesson 11). What does fill it? The table counts decode alone, at mean lengths, with nothing queued:

# %%
simulated.working_sets_table()

# %% [markdown]
# Long answers do, and long contexts whose prefix is cached. (RAG with nothing cached doesn't. Its prompt takes half a
# second of prefill, 8,000 × 140 GFLOP over 2 PFLOP/s, so arithmetic ends at two of them a second, not seven.) An answer
# of 8,000 tokens holds its blocks for minutes and keeps growing, so it counts twice: it holds more KV, and for longer.
# That's the cliff that agents and reasoning models meet in production.
#
# ### The arithmetic
#
# $L$ layers, $n_{kv}$ KV heads of size $d$, $b$ bytes per number, contexts of $c$ tokens, $W$ bytes of weights, and
# $M$ bytes of GPU memory for both (in vLLM, `--gpu-memory-utilization` of it, less activations and CUDA graphs):
#
# $$\text{KV per token} = 2\,L\,n_{kv}\,d\,b, \qquad \text{requests that fit} = \frac{M - W}{2\,L\,n_{kv}\,d\,b\,c}$$
#
# - That's for full attention in every layer. Windowed layers keep a window's tokens; linear-attention and Mamba layers
#   keep one state per request, however long it is ([lesson 06c](06c_linear_attention.ipynb)).
# - A pool can also be too large. What's left beside it has to hold the activations of the largest step, and CUDA
#   graphs. If it can't, the server may start fine and run out of memory under its first full load.
# - Reserving $m$ tokens for a request that ends with $c$ leaves $1 - c/m$ of its room empty at the end, and more
#   while it grows; on demand, half a block on average.
#
# **The code.** A block table grows in `BlockManager.append`. When there aren't enough free blocks, the scheduler
# takes those of the last request (`Scheduler._preempt`).

# %%
import inspect

from minillm.core.block_manager import BlockManager
from minillm.core.scheduler import Scheduler

print(inspect.getsource(BlockManager.append))
print(inspect.getsource(Scheduler._preempt))

# %% [markdown]
# `> self.pool.num_free` is all there is to "the cache is full". `reserve_tokens`, which `_table_size` adds, is the
# whole difference between `on_demand` and `max_len`.

# %% [markdown]
# ### What articles say
#
# Six claims. The cost ladder behind A15 comes first. Each technique is added to the ones before, on chats that share
# nothing and on long conversations that repeat everything said so far.

# %%
ladders = simulated.ladders()
simulated.ladder_table(ladders)

# %%
large = run.large(shapes)
in_short(
    a11(large, run.by_hand(lab), run.in_pool(lab)),
    a12(every[f"recompute, {run.TIGHT_POOL} blocks"], roomy, every[f"swap, {run.TIGHT_POOL} blocks"]),
    a15(ladders, words.cache_shrinks()),
    b2(crowd, run.with_and_without_prefixes(lab)),
    d8(run.lengths(lab)),
    d12(run.limits(lab, roomy)),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --max-model-len 8192 --num-gpu-blocks-override 1024
# sglang serve --model-path Qwen/Qwen3-8B --context-length 8192 --max-total-tokens 16384 --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --random-input-len 512 --random-output-len 2048 --request-rate 4 --ignore-eos
# ```
#
# At start vLLM logs `GPU KV cache size: N tokens`, and `Maximum concurrency for M tokens per request`; SGLang logs
# `max_total_num_tokens=N`. Now watch `vllm:kv_cache_usage_perc`, `vllm:num_preemptions_total` and
# `vllm:num_requests_waiting`; in SGLang `sglang:token_usage`, `sglang:num_retracted_requests_total`,
# `sglang:num_queue_reqs`, and the log line `KV cache pool is full. Retract requests.`
#
# Expect usage to climb to 1 first. Preemptions start when answers outgrow the pool, and each makes a request prefill
# again: ITL p99 shows the pauses, TTFT grows, and throughput drops although the GPU is busy. Leave out
# `--num-gpu-blocks-override` (`--max-total-tokens`) and repeat. If preemptions and pauses are gone, it was memory, not
# speed.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## Check yourself
#
# Answers are computed from the runs above, and from the models' shapes.

# %%
check = checks(large, traces, tight)
check.card()

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Quality of MQA and MLA.** They're trained into a model. The bill compares their bytes, nothing else.
# - **Swap on a busy link.** Real copies share the bus with everything else, and host memory may hang off another
#   socket.
# - **Kernels.** Whether attention over blocks is slower than over contiguous KV depends on the kernel. On an H100 ours
#   read paged KV at 98% of a plain copy's bandwidth, with 128 requests of 4,096 tokens (docs/measured.md).
#
# ## Sources
#
# - A11, A12, A15: *Serving LLMs: The Latency Anatomy Framework*. B2: *Decomposing LLM Inference Latency for Better
#   Serving Performance*. D8, D12: an article on techniques for lower LLM latency.
# - Paging, preemption, and how much of reserved memory was in use: Kwon et al., *Efficient Memory Management for Large
#   Language Model Serving with PagedAttention*, 2023. Recompute only: vLLM v1, `vllm/v1/core/sched/scheduler.py`.
# - MQA: Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019. GQA: Ainslie et al., 2023. MLA:
#   DeepSeek-AI, *DeepSeek-V2*, 2024.
