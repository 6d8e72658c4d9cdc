# %% [markdown]
# # 02b · Batching and admission: who gets the next slot?
#
# A slot becomes free, and forty requests are waiting. Which one gets it? And how many of the forty should have been
# refused on arrival? Lesson 02 was about how long a queue gets. This one is about three decisions: how slots are
# filled, which request is next, and which are refused. Only the first can add capacity; the other two decide who
# pays.
#
# - **Five minutes** (five): one long answer in a batch, and a bet.
# - **The lab** (ten): three ways to fill slots, who is next, who is refused.
# - **In the interview** (ten): the line, follow-ups, three numbers, a derivation, and a check.
# - **Going deeper** (ten, optional): fairness between tenants, the scheduler's code, what articles say.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.claims import in_short
from course.lessons.lesson_02b import pictures, run, simulated, words
from course.lessons.lesson_02b.check import checks
from course.lessons.lesson_02b.simulated import open_and_limited, orders_at
from course.lessons.lesson_02b.words import a9, a13, a19, d1, d2, d3, e4

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# There are two ways to fill a batch.
#
# - **Static**: the waiting requests start together, and nothing else is admitted until the *longest* of them
#   finishes.
# - **Continuous**: a slot that becomes free is refilled in the very next step. (TensorRT-LLM calls this *in-flight
#   batching*, the Orca paper *iteration-level scheduling*.)
#
# Eight questions arrive together, and there are four slots. Question #0 wants an answer eight times as long as the
# others'. A slow request like that is called a **straggler**.

# %%
payer = lab.predict(
    "payer",
    "With static instead of continuous batching, who loses the most time, end to end? (Answers are streamed.)",
    list(run.PAYERS),
)
payer

# %%
straggler = {
    "static": lab.run(run.straggler(lab), batching="static"),
    "continuous": lab.run(run.straggler(lab)),
}
payer.score(run.who_pays(**straggler))

# %%
words.straggler(straggler)

# %%
pictures.slots_of(straggler, "One long answer: which request runs in which slot?")

# %% [markdown]
# What a straggler costs depends on how uneven the answers are. If requests for equal answers arrive together, both
# ways perform the same. Continuous batching only helps when lengths or arrival times are *uneven*, and in real
# traffic both are.
#
# ## The lab
#
# ### Three ways on the same arrivals
#
# Continuous batching fills slots, but it doesn't keep steps short: a long prompt makes one long step, and every
# request in that step waits. **Chunked prefill** computes such a prompt in pieces. Here are all three ways on the
# very same arrivals. Answers vary in length, and request #5 is a long document. Requests arrive a third faster than
# four slots can serve them on this machine, a rate that the cell measures first.

# %%
ways = run.three_ways(lab, run.mixed_crowd(lab, run.crowd_pace(lab)))
pictures.slots_of(ways, "The same arrivals, three ways: which request runs in which slot?")

# %%
words.ways(ways)

# %% [markdown]
# vLLM only does continuous batching, with chunked prefill on by default. `--max-num-seqs` sets the number of slots,
# and `--max-num-batched-tokens` how many tokens a step may hold (by default, vLLM's server takes 8,192 on an H100,
# 2,048 on an A100 or a small card, more on the largest; SGLang's `--chunked-prefill-size` depends on the card, too).
# Lesson 05 is about that budget.
#
# ### Who is next?
#
# Now slots are filled well, and there's still a queue. Does its order matter? Try it at 70B (simulated, like the rest
# of the lab), where one prompt in ten is long, with 6,000 tokens instead of 200. Each bar is a mean wait, and the
# tick behind it is the longest. With *two lanes*, short and long prompts queue separately, and the long lane gets
# every fourth turn. A *limit on prompts* refuses the long ones.

# %%
pictures.orders()

# %%
words.orders(orders_at())

# %% [markdown]
# No order made the server faster. Letting short prompts go first cuts the mean, and the long ones pay for it.
#
# ### Which requests to refuse?
#
# When more arrives than the server can handle, no order helps. **Shedding** means refusing a request on arrival
# because too many are queued already; **admission control** is the rule that decides. The SLO here is a first token
# within two seconds, and a client gives up after ten.

# %%
pictures.queue_limits()

