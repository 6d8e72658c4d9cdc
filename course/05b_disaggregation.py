# %% [markdown]
# # 05b · Disaggregated prefill and decode
#
# Prefill and decode want different things. A prompt keeps a GPU's arithmetic busy for a long step; a decode step is
# short and waits for memory. Put both on one GPU and prompts stall streams (lesson 05). So put them on separate GPUs,
# and send each request's KV cache from one to the other. What does the transfer cost, and when is it worth it?
#
# - **Five minutes** (five): the same arrivals, step by step, the transfer on the back of an envelope, and a bet.
# - **The lab** (five): which split, goodput, and which prompts the decode pool should compute itself.
# - **In the interview** (ten): the line, follow-ups, three numbers, a derivation, and a check.
# - **Going deeper** (ten, optional): more load, the arithmetic of both pools, chunks in a pipeline.

# %%
from course.lab import simulated_70b
from course.lab.display import stack
from course.lab.lab import Lab
from course.lessons.lesson_05b import pictures, run, words
from course.lessons.lesson_05b.check import checks

lab = Lab()  # everything in this lesson is simulated: no model is loaded

# %% [markdown]
# ## Five minutes
#
# Four requests are decoding, and two prompts arrive, one after the other. Each box is a step, as wide as it's long in
# time and as tall as it has tokens (a decode's token is drawn about twice as tall as a prompt's). With whole prompts
# the decodes stall for the length of a prompt; chunks spread it over several steps, each a bit longer; with a split, a
# decode GPU never runs a prompt, and the prefill GPU idles between prompts. Change the chunk size, and watch the
# longest gap, on the right.

# %%
pictures.budget_explorer()

# %% [markdown]
# You pay for it with a **transfer**. All the KV that prefill computed has to reach the other GPU, and that's KV per
# token (328 kB for Llama-3 70B; lesson 07 derives it) times the number of tokens. Divide it by the link's bandwidth:

# %%
pictures.transfer_explorer()

# %% [markdown]
# 4,096 tokens are 1.3 GB. Over one 400 Gb/s network card with RDMA (from one GPU's memory into another's, past both
# CPUs) that takes a tenth of the time it took to compute them. An HGX H100 typically has a card for each GPU, so each
# of the four can send its own quarter, and you divide by four. **On a good link the transfer is cheap; on 10 Gigabit
# Ethernet it takes longer than the prefill.**
#
# ### Predict
#
# Four replicas of Llama-3 70B (four H100s each), simulated, serve chats with documents, 8 requests per second. Either
# all four prefill whole prompts and decode, or two only prefill and two only decode, with one 400 Gb/s link from the
# first two to the others:

# %%
bet = lab.predict(
    "smooth",
    "How many times as long is ITL p99 with whole prompts as with the split?",
    unit="x",
    between=(1, 50),
)
bet

# %%
quiet = run.ways(8.0)
bet.score(words.smoother(quiet))

# %%
stack(pictures.draw_ways(quiet, 8.0), words.load(quiet, 8.0))

# %% [markdown]
# ## The lab
#
# ### Which split?
#
# A fixed split suits one mix of prompts and answers. The chart has TTFT p99 by load, for each way to divide four
# replicas. (This traffic is mostly prompt, so 3 + 1 looks best. What that costs isn't in this chart, because a single
# replica then does all the decoding.)

# %%
pictures.draw_splits()

# %% [markdown]
# ### Goodput
#
# What counts for a service is **goodput**, the requests per second that meet *every* SLO. The table has the highest
# load of the chart at which nine of ten requests met both limits, TTFT and TPOT, first with a loose limit on TPOT and
# then with a strict one. (24 is the highest shown; at 28, none of the four meets even the loose limits.)

# %%
goodputs = run.goodputs()
stack(pictures.goodput_table(goodputs), words.goodput(goodputs))

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ### Which prompts stay?
#
# A split needn't be all or nothing. In **conditional disaggregation** the router decides for each request, by how many
# of its prompt tokens aren't cached on the decode side and by how busy the prefill pool is. An agent's next turn
# repeats a long history and adds a few tokens. Sending those away and their KV back costs more than making one decode
# step slightly longer. The table takes a prompt of 8,192 tokens and caches more and more of it. If the prompt stays,
# other requests wait through a step that computes the rest. If it goes, the KV of the rest has to be transferred.

