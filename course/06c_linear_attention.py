# %% [markdown]
# # 06c · Linear and sparse attention
#
# Half of this course rests on "KV grows with every token", and for many of this year's models that's only partly true.
# Some keep one state of fixed size in most layers, however long the text. Others keep everything and read little of
# it. Which of the rules still hold?
#
# After this lesson you can read off a `config.json` how much memory a request takes and how much of it a step moves,
# and say why the prefix cache of such a model doesn't behave the way you're used to. Everything here is arithmetic on
# published sizes, so no model is loaded.
#
# - **Five minutes** (five): four models, and a bet on a short chat.
# - **The lab** (five): what's kept, what's read, and what snapshots cost.
# - **In the interview** (ten): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (five): the recurrence, and what else changes in an engine.

# %%
from course.lab import open_lab
from course.lessons.lesson_06c import pictures, run, words
from course.lessons.lesson_06c.check import checks

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# **Full attention** keeps a key and a value of every token (or one latent vector, MLA), and each new token reads all
# of them. There are two ways out:
#
# - **Linear attention** (Mamba-2, Gated DeltaNet, Kimi Delta Attention) keeps one matrix per head, the **state**. Each
#   token updates it, and nothing else is kept except the last few inputs of a small convolution. A state of fixed size
#   can't recall everything word for word, so models mix such layers with some full ones: a **hybrid**.
# - **Sparse attention** (DeepSeek's DSA) keeps everything. A small **indexer** scores all tokens, and attention reads
#   the best 2,048.
#
# So linear attention saves memory and reads, and sparse attention saves only reads. (A state is written back in every
# step, so a step moves it twice.)

# %%
pictures.kinds_table()

# %% [markdown]
# ### Predict
#
# Qwen3.5 397B has a state in three layers of four, so at long contexts it keeps about a quarter of what it would with
# full attention everywhere. What about a chat of a thousand tokens?

# %%
bet = lab.predict(
    "short", "At 1,000 tokens, how much does Qwen3.5 397B keep, against full attention everywhere?", list(run.BETS)
)
bet

# %%
bet.score(run.short_chat())

# %%
pictures.draw_even()

# %% [markdown]
# **A state costs the same at any length.** Whether it pays depends on the context, as with everything about KV.
#
# ## The lab
#
# ### Kept, and read
#
# Switch between the two. Where do the curves bend, and which ones never do?

# %%
pictures.bytes_explorer()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - *Kept*: the hybrid starts out nearly flat (at 2,000 tokens it keeps 257 MB, 195 of them states) and then grows at a
#   quarter of the pace of full attention everywhere. The sparse model keeps every token's latent vector, and an index
#   key on top, so sparse attention saves no memory at all.
# - *Read*: the sparse model bends at 2,048 tokens; after that it's the index keys that grow, at a tenth of the pace.
#   The hybrid's floor is twice its state, which is read *and* written back in every step.
# - So a hybrid makes room for more long requests. Sparse attention makes room for none, but a step reads less of each.
#
# </details>
#
# ### A flat fee, times the batch
#
# A batch shares the weights, but every request brings its own state. What's the least time that moving a batch's KV
# and states takes, at the bandwidth of one B200? (Over several GPUs, each moves its share.)

# %%
pictures.reads_explorer()

# %% [markdown]
# <details><summary>Two to try, answered</summary>
#
# - *128 requests of 1,000 tokens*: the hybrid moves more than any of the others. A large batch of short chats is its
#   worst case.
# - *32 requests of 128,000*: now only the sparse model moves less.
#
# </details>
#
# ### A prefix cache of snapshots
#
# The KV of a prompt's first 700 tokens is simply the first part of its KV, so you can cut it anywhere. A state can't
# be cut, because it's a running sum over all tokens. A prompt that shares 700 tokens with an earlier one needs the
# state *at* 700, or at some point before. Engines keep **snapshots** on a grid, one every so many tokens, and a hit
# resumes at the last one within the shared prefix. How far apart should they be?

