# %% [markdown]
# # 05 · First token: what TTFT is made of
#
# "Our time to first token doubled, and we didn't touch the model." Where did the time go?
#
# **TTFT**, the time from pressing Enter to the first word, is the first number a user feels. It has many parts, and on
# a busy server most of it can belong to *other requests*. In this lesson you split one TTFT by cause until nothing is
# left over, then change the scheduling policy and watch the parts move from one request to another.
#
# - **Five minutes** (five): one first token, alone and beside others; three policies, and a bet.
# - **The lab** (ten): run any policy, overload it, then the same at 70B, with the network.
# - **In the interview** (ten): the line, follow-ups, three numbers, a derivation, and a check.
# - **Going deeper** (fifteen, optional): when requests never meet (with a bet), structured output, async scheduling,
#   how the split is made.

# %%
from course.lab import open_lab, simulated_70b, ttft_causes
from course.lab.claims import in_short
from course.lab.display import stack
from course.lessons.lesson_05 import pictures, run, words
from course.lessons.lesson_05.check import checks
from course.lessons.lesson_05.pictures import draw_rhythm, draw_waterfall
from course.lessons.lesson_05.run import over_http
from course.lessons.lesson_05.words import b3, b3_at_70b, d19, d21, moves_here, pairs

# More slots than requests: nothing here ever waits for a slot.
lab = open_lab(max_num_seqs=run.SLOTS)

# %% [markdown]
# ## Five minutes
#
# In one **step** an engine computes pieces of new prompts (**prefill**) and one more token for every request that's
# already decoding. A step ends for all of its requests together. So you wait for every request in your step.
#
# The next cell starts a real server, `minillm serve`, on a real port. Three requests come one after the other. Then
# they come again, close together, while others are decoding. The picture splits the last one's TTFT by cause. Each bar
# begins where the one above it ended, and the thin outline is the same request, alone.
#
# - **Queue**: until a step that includes the request begins. There are slots for all, but the step before it may still
#   be running.
# - **Others' prompts, others' answers**: what other requests in the same steps added to them.
# - **Own prefill**: what this request's own tokens added.
# - **Fixed cost**: what those steps would take however few tokens were in them (the weights are read once for all of
#   them).
# - The rest is the way in and out: HTTP, JSON, tokenizing, sampling, detokenizing.

# %%
policies = run.policies(lab)
pace = run.pace(lab)  # how long a newcomer takes here: sets the rhythm of arrivals in this lesson
alone = over_http(lab, run.with_rules(lab, 3))
met = over_http(lab, run.with_rules(lab, 3, pace))
draw_waterfall(met.causes[-1], alone.causes[-1], "The last one to arrive: what is its first token waiting for?")

# %%
words.waterfall(met.causes[-1], alone.causes[-1])

# %% [markdown]
# There's no single right way to split a step among the requests in it. Here each request is charged for how much
# *longer* its tokens made the step, and no request is charged for the fixed cost. All three prompts begin with the
# same rules; once those are in the **prefix cache**, they aren't prefilled again.
#
# ### Predict
#
# So it should matter which tokens go into a step. Four **writers** are decoding long answers when five **newcomers**
# arrive, one after another, each with a long prompt. Compare three policies, each a few fields of `EngineConfig`:
#
# - **prefill first**: a newcomer's whole prompt goes into the very next step. Writers get one token out of that long
#   step.
# - **mixed**: a step has a small token budget (32 on a CPU; on a GPU a few hundred, about where more tokens begin to
#   take time, as in [lesson 03](03_prefill.ipynb)). Writers' tokens go in first; what's left of the budget goes to a
#   **chunk** of a prompt.
# - **decode first**: no prompt is prefilled while any answer is being decoded.

# %%
bet = lab.predict(
    "policy",
    "How many times as long is a writer's p99 gap between tokens under 'prefill first' as under 'mixed'?",
    unit="x",
    between=(1, 50),
)
bet

# %%
runs = {name: lab.run(run.company(lab, pace), **fields) for name, fields in policies.items()}
bet.score(words.pauses(runs))

# %% [markdown]
# Read each strip from left to right, as the writer would. Every green tick is a token.

# %%
stack(draw_rhythm(runs), pictures.draw_runs(runs), words.policies(runs))

