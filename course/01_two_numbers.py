# %% [markdown]
# # 01 · One number is a trap
#
# "Our p99 is eight seconds. What would you do?" Nobody can know. In this lesson you build two services with the
# same p99 and opposite illnesses, try the same two medicines on both, and see what a single number hides.
#
# Words first. A **percentile** is a value that a share of all samples stays below: half the requests are faster than
# p50, all but one in a hundred are faster than **p99**. The slow end is the **tail**.
#
# - **Surface**: two services, one number, then two numbers.
# - **Guided**: a ruler over a distribution, five tools that disagree, a client that hides its own queue.
# - **Deep dive**: the formulas, the code, the claims.

# %%
from course.lab import Ruler, open_lab, services, services_70b, simulated_70b, slo, tables
from course.lab.control import Control
from course.lab.lesson_01.checks import checks
from course.lab.lesson_01.claims import a6, b1, e5, f3
from course.lab.pictures.compare import draw_one_number, draw_phase_bars, draw_two_numbers
from course.lab.pictures.timeline import draw_timeline
from course.lab.predict import gained_most

lab = open_lab(dtype="bfloat16")  # two bytes a weight; you will halve that in a moment

# %% [markdown]
# ## Surface
#
# **Service A** has one seat and gets ten short questions at once. **Service B** has sixteen seats and gets sixteen
# questions that want long answers. To be fair, the length of B's answers was chosen so that the two p99s agree; the
# cell below does that by running, several times: a line above the picture says how far it is. Everything is the
# same model on the same machine.
#
# Here is the dashboard that many teams have: **E2E**, end to end, a tick a request.

# %%
before = services.two_ill_services(lab)
draw_one_number(before)

# %% [markdown]
# If this is all you can see, both services get the same ticket: "latency p99 too high". Now ask for **two numbers**: TTFT
# (time to first token) and ITL (inter-token latency, the gap between tokens). The slowest request of each service,
# cut into its phases:

# %%
draw_two_numbers(before)

# %% [markdown]
# A waits and then writes quickly. B starts quickly and then writes slowly. The first reader stares at an empty page,
# the second watches words drip. They are different illnesses, and no percentile of E2E can tell them apart.
#
# ### Predict
#
# Two medicines, the same for both:
#
# 1. **Half the bytes**: weights in 8 bits instead of 16, which is called *quantization* (storing weights in fewer bits).
#    Each step reads half as much memory.
# 2. **More seats**: sixteen requests may run at once.
#
# The usual advice says that quantization helps decode and does nothing for a queue. Which service does it help more?
# Choose, press **Lock it**, and only then run the next cell. It plays both services twice again.

# %%
bet = lab.predict(
    "bytes",
    "Half the bytes per weight: which service's p99 of E2E falls by the larger share?",
    ["A", "B", "about the same (within 10 points)"],
)
bet

# %%
seats = services.same_traffic(lab, before, max_num_seqs=16)
half = services.same_traffic(lab, before, quantization="int8")
control = Control("B had sixteen seats before it got them", before["B"], seats["B"])
bet.score(gained_most(before, half, tie="about the same (within 10 points)", noise=control.moved))

# %%
tables.changes_table(before, {"half the bytes": half, "more seats": seats})

# %%
control

# %% [markdown]
# Read the table by rows.
#
# - **More seats** cure A. B had sixteen already, so for B nothing was changed at all: that is the **control**, and whatever it
#   shows is the noise of this machine. Seats cost memory for the **KV cache** (the model's notes on every token it has
#   read), and a somewhat longer step for everybody in it: look at A's decode below. Here that is a good bargain.
# - **Half the bytes** help as far as a step is spent on reading weights. Did B gain less than A? B's steps read them once
#   for sixteen tokens, and then do the arithmetic of sixteen, of which fewer bits take nothing away. Did it gain as much, or
#   more? Then its steps wait for the reading all the same. And if A's answers became shorter, so did A's line: a queue is made
#   of other people's service time. Then "quantization does nothing for a queue" is too strong. It is a dear way to cure a line,
#   though, when a second seat is free.
#
# The question to ask is never "does it help?" but "which phase is large, and what is the cheapest thing that
# shrinks *that*?"

# %%
draw_phase_bars({"before": before["A"], "half the bytes": half["A"], "more seats": seats["A"]}, "Service A")

# %%
draw_phase_bars({"before": before["B"], "half the bytes": half["B"], "more seats": seats["B"]}, "Service B")

# %% [markdown]
# ## Guided
#
# ### A ruler over the tail
#
# Mostly short prompts and a few very long ones, two at a time, so that no queue blurs the picture. Drag the handle from p50
# to p99.9. Red ticks are the requests beyond it; ✕ is the mean. Below the first line, the same requests by prompt length.

# %%
many = lab.run(services.sample(lab), enable_prefix_caching=False)
Ruler(many, "TTFT")

# %% [markdown]
# Three things to see:
#
# - The **mean** sits where almost nobody is: above most requests, below the slow ones.
# - The tail is not bad luck. It has a **cause** you can name: the bucket of the longest prompts, and whoever shares a step with
#   one of them.
# - Near the end only the last one or two samples decide where the ruler stands. With $n$ samples, p99 rests on the slowest $n/100$ of them. Below a
#   few hundred samples, p99 is one unlucky request; p99.9 wants thousands. Switch to ITL: there are more gaps than requests.
#
# And never average percentiles: the mean of two servers' p99 is not the p99 of anything. Pool the samples, then rank.
#
# ### Five tools, the same stamps, different numbers
#
# Load generators print "ITL" and "TPOT" (time per output token). The stamps below are the same for all: service A's. Only
# the definitions differ.

