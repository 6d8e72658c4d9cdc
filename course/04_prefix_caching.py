# %% [markdown]
# # 04 · Prefix caching: the order of a prompt
#
# A service puts the same handbook in front of every question. Yesterday, answers started instantly. Today someone
# added one line to the prompt, and every first token is late. Which line was it, and where did they put it?
#
# By the end you'll know what a prefix cache can find and what it can't, how to order a prompt to suit it, and when
# even a very large cache won't help.
#
# - **Five minutes** (five): one line of a prompt, in two places, and a bet.
# - **The lab** (ten): order, eviction, routing.
# - **In the interview** (ten): the line, follow-ups, three numbers, a derivation, and a check.
# - **Going deeper** (twenty-five, optional): a linter, two more bets, where a cache does nothing, what hosted APIs
#   charge, the code.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.claims import in_short
from course.lab.display import stack
from course.lessons.lesson_04 import explorer, pictures, run, words
from course.lessons.lesson_04.check import checks
from course.lessons.lesson_04.explorer import PromptEditor, lint_prompts
from course.lessons.lesson_04.pictures import draw_finds
from course.lessons.lesson_04.words import d9, d13, f1, f5, f6

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# **Prefill** computes keys and values for every prompt token, and puts them into the **KV cache**. A token's keys and
# values depend on that token and everything before it, and on nothing after it. So two prompts that *begin* the same
# way have the same keys and values up to the first difference. A **prefix cache** keeps them, and prefill of the next
# prompt with that beginning starts where they end.
#
# KV is kept in **blocks**, often of 16 tokens. A block that's found is a **hit**, and the **hit rate** is prompt
# tokens found divided by prompt tokens looked up. The run below asks four questions about one handbook. Each bead is
# a block.

# %%
plain = lab.run(run.stamped(lab, "nowhere"))
draw_finds({"one handbook, four questions": plain})

# %% [markdown]
# The first request computes every block. The others find the handbook (large yellow beads) and compute little more
# than their own question. The last, partly filled bead can't be found: only full blocks are cached.
#
# ### Predict
#
# Now the prompt also has a short line that says what time it is, to the second. In one run it's the **first** line,
# in the other the **last** before the question.

# %%
bet = lab.predict(
    "stamp",
    "The time moves from the first line to the last. What happens to TTFT, from the second request on?",
    words.FALLS,
)
bet

# %%
first = lab.run(run.stamped(lab, "first line"))
last = lab.run(run.stamped(lab, "last line"))
bet.score(words.moved(first, last))

# %%
draw_finds({"the time in the first line": first, "the time in the last line": last})

# %%
words.stamp(first, last)

# %% [markdown]
# ## The lab
#
# ### Order
#
# Here are two prompts, the second sent a few seconds later. Only the time differs. Each bead shows the first digits
# of its block's **hash**. The hash covers the block's own tokens *and the previous block's hash*, so the hashes form
# a **chain**. (In vLLM the hash also covers whatever else changes keys and values, such as a LoRA adapter or an
# image.) Drag the time from the first sentence to the last and watch where the chain breaks. Then change the block
# size. Below are the same two prompts as a **radix tree** (prompts share a path up to their first difference), which
# SGLang matches token by token (at page size 1).

# %%
explorer.bead_explorer(lab)

# %% [markdown]
# Past the break the words are the same again, but the hashes aren't. That's not a weakness of the cache. The keys and
# values of those words really do differ, because the model has seen a different time before them. So order a prompt
# by how often each part changes. And ask whether the time needs seconds: a clock that ticks once an hour breaks the
# chain once an hour.
#
# ### What gets evicted?
#
# When the cache is full, something has to go. **LRU** evicts what was *used* longest ago, and is the engine's
# default. **FIFO** evicts what was *computed* longest ago, however often it was used since. A **time limit** (TTL)
# expires entries that are too old, even if there's room to spare. (Fields: `prefix_eviction`, `prefix_ttl_s`.)
#
# In the chart each user is in a conversation, and each turn repeats all previous ones. The cache gets larger from
# left to right. Find settings where FIFO finds less than LRU, and where the time limit forgets everything.

# %%
explorer.policy_explorer()

# %% [markdown]
# <details><summary>Settings that show it</summary>
#
# FIFO loses where the cache holds some but not all users, because it evicts the oldest *blocks*, the beginnings that
# every turn needs (six users, turns a minute apart, a cache of 200 to 400 blocks). A time limit forgets everything
# once the mean gap between turns is several times the limit, whatever the cache's size. Agents with slow tools run
# into that, because the KV of a turn has expired by the time the tool answers.
#
# </details>
#
# No policy can keep a **working set** (everything that will be asked for again) that doesn't fit. Here's an LRU cache
# with room for the prefixes of six **tenants** (customers of one service), who ask strictly in turns, or at random:

