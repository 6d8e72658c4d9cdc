# %% [markdown]
# # 14 · The claims ledger
#
# "I read that it makes things 2.3 times as fast." Which things, on whose traffic? That sentence comes up in every
# meeting about latency.
#
# This course has put the claims of five public articles to the test. Here they all are, each with the experiment that
# measures it, and what it found on *this* machine. Behind them is one question, and by the end you'll ask it of any
# figure before you run anything: **on which workload?**
#
# - **Five minutes** (five, and the time that measuring takes): one claim, then all of them in one picture.
# - **The lab** (ten): the ledger with filters.
# - **In the interview** (five): the line, its follow-ups, a derivation. (The check is at the end.)
# - **Going deeper** (ten): one article's table of factors on four workloads, how a verdict is computed, a claim of
#   your own.

# %%
from course.lab import open_lab
from course.lessons.lesson_14 import run, words
from course.lessons.lesson_14.check import checks
from course.lessons.lesson_14.ledger import Ledger, LedgerPanel
from course.lessons.lesson_14.rows import draw_map
from course.lessons.lesson_14.words import d22

lab = open_lab()
ledger = Ledger(lab)

# %% [markdown]
# ## Five minutes
#
# A claim is only as good as the experiment behind it. So each row of the ledger has one, small enough to run while you
# wait. The next cell runs the one that says attention takes 60 to 70% of the compute, and keeps the result.

# %%
ledger.measure("D18")

# %% [markdown]
# There are four verdicts. **holds**: as stated. **in part**: under a condition, or only some of it; the row says
# which. **wrong**: the row gives the right statement. **not shown**: this machine, or this run, can't tell. Verdicts
# are computed from measurements; on another machine some come out differently, and that's a finding, too.
#
# Results are kept: the ledger is a file in minillm's home (`~/.cache/minillm/ledger`), with machine, versions and
# date.
#
# ### Predict
#
# The five articles give advice on latency, most of it as figures. How many of their claims hold as they stand,
# without a condition the article left out? (The cell after your bet runs every experiment that has no result on this
# machine yet. Some take a second, some half a minute, about ten minutes in all on 2 cores.)

# %%
bet = lab.predict(
    "as they stand",
    "Of the claims that can be judged here, how many hold as they stand?",
    words.HOLDING,
)
bet

# %%
ledger.measure_all()
bet.score(words.as_they_stand(ledger.rows()))

# %% [markdown]
# The bar says which experiment is running. You can stop the cell and run it again; it continues where it was. An
# experiment that fails says so in its row, and the others continue.

# %%
draw_map(ledger.rows())

# %% [markdown]
# A full tile holds, one filled at the bottom is true in part, a crossed one is wrong, a hollow one couldn't be decided,
# and a dashed one hasn't been measured. **Most of what you read isn't wrong. It's true of a workload that it doesn't
# name.** Count the tiles that are filled at the bottom.

# %% [markdown]
# ## The lab
#
# ### The ledger
#
# Filter by article, by phase, by verdict, by lesson. Choose a claim and press *Measure it*. Open "what was measured" to
# read the evidence. The map follows the filters.

# %%
LedgerPanel(ledger)

# %% [markdown]
# <details><summary>Things to find, and what you'll see</summary>
#
# - *Queue, wrong or in part*: most of these claims leave out the load.
# - *Decode*: a claim that names no batch size is usually about a batch of one.
# - *Holds*: mostly statements about *what to look at*, not figures.
# - *The same claim, measured twice*: the figures vary with this machine's noise. A verdict that changes, or a part of
#   one, rests on an effect near that noise, or on a disturbed run, so measure it a third time.
# - *A17, A18, D23*: an interview question and two post-mortems, replayed on the simulator. In A17 two lines of
#   arithmetic show that the numbers don't fit one server, before anything is measured. In A18 the time was in the
#   queue, as the story says, but the slots weren't the cause. In D23, look at which requests make up the p99.
#
# </details>

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "When someone quotes a factor, I ask: of what, against which baseline, on which workload, at what cost? Most
# > figures were true for their authors. So I run the smallest experiment that could prove it wrong on our own
# > traffic."
#
# **Follow-ups**
#
# <details><summary>"A vendor promises 3x throughput. What do you ask?"</summary>
#
# Against which baseline, and at what latency? Throughput without an SLO is a batch job. At which lengths, how much
# prefix sharing, which batch size? Then I'd replay an hour of our own traffic at our peak rate, alternating between
# their best configuration and ours, and compare goodput.
#
# </details>
#
# <details><summary>"Two techniques give 1.5x and 2x. Together 3x?"</summary>
#
# Rarely. If they shorten different parts of a request, it's the savings that add up: 1.5x saves a third of the time
# and 2x saves half, so a sixth is left, which is 6x. If they shorten the same part, they compete for the same
# seconds, and one may move the bottleneck to where the other does nothing. So I'd measure the pair, in the order in
# which we'd ship them.
#
# </details>
#
# **"An article says prefix caching cuts TTFT by 60%. Expect that here?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "Yes, it's a standard technique." | "It depends on how much of our prompts is shared." | "TTFT is queue plus prefill plus first token. Caching shortens prefill, and the queue behind it. What share of prompt tokens repeats within the cache's lifetime? If it's half, and prefill is 80% of TTFT, that's 40%, and more if prefill is what the queue is waiting for. I can get the hit rate from last week's logs before touching anything." |
#
# **Three numbers to know cold**

