# %% [markdown]
# # 07b · Smaller KV, or KV elsewhere
#
# Requests wait for KV memory (lesson 07). You can keep less of it, keep it in fewer bits, or keep it somewhere other
# than the GPU. Each has a price. The price in quality doesn't show up on a latency chart; that of a tier does.
#
# - **Surface** (ten minutes): a sliding window, and what the model forgets.
# - **Guided** (ten): 8-bit KV behind a quality gate; KV tiers, and when fetching beats computing.
# - **Deep dive** (five): the arithmetic, and a claim put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.display import stack
from course.lessons.lesson_07 import run as lesson_07
from course.lessons.lesson_07b import pictures, run, words
from course.lessons.lesson_07b.check import checks
from course.lessons.lesson_07b.words import d14

lab = open_lab()

# %% [markdown]
# ## Surface
#
# With a **sliding window** a token attends only to a fixed number of tokens before it. A token that falls out of the
# window is never read again, so its blocks go back to the pool. **Sinks** are the first few tokens, which stay:
# attention that has nowhere better to go lands there, and models not trained with a window break without them. Here's
# one request growing, on the real engine:

# %%
grown = run.growths(lab)
pictures.draw_window(grown)

# %% [markdown]
# Once past the window, a request costs the same however long it gets. What does the model lose? A passage with
# unguessable numbers in it (a **needle**) is given once, then other text, then the same passage again. A model that
# still sees the first copy predicts nearly every token of the second.
#
# ### Predict

# %%
window, distances = run.probe(lab)
lost = lab.predict(
    "needle",
    f"Window of {window} tokens, {run.SINKS} sinks. Of a passage given {distances[-1]} tokens ago, it predicts:",
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
# layer; here the window is imposed on a model that was never trained for it.

# %% [markdown]
# ## Guided
#
# ### 8-bit KV
#
# One byte per number instead of two, plus a scale per token and head: nearly twice the blocks in the same memory. The
# quality gate (`minillm bench quality`) decodes a text token by token with each configuration and compares how
# surprised each is by the actual next token (**perplexity**), how far apart their distributions are (**KL**), and how
# often they agree on the most likely token. The table's header has the floors, the worst values we'd accept; they were
# set beforehand. (A *nat* is KL's unit with natural logarithms: 0 means the same distribution.)

# %%
rounded = run.measure_losses(lab)
stack(pictures.losses_table(rounded), words.rounding(rounded))

# %% [markdown]
# Other models and other texts give other numbers: run the gate on yours before you deploy. And on the scheme that you
# deploy: this one has a scale for each token and head. vLLM's `--kv-cache-dtype fp8` has one per tensor, 1.0 unless the
# checkpoint brings calibrated ones, and with FlashAttention-3 queries and attention's products are FP8, too, so nothing
# above speaks for it: calibrate (llm-compressor), then run your evals. `int8_per_token_head` is scaled as here, but not
# every attention backend reads it: compare ITL before and after. (8-bit KV also halves the reads of long contexts,
# which a capacity table doesn't show. On an H100, our 8B's step with 32 contexts of 2,100 tokens took 7.8 ms, and in 16
# bits some 9.3 on another day.)
#
# ### Fetch it, or compute it again?
#
# KV that's evicted from the GPU can live on in host memory, or in a store that replicas share: **KV tiers** (vLLM's KV
# connectors with LMCache, SGLang's HiCache). When the conversation comes back, the server can fetch its KV over a link
# instead of prefilling it again. Llama-3 70B on four H100s, one prompt at a time:

# %%
pictures.tier_explorer()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - At 50 GB/s (one PCIe 5.0 x16 link; four GPUs have four) fetching wins by about ten to one for long prefixes: bytes
#   over bandwidth against FLOPs over rate. The bytes are linear in tokens, the FLOPs a bit more than that, since
#   attention's grow with the square: fetching wins by more, the longer the prefix.
# - That's with the link's whole bandwidth. Copies of a block in many small pieces, one per layer, reach a fraction of
#   it; engines that lay blocks out in one piece for this get most of it.
# - Somewhere around 5 GB/s for all four GPUs the two curves meet, 1.2 GB/s each. Below that, the tier makes TTFT worse,
#   however high its hit rate.
# - Latency matters for short prefixes only. A small model shifts the balance: its prefill is cheap, but its KV isn't
#   much smaller. An 8B on one H100 needs 4 GB/s by the formula below, over its one link.
#
# </details>
#
# Now a fleet: conversations of six turns, a minute apart, on GPUs whose pool holds a fraction of them.

# %%
host = lab.predict(
    "host",
    "Without host memory, how many times as long is the median TTFT of later turns as with it (50 GB/s)?",
    unit="x",
    between=(1, 20),
)
host

# %%
fleets = run.tier_runs()
host.score(run.tier_gain(fleets))

# %%
stack(pictures.tiers_table(fleets), words.tiered(fleets), simulated_70b.error_band(simulated_70b.deployment()))

# %% [markdown]
# ### Where it does nothing
#
# - **No reuse.** One-shot prompts never hit a tier, and writing them there only burns bandwidth.
# - **Requests aren't waiting for room, or for prefill.** To the right of lesson 07's cliff, a smaller cache changes
#   nothing.
# - **A window longer than your contexts** frees nothing.

# %% [markdown]
# ## Deep dive
#
# A window of $w$ tokens replaces a context of $c$ with $\min(c, w)$: it frees $1 - w/c$ of a long request and nothing
# of a short one. A tier with bandwidth $B$ and latency $\ell$ beats recomputing $n$ tokens, with $k$ KV bytes per
# token, $P$ parameters, and $F$ useful FLOP/s on all GPUs, when
#
# $$\ell + \frac{n\,k}{B} < \frac{2 P n}{F} \quad\Longrightarrow\quad B > \frac{k\,F}{2P} \text{ for long prefixes}$$
#
# For Llama-3-70B on four H100s at half their peak that's 327,680 B × 2.0 PFLOP/s / (2 × 70e9) = 4.7 GB/s over all four:
# why PCIe is plenty and a slow network isn't. (That leaves out attention, $2 L q n^2$ FLOPs with $L$ layers and $q$
# numbers in a token's queries: as many as the rest at $n = P/(L q)$, 108,000 tokens for this model, and 30% more at
# 32,000.)

# %%
large = lesson_07.large(lesson_07.accounts(lab))
d14(large, run.with_sinks(grown), window, found)

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
# For the tier, take more prefixes than the pool holds and run the bench twice. Without it the second run is as slow as
# the first. With it `vllm:external_prefix_cache_hits_total` grows (`sglang:cached_tokens_total` with
# `cache_source="host"`), and TTFT lands between a hit on the GPU and a full prefill.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## Say it in an interview
#
# > "If KV is what's short, I have three options. Fewer bits: 8-bit KV nearly doubles the pool, and I'd put an eval in
# > front of it. Keep less: a window, but only on a model trained with one, because it forgets what it drops. Or keep it
# > elsewhere: host memory for conversations that come back. That one is arithmetic: KV bytes over link bandwidth
# > against prefill FLOPs over FLOP rate. For a 70B on four H100s the break-even is around 5 GB/s in all, for an 8B on
# > one about 4. So PCIe and RDMA win, and a slow object store loses."
#
# ## Check yourself

# %%
check = checks(large, rounded)
check.card()

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
