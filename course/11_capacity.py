# %% [markdown]
# # 11 · Capacity, money, spikes
#
# "We need 100 requests a second. Will one server do?" Somebody will ask you, in an interview or in a budget meeting, and
# wants an answer before the coffee is cold. In this lesson you learn to give it: on the back of an envelope first,
# then by simulation, then in dollars. And you learn what to do on the day when twice as many come.
#
# You will be able to place the operating point of a server, to tell when a second replica is money thrown away and when it is
# the only thing that helps, and to say which measure brings a service back during a spike, and which comes too late.
#
# - **Surface**: one setting on this machine, and a bet on 100 requests a second.
# - **Guided**: the knee with a handle, replicas against a config change, a spike, cold starts, routing, a worksheet.
# - **Deep dive**: the formulas, the code, claims put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_11 import bounds, cold, fleet, knee, money, routing, spike, traffic, warning, worksheet
from course.lab.lesson_11.checks import checks

lab = open_lab()

# %% [markdown]
# ## Surface
#
# A few words first. A **replica** is one copy of the model on its own hardware, with its own queue. A **seat** is a place in the
# running batch; `max_num_seqs`, often called **max-batch**, is how many seats there are. **TTFT** is the time to a request's first token,
# **TPOT** the mean time per further token. An **SLO** (service-level objective) is a promise about such numbers. **Goodput** counts only
# the requests per second for which the promise was kept: throughput that somebody is glad of. **p99**: 99 in 100 are
# not above it (with as few requests as here it is nearly the slowest one).
#
# The real engine, on this machine. The same questions at the same moments, once for each number of seats. So many come
# that it has some time to spare when all seats may be used.

# %%
here = traffic.real_knee(lab)
traffic.place(here)

# %% [markdown]
# Move the slider: the upright red line without a label follows. It is the **operating point**. At the left end requests wait
# for a slot: TTFT is far above the line marked SLO (made from this machine's own medians), though each word comes quickly once
# it begins. Further right the queue gets shorter. Look at the third panel for the price: more people in each step make every step longer, for all of them. Where the
# curves go flat, further seats stay empty. They cost next to nothing, and they help nobody.
#
# So a setting, not a machine, can make people wait. Can a setting also make a machine large enough?
#
# ### Predict
#
# An article calls this a realistic operating point: 70 billion weights on four H100s, prompts of 1500 and answers of 150
# tokens, 100 requests a second, max-batch 64.

# %%
bet = lab.predict(
    "hundred",
    "100 requests a second of 1500 + 150 tokens, one replica of 70B on four H100s, max-batch 64. What happens?",
    list(traffic.HUNDRED),
)
bet

# %%
flood = traffic.a_hundred()
bet.score(traffic.hundred(flood))

# %%
bounds.envelope(bounds.Ask())

# %% [markdown]
# Was a simulation needed for that? A prompt token costs two operations for each weight; multiply by tokens, by requests, and
# divide by what the data sheet promises. If the result is above one, no scheduler, batch size or queue policy can help: there are not enough
# multipliers. A second envelope counts seats. By **Little's law**, *requests in the house = arrivals per second × time that each one stays*.
#
# That is the surface: *first the arithmetic, then the setting, then the money. In that order most debates are over early.*

# %% [markdown]
# ## Guided
#
# ### What it takes
#
# Four bounds on paper, and what a simulated replica did when requests were always waiting. The smallest bound
# counts; the simulated one is smaller still, since in each step links, launches and reading the weights come on top of
# the arithmetic. So the envelope proves that something is impossible, and never that it is enough. (In the simulation all
# requests are equally long here, as in the arithmetic.)

# %%
bounds.how_many()

# %% [markdown]
# Things to find:
#
# - Which bound moves with max-batch? Does the last one follow it beyond 64?
# - Make prompts short: which bound is the lowest one now?
# - Eight GPUs in a replica instead of four: does the last one double?
#
# How far to trust the simulated one:

# %%
simulated_70b.error_band(fleet.deployment())

# %% [markdown]
# ### The knee at 70B
#
# The four panels of before, for Llama-3 70B. **Load** is how many requests come, as a share of what it can serve with 128
# seats. Lengths are spread: most below the mean, a few far above.

# %%
knee.knee_of_70b()

