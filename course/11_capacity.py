# %% [markdown]
# # 11 · Capacity: how many replicas?
#
# "We need 100 requests a second. Will one server do?" Someone will ask you, in an interview or in a budget meeting,
# and want an answer before the coffee gets cold. You'll be able to give one on the back of an envelope, then a better
# one by simulation. ([11b](11b_spikes.ipynb) is about spikes and cold starts, [11c](11c_money.ipynb) about money.)
#
# - **Five minutes** (five): one setting on this machine, and a bet on 100 requests a second.
# - **The lab** (ten): the bounds, the knee, and a worksheet that counts replicas.
# - **In the interview** (five): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (ten): what "batch size" means in two curves, from data sheet to fleet, rollouts, the formulas.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.claims import in_short
from course.lab.display import stack
from course.lessons.lesson_11 import fleet, pictures, run, words
from course.lessons.lesson_11.check import checks

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# A **replica** is one copy of the model on its own hardware, with its own queue. `max_num_seqs`, its number of
# **slots**, is often called **max-batch**. **Goodput** counts only the requests per second that met their **SLO** (here
# limits on TTFT and on TPOT, the mean time per token after the first).
#
# Here's the real engine on this machine: the same requests with the same arrival times, once for each number of
# slots. The machine is fast enough for them. Drag the operating point: how many slots does it take before it keeps
# up?

# %%
here = run.real_knee(lab)
pictures.place(here)

# %%
words.tell_operating_point(here)

# %% [markdown]
# So a setting can make requests wait on a machine that's fast enough. Can a setting also make up for a machine that's
# too small?
#
# ### Predict
#
# An article calls this a realistic operating point: 70 billion weights on four H100s, prompts of 1,500 and answers of
# 150 tokens, 100 requests per second, max-batch 64.

# %%
bet = lab.predict(
    "hundred",
    "100 requests/s of 1500 + 150 tokens, one replica of 70B on four H100s, max-batch 64. How many does it serve?",
    unit="requests/s",
    between=(1, 100),
)
bet

# %%
flood = run.a_hundred()
bet.score(words.served_of_a_hundred(flood))

# %%
stack(pictures.envelope(run.Ask()), words.tell_hundred(flood, run.Ask()))

# %% [markdown]
# The table's last rows count slots by **Little's law**: requests running = arrivals per second × the time each stays.
#
# **First the arithmetic, then the setting, then the money.** Arithmetic settles most debates before a load test could.

# %% [markdown]
# ## The lab
#
# ### What it takes
#
# Here are four bounds on paper, and what a simulated replica did when requests were always waiting. The lowest bound
# is the one that counts. The simulated figure is lower still, because a step also reads weights, exchanges partial
# results and launches kernels. So an envelope can prove that a plan won't work, never that it will. (The replica serves
# somewhat more with more slots, and less if it has to meet an SLO, as at the knee below. Say which rate you mean.)

# %%
pictures.how_many()

# %%
simulated_70b.error_band(fleet.deployment())

# %% [markdown]
# <details><summary>Three things to try, answered</summary>
#
# - *Max-batch*: it moves the slot bound, and the simulated figure follows only until compute is the limit.
# - *Short prompts*: slots become the lowest bound, instead of arithmetic.
# - *Eight GPUs*: the bound by arithmetic doubles; the simulated figure grows less, because all-reduces take part of the
#   gain.
#
# </details>
#
# ### The knee at 70B
#
# **Load** is how many requests arrive, as a share of what the replica can serve with 128 slots. Lengths vary: most are
# below the mean, a few far above.

# %%
pictures.knee_of_70b()

