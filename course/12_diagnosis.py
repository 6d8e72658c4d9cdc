# %% [markdown]
# # 12 · Diagnosis
#
# Your phone rings. "p99 is terrible, and the dashboard is red." Somebody has a fix ready: more machines, fewer bits, a
# bigger batch. One of them may even be right. In this lesson you are paged, you ask, you commit yourself to a cause, you
# deploy, and you are graded on what your change really did.
#
# You will be able to tell illnesses apart that look the same, with as few questions as it takes, and to say which number
# should have ruled the wrong idea out.
#
# - **Surface**: one incident at the desk, five minutes.
# - **Guided**: its twin in cells, step by step; both on a real engine; two well-known post-mortems, with bets.
# - **Deep dive**: how an incident is made, what every change would have done, what earns marks, the raw data.

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
# A reminder of the words. A request passes five **phases**: queue, prefill (its prompt is read), first token, decode (it
# writes), stream. **TTFT** is the time to the first token: the first three phases. **ITL** is the gap between two tokens.
# A **promise** (an SLO, service level objective) is kept for a request if it stays within every limit.
#
# The desk below has one incident. It is a simulated service, under the same scheduler as the engine of this course. Every question
# costs minutes on the incident's clock, not on yours. Ask for what you need, then fill in the diagnosis, commit, deploy, and
# press *Grade me*. Three questions are enough.

# %%
first = services.first()
desk = Desk(first)
desk

# %% [markdown]
# *phase*: where are the seconds lost? *What convicts*: of the answers you have, those that would look different without the
# trouble. *Spike or steady*: does it pass by itself?
#
# That is the surface: *split, ask, commit, deploy, look.*

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
# First take the one number apart. Is the wait before the first token, or between tokens?

# %%
second.ask("ttft_itl")

# %%
second.ask("phases")

# %% [markdown]
# So it is the queue, and writing is as quick as ever. "Queue" is a place, not a cause. At least three illnesses look like
# this:
#
# | suspect | what it would show | its cure |
# |---|---|---|
# | more load than capacity | steps are full, more requests than last week | machines, or refusing |
# | too few seats (`max_num_seqs`) | all seats are taken, memory is free | a field |
# | a KV pool that is too small | seats are free, memory is full | another field |
#
# The **KV cache** keeps what the model knows of each request's earlier tokens; its **pool** is cut into blocks. A request without
# blocks cannot run, whatever the number of seats.
#
# ### Predict
#
# The incident of the desk above looks just like this one. (Not played yet? Play it first; what follows gives it away.) Which
# question tells the two apart by the largest factor?

# %%
question = lab.predict("question", "Which question tells them apart?", list(twins.TOLD_BY.values()))
question

# %%
outcome, readings = twins.apart(first.fresh(), second.fresh())
question.score(outcome)

# %%
readings

# %% [markdown]
# GPU utilisation reads high in nearly all incidents: a step that does little keeps the GPU as "busy" as one that does much. It
# convicts nobody. Move the handle, and look at each question with the eyes of somebody who does not know yet.

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
tries = ("kv_budget", "more_seats", "double_fleet")
cure = lab.predict("cure", "Which change restores the promise best?", services.texts(*tries))
cure

# %%
outcome, beside = services.tried(second, tries)
cure.score(outcome)

# %%
beside

# %% [markdown]
# Each row is the same traffic, which nobody had seen before, under one change. Look at three things: is the promise kept? did
# anything else get worse? what does it cost? If more seats did nothing: who could sit in them, while the pool is full?

# %%
second.grade()

# %%
truth = services.truth(second)
print(truth)

# %% [markdown]
# A row of the table is what one change alone would have done. This is why "have you tried..." is a slow way to work: most
# changes do nothing for most illnesses.
#
# ### What its numbers imply
#
# Numbers can be multiplied. **Little's law**: requests in flight = arrivals per second x the time that one stays. Compare that with how
# many of them the pool can hold.

# %%
services.sums(second)

# %% [markdown]
# ### The same two on a real engine
#
# Simulated services are convenient suspects. Here are both illnesses on this machine, with real weights: a burst for a healthy
# engine, for one with few seats, and for one with many seats and a small pool. (Each reserves room for a request's longest
# possible text, so that a pool is full when a counter says so.)

# %%
runs = real.three(lab)
real.table(runs)

# %% [markdown]
# Compare the first tokens of both sick engines with the healthy one's, then the last two columns. (Of a burst, some always wait; look for
# who sits, and for what is full.)
#
# ### Post-mortem one: three months
#
# A well-known story, in our words. A team works on quantization for three months, because "the model is too slow". It ships, and
# nothing changes. The prompts had grown to three times their length, under settings that were chosen for short ones. Here it
# is again, simulated: 70B on four GPUs.

# %%
months = Incident.classic("three-months")
months.page

# %%
months.ask("prompt_lengths")

# %%
months.ask("phases")

# %%
weights = ("trim_prompts", "int8_weights", "fewer_seats")
effort = lab.predict("effort", "Which change restores the promise?", services.texts(*weights))
effort

