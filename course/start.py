# %% [markdown]
# # minillm: start page
#
# **New here?** Open [lesson 00](00_start_here.ipynb). In a quarter of an hour you'll have made your first bet and seen
# where the time goes. `make lab` brings this page up to date each time it starts; to do it now, *Run > Run All Cells*.

# %%
from course.lab.phase_map.measure import PhaseMap
from course.lab.phase_map.picture import provenance_note, remeasure, runs_table, show_map_folded
from course.lessons.start.resume import keep_or_reset, show_paths, where_next
from course.lessons.start.review import Review, export
from course.lessons.start.today import Today
from course.napkin.desk import NapkinDesk

# %%
where_next()

# %% [markdown]
# ## Four paths
#
# Pick the one that's yours. Each row is a lesson or something to do, with its time and, once you've begun, how far you
# are. The five squares are the phases of a request (queue, prefill, first token, decode, stream); the filled ones are
# what the lesson is about.

# %%
show_paths()

# %% [markdown]
# Production is on fire? Two guides with no code to run: [It's 2 a.m.](guide_2am.md) (a symptom, the two numbers to ask
# for, what to change) and [Debugging a slow server](guide_debugging.md) (the same, plus look-alikes, evidence, and what
# each fix costs). A word you don't know? Try the [glossary](glossary.md). An interview soon? [Also
# asked](guide_questions.md) has questions that go one step past the lessons.
#
# ## Today
#
# A little every day makes it stick: an incident that's the same for everyone, with a par to beat; a sum (just below);
# and your next drill and design round.

# %%
Today()

# %% [markdown]
# ## A sum a day
#
# You have one minute and no calculator; answer with a number and its unit. Within 20% is right; from half to double
# is the right order of magnitude. Going over time costs nothing, and you'll see the working. `NapkinDesk(7)` is
# another sum; in a terminal: `minillm napkin`.

# %%
NapkinDesk()

# %% [markdown]
# ## Review cards
#
# You forget what you see only once, so each card comes back just before you'd forget it. **Start** keeps a schedule
# on this machine (FSRS, the algorithm in Anki). Some cards are sums: the formula comes back, with other numbers each
# day. Enter shows the answer, Enter again says *Good*; Tab reaches the other buttons.

# %%
Review()

# %%
export()

# %% [markdown]
# ## The map
#
# A technique that shortens one phase often lengthens another. The map shows fifteen techniques. That's a lot at first
# sight, so it stays folded until you've been in lesson 06.
#
# Each row is a technique, and each cell holds **two pairs of runs**, without it and with it: on the left (A) traffic
# where it should help, on the right (B) traffic where it should do nothing, or cost something in another column. The
# numbers are **seconds per request**: −1.3 is 1.3 seconds less, a dot means no real change. The last columns
# are the whole request (E2E), the longest gaps between tokens (ITL p99, in milliseconds), and the share of requests with
# a first token within two seconds (in percentage points).

# %%
found = PhaseMap.stored()
show_map_folded(found)

# %% [markdown]
# Read it in three ways. *A column* shows what could shorten the phase that's too long in your service, *a row* what a
# technique costs, and *the right halves* (B) how it fails. Few techniques touch the **first token** or the
# **stream**: those two stay short unless something outside the engine holds text back (lesson 10).
#
# Hover over a cell for its two runs; click a technique to open the lesson that shows it. Here's what ran in each:

# %%
runs_table(found)

# %%
provenance_note(found)

# %% [markdown]
# You can rerun any row here. Fused attention is measured on your machine's engine and takes longest; the other rows are
# simulated and come out the same anywhere.

# %%
remeasure(found=found)

# %% [markdown]
# ## What's stored about you
#
# These files are kept in minillm's home folder (`MINILLM_HOME`, or `~/.cache/minillm`). Nothing leaves this machine.
# *Save a copy* puts them into one file, for another machine. *Import a copy* takes such a file, or what *Your progress*
# on the site exports; where both have a result for the same thing, the better one counts. *Erase* removes all of them.

# %%
keep_or_reset()
