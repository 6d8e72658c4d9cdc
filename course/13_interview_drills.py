# %% [markdown]
# # 13 · Interview drills
#
# "Our p99 is too high. Where do you look first?" The clock is running, and someone is watching you think. In this
# lesson you practise saying what you know out loud: a diagnosis before a fix, a number before an opinion, a question
# before a guess.
#
# You'll be able to take a profiling dump (a page of one server's numbers) apart in twelve minutes, check whether its
# numbers can all be true, and rank what you'd do, naming the phase each step acts on.
#
# - **Surface** (ten minutes): one drill against the clock, and a bet on what scores.
# - **Guided** (thirty, and 45 for the mock interview): a long drill, what separates the levels, your history.
# - **Deep dive** (five): what the graders read, and what they can't.

# %%
from course.drills import lesson
from course.drills.checks import false_statements
from course.drills.desk import DrillDesk, MockInterview, solution
from course.drills.library import FLAGSHIP, find_drill
from course.lab import open_lab, simulated_70b
from course.lessons.lesson_13 import run
from course.lessons.lesson_13.check import checks
from course.lessons.lesson_13.words import a17
from course.rounds.desk import RoundDesk

lab = open_lab()
dump = find_drill(FLAGSHIP).drawn()

# %% [markdown]
# ## Surface
#
# An interviewer isn't asking which techniques exist. They want to know whether you have a model of where the time goes.
# Start with two numbers, **TTFT** and **ITL**: ask for both within the first minute.
#
# Here's a short drill. The prompt appears when you press Start, and the clock runs in your browser. Write the way you'd
# speak, and commit: what dominates, what comes second, the number that's asked for, three fixes in order. After you
# hand in, the interviewer pushes back. Then you grade two answers by other people before you grade your own.

# %%
short = DrillDesk("p99-8s")  # 3 minutes
short

# %% [markdown]
# The clock never stops you. Running over is information, not failure.
#
# ### Predict
#
# Two candidates answer the drill above, and commit to the same dominant phase. One writes two
# sentences with two calculations, the other a long text in which every buzzword appears several times.

# %%
words = lab.predict("words", "Which of the two scores more points?", [lesson.QUICK, lesson.STUFFED])
words

# %%
outcome, both = lesson.duel(find_drill("p99-8s").drawn())
words.score(outcome)

# %%
both

# %% [markdown]
# Wording earns no points. What can be computed does: your commitments, your numbers, your sums, and plain statements
# such as "replicas shorten a decode step". Whether you *argue* well is for a reader to say.
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
desk = DrillDesk(FLAGSHIP)  # 12 minutes
desk

# %%
solution(desk)  # empty until you have graded

# %% [markdown]
# ### What separates the levels?
#
# There are sample answers at four levels (weak, passing, strong, staff) and a fluent one that is false. A program
# checks what can be computed from each. How far apart are the strong and the staff answer?

# %%
gap = lab.predict("gap", "From strong to staff: how many computed points?", list(lesson.APART))
gap

# %%
gap.score(lesson.strong_to_staff(dump))

# %%
lesson.samples_table(dump)

# %% [markdown]
# Read it column by column. The upper rows are computed: they tell a guess from a calculation, and truth from fluency.
# The lower rows need a reader. Staff answers add conditions to the order ("if it's still slow after that"), and say
# what each open question would change. The staff answer here uses no jargon at all.
#
# That reader is you, and a reader has to be calibrated: your own grade is weighted by how close you came on the two
# sample answers. A level that you give yourself counts only if you quote a sentence of yours that shows it.
#
# ### A mock interview
#
# Forty-five minutes: the dump, two short drills, pushback after each, a debrief. Say it aloud first, then write notes.
# In a terminal: `minillm drill mock`.

# %%
MockInterview(seed=1)

