# %% [markdown]
# # 12 · Diagnosis
#
# Your phone rings. "p99 is terrible and the dashboard is red." Someone already has a fix: more machines, fewer bits, a
# bigger batch. One of them may even be right. In this lesson you get paged, ask questions, commit to a cause, deploy, and
# are graded on what your change really did.
#
# You'll be able to tell apart problems that look the same, with as few questions as it takes, and say which number should
# have ruled the wrong idea out.
#
# - **Surface** (five minutes): one incident.
# - **Guided** (thirty): its twin, step by step; both on a real engine; two well-known post-mortems, with bets.
# - **Deep dive** (ten): how an incident is made, what every change would have done, how it's graded, the raw data.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.incidents import Incident
from course.lab.incidents.desk import Desk
from course.lab.lesson_12 import claims, real, services, twins
from course.lab.lesson_12.checks import checks
from course.lab.lesson_12.claims import a18, d23

lab = open_lab()

# %% [markdown]
# ## Surface
#
# A request passes five **phases**: queue, prefill, first token, decode, stream. **TTFT** covers the first three, **ITL** is the
# gap between two tokens. An **SLO** is met for a request that stays within every limit.
#
# Below is one incident: a simulated service, with the scheduler of this course's engine. Every question costs minutes on the
# incident's clock, not on yours. Ask for what you need, then fill in the diagnosis, commit, deploy, and press *Grade me*.
# Three questions are enough.

# %%
first = services.first()
desk = Desk(first)
desk

# %% [markdown]
# *phase*: where are the seconds lost? *What convicts*: the answers that would look different without the problem. *Spike or
# steady*: does it pass by itself?
#
# **Split, ask, commit, deploy, look.**

# %% [markdown]
# ## Guided
#
# ### The page, and two numbers
#
# Another night, another service. The page is one alarming number.

# %%
second = services.second()
second.page

# %% [markdown]
# First split the one number. Is the wait before the first token, or between tokens?

# %%
second.ask("ttft_itl")

# %%
second.ask("phases")

# %% [markdown]
# So it's the queue, and decode is as fast as ever. "Queue" is where, not why. At least three causes look like this:
#
# | suspect | what it would show | its fix |
# |---|---|---|
# | more load than capacity | steps are full, more requests than last week | machines, or refusing |
# | too few slots (`max_num_seqs`) | all slots are taken, memory is free | a field |
# | a KV pool that is too small | slots are free, memory is full | another field |
#
# The **KV cache** holds each request's keys and values; its **pool** is cut into blocks. A request without blocks can't run,
# however many slots there are.
#
# ### Predict
#
# The first incident looks just like this one. (Not played yet? Play it first; what follows gives it away.) Which question
# tells the two apart by the largest factor?

# %%
question = lab.predict("question", "Which question tells them apart?", list(twins.TOLD_BY.values()))
question

# %%
outcome, readings = twins.apart(first.fresh(), second.fresh())
question.score(outcome)

# %%
readings

# %% [markdown]
# GPU utilisation is high in nearly all incidents: a step that does little keeps the GPU as "busy" as one that does a lot. It
# rules nothing in. (It rules something out: low utilisation with a deep queue means a hang.) Drag the slider, and read each
# answer as if you didn't know the cause yet.

# %%
twins.explorer(first.fresh(), second.fresh())

# %% [markdown]
# ### Commit, then deploy
#
# The evidence is in. In cells, an answer looks like this:

# %%
second.ask("kv_use"), second.ask("batch")
second.answer(
    dominant_phase="queue",
    evidence=["kv_use", "batch"],
    ranked=["kv_budget", "int8_kv", "double_fleet"],
    regime="steady",
    open_questions=["what else moved onto these GPUs?"],
)

# %%
tries = ("kv_budget", "more_slots", "double_fleet")
cure = lab.predict("cure", "Which change restores the SLO best?", services.texts(*tries))
cure

# %%
outcome, beside = services.tried(second, tries)
cure.score(outcome)

# %%
beside

# %% [markdown]
# Each row is the same held-out traffic under one change. Look at three things: is the SLO met, did anything else get worse,
# and what does it cost? More slots can't help here: with a full pool, no request can use them.

# %%
second.grade()

# %%
truth = services.truth(second)
print(truth)

# %% [markdown]
# Each row is what one change alone would have done. That's why "have you tried..." is a slow way to work: most changes do
# nothing for most problems.
#
# ### What its numbers imply
#
# **Little's law**: requests in flight = arrivals per second × the time each one stays. Compare that with how many the pool can
# hold.

# %%
services.sums(second)

# %% [markdown]
# ### The same two on a real engine
#
# Both problems on this machine, with real weights: a burst for a healthy engine, for one with few slots, and for one with many
# slots and a small pool. (Each reserves room for a request's longest possible text, so a pool is full when a counter says
# so.)

# %%
runs = real.three(lab)
real.table(runs)

# %% [markdown]
# Both sick engines are late with their first tokens, and only the last two columns tell them apart: which limit is reached,
# slots or blocks. (In a burst some requests always wait.)
#
# ### Post-mortem one: three months
#
# A well-known story, in our words. A team works on quantization for three months because "the model is too slow". It ships,
# and nothing changes. Prompts had grown to three times their length, under settings chosen for short ones. Simulated again,
# 70B on four GPUs:

# %%
months = Incident.classic("three-months")
months.page

# %%
months.ask("prompt_lengths")

# %%
months.ask("phases")

# %%
weights = ("trim_prompts", "int8_weights", "fewer_slots")
effort = lab.predict("effort", "Which change restores the SLO?", services.texts(*weights))
effort

# %%
months.answer("queue", secondary="prefill", evidence=["prompt_lengths", "phases"], ranked=["trim_prompts"])
outcome, months_beside = services.tried(months, weights)
effort.score(outcome)