# %% [markdown]
# - Start with the handle at the far left and drag it to the right. Where does goodput stop growing?
# - Load 120%: what climbs now as you add seats, and what happens to goodput?
# - Prompts of 4000 tokens: is there any max-batch at which TTFT keeps the promise?
# - **KV memory** (where the model keeps its notes on each token): on four GPUs there is room for hundreds of such requests. Choose 2 H100s and answers
#   of 600 tokens: the line "KV full" appears. Beyond it, more seats buy preemptions (somebody's KV is thrown away and computed again).
#
# You may have seen a curve that bends the other way: TTFT *rising* with the batch. It comes from a load test with a
# growing number of clients, each of whom asks again at once. Both numbers get called batch size.

# %%
crowds = knee.crowds()
knee.draw_limit_or_load(knee.sweep(), crowds)

# %% [markdown]
# Max-batch is a *limit*: more of it can only let people in. Clients are a *load*: more of them are more work. A limit below the load
# makes a line; a limit above it does nothing. So the sentence "operate one notch below the batch at which TTFT climbs" is about
# load. For the limit it should be: the smallest one at which nobody waits for a seat at your highest hour, unless TPOT breaks first.
#
# ### Replicas or a field? In dollars
#
# To the right is rent. Upwards are requests in time. A replica moves you to the right, and up if it helps; a change of the
# configuration moves you straight up, or nowhere. The price of a GPU and hour starts at the catalogue's (source in the worksheet below);
# put in your own.

# %%
money.mends()

# %% [markdown]
# Three troubles that look alike on a dashboard that shows only "too late":
#
# - *Too few seats*: a second replica works, and so does a field. The replica is rent for a setting.
# - *Too much work*: more seats do nothing. Replicas help, or less work a request: shorter or cached prompts, fewer bits, a smaller
#   model.
# - *Slow even when idle*: no number of replicas makes a single step shorter. Each has its own steps. A field that shortens the step does
#   help. Here it is **CUDA graphs**: a step's many kernels (programs on the GPU) are launched in one go, not one after the other.
#
# "Dollars a million tokens" is rent divided by what was *written*. So a half-empty replica has dear tokens: the price per token is mostly a
# statement about how full it is.
#
# ### A spike
#
# One replica at about half of its capacity. Then four times as many come, for a minute. Five answers:
#
# - **Do nothing**. The line works itself off, some day.
# - **Autoscaler**: orders replicas when too many requests are open. It looks every few seconds at the recent past, and a new replica has a **cold
#   start**: a machine must be found, weights must be read, caches must be filled.
# - **Shed**: refuse at the door when the replica holds 40 requests (HTTP 429), and say so.
# - **Small model for the overflow**: the same door; whoever is refused gets an answer from 8B on a single GPU. Promise that only if you
#   have measured its quality.
# - **A spare replica**, always on, always paid for.

# %%
who = lab.predict(
    "spike",
    "Four times the traffic for a minute; a new replica needs two minutes. What brings TTFT p99 back within the promise first?",
    list(traffic.BACK),
)
who

# %%
day = spike.stories(spike.Spike())
who.score(traffic.first_back(day))

# %%
traffic.stories_table(day, money.gpu_price())

# %% [markdown]
# Read the columns against each other. For each of the five, ask: for whom does it keep the promise, for whom does it break it, and does it
# say so? Who gets which kind of answer? How many who came during the spike were served in time, and who pays for what when the spike
# is over? (Whoever stands in the old replica's line stays there, also when a new one comes: most routers do not move
# a request that was handed over.) Now with handles:

# %%
spike.spikes()

# %% [markdown]
# - Pull the cold start down. From which value on is the autoscaler in time?
# - Switch to "a climb", where the load rises slowly and stays. Who wins now? Autoscaling is for the hours of a day; the door and the fallback are for
#   the minutes before it.
# - Make the spike long: what does a door do for the people outside it?
#
# ### The queue wait as an alarm
#
# Utilisation will not warn you: it is high in every busy server. Does the queue wait? Clients give up after a while. The bell
# rings when somebody leaves the line after more than two seconds: for a seat, or for good.

# %%
warning.alarms()

