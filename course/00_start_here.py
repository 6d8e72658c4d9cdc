# %% [markdown]
# # 00 · Start here: where did the time go?
#
# A language model took four seconds to answer. Which four seconds?
#
# In this lesson a small real model (SmolLM2, 135 million weights) runs on your machine, inside a serving engine that
# you can read: `minillm`. You will watch one request move through it in slow motion, then eight at once. By the
# end you can name the five phases of any request, and say which one grew.
#
# - **Surface** takes five minutes. Run the cells from the top with Shift+Enter, and stop where you are asked to predict.
# - **Guided** hands you the controls.
# - **Deep dive** shows the arithmetic, and the code that keeps the time.
#
# Coming back, or looking for one thing? The [start page](start.ipynb) has the map, three paths, and where you stopped.

# %%
from course.lab import Dashboard, Replay, open_lab, phase_table, services, services_70b, simulated_70b
from course.lab.control import Control
from course.lab.lesson_00.checks import checks
from course.lab.lesson_00.claims import a1
from course.lab.pictures.compare import draw_phase_bars
from course.lab.pictures.steps import draw_steps
from course.lab.predict import grew_most

lab = open_lab()

# %% [markdown]
# ## Surface
#
# Text goes in and out as **tokens**: pieces of words, about four letters of English each. The engine works in
# **steps**. In one step it computes some tokens for everybody who has a seat. A request passes through five phases:
#
# | phase | begins | ends | the request is ... |
# |---|---|---|---|
# | **queue** | it arrives | the first step that includes it begins | waiting for a seat |
# | **prefill** | that step begins | its whole prompt has been computed | having its prompt read |
# | **first token** | the prompt is computed | the first token is handed over | getting its first token picked and turned into text |
# | **decode** | first token | last token | written, one token a step |
# | **stream** | last token | the client has the last byte | leaving the building |
#
# Each phase begins where the one before it ended. So they add up to the whole, the **end-to-end** time (E2E),
# and no second can hide between them.
#
# Two numbers sum them up for a reader. **TTFT**, time to first token: the first three phases together. **ITL**,
# inter-token latency: the gaps between tokens after that.
#
# ### One request, in slow motion
#
# The cell below sends one prompt of a little over 200 tokens, and lets the engine read at most 64 of them a step. Then it
# plays the recorded stamps back at a quarter of the speed. Press ▶, or drag the handle. The first run of a lesson loads
# the model, which takes longer than the run: a line above the result says what the cell is waiting for.

# %%
one = lab.run(services.together(1, lab), long_prefill_token_threshold=64)
Replay(one, speed=0.25)

# %% [markdown]
# The numbers in the blue blocks are **chunks**: prompt tokens computed in one step. The orange flag is the first
# token. Each green block is one more step, and one more token. Queue, first token and stream are there too, but for
# a lone request they are too thin to see. The table has them; its last row is their sum.

# %%
phase_table(one)

# %% [markdown]
# ### Predict
#
# Now eight such prompts arrive in the same instant. This engine has four **seats**: it computes at most four
# requests at once. Commit yourself before you look; that is what makes the answer stick. Choose, press **Lock it**, and
# only then run the next cell. If two phases grow alike, within a tenth, either answer counts.

# %%
bet = lab.predict(
    "eight",
    "Eight arrive together, four seats. Compared with one request alone, which phase grows by the most seconds?",
    ["queue", "prefill", "first token", "decode", "stream"],
)
bet

# %%
eight = lab.run(services.together(8, lab), long_prefill_token_threshold=64)
bet.score(grew_most(one, eight))

# %% [markdown]
# Here they are. A row is a request, in order of arrival; it keeps its row in every picture of this course. Grey is
# waiting. Press ▶ to follow the last one, #7, through its phases.

# %%
Replay(eight, row=7)

# %%
draw_phase_bars({"one alone": one, "eight together": eight})

# %% [markdown]
# Compare the bars, phase by phase. If *queue* grew: the last four requests **waited for a seat**. If *prefill* grew: a
# step that reads four prompts takes longer than a step that reads one. And *decode*? One pass over the model's weights
# writes the next token of all four; did it grow as much? The model did not get slower. It got shared.
#
# That is the surface: *latency is not one number, it is five, and each has causes of its own.*

# %% [markdown]
# ## Guided
#
# The same engine, live. Choose traffic, press **Run**, change one control, press **Run** again: the previous run
# stays as a thin outline, and the table says what each phase gained or lost. **Stop** ends everything within a step.
# Rest the mouse on a control to see what it does. After two runs it looks like this:
#
# ![The dashboard after two runs: the five-phase timeline with the previous run as thin outlines, the engine's steps, the
# KV block map, the distributions of TTFT and ITL, and the difference per phase](images/dashboard.png)

# %%
dashboard = Dashboard(lab, "chat")
dashboard

# %% [markdown]
# Things to try. Say what you expect before each second run. Four words in the table: the **token budget** is the most tokens
# of a step. **KV blocks** are room for the engine's notes about tokens. A request is **preempted** when its blocks are taken
# away; it is computed again later. The **queue limit** is how many may wait; whoever comes then is refused.
#
# | traffic | first run | then change | watch |
# |---|---|---|---|
# | burst | as it is | seats 4 → 12 | queue melts; what does decode pay? |
# | rag | as it is | prefix caching off | prefill; and which phase moves with it? |
# | chat | as it is | prefix caching off | does anything move at all? |
# | long document | token budget 1024 | token budget 64 | everybody's ITL, against the document's TTFT |
# | mixed | as it is | KV blocks → 48 | dashed gaps: who is preempted, and what is computed twice? |
# | burst | as it is | queue limit 4 | TTFT gets better. At whose expense? |
#
# ### A technique that helps, and where it does nothing
#
# **Prefix caching** keeps the computed beginning of a prompt, its **KV cache** (keys and values, the model's notes
# about each token it has read), and reuses it for the next prompt that begins the same way. In *rag* traffic,
# every prompt begins with the same handbook. In *chat*, every prompt is different. Choose and lock, as before.