# %% [markdown]
# <details><summary>Four things to try, answered</summary>
#
# - Drag from the far left: goodput grows until requests stop waiting for slots, then stays flat.
# - *Load 120%*: no max-batch helps; TTFT grows for as long as the run lasts.
# - *Prompts of 4,000*: at high load no max-batch keeps TTFT p99 within its SLO. However many slots there are, a prompt
#   waits for the prefill of others.
# - *2 H100s, answers of 600*: KV memory runs out. Past that line more slots only cause preemptions: KV is dropped and
#   recomputed.
#
# </details>
#
# ### The worksheet
#
# The worksheet shows the answer first: replicas, GPUs and dollars. While you drag a slider it's computed on paper, as
# if nothing queued. Let go, and a simulation takes over. It looks for the **knee**, here the highest *rate* at which
# one replica meets the SLO for 95 in 100 requests, then counts replicas. The runs are short, so the knee is good to
# about 10%.

# %%
pictures.sheet()

# %%
pictures.explained(run.plan())

# %% [markdown]
# Try H200s at their price, and eight GPUs per replica. Then two H100s with the tightest TPOT: the sheet refuses,
# because even an idle replica misses it, and no number of replicas can help. In a terminal: `minillm simulate
# --plan`, and `--search` for the cheapest card and number of GPUs.
#
# **Where it hurts.** A knee holds for the traffic it was measured on. At the same request rate, prompts twice as long
# are about twice the work. So plan in tokens per second, not in requests, and look at the mix again whenever the
# product changes.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "I start with arithmetic. Tokens per second times two FLOPs per weight, over what the GPUs sustain, is a lower
# > bound on replicas. Then I measure the knee under our SLO and add headroom. If an idle replica is too slow, more
# > won't help."
#
# **Follow-ups**
#
# <details><summary>"Your envelope says 9 replicas. Finance asks why you order 25."</summary>
#
# Nine is what the arithmetic alone needs, at the rate that large matrix products reach. A step also reads weights,
# exchanges partial results and launches kernels. Then comes the SLO, because a full replica misses it. Then headroom,
# for bursts and for a replica that dies. Each factor is on the worksheet, and each can be measured.
#
# </details>
#
# <details><summary>"Which `max_num_seqs` would you set?"</summary>
#
# The smallest at which no request waits for a slot at peak, unless ITL or KV memory breaks first. It's a limit, not a
# load: raising it only lets waiting requests in. If a curve shows TTFT climbing with "batch", it's from a load test
# with more and more clients.
#
# </details>
#
# **"100 requests a second, 70B, 1,500 tokens in, 150 out. How many H100s?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "One node does thousands of tokens a second with continuous batching, so a few nodes." | "Prompts: 2 × 70B × 150,000 tokens/s is 21 PFLOP/s. At 70% of 989 TFLOP/s that's about 30 GPUs for prefill alone, and more with decode and headroom." | "At least 30 GPUs by arithmetic, so not one node. A step's other costs, an SLO and headroom roughly triple that, so I'd plan for about 25 replicas of four and say ±30% until there's a load test. What could change it is the prefix hit rate, FP8, the peak-to-mean ratio, and how much of this needs a tight TTFT, because batch work can run at night." |
#
# **Three numbers to know cold**

# %%
words.three_numbers(run.Ask())

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>From the data sheet to replicas.</summary>
#
# 1. A token takes $2P$ FLOPs: 140 GFLOP for a 70B.
# 2. Load: $\lambda (n + m) \cdot 2P$ = 100 × 1,650 × 140e9 = 23 PFLOP/s.
# 3. A replica of four H100s: 4 × 989 TFLOP/s × 0.7 = 2.8 PFLOP/s. So 9 replicas, if nothing else took time.
# 4. Slots: Little, $N = \lambda S$. If a request takes 3 s alone, 300 are in flight, before any queue.
# 5. The knee, measured: say 5 requests/s per replica, so 20.
# 6. Headroom of 20%: 20 / 0.8 = 25 replicas.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# Answers come from the arithmetic and from the simulator's runs above.

# %%
check = checks(run.sweep(), run.Ask())
check.card()

# %% [markdown]
# ## Going deeper
#
# ### A limit, or a load?
#
# You may have seen a curve that bends the other way: TTFT *rising* with the batch. It comes from a load test with a
# growing number of clients, each of which sends its next request as soon as it has an answer (a closed loop). Both
# numbers get called batch size.

