# %% [markdown]
# # 04 · Prefix caching: the order of a prompt
#
# A service sends the same handbook in front of every question. Yesterday each answer began at once. Today somebody
# added one line to the prompt, and every first token is late. Which line, and where did it stand?
#
# By the end you can say what a prefix cache finds and what it cannot, put a prompt in the order that suits it, and tell when
# a cache will not help, however large it is.
#
# - **Surface** takes five minutes: one line of a prompt, in two places.
# - **Guided** hands you a prompt and its linter, users who come back, tenants in turns, and a fleet of 70B.
# - **Deep dive** shows the chain of hashes, the code, and five claims put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_04 import claims, instruments, policies, tables, template, tenants, traffic
from course.lab.lesson_04.beads import draw_finds
from course.lab.lesson_04.checks import checks
from course.lab.lesson_04.claims import d9, d13, f1, f5, f6
from course.lab.lesson_04.editor import PromptEditor, lint_prompts

lab = open_lab()

# %% [markdown]
# ## Surface
#
# Before a model writes, it reads the whole prompt: **prefill**. For each token it keeps notes (keys and values): the **KV
# cache**. The notes on a token depend on that token and on everything before it, and on nothing after it. So two prompts
# that *begin* alike have the same notes as far as they are alike. A **prefix cache** keeps them, and the next prompt
# that begins so starts where they end.
#
# Notes are kept in **blocks** of some tokens (often 16). A block that is found is a **hit**. The **hit rate** is
# prompt tokens found, divided by prompt tokens looked up. What prefix caching shortens is prefill, and so **TTFT**,
# the time to the first token. Of this one request it does not speed up the tokens after that. Under load others
# gain, too: less prefill in front of them and between their tokens, and shared blocks are held once.
#
# Four questions on one handbook, one after the other. A bead is a block.

# %%
plain = lab.run(traffic.stamped(lab, "nowhere"))
draw_finds({"one handbook, four questions": plain})

# %% [markdown]
# The first request pays for everybody. The others find the handbook, large yellow beads, and compute little more
# than their own question. The bead that is not full at the end cannot be found while it is not full: only whole
# blocks are kept.
#
# ### Predict
#
# Now the prompt also says what time it is, to the second: one short line. In one run it is the **first**
# line, in the other the **last** before the question. The prompts are as long in both.

# %%
bet = lab.predict(
    "stamp",
    "The time moves from the first line to the last. What becomes of TTFT, from the second request on?",
    tables.FALLS,
)
bet

# %%
first = lab.run(traffic.stamped(lab, "first line"))
last = lab.run(traffic.stamped(lab, "last line"))
bet.score(tables.moved(first, last))

# %%
draw_finds({"the time in the first line": first, "the time in the last line": last})

# %% [markdown]
# The same words, the same length, the same model. Does the cache find as much in both runs? If no two prompts begin alike, it
# finds nothing: not the instructions, not the handbook, which have not changed at all. And if TTFT fell when the time moved,
# that is the surface: **what changes goes last**.

# %% [markdown]
# ## Guided
#
# ### Drag the time through a prompt
#
# Two prompts, the second a few seconds later; they differ in the time only. Each bead shows the first digits of its
# block's **hash**, a short fingerprint. It covers the block's own tokens *and the hash of the block before it*: a **chain**. Drag
# the time from the first sentence to the last, and watch where the chain breaks. Then change the block size.

# %%
instruments.bead_explorer(lab)

# %% [markdown]
# Behind the break the words are the same again, and the hashes are not. That is no weakness of the cache: the notes on those
# words really are different, because the model read them after another time of day.
#
# Must the time be there to the second? A clock that moves on once an hour breaks the chain once an hour. Claim F1, in
# the deep dive, counts what that is worth.

# %% [markdown]
# ### A prompt, as services really send it
#
# This is a template. For every request the engine's client fills in the `{fields}`. The **linter** compares six such requests
# and lists each line that keeps shared text from being found; the first one decides. Edit the template as you like. *Reorder
# by stability* puts what changes least often first. *Run on the engine* plays the requests; the run before stays above.

# %%
editor = PromptEditor(lab)
editor

# %% [markdown]
# Try one fix at a time and run: the time to the end, then the session id, then the user name, then the tools. Which one
# do you expect to pay?
#
# `{tools}` stands for a list whose order changes from request to request, of tools and of their keys, as when
# several services are asked at once and whoever answers first comes first. It reads the same to a person, and it is
# another text.

# %%
one_fix = lab.predict(
    "one fix",
    "Only the time goes to the end; session id, user name and tools stay. What share will the cache find?",
    tables.SHARES,
)
one_fix

# %%
moved = lab.run(template.step_workload(lab, "time to the end"))
one_fix.score(tables.shared(moved))

# %% [markdown]
# Here is the whole ladder, counted by hashing the prompts (no clock is involved, so it is the same on every machine).

