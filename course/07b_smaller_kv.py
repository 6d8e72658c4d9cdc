# %% [markdown]
# # 07b · Smaller KV, or KV elsewhere
#
# Requests wait for KV memory (lesson 07). You can keep KV somewhere other than the GPU, keep it in fewer bits, or keep
# less of it. Moving it costs latency, which a chart shows. The other two cost quality, which shows only in the
# answers.
#
# You'll be able to say above which link speed fetching KV beats prefilling it, what an 8-bit KV cache has to pass
# before it ships, and what an imposed sliding window forgets.
#
# - **Five minutes** (five): two tiers with the same hit rate, and a bet on which one pays.
# - **The lab** (five): the link speed at which fetching breaks even; 8-bit KV behind a quality gate.
# - **In the interview** (ten): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (ten): a sliding window and what it forgets, agents that wait for tools, the arithmetic.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.claims import in_short
from course.lab.display import stack
from course.lessons.lesson_07 import run as lesson_07
from course.lessons.lesson_07b import pictures, run, words
from course.lessons.lesson_07b.check import checks
from course.lessons.lesson_07b.words import d14

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# A user reads the answer, thinks for a minute and asks the next question. Meanwhile the KV of the conversation has
# been evicted from the GPU. A **KV tier** can keep it: host memory, or a store that replicas share (vLLM's KV
# connectors with LMCache, SGLang's HiCache). When the conversation comes back, the server fetches its KV over a link
# instead of prefilling it again.
#
# The runs below simulate Llama-3 70B on four H100s: conversations of six turns, a minute apart, on GPUs whose pool
# holds a fraction of them. One run has the pool alone, one adds host memory at 50 GB/s, and one a remote store at 5
# GB/s. Both tiers keep everything, so they have the same hit rate.
#
# ### Predict

# %%
pays = lab.predict(
    "tiers",
    "With a tier, the hit rate doubles. Which tier makes the median TTFT of later turns clearly shorter?",
    list(words.PAYS),
)
pays

# %%
fleets = run.tier_runs()
pays.score(words.which_pays(fleets))

# %%
stack(pictures.tiers_table(fleets), words.tiered(fleets), simulated_70b.error_band(simulated_70b.deployment()))

# %% [markdown]
# **A hit rate counts tokens. What a hit is worth depends on the link's bandwidth against the GPU's FLOP/s.**
#
# ## The lab
#
# ### Fetch it, or compute it again?
#
# Here's one prompt at a time, over a link whose speed you set. Find the speed at which the two curves meet.

# %%
pictures.tier_explorer()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - At 50 GB/s (one PCIe 5.0 x16 link; four GPUs have four) fetching wins by about ten to one for long prefixes. The
#   factor grows with the prefix, because bytes grow in proportion to tokens and FLOPs a bit faster (attention's grow
#   with the square).
# - That's with the link's whole bandwidth. Copies of a block in many small pieces, one per layer, reach a fraction of
#   it; engines that lay blocks out in one piece for this get most of it.
# - Somewhere around 5 GB/s for all four GPUs (1.2 GB/s each) the two curves meet. Below that, a tier makes TTFT worse,
#   however high its hit rate. The remote store above is right at that border.
# - Latency matters for short prefixes only.
# - A smaller model doesn't move the border by much. An 8B on one H100 prefills a token in less time, but its KV is
#   smaller by about the same factor. By the formula below, it breaks even near 5 GB/s too, over a single link.
#
# </details>
#
# ### 8-bit KV
#
# One byte per number instead of two, plus a scale per token and head, gives nearly twice the blocks in the same
# memory. The quality gate (`minillm bench quality`) decodes a text token by token with each configuration and compares
# how surprised each is by the actual next token (**perplexity**), how far apart their distributions are (**KL**, in
# nats: 0 means the same), and how often they agree on the most likely token. The table's header has the worst values
# we'd accept, set beforehand: a maximum for perplexity and KL, which rise as a model gets worse, and a minimum for
# agreement. (The last two rows are there to fail. They may look back only 128 tokens, without and with the very first
# four. More on such windows in *Going deeper*.)

# %%
rounded = run.measure_losses(lab)
stack(pictures.losses_table(rounded), words.rounding(rounded))

