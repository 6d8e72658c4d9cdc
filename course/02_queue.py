# %% [markdown]
# # 02 · Queue: who waits, and for whom?
#
# A server is busy four fifths of the time. Is that good use of money, or trouble? In this lesson you stand at the
# door of a real engine and watch its line. By the end you can say how long a line gets before it happens, who in it
# pays for whom, what batching has to do with it, and when to send people away.
#
# Three words first. A **seat** is a place in the running batch: a request without one waits. **Capacity** is how
# many requests a second the server can serve when somebody is always waiting. **Load** is how many arrive, as a
# share of that.
#
# - **Surface**: the same questions at three loads.
# - **Guided**: a waiting room with controls, three ways to fill the seats, who is next, whom to refuse; here and at
#   70B.
# - **Deep dive**: the formulas, the scheduler's code, eight claims.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_02 import charts, instrument, simulated, tables, traffic
from course.lab.lesson_02.checks import checks
from course.lab.lesson_02.claims import a2, a9, a13, a19, d1, d2, d3, e4, orders, queue_limits

lab = open_lab()

# %% [markdown]
# ## Surface
#
# Start with the simplest server there is: **one seat**. Every question is equally long and wants one token, so each
# takes the same time in the seat. First, how many a second can this machine serve?

# %%
all_at_once = traffic.measure_capacity(lab)
per_second = traffic.capacity(all_at_once)
tables.capacity_note(all_at_once)

# %% [markdown]
# Now people arrive one by one, at random, as users do: none of them knows of the others. Once so fast that the server
# is busy half of the time (a load of 50%), once at 80%, once at 95%. It is meant never to be asked for more than it can do.
#
# ### Predict
#
# From 50% to 95% the load not quite doubles. What happens to the time that people wait in line?

# %%
bet = lab.predict(
    "growth",
    "From a load of 50% to 95%: by how much does the mean wait in line grow?",
    list(traffic.GROWTH),
)
bet

# %%
loads = traffic.at_loads(lab)
bet.score(traffic.growth(loads))

# %%
instrument.lines(loads)

# %% [markdown]
# Each column is the line at one moment, one figure a request. The rhythm of arrivals is the same in the three runs,
# only faster. Look for a small clump of arrivals, and for the line that it leaves. The server works it off in the time
# that it has to spare. Is the line gone before the next clump comes: at 50%, at 80%, at 95%?
#
# That is the surface: *a line is not made by too much work, but by too little spare time.*

# %% [markdown]
# ## Guided
#
# ### The waiting room
#
# The same door, live. Choose a load, press the button. The boxes are seats: blue while a prompt is read, green while
# text is written (not here: one token is all they want), grey figures stand in line. Go **through** capacity: at 110%
# nothing breaks; the line just grows for as long as you send. Then give the room a second seat: two seats are not two
# servers, they share one engine. What does the wait say?

# %%
room = instrument.WaitingRoom(lab, per_second, loads["80%"])
room

# %% [markdown]
# ### The curve
#
# Theory has a name for this server: **M/D/1**. Arrivals at random moments (M, for memoryless), a deterministic time
# of service (D), one seat. Its mean wait is known exactly. Beside it: your three runs, and this course's simulator,
# which drives the unchanged scheduler through many more requests. (Simulated here: a 70B model with one seat.)

# %%
charts.draw_wait_curve(loads, simulated.one_seat_curve())

# %% [markdown]
# The wait grows with one over what is spare. The points scatter the more the closer they come to capacity. That is no
# fault of the measurement. Near capacity luck decides, and even a long run has only a few bad hours in it. Do not
# plan with a number from there.
#
# **Little's law** does not ask how people arrive, how long they take, or who is next; only that the room is empty
# when the count begins and ends (or that it runs long enough at less than capacity): *mean length of the line =
# arrivals per second × mean wait*. Both sides here come from the same stamps, so they must agree, and that is the
# proof: whoever waits three seconds is one head in the line for three seconds.

# %%
tables.little_table(loads)

# %% [markdown]
# The last column is what theory expects of these very arrivals, given this machine's time of service. That is the
# fair comparison. So few arrivals can come out far above or below the curve by luck; to keep the picture readable
# we picked a sequence that comes out near it. The evidence for the curve is the simulator's points, whose arrivals
# were not picked.
#
# ### The same at 70B, with many seats
#
# Llama-3 70B on four H100s, simulated; chats of many lengths.

# %%
charts.draw_many_seats(simulated.many_seats_curves())

# %% [markdown]
# With more seats the curve stays flat for longer: somebody is always about to leave. Then it turns up just the same.
# A flat queue metric is no sign of room to spare. How far to trust the simulator:

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# ### Who sits where?
#
# A batch can be filled in more than one way.
#
# - **Static**: whoever waits now sits down together, and nobody else until the *last* of them has left.
# - **Continuous**: a seat that becomes free is taken in the next step.
# - **Chunked**, on top: a long prompt is read in pieces, so that a step stays short for the others.
#
# Eight questions at once, four seats. Question #0 wants an answer eight times as long as everybody else's.

