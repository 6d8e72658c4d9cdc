# %% [markdown]
# # 01 · One number is a trap
#
# "Our p99 is eight seconds. What would you do?" There's no way to know. In this lesson you'll build two services that
# have the same tail latency and opposite problems, so that you can see what a single number hides. Then you'll meet a
# load generator that hides a whole queue.
#
# A **percentile** is a value that a given share of all samples stays below: half the requests are faster than p50,
# and all but one in a hundred are faster than **p99**. The slow end is the **tail**.
#
# - **Five minutes** (five): two services, one number, then two numbers.
# - **The lab** (ten): a ruler over a distribution, tools that disagree, and a bet on a client with a cap.
# - **In the interview** (ten): the line, follow-ups, three numbers, a derivation, and a check.
# - **Going deeper** (fifteen, optional): two fixes on 70B and on your machine, SLOs, the formulas.

# %%
from course.lab import Ruler, open_lab, services, services_70b, simulated_70b, slo, tables
from course.lab.claims import in_short
from course.lab.control import Control
from course.lab.pictures.compare import draw_one_number, draw_phase_bars, draw_two_numbers
from course.lab.pictures.timeline import draw_timeline
from course.lab.ruler import buckets
from course.lessons.lesson_01 import words
from course.lessons.lesson_01.check import checks
from course.lessons.lesson_01.words import a6, b1, e5, f3

lab = open_lab(dtype="bfloat16")  # two bytes a weight; you'll halve that in a moment

# %% [markdown]
# ## Five minutes
#
# **Service A** has one slot and gets ten short questions at the same moment. **Service B** has sixteen slots and gets
# sixteen questions with long answers, just long enough that the slowest request takes as long as A's. (The cell runs
# B a few times to find that length.) Same model, same machine.
#
# Here's the dashboard many teams have: **E2E**, one number per service. (Ten requests have no meaningful p99, so this
# is the slowest.)

# %%
before = services.two_ill_services(lab)
draw_one_number(before)

# %% [markdown]
# If that's all you can see, both services get the same ticket: "latency too high". Now ask for **two numbers**: TTFT
# (time to first token) and ITL (inter-token latency, the gap between tokens). Here's each service's slowest request,
# split into phases. (B has a slot for every request, but they can still queue for a moment. Sixteen prompts don't
# always fit into one step's token budget, and a request that arrives during a step waits for it to end.)

# %%
draw_two_numbers(before)

# %%
words.two_illnesses(before)

# %% [markdown]
# Don't ask "which fix helps?" Ask which phase is large, and what's the cheapest way to shrink *that* one.
#
# ## The lab
#
# ### A ruler over the tail
#
# This run has mostly short prompts and a few very long ones, at most two in flight, so that no queue blurs the
# picture. Drag the slider from p50 to p99.9. Orange ticks are the requests beyond it; ✕ is the mean. The lower lines
# split the same requests by prompt length. Then switch to ITL, where there are far more samples, because every gap is
# one.

# %%
many = lab.run(services.sample(lab), enable_prefix_caching=False)
Ruler(many, "TTFT")

# %%
words.tail(many)

# %% [markdown]
# And never average percentiles: the mean of two servers' p99s isn't the p99 of anything. Pool the samples, then rank
# them.
#
# ### One set of timestamps, four formulas
#
# Load generators print "ITL" and "TPOT" (time per output token), and don't all mean the same thing by them. Six of
# them use four different formulas, applied here to service A. (A *delivery* hands one or more tokens to the client.
# ICL is inter-chunk latency.)

# %%
tables.tools_table(before["A"])

# %% [markdown]
# The big gap is between tools that include the wait for the first token and tools that don't: A's queue leaks into
# its "time per token". Compare formulas before you compare tools.
#
# Your server's own metrics have the same trap. vLLM's `time_to_first_token_seconds` starts when its front end has the
# request; `request_prefill_time_seconds` starts when the scheduler first picks it. Plot the second as "TTFT" and your
# dashboard leaves out the queue.
#
# ### A client that hides the queue
#
# The server has two slots. First we measure how many short requests it serves per second. Then we schedule twice as
# many, so two slots can't keep up. One client sends each request when it's due (**open loop**). The other never has
# more than two open (**closed loop**, a concurrency cap). It holds the rest back, and the server never sees them
# waiting. A report that leaves those waits out suffers from **coordinated omission**: the client slowed down together
# with the server that it was measuring.

