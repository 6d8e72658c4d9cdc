# %% [markdown]
# # 00 · Start here: where did the time go?
#
# A language model took four seconds to answer. What was it doing?
#
# Here one runs on your machine, inside a serving engine you can read: `minillm`. (It works like vLLM and uses vLLM's
# names.) On a laptop the model is small but real: SmolLM2, with 135 million parameters. On a GPU with enough memory it
# has eight billion. You'll watch one request move through the engine in slow motion, then eight together, and bet on
# what happens.
#
# - **Five minutes** (five): how a model answers, and the five phases of a request.
# - **The lab** (ten): eight requests, four slots, and a bet.
# - **In the interview** (ten): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (twenty, optional): the live dashboard, what neighbours cost you, 70B, the arithmetic.
#
# In JupyterLab, **Shift+Enter** runs a cell; until you run it, it shows a recorded example. Coming back? The
# [start page](start.ipynb) has your progress, four paths and a map. The main terms are in the [glossary](glossary.md).

# %%
from course.lab import Dashboard, Replay, open_lab, services, services_70b, simulated_70b
from course.lab.claims import in_short
from course.lab.control import Control
from course.lab.pictures.compare import draw_phase_bars
from course.lab.pictures.steps import draw_steps
from course.lab.predict import grew_most
from course.lessons.lesson_00 import words
from course.lessons.lesson_00.check import checks
from course.lessons.lesson_00.explorer import step_through
from course.lessons.lesson_00.pictures import draw_anatomy

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# ### How a model answers
#
# A model reads and writes **tokens**: pieces of words, about four characters of English each. It produces one at a
# time. It runs all tokens so far through its layers, and what comes out for the last one is a score for every
# possible next token. One of those is picked and appended, and the model starts over. One pass through the model is a
# **step**.
#
# Recomputing everything would be wasteful, and it isn't necessary. A layer needs only two vectors from an earlier
# token, its **key** and its **value**, and those never change. So the engine keeps them, in the **KV cache**. A later
# step reads it and computes only what's new. Move the slider; then switch the cache off.

# %%
step_through()

# %% [markdown]
# So an answer has two parts with very different costs. The first step computes the whole prompt, which is a lot of
# arithmetic, but only once. That's **prefill**. Every later step computes one token, and still has to read all of the
# model's weights (the millions or billions of numbers it's made of) to do it. That's **decode**.
#
# A server runs many requests in the same step. Each running request holds a **slot**. There's a fixed number of
# slots, and the other requests wait.
#
# ### Five phases
#
# | phase | begins | ends | the request is ... |
# |---|---|---|---|
# | **queue** | it arrives | the first step that includes it begins | waiting to be scheduled |
# | **prefill** | that step begins | its whole prompt has been computed | having its prompt processed |
# | **first token** | the prompt is computed | the first token is handed over | having that token chosen (*sampling*) and turned into text |
# | **decode** | first token | last token | generating one token per step |
# | **stream** | last token | the client has the last byte | on the wire |
#
# Every moment belongs to exactly one phase, so the five add up to the end-to-end latency, **E2E**. Two numbers sum
# them up for a user. **TTFT**, time to first token, covers the first three. **ITL**, inter-token latency, is the gap
# between each token and the next.
#
# ### One request, in slow motion
#
# The run below sends one prompt of about 250 tokens. The engine prefills at most 64 of them per step, so you can watch
# it happen. The replay stretches the recorded run to twelve seconds; press ▶, or drag the slider. (The first run also
# loads the model; a line above the result says what the cell is waiting for.)

# %%
one = lab.run(services.together(1, lab), long_prefill_token_threshold=64)
Replay(one)

# %% [markdown]
# Each blue block is a **chunk**: the prompt tokens computed in one step. The orange flag is the first token. Each
# green block is one more step and one more token. With the server to itself, this request spends almost no time in
# the other three phases. Here's the same run to scale, with each phase labelled:

# %%
draw_anatomy(one)