# %% [markdown]
# Before anybody has stood in a line for ten seconds, somebody has stood there for two. So a line that moves rings the bell first. A milder
# overload gives a longer warning, because the line ages slowly; a steep one leaves about the patience less the two seconds. Now let clients wait for *the last word* at a load of 80%: people leave, and no queue says a thing.
# Long answers and slow steps make that, so watch TPOT, too.
#
# ### Rare traffic
#
# Few requests an hour on four H100s that cost the same by night. **Scale to zero** gives them back when no request came for
# five minutes; the next one pays with a cold start of three. The alternative is a **warm pool**: at least one replica,
# always. Random arrivals, from one an hour to 300:

# %%
from course.lab.lesson_11 import claims, hardware

claims.e3(cold.played())

# %% [markdown]
# At 300 an hour the replica never sleeps, and nothing is saved. At one an hour nearly every request finds it asleep, and
# at ten, still most. From 30 to 100 an hour most requests are quick and some take the whole cold start; a mean would show neither.
# For an SLO on p99, "mostly awake" is not awake.
#
# ### Which model?
#
# A **router** sends easy requests to a small model. It is sometimes wrong. An easy request at the large model wastes money. A hard
# one at the small model is answered badly; if somebody notices, it is asked again, and if not, it costs whatever a wrong answer costs
# you. Move the handles until routing stops paying.

# %%
routing.routes()

# %% [markdown]
# In GPU dollars a mistake that is caught is cheap: one small answer on top. So look at the two other bills. *Time*: a request that
# is asked twice waits for both models. *Harm*: set "caught" to one half and let a wrong answer cost a hundred large requests. How good must
# the router be now? The claim, on paper and played:

# %%
routed = claims.routes(money.gpu_price())
claims.e8(*routed)

# %% [markdown]
# ### The worksheet
#
# Everything so far on one page. It looks for the **knee**, here the highest *rate* at which one replica keeps the promise for 95 in 100 requests
# (the money above asked for 99), then counts replicas. It answers
# in some seconds; the runs are short, so take the knee as good to a tenth or so.

# %%
worksheet.sheet()

# %%
worksheet.explained(worksheet.plan())

# %% [markdown]
# Try this: the same with H200s, at their price. With eight GPUs in a replica. With a TPOT of 40 milliseconds: the knee falls, and the replicas
# multiply. With 25 the sheet refuses: an idle replica misses that already, and more replicas cannot help. In a terminal: `minillm simulate --plan`.

# %% [markdown]
# ## Deep dive
#
# **The arithmetic.** $\lambda$ requests a second of $n$ prompt and $m$ answer tokens; $P$ weights in the layers, $F$ FLOP/s of a replica on
# paper, of which a share $u$ is reached; $S$ the time in a seat; $B$ seats; $r$ rent of a replica an hour; $\mu$ the knee:
#
# $$\lambda \le \frac{u\,F}{2P\,(n+m)}, \qquad \lambda \le \frac{B}{S}, \qquad \text{replicas} = \left\lceil \frac{\lambda}{\mu\,(1-h)} \right\rceil,
# \qquad \text{\$ per request} = \frac{\text{replicas}\cdot r}{3600\,\lambda}$$
#
# - $h$ is the **headroom**, the share of the knee that stays unused.
# - **Warning**: under a load $\rho > 1$ whoever gets a seat has waited $1 - 1/\rho$ seconds more with every second. So from a wait $w$ to
#   a patience $T$ it takes $(T-w)\,\rho/(\rho-1)$, if arrivals are smooth. Near 100% that promises
#   several times too much (compare E2): real arrivals clump, and the time-out also counts the reading of the prompt.
# - **Routing** with a share $e$ of easy requests, misrouted $x$, dollars $c_s$ and $c_l$, all mistakes caught: it saves
#   $e(1-x)(c_l - c_s)$ and costs $(1-e)\,x\,c_s$ a request.
#
# **The code.** How the worksheet finds a knee, and how an autoscaler decides (`minillm/simulate/`):

# %%
import inspect

from minillm.simulate.capacity.worksheet import Worksheet
from minillm.simulate.cluster.pool import Autoscaler

print(inspect.getsource(Worksheet.knee))
print(inspect.getsource(Autoscaler.decide))