# %%
pictures.snapshots_explorer()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - At 16 tokens, the usual size of a block, a cached token takes hundreds of times its KV, nearly all of it states.
#   With 128 tokens between them, vLLM found that snapshots took 80% of its blocks, and hit rates collapsed until it
#   kept fewer.
# - At 8,192, a system prompt of 3,000 tokens is never found. A fleet of short chats sees a hit rate of zero, and no
#   error.
# - So engines couple the two. vLLM makes attention's block as large as a state (hundreds of tokens, up to some
#   thousands). Behind a flag, and so far only with MTP or EAGLE drafts (lesson 08), it also keeps a snapshot where an
#   earlier request with the same prefix stopped.
#
# </details>

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "Linear layers keep a fixed state per request instead of KV per token, so they pay off at long contexts. Sparse
# > attention keeps all the KV and reads little of it. With states I'd also check prefix caching, because you can't
# > truncate a state."
#
# **Follow-ups**
#
# <details><summary>"Since we moved to a hybrid, the prefix hit rate is 0. It was 60%. Why?"</summary>
#
# First, is it on? Before 0.28, vLLM left prefix caching off for hybrids unless you asked for it. Then I'd look at the
# grid. A hit can only resume at a snapshot, and blocks are as large as a state, hundreds to thousands of tokens.
# System prompts shorter than one block never hit. I'd read the block size from the startup log, compare it with the
# shared length, then make shared parts longer, or keep snapshots at the end of shared prefixes where the engine can.
#
# </details>
#
# <details><summary>"Does DSA let us run twice the batch?"</summary>
#
# Memory doesn't allow it, since everything is kept, plus an index key. What DSA cuts is how much a step reads at long
# contexts, and so ITL, and attention's FLOPs in prefill. If the batch was limited by ITL at 100k tokens, yes; if by KV
# memory, no.
#
# </details>
#
# **"Should we switch from a dense 70B to a hybrid of the same quality?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Yes, linear attention is O(n), so it's faster." | "For long contexts, yes. KV shrinks by the share of linear layers, so more requests fit and decode reads less." | "At which lengths, and with how much prefix reuse? Below the break-even of a few thousand tokens the state costs more than it saves, and every request in the batch moves its own twice a step. If half our prompt tokens are cache hits today, a coarse grid may lose more TTFT than decode gains. I'd replay a day of real traffic: hit rate, ITL by context, retrieval evals at our p99 length." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>From which context on does a hybrid keep less?</summary>
#
# 1. A full layer keeps $2\,n_{kv}\,d\,b$ bytes per token: a key and a value of $d$ numbers for each of $n_{kv}$ KV
#    heads, $b$ bytes a number. A linear one keeps $n_v\,d_k\,d_v\,s$ bytes in all: a matrix of $d_k \times d_v$ for
#    each of $n_v$ heads, $s$ bytes a number.
# 2. Qwen3.5 397B, full: 2 × 2 × 256 × 2 B = 2,048 B per token and layer.
# 3. Linear: 64 × 128 × 128 × 4 B = 4.2 MB per layer.
# 4. Break-even: 4.2 MB / 2,048 B = 2,048 tokens, whatever the number of layers (the convolution's last inputs add a
#    little).
# 5. With eight KV heads it would be 512 tokens. The fewer KV heads a model has, the later a state pays.
#
# </details>

# %% [markdown]
# ## Check yourself

# %%
check = checks()
check.card()

# %% [markdown]
# ## Going deeper
#
# ### The recurrence
#
# A head keeps a matrix $S$ of $d_v \times d_k$ numbers. For each token, with key $k$, value $v$, query $q$, a decay
# $\alpha$ and a write strength $\beta$ (Gated DeltaNet):
#
# $$S_t = \alpha_t\, S_{t-1}\,(I - \beta_t k_t k_t^{\top}) + \beta_t v_t k_t^{\top}, \qquad o_t = S_t\, q_t$$
#
# The bracket erases what the state said about this key before the new value is written. Decode does a few FLOPs per
# number of the state and moves it twice, so it's memory-bound at any batch. Prefill computes it chunk by chunk as
# matrix products, linear in the length.
#
# ### What else changes in an engine
#
# - **Speculation**: a rejected draft token has already been written into the state. The engine keeps a state per
#   draft position, or recomputes.
# - **Preemption and transfer**: swapping or sending a request moves its states, which have the same size at any length,
#   and the KV of its full layers (here a quarter of them). For short prompts that's more than with full attention
#   everywhere, for long ones far less.
# - **Tensor parallelism**: states split by heads, as keys and values do. An indexer's keys don't: each GPU keeps a
#   copy, like latent vectors.
# - **Admission**: "will it fit?" gains a fixed term. A request needs all of its state from its first token on, so
#   `max_num_seqs` × state has to fit beside the KV.
# - **Quality**: a state is worst at recalling exact strings, which is why some layers stay full. Sparse attention errs
#   where the indexer does. Test retrieval at *your* lengths.

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3.5-4B --max-model-len 65536 --enable-prompt-tokens-details
# sglang serve --model-path Qwen/Qwen3.5-4B --context-length 65536 --enable-cache-report --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3.5-4B --dataset-name prefix_repetition --prefix-repetition-num-prefixes 5 \
#     --prefix-repetition-prefix-len 400 --prefix-repetition-suffix-len 100 --prefix-repetition-output-len 16
# ```
#
# At start vLLM logs `Setting attention block size to N tokens`: that's the grid. (Before 0.28, ask for prefix caching:
# it's off for hybrids.) Run the bench with prefixes shorter than N, then with prefixes several times as long.
# `vllm:prefix_cache_hits_total` over `vllm:prefix_cache_queries_total` (`sglang:cached_tokens_total`) should be near
# zero first and high then, though prompts repeat just as much.
#
# Then compare `GPU KV cache size: N tokens` (`max_total_num_tokens=N`) with that of a full-attention model of the
# same size, and watch `vllm:kv_cache_usage_perc` with many short requests: it should be states that fill it.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Kernels.** Times here are bytes over a data sheet's bandwidth. They aren't measured, since this engine has no
#   linear layers. Kimi reports 6.3 times MLA's decode speed at a million tokens, and about the same speed at 4,000.
# - **Your dtype.** States are counted in float32, as Qwen3.5 keeps them. An engine that keeps 16 bits halves the fee.
# - **Quality.** Sizes say nothing about what a state forgets.
#
# ## Sources
#
# - Sizes: the publishers' config.json of Qwen3-235B-A22B, DeepSeek-V3, Qwen3.5-397B-A17B and GLM-5, in
#   `course/simulator/cost/shapes` and `minillm/model/shapes`.
# - Gated DeltaNet: Yang et al., 2024 (arXiv 2412.06464). Mamba-2: Dao and Gu, 2024 (arXiv 2405.21060). *Kimi Linear*,
#   Moonshot AI, 2025, and its README. DSA: DeepSeek-AI, *DeepSeek-V3.2*, 2025 (arXiv 2512.02556), section 2.1.
# - Snapshots: vLLM, *Automatic Prefix Caching* (hybrid models); pull request 45845 (retention; the 80%); issue 40696
#   (short prompts never hit).
