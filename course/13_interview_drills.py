# %% [markdown]
# # 13 · Interview drills
#
# "Our p99 is too high. Where do you look first?" The clock is running, and someone is watching you think. In this
# lesson you practise saying what you know: a diagnosis before a fix, a number before an opinion, a question before a
# guess.
#
# You'll be able to take apart a profiling dump (a page of one server's numbers) in twelve minutes, check whether its
# numbers can all be true, and rank what you'd do, naming the phase that each fix acts on.
#
# - **Five minutes** (ten this time): one short drill against the clock, and a bet on what it's worth to admit what
#   you don't know.
# - **The lab** (fifteen): how a drill is scored, and a long one, twelve minutes.
# - **In the interview** (ten): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (fifteen; the mock interview takes 45 more, a design round 40): what separates the levels, all
#   drills, your history, why the scoring rewards honesty.

# %%
from course.drills import lesson
from course.drills.desk import DrillDesk, MockInterview, solution
from course.drills.library import FLAGSHIP, find_drill
from course.lab import open_lab, simulated_70b
from course.lab.claims import in_short
from course.lessons.lesson_13 import run, words
from course.lessons.lesson_13.check import checks
from course.lessons.lesson_13.words import a17
from course.rounds.desk import RoundDesk

lab = open_lab()
dump = find_drill(FLAGSHIP).drawn()

# %% [markdown]
# ## Five minutes
#
# An interviewer isn't asking which techniques exist. They want to know whether you have a model of where the time goes.
# Start with two numbers, **TTFT** and **ITL**: ask for both within the first minute.
#
# Here's a short drill. The prompt appears when you press Start, and the clock runs in your browser:
#
# 1. **Ask.** You get five questions to the interviewer. Some in the menu lead nowhere.
# 2. **Answer.** Write the way you'd speak, or press Record and say it first (the recording stays in this page).
# 3. **Commit**: what dominates, what comes second, the number that's asked for, three fixes in order, and which finding
#    would change your mind. The interviewer pushes back, one question at a time.
# 4. **Judge.** Eight statements about this very case, some of them false. You agree or disagree, and say how sure you
#    are. Then you grade two sample answers, and your own.

# %%
short = DrillDesk("p99-8s")  # 3 minutes
short

# %% [markdown]
# The clock never stops you. Running over is information, not failure.
#
# ### Predict
#
# Two candidates judge the eight statements of the drill above, and both are right about six of them. One is sure of all
# eight. The other is fairly sure of those six, and says of the other two that they'd be guessing.

# %%
sure = lab.predict("sure", "Who scores more?", [lesson.SURE_OF_ALL, lesson.ADMITS, lesson.SAME])
sure

# %%
sure.score(lesson.duel(find_drill("p99-8s").drawn()))

# %% [markdown]
# Real interviews work the same way. An interviewer forgives "I'd have to measure that", and doesn't forgive a
# confident mistake about the thing you'll be on call for.
#
# **Diagnose, derive, rank, ask.**

# %% [markdown]
# ## The lab
#
# ### How a drill is scored
#
# | part | points | who judges |
# |---|---|---|
# | commitments: what dominates (2), the second problem (1), the number (2), the ranking of fixes (2) | 7 | a program, from the drawn numbers |
# | a finding that would change your mind (1), and a fix for it that you hadn't put first (1) | 2, so a drill shows "of 9" | a program |
# | eight statements | each from about −2.6 (sure and wrong) to 1 (sure and right), a guess 0; their mean is shown | a program |
# | the prose | a level for each criterion, with a quote that shows it | you; the better you graded the two samples, the more it counts |
#
# There's no total. The verdict starts from the statements and the finding, because they show what you understand. The
# seven points count only a little beyond that, because menus can be guessed.
#
# ### The flagship
#
# You have twelve minutes for four paragraphs: diagnosis, secondary problem, interventions (ranked, with phases), open
# questions. Have pen and paper ready, because the prompt's numbers are meant to be multiplied.

# %%
desk = DrillDesk(FLAGSHIP)  # 12 minutes
desk

