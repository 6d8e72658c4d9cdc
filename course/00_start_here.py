# %% [markdown]
# # 00 · Start here: where did the time go?
#
# A language model took four seconds to answer. What was it doing?
#
# In this lesson a language model runs on your machine inside a serving engine you can read: `minillm`. (It works the way
# vLLM does, the most widely used open-source engine, and uses vLLM's names.) On a laptop the model is small but real:
# SmolLM2, 135 million parameters. On a GPU with room for it, it's one of eight billion.
# You'll watch one request move through it in slow motion, then eight at once. By the end you'll be able to name the
# five phases of any request, and tell which one grew.
#
# - **Surface** (fifteen minutes): run the cells from the top with Shift+Enter, and stop where you're asked to predict.
# - **Guided** (twenty minutes): you drive.
# - **Deep dive** (five): the arithmetic, and the code that records the timestamps.
#
# Coming back, or looking for something specific? The [start page](start.ipynb) has the map, three paths, and where you
# left off.

# %%
from course.lab import Dashboard, Replay, open_lab, phase_table, services, services_70b, simulated_70b
from course.lab.control import Control
from course.lab.pictures.compare import draw_phase_bars
from course.lab.pictures.steps import draw_steps
from course.lab.predict import grew_most
from course.lessons.lesson_00 import words
from course.lessons.lesson_00.check import checks
from course.lessons.lesson_00.pictures import draw_anatomy
from course.lessons.lesson_00.words import a1

lab = open_lab()

# %% [markdown]
# ## Surface
#
# Text goes in and out as **tokens**, pieces of words of about four English letters. The engine works in **steps**, each
# a single pass through the model. A step computes some tokens for every request that holds a **slot**, one of a fixed
# number. A request passes through five phases:
#
# | phase | begins | ends | the request is ... |
# |---|---|---|---|
# | **queue** | it arrives | the first step that includes it begins | waiting to be scheduled |
# | **prefill** | that step begins | its whole prompt has been computed | having its prompt processed |
# | **first token** | the prompt is computed | the first token is handed over | having that token chosen (*sampled*) and turned into text |
# | **decode** | first token | last token | generating one token per step |
# | **stream** | last token | the client has the last byte | on the wire |
#
# A queued request waits for a slot, mostly. It can also wait for memory, for room in the next step, or just for the
# running step to end. Each phase begins where the previous one ended, so they add up to **end-to-end** time (E2E) exactly. Tokens go out as
# they're generated; *stream* is only what's left to send after the last one.
#
# Two numbers sum them up for the user. **TTFT**, time to first token, covers the first three phases. **ITL**,
# inter-token latency, is the gap between each token and the next, from then on.
#
# ### One request, in slow motion
#
# The next cell sends one prompt of about 250 tokens and lets the engine prefill at most 64 of them per step. Then it
# replays the recorded timestamps, stretched to twelve seconds. Press ▶, or drag the slider. The first run of a lesson
# also loads the model; a line above the result says what the cell is waiting for.

# %%
one = lab.run(services.together(1, lab), long_prefill_token_threshold=64)
Replay(one)

# %% [markdown]
# On the left, each row's label gives the request's number, its prompt tokens and its output tokens. Each blue block is
# a **chunk**: the prompt tokens computed in one step. The orange flag is the first token. Each green block is one more
# step and one more token. Queue, first token and stream are slivers for a request that has the server to itself, so the
# next picture draws all phases equally wide.

# %%
draw_anatomy(one)

# %%
phase_table(one)

# %% [markdown]
# ### Predict
#
# Now eight such prompts arrive at the same instant. This engine has four slots: it runs at most four requests at once.
# Commit before you look; that's what makes the answer stick. Choose, then press **Lock it**: in JupyterLab that
# runs the cell below. If two phases' growth differs by less than a tenth, either answer counts.

# %%
bet = lab.predict(
    "eight",
    "Eight arrive together, four slots. Compared with one request alone, which phase grows by the most seconds?",
    ["queue", "prefill", "first token", "decode", "stream"],
)
bet

# %%
eight = lab.run(services.together(8, lab), long_prefill_token_threshold=64)
bet.score(grew_most(one, eight))

# %% [markdown]
# Each row is a request, in order of arrival; it keeps its row in every picture of this course. Grey is waiting. Press ▶
# to follow the last one, #7, through its phases.

# %%
Replay(eight, row=7)

# %%
draw_phase_bars({"one alone": one, "eight together": eight})

# %%
words.eight_together(one, eight)