# %%
pictures.draw_cliff()

# %% [markdown]
# In turns, LRU falls off a cliff. With one tenant more than fits, it evicts each one's prefix just before that tenant
# comes back. With random order the hit rate falls gradually. (It already loses a little at six. When a tenant asks
# several times in a row, its questions push out the prefix of one that hasn't come back yet.) When a hit rate drops,
# look at the working set before you blame the policy. If it doesn't fit, add a tier in CPU memory
# ([07b](07b_smaller_kv.ipynb)), or give each replica fewer tenants, which is what routing can do.
#
# ### Routing
#
# This is Llama-3 70B, simulated, on four **replicas** (copies of the whole server), each with its own cache. Its 60
# tenants have system prompts of 2,000 tokens. A **router** picks the replica. *Round robin* takes each in turn,
# *least busy* takes the one with the fewest open requests, and *prefix-aware* takes one that has seen this prefix
# before, unless it's much busier than the others. (How far the simulator is off is shown under [the first request
# after a deploy](#The-first-request-after-a-deploy).)

# %%
fleet = run.routers(simulated_70b.deployment(), tenants=60)
stack(pictures.routers_table(fleet), words.routers(fleet))

# %% [markdown]
# What if there's **one prefix for everyone**? Can prefix-aware routing still spread the load?

# %%
hot = run.routers(simulated_70b.deployment(), ("round robin", "prefix-aware"), tenants=1, qps=20)
stack(pictures.routers_table(hot), words.hot(hot))

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "A prefix cache matches whole blocks from the first token and stops at the first difference, so I order prompts by
# > how often each part changes. Before tuning eviction I compare the hit rate with what an unlimited cache would
# > find."
#
# **Follow-ups**
#
# <details><summary>"Does it speed up decode?"</summary>
#
# Not the decode step itself; it only removes prefill, and decode still reads the whole context's KV. But under load,
# fewer steps carry other requests' prefill and the queue is shorter, so ITL p99 and queue time improve as well. And
# shared blocks are stored once, so more requests fit.
#
# </details>
# <details><summary>"Two tenants share a cache. Is that a leak?"</summary>
#
# Through timing, yes. A fast first token tells me that another tenant has sent this prefix. I'd salt the first
# block's hash per tenant (`cache_salt` in a request, here as in vLLM). The price is that tenants no longer share anything, so I'd
# choose the widest group within which sharing is harmless, such as an organization.
#
# </details>
#
# **"Our hit rate is 20%. What do you do?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "More memory for KV." | "Look at the prompts: something changes early." | "What would an unlimited cache find? If 20%, it's the prompts: order them, pin the tools' order, coarsen the clock. If 80%, it's eviction or routing: working set against capacity, per replica, and which requests each replica gets." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>How many tenants' prefixes fit? And what does a hit save?</summary>
#
# 1. KV per token: 2 × layers × KV heads × head size × bytes. 70B with GQA: 2 × 80 × 8 × 128 × 2 = 328 kB.
# 2. A prefix of 2,000 tokens is 0.66 GB.
# 3. KV capacity: GPU memory × 0.9 − weights − activations. Four H100s of 85 GB: about 306 − 141 − 5 = 160 GB.
# 4. So some 240 prefixes, if nothing runs; running requests need their own KV first.
# 5. A hit saves prefill: 2 P n over FLOP/s × MFU (lesson 03). Every other request in those steps is spared that wait,
#    too.
# 6. It never saves the last token. At least one has to be computed, or there are no logits to sample from.
#
# </details>
#
# ## Check yourself
#
# Answers are computed from the runs above, and from two more small ones.

# %%
by_order = run.order_runs(lab)
small = {how: by_order[f"small cache, {how}"] for how in ("in turns", "grouped")}
check = checks(last, small)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### A prompt the way services really send it
#
# This is a template; the client fills in the `{fields}` for every request. The **linter** compares six such requests
# and lists each line that hides shared text from the cache; the first one breaks the chain. (A line hides all later
# tokens that change less often than it does, so the same tokens can be counted for several lines.) Edit the template
# as you like. *Reorder by stability* moves what changes least often to the front. *Run on the engine* plays the
# requests; the previous run stays above.

# %%
editor = PromptEditor(lab)
editor

# %% [markdown]
# Try one fix at a time: the time to the end, then the session id, then the user name, then the tools. (`{tools}` is a
# list whose order changes from request to request, as when several services are queried in parallel. It reads the
# same to a person, but it's different text.)

