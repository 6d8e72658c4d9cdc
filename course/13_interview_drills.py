# %% [markdown]
# # 13 · Interview drills
#
# "Our p99 is too high. Where do you look first?" The clock runs, and somebody watches you think. In this lesson you practise
# saying what you know: a diagnosis before a fix, a number before an opinion, a question before a guess.
#
# You will be able to take a profiling dump apart in twelve minutes, to check whether its numbers can be true together, and to
# rank what you would do, with the phase that each step acts on.
#
# - **Surface**: one drill, one clock, and a bet on what is rewarded.
# - **Guided**: the rules that score an answer, the list of drills, your history.
# - **Deep dive**: how the rules work, where they are blind, a claim put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.drills import lesson
from course.lab.drills.desk import Desk, solution
from course.lab.drills.grade import grade
from course.lab.drills.library import FLAGSHIP, find_drill
from course.lab.lesson_13 import claims
from course.lab.lesson_13.checks import checks
from course.lab.lesson_13.claims import a17

lab = open_lab()
dump = find_drill(FLAGSHIP).drawn()

# %% [markdown]
# ## Surface
#
# An interviewer does not ask which techniques exist. The question is whether you have a picture of where the time goes. Two
# numbers open that picture: **TTFT** (time to first token) and **ITL** (inter-token latency: the gap between one token and the next). Ask
# for both within the first minute.
#
# Here is a short drill. The prompt appears when you press Start, and the clock runs in your browser. Write as you would speak. Score
# yourself, then press Submit: the rules quote the words that earned or cost points, and four model answers appear.

# %%
short = Desk("p99-8s")
short

# %% [markdown]
# The clock never stops you. Being over time is information, not a failure.
#
# ### Predict
#
# Two people answer the profiling dump of the next section. One writes a handful of sentences with two calculations, and the other a long text in
# which every right word occurs several times. The rules score both.

# %%
words = lab.predict("words", "Which of the two answers scores higher?", [lesson.QUICK, lesson.STUFFED])
words

# %%
outcome, both = lesson.duel(dump)
words.score(outcome)

# %%
both

# %% [markdown]
# Credit needs a sentence that connects cause, number and phase. How many such sentences has each of the two? If the long one
# scored less, that is why: words in a row are no claim, and length earns nothing.
#
# That is the surface: *diagnose, derive, rank, ask.*

# %% [markdown]
# ## Guided
#
# ### The flagship
#
# Twelve minutes, four paragraphs: diagnosis, secondary problem, interventions (ranked, with phases), open questions. Have pen and
# paper ready; the prompt's numbers want to be multiplied.

# %%
desk = Desk(FLAGSHIP)
desk

# %%
solution(desk)  # empty until you have submitted

# %% [markdown]
# ### What separates the levels?
#
# There are model answers of four levels: weak, passing, strong, staff. Commit yourself: in which dimension is the gap between a passing and a
# staff answer the widest?

# %%
gap = lab.predict("gap", "From passing to staff, what grows most?", list(lesson.DIMENSIONS.values()))
gap

# %%
gap.score(lesson.biggest_step(dump))

# %%
lesson.levels_table(dump)

# %% [markdown]
# Read it column by column. What do passing answers have already, and what do they lack: the diagnosis, the arithmetic, an order
# with conditions ("if it is still slow after that"), or questions of which they can say what each answer would change?
#
# ### All drills
#
# Each can be drawn with other numbers: `Desk("ttft-7s", seed=4)`. In a terminal: `minillm drill list`.

# %%
lesson.drills_table()

# %% [markdown]
# ### Your history
#
# Answers stay on this machine. Look for the dimension that does not grow; it is the one to practise. `minillm drill history --html
# report.html` writes a page to print.

# %%
lesson.your_history()

# %%
lesson.what_next()

# %% [markdown]
# ### Where it hurts
#
# Rules read words, not minds. The next answer is right, and its author would pass in any room. Yet it speaks in pictures, and the rules
# know few pictures.

# %%
poetic = "People stand at the door and nobody lets them in. The kitchen is fine, so do not buy a second oven."
grade(find_drill("ttft-7s").drawn(), poetic)

# %% [markdown]
# When you disagree with a score, read its quotes: they show what was seen. Your own score stands beside it for that reason. A language
# model can give a second opinion (`minillm drill grade ... --judge-url`); it is marked as such and changes nothing.
#
# ### The dump, on a simulated server
#
# Could its numbers come from one server? The simulator serves the same traffic on two A100s, under the scheduler of this course. Its
# constants for that GPU were moved there from another one.

# %%
a17(claims.experiment(lab))

# %%
simulated_70b.error_band(simulated_70b.deployment(**claims.SERVER))

# %% [markdown]
# ## Deep dive
#
# **The arithmetic.** With $\lambda$ requests a second, $p$ tokens in, $n$ out, $P$ weights, $F$ FLOP/s in all GPUs:
#
# $$\text{E2E} \approx \text{TTFT} + (n-1)\,\text{TPOT}, \qquad N = \lambda \cdot \text{E2E}, \qquad
# \text{servers} \ge \frac{\lambda\, p \cdot 2P}{F}$$
#
# The second is Little's law: requests in flight. TPOT is a mean gap. Multiplying the p99 of a gap by a count gives an upper
# estimate, not the time of anybody; say so when you do it.
#
# **The rules.** A rule names concepts that have to meet within a sentence or two, such as `decode + derived`: decoding, and a number
# that follows from the prompt's and is right. Concepts have synonyms, in one file, and a "not" is heard.

# %%
import inspect

from course.lab.drills import patterns, scoring

print(patterns.__doc__)
print(inspect.getsource(scoring._diagnosis))

# %% [markdown]
# ## Say it in an interview
#
# > "Before I propose anything I want TTFT and ITL apart, since one number fits opposite systems. From these numbers I can derive what
# > the server would have to do, and whether it can. The dominant phase is this, because of that number; the other explanation would show in
# > that panel. First I would change what is free and can be undone, then measure. If it is still slow after that, the next step depends on what
# > the measurement says. And I would ask what would change my order."
#
# ## Check yourself
#
# Replace the dots. Keys come from the flagship's numbers: read its prompt again.

# %%
print(dump.prompt)
check = checks(dump)

check("q1", ...)  # if every gap were as long as its p99: how many seconds does an average answer take to write?

# %%
check("q2", ...)  # the prompts alone: how many times what two A100s can compute on paper?

# %%
check("q3", ...)  # with that wait, how many requests are in flight? (Little's law, TTFT and decoding)

# %%
check("q4", ...)  # a sentence with a calculation of your own, written out, and what it means

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Whether you would be hired.** Rules score what can be read off a text. Interviewers also hear tone, listening, and how you take
#   a hint.
# - **Whether an argument is true.** The rules check numbers that follow from the prompt, calculations that are written out, and a few popular
#   errors. A confident sentence with the right concepts and a wrong idea can earn credit.
# - **English only.** Answers in other languages are read as words that nobody knows.
# - **Other people's bar.** Levels are this course's; companies draw the line elsewhere.
#
# ## Sources
#
# - A17, the flagship and its rubric's dimensions: *Serving LLMs: The Latency Anatomy Framework*.
# - Little's law: J. Little, *A Proof for the Queuing Formula L = λW*, 1961.
# - Acceptance and speedup in the drills on speculation: Leviathan, Kalman and Matias, *Fast Inference from Transformers via
#   Speculative Decoding*, 2023.
# - GPU figures: NVIDIA's data sheets, as in `minillm/simulate/cost/hardware.py`.