# %%
solution(desk)  # empty until you have graded

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "I'd ask for TTFT and ITL first, since one number can describe opposite systems. From those I work out what the
# > server would have to do, and whether it can. Then I name the dominant phase and my evidence, change what's free,
# > and measure."
#
# **Follow-ups**
#
# <details><summary>"Interesting. Are you sure?"</summary>
#
# Say how sure you are, and what would change your mind: "Fairly. If KV usage were under half, I'd drop memory and
# look at slots." Don't fold and don't dig in: the interviewer wants to see whether you know which of your premises is
# measured and which is assumed.
#
# </details>
#
# <details><summary>"You have no data for that. Guess."</summary>
#
# Give an order of magnitude, how you got it, and a range: "About 300 kB of KV per token for a 70B with GQA, so half a
# gigabyte for a chat of 1,650 tokens. Even if I'm off by two, a hundred of them fit beside the weights on four
# H100s." A number that can be wrong beats an adjective that can't.
#
# </details>
#
# **"p99 is too high. What do you do?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "I'd look at quantization, speculation, a bigger batch and caching." | "TTFT or ITL? If TTFT is 7 s and ITL a normal 40 ms, it's before the first token, so queue or prefill. Running requests and KV usage tell me what the queue is waiting for. Slots are a setting, so I'd try those first, then KV, then replicas." | "Say it's 7 s and 40 ms. A prompt of 1,500 tokens takes a 70B on four H100s about 0.1 s, so it's the queue. If slots are full and KV is free, I'd raise `max_num_seqs` and expect TTFT under 1 s within minutes. If it's still slow after that, I'd compare requests × tokens × 2 FLOPs per weight with the data sheet, which tells me whether any setting can help. How long are the answers? If they've doubled since last week, I'd cap them before I buy anything." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>Can this dump come from one server?</summary>
#
# At $\lambda$ requests/s with $p$ tokens in and $n$ out, a model of $P$ weights, and $k$ bytes of KV a token:
#
# 1. Prefill it needs: $\lambda\, p \cdot 2P$ FLOP/s. If that's above the data sheet of its GPUs, no.
# 2. In flight: $N = \lambda\,(\text{TTFT} + (n-1)\,\text{TPOT})$. Of these, $N_d = \lambda\,(n-1)\,\text{TPOT}$ are
#    decoding; the others may be waiting, without KV.
# 3. KV that's held: at least $N_d \cdot k\,(p + n/2)$ bytes. If that's above memory minus weights, no.
# 4. Is it in steady state? Above capacity TTFT has no percentile, because it grows for as long as you look.
# 5. If one server can't do it, it's a fleet behind one name, prompts that are mostly cached, or a burst. Say which
#    you'd check first.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# The answers come from the flagship's numbers, so read its prompt again.

# %%
print(dump.prompt)
check = checks(dump)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### What separates the levels?
#
# There are sample answers at four levels (weak, passing, strong, staff) and a fluent one that is false. They name their
# finding in prose, so their commitments count out of 7. How far apart are the strong and the staff answer?

# %%
gap = lab.predict("gap", "From strong to staff: how many points of commitments?", list(lesson.APART))
gap

# %%
gap.score(lesson.strong_to_staff(dump))

# %%
lesson.samples_table(dump)

# %% [markdown]
# Read it column by column. The upper rows are commitments, which tell right answers from wrong ones, but not strong
# from staff. The lower rows need a reader. A staff answer adds conditions to the order ("if it's still slow after
# that"), says what each open question would change, and puts a number on every term it uses.
#
# That reader is you. Two of the five samples are drawn for you to grade first, and they may be the strong and the staff
# one.
#
# ### A mock interview
#
# It takes forty-five minutes: three or four drills, each followed by pushback and statements, then a debrief with a
# verdict. Say your answers aloud first, then write notes. In a terminal it's `minillm drill mock`.
#
# As a take-home there's `minillm beat start policy.py`: you write a scheduler, a router and admission in at most 200
# lines, and they're measured against vLLM's rule ([how](../docs/challenge.md)).

# %%
MockInterview(seed=1)

