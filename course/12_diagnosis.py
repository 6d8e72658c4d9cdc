# %% [markdown]
# # 12 · Diagnosis
#
# Your phone rings. "p99 is terrible and the dashboard is red." Someone already has a fix: more machines, fewer bits,
# a bigger batch. One of these may even be right. In this lesson you get paged, help users first, ask questions, commit
# to a cause, deploy, and get graded on what your change actually did.
#
# You'll be able to tell problems that look the same apart with a few questions, and say which number rules out the
# wrong one.
#
# - **Five minutes** (five): a page, two numbers, three suspects.
# - **The lab** (fifteen): an incident of your own that looks just like it, and a bet on the question that tells them
#   apart.
# - **In the interview** (fifteen): the line, its follow-ups, a derivation. (The check is at the end.)
# - **Going deeper** (thirty): what each change was worth, a real engine, two well-known post-mortems, how it's
#   graded.

# %%
from course.incidents import Incident
from course.incidents.desk import IncidentDesk
from course.lab import open_lab, simulated_70b
from course.lab.claims import in_short
from course.lessons.lesson_12 import pictures, run, simulated, words
from course.lessons.lesson_12.check import checks
from course.lessons.lesson_12.words import a18, d23

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# A request passes through five **phases**: queue, prefill, first token, decode, stream. **TTFT** covers the first
# three; **ITL** is the gap between two tokens. A request meets the **SLO** if it stays within every limit.
#
# Here's a simulated service, run by this course's own scheduler, and one alarming number:

# %%
second = run.second()
second.page

# %% [markdown]
# First split that number. Is the wait before the first token, or between tokens?

# %%
second.ask("ttft_itl")

# %%
second.ask("phases")

# %% [markdown]
# Most of a request's time goes into the queue, by far. But "queue" says where, not why. At least three causes look
# like this:
#
# | suspect | what it would show | its fix |
# |---|---|---|
# | more load than capacity | steps are full, more requests than last week | more replicas, or refusing some requests |
# | too few slots (`max_num_seqs`) | all slots are taken, memory is free | one setting |
# | a KV pool that is too small | slots are free, memory is full | another setting |
#
# The **KV cache** holds each request's keys and values; its **pool** is cut into blocks. A request without blocks
# can't run.
#
# ## The lab
#
# ### Your turn
#
# Another service is paged for the same thing, and the cause isn't the same. Every question costs minutes on the
# incident's clock, not on yours, and the incident goes on: queues grow, and the SLO's error budget burns.
#
# So **mitigate first**. *Mitigate* lists what anyone on call can do right away, before knowing the cause: roll back
# this morning's release, fail over, shed load, drain a replica. Each has a price. Then *Ask* what you need, and under
# *Diagnose* write down what you suspect; the menus come after that. Commit, try your change on a canary, roll it out
# or back, and press *Grade me*.

# %%
first = run.first()
desk = IncidentDesk(first)  # 10 minutes
desk

# %% [markdown]
# On the form, *Where the time is lost* means compared with last week, and it may be outside the engine. *What proves
# it* asks for evidence that would look different without the problem. *Ruled out by* asks for an answer that
# eliminates another suspect.
#
# **Mitigate, split, ask, commit, canary, deploy, look.**
#
# ### Predict
#
# Both incidents look the same from outside. (If you haven't played yours, do so now, because what follows gives it
# away.) Which question's answers differ by the largest factor?

# %%
question = lab.predict("question", "Which question tells them apart?", list(run.TOLD_BY.values()))
question

# %%
outcome, readings = words.apart(first.fresh(), second.fresh())
question.score(outcome)

# %%
readings

# %% [markdown]
# GPU utilization is high in nearly all incidents, because a step that does little keeps the GPU as "busy" as one that
# does a lot. So a high value tells you nothing. (A low one does. With a deep queue, it means that something is
# starving the GPU.)

# %%
pictures.both_incidents(first.fresh(), second.fresh())

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "If something shipped in the last hour, I roll it back. Then I split: TTFT or ITL, queue or prefill. If it's the
# > queue, I check KV usage and running requests, because load, slots and memory each predict a different pair. GPU
# > utilization won't help."
#
# **Follow-ups**
#
# <details><summary>"Your fix went live, and TTFT didn't move. Now what?"</summary>
#
# Then I was wrong, and that tells me something: the limit I lifted wasn't the binding one. I undo the change, so that
# there's only ever one in place. Running requests and KV usage say which limit we're at now. Then I read the change
# log again, knowing the culprit may not be in it, and ask what's different from last week in the traffic itself.
#
# </details>
#
# <details><summary>"Would you double the fleet while you look?"</summary>
#
# If users are suffering and there's capacity, yes, as mitigation: it halves each replica's load and can be undone.
# But it proves nothing, since it helps with many causes. And it takes a cold start, cold caches included. It doesn't
# help if requests are slow even alone, or if one replica is unhealthy.
#
# </details>
#
# **"p99 TTFT is 9 s. GPU utilization is 98%."**
#
# | weak | senior | staff |
# |---|---|---|
# | "The GPUs are saturated: scale out." | "98% busy says little. I'd compare queue time with prefill time, then look at batch size and KV usage." | "Did anything ship? If so, I'd roll it back now and ask later. Then I want two numbers: running requests against `max_num_seqs`, and KV usage. If slots are full and memory's free, it's a setting. If memory's full and slots are free, it's a different setting. If neither is full and steps are, it's load, and I can size that. I'd say beforehand what I expect to see after the change, and by when, so that I notice if I'm wrong." |
#
# **Three numbers to know cold**