# %%
one_fix = lab.predict(
    "one fix",
    "Only the time moves to the end; session id, user name and tools stay. What share will the cache find?",
    words.SHARES,
)
one_fix

# %%
moved = lab.run(explorer.step_workload(lab, "time to the end"))
one_fix.score(words.shared(moved))

# %% [markdown]
# Here are all the fixes, one after the other. The shares are counted by hashing the prompts, so they're the same on
# every machine:

# %%
ladder = explorer.template_ladder(lab)
pictures.ladder_table(ladder)

# %%
words.one_fix(ladder)

# %% [markdown]
# The linter also takes your own prompts: give it one to look for suspicious lines, or two or more from one service to
# see what differs.

# %%
lint_prompts(lab, "Request id: 7f3a91c2\nYou are a helpful assistant.\nUser: 41\nQuestion: why is the sky blue?")

# %% [markdown]
# ### Together, or in turns
#
# Three tenants, each with its own handbook, ask in turns (A B C A B C) or grouped (A A B B C C). We run both, once
# with room for all three in the cache and once with room for two.

# %%
orders = run.order_runs(lab)
pictures.runs_table(orders)

# %%
draw_finds({name: each for name, each in orders.items() if "small" in name})

# %%
agree = run.agreement(orders["small cache, in turns"])
words.orders(orders, agree)

# %% [markdown]
# ### The first request after a deploy
#
# This is Llama-3 70B again, on an idle server. How much longer does a tenant's first request take than later ones?

# %%
colder = lab.predict(
    "cold",
    "A system prompt of 4,000 tokens, an idle server: the cold TTFT is how many times the warm one?",
    unit="x",
    between=(1, 40),
)
colder

# %%
on_70b = simulated_70b.deployment()
prefixes = run.cold_and_warm(on_70b, (250, 500, 1000, 2000, 4000))
colder.score(words.cold(prefixes))

# %%
stack(pictures.draw_cold_and_warm(prefixes), words.warm(prefixes), simulated_70b.error_band(on_70b))

# %% [markdown]
# So after every deploy, send the system prompt to every replica once before traffic arrives (**pre-warming**). Then
# no user pays the cold price, until the prefix is evicted.
#
# ### Where it does nothing
#
# **Nothing is shared.** No two of these prompts begin the same way.

# %%
nothing = {
    "cache on": lab.run(run.unique(lab)),
    "cache off": lab.run(run.unique(lab), enable_prefix_caching=False),
}
stack(pictures.runs_table(nothing), words.nothing(nothing))

# %% [markdown]
# **The shared part is shorter than a block.** These prompts do share a beginning, and run on engines with larger and
# larger blocks. (Some GPU kernels want large ones.)

# %%
blocks = run.block_runs(lab)
stack(pictures.blocks_table(blocks), words.blocks(blocks))

# %% [markdown]
# ### The chain, as a formula
#
# With tokens in blocks $b_1, b_2, \dots$ of $B$ tokens, and a cryptographic hash $H$:
#
# $$h_i = H(h_{i-1}, b_i), \qquad \text{found} = B \cdot \min\left(k,\ \left\lfloor \tfrac{n-1}{B} \right\rfloor\right),
# \quad k = \max\{\, j : h_1, \dots, h_j \text{ are all cached} \,\}$$
#
# for a prompt of $n$ tokens. It's $n-1$ because at least one token has to be computed, or there are no **logits**
# (scores of every possible next token) to sample the first token from. With $p$ seconds of prefill per token and a
# fixed cost of $f$ seconds:
#
# $$\text{TTFT} \approx \text{queue} + f + p\,(n - \text{found})$$
#
# (The computed tokens still attend to the ones that were found, so $p$ grows with the length of the prefix.) Here's
# how blocks are named and looked up:

# %%
import inspect

from minillm.core.block_manager import BlockManager
from minillm.core.block_pool import BlockPool, block_hashes

print(inspect.getsource(block_hashes))
print(inspect.getsource(BlockManager.find_prefix))

# %% [markdown]
# A block that no request holds counts as free, but can still be found until it's reused. So the cache takes no memory
# that a request needs. When a request ends, its blocks are freed from last to first, so that the end of a text is
# evicted before its beginning.

# %%
print(inspect.getsource(BlockPool.release))

# %% [markdown]
# ### What articles say
#
# One claim is about a conversation, turn by turn. Each turn repeats what came before, so the share that's found
# grows. (The answers in this history are ours. In a real chat most of the model's own answer would be found, too.)
# Another claim compares LRU with a time limit, in a service where a new session started every three minutes and the
# limit was five. Before you copy the figure, ask whether the limit ran from creation or from last use, and whether
# the session was the cache key.