# %%
cap = lab.predict(
    "hidden",
    "With the cap: users' TTFT p99 is how many times the one that the server reports?",
    unit="x",
    between=(1, 100),
)
cap

# %%
at_once = lab.run(services.steady(lab), max_num_seqs=2)
open_loop = lab.run(services.steady(lab, at_once), max_num_seqs=2)
capped = lab.run(services.steady(lab, at_once, in_flight=2), max_num_seqs=2)
cap.score(words.hidden(capped))

# %%
tables.clients_table({"open loop": open_loop, "at most two open": capped})

# %%
draw_timeline(capped, title="The closed-loop client: where did the queue go?")

# %%
words.where_it_went(capped)

# %% [markdown]
# **Little's law** gives the cap away: requests in the server = requests per second × mean E2E. If that product sits
# just below a round number however hard you push, the client is holding requests back. (In published benchmarks it
# shows up as a TTFT that "plateaus".)

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "Before proposing anything I'd want TTFT and ITL separately, at p99, by prompt length, with sample counts. If TTFT
# > is big, I'd split it into queue and prefill. And I'd check that the load generator isn't holding requests back."
#
# **Follow-ups**
#
# <details><summary>"E2E is what users feel. Why not alert on that?"</summary>
#
# Because it grows with the length of the answer. When users ask for longer answers, the alert fires and nothing is
# wrong; and when something is wrong, it doesn't say what. With streaming, users feel TTFT and ITL, so I'd alert on
# those, and keep E2E for batch clients. To find the phase, vLLM exports queue, prefill and decode time as histograms.
#
# </details>
# <details><summary>"You have four replicas. What's the fleet's p99?"</summary>
#
# Not the mean of four p99s. Add up the replicas' buckets and take the quantile of the sum: `histogram_quantile(0.99,
# sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))`. It's interpolated within a bucket, so it's only
# as exact as the buckets are narrow. And I'd look at the worst replica separately, because a fleet-wide p99 can hide
# one sick machine.
#
# </details>
#
# **"Our p99 is eight seconds. What would you do?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Quantize the model, or add GPUs." | "Is it TTFT or ITL? I'd split it before choosing a fix." | "Which percentile, over how many requests, measured where? I'd want TTFT, ITL and queue time, by prompt length, from an open-loop client. Then I'd fix the largest phase first, and show the same percentile before and after." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>A client keeps at most N requests open. What does TTFT do as you push the rate up?</summary>
#
# 1. Little: N ≥ requests in the server = X × E2E, with X requests per second.
# 2. Below saturation the cap isn't reached, and E2E is the service time S.
# 3. At the cap, X = N / E2E. With N no larger than the slots, no request queues in the server, so E2E stays S.
# 4. So X stops at N / S and the server's TTFT stays flat, whatever rate you ask for.
# 5. The rest waits in the client: after t seconds at λ per second, (λ − N/S) t requests.
# 6. The wait a user feels grows with the length of the test. The server's histogram never sees it.
#
# </details>
#
# ## Check yourself
#
# Answers are computed from the runs above.

# %%
check = checks(before, capped)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### The same two services at 70B
#
# Now the same two on hardware that you'd rent for it: Llama-3 70B on four H100s, simulated, 300 requests each. **A**
# has one slot and gets 85% of what that slot can serve. **B** admits every request, and its answers are long: again
# just long enough for the two E2E p99s to match. Two fixes, the same for both:
#
# 1. **Half the bytes**: weights in 8 bits instead of 16 (*quantization*). Each step reads half as many
#    bytes of weights.
# 2. **More slots**: up to 256 requests may run at the same time.
#
# The usual advice is that quantization helps decode and does nothing for a queue. Which service does it help more
# here?

# %%
bet = lab.predict(
    "bytes",
    "Half the bytes per weight, at 70B: which service's E2E p99 falls by the larger share?",
    ["A", "B", words.SAME],
)
bet

# %%
on_70b = services_70b.two_services()
bet.score(words.gained_at_70b(on_70b))

# %%
services_70b.services_table(on_70b)

# %%
words.at_70b(on_70b)

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ### And on this machine?
#
# Both fixes again, for the two services from the top of the page. Proportions can differ a lot. On a few CPU cores a
# step with sixteen requests takes longer than one with a single request, and 8-bit matrix products have to keep up
# with 16-bit ones. They can be faster with one request and slower with sixteen.