# %%
crowds = run.load_tests()
pictures.draw_limit_or_load(run.sweep(), crowds)

# %% [markdown]
# Max-batch is a *limit*: as long as KV lasts, raising it admits requests sooner and makes steps longer. Clients are a
# *load*: more of them means more work. So "operate one notch below the batch at which TTFT climbs" is about load. For
# the limit, take the smallest one at which no request waits for a slot at your peak, unless ITL or KV memory breaks
# first.
#
# ### From the data sheet to replicas
#
# For 70B on four H100s, step by step: what the data sheet's FLOP/s would serve, what remains at the share that large
# matrix products reach (lesson 03's MFU is lower, because a whole prefill has the other costs in it), what remains
# after a step's other costs, within the SLO, and with headroom for bursts and for a replica that dies.

# %%
pictures.waterfall()

# %% [markdown]
# ### Rollouts: a job that ends with its longest answer
#
# Reinforcement learning generates answers by the thousand, then trains on them. There's no SLO and no arrival rate,
# only a training step that waits for its last answer. Answer lengths have a long tail, and during that tail a replica
# made for 64 requests decodes two. Before you move anything, guess what share of the time the last tenth of the
# answers takes.

# %%
pictures.rollouts()

# %% [markdown]
# <details><summary>What to try, and what it costs</summary>
#
# - *Spread 0*: all end together, and the replica is full to the last token. That's what a throughput benchmark
#   measures.
# - *Training waits for 90%*: the step is over in about half the time. What happens to the other 10%? Drop them, and
#   long answers are never learned from. Carry them over (**partial rollouts**), and their beginnings come from last
#   step's weights: staleness, which the algorithm has to correct for.
# - *Speculate*: at small batch a step is memory-bound, so the tail is where drafts pay most. And it's lossless.
# - Not on the sliders: more prompts in flight than the batch needs, weights pushed to replicas that are still
#   decoding, and a length penalty in the reward, which shortens the tail at its source.
#
# </details>
#
# ### The arithmetic
#
# $\lambda$ requests per second of $n$ prompt and $m$ answer tokens; $P$ weights in the layers; $F$ the data sheet's
# FLOP/s of a replica, of which a share $u$ is reached; $S$ the time in a slot; $B$ slots; $\mu$ the knee; $h$ the
# headroom:
#
# $$\lambda \le \frac{u\,F}{2P\,(n+m)}, \qquad \lambda \le \frac{B}{S}, \qquad
# \text{replicas} = \left\lceil \frac{\lambda}{\mu\,(1-h)} \right\rceil$$
#
# **The code.** How the worksheet finds a knee (`course/simulator/capacity`): it bisects *ratios*, since rates of one
# and two per second are as far apart as 50 and 100.

# %%
import inspect

from course.simulator.capacity.worksheet import Worksheet

print(inspect.getsource(Worksheet.knee))

# %% [markdown]
# ### What articles say
#
# A8 puts a large and a small model on the same four GPUs. A10 looks for the knee in runs four times as long as the
# picture's, because a longer run meets longer queues, and those take more slots.

# %%
in_short(
    words.a8(*run.two_models()),
    words.a10(run.knees(), crowds),
    words.a16(run.Ask(), flood, run.knee_rate()),
)

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your knee.** Capacity is where a simulator's errors show most: near the knee, 10% more or less decides whether a
#   queue grows. Take the shape from here and the number from a load test.
# - **Failures.** Replicas here never crash. A fleet of two that loses one has half its capacity left; headroom is for
#   that, too.
# - **Prefix caching.** No two prompts share a token in this lesson. Where they do, prompts cost less (lesson 04), and
#   every number above moves.
#
# ## Sources
#
# - A8, A10, A16: *Serving LLMs: The Latency Anatomy Framework*. Little's law: J. D. C. Little, 1961.
# - H100, H200, A100, B200: NVIDIA's data sheets. TTFT limit: MLPerf's Llama-2-70B server scenario; TPOT limit: lesson
#   01's chat.
