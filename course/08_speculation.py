# %% [markdown]
# # 08 · Speculative decoding
#
# "It guesses four tokens, and most of them are right, so it must be about three times as fast." It wasn't. On a full
# server it was slower, and now someone asks whether the answers are still the same. In this lesson you watch draft
# tokens being checked, and find out when that pays.
#
# You'll be able to compute the speedup from three numbers, name the acceptance at which it breaks even on a given
# server, and say why the output can't change.
#
# - **Five minutes** (five): drafts, checked token by token, and a bet on what they're worth.
# - **The lab** (five): what a verification yields, what it costs, and what dashboards call acceptance.
# - **In the interview** (fifteen): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (twenty): which drafter for what, three kinds of text, a full batch, 70 billion weights, mixtures
#   of experts, why nothing is lost.

# %%
from course.lab import draft_rules, open_lab, simulated_70b, verify_costs
from course.lab.claims import in_short
from course.lab.display import stack
from course.lab.pictures import draft_tiles
from course.lessons.lesson_08 import pictures, run, simulated, words

lab = open_lab()

# %%
from course.lessons.lesson_08.check import checks
from course.lessons.lesson_08.words import a14, d4, d5, d6, f2

# %% [markdown]
# ## Five minutes
#
# A model generates one token per step, and a step with few requests waits for memory, because it reads all the weights
# to produce a token for each (lesson 06). Checking five tokens in one step reads those weights only once as well, for
# five **query tokens** (the tokens that a step computes). So:
#
# - **Draft.** Something cheap guesses the next few tokens: a small model, a trained head on the model itself, or a
#   lookup in the text so far ("last time these words came up, what followed?": **n-gram** or **prompt lookup**).
# - **Verify.** One step of the model computes what *it* would have generated at each position. Draft tokens are
#   accepted up to the first one that differs; that one is replaced by the model's own token, already computed in the
#   same step. If all are accepted, the step adds the model's next token, the **bonus token**.
#
# Here it is on the real engine. Move the slider, or press play.

# %%
told = run.stories(lab)
draft_tiles.StoryPlayer(told)

# %%
words.watched(told)

# %% [markdown]
# ### Predict
#
# **Acceptance**, α, is the probability that a draft token is accepted, given that the ones before it were. That's
# accepted over *tested*, and this lesson always uses it that way. Say α = 0.6, drafts of k = 4 tokens, and each draft
# token costs c = 0.1 decode steps.

# %%
bet = lab.predict(
    "alone", f"{run.QUESTION} How many times as fast is one request on this machine?", unit="x", between=(0.5, 5)
)
bet

# %%
point = run.AcceptancePoint.of(run.made_up(lab, run.BET_ALPHA, run.BET_K))
checking = verify_costs.measure(lab)
bet.score(run.alone(point, checking))

# %% [markdown]
# The gain depends on what a verification *yields* in tokens, what it *costs* in plain steps, and what the *drafts*
# cost. **Speculation trades spare arithmetic for fewer reads of the weights. It pays while there's arithmetic
# to spare and the drafts are good.**

# %% [markdown]
# ## The lab
#
# ### What a verification yields
#
# A draft token counts only if all the ones before it were accepted. The first is accepted with probability α, the
# second counts with α², and so on; the model's own token is always there. So a verification yields 1 + α + α² + … +
# α^k tokens. The popular "k × α" is wrong twice. It forgets the model's own token, and it ignores that later positions
# are reached less and less often.
#
# To test that, the model here drafts for itself and gets some tokens wrong on purpose. That saves no time, but α is
# known. Add points of your own; each press is a run.

# %%
points = run.sweep(lab)
pictures.draw_places([run.longest(points), point])

# %%
pictures.AcceptanceLab(lab, [point, *points])

# %% [markdown]
# ### What dashboards call acceptance
#
# vLLM's log divides accepted tokens by *proposed* ones, and those behind a rejected one count as proposed: (α + α² +
# … + α^k) / k. That falls when k grows, though the drafter is as good as before. Put it into the formula in α's place,
# and you'll think that a verification yields 1.5 tokens where it yields 2.3 (α = 0.6, k = 4). The *mean acceptance
# length* is the formula's own yield, the model's token included. For drafts of four:

# %%
pictures.dashboard_table()

# %% [markdown]
# (`course.lab.speculation_gain.alpha_of(0.33, 4)` converts a dashboard's rate back to α. It gives 0.6.)
#
# ### What a verification costs
#
# Checking is free only as long as the step waits for memory. The run below alternates plain steps with steps that check
# made-up drafts, at several batch sizes. Read ×1.5 as "this verification takes as long as one and a half plain steps".