# %%
caching = lab.predict(
    "prefix",
    "Turning prefix caching off, on rag traffic: which phase grows by the most seconds per request?",
    ["queue", "prefill", "first token", "decode", "stream"],
)
caching

# %%
with_cache = lab.run("rag")
without = lab.run("rag", enable_prefix_caching=False)
caching.score(grew_most(with_cache, without))

# %%
draw_phase_bars({"cache on": with_cache, "cache off": without}, "Prefix caching, rag")

# %%
chat_on = lab.run("chat")
chat_off = lab.run("chat", enable_prefix_caching=False)
draw_phase_bars({"cache on": chat_on, "cache off": chat_off}, "Prefix caching, chat")

# %%
Control("Chat, with nothing to reuse", chat_on, chat_off, q=50)

# %% [markdown]
# On rag traffic a prefill that is skipped frees the engine for the others, so phases move that the technique does not
# touch. If decode grew most: your neighbours' prompts are read in the very steps that write your tokens, so each of your
# gaps waits for them. A request has many such steps, and one prefill.
#
# On chat there is nothing to reuse; what difference you see is noise between two runs. Remember its size: a "gain"
# smaller than that is no gain.

# %% [markdown]
# ### The same at 70 billion weights
#
# Nobody reads this on four H100s. But the scheduler that just served you can be told that its model is Llama-3 70B: a
# **simulator** prices each step instead of computing it, and a virtual clock moves on by that price. One prompt alone, then
# eight at once, four seats, prompts and answers as long as above.

# %%
on_70b = {"one alone": services_70b.together(1), "eight together": services_70b.together(8)}
services_70b.phases_table(on_70b)

# %% [markdown]
# Compare with the table of your own machine. The times are others, and so are their shares: a GPU reads a
# whole prompt in the time of a token or two. Which phases grew is the same, and for the same reasons. How far to believe such
# numbers is part of them:

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ## Deep dive
#
# **The arithmetic.** With the six stamps $t_0 \le t_1 \le \dots \le t_5$ (arrival, scheduled, prefill end, first token,
# last token, finished):
#
# $$\text{E2E} = t_5 - t_0 = \sum_{i=0}^{4} (t_{i+1} - t_i), \qquad \text{TTFT} = t_3 - t_0, \qquad
# \text{TPOT} = \frac{\text{E2E} - \text{TTFT}}{n - 1}$$
#
# TPOT, time per output token, is an average over a request of $n$ output tokens. ITL keeps every gap.
#
# **The code.** All of it is one small class. The engine writes the stamps as things happen (`minillm/frontend/engine.py`,
# search for `timeline`); every number in this course is computed from them.

# %%
import inspect

from minillm.core.timeline import Timeline

print(inspect.getsource(Timeline.borders))
print(inspect.getsource(Timeline.phases))

# %% [markdown]
# **One step at a time.** Requests do not have steps; steps have requests. Each bar is one step of the run with eight: as
# wide as the step took, as high as the tokens it computed. A step with prompt tokens in it takes far longer than one
# that only decodes, and everybody in it waits for all of it. That is why ITL jumps while somebody else is in prefill.

# %%
draw_steps(eight)

# %% [markdown]
# **The claim, measured.** Articles about latency make claims. This course puts each to the test, on this engine, and
# keeps a ledger.

# %%
a1([one, eight, with_cache, without])

# %% [markdown]
# ## Say it in an interview
#
# > "Before I suggest anything I would like to see where the time goes: waiting in the queue, reading the prompt, the
# > first token, writing, and delivery. TTFT covers the first three, ITL the fourth. They have different causes, so
# > they have different fixes."
#
# ## Check yourself
#
# Keys are computed from the runs above. Replace the dots, run the cell. There is partial credit, and the checks ship with
# the course, so nobody but you is being fooled.

# %%
check = checks(one, eight)

check("q1", ...)  # which phase takes most of the lone request's time? "queue", "prefill", ...

# %%
check("q2", ...)  # TTFT of request #7 in the run with eight, in seconds; read it off the timeline

# %%
check("q3", ...)  # the three phases that TTFT is made of, in order: ["...", "...", "..."]

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Proportions on a GPU.** On a few CPU cores prefill is dear, and a step takes tens of milliseconds. On four H100s a decode
#   step of a model 500 times as large takes about as long (17 ms for eight requests; ML.ENERGY leaderboard, vLLM). The phases, their order and
#   their causes stay the same; their shares do not.
# - **The network.** Client and engine share one process here, so *stream* is microseconds. Across a slow proxy it is not.
# - **The cost of looking.** Drawing eight pictures a second takes some of the machine. Runs without the dashboard
#   (`lab.run`) are a little faster.
# - **Statistics.** Eight requests are an illustration. Percentiles need hundreds; lesson 01 says how many.
#
# ## Sources
#
# - Claim A1: *Serving LLMs: The Latency Anatomy Framework* (the five phases under those names).
# - The scheduling rule, and running requests first under one token budget: vLLM, `vllm/v1/core/sched/scheduler.py`.
#   Chunked prefill: Agrawal et al., *Sarathi-Serve*, 2024. Steps instead of batches: Yu et al., *Orca*, 2022.
# - Predicting before looking: Crouch et al., *Classroom demonstrations: learning tools or entertainment?*, 2004.