# %% [markdown]
# Run the gate on your model, your texts, and the scheme that you deploy. This one has a scale for each token and head.
# vLLM's `--kv-cache-dtype fp8` has one per tensor, 1.0 unless the checkpoint brings calibrated ones, and with
# FlashAttention-3 it computes queries and attention's products in FP8, too. So the gate above says nothing about it.
# Calibrate (llm-compressor), then run your evals. `int8_per_token_head` is scaled as here, but not every attention
# backend reads it, so compare ITL before and after.
#
# 8-bit KV also halves the reads of long contexts, which a capacity table doesn't show. On an H100, our 8B's step with
# 32 contexts of some 2,000 tokens took 7.8 ms; in 16 bits it took some 9.3, in another run that day
# ([measured](../docs/measured.md)).

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "When KV memory runs out, I'd look at three things. 8-bit KV nearly doubles the pool, behind an eval. Keeping fewer
# > tokens needs a model trained for it. Host memory pays if the link moves a token's KV faster than the GPU can
# > recompute it."
#
# **Follow-ups**
#
# <details><summary>"Your KV store has an 83% hit rate, and TTFT hasn't moved. Why?"</summary>
#
# A hit rate counts tokens, not seconds. Fetching a token's KV takes its bytes over the link; prefilling takes two
# FLOPs per weight. For a 70B on four H100s those break even near 5 GB/s over all four. At that speed a hit takes as
# long as a miss, and below it longer. I'd measure the link as the engine uses it, because copies in many small pieces
# reach a fraction of its speed.
#
# </details>
#
# <details><summary>"FP8 KV passed your perplexity check. Do you ship it?"</summary>
#
# Not on that alone. Which scales did it use? vLLM takes 1.0 unless the checkpoint brings calibrated ones. And short
# text, scored token by token, is the easy case. Long reasoning, retrieval at depth and tool calls break first. I'd run
# those at our lengths, and compare ITL, since the dtype also picks the attention kernel.
#
# </details>
#
# **"Agents hold 90% of our KV while they wait for tools. What do you do?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Evict them, and buy more GPUs if it gets slow." | "Offload paused agents to host memory and fetch them when the tool returns. For long contexts, PCIe beats prefilling again." | "How long do tools take, by percentile, and how often does an agent come back? Keeping costs bytes × seconds, dropping costs a prefill per call, moving costs the link. So I'd keep KV through short tool calls, move it for long ones, and drop cancelled branches, if the framework tells us. I'd watch resumed turns' TTFT and the chats' queue, because one pays for the other." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>At which link speed does fetching KV beat prefilling it?</summary>
#
# 1. Fetch $n$ tokens: $n\,k / B$ seconds, with $k$ KV bytes per token.
# 2. Prefill them: $2 P n / F$ seconds, with $F$ useful FLOP/s. $n$ drops out.
# 3. Break-even: $B^* = k F / 2P$.
# 4. For a 70B on four H100s, $k$ = 328 kB, $F$ = 2 PFLOP/s, $2P$ = 140 GFLOP per token. A token takes 70 µs to compute,
#    so $B^*$ = 328 kB / 70 µs = 4.7 GB/s.
# 5. PCIe 5.0 has some 50 GB/s per GPU, ten times that over one link and forty over four. A store behind 10 GbE has
#    1.25 GB/s and loses.
#
# </details>

# %% [markdown]
# ## Check yourself

# %%
check = checks(lesson_07.large(lesson_07.accounts(lab)), rounded)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### A sliding window, and what it forgets
#
# With a **sliding window** a token attends only to a fixed number of tokens before it. A token that falls out of the
# window is never read again, so its blocks go back to the pool. **Sinks** are the first few tokens, which stay.
# Attention that has nowhere better to go lands there, and models not trained with a window break without them. Here's
# one request growing, on the real engine:

# %%
grown = run.growths(lab)
pictures.draw_window(grown)

# %% [markdown]
# Past the window, a request holds the same number of blocks, however long it gets. What does the model lose? A passage
# with unguessable numbers in it (a **needle**) is given once, then other text, then the same passage again. A model
# that still sees the first copy predicts nearly every token of the second.
#
# ### Predict

# %%
window, distances = run.probe(lab)
lost = lab.predict(
    "needle",
    f"Window of {window} tokens, {run.SINKS} sinks. How much does it predict of a passage given {distances[-1]} tokens ago?",
    list(run.FORESEEN),
)
lost

# %%
found = run.looking(lab)
lost.score(run.needle_share(found))

# %%
stack(pictures.draw_needle(found, run.reach(lab, window)), words.forgotten(found))

# %% [markdown]
# Models *trained* with windows (the first Mistral 7B in all layers, Gemma 3 in most) pass information on from layer to
# layer. Here the window is imposed on a model that was never trained for it. It shows what a window forgets; you
# wouldn't deploy it.

