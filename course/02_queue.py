# %% [markdown]
# # 02 · Queue: why does waiting explode near capacity?
#
# Your server is busy 80% of the time. Is that money well spent, or an outage in the making? This lesson is about one
# curve: how long requests wait, against how loaded the server is.
#
# Three terms. A **slot** is a place in the running batch, which has `max_num_seqs` of them. A request without one
# waits in the **queue**. **Capacity** is how many requests a second the server completes when one is always waiting.
# **Load**, or utilization, is the arrival rate as a share of capacity, written ρ.
#
# - **Five minutes** (five): the same questions at three loads, and a bet.
# - **The lab** (ten): the curve, Little's law, many slots, past 100%.
# - **In the interview** (ten): the line, follow-ups, three numbers, a derivation, and a check.
# - **Going deeper** (ten, optional): a live queue, the formulas and when they hold.

# %%
from course.lab import open_lab, queueing, simulated_70b
from course.lab.claims import in_short
from course.lessons.lesson_02 import pictures, run, simulated, words
from course.lessons.lesson_02.check import checks
from course.lessons.lesson_02.words import a2

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# Start with the simplest server there is, one with **one slot**. Every question has the same length and asks for one
# token, so they all take equally long. First, how many can this machine serve per second?

# %%
all_at_once = run.measure_capacity(lab)
per_second = run.capacity(all_at_once)
pictures.capacity_note(all_at_once)

# %% [markdown]
# Now send the questions one by one at random times, the way independent users do. You'll do it three times: at 50%
# load (so fast that the server is busy half the time), at 80% and at 95%. You never ask for more than it can do.
# (Capacity is measured again right before each run, because a machine's speed drifts.)
#
# Eighty arrivals are enough to watch and far too few for a mean near capacity. So you'll watch eighty on the engine,
# and your bet is scored on eight replays of 40,000 arrivals, with the service times measured here. (Replaying a queue
# with one slot needs no engine.)
#
# ### Predict
#
# From 50% to 95%, load almost doubles. What about the wait?

# %%
bet = lab.predict(
    "growth",
    "From 50% to 95% load: how many times as long is the mean wait in the queue?",
    unit="x",
    between=(1, 100),
)
bet

# %%
loads = run.at_loads(lab)
bet.score(run.growth(loads))

# %%
words.growth(loads)

# %%
pictures.queues(loads)

# %% [markdown]
# Each column is the queue at one moment, one box per request. All three runs have the same arrival pattern, only
# faster at higher loads. Each row has its own time scale, so a given request arrives at the same horizontal position
# in all of them. Find a small cluster of arrivals and follow the queue it leaves, from row to row. The server can
# only work it off with its spare capacity. At 50% the queue is gone before the next cluster. At 95% the next cluster
# lands on top of it.
#
# *Queues come from a lack of spare capacity, and a small rise in load near 100% takes most of what's left.*
#
# ## The lab
#
# ### The curve
#
# This is the same server, with thousands of arrivals per dot. The line is the formula; each dot is the mean of one
# run. Drag the load. On the right you see the range of eight runs of 4,000 arrivals, and one run's slot and queue at
# its worst moment.

# %%
pictures.wait_curve()

# %% [markdown]
# Things to find:
#
# 1. Where do the dots start to disagree with each other?
# 2. Keep the load at 80% and switch to bursts, then to a clock. Which of these is a fixed-interval load test?
# 3. Drag past 100%.
#
# <details><summary>Answer</summary>
#
# 1. From about 90%. All dots are correct, but near saturation the variance explodes, so even long runs disagree. If
#    you quote a mean from up there, quote its run length and scatter as well.
# 2. The clock. With equal service times it never builds a queue below 100%. Your traffic isn't like that. Bursts
#    multiply the wait at the *same* load. (With bursts the dots sit above the line at low load, where the formula is
#    only an approximation.)
# 3. There's no mean to plot. The queue grows for as long as you send, so any number only tells you how long you sent.
#
# </details>
#
# ### Little's law
#
# *Mean queue length = arrivals per second × mean wait*, L = λW. It doesn't care how requests arrive, how long they
# take, or who goes first, only that the queue is empty when you start and stop counting (or, below capacity, that you
# count for long enough). The proof is bookkeeping. A request that waits three seconds adds three request-seconds to
# the queue. Sum that over all requests and divide by the length of the run: one side gives L, the other λW.