# %%
payer = lab.predict(
    "payer",
    "Static instead of continuous: who loses the most time, end to end? (Answers are streamed.)",
    list(traffic.PAYERS),
)
payer

# %%
straggler = {
    "static": lab.run(traffic.straggler(lab), batching="static"),
    "continuous": lab.run(traffic.straggler(lab)),
}
payer.score(traffic.who_pays(**straggler))

# %%
instrument.seats_of(straggler, "One long answer: who sits where?")

# %% [markdown]
# Under static batching, follow three groups: #0, the three that sit beside it, and the four in line. When does each
# leave, with its answer? Whose seats stay empty, dashed, and for how long? Such a slow member as #0 is called a
# **straggler**. How much it costs depends on how uneven the answers are: with equal answers that all come at once the two
# ways are the same (claim D1 has both). Continuous batching is a cure for *unevenness*: of the answers' lengths, and of
# the moments at which people come. (Answers are streamed here. A server that hands the whole batch back at once makes
# those beside the straggler pay as well.)
#
# Now all three ways on the very same arrivals. Answers of all lengths, and request #5 is a long document.

# %%
ways = traffic.three_ways(lab, traffic.mixed_crowd(lab))
instrument.seats_of(ways, "The same arrivals, three ways: who sits where?")

# %% [markdown]
# Look at the empty slots first: static wastes them while requests queue. Then look for the document. With whole prompts,
# every decode stands still while it's prefilled; with chunks, for one chunk at a time. Chunks do
# not make the document faster: it shares its steps now. (A short run on a busy machine is noisy; the table in the deep
# dive has the figures at 70B, without noise.)
#
# ### Who is next?
#
# If there must be a line, who goes first? At 70B, one prompt in ten is long (6000 tokens against 200). All orders, side
# by side:

# %%
instrument.orders()

# %% [markdown]
# At 110%, compare *first come* with *shortest first*. The short ones hardly wait any more; the long ones get only
# what is left. If the short ones alone filled the server, they would never be served. That is **starvation**, and
# no mean over all requests will show it. (Here *priority to short* is the same order: there are only two lengths.)
# **Two lanes** give the long their turn, every fourth here. But a lane is a share: a lane for a tenth of the
# traffic with a quarter of the turns makes the *short* wait longer.
#
# Nobody made the server faster. The mean over all may fall, because a short one ahead of a long one delays it less
# than the other way round; but what the many gain, a few pay. And well below capacity there is hardly a line to
# sort. Set the load to 50%: do the orders differ at all?
#
# ### Whom to refuse?
#
# **Shedding** refuses a request at the door when so many wait already (`max_queue_len`; a client gets HTTP 429). The
# others are allowed in (**admission**). Here a promise is kept when the first token comes within two seconds; a
# client gives up after ten.

# %%
instrument.queue_limits()

# %% [markdown]
# At 130% the server has room for ten in thirteen, whoever they are. Without a limit it lets everybody wait until
# hardly anybody is pleased. With a tight one, most of those it takes are in time, and the rest learn at once that
# they should go elsewhere.
#
# ### Where it hurts
#
# **Shedding at low load.** Set the load to 30%, then let people arrive *in clumps*: the tight limits refuse people
# whom an empty server would have served a second later. The right limit follows from the promise: seats × promise ÷
# mean time in the seat.
#
# **More seats when memory is short.** Every seat needs KV cache (the model's notes on each token it has read). Twelve
# questions with long answers, and a pool that holds about four. More seats let more people in; then they grow.

# %%
more_seats = traffic.more_seats(lab)
tables.seats_table(more_seats)

# %% [markdown]
# A **preemption** takes the KV cache of somebody who is running (it is handed out in small **blocks**); later its
# tokens are computed again. Read the table downwards: past what the memory holds, further seats buy tokens that
# are computed twice and gaps in somebody's text, and hardly any speed.

# %% [markdown]
# ## Deep dive
#
# **The formulas.** With $\lambda$ arrivals a second, mean time of service $S$, its standard deviation $\sigma$, load
# $\rho = \lambda S$:
#
# $$L = \lambda W \qquad\text{(Little)}, \qquad\qquad W = \frac{\rho}{1-\rho}\cdot\frac{1 + (\sigma/S)^2}{2}\cdot S
# \qquad\text{(Pollaczek and Khinchine, one seat)}$$
#
# With $\sigma = 0$ this is M/D/1. Three things make a line: little spare time, $1-\rho$; uneven service, $\sigma$;
# and uneven arrivals, which are the 1 beside $(\sigma/S)^2$ (arrivals like a clock make it 0, clumps make it
# larger). So splitting off the long ones can help even when not a second of work is saved. Here is what the lesson
# used, and the recursion for given arrivals:

# %%
import inspect

from course.lab.lesson_02 import theory
from minillm.core.scheduler import Scheduler
from minillm.policies.queues import TwoLaneQueue

print(inspect.getsource(theory.mg1_wait))
print(inspect.getsource(theory.waits_of_these))