# %% [markdown]
# ### An open design round
#
# Onsite, the prompt is two vague sentences. Ask for what matters (there isn't time for everything), estimate, draw boxes
# and arrows, go deep twice, survive a failure and a change of mind. The verdict is a level with reasons, beside what a
# junior, a senior and a staff candidate do with the same prompt. There are eight: `minillm round list`.

# %%
RoundDesk("weights")  # 40 minutes

# %% [markdown]
# ### All drills
#
# Each can be generated with other numbers: `DrillDesk("ttft-7s", seed=4)`. In a terminal: `minillm drill list`.

# %%
lesson.drills_table()

# %% [markdown]
# ### Your history
#
# Answers stay on this machine. Find the criterion that isn't improving and practise that one. `minillm drill history
# --html report.html` writes a page to print.

# %%
lesson.your_history()

# %%
lesson.what_next()

# %% [markdown]
# ### Where it hurts
#
# The program reads plain statements: a technique, a verb, a quantity. The first sentence below is one of those. The
# second is just as false, and isn't caught.

# %%
for false in ("Speculation cuts prefill by half.", "A long answer makes its own first token late."):
    print(false, "->", [said.right for said in false_statements(dump, false)] or "not read")

# %% [markdown]
# That's why each grader says what it can't judge. A language model can be a third grader (`minillm drill grade ...
# --judge-url`): it has to quote your answer for each level it gives, is asked twice, and you see where it disagrees
# with itself.
#
# ### The dump, on a simulated server
#
# Could its numbers come from one server? The simulator serves the same traffic on two A100s, with this course's
# scheduler.

# %%
a17(run.experiment(lab))

# %%
simulated_70b.error_band(simulated_70b.deployment(**run.SERVER))

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
# **The statements.** A sentence is checked against a table of what techniques do, where that can be said without an "it
# depends". Where all three effects are listed it does depend: a plain statement about those passes, unless the drill
# itself settles it. These lines are about the queue:

# %%
from course.drills.stated import table

for pair, (effect, _, right) in table()["effects"].items():
    if pair.endswith(".queue"):
        print(f"{pair:20} {effect:8} {right}")

# %% [markdown]
# ## Say it in an interview
#
# > "Before I propose anything I'd want TTFT and ITL separately, because one number can describe opposite systems. From
# > these numbers I can work out what the server would have to do, and whether it can. The dominant phase is this one,
# > because of that number; the other explanation would show up in that panel. First I'd change what's free and
# > reversible, then measure. If it's still slow, the next step depends on what I see. And here's what would change my
# > ranking."
#
# ## Check yourself
#
# Replace the dots. The answers come from the flagship's numbers: read its prompt again.

# %%
print(dump.prompt)
check = checks(dump)

check("q1", ...)  # if every gap were as long as its p99: how many seconds does an average answer take to generate?

# %%
check("q2", ...)  # the prompts alone: how many times what two A100s can compute on paper?

# %%
check("q3", ...)  # with that wait, how many requests are in flight? (Little's law, TTFT and decoding)

# %%
check("q4", ...)  # a sentence with a calculation of your own, written out, and what it means

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Whether you'd be hired.** Interviewers also notice tone, whether you listen, and how you take a hint.
# - **Whether an argument is true.** Numbers, sums, commitments and plain statements are checked. The rest is your own
#   judgement, weighted by how well you graded two samples, or a language model's.
# - **English only.** Statements in other languages aren't read.
# - **Other companies' bar.** These levels are this course's own; companies draw their lines elsewhere.
#
# ## Sources
#
# - A17, the flagship and its rubric's criteria: *Serving LLMs: The Latency Anatomy Framework*.
# - Little's law: J. Little, *A Proof for the Queuing Formula L = λW*, 1961.
# - Acceptance and speedup in the drills on speculation: Leviathan, Kalman and Matias, *Fast Inference from Transformers
#   via Speculative Decoding*, 2023.
# - GPU figures: NVIDIA's data sheets, as in `course/simulator/cost/hardware.py`.