# %%
pictures.little_table(loads)

# %% [markdown]
# Use it in both directions. Your dashboard shows queue length and throughput; divide them and you have the mean wait,
# without tracing. Or apply it to slots: slots ÷ time in a slot is a ceiling on throughput. (*Actual load* drifts from
# the target when the machine serves faster or slower than while its capacity was measured. The last column is theory
# for *exactly these* arrivals.)
#
# ### Many slots
#
# Here's the mean wait against load for Llama-3 70B on four H100s, simulated, with chats of many lengths, for 8 and
# for 32 slots. For each curve, load is a share of that server's own capacity.

# %%
curves = simulated.many_slots_curves()
pictures.draw_many_slots(curves)

# %%
words.slots(curves)

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ### Where it hurts: past 100%
#
# The same 70B server with 8 slots. Each point is the mean wait of twenty requests, plotted when they arrived.

# %%
over_time = simulated.waits_over_time()
pictures.draw_overload(over_time)

# %%
words.overload(over_time)

# %% [markdown]
# Below capacity you can lower the load or accept the wait. Above it there are three ways out: add capacity, do less
# work per request, or refuse some requests. [02b](02b_batching.ipynb) is about the last one, and about which request
# goes first.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "Wait goes like ρ over one minus ρ, times variability, times service time. From 80 to 90% it more than doubles, so
# > I plan for the load that still meets the SLO in a burst. I never quote a p99 from above saturation."
#
# **Follow-ups**
#
# <details><summary>"How do you measure load on an LLM server?"</summary>
#
# Not with GPU utilization, which reads 100% whenever some kernel is running. Measure capacity with your own mix of
# lengths (requests per second while the queue is never empty). Load is the arrival rate over that. Day to day I'd
# watch running requests over slots, KV usage, and whether the queue empties: `num_requests_running`,
# `kv_cache_usage_perc`, `num_requests_waiting`.
#
# </details>
# <details><summary>"Two services both run at 80%. One waits ten times as long. Why?"</summary>
#
# Load is only one of the three factors. The slow one's service time may be longer: if answers take ten times as long,
# so does the wait. Its arrivals may come in bursts, or its lengths may be more uneven, and both multiply the wait at
# the same load. Or it has fewer slots, so at 80% it's less likely that one is about to free up. I'd also check that both mean
# the same thing by 80%.
#
# </details>
#
# **"We run at 80%. Can we go to 90?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Sure, there's 20% left." | "The wait more than doubles; I'd check p99 first." | "80% of what? Capacity moves with prompt and answer lengths. At 90% the same burst takes twice as long to drain. I'd find the load at which the SLO breaks in our worst hour, and alert on queue time, not on utilization." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>Why does the wait go like ρ / (1 − ρ)? One slot, random arrivals, equal service times S.</summary>
#
# 1. An arrival finds the slot busy with probability ρ, and on average half of that service is left: ρ S / 2.
# 2. It also waits for every request in the queue: L of them, S each.
# 3. So W = ρ S / 2 + L S, and by Little L = λ W, with λ S = ρ.
# 4. W = ρ S / 2 + ρ W, so W = S/2 · ρ / (1 − ρ).
# 5. At 50, 80, 95%: one half, 2 and 9.5 service times.
# 6. Uneven service times multiply it by 1 + c², because long answers also delay the short ones behind them.
#
# </details>
#
# ## Check yourself
#
# Answers are computed from the runs above.

# %%
check = checks(loads)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### A live queue
#
# This is the lab's engine again. Choose a load and press the button. Slots are boxes (blue while a prompt is
# prefilled; empty for a moment between two steps), the queue is below them, and its history below that. Then go past
# capacity. At 110% nothing breaks, but the queue keeps growing. Then give it a second slot.

# %%
live = pictures.LiveQueue(lab, per_second, loads["80%"])
live

# %% [markdown]
# What does a second slot change? The load above is measured against one slot, so compare the waits, not the
# percentages. How much more two slots can serve depends on the machine:

# %%
words.second_slot(all_at_once, run.measure_capacity(lab, 2))

