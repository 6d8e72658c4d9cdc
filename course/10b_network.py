# %% [markdown]
# # 10b · The network between
#
# A user in Sydney says the service is slow. The one in Virginia says it's fine. Same model, same server, same minute. How much
# of a first token is distance, how much is set-up, and what can you do about either?
#
# - **Surface** (ten minutes): the same answer from near and far, on old and new connections.
# - **Guided** (fifteen): regions, an inventory of hops with a budget, and what streaming does for a reader.
# - **Deep dive** (five): the arithmetic, two claims put to the test.

# %%
from course.lab import open_lab
from course.lab.display import stack
from course.lab.lesson_10 import distance, findings, readers, traffic
from course.lab.lesson_10b import geography
from course.lab.lesson_10b.checks import checks
from course.lab.lesson_10b.claims import e1, e7
from course.lab.server import LabServer

lab = open_lab()
server = LabServer(lab, instead_of=globals().get("server"))

# %% [markdown]
# ## Surface
#
# A new connection is an exchange of greetings before the first byte of the request: one round trip for TCP, one more for TLS
# 1.3 (two for TLS 1.2). Then request and response take one themselves. A connection that's **kept alive** has all of that behind
# it.
#
# ### Predict
#
# From nearby on an open connection, to another continent on a new one with TLS 1.3:

# %%
far = lab.predict("far", "TTFT grows by how many round trips?", unit="round trips", between=(0, 8))
far

# %%
trips = traffic.trips(server)
far.score(findings.far(trips))

# %%
stack(distance.trips_table(trips), findings.trips(trips))

# %% [markdown]
# (Our distance is a relay on this machine that holds bytes for half a round trip each way; a new connection's first bytes wait
# as long as its greetings would take. Real distances also lose packets, which makes gaps of its own.)
#
# ## Guided
#
# ### Which region?
#
# Light in fibre sets the floor: about 204,000 km/s, over a path that's longer than the great circle. The table takes both from
# formulas; a ping from your own client tells you how far above the floor you are.

# %%
geography.explorer()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - Frankfurt to Sydney is about a quarter of a second per round trip. On a new TLS 1.2 connection that's a second before the model
#   has seen a byte: more than most 70B prefills.
# - A second region pays for users whose round trips × set-up exceed what they'd wait for anyway. For a chat of ten seconds, one reused
#   connection across an ocean costs a few percent of E2E and all of the snappiness.
# - A region splits traffic: each one has its own queue, its own prefix cache, and its own rounding up of replicas (lesson 11).
#
# </details>
#
# ### An inventory of hops
#
# Write down every hop between a client and the first token, give each a budget, and see what's left for the model.

# %%
geography.hops_explorer()

# %% [markdown]
# <details><summary>Three to try</summary>
#
# - Reuse the connection (set-up 0): on a long round trip that's worth more than halving prefill.
# - A proxy that holds 22 tokens costs more than everything else together.
# - With a tight budget and a user on another continent there's almost nothing left for queue and prefill: that's an argument for a region.
#
# </details>
#
# Where connections get lost: clients that make a new session per request, load balancers with a short idle time-out, and HTTP/1.1
# clients with fewer connections than streams. **HTTP/2** carries many streams over one connection, so set-up is paid once (and one lost
# packet holds up all of them); HTTP/3 over QUIC doesn't have that problem and can resume with no round trip at all.
#
# ### Faster, or only sooner?
#
# The same answer from the same server, streamed and as a whole. Lines: text that has arrived. Dashes: text that has been read.
# Move the slider from a slow reader to a very fast one.

# %%
forms = readers.both_forms(server)
stack(findings.forms(forms))

# %%
readers.reading(forms)

# %% [markdown]
# Look for the pace at which the streamed dashes touch the line: from the engine's own pace on (it's under the picture) the
# *engine* is the slower of the two, and a shorter ITL would be felt. Below it, it wouldn't.
#
# ### Where it does nothing
#
# Distance does nothing to ITL, and no faster model shortens set-up. Streaming does nothing for a consumer that needs the last
# byte before it can start: a tool call, a batch job, a test.

# %% [markdown]
# ## Deep dive
#
# With a round trip $R$, $h$ round trips of set-up and a server's own part $S$; distance $d$, a path $\gamma$ times as long, light at
# $c/n$ in glass:
#
# $$\text{TTFT} = (h + 1)\,R + S, \qquad R \ge \frac{2\,\gamma\,d}{c/n}$$

# %%
import inspect

print(inspect.getsource(geography.rtt_s))

# %% [markdown]
# **The claims, measured.**

# %%
e1(forms)

# %%
e7(trips)

# %%
server.close()

# %% [markdown]
# ## Say it in an interview
#
# > "If one region is slow by the same amount for every prompt, it's distance or set-up, not the model. TTFT is set-up round trips,
# > plus one for the request, plus the server. So first I'd check that connections are reused, because TCP and TLS cost two or three
# > round trips each time. Then I'd ask whether the users justify a region of their own: it costs its own queue, its own cache and its
# > own spare replicas. ITL doesn't care about distance. Streaming doesn't make anything faster; it lets people start reading."
#
# ## Check yourself

# %%
check = checks(forms)

# a round trip takes 150 ms; a new connection with TCP and TLS 1.2; the server needs 250 ms
# to its first token: TTFT at the client, in milliseconds?
check("q1", ...)

# %%
check("q2", ...)  # which answer's last token came first here: "streamed", "whole", or "alike" (within a tenth)?

# %% [markdown]
# ## What this lab cannot tell you
#
# - **A real network.** Losses, retransmissions, congestion and mobile links that sleep make gaps of their own.
# - **Real paths.** Cables take detours; the table's factor of 1.5 is an assumption you can move. Measure yours.
# - **TCP slow start.** A long prompt on a new connection takes several more round trips to upload; the trips here fit into one window.
#
# ## Sources
#
# - E1, E7: *Latency Optimization in LLM Inference Systems*.
# - TCP: RFC 9293. TLS 1.2: RFC 5246. TLS 1.3: RFC 8446. QUIC and 0-RTT: RFC 9000, RFC 9001. HTTP/2: RFC 9113. HTTP/3: RFC 9114.
#   Fibre: ITU-T G.652.