# %% [markdown]
# Look for `math.sqrt` in the first one: the search halves *ratios*, since a rate of one and of two a second are as far apart as 50 and 100. And look at what the second one does not
# know: what comes.
#
# **The claims, measured.** First the smaller model and the queue: both on the same four GPUs.

# %%
claims.a8(*claims.two_models())

# %%
claims.a10(claims.knees(), crowds)

# %%
claims.a16(bounds.Ask(), flood, claims.knee_rate())

# %%
claims.a20(list(money.TROUBLES.values()), money.gpu_price())

# %%
claims.a21(day, spike.stories(spike.Spike(gentle=True)))

# %% [markdown]
# Few requests a day. Here hardware meets a field: 4-bit weights need one GPU instead of four. (Typical constants for all, so that
# the comparison is fair. Quality of 4-bit weights: lesson 09.)

# %%
claims.d20(hardware.options())

# %%
claims.e2(*claims.alarm_runs())

# %% [markdown]
# ## Say it in an interview
#
# > "Before I talk about batching I do the arithmetic: tokens a second times two FLOPs a weight, against what the GPUs reach. That gives a floor for the
# > number of replicas; the truth may be a few times that. Little's law gives the seats. Then I look for the knee under *our* traffic and promise, run below it with headroom, and
# > quote dollars per million tokens at the load we really have. If a promise breaks, I ask what is short. Seats are a
# > field. Arithmetic is money, or less work. A slow step wants a faster step (CUDA graphs, fewer bits, more GPUs in a replica), never
# > more replicas. For spikes I want a limit at the door and a fallback whose quality we have agreed on, because an
# > autoscaler comes after its cold start. I alarm on queue wait and on TPOT."
#
# ## Check yourself
#
# Replace the dots. Keys come from the runs above, the simulator and the catalogue.

# %%
check = checks(knee.sweep(), bounds.Ask(), day, list(money.TROUBLES.values()), routed[0], money.gpu_price())

# 100 prompts of 1500 tokens a second, 70B, four H100s: how many times the data sheet's FLOP/s?
check("q1", ...)

# %%
check("q2", ...)  # 70B, 1500 + 150 tokens, load 80%: the smallest max-batch with the best goodput (within a hundredth)

# %%
# too few seats, too much work, slow even when idle: a list of "field", "replicas" or "neither"
check("q3", ...)

# %%
check("q4", ...)  # "too few seats", two replicas, nothing changed: dollars for a million tokens written

# %%
check("q5", ...)  # the spike: which measure, without a spare, got most people an answer of the large model in time?

# %%
check("q6", ...)  # 70% easy, 10% misrouted, every wrong answer caught: dollars for 1000 requests

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your knee.** The constants were fitted on another card and moved; beside published figures, throughput is 11% low to 2% high. Capacity is where errors
#   show most: near the knee a tenth more or less decides whether a line grows. Take the shape from here and the number from a load test.
# - **Your prices.** The catalogue's are those of one cloud on one day. Reserved machines, the network, disks, the people who look after it: none of that is in them.
# - **Failures.** Replicas here never crash. A fleet of two that loses one has half of its capacity; headroom is for that, too.
# - **Quality.** Whether 8B answers well enough, and who is easy, no latency lab can say.
# - **Prefix caching.** No two prompts share a token in this lesson. Where they do, prompts cost less (lesson 04), and every number above moves.
#
# ## Sources
#
# - A8, A10, A16, A20, A21: *Serving LLMs: The Latency Anatomy Framework*. E2, E3, E8: *Latency Optimization in LLM Inference Systems*. D20: an article on
#   techniques for lower LLM latency.
# - Little's law: J. D. C. Little, 1961. Autoscaling rules: Kubernetes' HorizontalPodAutoscaler. Routing and cascades: Chen et al., *FrugalGPT*, 2023.
# - H100, H200, A100, B200: NVIDIA's data sheets. GPU prices: RunPod community cloud, as dated in `minillm/simulate/cost/hardware.py`. Today's stack: vLLM 0.19 on an
#   RTX 4090, moved; that of 2023: times of Llama-2-70B published with *Splitwise* (Patel et al., 2024).
# - The promise of lesson 11: TTFT of MLPerf's Llama-2-70B server scenario, and half of its limit per token. Use cases: lesson 01.