# %% [markdown]
# So latency isn't one number. It's five, and each has its own causes.

# %% [markdown]
# ## Guided
#
# The same engine, live. It opens with a recorded run. Pick traffic, press **Run**, change one control, press **Run**
# again: the large figures say by how much each number changed, and whether that's better or worse; the previous run stays
# as a thin bar and as outlines. Controls stand under the phase that they act on; what you changed is marked, and ↺ takes
# it back. **Stop** takes effect within one step, **Pin** keeps a run to compare with, **Patterns** hatches the colours.
#
# Move over the timeline, and everything shows that moment, the KV blocks too; a click freezes it, and picks a request
# whose text you want to read. A request's blocks have the same tint as its row.
#
# On a real machine two equal runs are never quite equal. Run the same settings twice, and the dashboard learns how far
# apart they lie on this one: **≈** means that a difference is no larger than that, and a question mark that there aren't
# enough repeats yet to tell.

# %%
dashboard = Dashboard(lab, "chat")
dashboard

# %% [markdown]
# The buttons beside *Try* are experiments: each asks for a bet, makes both runs, and keeps the first one as A. Some terms
# first. The **token budget** is the most tokens a step may compute. For every token, the model keeps two vectors per
# layer that later tokens look up, its **key** and its **value**: that's the **KV cache**, held in **KV blocks**. A
# **preempted** request loses its blocks and is recomputed later. The **queue limit** is how many requests may wait;
# beyond it, new ones are refused. *rag* (retrieval-augmented generation) is traffic whose prompts begin with retrieved
# text.
#
# <details><summary>What to expect</summary>
#
# - *burst, 12 slots*: no request waits for a slot, but every decode step carries twelve tokens instead of four. What
#   that costs depends on the machine: on a GPU ITL grows by a few percent, on a few CPU cores by half or more. More
#   slots trade queue for ITL.
# - *rag, no caching*: prefill grows, unless the handbook is so short for your machine that a step with it takes no
#   longer; where requests overlap, decode and queue grow, too. The next section runs this one.
# - *chat, no caching*: no phase moves, beyond noise; no two prompts share a prefix.
# - *long document, budget 64*: the chats' longest gaps shrink, because no step holds more than 64 tokens. The
#   document's own TTFT grows: more steps, and each one reads all the weights again.
# - *mixed, 24 blocks*: memory runs out before slots do. The request admitted last is preempted, and its tokens are
#   computed a second time.
# - *burst, queue limit 4*: the requests that got in wait less. The ones that were refused have no TTFT at all, so they
#   vanish from the average. Always count refusals next to latency.
#
# </details>
#
# ### Your neighbours' prompts are in your steps
#
# Four requests arrive one after the other, so the first is already decoding when the others are prefilled, 64
# prompt tokens per step.

# %%
mixing = lab.predict(
    "mixing",
    "A step that decodes and also prefills 64 tokens: how many times as long as a step that only decodes?",
    unit="x",
    between=(1, 20),
)
mixing

# %%
staggered = lab.run(services.staggered(4, lab), long_prefill_token_threshold=64)
mixing.score(words.mixed_steps(staggered))

# %%
draw_steps(staggered)

# %%
words.gaps(staggered)

# %% [markdown]
# ### A technique that helps, and where it does nothing
#
# **Prefix caching** keeps the KV cache of a prompt's beginning and reuses it for the next prompt that begins the same
# way. In *rag* traffic every prompt begins with the same handbook. In *chat* every prompt is different.

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
words.rag(with_cache, without)

# %%
chat_on = lab.run("chat")
chat_off = lab.run("chat", enable_prefix_caching=False)
draw_phase_bars({"cache on": chat_on, "cache off": chat_off}, "Prefix caching, chat")

# %%
Control("Chat, with nothing to reuse", chat_on, chat_off, q=50)

# %%
words.chat(chat_on, chat_off)

# %% [markdown]
# ### The same at 70B
#
# You probably don't have four H100s (NVIDIA's data-centre GPU) to yourself. But the scheduler that just served you
# doesn't know which model it drives. A **simulator** can stand in for Llama-3 70B, a model of 70 billion parameters: it
# prices each step instead of computing it, and moves a virtual clock forward by that price. Here it gets one prompt
# alone, then eight at once, with the same four slots and the same prompt and answer lengths. Prompts aren't cut into
# chunks.

# %%
on_70b = {"one alone": services_70b.together(1), "eight together": services_70b.together(8)}
services_70b.phases_table(on_70b)