# %%
months.answer("queue", secondary="prefill", evidence=["prompt_lengths", "phases"], ranked=["trim_prompts"])
outcome, months_beside = services.tried(months, weights)
effort.score(outcome)

# %%
months_beside

# %% [markdown]
# Fewer bits make reading the weights cheaper, which is what decode waits for. Prefill waits for arithmetic. In front of which of
# the two were the seconds lost? The story is often told with a moral: "the seats were too many, lower them". Does that
# cure it? The claim, put to the test:

# %%
a18(*claims.post_mortem())

# %% [markdown]
# ### Post-mortem two: one contract
#
# A legal team may paste whole contracts: fifteen thousand tokens, a few in a hundred requests. Everybody complains, and those with
# two-line questions complain most.

# %%
contract = Incident.classic("straggler")
contract.page

# %%
contract.ask("per_bucket")

# %% [markdown]
# Look at the row of the shortest prompts: they wait, too. One long member makes everybody's step long, and the line behind it
# grows.

# %%
limits = ("prompt_limit", "timeouts", "smaller_chunks")
lane = lab.predict("lane", "Which change restores the promise?", services.texts(*limits))
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
# One of the three changes cuts off whoever takes too long. Find its row in the next table: the first column, then *unanswered*.

# %%
contract_beside

# %% [markdown]
# The share within the promise may even rise, since whoever is cut off no longer stands in the way. But count those who get nothing.
# And work that was cut off had been done, for nobody. A dashboard that leaves out failures would show this as a success.
#
# Diagnosis itself can hurt, too: questions cost minutes. When a change is free, safe, and undone in seconds, trying it may be
# the cheapest question of all. Say so when you do it.

# %% [markdown]
# ## Deep dive
#
# **How an incident is made.** A seed draws a healthy service: model, GPUs, traffic, settings. Its promise is set a little above what it does. Then a
# *cause* changes one thing. The service is played through the simulator, healthy and sick. A draw is kept only if the sick
# one breaks its promise, the true fix restores it on held-out traffic, and the tempting one does not:

# %%
import inspect

from course.lab.incidents import generate

print(inspect.getsource(generate._try))

# %% [markdown]
# An intervention is given a service and never knows what ails it. So nothing is painted on: what a change is worth is found by
# playing it. Of incident $i$, a change $c$ is worth
#
# $$v(c) = \text{kept after} - \text{kept before} - 0.4\,\min(\text{growth of the bill}, 1) - 0.05\,[\text{users lose something}]$$

# %%
truth.effects

# %% [markdown]
# **What the marks are for.** Half of them need no opinion: they are measured. The grade says what each is worth.
# Without evidence that convicts, everything but the evidence counts for less: a guess that came true helps once.
#
# **The raw data.** Every answer is also a DataFrame, and the run behind it is there to be counted in your own way.

# %%
second.ask("batch").data

# %%
longest = max(second.window.run.records, key=lambda record: record.timeline.phases()["queue"])
longest.timeline.phases()

# %% [markdown]
# The simulator's step times rest on constants; here is how good they are for this incident's GPUs:

# %%
simulated_70b.error_band(second.window.service.deployment())

# %% [markdown]
# More incidents: `minillm incident --seed 7 --difficulty 3` in a terminal, or `Desk(Incident.generate(7, difficulty=3))` here. Dumps on
# paper: [exercises](../exercises/12_diagnosis_dumps.ipynb).

# %% [markdown]
# ## Say it in an interview
#
# > "One number fits opposite systems, so first I split it: TTFT or ITL, and queue or prefill. Say it is the queue. Three causes look like
# > that: load, seats, memory. I would ask for KV use, because the three predict different values of it. GPU utilisation I would not
# > ask for; it is high in all of them. If the pool is full and seats are free, I change the pool, not the fleet: that is a
# > field, and I can undo it. I expect the wait to fall and ITL to rise a little, since more will run at once. If TTFT has not moved after
# > that, I was wrong, and the next question is what changed last week."
#
# ## Check yourself
#
# Replace the dots. Keys are computed from the incidents above.

# %%
check = checks(first, second, truth)

check("q1", ...)  # the id of the question that tells too few seats from too small a KV pool

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
# - **What people are like at night.** Panels here never lie, are never missing, and always carry the same clock.
# - **How a change is rolled out.** A deployment here is instant and touches all traffic. Real ones are staged, and undone.
# - **What it costs in seconds on your machines.** Step times are simulated, with the constants shown above. The order of changes is
#   safer to carry away than their sizes.
#
# ## Sources
#
# - A18, the seats that were left over, and the three months: *Serving LLMs: The Latency Anatomy Framework*.
# - D23, the straggler: an article on techniques for lower LLM latency, from batching to streaming, with measured gains.
# - Little's law: J. Little, *A Proof for the Queuing Formula L = λW*, 1961.
# - GPU figures: NVIDIA's data sheets, as in `minillm/simulate/cost/hardware.py`.