# %%
slots = services.same_traffic(lab, before, max_num_seqs=16)
half = services.same_traffic(lab, before, quantization="int8")
tables.changes_table(before, {"half the bytes": half, "more slots": slots}, q=100)

# %%
control = Control("B already had sixteen slots", before["B"], slots["B"], q=100)
control

# %%
words.more_slots(before, slots)

# %%
words.half_the_bytes(before, half, control)

# %%
draw_phase_bars({"before": before["A"], "half the bytes": half["A"], "more slots": slots["A"]}, "Service A")

# %%
draw_phase_bars({"before": before["B"], "half the bytes": half["B"], "more slots": slots["B"]}, "Service B")

# %% [markdown]
# ### Fast enough for what?
#
# A **service-level objective** (SLO) states limits, and each use case has its own. **Goodput** counts only the
# requests that met all of theirs.

# %%
slo.slo_table(before)

# %% [markdown]
# ### Definitions
#
# With $n$ output tokens handed over at $d_1 \dots d_n$, arrival $t_0$, last byte $t_5$:
#
# $$\text{ITL} = \{\, d_{i+1} - d_i \,\}, \qquad \text{TPOT} = \frac{(t_5 - t_0) - (d_1 - t_0)}{n-1}, \qquad
# \text{GuideLLM's TPOT} = \frac{d_n - t_0}{n}$$
#
# ITL is a set, TPOT an average. A request that stalls once, for a second, and otherwise runs smoothly has a fine TPOT
# and a terrible maximum ITL. `course/lab/tool_metrics.py` has each tool's formula with its source; here's one:

# %%
import inspect

from course.lab import tool_metrics

print(inspect.getsource(tool_metrics.whole_average))

# %% [markdown]
# **Percentiles** interpolate linearly between ranked samples: with $n$ values, $p_q$ sits at rank $(n-1)\,q/100$. For
# ten samples p99 is therefore 91% of the way from the second slowest to the slowest.
#
# ### What articles say

# %%
in_short(
    a6(before),
    b1(before["A"]),
    e5(buckets(many, "TTFT")),
    f3(slo.attainments(before)),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --max-num-seqs 16
# sglang serve --model-path Qwen/Qwen3-8B --max-running-requests 16 --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --random-input-len 256 --random-output-len 64 --request-rate 40 \
#     --max-concurrency 4 --percentile-metrics ttft,itl,e2el,client_queue_time
# ```
#
# `--max-concurrency 4` makes the client hold requests back. TTFT stays calm, `client_queue_time` grows for as long as
# you send, and the server agrees with the calm figure: it can't see the wait (`vllm:time_to_first_token_seconds`,
# `sglang:time_to_first_token_seconds`). Leave the flag out, and the wait moves to `vllm:request_queue_time_seconds`
# (`sglang:queue_time_seconds`), or into ITL where there's a slot for every request. E2E p99 alone shows you none of
# that.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your ratios.** How much halving the bytes helps depends on what a step waits for. A CPU also needs code that
#   multiplies 8-bit weights as fast as 16-bit ones. (This engine's C++ keeps up at batch size 1 and can lose at
#   sixteen. Without a compiler, it loses.) A GPU decoding at batch size 1 waits for memory or for its host, never for
#   arithmetic.
# - **Quality.** 8 bits are *lossy*: rounded weights aren't quite the same model. No latency chart shows whether that
#   matters; lesson 09 measures it.
# - **Real tails.** Minutes of traffic on a quiet machine have short tails. Production tails come from things that
#   aren't here: noisy neighbours, restarts, networks.
# - **Your SLO.** The limits in the table are other people's opinions.
#
# ## Sources
#
# - A6: *Serving LLMs: The Latency Anatomy Framework*. B1: *Decomposing LLM Inference Latency for Better Serving
#   Performance*. E5: *Latency Optimization in LLM Inference Systems*. F3: an article on LLM latency in three layers,
#   its table of limits by use case.
# - MLPerf Inference, p99 limits for Llama-2-70B, server and interactive scenarios. Each tool's source is named in
#   `course/lab/tool_metrics.py`. vLLM's intervals: `vllm/v1/metrics/stats.py`.
# - Reading speed: Brysbaert, *How many words do we read per minute?*, 2019.
# - Little, *A Proof for the Queuing Formula L = λW*, 1961. Open and closed loops: Schroeder, Wierman and
#   Harchol-Balter, *Open Versus Closed: A Cautionary Tale*, 2006. Coordinated omission: Tene, *How NOT to Measure
#   Latency*, 2015.
