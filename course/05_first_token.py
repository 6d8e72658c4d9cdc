# %% [markdown]
# # 05 · First token: what TTFT is made of
#
# "Our time to first token doubled. Nobody touched the model." What did it wait for?
#
# **TTFT**, time to first token, is the first number a user feels: from pressing Enter to the first word. It has more
# parts than any other number in serving, and most of them belong to *other people*. In this lesson you cut one TTFT by
# cause until nothing is left over, then change who goes first, and watch the parts move from one person to another.
# By the end you can look at a TTFT and say which part to attack, and who will pay.
#
# - **Surface**: one first token, alone and in company. Three ways to decide who goes first.
# - **Guided**: run any policy, then the same at 70B, with the network and with split machines.
# - **Deep dive**: how the cut is made, what one token costs, three claims put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_05 import causes, instrument, per_token, traffic
from course.lab.lesson_05.checks import checks
from course.lab.lesson_05.claims import b3, b3_at_70b, d19, d21, moves_here, pairs
from course.lab.lesson_05.outside import over_http
from course.lab.lesson_05.pictures import draw_rhythm, draw_waterfall

# More seats than people: nobody here ever waits for a seat.
lab = open_lab(max_num_seqs=traffic.SLOTS)

# %% [markdown]
# ## Surface
#
# An engine works in **steps**. In one step it reads pieces of new prompts (**prefill**) and writes one more token for
# everybody whose answer is under way (**decode**). One step ends for all of its members at once. So whoever shares a step
# with you, you wait for.
#
# The next cell starts a real server, `minillm serve`, on a real port of this machine. Three people send it a prompt one
# after the other. Then they come again, close together, while others have answers written. All prompts begin with the same
# house rules; the server may keep what it computed of those in its **prefix cache**, if it has seen them before.

# %%
pace = traffic.pace(lab)  # how long one newcomer takes here, alone: sets the rhythm of arrivals in this lesson
alone = over_http(lab, traffic.with_rules(lab, 3))
met = over_http(lab, traffic.with_rules(lab, 3, pace))
draw_waterfall(met.causes[-1], alone.causes[-1], "The last one to come: what is its first token waiting for?")

# %% [markdown]
# Each bar is one cause, and begins where the one above it ended; the last one ends at the TTFT. (They are added up by
# cause. In truth other people's tokens and your own take turns, step by step.) The thin outline is the same person,
# alone. A cause that took no time in either case has no row.
#
# | cause | whose time is it? |
# |---|---|
# | way in, parsing, tokenizing | the server's front: HTTP, JSON, text to token ids |
# | **queue** | no step has included the request yet; perhaps one that began before it came is still running |
# | **others' prompts, others' answers** | it is in the step, and so are they: their share of the step |
# | **cold cache** | its own tokens which begin other prompts too, and were not kept |
# | **own prefill** | what nobody else could have done for it |
# | bookkeeping, sampling, detokenizing | choosing who runs, picking a token id, turning it into text |
# | way out | from the engine's hand to the client's eye |
#
# Compare the blue bar with its outline: reading the prompt is work that stays whoever is there. What company adds stands in
# three rows: the queue, others' prompts, others' answers. **A TTFT is mostly a statement about the neighbours.**
#
# ### Predict
#
# So it should matter who goes first. Four **writers** have long answers under way. Five **newcomers** arrive with a long
# prompt each. Three policies, each a few fields of `EngineConfig`:
#
# - **prefill first**: a newcomer's whole prompt goes into the very next step. Writers get one token out of that long step.
# - **mixed**: a step has a budget of 32 tokens. Writers' tokens go in first, the rest is filled up with a **chunk** of a prompt.
# - **decode first**: no prompt is read while any answer is being written. Newcomers come in when all have finished.

# %%
question = "Which policy gives newcomers the lowest median TTFT, and who pays?"
bet = lab.predict("policy", question, traffic.answers())
bet

# %%
runs = {name: lab.run(traffic.company(lab, pace), **fields) for name, fields in traffic.POLICIES.items()}
bet.score(traffic.winner(runs))

# %%
draw_rhythm(runs)

# %% [markdown]
# Read a strip from left to right as the writer would: every green tick is a token. Where do the ticks stop dead whenever
# somebody arrives? Where do they come a little slower, but come? Where does nothing disturb them? And in which strip do the
# newcomers stand outside longest, grey?
#
# The same runs in numbers: on the left what the newcomers waited for, on the right the gaps between two tokens of a
# writer: one in a hundred is longer than this.

# %%
instrument.draw_runs(runs)