# %% [markdown]
# ### An open design round
#
# At an onsite, the prompt is two vague sentences. Ask for what matters (there isn't time for everything), estimate,
# draw boxes and arrows, go deep twice, and survive a failure and a change of mind. You get a level with reasons, beside
# what a junior, a senior and a staff candidate do with the same prompt. There are eight: `minillm round list`;
# `minillm round` says how yours went.

# %%
RoundDesk("weights")  # forty minutes of its own

# %% [markdown]
# ### All drills
#
# Each can be drawn with other numbers and other statements: `DrillDesk("ttft-7s", seed=4)`; its number in this list, as
# in `DrillDesk("3")`, works as a name, too. A title gives away half the answer, so titles, topics and sources appear
# once you've sat a drill. In a terminal: `minillm drill list`. Shorter questions, with answers to compare yours with, are
# in [Also asked](guide_questions.md).

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
# Here's the fluent answer to the dump, false from end to end, combined with the *staff* answer's commitments. It's
# graded three times: with no statement answered, with a confident yes to all of them, and with the answers of someone
# who knows the case.

# %%
lesson.right_menus(dump)

# %% [markdown]
# The prose and the commitments were the same each time, and the verdict wasn't, because it follows the statements. No
# program read the prose. A language model can (`minillm drill grade ... --judge-url`): it grades the five samples
# first, you see how often it agreed, and a model that's too far off isn't used.
#
# ### The dump, on a simulated server
#
# Could its numbers come from one server? The simulator serves the same traffic on two A100s, with this course's
# scheduler.

# %%
in_short(
    a17(run.experiment(lab)),
)

# %%
simulated_70b.error_band(simulated_70b.deployment(**run.SERVER))

# %% [markdown]
# ### The arithmetic
#
# With $\lambda$ requests a second, $p$ tokens in, $n$ out, $P$ weights, $F$ FLOP/s of all GPUs in a server:
#
# $$\text{E2E} \approx \text{TTFT} + (n-1)\,\text{TPOT}, \qquad N = \lambda \cdot \text{E2E}, \qquad
# \text{servers} \ge \frac{\lambda\, p \cdot 2P}{F}$$
#
# The second is Little's law: $N$ requests are in flight. TPOT is a request's mean gap. The p99 of a gap times the
# number of gaps usually overestimates, and it isn't any request's time; say so if you use it.
#
# **Why honesty pays.** Let $q$ be the probability you give that a statement is true, and $t$ the truth, 1 or 0. The
# points are $1 - 4(q - t)^2$: Brier's rule, shifted so that a coin toss scores 0. It's *proper*: you earn the most on
# average by saying exactly how sure you are. Each column's best entry is on the diagonal:

# %%
lesson.rule_table()

# %% [markdown]
# The eight come from twenty-odd that each drill has. Most of them aren't marked true or false in advance. That's
# computed from the drawn numbers, with the drill's formulas and the simulator's step times, so another seed can turn
# a true one false. (Some are about method, such as what a p99 can be used for, and stay true or false under any
# numbers.) A statement isn't used if its answer would flip when a figure you work out is slightly off.

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Whether you'd be hired.** Interviewers also notice tone, whether you listen, and how you take a hint.
# - **Whether an argument is true.** Only you judge prose here, or a language model that you bring.
# - **Whether your voice carries it.** You can record yourself and listen; nothing here does.
# - **Other companies' bar.** These levels are this course's own; companies draw their lines elsewhere.
#
# ## Sources
#
# - A17, the flagship and its rubric's criteria: *Serving LLMs: The Latency Anatomy Framework*.
# - The scoring of statements: G. Brier, *Verification of Forecasts Expressed in Terms of Probability*, 1950.
# - Little's law: J. Little, *A Proof for the Queuing Formula L = λW*, 1961.
# - Acceptance and speedup in the drills on speculation: Leviathan, Kalman and Matias, *Fast Inference from Transformers
#   via Speculative Decoding*, 2023.
# - GPU figures: NVIDIA's data sheets, as in `course/simulator/cost/gpus.json`.