# %%
words.three_numbers(ledger.rows())

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>What is a claimed factor worth here?</summary>
#
# 1. The technique shortens a part that is a share $f$ of the time, by a factor $s$.
# 2. New time: $1 - f + f/s$ (Amdahl). Gain: its inverse.
# 3. $s$ = 2.3 on decode that's 60% of E2E: 1 / (0.4 + 0.26) = 1.5.
# 4. With a queue: if slots are held for that much less, load falls from $\rho$ to $\rho/1.5$, and the wait by more.
# 5. So the same 2.3 is 1.5 on an idle server, more on a busy one, and nothing where $f$ is small. Ask for $f$.
#
# </details>

# %% [markdown]
# ## Going deeper
#
# ### A table everyone has seen
#
# One of the articles ends in a table: a technique per row, and one factor for each. If a factor belongs to a
# technique, it should be about the same on any traffic. So here's the table on the real engine, once for each of four
# workloads: **a crowd** of chats sent together, chats **one at a time**, **long documents** with short answers, and
# **repeating a text** that's already in the prompt. (Speculation drafts by n-gram lookup, lesson 08. Compression
# drops the half of a context that's least relevant to the question, lesson 03.)

# %%
fickle = lab.predict(
    "fickle",
    "Which technique's factor depends most on the workload (best over worst)?",
    list(run.CLAIMED),
)
fickle

# %%
cells = run.measure(lab)
fickle.score(words.most_fickle(cells))

# %%
run.techniques_table(cells)

# %% [markdown]
# - **Batching** shortens a queue. A request by itself has nothing to share a step with, so its factor is 1, give or
#   take noise; that noise says how far to trust the others. (If the noise is too large, your prediction isn't
#   scored.)
# - **Streaming** makes no token faster. Its factor is E2E over TTFT, so it mostly reflects the length of the answer.
# - **Speculation** needs text that can be guessed. Compare the text that repeats its prompt with the chats.
# - **Compression** shortens prefill. Where there's no context to cut, or decode takes most of the time, it gains
#   little; and its cost in quality isn't in the table at all (lesson 03).
#
# ### Where it hurts
#
# Look for factors below 1, where a technique costs more than it brings: drafts that are checked and discarded while the
# processor is busy with other requests, a static batch held open by one long answer, long prefills that share their
# steps and so all end late. Articles don't print those. Here's the claim about the table (this writes its row of the
# ledger, too):

# %%
ledger.keep(d22(cells))

# %% [markdown]
# ### What a verdict is
#
# It's a function of runs. It takes what the lesson measured, compares it with named thresholds, and returns the
# verdict with its evidence. Given different runs it returns a different verdict, and tests check that.

# %%
import inspect

print(inspect.getsource(words.verdict))

# %% [markdown]
# **How the ledger finds its experiments.** The `words.py` of each lesson's folder, `course/lessons/lesson_NN/`, has a
# `MEASURE`, which maps a claim's id to a function that takes the lab. To add a claim, add it to the `words.toml`
# beside it and a function there.
#
# **Take it with you.** The ledger exports to Markdown, CSV or JSON, and each row has the device's name, the date and
# versions.

# %%
ledger.export("ledger.md")

# %% [markdown]
# ## Check yourself
#
# Answers come from the ledger as it is now, and from the table above.

# %%
check = checks(ledger, cells)
check.card()

# %% [markdown]
# ## What this lab cannot tell you
#
# - **What their authors saw.** A claim that comes out wrong here may have been right on their traffic. The verdict is
#   about the claim as written, for a reader who doesn't have that traffic.
# - **What a longer run would show.** The experiments here are kept short. The lesson that a row names runs a longer
#   one, shows the chart, and says what else could explain the result.
# - **Simulated rows** are as good as their constants; the lessons print the error beside each.
# - **Your server.** To repeat such experiments there, `minillm bench serve` load-tests any OpenAI-compatible endpoint.
#
# ## Sources
#
# - The five articles, by the first letter of a claim's id. A: *Serving LLMs: The Latency Anatomy Framework*. B:
#   *Decomposing LLM Inference Latency for Better Serving Performance*. D: an article on techniques for lower LLM
#   latency. E: *Latency Optimization in LLM Inference Systems*. F: an article on LLM latency in three layers. D22 is
#   the table at the end of D.
# - Why predict first: Crouch et al., *Classroom demonstrations: learning tools or entertainment?*, 2004.
# - n-gram drafts: Saxena, *Prompt Lookup Decoding*, 2023. Relevance: Robertson and Zaragoza, *The Probabilistic
#   Relevance Framework: BM25 and Beyond*, 2009.