# %% [markdown]
# ### An agent waits for its tool
#
# An agent calls a tool, and for ten seconds nothing reads its KV. The call ended a request, so its blocks are merely
# cached, and LRU decides how long they live, about *the pool over the bytes of new KV per second*. You can pin them,
# move them to host memory through a **KV connector** (vLLM: `--kv-offloading-size`, or LMCache; SGLang: HiCache), or
# let them go. At which tool time does keeping them stop making sense?

# %%
pictures.pause_explorer()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - *Keep* costs KV memory in proportion to tool time; *drop* costs GPU time in proportion to tool calls, however long
#   they take. So short tool calls favour keeping, long ones moving.
# - Over PCIe, moving adds far less to the next TTFT than prefilling again. At 5 GB/s, the border above, it gains
#   little, except for the longest contexts.
# - Human approval is a tool that takes ten minutes. You can't spare GPU memory for idle KV that long.
# - A cancelled branch never comes back, so its KV should go right away, but only the agent's framework knows. That's
#   what session hints and TTLs in connectors are for.
#
# </details>
#
# ### Where it does nothing
#
# - **No reuse.** One-shot prompts never hit a tier, and writing them to one only burns bandwidth.
# - **Requests aren't waiting for KV memory, or for prefill.** To the right of lesson 07's cliff, a smaller cache
#   shortens no queue. (8-bit KV still shortens the steps of long contexts.)
# - **A window longer than your contexts** frees nothing.
#
# ### The arithmetic
#
# A window of $w$ tokens replaces a context of $c$ with $\min(c, w)$: it frees $1 - w/c$ of a long request and nothing
# of a short one. A tier with bandwidth $B$ and latency $\ell$ beats recomputing $n$ tokens, with $k$ KV bytes per
# token, $P$ parameters, and $F$ useful FLOP/s on all GPUs together, when
#
# $$\ell + \frac{n\,k}{B} < \frac{2 P n}{F} \quad\Longrightarrow\quad B > \frac{k\,F}{2P} \text{ for long prefixes}$$
#
# For Llama-3-70B on four H100s at half their peak that's 327,680 B × 2.0 PFLOP/s / (2 × 70e9) = 4.7 GB/s over all four,
# which is why PCIe is plenty and a slow network isn't enough. (That leaves out attention, $2 L q n^2$ FLOPs with $L$
# layers and $q$ numbers in a token's queries. They equal the rest at $n = P/(L q)$, so the longer the prefix, the more
# fetching wins by.)
#
# ### What an article says

# %%
large = lesson_07.large(lesson_07.accounts(lab))
in_short(
    d14(large, run.with_sinks(grown), window, found),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --kv-cache-dtype fp8 --kv-offloading-size 64
# sglang serve --model-path Qwen/Qwen3-8B --kv-cache-dtype fp8_e4m3 --enable-hierarchical-cache --hicache-size 64 \
#     --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --dataset-name prefix_repetition --prefix-repetition-num-prefixes 200 \
#     --prefix-repetition-prefix-len 4000 --prefix-repetition-suffix-len 100 --prefix-repetition-output-len 16
# ```
#
# One flag at a time. With the dtype, `GPU KV cache size` (`max_total_num_tokens`) about doubles, and preemptions
# (`vllm:num_preemptions_total`) start later. No metric shows whether answers are as good, so run your evaluation both
# ways; an uncalibrated checkpoint gets scales of 1.0 in vLLM.
#
# For the tier, take more prefixes than the pool holds and run the bench twice. Without a tier the second run should be
# as slow as the first. With one, `vllm:external_prefix_cache_hits_total` grows (`sglang:cached_tokens_total` with
# `cache_source="host"`), and TTFT should land between a hit on the GPU and a full prefill.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Recall of your model.** Predicting a passage word for word is the easiest kind of recall. Questions, summaries and
#   long reasoning break earlier, and differently. Test your own tasks at your own lengths.
# - **Layer-wise loading.** Real tiers overlap the fetch of one layer with the computation of another; the simulator
#   waits for all of it, and it writes to tiers for free.
#
# ## Sources
#
# - D14: an article on techniques for lower LLM latency, from batching to streaming.
# - Windows: Beltagy et al., *Longformer*, 2020; Jiang et al., *Mistral 7B*, 2023. Sinks: Xiao et al., *Efficient
#   Streaming Language Models with Attention Sinks*, 2023.
# - Tiers: *LMCache* (arXiv 2510.09665); Qin et al., *Mooncake*, 2024; Gao et al., *CachedAttention*, 2024.