# %%
stack(pictures.costs_table(checking), words.checking(checking))

# %% [markdown]
# A real H100 is less generous than the simulated one, which prices bytes, FLOPs and overheads but no individual
# kernel. Checking four draft tokens took an 8B 1.02 plain steps for one request, 1.23 for 32 and 1.57 for 64
# ([measured](../docs/measured.md#Speculation-on-an-H100)). The sliders combine all three numbers, with this machine's
# costs of checking:

# %%
pictures.price_lab(checking)

# %% [markdown]
# <details><summary>Three questions to try, answered</summary>
#
# - *With α = 0.6 and a draft cost of 0.1 steps per token, which k is best at batch 1?* Two or three on most machines,
#   since position k adds α^k tokens and costs 0.1 steps plus the time to check it. The chart's title says which.
# - *Free drafts, all accepted: does any batch lose?* Only where checking k draft tokens takes more than k + 1 plain
#   steps. Look for such a batch in the table.
# - *c = 1, as if the model drafted for itself?* It can't gain, because each draft token costs a step and saves one at
#   most.
#
# </details>

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "A verification yields one plus alpha plus alpha squared and so on, and I divide that by what verifying and
# > drafting cost. Verifying is nearly free while decode is memory-bound, so I'd gate on load and measured acceptance.
# > The output distribution never changes."
#
# **Follow-ups**
#
# <details><summary>"vLLM's log shows an acceptance rate of 33% at k = 4. Is the drafter bad?"</summary>
#
# No. Tokens behind a rejected one count as proposed, so 33% corresponds to α = 0.6, or 2.3 tokens per verification. I'd
# look at mean acceptance length and at acceptance per position. If only the last positions are rarely accepted, shorten
# k.
#
# </details>
#
# <details><summary>"Does it help a mixture of experts?"</summary>
#
# Differently. In a small batch, more tokens activate more experts, so a verification reads more weights and isn't free.
# The gain is smallest at a handful of requests, rises until a plain step reads nearly all experts anyway, and falls as
# arithmetic runs out. A dense model's gain (at short contexts) only falls.
#
# </details>
#
# **"We turned on EAGLE and p99 got worse at peak. Why?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "The draft model isn't accurate enough, so train a better one." | "At peak the batch is large, so decode is no longer memory-bound and verification costs real time. Disable it above some batch." | "I'd look at two numbers by batch size: what a verification costs in plain steps, and mean acceptance length. Where the first exceeds the second, speculation loses even with free drafts. I'd set k by batch size (`num_speculative_tokens_per_batch_size`), check that draft weights and KV haven't cost us slots, and rehearse it on replayed traffic with synthetic acceptance, which has real timing at any acceptance length I choose." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>From α to speedup.</summary>
#
# 1. Position $i$ counts if all up to $i$ were accepted: probability $\alpha^i$.
# 2. Tokens per verification, the model's own included: $E = 1 + \alpha + \dots + \alpha^k = (1 - \alpha^{k+1})/(1 -
#    \alpha)$.
# 3. It costs $v$ plain steps to verify and $kc$ to draft.
# 4. Speedup $= E / (v + kc)$. With $v = 1$: at α = 0.6, $k$ = 4, $c$ = 0.1 that's 2.31 / 1.4 = 1.65.
# 5. Lengthen the draft while $\alpha^{k+1} > $ (speedup so far) × (the time to check one more + $c$).
# 6. $k \to \infty$: $E \to 1/(1-\alpha)$. At 0.6, 2.5 and no more.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# Answers come from the formula, from the costs measured above, and from the answers you watched.

# %%
check = checks(checking, told)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### Which drafter?
#
# **EAGLE-3** is a layer trained to draft from the hidden states (the vectors between layers) of the large model, the
# **target**. **MTP**, multi-token prediction, is a layer trained together with the model.
#
# | drafter | what it needs | where it pays | where it doesn't |
# |---|---|---|---|
# | **prompt lookup** | nothing, and c is near 0 | copying, up to larger batches than any other | chat and verse, where it finds little |
# | **draft model** | weights, a KV cache and a prefill of its own | small batches of a large dense model | servers short of KV; batches where its own steps cost more than they save |
# | **EAGLE-3 head** | one trained layer, with its KV | small batches; its prefill is one layer's | batches where a verification costs more plain steps than it yields tokens (true of every drafter) |
# | **MTP module** | a model trained with it, often a mixture of experts | small dense batches; batches of a mixture that read most experts anyway | a mixture with a handful of requests, where the second token reads other experts |
#
# At best, a draft token's c is the bytes that it reads over those of a decode step. For Llama-3 70B in bf16, from shapes
# and papers:

# %%
pictures.drafters_table()

# %% [markdown]
# An MTP module's one extra token, accepted at 85 to 90%, makes 1.85 to 1.9 tokens per step; DeepSeek-V3's report says
# 1.8 times the tokens per second. Block drafters such as DFlash draft all k tokens in one parallel pass, so drafting
# costs one pass instead of k. (This engine's own draft head, in the player at the top, is
# `speculative.method=draft_head`.)
#
# ### Copying, chat and verse
#
# This is prompt lookup on three kinds of text, one request at a time: copying a paragraph, everyday questions, and
# verse sampled at temperature 1. Each is served three ways: without drafts, *always* drafting, and with the engine's
# **gates**, which watch acceptance and decide whether to draft, and how far.

# %%
work = [run.one_by_one(lab, kind) for kind in run.KINDS]
gates = run.measured_gates(checking)
print(gates)
ways = {run.WITHOUT: run.OFF, "always": run.ALWAYS_DRAFTING, "gates": gates}
kinds = run.compare(lab, work, ways)
stack(pictures.served_table(kinds), words.kinds(kinds))

# %%
pictures.draw_strips(kinds)

# %% [markdown]
# Each column is one step: the model's own token at the bottom, accepted draft tokens above it, and rejected ones
# on top.
#
# <details><summary>The gates, field by field, and the equivalent on vLLM</summary>
#
# | field of `speculative` | drafts nothing when |
# |---|---|
# | `acceptance_floor` | α so far is too low for checking to be worth it (it retries now and then) |
# | `adaptive_k` | (it shortens the draft instead) a position that far out is unlikely to be reached |
# | `max_batch` | more requests than this are running, and checking costs more than drafts can gain |
# | `min_output_tokens` | the request's `max_tokens` is smaller than this |
#
# By default this engine assumes that checking a token costs 12 to 25% of a step on a CPU and 1% on a GPU. vLLM's gate
# by load is `num_speculative_tokens_per_batch_size` in `--speculative-config`, such as `[[1, 64, 3], [65, 128, 1]]`.
#
# </details>
#
# ### A full batch
#
# Copying is the best case for lookup. Now as many requests copy at the same time as the last row of the cost table
# has.

# %%
crowd = lab.predict(
    "crowd",
    "Many requests copy at the same time, always drafting. Is each faster or slower than without drafts?",
    list(run.CROWDED),
)
crowd

# %%
together = run.compare(lab, [run.crowd(lab, at_once=checking.batches[-1])], ways)
crowd.score(run.crowded(together))

# %%
stack(pictures.served_table(together), words.crowd(together, checking))

# %% [markdown]
# ### The same at 70B
#
# Llama-3 70B on four H100s, simulated, by batch size, then over α and batch. A 1B draft model's c is 0.15 here, not
# the 0.018 of bytes alone, because launch and host overhead dominate such short steps.

# %%
simulated.load_lab()

# %%
pictures.gain_map()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - Lookup keeps its gain longest. The 1B model also takes steps of its own, and at short contexts they cost a growing
#   share of a target's step as the batch grows.
# - At long contexts the gain survives larger batches, because a verification reads a request's KV once for all its
#   query tokens.
#
# </details>

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ### A mixture of experts is another matter
#
# In a mixture of experts (lesson 06b) each token picks its own experts, so a step that checks five tokens reads more
# weights than a plain one. Such models often come with an MTP module. Set k = 1, α = 0.85 and c = 0.03, and find the
# batch at which it gains least. Two H100s, simulated:

# %%
simulated.mixture_lab()

# %%
simulated_70b.error_band(simulated_70b.deployment(model=simulated.MIXTURE, tp=simulated.PAIR_GPUS))

# %% [markdown]
# <details><summary>Why it gets cheap, and then expensive again</summary>
#
# With a handful of requests, two tokens each activate nearly twice as many experts as one each. Once the batch
# activates nearly all of them anyway, further tokens add none, until arithmetic runs out. (Experts are taken to be
# equally likely and independent. Tokens of one text share some, so a real verification activates fewer.)
#
# </details>
#
# ### Why nothing is lost
#
# **Greedy.** A draft token is accepted only if it's the very token the model would have chosen. (In 16 bits the order
# of summation can decide between two close logits. In 32 bits this engine's tests require identical tokens.)