# %%
words.three_numbers(second)

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>Do the page's numbers rule out a full pool?</summary>
#
# 1. In flight at $\lambda$ requests/s (Little): $N = \lambda \cdot \text{E2E}$, of which $\lambda \cdot
#    \text{queue}$ are waiting.
# 2. Running: $N_r = \lambda \cdot (\text{E2E} - \text{queue})$.
# 3. A pool of $K$ tokens holds $N_k = K / (n + m/2)$ of them ($n$ prompt, $m$ answer tokens, half of them generated).
# 4. $N_r \approx N_k$: memory binds. $N_r \approx$ `max_num_seqs`: slots bind.
# 5. Neither, with full steps: compute binds. Neither, with empty steps: look outside the engine.
#
# </details>

# %% [markdown]
# ## Going deeper
#
# ### Commit, then deploy
#
# Back to the paged service of the beginning, with the two questions that tell load, slots and memory apart:

# %%
second.ask("kv_use")

# %%
second.ask("batch")

# %%
tries = ("kv_budget", "more_slots", "double_fleet")
cure = lab.predict("cure", "Which change restores the SLO best?", run.change_texts(*tries))
cure

# %% [markdown]
# In code, a diagnosis looks like this. It's committed before anything is deployed:

# %%
second.answer(
    cause="kv_pool",
    dominant_phase="queue",
    evidence=["kv_use", "batch"],
    ruled_out={"kv_use": "few_slots"},
    ranked=["kv_budget", "int8_kv", "double_fleet"],
    regime="steady",
    open_questions=["who set num_kv_blocks, and why?"],
)
outcome, beside = words.tried(second, tries)
cure.score(outcome)

# %%
beside

# %% [markdown]
# Each row is the same held-out traffic (other arrivals than the page's) under one change. Look at three things:
# whether the SLO is met, whether anything else got worse, and what it costs. More slots can't help here, because with
# the pool full no request can use them.

# %%
second.grade()

# %%
truth = run.truth(second)
truth

# %% [markdown]
# Each row shows what one change alone would have done. Several that are often suggested do nothing here, which is why
# "have you tried..." is a slow way to debug.
#
# ### What its numbers imply
#
# **Little's law**: requests in flight = arrivals per second × the time each one stays. Compare that with how many the
# pool can hold. (The law is for a steady state. This queue keeps growing, so the product is larger by now than in the
# three numbers above.)

# %%
pictures.sums_table(second)

# %% [markdown]
# ### The same two problems on a real engine
#
# Both problems on this machine, with real weights: one burst, sent to a healthy engine, to one with few slots, and to
# one with many slots and a small pool. (Each reserves KV for the longest possible text up front.)

# %%
runs = run.three_engines(lab)
pictures.engines_table(runs)

# %% [markdown]
# Both impaired engines are late with their first tokens. The last two columns tell them apart, by the limit that's
# reached: slots or blocks. (Two requests run at a time in either, so where their times differ by much, this machine was
# busy with something else.)
#
# ### Post-mortem one: three months
#
# In a well-known story a team works on quantization for three months, because "the model is too slow". Here's their
# service just before the work ships, simulated with 70B on four GPUs:

# %%
months = Incident.classic("three-months")
months.page

# %%
months.ask("prompt_lengths")

# %%
months.ask("phases")

# %%
weights = ("trim_prompts", "int8_weights", "fewer_slots")
effort = lab.predict("effort", "Which change restores the SLO?", run.change_texts(*weights))
effort

# %%
months.answer("queue", "prefill", ["prompt_lengths", "phases"], ["trim_prompts"], cause="longer_prompts")
outcome, months_beside = words.tried(months, weights)
effort.score(outcome)

# %%
months_beside

# %% [markdown]
# In the story it shipped, and nothing changed. Fewer bits make weights cheaper to read, which helps when a step waits
# for weights. Here steps are long because they carry three times the prompt tokens. A request's own prefill is only
# 2% of its time, but every step carries other requests' prompts, too, so decode slows down, the server falls behind,
# and requests queue. (The dominant phase is where seconds were lost since last week. That's the queue, even if decode
# takes more in all.) The story often has a moral: "there were too many slots, lower them". One row of the table tried
# that; A18, at the end, tries other numbers.
#
# ### Post-mortem two: one contract
#
# A legal team pastes whole contracts: fifteen thousand tokens, in a few of every hundred requests. Complaints come
# from everywhere, most of them from users with two-line questions.

# %%
contract = Incident.classic("straggler")
contract.page

# %%
contract.ask("per_bucket")