# %% [markdown]
# ## The lab
#
# ### Run a policy yourself
#
# Pick a policy and an arrival rate, then press *Run it*. The real engine gets the same arrivals each time. (There's no
# server in front here, so the way in and out is missing, and tokenizing is part of the queue.) Rates are shares of
# what this machine can prefill, measured with four newcomers together: **calm** is a quarter of it, **busy** (the run
# above) about 60%, and **rush** twice what it can take. Every run stays in the picture, so you can compare.

# %%
bench = pictures.PolicyBench(lab, pace, runs)
bench.explorer()

# %% [markdown]
# <details><summary>Four things to try, answered</summary>
#
# - *rush, prefill first*: gaps become long and frequent; writers get one token per prompt.
# - *rush, mixed*: newcomers queue for chunks. Writers are better off, newcomers worse.
# - *busy, mixed, the smallest budget, then the largest*: the larger budget shortens TTFT and lengthens the gaps.
# - *calm, all three*: there's little left to decide.
#
# </details>
#
# ### Where each policy hurts
#
# Now prompts arrive faster than they can be prefilled:

# %%
rush = run.company(lab, pace, gap=run.PACES["rush"])
rushed = {name: lab.run(rush, **fields) for name, fields in policies.items()}
stack(draw_rhythm(rushed), words.rush(rushed))

# %% [markdown]
# ### The same question at 70B
#
# Llama-3 70B on four **replicas** of four H100s each, simulated, with two chunk sizes. The last bar is
# **disaggregated**: some replicas only prefill, the others only decode ([lesson 05b](05b_disaggregation.ipynb) takes
# that apart). Set the load and press *Simulate*. You can also set the network between client and server, which adds
# round trips and nothing else. (Here TTFT is split by phase, because the simulator's timestamps don't say whose tokens
# a step computed. A bar that would dwarf the others is cut off, at //.)

# %%
fleet = pictures.at_70b()
fleet

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - A chunk of 512 adds some TTFT, about the same up to medium load and several times that at the highest. In return
#   the gaps get shorter.
# - At the lowest load the gaps are all the same, and a chunk of 512 still adds a little TTFT. *Decode first* about
#   doubles the mean TTFT even there, because some newcomers wait for an answer to end.
# - At low load, a distant client on a new connection pays more in round trips than any policy can save.
#
# </details>

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "First I'd split TTFT into the request's own work and everyone else's. If it's their prompts, the token budget
# > trades TTFT against ITL. If it's queue time, I ask what for: a slot, memory or a step. At low load I'd check prompt
# > and cache."
#
# **Follow-ups**
#
# <details><summary>"You halve the token budget. Who notices?"</summary>
#
# Requests that decode beside prompts get shorter steps, so ITL p99 falls. Long prompts take twice as many steps, so
# their TTFT rises, most of all below the bend of [lesson 03](03_prefill.ipynb), where fewer tokens don't make a step
# shorter. A request that has the server to itself gets only the longer TTFT.
#
# </details>
# <details><summary>"Slots are free, and queue time is half of TTFT. Why?"</summary>
#
# A slot isn't all that a request needs. It also waits for the running step to end (with async scheduling, for the next
# one too, if that's already launched), for room in the step's token budget, and for KV blocks. vLLM also counts a
# request as waiting while its grammar compiles or its KV arrives from another server. Compare queue time with step
# time: if they're about equal, shorten steps.
#
# </details>
#
# **"Our TTFT doubled and we didn't touch the model."**
#
# | weak | senior | staff |
# |---|---|---|
# | "Add GPUs until it comes back down." | "Check whether prompts got longer or load went up." | "I'd split TTFT by cause for the slow requests. If it's queue, load went up or steps got longer. If it's other requests' prompts, one new client with long prompts can do that. If it's own prefill, prompts grew or the prefix cache broke. Then I'd fix that one and show the same split again." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>What does another request's prompt cost you?</summary>
#
# 1. My step without it takes F + D d: a fixed cost F, and D for each of d decodes.
# 2. p of its tokens make the step longer by p / r, at r prompt tokens a second (from the bend on).
# 3. A budget b caps p at b − d, so no step of mine takes longer than about F + D d + b / r.
# 4. ITL p99 ≤ that. Choose b = r × (SLO − F − D d).
# 5. The prompt of n tokens takes n / (b − d) steps, and each adds the fixed cost and the decodes: its TTFT ≈ n / r +
#    n / (b − d) × (F + D d).
# 6. So a smaller budget moves waiting from me to the long prompt, and makes the total longer, because every extra step
#    adds a fixed cost.
#
# </details>
#
# ## Check yourself
#
# Answers are computed from the runs above.