# %%
ladder = tables.ladder(lab)
tables.ladder_table(ladder)

# %% [markdown]
# A chain holds as far as its first broken link. If a fix looks worthless here, it need not be: perhaps the next broken line
# stands right behind it. So do not judge a fix by the hit rate alone; look at what the *first* broken line is now.
#
# The linter also takes your own prompts: one, for suspects by their looks; two or more of one service, for what differs.

# %%
lint_prompts(lab, "Request id: 7f3a91c2\nYou are a helpful assistant.\nUser: 41\nQuestion: why is the sky blue?")

# %% [markdown]
# ### Who is remembered?
#
# A cache is finite. When room is short, somebody's blocks go. **LRU** drops what was *used* longest ago; it is the engine's
# rule. **FIFO** drops what was *computed* longest ago, however often it was used since. A **time limit** (TTL) drops what is too
# old, even with room to spare. Users talk in turns, and each turn repeats all before it. To the left
# the cache is small. Move the handles until FIFO finds less than LRU, and until the time limit forgets everything.

# %%
instruments.policy_explorer()

# %% [markdown]
# These policies run in a small model (`course/lab/lesson_04/cache_model.py`), because the engine has only LRU. May
# one believe it? In the next section the model's LRU is held against the engine, request by request.
#
# ### Together, or in turns
#
# Three **tenants** (customers of one service) with a handbook each. They ask in turns, A B C A B C, or grouped, A A B B C C.
# Once with room for all three in the cache, once with room for two.

# %%
orders = claims.order_runs(lab)
tables.runs_table(orders)

# %%
draw_finds({name: run for name, run in orders.items() if "small" in name})

# %%
agree = policies.agreement(orders["small cache, in turns"])
print(f"the model's LRU found exactly what the engine found: {agree[0]} of {agree[1]} requests")

# %% [markdown]
# With room for all, order changes nothing that is found. With room for two, asking in turns is the worst that can
# happen to LRU: whoever comes next is the one that was just dropped. (A bead may survive in what is left of the
# room.) Grouping (the article says *coalescing*; SGLang can sort its waiting line so, `--schedule-policy lpm`)
# repairs it, and its price is that the last group waits for all the others. So it is for
# work whose order nobody minds.
#
# Requests that arrive in the same moment need no grouping: in this engine, a block can be found from the step on in which it
# is scheduled to be computed.

# %% [markdown]
# ### The same question at 70B
#
# Llama-3 70B on four H100s, simulated under the same scheduler and the same cache. How far its step times were from
# real ones:

# %%
on_70b = simulated_70b.deployment()
simulated_70b.error_band(on_70b)

# %%
prefixes = tenants.cold_and_warm(on_70b, (250, 500, 1000, 2000, 4000))
tenants.draw_cold_and_warm(prefixes)

# %% [markdown]
# The warm line is flat, and it is not zero: a step has a fixed cost, and the question must be read. The shorter the prefix, the
# less there is to save; below some length the cold line lies on the same floor.
#
# Now four **replicas** (copies of the whole server), each with a cache of its own, and tenants with system prompts of 2000
# tokens. A **router** decides who gets a request. Round robin: each in turn. Least busy: fewest open requests. Prefix-aware: where
# this beginning was sent before, unless that replica is much busier than the others.

# %%
fleet = tenants.routers(on_70b, tenants=60)
tenants.routers_table(fleet)

# %% [markdown]
# With round robin each replica has to learn every tenant: four first times instead of one, and room for all of them on each.
# The prefix-aware router makes four small caches into one large one. Look at p99, too: first times stay, and they are the tail.

# %% [markdown]
# ### Where it does nothing
#
# **Nothing shared.** Prompts of which no two begin alike, cache on and off. Compare the tokens computed; a difference in
# seconds is the noise of this machine. Looking costs a hash a block: microseconds, beside milliseconds.

# %%
nothing = {
    "cache on": lab.run(traffic.unique(lab)),
    "cache off": lab.run(traffic.unique(lab), enable_prefix_caching=False),
}
tables.runs_table(nothing)

# %% [markdown]
# **A beginning shorter than a block.** The same prompts, on engines with larger and larger blocks. (Some GPU kernels want
# large ones.)

# %%
blocks = tables.block_runs(lab)
tables.blocks_table(blocks)

# %% [markdown]
# ### Where it hurts
#
# **One tenant too many.** A cache with room for six; tenants ask strictly in turns, or at random. Counted with the model.

# %%
policies.draw_cliff()

# %% [markdown]
# In turns, LRU falls off a cliff: with one tenant more than there is room for, it drops each one just before it comes back. Random
# order slopes. The lesson for capacity: when a hit rate falls, ask for the **working set** (all that will be asked for again)
# before blaming the policy.
#
# **Everybody shares one prefix.** Then every replica knows it, there is nothing for a prefix-aware router to gain, and it
# still sends everybody to the same place, until that place is much busier than the rest.