# %% [markdown]
# No policy made the machine faster. Each one moved waiting from one group of people to another. That is the surface: *TTFT is
# a bill that somebody pays, and the scheduler decides who.*
#
# ## Guided
#
# ### Run a policy yourself
#
# The real engine, on the same arrivals each time. (There is no server in front here: the way in and out is missing, and
# tokenizing is a part of the queue.) **calm**: newcomers far apart. **busy**: as above. **rush**: they come twice as
# fast as this machine can read them. Every run stays, so that you can compare.
#
# | try | watch |
# |---|---|
# | rush, prefill first | the right side: what becomes of the gaps when prompts keep coming? |
# | rush, mixed | newcomers queue up for chunks. Who has it better now? |
# | busy, mixed, token budget 16, then 256 | what happens to the TTFT, and what to the gaps? |
# | calm, all three | what is left to decide? |

# %%
bench = instrument.PolicyBench(lab, pace, runs)
bench.explorer()

# %% [markdown]
# ### When nobody meets
#
# Now short questions, one at a time: each comes when the one before has been answered.

# %%
quiet = lab.predict(
    "calm",
    "Short questions that never meet: which policy has the lowest TTFT?",
    [*traffic.POLICIES, traffic.SAME_STEPS],
)
quiet

# %%
calm = {name: lab.run(traffic.calm(lab), **fields) for name, fields in traffic.POLICIES.items()}
quiet.score(traffic.wins_when_calm(calm))

# %% [markdown]
# A scheduler chooses among those who are there. How many requests are in the house at a time here, and what does that leave to
# choose? If all three policies took the very same steps, differences between them are this machine's noise. If your service is
# idle most of the time and TTFT is bad, look at the other rows of the waterfall: the cache, the prompt's length, the way in.
#
# ### Where each policy hurts
#
# Prompts that keep coming, faster than they can be read: *prefill first* gives writers one token out of each long
# step and nothing in between; *decode first* lets nobody in until the last answer is done, however many wait.

# %%
rush = traffic.company(lab, pace, gap=traffic.PACES["rush"])
draw_rhythm({name: lab.run(rush, **fields) for name, fields in traffic.POLICIES.items()})

# %% [markdown]
# *Mixed* is not free either. Each chunk is a step, and a step has a fixed price: the weights are read from memory once more. Compare
# its blue part above with that of *prefill first*. Lesson 03 has the chunk size on a slider.
#
# ### The same question at 70B
#
# The same scheduler with Llama-3 70B, on four **replicas** (copies of the engine) of four H100 each, simulated. Two sizes of chunk; and
# one more way: **disaggregated**. Two replicas only read prompts, two only write answers, and the KV cache (the model's notes on each
# token it has read) travels from one to the other over a network card. Then prefill and decode are hardly in each other's way.
#
# The sliders also set the network between client and server. That part is the simulator's model: so many round trips, no more.

# %%
fleet = instrument.at_70b()
fleet

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# Things to look for. (Here the cut is by phase: the simulator's stamps do not say whose tokens a step computed. A bar that would
# dwarf all others is broken off, at //.)
#
# - Does a chunk of 512 cost much TTFT here? And what does it do to the gaps?
# - Move the load to its lowest. How much of the difference is left?
# - Give *disaggregated* one reading replica instead of two, then three. A fixed split suits one mix of traffic; idle writers cannot
#   help out readers.
# - A far client on a new connection: compare the purple part with everything that a scheduler can do.

# %% [markdown]
# ## Deep dive
#
# **The cut.** A request arrives at $t_0$ and gets its first token at $t_3$. Let $S$ be the steps it is in until its last prompt token
# is computed, $f_s$ the forward pass of step $s$, and $n_s$ its tokens, of which $o_s$ are its own and $p_s$ other people's prompt tokens:
#
# $$\text{TTFT} = \underbrace{\text{queue}}_{\text{before } S} \;+\; \sum_{s \in S} f_s\,\Big(\underbrace{\tfrac{o_s}{n_s}}_{\text{own}} +
# \underbrace{\tfrac{p_s}{n_s}}_{\text{others' prompts}} + \underbrace{\tfrac{n_s - o_s - p_s}{n_s}}_{\text{others' answers}}\Big) \;+\;
# \text{bookkeeping} + \underbrace{\text{sampling} + \text{detokenizing}}_{\text{first token}}$$
#
# The fractions add up to one, so no second is lost and none is counted twice. The next cell checks that on every request of this lesson.

# %%
import inspect

gaps = [abs(sum(found.values()) - traffic.ttft_of([run.row_of(row)])[0])
        for run in runs.values() for row, found in causes.of_run(run).items()]  # fmt: skip
print(f"{len(gaps)} first tokens; the causes miss TTFT by at most {max(gaps):.1e} s\n")
print(inspect.getsource(causes.share_out))

# %% [markdown]
# Sharing a step by tokens is a convention, and the engine's own (`stalled_by_prefill` in `minillm/core/step_log.py`). It is not the same as
# asking what would happen if the others left: a step's fixed price is shared too. For that question there is only one honest way: run it
# alone, as the thin outline did.
#
# **Who goes first, in code.** The whole policy of *mixed* is one `sorted` and one budget:

# %%
from minillm.core.scheduler import Scheduler

print(inspect.getsource(Scheduler._schedule_running).split("num_drafts = ")[0])

# %% [markdown]
# *Prefill first* takes away the limits (`enable_chunked_prefill=False`, a large budget): a prompt fits whole, and the step grows. *Decode first* is
# `batching="static"`: nobody joins until the batch has ended. Agrawal et al. call these two *prefill-prioritizing* and
# *decode-prioritizing*, and the middle way *stall-free*.
#
# **Mixing, and its two directions.** A larger budget lets prompts through faster and makes each step longer. Here is
# each move: between the policies above, and between token budgets at 70B, one replica under load and idle.

# %%
b3(moves_here(runs) + b3_at_70b(), traffic.noise(runs.values()))

# %% [markdown]
# **What one token costs.** A prompt's tokens are known, so they go through the model side by side, and the weights are read once for all of
# them. An answer's tokens depend on each other: one step each. With $B$ answers written at once, a step's cost is shared by $B$ tokens:
#
# $$\frac{\text{decode, seconds per token}}{\text{prefill, seconds per token}} \approx \frac{T_\text{step}(B)/B}{T_\text{step}(n)/n}$$

# %%
shrinking = lab.run(traffic.shrinking(lab), max_num_seqs=8, max_num_batched_tokens=2048)
one_by_one = lab.run(traffic.one_by_one(lab), max_num_batched_tokens=2048)
d19([per_token.measured([shrinking, one_by_one]), per_token.simulated()])

# %% [markdown]
# A prompt's tokens are cheap one by one, but hundreds of them come in one step: that is why such a step makes
# writers wait so long. And a GPU that only writes, for few people, has its multipliers mostly idle.
#
# **Being aware of phases.** The last claim needs a baseline: better than what?

# %%
d21(pairs((0.5, 2.0, 8.0)))

# %% [markdown]
# ## Say it in an interview
#
# > "TTFT is queue, plus my prompt's prefill, plus whatever shared my steps, plus the way in and out. So first I ask how much of it is mine.
# > If it is other people's prompts, I look at the token budget: whole prompts win TTFT and make everybody else's stream stutter; chunks give
# > some of that TTFT back for smooth gaps. If it is queue, I ask what for: a seat, memory, or a step that runs. And at low load I leave the scheduler alone and look at
# > the cache and the prompt. Splitting prefill and decode onto machines of their own gives both, as long as the split matches the traffic."
#
# ## Check yourself
#
# Replace the dots. Keys come from the runs above.

# %%
check = checks(met.causes[-1], runs)

check("q1", ...)  # the largest cause in the first picture: "queue", "own prefill", "others' prompts", ...

# %%
check("q2", ...)  # that TTFT less the queue and other people's shares, seconds; met.causes[-1] has the cut

# %%
check("q3", ...)  # the policies by newcomers' median TTFT, fastest first: ["...", "...", "..."]

# %%
check("q4", ...)  # prefill first: the longest pause of a writer, in median gaps; traffic.pauses(run) lists all gaps

# %% [markdown]
# ## What this lab cannot tell you
#
# - **What a chunk costs on your GPU.** On a CPU every token in a step is dear, so a long prompt stops writers for long, and chunks have to be
#   small. A GPU computes hundreds of tokens in hardly more time than one; its chunks are larger and cost less.
# - **Other people's prefill first.** Here writers still get one token out of each long step. vLLM before its version 1 gave prompts steps of their own,
#   in which writers got none: the pauses were longer still. And *decode first* here is the old extreme. vLLM 1 also takes decodes
#   first, but within a step, under a budget: that is our *mixed*.
# - **A busy front.** Server, engine and clients share one Python process here, and its lock: their rows are somewhat too long. The network is a
#   loop inside this machine; the simulator's has distance, but no losses and no crowds.
# - **Cold in other ways.** A cold cache is only one kind. A replica that has just started compiles, allocates and loads first: lesson 11.
# - **Statistics.** A handful of newcomers shows the mechanism. Medians of five are no percentile to promise anybody.
#
# ## Sources
#
# - B3: *Decomposing LLM Inference Latency for Better Serving Performance*. D19 and D21: an article on techniques for lower LLM latency, from batching
#   to streaming, with measured gains; it quotes the factor without a batch size, and the cut without a baseline.
# - Agrawal et al., *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, 2024: the three policies, and chunks beside
#   decodes. Yu et al., *Orca*, 2022: one step at a time.
# - Zhong et al., *DistServe*, 2024, and Patel et al., *Splitwise*, 2024: prefill and decode on machines of their own.
# - The rule that decodes go first under one token budget: vLLM, `vllm/v1/core/sched/scheduler.py`.
