# %% [markdown]
# # 11c · Money
#
# "What do a million tokens cost us?" A replica costs the same per hour whatever it does, so the answer is one
# division: **rent over tokens**. This lesson is about what moves either side of it: the kind of traffic, how full the
# replicas are, and what you buy or change when they aren't enough.
#
# - **Five minutes** (five): dollars per token for four kinds of traffic.
# - **The lab** (five): replicas or a setting, joules per token, and a small model for easy requests.
# - **In the interview** (ten): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (five): which card, one model for many fine-tunes, the arithmetic.

# %%
from course.lab import simulated_70b
from course.lab.claims import in_short
from course.lab.lab import Lab
from course.lab.prices import gpu_price
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11c import pictures, run, words
from course.lessons.lesson_11c.check import checks
from course.lessons.lesson_11c.words import a20, d20, e8

lab = Lab()  # everything in this lesson is simulated: no model is loaded

# %% [markdown]
# ## Five minutes
#
# How many tokens a replica produces in an hour depends on the traffic: chat, RAG (long prompts of retrieved text), batch
# summaries, or **reasoning** (short prompts, and thousands of output tokens before the answer). A reasoning request has
# half the input of a chat, and fifty times the output.
#
# ### Predict

# %%
bet = lab.predict(
    "reasoning",
    f"A reasoning request (800 in, {run.reasoning_tokens():,} out) against a chat (1,500 in, 150 out): how many times the cost?",
    unit="x",
    between=(1, 200),
)
bet

# %%
found = run.regimes()
bet.score(words.cost_of_reasoning())

# %%
words.tell_prices(gpu_price())

# %% [markdown]
# **A price per token belongs to a kind of traffic.** And to a load: no replica is always full. Put in your price per
# GPU, and your **fill**: how much of the replicas' capacity is used, on average over a day. If they're half empty, a
# request costs twice as much. (The table assumes a replica that's full for that share of the day, and idle for the
# rest. One that's partly full all day costs the same per request, but output takes more of it: lesson 11's
# worksheet.)

# %%
pictures.prices_per_token()

# %%
simulated_70b.error_band(fleet.deployment())

# %% [markdown]
# ## The lab
#
# ### Replicas or a setting? In dollars
#
# Too many requests miss the SLO. More replicas mean more rent; a setting is free. In the chart, a replica moves you to
# the right (rent), and up (requests within the SLO) if it helps. A setting moves you straight up, or nowhere. For each
# of the three problems, decide first which of the two you'd try.

# %%
pictures.mends()

# %%
words.tell_mends(run.TROUBLES)

# %% [markdown]
# ### How many joules does a token take?
#
# Reading memory draws power, and so does arithmetic. A step reads the same weights for two requests as for fifty, so
# joules per token should fall as the batch grows, just as dollars do. What boards draw while they serve has been
# published for H100 and B200; for other cards the simulator says that it hasn't been measured.

# %%
pictures.energy_table()

# %%
words.tell_energy(run.metered(), gpu_price())

# %% [markdown]
# ### Which model?
#
# A **router** sends easy requests to a small model, and sometimes it's wrong. An easy request sent to the large model
# wastes money. A hard one sent to the small model gets a bad answer; if that's caught, it's asked again, and if not,
# it costs whatever a wrong answer costs you. Move the sliders until routing stops paying.

# %%
pictures.routing()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - In GPU dollars a caught mistake costs only one extra small answer. In time it costs more, because such a request
#   waits for both models.
# - Set half of the mistakes to be caught, and a wrong answer to cost as much as a hundred large requests. Now the
#   router has to be nearly perfect.
# - A cheap answer that's not good enough comes back as the user's next turn. Count requests and dollars per *solved
#   task*, not per answer, before you call the small model cheaper.
#
# </details>

# %% [markdown]
# ### Where it hurts
#
# Dollars per million tokens leave out latency. The lowest price per token belongs to a fleet that's always full, and a
# fleet that's always full has a queue. Quote the price at the load you really have, next to the SLO it was measured
# under, with input and output separate.
#
# **Hosted or your own?** A hosted API charges for what you use; your replicas cost the same at night. So lower the
# fill in the table above until your price passes the hosted one (after its discount for prompt caching, [lesson
# 04](04_prefix_caching.ipynb)). Below that fill, the hosted API is cheaper.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "Cost per token is rent over tokens, so first I ask how full the replicas are; at a third full, a token costs
# > three times as much. I'd price input and output separately, try a setting before buying hardware, and quote prices
# > with their SLO."
#
# **Follow-ups**
#
# <details><summary>"A hosted API is cheaper than our fleet. Do we move?"</summary>
#
# That depends on how full ours is. The API charges for use, and our replicas cost the same every hour. I'd find the
# fill at which our price meets theirs, after their prompt-caching discount, and look at a whole day, because nights
# count. Batch work that can wait raises our fill for free. Then there's what a price doesn't show: where the data
# goes, a latency SLO, rate limits, fine-tunes.
#
# </details>
#
# <details><summary>"Why does reasoning cost so much more than chat?"</summary>
#
# Its output is some fifty times as long, at one step per token. Each of those tokens costs more, too: contexts are
# longer, so fewer requests fit at a time and share a step. The two factors don't simply multiply, since output is
# only part of what a chat costs. So I'd cap reasoning effort per route, and wouldn't look for savings in the prompt.
#
# </details>
#
# **"Cut our inference bill in half by June."**
#
# | weak | senior | staff |
# |---|---|---|
# | "Quantize to int4 and use a smaller model." | "I'd raise utilization, go to FP8, turn on prefix caching, then add a router for easy requests." | "What are we paying for: idle hours, prefill, or long outputs? Each needs a different fix. If it's idle hours, I'd move batch work into the night or close a region. If it's prefill, I'd reorder prompts so that they cache, since a cached token costs almost no compute. If it's long outputs, I'd limit effort, or speculate. I'd rank these by dollars per month *and* by how easily they're undone, give each an SLO and a quality floor, and wouldn't promise half before I've seen how full we run." |
#
# **Three numbers to know cold**

