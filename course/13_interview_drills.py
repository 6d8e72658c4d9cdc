# %% [markdown]
# # 13 · Interview drills
#
# "Our p99 is too high. Where do you look first?" The clock is running, and someone is watching you think. In this lesson
# you practise saying what you know out loud: a diagnosis before a fix, a number before an opinion, a question before a
# guess.
#
# You'll be able to take a profiling dump (a page of one server's numbers) apart in twelve minutes, check whether they can
# all be true, and rank what you'd do, naming the phase each step acts on.
#
# - **Surface** (ten minutes): one drill against the clock, and a bet on what scores.
# - **Guided** (thirty): a long drill, what separates the levels, your history.
# - **Deep dive** (ten): how the scoring rules work and what they miss.

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
# An interviewer isn't asking which techniques exist. They want to know whether you have a model of where the time goes.
# Start with two numbers, **TTFT** and **ITL**: ask for both within the first minute.
#
# Here's a short drill. The prompt appears when you press Start, and the clock runs in your browser. Write the way you'd
# speak. Score yourself, then press Submit: the rules quote the words that earned or cost points, and four model answers
# appear.

# %%
short = Desk("p99-8s")
short

# %% [markdown]
# The clock never stops you. Running over is information, not failure.
#
# ### Predict
#
# Two candidates answer the profiling dump of the next section. One writes a handful of sentences with two calculations,
# the other a long text in which every right word occurs several times. The rules score both.

# %%
words = lab.predict("words", "Which of the two answers scores higher?", [lesson.QUICK, lesson.STUFFED])
words

# %%
outcome, both = lesson.duel(dump)
words.score(outcome)

# %%
both

# %% [markdown]
# To earn credit, a sentence has to connect cause, number and phase. A list of words isn't a claim, and length earns
# nothing.
#
# **Diagnose, derive, rank, ask.**

# %% [markdown]
# ## Guided
#
# ### The flagship
#
# Twelve minutes, four paragraphs: diagnosis, secondary problem, interventions (ranked, with phases), open questions.
# Have pen and paper ready; the prompt's numbers are meant to be multiplied.

# %%
desk = Desk(FLAGSHIP)
desk

# %%
solution(desk)  # empty until you have submitted

# %% [markdown]
# ### What separates the levels?
#
# There are model answers at four levels: weak, passing, strong, staff. In which dimension is the gap between a passing
# and a staff answer the widest?

# %%
gap = lab.predict("gap", "From passing to staff, what grows most?", list(lesson.DIMENSIONS.values()))
gap

# %%
gap.score(lesson.biggest_step(dump))

# %%
lesson.levels_table(dump)

# %% [markdown]
# Read it column by column: what does a passing answer already have, and what is missing? Staff answers add conditions to
# the order ("if it's still slow after that") and say what each open question would change.
#
# ### All drills
#
# Each can be drawn with other numbers: `Desk("ttft-7s", seed=4)`. In a terminal: `minillm drill list`.

# %%
lesson.drills_table()

# %% [markdown]
# ### Your history
#
# Answers stay on this machine. Find the dimension that isn't improving and practise that one. `minillm drill history --html
# report.html` writes a page to print.

# %%
lesson.your_history()

# %%
lesson.what_next()

# %% [markdown]
# ### Where it hurts
#
# Rules match words. The next answer has the right idea, but it's all metaphor, and the rules know few metaphors. (An
# interviewer would ask for the numbers, too.)

# %%
poetic = "Guests queue outside a half-empty restaurant. The kitchen is fine, so do not buy a second oven."
grade(find_drill("ttft-7s").drawn(), poetic)

# %% [markdown]
# If you disagree with a score, read its quotes: they show what the rules matched. That's why your own score is shown beside
# it. A language model can give a second opinion (`minillm drill grade ... --judge-url`); it's marked as such and changes no
# points.
#
# ### The dump, on a simulated server
#
# Could its numbers come from one server? The simulator serves the same traffic on two A100s, with this course's
# scheduler.

# %%
a17(claims.experiment(lab))

# %%
simulated_70b.error_band(simulated_70b.deployment(**claims.SERVER))

# %% [markdown]
# ## Deep dive
#
# **The arithmetic.** With $\lambda$ requests a second, $p$ tokens in, $n$ out, $P$ weights, $F$ FLOP/s of all GPUs in a
# server:
#
# $$\text{E2E} \approx \text{TTFT} + (n-1)\,\text{TPOT}, \qquad N = \lambda \cdot \text{E2E}, \qquad
# \text{servers} \ge \frac{\lambda\, p \cdot 2P}{F}$$
#
# The second is Little's law: $N$ requests are in flight. TPOT is a request's mean gap. The p99 of a gap times a count
# usually overestimates, and it isn't any request's time; say so when you use it.
#
# **The rules.** A rule names concepts that have to occur together within a sentence or two, such as `decode + derived`:
# decoding, and a correct number derived from the prompt's. Concepts have synonyms, in one file, and negations count.

# %%
import inspect

from course.lab.drills import patterns, scoring

print(patterns.__doc__)
print(inspect.getsource(scoring._diagnosis))

# %% [markdown]
# ## Say it in an interview
#
# > "Before I propose anything I'd want TTFT and ITL separately, because one number can describe opposite systems. From
# > these numbers I can work out what the server would have to do, and whether it can. The dominant phase is this one,
# > because of that number; the other explanation would show up in that panel. First I'd change what's free and reversible,
# > then measure. If it's still slow, the next step depends on what I see. And here's what would change my ranking."
#
# ## Check yourself
#
# Replace the dots. The answers come from the flagship's numbers: read its prompt again.

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
# - **Whether you'd be hired.** Rules score text. Interviewers also notice tone, whether you listen, and how you take a
#   hint.
# - **Whether an argument is true.** The rules check numbers that follow from the prompt, calculations that are written
#   out, and a few popular errors. A confident sentence with the right concepts and a wrong idea can earn credit.
# - **English only.** Answers in other languages aren't understood.
# - **Other companies' bar.** These levels are this course's own; companies draw their lines elsewhere.
#
# ## Sources
#
# - A17, the flagship and its rubric's dimensions: *Serving LLMs: The Latency Anatomy Framework*.
# - Little's law: J. Little, *A Proof for the Queuing Formula L = λW*, 1961.
# - Acceptance and speedup in the drills on speculation: Leviathan, Kalman and Matias, *Fast Inference from Transformers
#   via Speculative Decoding*, 2023.
# - GPU figures: NVIDIA's data sheets, as in `minillm/simulate/cost/hardware.py`.
