# %% [markdown]
# # 11b · Spikes, cold starts and graceful degradation
#
# Traffic quadruples for a minute. The autoscaler notices within seconds and orders replicas, which take two minutes to
# start. Is it any help? And if it isn't, what is?
#
# You'll be able to say which spikes an autoscaler can help with, itemize a cold start, and name what has to be in place
# before the spike comes.
#
# - **Five minutes** (five): five answers to the same spike, and a bet on the autoscaler.
# - **The lab** (five): your own spike, what a cold start is made of, and an early alarm.
# - **In the interview** (five): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (ten): the arithmetic of the warning, scaling to zero, a rehearsed rollback, three claims.

# %%
from course.lab import simulated_70b
from course.lab.claims import in_short
from course.lab.display import stack
from course.lab.lab import Lab
from course.lab.prices import gpu_price
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11b import explorer, pictures, run, words
from course.lessons.lesson_11b.check import checks
from course.lessons.lesson_11b.words import a21, e2, e3

lab = Lab()  # everything in this lesson is simulated: no model is loaded

# %% [markdown]
# ## Five minutes
#
# One replica of Llama-3 70B runs at two fifths of its capacity. Then four times as many requests arrive, for a minute.
# The limit on TTFT is two seconds. You could answer in five ways:
#
# - **Do nothing.** The queue drains eventually.
# - **Autoscaler**: orders up to three more replicas when too many requests are open (queued or running). It looks at
#   the last seconds of load, and a new replica has a **cold start**, here of two minutes.
# - **Refuse beyond a limit**: when the replica holds 40 requests, answer the next with 429 right away.
# - **Degrade**: at the same limit all new requests go to an 8B model on a single GPU, until the large model is down to
#   ten open requests. Only do that if you've measured the small model's quality.
# - **A spare replica**, always on and always paid for.
#
# ### Predict

# %%
saved = lab.predict(
    "spike",
    "Of the requests that miss the TTFT limit if you do nothing, how many does the autoscaler save?",
    list(words.SAVED),
)
saved

# %%
day = run.stories(run.Spike())
saved.score(words.saved_by_the_autoscaler(day))

# %%
stack(pictures.stories_table(day, gpu_price()), words.tell_spike(day, gpu_price()))

# %% [markdown]
# **An autoscaler helps with a spike that outlasts its cold start. For a shorter one you need something that's already
# there.** Which kind does your traffic have?
#
# ## The lab
#
# ### Your own spike
#
# The dashed line is what happens if you do nothing. First look at the autoscaler's line. Where do the two part?

# %%
pictures.spikes()

# %%
simulated_70b.error_band(fleet.deployment())

# %% [markdown]
# <details><summary>Six things to try, answered</summary>
#
# - *The autoscaler as it is*: they never part. Its replicas appear in the lowest panel when TTFT is long back to
#   normal.
# - *Two minutes of spike*: its replicas are up before the queue has drained, and what's sent from then on is answered
#   in time. What was sent before still waits at the old replica.
# - *A cold start of 5 s*: it saves most of the requests, though not all, since it has to notice first. That's what
#   warm pools and sleep mode buy.
# - *A climb*, where load rises slowly and stays high: now the autoscaler is in time. It's for the daily curve; limits
#   and fallbacks are for the minutes before it reacts.
# - *Degrade, and return at 39 open requests*: the two limits nearly coincide, and the service keeps switching models.
#   The gap between them is **hysteresis**, as in a thermostat.
# - *Refuse, four minutes of spike*: the requests that got in are fine, but about twice the share is turned away. A
#   spike that long needs capacity, or a smaller model.
#
# </details>
#
# ### What a cold start is made of
#
# So everything depends on how long a replica takes to start: two minutes above, three with the defaults here. A third
# of that is bytes over bandwidths (image and weights), the rest booting, compiling and capturing graphs. The defaults
# are round figures; put in your own. In **sleep mode** the process stays alive: its weights move to host memory, its
# KV is dropped, and another model can have the GPUs. Waking up is one copy back over PCIe.

# %%
explorer.cold_start()

