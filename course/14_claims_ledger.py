# %% [markdown]
# # 14 · The claims ledger
#
# "I read that it gives 2.3 times." Every meeting about latency has that sentence in it, and every article has the figure. This
# course has put the claims of five public articles to the test. Here they are in one place, each with the experiment that
# measures it, what it found on *this* machine, and what was right to say instead.
#
# You will be able to tell a claim that holds from one that holds somewhere, to say in one sentence what is missing from a
# figure, and to measure any of them again, on your own machine, whenever somebody quotes it.
#
# - **Surface**: one claim measured, and all of them in one picture.
# - **Guided**: measure the rest, filter, measure any claim again; a famous table, filled in for four workloads.
# - **Deep dive**: how a verdict is computed, and three post-mortems played again.

# %%
from course.lab import open_lab
from course.lab.lesson_14 import Ledger, LedgerPanel, bets, techniques
from course.lab.lesson_14.checks import checks
from course.lab.lesson_14.claim_map import draw_map
from course.lab.lesson_14.claims import d22

lab = open_lab()
ledger = Ledger(lab)

# %% [markdown]
# ## Surface
#
# A claim is worth what its experiment is worth. So each row of the ledger has one, small enough to run while you wait. The next cell
# runs the one about 70% and attention, and keeps what it finds.

# %%
ledger.measure("D18")

# %% [markdown]
# The verdict begins with one of four words. **holds**: as it stands. **holds only when**: under a condition, and the row says
# which. **wrong**: with the right statement beside it. **not shown**: this machine, or this run, cannot tell; a noisy
# laptop is a reason, and no shame. Verdicts are computed from what was measured. On another machine some come out otherwise,
# and that is a finding, too.
#
# Whatever is measured stays: the ledger is a file in minillm's home (`~/.cache/minillm/ledger`), with machine, versions and
# date. Open this lesson next month, and the table is as full as you left it.
#
# ### Predict
#
# Five articles with advice on latency, most of it given as figures. How many of their claims hold as they stand, without a
# condition that the article left out?

# %%
bet = lab.predict(
    "as they stand",
    "Of the claims that can be judged here, how many hold as they stand?",
    bets.HOLDING,
)
bet

# %%
ledger.measure_all()
bet.score(bets.as_they_stand(ledger.rows()))

# %% [markdown]
# The long form of that cell runs every experiment that has no result yet on this machine: some take a second, some minutes. The
# bar says which one is running, and how many are done; from a full start, have a coffee. It may be stopped, by the square
# button above, and run again: it goes on where it was. An experiment that fails says so in its row, and the others go on.

# %%
draw_map(ledger.rows())

# %% [markdown]
# A full tile holds, one with a foot holds under a condition, a crossed one is wrong, a hollow one could not be told; a dashed one
# waits for you. Compare the articles: which tiles do they have most of?
#
# That is the surface: *count the feet against the crosses. A cross is a figure that is false; a foot is one that lacks its
# workload.* With few tiles measured it says nothing yet.

# %% [markdown]
# ## Guided
#
# ### The ledger
#
# Filter by article, by phase, by verdict, by lesson. Choose a claim and press *Measure it*, again if you like. Open "what was
# measured" to read the evidence. The map follows the filters.

# %%
LedgerPanel(ledger)

# %% [markdown]
# Things to find:
#
# - Phase *queue*, verdict *wrong* or *holds only when*: what do these claims leave out? Often it is the load.
# - Phase *decode*: look for the batch size. A claim without one speaks of a batch of one.
# - Verdict *holds*: what do these have in common? Mostly they are statements about *what to look at*, not figures.
# - Measure the same claim twice. Does the verdict stay? Do the figures?
# - A lesson that you have not read yet: guess the verdict first, then open the row.
#
# ### A table that everybody has seen
#
# One of the articles ends in a table: a technique a line, and a factor for each. It is a handy table. Here is the same table
# on the real engine, once for each of four workloads: **a crowd** of chats at once, people who come **one at a time**, **long
# documents** with short answers, and **repeating a text** that is already in the prompt. Speculation drafts by *n-gram
# lookup*: it guesses that what followed the same words before follows again. Compression drops the half of a
# context that has least to do with the question.

# %%
fickle = lab.predict(
    "fickle",
    "Whose factor depends most on the workload (best over worst)?",
    list(techniques.CLAIMED),
)
fickle

# %%
cells = techniques.measure(lab)
fickle.score(techniques.most_fickle(cells))

# %%
techniques.techniques_table(cells)