# %% [markdown]
# Compare it with the table of your own run. Four H100s prefill such a prompt in the time it takes to decode a token or
# two; on a few CPU cores it takes ten or more. The queue forms either way, for the same reason. Every simulated number in
# this course comes with an error band: how far its step times were off from published measurements (*tp*: GPUs that
# share a model).

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ## Deep dive
#
# **The arithmetic.** With the six timestamps $t_0 \le t_1 \le \dots \le t_5$ (arrival, scheduled, prefill end, first
# token, last token, finished):
#
# $$\text{E2E} = t_5 - t_0 = \sum_{i=0}^{4} (t_{i+1} - t_i), \qquad \text{TTFT} = t_3 - t_0, \qquad
# \text{TPOT} = \frac{\text{E2E} - \text{TTFT}}{n - 1}$$
#
# TPOT, time per output token, averages over a request of $n$ output tokens. ITL keeps every gap.
#
# **The code.** It's all in one small class. The engine records the timestamps as things happen
# (`minillm/frontend/engine.py`, search for `timeline`); every number in this course is computed from them.

# %%
import inspect

from minillm.core.timeline import Timeline

print(inspect.getsource(Timeline.borders))
print(inspect.getsource(Timeline.phases))

# %% [markdown]
# **The claim, measured.** Articles about latency make claims. This course tests each one on this engine and keeps a
# [ledger](14_claims_ledger.ipynb).

# %%
a1([one, eight, with_cache, without])

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --max-num-seqs 4
# sglang serve --model-path Qwen/Qwen3-8B --max-running-requests 4 --enable-metrics --port 8000
# minillm bench serve --url http://127.0.0.1:8000 --rate 4 --num-requests 200 --body ignore_eos=true
# ```
#
# Start one of the two, send it traffic, and read `curl -s http://127.0.0.1:8000/metrics`. The phases are histograms
# there: `vllm:request_queue_time_seconds`, `vllm:request_prefill_time_seconds` (up to the first token) and
# `vllm:request_decode_time_seconds`; in SGLang `sglang:queue_time_seconds` and `sglang:time_to_first_token_seconds`.
#
# Raise `--rate` step by step. At first no phase moves. Once `vllm:num_requests_waiting` (`sglang:num_queue_reqs`) stays
# above zero, queue time grows for as long as you send, while prefill and decode barely follow: the model didn't get
# slower, it got shared. What happens to a token after it has left the engine isn't in these histograms. That's what the
# client's TTFT has on top.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## Say it in an interview
#
# > "Before I suggest anything, I'd want to see where the time goes: queue, prefill, first token, decode, or streaming.
# > I'd ask for TTFT and ITL separately. TTFT covers the first three phases and ITL the fourth. They have different
# > causes, so they have different fixes."
#
# ## Check yourself
#
# The answers are computed from the runs above. There's partial credit. The checks
# ship with the course, so you could look the answers up; you'd only be fooling yourself.

# %%
check = checks(one, eight)
check.card()

# %% [markdown]
# That's the anatomy. You can now take any slow request apart into five phases and say which one grew. A dashboard that
# shows only end-to-end p99 can't.
#
# ## What this lab cannot tell you
#
# - **Proportions elsewhere.** On a few CPU cores prefill is expensive, and a decode step of a small model takes five to
#   thirty milliseconds. On four H100s a decode step of a model 500 times as large takes about as long (17 ms for eight
#   requests; ML.ENERGY leaderboard, vLLM). Phases, order and causes carry over; shares don't.
# - **The network.** Client and engine share one process here, so *stream* is close to zero. Behind a slow proxy it
#   isn't.
# - **The cost of looking.** Telling the browser eight times a second what happened takes under 1% of a core; but the
#   browser draws sixty pictures a second from it, on this machine. Runs without the dashboard (`lab.run`) are a little
#   faster.
# - **Statistics.** Eight requests are an illustration. Percentiles need far more; lesson 01 says how many.
#
# ## Sources
#
# - Claim A1: *Serving LLMs: The Latency Anatomy Framework* (the five phases under those names).
# - The scheduling rule, with running requests first under one token budget: vLLM, `vllm/v1/core/sched/scheduler.py`.
#   Chunked prefill: Agrawal et al., *Sarathi-Serve*, 2024. Iteration-level scheduling: Yu et al., *Orca*, 2022.
# - Predicting before looking: Crouch et al., *Classroom demonstrations: learning tools or entertainment?*, 2004.
