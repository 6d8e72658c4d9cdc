# %% [markdown]
# # minillm: start page
#
# A course on LLM serving latency, run on a real engine. **New here?** Open [lesson
# 00](00_start_here.ipynb); in fifteen minutes you'll have seen where the time goes. Come back for the map.
#
# Run this page from the top (*Run > Run All Cells*); it then shows how far you've got.

# %%
from course.lab.phase_map.measure import PhaseMap
from course.lab.phase_map.picture import provenance_note, remeasure, runs_table, show_map
from course.lessons.start.contents import INTERVIEW, SERVER, TEACHER
from course.lessons.start.resume import keep_or_reset, show_path, where_next
from course.lessons.start.review import Review, export
from course.lessons.start.today import Today
from course.napkin.desk import NapkinDesk

where_next()

# %% [markdown]
# ## Today
#
# A little every day makes it stick: an incident that's the same for everyone, with a par; a sum; and where your drills and
# design rounds go on.

# %%
Today()

# %% [markdown]
# In a hurry? Two guides with no code to run: [It's 2 a.m.](guide_2am.md) (a symptom, the two numbers to ask for, what
# to change) and [Debugging a slow server](guide_debugging.md) (the same, plus look-alikes, evidence, and the cost of
# each fix).
#
# ## The map
#
# Every request passes through five phases, and a technique that shortens one may lengthen another. Each row below is a
# technique. Each cell holds **two pairs of runs**, without and with it: on the left (A) traffic where it should help,
# on the right (B) traffic where it should do nothing, or cost something in another column. **÷2.0** means the phase
# became half as long, **×2.0** twice as long. A dot means no change worth mentioning. The last columns: the whole
# request (E2E), the longest gaps between tokens (ITL p99), and the share of requests with a first token within two
# seconds (in percentage points: **+40** is 40 more in a hundred).

# %%
found = PhaseMap.stored()
show_map(found)

# %% [markdown]
# Three ways to read it. *Down a column*: what could shorten the phase that's too long in your service. *Along a row*:
# what a technique costs. *The right halves* (B): how it fails. Few techniques touch the **first token** or the
# **stream**: those two are short until something outside the engine holds text back (lesson 10).
#
# Click a row to open the lesson that shows it. Here's what ran in each:

# %%
runs_table(found)

# %%
provenance_note(found)

# %% [markdown]
# Every number in the map was measured or simulated. You can rerun any row here. (Fused attention runs on this
# machine's engine and takes longest; the others are simulated, and give the same result anywhere.)

# %%
remeasure(found=found)

# %% [markdown]
# ## Interview in two days

# %%
show_path(INTERVIEW)

# %% [markdown]
# ## I run a server

# %%
show_path(SERVER)

# %% [markdown]
# ## I teach

# %%
show_path(TEACHER)

# %% [markdown]
# ## Review cards
#
# You forget what you see once; a card that comes back just before you'd forget it sticks. **Start** keeps a schedule on
# this machine (FSRS, the algorithm in Anki). Among the facts are sums: what comes back is the formula, with other
# numbers each day. Enter shows the answer, Enter again says *Good*; Tab reaches the other buttons.

# %%
Review()

# %%
export()

# %% [markdown]
# ## A sum a day
#
# One minute, a number with its unit, no calculator. Within 20% is right, from half to double is the right order. The clock
# costs nothing, and the working follows. `NapkinDesk(7)` is any other sum; in a terminal: `minillm napkin`.

# %%
NapkinDesk()

# %% [markdown]
# ## What's stored about you
#
# These files, in minillm's home folder (`MINILLM_HOME`, or `~/.cache/minillm`). Nothing leaves this machine, and the
# button erases all of them.

# %%
keep_or_reset()