# %% [markdown]
# Short prompts wait, too. Prefill is chunked here, so no step holds a whole contract, but one contract fills the
# token budget of many steps in a row, and everything behind it queues.

# %%
limits = ("prompt_limit", "timeouts", "smaller_chunks")
lane = lab.predict("lane", "Which change restores the SLO?", run.change_texts(*limits))
lane

# %%
contract.answer("queue", "prefill", ["per_bucket"], ["prompt_limit"], cause="straggler")
outcome, contract_beside = words.tried(contract, limits)
lane.score(outcome)

# %% [markdown]
# ### Where it hurts
#
# One of the three changes cuts off requests that take too long. In its row, compare the share within the SLO with
# *unanswered*.

# %%
contract_beside

# %% [markdown]
# The share within the SLO can even rise, because requests that were cut off no longer slow down the others. Count the
# ones that got nothing, too: a dashboard that leaves out failures shows this as a success.
#
# Some causes fire no alert at all, such as a buffering proxy: [docs/monitoring.md](../docs/monitoring.md) has a table
# of which rule sees what.
#
# ### How an incident is made
#
# A seed draws a healthy service: model, GPUs, traffic, settings, and an SLO slightly looser than its own latencies, in
# numbers that a chat product would state. A *cause* changes one thing. The simulator runs both. A draw is kept only if
# the changed service breaks its SLO by a factor of at least one and a half, the true fix restores it on held-out
# traffic, and neither the tempting one nor doubling the machines does (unless twice the machines are the fix):

# %%
import inspect

from course.incidents import generate

print(inspect.getsource(generate._try))

# %% [markdown]
# Nothing is scripted. A fix is applied without knowledge of the cause, and each change is simulated. A change $c$ is
# worth
#
# $$v(c) = \text{kept after}\cdot(1 - \text{lost}) - \text{kept before} - 0.4\,\min(\text{growth of the bill}, 1)$$
#
# *Kept* is the share of requests within the SLO. *Lost* is the share of their tokens, prompt or answer, that users no
# longer get, measured against last week. An answer that `max_tokens` cuts off counts as lost, not as short, and so
# does a request that was refused.

# %%
truth.effects

# %% [markdown]
# **How it's graded.** *Minutes to mitigation* (25): how much the best quick change did for users, and how soon; no
# diagnosis needed. *Diagnosis* (44): the cause, where the time is lost, and the evidence. *Follow-up* (31): what's
# deployed at the end, and how you ranked the changes. Apart from the evidence itself, points in the last two parts
# are scaled by how good your evidence is. A reading counts as evidence if it moved materially since last week and
# wouldn't have under the cause that looks most like yours (or the reverse). Another reading should rule that cause
# out. A right guess without evidence is worth nothing. A rollback takes ten minutes, a setting thirty, and a change
# that takes weeks can't end an incident. Once you've seen the true cause, playing it again is practice.
#
# **The raw data.** Every answer is also a DataFrame, and you can analyse the run behind it yourself.

# %%
second.ask("batch").data

# %%
longest = max(second.window.run.records, key=lambda record: record.timeline.phases()["queue"])
longest.timeline.phases()

# %% [markdown]
# How accurate are the simulator's constants for this incident's GPUs?

# %%
simulated_70b.error_band(second.window.service.deployment())

# %% [markdown]
# For more incidents, run `minillm incident --seed 7 --difficulty 3` in a terminal, or
# `IncidentDesk(Incident.generate(7, difficulty=3))` here. There's one a day, the same for everyone:
# `minillm incident --today`, or `IncidentDesk(Incident.today())`. Cases with two causes, or with misleading symptoms,
# are classics: `Incident.classic("two-limits")`, and others. For profiling dumps to work through on paper, see the
# [exercises](../exercises/12_diagnosis_dumps.ipynb).
#
# ### What articles say

# %%
in_short(
    a18(*simulated.post_mortem()),
    d23(simulated.straggler_tails()),
)

# %% [markdown]
# ## Check yourself
#
# Answers are computed from the incidents above.

# %%
check = checks(first, second, truth)
check.card()

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Whether your cause is in the list.** Real incidents can have three causes, one of them new.
# - **Real minutes.** An hour of the incident is played as a minute or two of traffic (the page says how long).
# - **Every way in which a dashboard can lie.** At difficulty 2 and 3 panels can be missing or show last week's data, and
#   the change log can leave the culprit out. But all panels share one clock, and a reading is never slightly wrong.
# - **Rollouts.** In real ones old and new run side by side.
# - **What it costs in seconds on your machines.** Step times are simulated, with the constants shown above. Trust the
#   ranking of changes more than their sizes.
#
# ## Sources
#
# - A18, the spare slots, and the three months: *Serving LLMs: The Latency Anatomy Framework*.
# - D23, the straggler: an article on techniques for lower LLM latency, from batching to streaming, with measured gains.
# - Little's law: J. Little, *A Proof for the Queuing Formula L = λW*, 1961.
# - GPU figures: NVIDIA's data sheets, as in `course/simulator/cost/gpus.json`.