# %% [markdown]
# ## The lab
#
# Eight such prompts arrive at the same instant. The engine has four slots. Commit before you look; that's what makes
# the answer stick. If two phases grow by nearly the same (within a tenth), either answer counts.

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
# So latency isn't one number. It's five, and each has its own causes. A queued request usually waits for a slot. But
# it may also wait for memory, for room in the next step, or just for the running step to end.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "First I'd find out where the time goes: queue, prefill, first token, decode, or streaming. TTFT covers the first
# > three and ITL the fourth, so I'd ask for both. They have different causes, so they have different fixes."
#
# **Follow-ups**
#
# <details><summary>"You have free slots, and requests still queue. Why?"</summary>
#
# A slot is only one of four things a request needs before it's scheduled. It also needs room in the step's token
# budget (a long prompt may be using it up), free KV blocks (memory may be full), and the running step to end. I'd put
# requests waiting, KV usage and tokens per step on one chart.
#
# </details>
# <details><summary>"E2E p99 doubled and TTFT didn't move. Where do you look?"</summary>
#
# After the first token, in decode or stream. I'd compare output lengths first, because longer answers can double E2E
# without anything being wrong. If ITL grew, I'd look for fuller batches, other requests' prompts in the same steps,
# and preemptions. If the server's ITL is flat and the client's isn't, it's a proxy or the network.
#
# </details>
#
# **"Our chatbot is slow. What do you do?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Add GPUs, or quantize the model." | "Is it TTFT or ITL? I'd measure both before choosing a fix." | "Slow for which requests, since when, measured where? I'd split TTFT into queue and prefill, look at ITL next to batch size, and find the phase that grew. Then the cheapest fix for that phase, and the number that will tell us it worked." |
#
# **Three numbers to know cold**

# %%
words.cold()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>n equal requests arrive together, and c of them fit. What is the last one's TTFT?</summary>
#
# 1. In a full batch, a request holds its slot for S = P + D: prefill, then decode.
# 2. They run in ⌈n/c⌉ waves. Wave k starts after (k − 1) S.
# 3. So the last one queues (⌈n/c⌉ − 1) S and has TTFT = (⌈n/c⌉ − 1) S + P.
# 4. Eight requests, four slots: TTFT = S + P, E2E = 2 S. Averaged over all eight, the queue is S/2.
# 5. With c doubled there's one wave and no queue. But each step now carries 2c requests, so S becomes S′.
# 6. The last one's E2E falls if S′ < 2 S. When steps are mostly reading weights, S′ is barely more than S.
#
# </details>
#
# ## Check yourself
#
# The answers are computed from the runs above, and there's partial credit. The checks ship with the course, so you
# could look them up, but you'd only be fooling yourself.

# %%
check = checks(one, eight)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### The live dashboard
#
# This is the same engine, live. It opens with a recorded run. Pick traffic, press **Run**, change one control, press
# **Run** again: the large figures say how much each number changed, and whether that's better or worse. The previous
# run stays as a thin bar and as outlines. Each control sits under the phase it acts on; what you changed is marked,
# and ↺ resets it. **Stop** takes effect within one step, **Pin** keeps a run to compare with, **Patterns** hatches
# the colours.
#
# A few terms before you play. The **token budget** is the most tokens a step may compute. The KV cache lives in
# fixed-size **KV blocks**; when they run out, a request is **preempted**: it loses its blocks and is recomputed later.
# The **queue limit** is how many requests may wait; beyond it, new ones are refused. *rag* (retrieval-augmented
# generation) is traffic whose prompts begin with retrieved text.
#
# Move the pointer over the timeline, and every panel shows that moment, KV blocks included. A click freezes it and
# picks a request.
#
# On a real machine no two runs are exactly equal. Run the same settings twice, and the dashboard learns how much runs
# vary on yours. **≈** means that a difference is no larger than that, and a question mark that there aren't enough
# repeats to tell.

# %%
dashboard = Dashboard(lab, "chat")
dashboard