# %%
hot = tenants.routers(on_70b, ("round robin", "prefix-aware"), tenants=1, qps=20)
tenants.routers_table(hot)

# %% [markdown]
# ## Deep dive
#
# **The chain.** With tokens in blocks $b_1, b_2, \dots$ of $B$ tokens, and a cryptographic hash $H$:
#
# $$h_i = H(h_{i-1}, b_i), \qquad \text{found} = B \cdot \min\left(k,\ \left\lfloor \tfrac{n-1}{B} \right\rfloor\right),
# \quad k = \max\{\, j : h_1, \dots, h_j \text{ are all cached} \,\}$$
#
# for a prompt of $n$ tokens. Why $n-1$: at least one token must be computed, or there is nothing to pick the first token
# from. With $p$ seconds of prefill a token and a floor of $f$ seconds:
#
# $$\text{TTFT} \approx \text{queue} + f + p\,(n - \text{found})$$
#
# **The code.** Naming blocks, and looking for them:

# %%
import inspect

from minillm.core.block_manager import BlockManager
from minillm.core.block_pool import BlockPool, block_hashes

print(inspect.getsource(block_hashes))
print(inspect.getsource(BlockManager.find_prefix))

# %% [markdown]
# A block that nobody holds is free, and may still be found: the cache takes no memory that a request wants. When a request
# ends, its blocks are freed from the last to the first, so that the end of a text is forgotten before its beginning.

# %%
print(inspect.getsource(BlockPool.release))

# %% [markdown]
# **The claims, measured.** First, the time in front of the prompt.

# %%
f1(first, last)

# %%
f5(prefixes, {"last line": last})

# %%
f6(policies.rates_of(orders))

# %% [markdown]
# A conversation, turn by turn: each turn repeats what came before, so what is found grows. The answers in this history
# are written by us; in a real chat most of the model's own answer would be found, too.

# %%
talk = traffic.conversation(lab)
cached = lab.run(talk)
uncached = lab.run(talk, enable_prefix_caching=False)
d9(cached, uncached, tenants.session_cuts(on_70b))

# %%
d13(policies.by_gap(claims.GAPS_S), agree)

# %% [markdown]
# On D13: in the article a new session began every three minutes and the limit was five. A limit that counts from
# the last use forgets only some of that (first figures above). If it counted from birth it forgets more. If the
# cache's key was the session, every new session is a miss under any policy, and then LRU alone cannot have lifted
# the rate. The article does not say which; ask before you copy the figure.
#
# ## Say it in an interview
#
# > "A prefix cache matches from the first token, in whole blocks, and stops at the first difference. So I sort the
# > prompt by how often each part changes: instructions, tools in a fixed order, documents, then user, time and
# > question. Before I tune the policy I compare the hit rate with what an unlimited cache would find: if that is
# > low too, the prompts are the problem; if it is high, memory or routing is. And for a request it only shortens
# > prefill; what the server gains is shorter queues and room."
#
# ## Check yourself
#
# Replace the dots. Keys come from the runs above.

# %%
small = {how: orders[f"small cache, {how}"] for how in ("in turns", "grouped")}
check = checks(last, ladder, small)

check("q1", ...)  # tokens that request #1 of `last` (the time in the last line) found in the cache

# %%
check("q2", ...)  # the hit rate of that run as an engine counts it, 0 to 1; all four requests

# %%
check("q3", ...)  # the fix after which the cache finds most: "time", "session", "user" or "tools"

# %%
check("q4", ...)  # a cache too small for all tenants: which order finds more, "in turns" or "grouped"?

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Quality.** A prompt in another order is another prompt. Models weigh what stands first and last; evaluate after you reorder.
# - **Your chat template.** Here prompts are plain text. A template puts system text and tools where it likes, and some add the
#   date by themselves. Lint what is really sent, after the template.
# - **Other people's caches.** Hosted services have rules of their own: a least length, marks that you set, a time limit, a price. Some
#   engines match token by token in a tree (SGLang), so that a short beginning is found, too.
# - **Who else is in the cache.** A hit is faster than a miss, so a shared cache tells one tenant what another has sent. Engines let
#   you add a salt per tenant to the hash; it costs the sharing.
# - **Your ratios.** On this CPU prefill is dear, so a hit saves more than on a GPU. The simulator's constants come from an older
#   software stack; its floor of a step is high.
#
# ## Sources
#
# - D9, D13: an article on techniques for lower LLM latency, from batching to streaming. F1, F5, F6: an article on LLM latency in
#   three layers (surface, guided, deep dive).
# - The chain of block hashes, LRU over free blocks, freeing from the end: vLLM's automatic prefix caching
#   (`vllm/v1/core/block_pool.py`, `kv_cache_utils.py`). Paging: Kwon et al., *PagedAttention*, 2023. A tree instead of blocks, and
#   the router's rule: Zheng et al., *SGLang*, 2024.
# - The working set: Denning, *The working set model for program behavior*, 1968.