# %% [markdown]
# **The code.** All of admission is one method. Static batching is a counter of places in it; everything else is the
# same. The first in line that does not fit ends admission, so nobody overtakes by being small. Below it, the whole of
# two lanes.

# %%
print(inspect.getsource(Scheduler._admit_waiting))
print(inspect.getsource(TwoLaneQueue._next_lane))

# %% [markdown]
# **The claims, measured.** Public articles say these things about queues and batches. Each row has the claim, what
# was found, and a verdict that follows from the numbers.
#
# *A2*: four servers that are asked for a little more than they can serve, each short of something else, with
# weights in 16 bits (bf16) and in 8 (int8, fp8): **quantization**. The GPUs run a stack of today, which uses **CUDA graphs**:
# a step's many small programs are recorded once and launched in one go.

# %%
a2(loads, simulated.quantized_waits())

# %% [markdown]
# *A9*: the article compares the three ways on six dimensions. Here are five of them as numbers. The sixth,
# simplicity, cannot be read off this engine: it is built for continuous batching, and static is an extra rule in
# it.

# %%
calm, busy = simulated.three_ways(0.7), simulated.three_ways(1.0)
saturated = simulated.saturated_ways()
tables.five_dimensions(calm, busy, saturated)

# %%
a9(calm, busy, saturated)

# %% [markdown]
# *A13*: "an order of magnitude". Two factors are in it: scheduling, and the memory that a static server sets aside
# for the longest answer there could be.

# %%
a13({gpus: simulated.tenfold(gpus) for gpus in (2, 4)})

# %%
a19({load: simulated.chunks_and_limit(load) for load in (0.7, 1.3)})

# %%
d1(simulated.dynamic_gains())

# %% [markdown]
# *D2* is about another kind of straggler: a long *prompt*. One batch of eight on the real engine: seven short alone,
# with a long one, and with all made as long as the longest, as a batch that must be a rectangle makes them.

# %%
d2(traffic.one_batch(lab))

# %%
d3(orders())

# %%
e4(over=queue_limits(1.3), under=queue_limits(0.3, simulated.CLUMPS))

# %% [markdown]
# ## Say it in an interview
#
# > "How busy is it, and how uneven is the traffic? Below capacity I would look for clumps and long requests, and
# > the order of the line can help; above it, no order helps for long. I would fill seats every step, read long
# > prompts in chunks, and set the queue limit from the TTFT we promise, so that overload becomes refusals and not
# > time-outs. Then I ask what capacity is short of: seats, memory, or arithmetic. That decides whether a config
# > change, smaller weights or a replica shortens the line."
#
# ## Check yourself
#
# Replace the dots. Keys come from the runs above.

# %%
limits = {name: simulated.outcomes(run) for name, run in instrument.queue_limit_runs("130%").items()}
check = checks(loads, ways, orders(), limits)

check(
    "q1", ...
)  # in the run at 80%: the mean number of people in line, from Little's law and the table's first columns

# %%
check(
    "q2", ...
)  # which way left the most slot time empty (dashed in the map) while requests waited? "static", "continuous", ...

# %%
check("q3", ...)  # at 110%, who is next so that the long prompts wait longest? The name in the table

# %%
check("q4", ...)  # at 130%, which limit serves the most in time? The name in the table

# %%
check("q5", ...)  # M/D/1 at a load of 90%: the mean wait, in service times

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your arrivals.** Random means *independent* here. Real traffic has mornings, retries, and agents that send
#   twenty requests at once; every one of these makes lines longer than the formula says.
# - **Your capacity.** It depends on the mix of lengths. When prompts grow, the load rises though nobody new has come.
# - **The front of the line.** Connections wait in operating systems, proxies and client pools before the engine sees
#   them; its stamps begin at its own door. Lesson 10 goes outside.
# - **What the refused do next.** Here they go away. If they try again at once, refusals become load; lesson 11 has
#   retries.
# - **Absolute times at 70B.** They are as good as the error band. Orders and ratios rest on the scheduler, which is
#   the real one.
#
# ## Sources
#
# - A2, A9, A13, A19: *Serving LLMs: The Latency Anatomy Framework*. D1, D2, D3: an article on techniques for lower
#   LLM latency. E4: *Latency Optimization in LLM Inference Systems*.
# - Little, *A Proof for the Queuing Formula L = λW*, 1961. Kendall, *Stochastic Processes Occurring in the Theory of
#   Queues*, 1953 (the notation M/D/1). Lindley, *The Theory of Queues with a Single Server*, 1952.
# - Iteration-level scheduling: Yu et al., *Orca*, 2022. Chunked prefill: Agrawal et al., *Sarathi-Serve*, 2024. Paged
#   KV cache: Kwon et al., 2023.
# - Daniel et al., *How continuous batching enables 23x throughput in LLM inference while reducing p50 latency*,
#   Anyscale, 2023.
# - Lengths of chats: Azure's public trace, with *Splitwise* (Patel et al., 2024).