# %%
months_beside

# %% [markdown]
# Fewer bits make reading weights cheaper, which is what decode waits for. Prefill waits for arithmetic, and the seconds were
# lost in front of prefill. The story is often told with a moral, "there were too many slots, lower them". Does that fix it?

# %%
a18(*claims.post_mortem())

# %% [markdown]
# ### Post-mortem two: one contract
#
# A legal team pastes whole contracts: fifteen thousand tokens, a few in a hundred requests. Complaints come from everywhere,
# and most of them from users with two-line questions.

# %%
contract = Incident.classic("straggler")
contract.page

# %%
contract.ask("per_bucket")

# %% [markdown]
# Look at the row of the shortest prompts: they wait, too. Prefill is chunked here, so no single step is long; but a contract
# fills the token budget of many steps in a row, and everything behind it queues.

# %%
limits = ("prompt_limit", "timeouts", "smaller_chunks")
lane = lab.predict("lane", "Which change restores the SLO?", services.texts(*limits))
lane

# %%
contract.answer("prefill", secondary="queue", evidence=["per_bucket"], ranked=["prompt_limit"])
outcome, contract_beside = services.tried(contract, limits)
lane.score(outcome)

# %%
d23(claims.straggler_tails())

# %% [markdown]
# ### Where it hurts
#
# One of the three changes cuts off requests that take too long. Find its row: the first column, then *unanswered*.

# %%
contract_beside

# %% [markdown]
# The share within the SLO can even rise, because requests that were cut off are no longer in the way. Count the ones that get
# nothing, too. A dashboard that leaves out failures shows this as a success.
#
# Some causes fire no alert at all: of this course's 28, the alert rules in [docs/monitoring.md](../docs/monitoring.md) miss six. A
# buffering proxy and clients far away are outside the engine; answers that grew stay within an SLO that's too wide.
#
# Diagnosis costs, too: questions take minutes. If a change is free, safe and undone in seconds, trying it may be the cheapest
# question of all. Say so when you do it.

# %% [markdown]
# ## Deep dive
#
# **How an incident is made.** A seed draws a healthy service: model, GPUs, traffic, settings, and an SLO a little above what it
# does. A *cause* changes one thing. The simulator plays both. A draw is kept only if the sick one breaks its SLO, the true fix
# restores it on held-out traffic, and the tempting one doesn't:

# %%
import inspect

from course.lab.incidents import generate

print(inspect.getsource(generate._try))

# %% [markdown]
# A fix is applied to the service without knowing the cause, so nothing is scripted: what a change is worth is found by running
# it. A change $c$ is worth
#
# $$v(c) = \text{kept after} - \text{kept before} - 0.4\,\min(\text{growth of the bill}, 1) - 0.05\,[\text{users lose something}]$$

# %%
truth.effects

# %% [markdown]
# **How it's graded.** Half of the points need no opinion: they're measured. Without evidence that convicts, everything else
# counts for less: a lucky guess works once.
#
# **The raw data.** Every answer is also a DataFrame, and the run behind it is there to be counted in your own way.

# %%
second.ask("batch").data

# %%
longest = max(second.window.run.records, key=lambda record: record.timeline.phases()["queue"])
longest.timeline.phases()

# %% [markdown]
# How good the simulator's constants are for this incident's GPUs:

# %%
simulated_70b.error_band(second.window.service.deployment())

# %% [markdown]
# More incidents: `minillm incident --seed 7 --difficulty 3` in a terminal, or `Desk(Incident.generate(7, difficulty=3))` here. Dumps on
# paper: [exercises](../exercises/12_diagnosis_dumps.ipynb).

# %% [markdown]
# ## Say it in an interview
#
# > "One number fits opposite systems, so first I'd split it: TTFT or ITL, then queue or prefill. Say it's the queue. Three causes
# > look like that: load, slots, memory. I'd ask for KV usage, because the three predict different values of it. GPU utilisation
# > won't help, it's high in all of them. If the pool is full and slots are free, I'd change the pool, not the fleet: it's one
# > field, and I can undo it. I'd expect the wait to fall and ITL to rise a bit, since more runs at once. If TTFT doesn't move, I was
# > wrong, and my next question is what changed last week."
#
# ## Check yourself
#
# Replace the dots. Answers are computed from the incidents above.

# %%
check = checks(first, second, truth)

check("q1", ...)  # the id of the question that tells too few slots from too small a KV pool

# %%
check("q2", ...)  # the second: how many mean requests have room in its KV pool at once, half of each answer written?

# %%
check("q3", ...)  # the second incident: share of the requests' time that is spent in the queue, 0 to 1

# %%
check("q4", ...)  # the second incident: three changes by id, the best first

# %%
check("q5", ...)  # the first incident: dollars an hour that doubling its fleet, which does not help, costs on top

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Whether your cause is in the list.** Incidents have one cause, sometimes two, out of a catalogue. Real ones have three, and one is new.
# - **Broken dashboards.** Panels here never lie, are never missing, and all share one clock.
# - **Rollouts.** A deployment here is instant and touches all traffic. Real ones are staged, and rolled back.
# - **What it costs in seconds on your machines.** Step times are simulated, with the constants shown above. The order of changes is
#   safer to carry away than their sizes.
#
# ## Sources
#
# - A18, the spare slots, and the three months: *Serving LLMs: The Latency Anatomy Framework*.
# - D23, the straggler: an article on techniques for lower LLM latency, from batching to streaming, with measured gains.
# - Little's law: J. Little, *A Proof for the Queuing Formula L = λW*, 1961.
# - GPU figures: NVIDIA's data sheets, as in `minillm/simulate/cost/hardware.py`.