# %%
words.limits({name: simulated.outcomes(each) for name, each in pictures.queue_limit_runs("130%").items()})

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# Now set the load to 30% and let requests arrive *in bursts*. The tight limits refuse requests that an almost idle
# server would have answered a second later. So derive the limit from the SLO. The wait you can accept is the TTFT
# limit minus prefill, and by Little's law the slots drain *slots × acceptable wait ÷ mean time in a slot* requests in
# that time. Treat it as an upper bound. In overload the queue stays full, so at that limit even the *mean* wait is as
# long as you can accept.
#
# You also have to decide what refused clients see. This engine's server answers **429** with a `Retry-After` when
# `max_queue_len` is reached, and 503 when a request exceeds its queue timeout. vLLM's `--max-num-queued-reqs` and
# `--max-num-queued-tokens` (since mid-2026, off by default) and SGLang's `--max-queued-requests` answer **503**. A
# load balancer may take a 503 for a sick replica and try the next one, whereas client libraries read 429 as "slow
# down".

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "With continuous batching and chunked prefill on, I'd ask what we're short of. If it's slots, I raise max_num_seqs
# > until KV memory or ITL stops me. If it's compute, no order helps, so I shed load, and report the refusal rate with
# > every p99."
#
# **Follow-ups**
#
# <details><summary>"Why not shortest job first?"</summary>
#
# It cuts the mean, and I'd use it where the mean is what counts. But it adds no capacity, you know the prompt's
# length and can only predict the answer's, and if short requests fill the server, long ones starve. So I'd add aging
# or a lane with a guaranteed share, and watch p99 of the long class.
#
# </details>
# <details><summary>"How do you choose the queue limit?"</summary>
#
# From the SLO: slots × (TTFT limit − prefill) ÷ time in a slot. Then I'd test it with bursts below capacity, where a
# tight limit refuses requests that would have been fine, and with retries, because a refused request that comes
# straight back adds load. If lengths vary a lot, I'd limit queued tokens rather than requests.
#
# </details>
#
# **"The queue is growing. What do you do?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Raise max_num_seqs." | "If KV and ITL allow it. Otherwise add replicas." | "Is it past capacity, or a burst that drains? In a burst I'd do nothing, or raise the queue limit. Past capacity I'd shed now, down to what the SLO allows, tell clients when to retry, add capacity, and report who was refused." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>How long may the queue be? 16 slots, an SLO of two seconds to the first token.</summary>
#
# 1. Little for the slots, with T the time in a slot: 16 = X T, so they complete X = 16 / T requests a second.
# 2. A request behind q others waits q / X = q T / 16.
# 3. That and the prefill may take 2 seconds together. If the prefill is short, q ≤ 16 × 2 / T.
# 4. Chats that hold a slot for four seconds: q ≤ 8.
# 5. In overload the queue is always full, so 2 seconds is the *mean* wait. To keep the p99 within it, take less.
# 6. With twice the slots q doubles if T stays the same. It won't quite, since fuller steps take longer.
#
# </details>
#
# ## Check yourself
#
# Answers are computed from the runs above.

# %%
limits = {name: simulated.outcomes(each) for name, each in pictures.queue_limit_runs("130%").items()}
check = checks(ways, orders_at(), limits)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### Fairness between tenants
#
# A **tenant** is one customer of a shared service. Say one of them submits a large job, and three small ones ask a
# question now and then. First come, first served puts every small question behind the whole job. Rate limits help,
# but they waste capacity when the server is idle. A **fair** queue instead counts the tokens each tenant was served,
# and the tenant with the lowest counter goes next: the *Virtual Token Counter* (Sheng et al., 2024), here
# `scheduling_order="fair"`. Prompt tokens count once, output tokens twice, and a tenant doesn't build up credit while
# it's idle.
#
# Here the lab's engine has four slots and gets the same arrivals in both orders. The small tenants send while the
# greedy one's job is still running.

# %%
share = lab.predict(
    "tenants",
    "Fair order instead of first come: how many times lower is the small tenants' p99 TTFT?",
    unit="x",
    between=(1, 30),
)
share

# %%
crowd = run.tenant_crowd(lab, run.tenants_span(lab))
both = {order: lab.run(crowd, max_num_seqs=4, scheduling_order=order) for order in run.TENANT_ORDERS}
share.score(run.small_gain(both, lab))

# %%
words.fair(both, lab)

# %%
pictures.tenants_table(run.by_tenant(both, lab))

# %% [markdown]
# With so few requests a tenant's p99 is nearly its slowest one. (Tokens/s are counted over the time in which each
# tenant was active, so they don't add up to the total.) At 70B there are more requests, and you choose how greedy the
# greedy tenant is (its load as a share of capacity), and what it asks for:

# %%
pictures.tenants_explorer()

# %%
words.held()