# %%
check = checks(met.causes[-1], runs)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### When requests never meet
#
# These are short questions, each sent when the previous one has been answered.

# %%
quiet = lab.predict(
    "calm",
    "Short questions that never meet: which policy has the lowest TTFT?",
    [*run.POLICIES, run.SAME_STEPS],
)
quiet

# %%
calm = {name: lab.run(run.calm(lab), **fields) for name, fields in policies.items()}
quiet.score(run.wins_when_calm(calm))

# %%
words.calm(calm)

# %% [markdown]
# ### Async scheduling: when the host gets out of the way
#
# Before each step the host has to schedule, prepare inputs and handle the last step's tokens. **Async scheduling**
# does that for step n+1 while the GPU computes step n. It's on by default in vLLM (since 0.14), in SGLang (its overlap
# scheduler), and in this engine on a GPU. Each bar is a step; drag its two parts.

# %%
pictures.async_explorer()

# %% [markdown]
# Try a large model (30 milliseconds on the GPU), then a small one (4) with a slow host (6). Where does overlap gain
# most, and where does it gain nothing?
#
# <details><summary>Answer</summary>
#
# Without it a step takes the sum of the two parts, with it the larger one. So it gains a factor of two at most, where
# both take equally long. With a large model the host's part is small anyway, and where the host takes longer than the
# GPU, it stays the bottleneck. The price is in TTFT: a request that arrives while step n runs usually misses step n+1,
# which is scheduled already. And what step n+1 needs from step n can't be hidden: a grammar's mask needs the last
# token, and drafting needs to know which draft tokens were accepted.
#
# </details>
#
# ### Structured output: a mask per token
#
# With a JSON schema the sampler may only pick tokens that keep the answer valid. A library (here llguidance; vLLM and
# SGLang also use XGrammar) walks the grammar and produces a **mask** over the vocabulary for every token. A grammar is
# compiled when it's first used, and that's part of TTFT.

# %%
guided = run.measure_masks(lab)
stack(pictures.masks_table(guided), words.masks(guided))

# %% [markdown]
# ### How the split is made
#
# A request arrives at $t_0$ and gets its first token at $t_3$. Let $S$ be the steps it's in until its last prompt
# token is computed. Step $s$ has $d_s$ decodes, whose contexts are $c_s$ tokens, and $p_s$ prompt tokens, $o_s$ of
# them this request's own. Without the prompts its forward pass $f_s$ would have taken about $F + D\,d_s + C\,c_s$.
# Whatever it took beyond that, the prompts are charged for:
#
# $$\text{TTFT} = \underbrace{\text{queue}}_{\text{before } S} \;+\; \sum_{s \in S} \Big(
# \underbrace{F}_{\text{fixed cost}} + \underbrace{D\,d_s + C\,c_s}_{\text{others' answers}} +
# \big(f_s - F - D\,d_s - C\,c_s\big)\big(\underbrace{\tfrac{o_s}{p_s}}_{\text{own}} +
# \underbrace{\tfrac{p_s - o_s}{p_s}}_{\text{others' prompts}}\big)\Big) \;+\; \text{bookkeeping} +
# \underbrace{\text{sampling} + \text{detokenizing}}_{\text{first token}}$$
#
# $F$, $D$ and $C$ are fitted to the steps of the run, above all to those without prompts. Whatever they are, the
# parts add up to $f_s$: no second is lost and none is counted twice. (On a GPU a step is launched while the one
# before still runs. It counts from where that one ends, so until then a new request is in the queue.) The next cell
# checks every request of this lesson.

# %%
import inspect

gaps = [
    abs(sum(found.values()) - run.ttft_of([each.row_of(row)])[0])
    for each in runs.values()
    for row, found in ttft_causes.causes_of_run(each).items()
]
print(f"{len(gaps)} first tokens; the causes miss TTFT by at most {max(gaps):.1e} s\n")
print(inspect.getsource(ttft_causes.share_out))