# %%
chat = run.conversation(lab)
cached = lab.run(chat)
uncached = lab.run(chat, enable_prefix_caching=False)
in_short(
    f1(first, last),
    f5(prefixes, {"last line": last}),
    f6(run.rates_of(orders)),
    d9(cached, uncached, run.session_cuts(on_70b)),
    d13(run.by_gap(words.GAPS_S), agree),
)

# %% [markdown]
# ### What hosted APIs charge
#
# Hosted APIs cache prefixes too, and bill for it. Anthropic's API caches up to a **breakpoint** that you set
# (`cache_control`). Writing costs more than plain input, reading costs a tenth of it, and entries expire 5 minutes or
# 1 hour after their last use. OpenAI's caches automatically from 1,024 tokens. Its older models write for free; from
# GPT-5.6 on, writing costs 1.25 times plain input, and entries live for at least 30 minutes. So whether caching pays
# depends on your traffic. How many requests per hour does a prefix need?

# %%
explorer.hosted_explorer()

# %% [markdown]
# <details><summary>Answer</summary>
#
# With random arrivals, a request finds the prefix with probability $1 - e^{-\lambda\,\text{TTL}}$. Caching pays once
# $\text{hit rate} > \frac{w - 1}{w - r}$ for a write price $w$ and a read price $r$. That's 22% for 1.25 and 0.1, or
# a request every 20 minutes on a 5-minute entry and every two hours on a 30-minute one. It's 53% for 2 and 0.1, or a
# request every 80 minutes on a 1-hour entry. Below that, caching *raises* the bill. Above about one request in two
# hours, Anthropic's 1-hour entry is cheaper than its 5-minute one. At high rates all of them come down to the read
# price, because each use renews the entry (drawn like that for OpenAI as well, which doesn't promise it). Output
# tokens cost the same either way, and they're several times the price of input.
#
# </details>

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --enable-prompt-tokens-details
# sglang serve --model-path Qwen/Qwen3-8B --enable-cache-report --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --dataset-name prefix_repetition --prefix-repetition-num-prefixes 5 \
#     --prefix-repetition-prefix-len 2000 --prefix-repetition-suffix-len 100 --prefix-repetition-output-len 16
# ```
#
# Both cache prefixes by default, and the two flags put the tokens found into each answer's `usage`. The hit rate is
# `vllm:prefix_cache_hits_total` over `vllm:prefix_cache_queries_total`, and `Prefix cache hit rate` in the log; in
# SGLang `sglang:cache_hit_rate`, and `#cached-token` batch by batch.
#
# The rate should come close to the prefix's share of the prompt. TTFT falls, and with one request at a time
# (`--max-concurrency 1`) ITL doesn't move. Control: `--no-enable-prefix-caching`, or `--disable-radix-cache`. Then
# raise the number of prefixes. Nothing changes while all of them fit into the KV cache. Past that the hit rate falls
# off, because both evict the least recently used blocks by default.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Quality.** A reordered prompt is a different prompt. Models pay more attention to the beginning and the end, so
#   evaluate after you reorder.
# - **Your chat template.** Prompts here are plain text. A template puts system text and tools where it likes, some
#   insert the date, and those of reasoning models usually drop earlier turns' thinking, so everything after it is
#   computed again. Lint what's actually sent, after the template.
# - **Who else is in the cache.** A hit is faster than a miss, so a shared cache leaks what another tenant has sent.
#   Engines let you salt the hash per tenant, which gives up the sharing.
# - **Your ratios.** What a hit saves is the prefill it replaces. That's a lot on a CPU, or with long prefixes, and
#   nothing where a prompt is short enough to fit into a step that's taken anyway.
#
# ## Sources
#
# - D9, D13: an article on techniques for lower LLM latency, from batching to streaming. F1, F5, F6: an article on LLM
#   latency in three layers (surface, guided, deep dive).
# - The chain of block hashes, LRU over free blocks, freeing from the end: vLLM's automatic prefix caching
#   (`vllm/v1/core/block_pool.py`, `kv_cache_utils.py`). Paging: Kwon et al., *PagedAttention*, 2023. A radix tree,
#   and the router's rule: Zheng et al., *SGLang*, 2024.
# - Hosted caching: [Anthropic](https://platform.claude.com/docs/en/build-with-claude/prompt-caching) and
#   [OpenAI](https://developers.openai.com/api/docs/guides/prompt-caching), read in November 2026. Prices change; the
#   multipliers are inputs.
# - The working set: Denning, *The working set model for program behavior*, 1968.