# %% [markdown]
# <details><summary>What shortens which piece</summary>
#
# - *Machine*: a warm pool of idle nodes. *Image*: cache it on the node, or pull it lazily.
# - *Weights*: local NVMe instead of a network disk, and a loader that reads many files in parallel (vLLM's
#   `--load-format runai_streamer`).
# - *Compile*: keep the cache (vLLM stores it under `~/.cache/vllm`) on a shared disk. *Graphs*: capture fewer batch
#   sizes.
# - *Nearly all of it*: sleep mode, for models that share GPUs and have quiet hours (vLLM: `--enable-sleep-mode`,
#   level 1).
#
# </details>
#
# ### The queue wait as an alarm
#
# Something has to tell you that a spike has begun. Utilization won't, because it's high on every busy server. Does
# queue wait tell you before clients start to give up? The alarm fires when a request leaves the queue after more than
# two seconds, for a slot or because its client gave up.

# %%
pictures.alarms()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - As a queue grows, a wait of two seconds comes well before a wait of ten. So the alarm fires before the time-outs,
#   and the milder the overload, the longer the warning.
# - Let clients wait for *the last word* at a load of 80%: they time out, and the queue shows nothing. Long answers and
#   slow steps do that, so alert on TPOT, too.
#
# </details>

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "An autoscaler only helps with spikes that outlast a cold start. For shorter ones the help has to be in place
# > already: an admission limit, a fallback model the product team has agreed to, or a spare replica. And I alert on
# > queue wait."
#
# **Follow-ups**
#
# <details><summary>"How would you cut a three-minute cold start to twenty seconds?"</summary>
#
# I'd itemize it first: machine, image, weights, compilation, graph capture. Each is either bytes over a bandwidth or
# something that can be kept ready. So I'd want warm nodes with the image on them, weights on local NVMe with parallel
# readers, a persistent compile cache, and fewer captured sizes. Or I'd avoid the start altogether: sleep mode keeps
# the process, and waking is one copy over PCIe.
#
# </details>
#
# <details><summary>"Why not scale on GPU utilization?"</summary>
#
# It's high on every busy server, whether the queue is empty or a minute long, so it can't tell a healthy peak from an
# overload. Queue wait can: under overload it grows by 1 − 1/ρ seconds per second. Its blind spot is a client that gives
# up in the middle of a long answer, so I watch TPOT as well.
#
# </details>
#
# **"A launch tweet quadruples traffic for ten minutes."**
#
# | weak | senior | staff |
# |---|---|---|
# | "Turn on autoscaling." | "Autoscaling helps after the cold start, so for the first minutes I'd keep a spare replica and shed load with 429s." | "Beforehand I'd want an admission limit from Little's law, a fallback model whose quality the product team has signed off, and hysteresis so we don't flap. During the spike it's about who gets refused, by tier. Afterwards I'd switch back by open requests, not by time. I'd expect nearly 100% of *admitted* requests within the SLO, and I'd report the refused ones beside that, because a dashboard of admitted requests always looks fine." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>How much warning does the queue give?</summary>
#
# 1. Load $\rho = \lambda/\mu > 1$: each second brings $\rho$ seconds of work, and one is done.
# 2. A request that arrives at $t$ finds $(\rho - 1)t$ seconds of work queued, and is served at $\rho t$.
# 3. Seen at the server, the wait of those leaving the queue grows by $(\rho-1)/\rho = 1 - 1/\rho$ per second.
# 4. From an alarm at $w$ to the clients' patience $T$: $(T - w)\,\rho/(\rho - 1)$ seconds.
# 5. $w$ = 2 s, $T$ = 10 s: 88 s at 110%, 35 s at 130%, 16 s at 200%. A cold start of two minutes is late for all
#    three.
#
# </details>

# %% [markdown]
# ## Check yourself

# %%
check = checks(day)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### How early is the warning?
#
# Under a load $\rho > 1$ the queue wait grows by $1 - 1/\rho$ seconds every second. So growing from a wait of $w$ to
# the clients' patience $T$ takes $(T-w)\,\rho/(\rho-1)$, if arrivals are smooth. Real arrivals are bursty, so read
# this as the middle of many runs. The closer the load is to 100%, the further single runs stray from it. At 110% some
# give half that warning, and some more than twice as much; at 200% nearly all are within a third of it. Claim E2 below
# shows one run of each.
#
# **The code.** How an autoscaler decides. Note that it can't know what comes next.