# %% [markdown]
# Why not simply split a step by its tokens? Because a step has a fixed cost. A small one mostly reads the weights,
# however few tokens are in it. By tokens, a prompt of 16 beside 3 decodes would be blamed for 84% of the step. What it
# really costs the 3 is its *marginal* cost, how much longer the step takes because of it. That's what counts here and
# in `timeline.lost["stalled_by_prefill"]`. `minillm/observe/step_cost.py` estimates how long the step would have taken
# without it.
#
# **Who goes first, in code.** *Mixed* is a few lines: running requests that decode, then those still in prefill, then
# new ones, under one budget. (vLLM v1 goes through its running list in order, without sorting decodes to the front;
# that's this engine's own choice.)

# %%
from minillm.core.scheduler import Scheduler

print(inspect.getsource(Scheduler.schedule).split("batch = ScheduledBatch")[0])

# %% [markdown]
# *Prefill first* removes the limits (`enable_chunked_prefill=False`, a large budget). *Decode first* is
# `batching="static"`. Agrawal et al. call these two *prefill-prioritizing* and *decode-prioritizing*, and the middle
# way *stall-free*.
#
# ### What articles say
#
# D19 compares a prompt's token with an answer's. A prompt's tokens are computed side by side, and the weights are read
# once for all of them. An answer's tokens depend on each other, so they take one step each. With $B$ requests
# decoding, a step's time is shared by $B$ tokens:
#
# $$\frac{\text{decode, seconds per token}}{\text{prefill, seconds per token}} \approx \frac{T_\text{step}(B)/B}{T_\text{step}(n)/n}$$
#
# Another claim, D21, doesn't say what its cut is measured against.

# %%
shrinking = lab.run(run.shrinking(lab), max_num_seqs=8, max_num_batched_tokens=2048)
one_by_one = lab.run(run.one_by_one(lab), **policies["prefill first"])
in_short(
    b3(moves_here(runs) + b3_at_70b(), run.noise(runs.values())),
    d19([run.measured_per_token([shrinking, one_by_one]), run.simulated_per_token()]),
    d21(pairs((0.5, 2.0, 8.0))),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 2048 --enable-logging-iteration-details
# sglang serve --model-path Qwen/Qwen3-8B --chunked-prefill-size 2048 --enable-mixed-chunk --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-8B --random-input-len 2000 --random-output-len 200 --request-rate 4
# ```
#
# With its last flag vLLM prints a line for each step: `context tokens`, `generation requests`, `iteration elapsed
# time`. Steps with context tokens take longer, and every generation request in them waits. Unless told otherwise,
# SGLang runs prefill and decode in separate batches (`Prefill batch` and `Decode batch` lines), prefill first, so
# decodes stall during a prefill; `--enable-mixed-chunk` puts both into one batch. Expect ITL p99 to fall with it, and
# TTFT to rise.
#
# `vllm:time_to_first_token_seconds` is about `vllm:request_queue_time_seconds` plus
# `vllm:request_prefill_time_seconds`; the rest is the API server's own work. `capacity` or `deferred` in
# `vllm:num_requests_waiting_by_reason` says why requests wait.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **What a chunk costs elsewhere.** On a CPU every token in a step is expensive, so chunks have to be small. A GPU
#   computes a few hundred tokens in about the time of one; its chunks are larger and cost less.
# - **A busy front end.** Server, engine and clients share one Python process here, and its GIL, so the front end's
#   rows are somewhat too long. The network is loopback; the simulator's has round trips, but no packet loss and no
#   congestion.
# - **Cold in other ways.** A replica that has just started compiles, allocates and loads first: lesson 11b.
# - **Statistics.** A handful of newcomers shows the mechanism. Five are too few for any percentile you'd put in an SLO.
#
# ## Sources
#
# - B3: *Decomposing LLM Inference Latency for Better Serving Performance*. D19 and D21: an article on techniques for
#   lower LLM latency, from batching to streaming; it quotes the factor without a batch size, and the cut without a
#   baseline.
# - Agrawal et al., *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, 2024: the three
#   policies, and chunks beside decodes. Yu et al., *Orca*, 2022: one step at a time. vLLM v1:
#   `vllm/v1/core/sched/scheduler.py`.