# %%
words.three_numbers(gpu_price())

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>Dollars per million output tokens.</summary>
#
# 1. Say a replica costs \$10 an hour.
# 2. Full, on chats, it serves 7 requests/s: 25,000 an hour, \$0.40 per thousand.
# 3. Prefill takes three quarters of that time, so output pays a quarter: \$0.10 per thousand requests.
# 4. Those have 150,000 output tokens: \$0.67 per million.
# 5. At a fill of 60%: divide by 0.6. At an SLO's knee output takes a larger part, because fewer requests share a step.
#
# </details>

# %% [markdown]
# ## Check yourself

# %%
routed = run.routing_runs(gpu_price())
check = checks(list(run.TROUBLES.values()), routed[0], gpu_price())
check.card()

# %% [markdown]
# ## Going deeper
#
# ### Which card, and how many in a replica?
#
# A faster card costs more per hour and produces more tokens. Which side wins depends on the traffic: long prompts
# favour FLOP/s per dollar, long answers bandwidth per dollar, and sparse traffic the smallest replica that holds the
# model at all. `minillm simulate --plan --search` looks through the whole catalogue for the cheapest card, and the
# number of GPUs per replica, that meet an SLO under your traffic ([docs](../docs/simulate.md#Plan-capacity)).
#
# ### A replica per fine-tune?
#
# Say thirty customers each have a fine-tune of one model. A **LoRA** adapter is two thin matrices beside each linear
# layer: at rank 16, about 0.5% of an 8B's weights. A batch can mix adapters, each request multiplying with its own
# (S-LoRA, Punica), and a step has to read every adapter its requests use. Before you move the sliders: with 32 requests
# in a step, how much slower is it with 256 adapters than with none?

# %%
pictures.adapters()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - The curve flattens, because a step of $B$ requests can't read more than $B$ adapters, however many there are. Of
#   $n$ equally popular ones it reads $n\,(1-(1-1/n)^B)$ on average, and fewer if some are more popular than others.
# - Memory keeps growing, because every adapter on the GPU takes room from KV. Keep rare ones in host memory (vLLM:
#   `--max-loras`, `--max-cpu-loras`), at the price of a copy over PCIe when one is needed.
# - The cost per day, at the top, is what matters. A replica per fine-tune pays off when one customer fills it, or pays
#   for isolation.
#
# </details>

# %% [markdown]
# ### The arithmetic
#
# With rent $r$ per replica-hour, $\mu$ requests of $n$ prompt and $m$ output tokens per second at capacity, a fill of
# $\phi$, and a share $p$ of the time in prefill:
#
# $$\text{\$ per request} = \frac{r}{3600\,\phi\,\mu}, \qquad \text{\$ per input token} = \frac{p}{n} \cdot \text{\$ per request}, \qquad
# \text{\$ per output token} = \frac{1-p}{m} \cdot \text{\$ per request}$$
#
# With a share $e$ of easy requests, a misroute rate $x$, $c_s$ and $c_l$ dollars per request, and all mistakes
# caught, a router saves $e(1-x)(c_l - c_s)$ and costs $(1-e)\,x\,c_s$ per request.

# %%
import inspect

print(inspect.getsource(run.Regime))

# %% [markdown]
# ### What articles say

# %%
in_short(
    a20(list(run.TROUBLES.values()), gpu_price()),
    d20(run.gpu_options()),
    e8(*routed),
)

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your prices.** The catalogue has one cloud's prices on one day. Reservations, network, disks and the people on
#   call aren't in it.
# - **Quality.** No latency lab can say whether a small model answers well enough, or which requests are easy.
# - **Your meter.** Watts are of boards alone: CPUs, fans and cooling come on top. B200's idle draw is a
#   guess.
#
# ## Sources
#
# - A20: *Serving LLMs: The Latency Anatomy Framework*. E8: *Latency Optimization in LLM Inference Systems*. D20: an
#   article on techniques for lower LLM latency.
# - Routing and cascades: Chen et al., *FrugalGPT*, 2023. GPU prices: RunPod community cloud, as dated in
#   `course/simulator/cost/gpus.json`.
# - Watts: Chung et al., *The ML.ENERGY Benchmark*, 2025; idle H100s: Vadari, *The Model Parking Tax*, 2026.