# %%
pictures.stay_or_go_table()

# %% [markdown]
# How much has to be cached before the prompt may stay, with an ITL limit of 25 milliseconds? And with 100? (A step is
# priced by its new tokens; the other requests' decodes, and attention over the cached tokens, come on top.) Only
# *uncached* tokens stall a step, so the more of a prompt is cached, the less a split has to offer. (NVIDIA Dynamo:
# `--router-conditional-disagg`, experimental in November 2026.)
#
# ### Where it loses
#
# - **An unbalanced split.** With these long prompts, one prefill replica saturates long before three decode replicas
#   do, and idle decode GPUs can't help. Traffic that drifts from long prompts to long answers needs a split that
#   follows it (NVIDIA Dynamo's planner adds and removes workers in each pool).
# - **Short or cached prompts.** They barely stall a decode, and chunked prefill takes care of the rest.
# - **Slow links.** Over NVLink (hundreds of GB/s within a node) the transfer is nearly free; across data centres it
#   can take longer than the prefill.
# - **Small fleets.** With a handful of replicas the split is coarse, and the wrong one can cost more than the stalls
#   did: compare 1 + 3 in the chart.
# - **Prefix caches.** Hits live where prefill happened, so a conversation has to come back to the same prefill GPU.
#   And an answer's KV was made on the decode GPU: the next turn prefills the answer again, unless a shared tier has
#   it ([07b](07b_smaller_kv.ipynb)).

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "Disaggregation buys isolation: no decode step carries a prompt, so ITL p99 stays flat. The same GPUs don't give
# > more throughput, but they do give more goodput when TPOT is the limit. You pay in KV transfers, and the split must
# > match your token mix."
#
# **Follow-ups**
#
# <details><summary>"Chunked prefill bounds ITL as well. Why split?"</summary>
#
# I'd try chunks first. They bound the step, but each step still carries a chunk, so ITL sits near the bound whenever
# prompts are in flight. If the TPOT limit is below that, a split is the way to more requests within both SLOs. And each
# pool can have its own parallelism: tensor parallelism for prefill, say, and expert parallelism over many GPUs, with
# big batches, for decode (06b).
#
# </details>
# <details><summary>"The decode pool has no room for an arriving transfer. What happens?"</summary>
#
# The prefill GPU has to hold the KV until there's room, so backpressure reaches the prefill queue and TTFT rises
# although the prefill pool looks idle. Watch the transfer queue on the decode side, reserve KV before prefill starts,
# and refuse early instead of computing prompts that there's no room to decode.
#
# </details>
#
# **"Should we disaggregate?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Yes, everybody does; it's faster." | "If long prompts ruin ITL p99, and the network is good." | "First, what goodput does chunked prefill give us at our SLOs, and which limit binds? If it's TPOT, I'd set the ratio from our token mix, check KV bytes against the links, keep cached turns local, and plan for the day the mix drifts." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>Four replicas: 3 + 1 or 2 + 2? From the token mix.</summary>
#
# 1. A prompt of n tokens takes n / r_p seconds of a prefill replica, at r_p tokens a second.
# 2. Its answer of m tokens takes m / r_d of a decode replica, with r_d = batch / step time.
# 3. The batch is the largest whose step keeps the ITL limit, unless KV is full before that.
# 4. Prefill to decode is n / r_p to m / r_d. Divide the replicas in that ratio, and round; between two splits, price
#    both.
# 5. With a looser limit on TPOT you need fewer decode replicas, until KV is full; with longer prompts, more prefill
#    replicas.
#
# </details>
#
# For this lesson's traffic that comes to:

# %%
words.token_mix()

# %% [markdown]
# ## Check yourself

# %%
check = checks()
check.card()

# %% [markdown]
# ## Going deeper
#
# ### More load
#
# The same fleet gets 24 requests per second. A run has 200 requests, so its TTFT p99 is about that of the third
# slowest, and tokens/s includes the end, when the last answers drain.