# %% [markdown]
# Read it line by line.
#
# - **Batching** answers a line of people. Whoever comes alone has nobody to share a step with: the work is the very same, and
#   these factors are 1 but for noise. So they tell how far to trust the others.
#   (Your prediction is not scored where they are so far off that nothing can be told: run the table again later.)
# - **Streaming** makes no token faster. Its factor is E2E over TTFT, so it is the length of the answer in disguise: large for long
#   answers, next to nothing where the prompt is long and the answer short.
# - **Speculation** needs text that can be guessed. Compare the text that repeats its prompt with the chats.
# - **Compression** shortens prefill. Where no context is there to cut, or where the answer takes most of the time, it has little to
#   give; and what it costs in quality is not in the table at all (lesson 03).
#
# ### Where it hurts
#
# Look for factors below 1: drafts that are checked and thrown away while the processor is busy with others, or a
# closed batch that one long answer keeps closed. A factor below one is the figure that no table prints. The claim about
# the table (this writes its row of the ledger, too):

# %%
ledger.keep(d22(cells))

# %% [markdown]
# ### Three that are about big machines
#
# Two post-mortems and an interview question, played again on the simulator at 13B and 70B, with the very scheduler that runs here.
# Its constants are of vLLM on an RTX 4090, moved to those GPUs, and 14% off at most where figures for them are published. So trust ratios and orders of magnitude, not the second digit.

# %%
ledger.measure_all(["A17", "A18", "D23"])

# %%
from course.lab import simulated_70b
from course.lab.lesson_13.claims import SERVER

simulated_70b.error_band(simulated_70b.deployment(**SERVER))

# %% [markdown]
# In the first, the dump's own numbers do not fit one machine: two lines of arithmetic show it, before anything is measured. In
# the second, half of the diagnosis was right: the time was in the queue. The slots did not put it there. In the third, look
# at who makes up the p99.

# %% [markdown]
# ## Deep dive
#
# **What a verdict is.** A function of runs. It takes what the lesson has measured, compares it with thresholds that have names, and
# returns a claim with its evidence. The same function, given other runs, returns another verdict; tests hold that.

# %%
import inspect

from course.lab.lesson_14 import claims as example

print(inspect.getsource(example.verdict))

# %% [markdown]
# **How the ledger finds its experiments.** The `claims.py` of each lesson's folder, `course/lab/lesson_NN/`, has a `MEASURE`: from the id of a claim to a
# function that takes the lab. To add a claim, add it to the `claims.toml` beside it and a function there.
#
# **Take it with you.** As Markdown, CSV or JSON, with the device's name, date and versions in each row.

# %%
ledger.export("ledger.md")

# %% [markdown]
# ## Say it in an interview
#
# > "When somebody quotes a factor I ask four things. Of what: TTFT, ITL, throughput, cost? Against which baseline? On which workload:
# > prompt and answer lengths, load, batch? And what did it cost: quality, memory, somebody else's tail? Most published
# > figures are true for their authors. I would run the smallest experiment that could prove me wrong, on our traffic, and keep the
# > result with its machine and date."
#
# ## Check yourself
#
# Replace the dots. Keys come from the ledger as it is now, and from the table above.

# %%
check = checks(ledger, cells)

check("q1", ...)  # how many of the claims hold as they stand, in the ledger now?

# %%
check("q2", ...)  # the id of a claim that is wrong here

# %%
check("q3", ...)  # the technique whose factor depends most on the workload

# %%
check("q4", ...)  # the factor of continuous batching with a crowd, here

# %%
check("q5", ...)  # ids of two claims about the queue that hold only under a condition: ["...", "..."]

# %% [markdown]
# ## What this lab cannot tell you
#
# - **What their authors saw.** A claim that comes out wrong here may have been right on their traffic. The verdict is about the
#   claim as it is written, for whoever reads it without that traffic.
# - **Small experiments.** Each takes seconds. Its lesson runs the longer one, shows the picture, and says what else could explain it.
# - **Verdicts in one word.** They help with finding, not with deciding. The sentence behind the word is the result.
# - **Simulated rows** are as good as their constants; the lessons print the error beside each.
# - **Your server.** Point the experiments' ideas at it: the lessons say how, and `minillm bench serve` loads any OpenAI-compatible
#   endpoint.
#
# ## Sources
#
# - The five articles, by the first letter of a claim's id. A: *Serving LLMs: The Latency Anatomy Framework*. B: *Decomposing LLM Inference
#   Latency for Better Serving Performance*. D: an article on techniques for lower LLM latency. E: *Latency Optimization in LLM
#   Inference Systems*. F: an article on LLM latency in three layers. D22 is the table at the end of D.
# - Why to predict first: Crouch et al., *Classroom demonstrations: learning tools or entertainment?*, 2004.
# - n-gram drafts: Saxena, *Prompt Lookup Decoding*, 2023. Relevance: Robertson and Zaragoza, *The Probabilistic Relevance
#   Framework: BM25 and Beyond*, 2009.
# - A100: NVIDIA's data sheet. H100 constants: vLLM 0.19 on an RTX 4090, from the validation data of LLMServingSim, moved.