# %%
tables.tools_table(before["A"])

# %% [markdown]
# The wide gap is between those that count the wait for the first token and those that do not: A's queue leaks into its "time
# per token". Compare tools only after you have compared their formulas.
#
# ### A client that hides the queue
#
# A request is due every 80 ms. One client sends each when it is due (**open loop**). The other never has more than two
# open (**closed loop**, or a concurrency cap): it holds the rest back, and the server never sees them waiting.

# %%
open_loop = lab.run(services.steady(lab), max_num_seqs=2)
capped = lab.run(services.steady(lab, in_flight=2), max_num_seqs=2)
tables.clients_table({"open loop": open_loop, "at most two open": capped})

# %%
draw_timeline(capped, title="The closed-loop client: where did the queue go?")

# %% [markdown]
# It went into the client: the dotted red lines. By the server's stamps TTFT is splendid; what a user feels is the other
# column. **Little's law** gives the cap away: requests in the server = requests per second × mean E2E. When that product sits
# at a round number and does not move with load, somebody is holding back. (Published benchmarks show it as a TTFT that
# "plateaus".)
#
# ### Fast enough for what?
#
# A **service-level objective** (SLO) states limits, and each use case has its own. **Goodput** counts only the requests
# that met all of theirs.

# %%
slo.slo_table(before)

# %% [markdown]
# ### The same at 70 billion weights
#
# Llama-3 70B on four H100s, simulated. A has four seats and a line; B lets everybody in, and writes long answers. Again B's
# answers are as long as makes the two p99s of E2E agree.

# %%
services_70b.two_ill_services()

# %% [markdown]
# First compare the two services as they are: one E2E, two illnesses. Then the medicines. More seats cure A and do nothing for B.
# Halving the bytes of the weights shortens every step, so B's answers come faster; and since A's seats are free sooner, its
# line all but goes away. That holds while a step waits for the weights. On a serving stack of 2023 a small step waited for the
# host to launch programs on the GPU, and half the bytes bought nothing (lesson 06 takes such a step apart). Nobody could have
# told from the model, the GPU or the price. *Ask which phase is large, then what that phase waits for.*

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ## Deep dive
#
# **Definitions.** With $n$ output tokens handed over at $d_1 \dots d_n$, arrival $t_0$, last byte $t_5$:
#
# $$\text{ITL} = \{\, d_{i+1} - d_i \,\}, \qquad \text{TPOT} = \frac{(t_5 - t_0) - (d_1 - t_0)}{n-1}, \qquad
# \text{GuideLLM's TPOT} = \frac{d_n - t_0}{n}$$
#
# ITL is a set, TPOT an average. A request that stalls once for a second and then runs smoothly has a fine TPOT and a terrible
# largest ITL. `course/lab/tool_metrics.py` has each tool's formula beside the place it was read from; here is one:

# %%
import inspect

from course.lab import tool_metrics

print(inspect.getsource(tool_metrics.whole_average))

# %% [markdown]
# **Percentiles** interpolate linearly between ranked samples: with $n$ values, $p_q$ sits at rank $(n-1)\,q/100$. For ten
# samples p99 is therefore 91% of the way from the second slowest to the slowest.
#
# **The claims, measured.**

# %%
a6(before)

# %%
b1(before["A"])

# %%
e5(services.ttft_by_length(many))

# %%
f3(slo.attainments(before))

# %% [markdown]
# ## Say it in an interview
#
# > "Before I propose anything, I would like TTFT and ITL apart, at p99, by prompt length, and how many samples they rest on.
# > If TTFT is the large one, I split it into queue and prefill. If ITL is, I look at what shares a step with whom. And I would
# > like to know whether the load generator holds requests back."
#
# ## Check yourself
#
# Replace the dots. Keys come from the runs above.

# %%
check = checks(before, capped)

check("q1", ...)  # the phase that dominates the slowest request of service A

# %%
check("q2", ...)  # and of service B

# %%
check("q3", ...)  # TPOT of before["B"].outputs[0], in milliseconds; its .timeline has e2e and ttft

# %%
check("q4", ...)  # the closed-loop client's cap, from Little's law

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your ratios.** How much half the bytes help depends on what a step waits for: memory or arithmetic. On a CPU it also takes
#   code that computes from 8 bits as fast as from 16 (here it is C++; without a compiler, 8 bits can even lose). A GPU at
#   batch 1 never waits for arithmetic: it waits for memory, or for its host.
# - **Quality.** 8 bits are *lossy*: rounded weights are not quite the same model. No latency chart shows how much that matters;
#   lesson 09 measures it.
# - **Real tails.** Minutes of traffic on a quiet machine have short tails. Production tails come from things that are not here:
#   neighbours, restarts, networks.
# - **Your SLO.** The limits in the table are other people's opinions.
#
# ## Sources
#
# - A6: *Serving LLMs: The Latency Anatomy Framework*. B1: *Decomposing LLM Inference Latency for Better Serving Performance*.
#   E5: *Latency Optimization in LLM Inference Systems*. F3 ("article F"): an article on LLM latency in three layers (surface,
#   guided, deep dive), its table of limits by use case.
# - MLPerf Inference, p99 limits for Llama-2-70B, server and interactive scenarios. Each tool's source is named in
#   `course/lab/tool_metrics.py`.
# - Little, *A Proof for the Queuing Formula L = λW*, 1961. Open and closed loops: Schroeder, Wierman and Harchol-Balter, *Open
#   Versus Closed: A Cautionary Tale*, 2006.