# %% [markdown]
# **Sampled.** Let $p$ be the model's distribution of the next token, and $q$ the drafter's. A draft token $x$, drawn
# from $q$, is accepted with probability $\min(1, p(x)/q(x))$. If rejected, another token is drawn from the residual,
# $\max(p - q, 0)$, normalized. Token $x$ then comes out with probability
#
# $$\min(p, q)(x) + \Bigl(1 - \sum_y \min(p, q)(y)\Bigr) \cdot
# \frac{\max(p - q, 0)(x)}{\sum_y \max(p - q, 0)(y)} = p(x)$$
#
# <details><summary>What that makes of α</summary>
#
# The chance that such a token is accepted is $\sum_y \min(p, q)(y)$, the overlap of two distributions. For a drafter
# that takes its likeliest token, as vLLM's do by default (`draft_sample_method` is `greedy`), it's $p(\arg\max q)$:
# lossless as well, and lower at high temperature. Both vary from position to position; the formula's α is a mean.
#
# </details>
#
# Make the drafter as bad as you like. You lose acceptance, but the distribution stays the same. Then try the other two
# rules. The title gives the **total variation** between what comes out and the model's own distribution (the largest
# difference in probability over any set of tokens), and what a thousand plain samples of that size stay *within*.

# %%
choice = draft_rules.NextToken.after(lab)
pictures.overlap_lab(choice)

# %% [markdown]
# **The code** that decides how far a request drafts, and whether a sampled draft token is accepted:

# %%
import inspect

from minillm.runner.rejection_sampler import check_drawn
from minillm.speculation.draft_length import DraftLength

print(inspect.getsource(DraftLength.num_drafts))
print(inspect.getsource(check_drawn))

# %% [markdown]
# ### What articles say

# %%
brief = run.short_answers(lab)
in_short(
    a14(run.quantized_or_drafted(lab)),
    d4(checking),
    d5(told),
    d6(brief, run.pay_backs(simulated_70b.deployment())),
    f2([point, *points]),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --speculative-config \
#     '{"method":"draft_model","model":"Qwen/Qwen3-0.6B","num_speculative_tokens":4}'
# sglang serve --model-path Qwen/Qwen3-8B --speculative-algorithm STANDALONE --speculative-num-steps 4 \
#     --speculative-draft-model-path Qwen/Qwen3-0.6B --speculative-eagle-topk 1 --speculative-num-draft-tokens 5 \
#     --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --random-input-len 256 --random-output-len 256 --ignore-eos --max-concurrency 1
# ```
#
# 1 + `vllm:spec_decode_num_accepted_tokens_total` / `vllm:spec_decode_num_drafts_total` is the mean acceptance length
# (log: `Mean acceptance length`; `sglang:spec_accept_length`). Accepted over `vllm:spec_decode_num_draft_tokens_total`
# is the dashboards' rate.
#
# Raise `--max-concurrency`: at these short contexts a dense model's gain shrinks, then turns into a loss. Random
# prompts are hard to draft for, so send your own traffic, or add `"rejection_sample_method":"synthetic"` and
# `"synthetic_acceptance_length":2.5` to vLLM's object. Answers become nonsense, the timing stays real, and you see
# what *any* drafter with that length is worth.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your acceptance, and your cost of checking.** Measure acceptance by kind of request, since a mean hides the kinds
#   that lose, and a verification at your batch.
# - **Trees.** Some systems check several continuations in one step. This engine checks one.
# - **Overlap.** With drafts on, this engine doesn't schedule a step while the one before runs. On an H100, with
#   nothing drafted, a token took a tenth longer at batch 1 and 30% longer at 64 (lookup included). vLLM and SGLang
#   schedule ahead with EAGLE and MTP drafts.
#
# ## Sources
#
# - Claims: *Serving LLMs: The Latency Anatomy Framework* (A14); an article on techniques for lower latency (D4, D5,
#   D6); an article on latency in three layers (F2).
# - The rule and its proof: Leviathan, Kalman and Matias, *Fast Inference from Transformers via Speculative Decoding*,
#   2023; Chen et al., *Accelerating Large Language Model Decoding with Speculative Sampling*, 2023. Prompt lookup:
#   Saxena, 2023. Heads: Cai et al. (Medusa) and Li et al. (EAGLE), 2024; Li et al., *EAGLE-3*, 2025 (arXiv 2503.01840).
#   MTP: DeepSeek-AI, *DeepSeek-V3*, 2024, section 5.4.3. Mixtures: Huang et al., *MoESD*, 2025. Acceptance rate and
#   mean acceptance length: vLLM, `vllm/v1/spec_decode/metrics.py`.