# %%
import inspect

from course.simulator.cluster.pool import Autoscaler

print(inspect.getsource(Autoscaler.decide))

# %% [markdown]
# ### Rare traffic
#
# Say a few requests come in an hour, on four H100s that cost the same at night. **Scale to zero** releases them after
# five minutes without a request; the next request waits out a three-minute cold start. The alternative is a **warm
# pool**: always at least one replica. If $\lambda$ requests come per second and a replica is released after $K$
# seconds, a request finds it gone with probability $e^{-\lambda K}$, which is also about the share of time its GPUs
# are free. Set *brought back by* to sleep mode. What changes, and what doesn't?

# %%
explorer.rare_traffic()

# %% [markdown]
# <details><summary>Answer</summary>
#
# Just as many requests find it gone, but each waits seconds, not minutes. With scale to zero the free GPUs leave your
# bill. With sleep mode they don't, so it pays when another model uses them meanwhile. Either shows in p99 as long as
# more than one in a hundred requests finds the replica gone, so for an SLO on p99, "mostly awake" isn't enough.
#
# At 300 requests per hour the replica almost never goes away and nothing is saved; at one per hour nearly every
# request finds it gone. In between, most requests are quick, some take the whole cold start, and a mean shows
# neither.
#
# </details>
#
# ### Where it hurts: a change that makes it worse
#
# A configuration change is a deploy. Know its **blast radius** (which tenants and regions see the new default), put
# it behind a **feature flag** that one replica reads first (a **canary**), decide beforehand what number triggers a
# rollback, and rehearse that with a stopwatch: a mistake lasts for the time to detect plus the time to undo. Here the
# canary gets three requests per second. The rule undoes the change as soon as more than 20% of the last 50 requests
# were late (TTFT or TPOT beyond the SLO). The mistake is that CUDA graphs are off.

# %%
undone = lab.predict(
    "rollback",
    "How many seconds from the deploy until the flag is back where it was? Turning it back takes five.",
    unit="s",
    between=(5, 120),
)
undone

# %%
undone.score(words.until_undone())

# %%
pictures.canary()

# %% [markdown]
# Which rule is best? A short window reacts fast but can fire on noise; a long one is steadier but slow. The last row is
# a deploy that changed nothing (an **A/A test**). Does any rule fire on it?

# %%
pictures.rules_table()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - *Too few slots* barely shows, because at this load sixteen are nearly enough. It would show at the next peak, long
#   after the canary has been promoted. So hold a canary through a peak, or send it more than its share.
# - Lower the limit to 2%: the rule fires sooner, and at higher loads it fires in the A/A test, too.
# - How you undo it matters as much as the rule. A redeploy with a cold start adds two minutes of late requests; a flag
#   doesn't.
#
# </details>

# %% [markdown]
# ### What articles say
#
# E3's share of cold requests includes those that arrive during a start of $S$ seconds, so expect
# $(1 + \lambda S)\,e^{-\lambda K}$. It simulates 480 requests at each rate, so its figures carry some noise.

# %%
in_short(
    a21(day, run.stories(run.Spike(gentle=True))),
    e2(*run.alarm_runs()),
    e3(run.sleeps()),
)

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your cold start.** Measure each piece once, from an empty node.
# - **Quality of the fallback.** No latency lab can say whether 8B answers well enough.
# - **Rebalancing.** Requests already queued at the old replica stay there, as with most routers. And a new replica's
#   prefix cache is empty, so in real life its first minutes of prefill cost more.
#
# ## Sources
#
# - A21: *Serving LLMs: The Latency Anatomy Framework*. E2, E3: *Latency Optimization in LLM Inference Systems*.
# - Autoscaling rules: Kubernetes' HorizontalPodAutoscaler. Sleep mode, loaders, compile cache: vLLM's docs, read in
#   November 2026.
# - Canaries, feature flags, rollbacks: Beyer et al., *Site Reliability Workbook*, 2018, chapter 16.