# %% [markdown]
# The buttons beside *Try* are experiments. Each asks for a bet, does both runs, and keeps the first one as A.
#
# <details><summary>What to expect</summary>
#
# - *burst, 12 slots*: no request waits for a slot, but every decode step carries twelve tokens instead of four. What
#   that costs depends on the machine: on a GPU ITL grows by a few percent, on a few CPU cores by half or more. More
#   slots trade queue for ITL.
# - *rag, no caching*: you'll bet on this one below.
# - *chat, no caching*: no phase moves beyond the noise, because no two prompts share a prefix.
# - *long document, budget 64*: the chats' longest gaps shrink, because no step holds more than 64 tokens. The
#   document's own TTFT usually grows, because it takes more steps, and each one reads all the weights again.
# - *mixed, 24 blocks*: memory runs out before slots do. The request admitted last is preempted, and its tokens are
#   computed a second time.
# - *burst, queue limit 4*: the requests that got in wait less. The ones that were refused have no TTFT at all, so they
#   vanish from the average. Always report refusals next to latency.
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
# **Prefix caching** keeps a prompt's keys and values, and reuses them for the next prompt that begins the same way.
# In *rag* traffic every prompt begins with the same handbook. In *chat* every prompt is different. (Real traffic is
# less tidy. RAG often retrieves different passages for each question, and a conversation's next turn repeats the
# earlier ones.)

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

# %% [markdown]
# ### The same at 70B
#
# The scheduler that just served you doesn't know which model it drives. A **simulator** can stand in for Llama-3 70B
# on four H100s (NVIDIA's data-centre GPU): it prices each step instead of computing it, and moves a virtual clock
# forward. Here it gets one prompt alone, then eight together, with the same slots and lengths as above, but prefills
# each prompt in one step.

# %%
on_70b = {"one alone": services_70b.together(1), "eight together": services_70b.together(8)}
services_70b.phases_table(on_70b)

# %% [markdown]
# Compare that with the bars of your own two runs. On four H100s such a prefill takes as long as one or two decode
# steps; on a few CPU cores, as long as ten or more. The queue forms either way, and for the same reason. Every
# simulated number in this course comes with an error band, which says how far such forecasts have been from published
# measurements. (*tp* is the number of GPUs that share a model.)

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ### The arithmetic, the code, the claim
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
# **The claim, measured.** This course tests what articles say, and keeps a [ledger](14_claims_ledger.ipynb).

# %%
in_short(
    words.a1([one, eight, with_cache, without]),
)

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
# Raise `--rate` step by step. At first the phases barely move. Once `vllm:num_requests_waiting`
# (`sglang:num_queue_reqs`) stays above zero, queue time grows for as long as you send, while prefill and decode
# stay about where they are: with four slots, no step gets fuller. What happens to a token after it has left the engine
# isn't in these histograms, so compare them with the TTFT that the client measures.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Proportions elsewhere.** On a few CPU cores prefill is expensive, and a decode step of a small model takes five to
#   thirty milliseconds. On four H100s a decode step of a model 500 times as large takes about as long (17 ms for eight
#   requests on ML.ENERGY's leaderboard, vLLM; the simulator above is a little slower: [compared](../docs/simulator.md)).
#   Phases, order and causes carry over; shares don't.
# - **The network.** Client and engine share one process here, so *stream* is close to zero. Behind a slow proxy it
#   isn't.
# - **Statistics.** Eight requests are an illustration. Percentiles need far more; lesson 01 says how many.
#
# ## Sources
#
# - Claim A1: *Serving LLMs: The Latency Anatomy Framework* (the five phases under those names).
# - The scheduling rule, with running requests first under one token budget: vLLM, `vllm/v1/core/sched/scheduler.py`.
#   Chunked prefill: Agrawal et al., *Sarathi-Serve*, 2024. Iteration-level scheduling: Yu et al., *Orca*, 2022.
# - Predicting before looking: Crouch et al., *Classroom demonstrations: learning tools or entertainment?*, 2004.
