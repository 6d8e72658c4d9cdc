# %% [markdown]
# # 10c · Clients that leave, stall and retry
#
# Half of the users closed the tab. The server is still generating for them. Meanwhile a mobile client has stopped reading, and
# another one retries every failed request, three times, at once. What does each of them cost the others?
#
# - **Surface** (ten minutes): a client leaves halfway, directly and behind a gateway.
# - **Guided** (fifteen): what a disconnect is worth, and nine kinds of trouble sent to a real server.
# - **Deep dive** (five): the arithmetic of leaving and of retries, two claims put to the test.

# %%
from course.lab import open_lab
from course.lab.display import stack
from course.lab.lesson_10 import findings, leaving, traffic, trouble
from course.lab.lesson_10c import retries
from course.lab.lesson_10c.checks import checks
from course.lab.lesson_10c.claims import d15, e6
from course.lab.server import LabServer

lab = open_lab()
server = LabServer(lab, instead_of=globals().get("server"))

# %% [markdown]
# ## Surface
#
# A tab is closed halfway through an answer. Once the client is connected to the server directly. Once there's a **gateway** in
# between (one that logs, checks or bills whole answers, say) which reads on to the end.
#
# ### Predict

# %%
gone = lab.predict(
    "leaving",
    "The client leaves after half of the answer. How much of the rest does the engine not generate?",
    list(leaving.SAVES.values()),
)
gone

# %%
left = leaving.both_ways(server, traffic.HALF)
gone.score(leaving.saving(left))

# %%
stack(leaving.draw_leaving(left), findings.left(left))

# %%
server.close()

# %% [markdown]
# ## Guided
#
# ### What it's worth
#
# Eight clients, half of whom leave halfway. Once with a slot for each, once with a queue for two slots.

# %%
crowds = leaving.crowds(lab)
stack(leaving.crowds_table(crowds), findings.crowds(crowds))

# %% [markdown]
# ### What friendly tests leave out
#
# Some clients do worse than leave. A phone in a tunnel: the connection is there, no bytes are taken, and somewhere the text has
# to wait. A client sends half of a request, or a prompt longer than the context. Nine of them, one after the other, each beside
# a neighbour's stream.

# %%
troubles = trouble.send_all(lab)
trouble.trouble_table(troubles)

# %% [markdown]
# For a client that stops reading, every server needs an answer to four questions. This one's:
#
# - *Does the engine wait?* No. A batch that waited for one client would hold up all of them.
# - *Where does the text wait?* A bounded part in the operating system (64 KiB). The rest stays in the process, merged, so that it's
#   never more than the answer itself.
# - *For how long?* `--reader-timeout-s`. Then the connection is cut.
# - *Which other requests notice?* The slow client's answer is in the neighbours' steps until it's done, like any other.
#
# ### Where it hurts: retries
#
# A request fails, so the client tries again. While the server is overloaded, *every* failure becomes another request, at the
# worst possible moment. At 70B, simulated: a spike of twenty seconds, then normal load. Clients give up, retry at once, or
# back off exponentially.

# %%
storm = lab.predict(
    "storm",
    "With immediate retries (up to three attempts): how many attempts per user request during the run?",
    unit="attempts",
    between=(1, 5),
)
storm

# %%
stormy = retries.runs()
storm.score(retries.amplification(stormy))

# %%
stack(retries.retries_table(stormy), retries.draw_load(stormy), retries.told(stormy))

# %% [markdown]
# <details><summary>What a client should do</summary>
#
# - **Back off exponentially, with jitter.** Without jitter, clients that failed together retry together, and fail together again.
# - **A retry budget.** Retries at most a tenth of requests: past that, something is wrong that retrying won't fix.
# - **A circuit breaker.** After so many failures in a row stop calling for a while, let one request through, and open up again if it
#   succeeds. It protects the server, and it gives the user an answer now ("try later") instead of after three time-outs.
# - **Respect `Retry-After`**, which this server sends with every 429 and 503.
#
# And on the server: refuse early (lesson 02b), and drop what's past its deadline before it's prefilled.
#
# </details>

# %% [markdown]
# ## Deep dive
#
# A share $p$ of clients leaves with a share $f$ read, and $q$ of a request's compute is its prompt. An attempt fails with probability
# $p_f$ and clients try at most $n$ times:
#
# $$\text{compute saved} = p\,(1 - f)\,(1 - q), \qquad
# \text{attempts per request} = 1 + p_f + \dots + p_f^{\,n-1} = \frac{1 - p_f^{\,n}}{1 - p_f}$$
#
# The second is the amplification: at $p_f$ near 1 it's $n$. That extra load raises $p_f$, which raises the load: a **metastable** failure
# outlives the spike that triggered it.

# %%
import inspect

print(inspect.getsource(retries.expected_attempts))

# %% [markdown]
# **The claims, measured.**

# %%
d15(crowds)

# %%
e6(troubles)

# %% [markdown]
# ## Say it in an interview
#
# > "I'd propagate disconnects through every hop, and check it by watching KV blocks come back: a gateway that reads to the end defeats
# > it. Cancelling pays when something's waiting for the slot. A client that stops reading must never stall the batch, so buffer per
# > request, bounded, with a time-out. And clients retry with exponential backoff, jitter and a budget, because immediate retries
# > turn a twenty-second spike into an outage that doesn't end."
#
# ## Check yourself

# %%
check = checks()

# 40% of clients leave, having read a quarter; a fifth of a request's compute is its prompt:
# which share of all compute does noticing save?
check("q1", ...)

# %%
check("q2", ...)  # half of all attempts fail, and clients try up to three times: attempts per request, on average?

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Compute saved in money.** Token shares are exact here. What a saved token is worth depends on what's waiting for the slot.
# - **Your clients.** SDKs retry by default: find out how often, on which errors, and with which delays, before an incident does.
#
# ## Sources
#
# - D15: an article on techniques for lower LLM latency, from batching to streaming. E6: *Latency Optimization in LLM Inference Systems*.
# - Brooker, *Exponential Backoff And Jitter*, AWS Architecture Blog, 2015. Beyer et al., *Site Reliability Engineering*, 2016, chapters
#   21 and 22 (retry budgets). Bronson et al., *Metastable Failures in Distributed Systems*, HotOS 2021. Nygard, *Release It!*, 2007
#   (circuit breakers).