# %%
busy = run.ways(24.0)
stack(pictures.draw_ways(busy, 24.0), words.load(busy, 24.0))

# %% [markdown]
# ### The arithmetic of both pools
#
# With $\lambda$ requests per second of $n$ prompt and $m$ answer tokens, prefill at $r_p$ tokens/s per replica,
# decode at $r_d$ tokens/s per replica at the batch that keeps the ITL SLO, and links of $B$ bytes/s in all, with $k$
# bytes of KV per token:
#
# $$N_p \ge \frac{\lambda n}{r_p}, \qquad N_d \ge \frac{\lambda m}{r_d}, \qquad \lambda\, n\, k \le B, \qquad
# \text{TTFT} \approx \text{queue}_p + \frac{n}{r_p}$$
#
# One prompt's transfer takes $nk$ over the bandwidth of its own link. It delays the second token here, because the
# prefill pool sends the first one. Where the decode pool sends that, too (Dynamo, SGLang, vLLM's example proxy), the
# transfer is part of TTFT.
#
# Without a split both inequalities share one pool: $N \ge \lambda (n/r_p + m/r_d)$, so nothing is lost to rounding,
# and every step may hold both kinds of work. `minillm simulate --plan` also solves for the split, with the pools you
# pass in `--fleet disaggregation...` ([docs](../docs/simulator.md)).

# %%
import inspect

print(inspect.getsource(run.transfer_s))

# %% [markdown]
# ### Chunks in a pipeline
#
# **Pipeline parallelism** can shorten a long prefill, which it can't do for a decode step. Each GPU holds a part of
# the layers, and one prompt's chunks follow each other through them: while chunk 1 is in stage 2, chunk 2 is in
# stage 1. With $s$ stages and $c$ equal chunks a prompt takes $c + s - 1$ turns instead of $c \cdot s$. Only
# activations pass between stages, once per stage, so the links can be slower than tensor parallelism needs. A prompt
# of 32,768 tokens on four stages:

# %%
pictures.pipeline_table()

# %% [markdown]
# Where should you stop? Below the bend of [lesson 03](03_prefill.ipynb) a chunk no longer fills its GPU, so the last
# rows are worth less than they say. And later chunks attend to more tokens, so equal chunks get slower and stages
# wait for each other: SGLang's dynamic chunking makes each one smaller than the last.

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
# sglang serve --model-path Qwen/Qwen3-8B --disaggregation-mode prefill --enable-metrics --port 8000
# curl -s http://127.0.0.1:8000/metrics | grep -E "nixl|kv_transfer"
# ```
#
# Each pool is a server of its own (SGLang's second one runs with `--disaggregation-mode decode`), with a router in
# front, as their docs show. Watch the transfer in `vllm:nixl_xfer_time_seconds` and `vllm:nixl_bytes_transferred`,
# `sglang:kv_transfer_latency_ms` and `sglang:kv_transfer_speed_gb_s`. Its bytes should be prompt tokens times KV per
# token.
#
# Compare with the same GPUs, not split, under long prompts. Expect ITL p99 to go flat, TTFT to grow by the transfer,
# and tokens per second not to rise. Then change the mix of prompts and answers: `vllm:num_requests_waiting` should
# grow in one pool first (SGLang's decode side: `sglang:num_decode_transfer_queue_reqs`), the one you're short of.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Overlap.** Some connectors send one layer's KV while the next is computed. The simulator sends all of it
#   afterwards, so against those its gap after the first token is too long by most of a transfer.
# - **Contention.** Transfers here take turns on one link; real networks share theirs with everything else.
# - **Different hardware per pool.** Compute-rich cards for prefill, memory-rich ones for decode: price it with
#   `--plan`.
#
# ## Sources
#
# - Zhong et al., *DistServe*, 2024; Patel et al., *Splitwise*, 2024; Qin et al., *Mooncake*, 2024 (chunks in a
#   pipeline, too).
# - vLLM's docs, *Disaggregated prefilling*; SGLang's docs, *PD disaggregation* and *Pipeline Parallelism for Long
#   Context*; NVIDIA Dynamo, *Planner* and *Conditional Disaggregation*. Read in November 2026.