# %% [markdown]
# ### The formulas
#
# With arrival rate $\lambda$, mean service time $S$, load $\rho = \lambda S$, and $c_a$ and $c_s$ the coefficients of
# variation (standard deviation over mean) of the gaps between arrivals and of the service times:
#
# $$L = \lambda W \qquad\text{(Little)}, \qquad\qquad W \approx \frac{\rho}{1-\rho}\cdot\frac{c_a^2 + c_s^2}{2}\cdot S
# \qquad\text{(Kingman, one slot)}$$
#
# The three factors are spare capacity, variability and service time, and you can work on each of them. Which version
# is exact?
#
# - **Poisson arrivals** ($c_a = 1$): Pollaczek and Khinchine's formula, exact for any service times. With $c_s = 0$
#   that's **M/D/1** (memoryless arrivals, deterministic service, one slot), the server of this lesson.
# - **Any other arrivals**: Kingman, an approximation that gets better as load goes up. Real traffic is burstier than
#   Poisson (an agent sends many calls in a row), so a forecast from Pollaczek-Khinchine is too optimistic for it.
# - **Long tails**: equal service times are the kindest case. Answer lengths with a standard deviation of twice their
#   mean ($c_s = 2$) give five times the wait of M/D/1 at the same load; reasoning models write such answers.
# - **Many slots in one batch**: neither formula fits, because service time depends on which requests share the step.
#   Simulate, or measure.

# %%
import inspect

print(inspect.getsource(queueing.kingman_wait))
print(inspect.getsource(queueing.replay))

# %% [markdown]
# ### What articles say
#
# Four servers at 70B get slightly more traffic than they can serve. Two are short of slots (one with a small batch, one
# with a larger one), one of compute, and one of memory. Each runs with weights in 16 bits and in two 8-bit formats
# (int8 that's dequantized before each product, and fp8 that's multiplied as it is; see lesson 09). Fewer bits don't
# change arrivals or variability. They help a queue when they cut the service time, or when smaller weights free memory
# for more slots.

# %%
in_short(
    a2(loads, simulated.quantized_waits()),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --max-num-seqs 1 --no-enable-prefix-caching
# sglang serve --model-path Qwen/Qwen3-8B --max-running-requests 1 --disable-radix-cache --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --random-input-len 1024 --random-output-len 1 --num-prompts 500 \
#     --request-rate inf
# ```
#
# The request throughput of that run is the capacity. Then set `--request-rate` to 50%, 80% and 95% of it. The mean of
# `vllm:request_queue_time_seconds` (its `_sum` over its `_count`; `sglang:queue_time_seconds`) should grow
# several-fold while prefill time stays put. The log shows the queue come and go, as `Waiting: N reqs` in vLLM and
# `#queue-req: N` in SGLang. `--burstiness 0.25` makes it longer at the same rate, `--burstiness 4` shorter.
#
# Past 100%, `vllm:num_requests_waiting` (`sglang:num_queue_reqs`) climbs until you stop, so the p99 mostly reports
# `--num-prompts`. Prefix caching is off because a second run with the same `--seed` sends the same prompts again.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your arrivals.** Random means *independent* here. Real traffic has morning peaks, retries, and agents that send
#   twenty requests at the same moment; all of these make the queue longer than the formula says.
# - **Your capacity.** It depends on the mix of lengths. When prompts get longer, load goes up with no new users.
# - **The queue in front of the queue.** Connections wait in kernels, proxies and client pools before the engine
#   timestamps them. Lesson 10 looks there.
# - **Absolute times at 70B.** They're only as good as the error band. The ratios come from the scheduler, which is
#   the real one.
#
# ## Sources
#
# - A2: *Serving LLMs: The Latency Anatomy Framework*.
# - Little, *A Proof for the Queuing Formula L = λW*, 1961. Kendall, *Stochastic Processes Occurring in the Theory of
#   Queues*, 1953 (the notation M/D/1). Lindley, *The Theory of Queues with a Single Server*, 1952 (the replay).
#   Kingman, *The Single Server Queue in Heavy Traffic*, 1961.
# - Chat lengths: Azure's public trace, with *Splitwise* (Patel et al., 2024).