# %% [markdown]
# Three limits to remember. Fairness in **tokens** isn't fairness in **latency**: a tenant with long prompts gets
# fewer turns, and still stalls the steps it shares. The policy acts when a slot becomes free, so long answers delay
# it. And it only divides up a shortage. If every tenant is over its share, they all queue.
#
# <details><summary>Where does this happen in production?</summary>
#
# This engine's server takes the tenant from a request's `user` field. Elsewhere it's rarely the engine's job: vLLM's
# order is first come or priority. Fairness sits in front, where the queues of all replicas meet. llm-d's router holds
# requests back under saturation and cycles through tenants by a fairness id (round robin, one request each; a token
# counter has been proposed). AIBrix's gateway has a routing policy based on the same paper, and S-LoRA has the
# authors' own code. A router can only reorder what is still queued *there*: a request that sits in an engine's own
# queue is out of its reach.
#
# </details>
#
# ### The code
#
# Each step calls this for the waiting requests in turn, and stops at the first that doesn't fit. So no small request
# overtakes a big one, which is head-of-line blocking by KV size. The functions below it show how fair order picks the
# next tenant, and what it charges.

# %%
import inspect

from minillm.core.scheduler import Scheduler
from minillm.policies.queues import FairQueue

print(inspect.getsource(Scheduler._admit))
print(inspect.getsource(FairQueue.next_lane), inspect.getsource(FairQueue.pop), inspect.getsource(FairQueue._charge))

# %% [markdown]
# ### What articles say
#
# The first compares the three ways on six dimensions. Here are five as numbers; simplicity can't be read off an
# engine that was built for continuous batching.

# %%
calm, busy = simulated.three_ways(0.7), simulated.three_ways(1.0)
saturated = simulated.saturated_ways()
pictures.five_dimensions(calm, busy, saturated)

# %%
in_short(
    a9(calm, busy, saturated),
    a13({gpus: simulated.tenfold(gpus) for gpus in (2, 4)}),
    a19({load: simulated.chunks_and_limit(load) for load in (0.7, 1.3)}),
    d1(simulated.dynamic_gains()),
    d2(run.one_batch(lab)),
    d3(orders_at()),
    e4(over=open_and_limited(1.3), under=open_and_limited(0.3, simulated.BURSTS)),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --max-num-seqs 16 --max-num-queued-reqs 80 --scheduling-policy priority
# sglang serve --model-path Qwen/Qwen3-8B --max-running-requests 16 --max-queued-requests 64 \
#     --enable-priority-scheduling --enable-metrics --port 8000
# minillm bench serve --url http://127.0.0.1:8000 --rate 60 --num-requests 2000 --slo-ttft 1 --body ignore_eos=true
# ```
#
# Choose a rate past capacity. Without a limit, `vllm:num_requests_waiting` (`sglang:num_queue_reqs`) climbs for as
# long as you send, and TTFT p99 with it. With one, the gauge stops climbing, the p99 of admitted requests levels off,
# and goodput goes up although some are refused. Both answer 503, and vLLM counts them in
# `vllm:admission_rejections_total`. Its limit covers running *and* waiting requests, SGLang's only waiting ones,
# which is why they're 80 and 64 here.
#
# Priorities come with each request, as `priority`. vLLM serves the lowest number first, SGLang the highest. They move
# waiting from one group to another; throughput stays the same.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **What refused clients do next.** Here they go away. If they retry immediately, refusals become load: [lesson
#   10c](10c_clients.ipynb).
# - **What your tenants are worth.** Fair shares are equal here. Contracts aren't; the paper has weights for that.
# - **Many replicas.** One engine's queue is fair to the tenants it sees. Sharing counters between replicas is the
#   router's job.
# - **Absolute times at 70B.** They're only as good as the error band. Orders and ratios come from the engine's own
#   scheduler.
#
# ## Sources
#
# - A9, A13, A19: *Serving LLMs: The Latency Anatomy Framework*. D1, D2, D3: an article on techniques for lower LLM
#   latency. E4: *Latency Optimization in LLM Inference Systems*.
# - Iteration-level scheduling: Yu et al., *Orca*, OSDI 2022. Chunked prefill: Agrawal et al., *Sarathi-Serve*, OSDI
#   2024. Paged KV cache: Kwon et al., SOSP 2023.
# - Daniel et al., *How continuous batching enables 23x throughput in LLM inference while reducing p50 latency*,
#   Anyscale, 2023.
# - Fairness: Sheng et al., [*Fairness in Serving Large Language Models*](https://arxiv.org/abs/2401.00588), OSDI
#   2024. [llm-d, flow control](https://llm-d.ai/docs/architecture/core/router/epp/flow-control). [AIBrix, VTC
#   routing](https://github.com/vllm-project/aibrix/pull/964).
# - Limits: [vLLM pull request 49445](https://github.com/vllm-project/vllm/pull/49445).
