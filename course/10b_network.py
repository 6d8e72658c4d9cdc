# %% [markdown]
# # 10b · The network
#
# A user in Sydney says the service is slow. One in Virginia says it's fine. Same model, same server, same minute. How
# much of TTFT is distance, how much is connection set-up, and what can you do about either?
#
# You'll be able to count the round trips in a TTFT, work out from a map how short they can get, and say which fix
# removes which.
#
# - **Five minutes** (five): the same answer from near and far, on old and new connections.
# - **The lab** (five): regions, a latency budget by hop, and what streaming does for a reader.
# - **In the interview** (five): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (five): the arithmetic, the code, two claims.

# %%
from course.lab import open_lab
from course.lab.claims import in_short
from course.lab.display import stack
from course.lab.server import LabServer
from course.lessons.lesson_10b import explorer, pictures, run, words
from course.lessons.lesson_10b.check import checks
from course.lessons.lesson_10b.words import e1, e7

lab = open_lab()
server = LabServer(lab, instead_of=globals().get("server"))

# %% [markdown]
# ## Five minutes
#
# A new connection needs handshakes before the first byte of the request: first TCP's, then TLS's. Only then do the
# request and its response travel. A connection that's **kept alive** has already paid for the handshakes.
#
# ### Predict
#
# Compare a nearby client on an open connection with one on another continent, on a new connection with TLS 1.3:

# %%
far = lab.predict("far", "TTFT grows by how many round trips?", unit="round trips", between=(0, 8))
far

# %%
trips = run.trips(server)
far.score(words.far(trips))

# %%
stack(pictures.trips_table(trips), words.tell_trips(trips))

# %% [markdown]
# TCP's handshake takes one round trip. TLS 1.3's takes another, and TLS 1.2's two.
#
# (Distance here is a relay on this machine that holds bytes for half a round trip each way, and a new connection's
# first bytes for as long as its handshakes would take. Real networks also lose packets, which adds gaps.)
#
# ## The lab
#
# ### Which region?
#
# Light in fibre sets the floor, at about 204,000 km/s over a path longer than the great circle. The table computes
# that floor; a ping from your own client tells you how far above it you are.

# %%
explorer.regions()

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - Frankfurt to Sydney is about a quarter of a second per round trip. On a new TLS 1.2 connection, 0.85 seconds
#   pass before the model has seen a byte. A 70B on four H100s prefills 8,000 tokens in less.
# - A second region pays off for users whose round trips are a large part of TTFT. Across an ocean on a reused
#   connection, a ten-second chat loses a few percent of E2E, but its first token is clearly later.
# - Regions split traffic. Each has its own queue and its own prefix cache, and rounds up its own number of replicas
#   (lesson 11).
#
# </details>
#
# ### An inventory of hops
#
# Write down every hop between the client and the first token, give each a budget, and see what's left for the model.
# (*Connection* includes the half round trip that the request itself takes.)

# %%
explorer.hops_of_ttft()

# %% [markdown]
# <details><summary>Three to try</summary>
#
# - Reuse the connection (set-up 0): with long round trips, that's worth more than halving prefill.
# - A proxy that holds 22 tokens costs as much as everything else put together.
# - With a tight budget and a user on another continent, almost nothing is left for queue and prefill, and that's the
#   case for a second region.
#
# </details>
#
# The usual fix comes before a second region: terminate TCP and TLS at the edge (anycast, a CDN), near the client, and
# keep warm connections from there to the server. Common reasons why connections aren't reused: clients open a new
# session per request, a load balancer's idle time-out is short, or an HTTP/1.1 client has fewer connections than
# streams. **HTTP/2** carries many streams over one connection, so set-up is paid once (but one lost packet blocks all
# of them, head-of-line blocking). HTTP/3 over QUIC avoids that, and can resume with no round trip at all (0-RTT; it
# can be replayed, so many stacks refuse it for POST).
#
# ### Faster, or only sooner?
#
# The server gives the same answer twice, streamed and as a whole. Lines show text that has arrived, dashes text that's
# been read. Move the slider from a slow reader to a very fast one.

# %%
forms = run.both_forms(server)
stack(words.tell_forms(forms))

# %%
pictures.reading(forms)

# %% [markdown]
# Find the pace at which the streamed dashes touch the line. For readers faster than that (the engine's own pace, given
# under the picture), the *engine* is the slower of the two, and a shorter ITL would be felt. For slower readers it
# wouldn't.
#
# ### Where it does nothing
#
# Moving closer does nothing for ITL, and a faster model doesn't shorten set-up. Streaming does nothing for a consumer
# that needs the last byte before it can start: a tool call, a batch job, a test.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "If TTFT is worse by the same amount for every prompt, it's the path: distance, set-up or buffering. A new TLS 1.3
# > connection takes three round trips to the first byte, an open one takes one. I'd reuse connections, terminate near
# > users, then consider regions."
#
# **Follow-ups**
#
# <details><summary>"When does a second region pay?"</summary>
#
# When round trips are a large part of TTFT for enough users. A region needs its own queue, prefix cache and spare
# replicas, so two half-full regions cost more than one full one. Edge termination comes first: handshakes happen near
# the user, and warm connections cross the ocean, so one round trip is left instead of three.
#
# </details>
#
# <details><summary>"Would HTTP/3 fix it?"</summary>
#
# It saves a round trip of set-up, or all of it with 0-RTT, if your stack allows that for POST (requests can be
# replayed). And a lost packet blocks one stream, not all of them. It doesn't move the server, so the last round trip
# stays.
#
# </details>
#
# **"Sydney's TTFT is 1 s, Virginia's 0.25 s."**
#
# | weak | senior | staff |
# |---|---|---|
# | "Deploy in Australia." | "The round trip is about a quarter of a second, and a new connection takes three: that's the difference. Keep connections open." | "Is the difference the same for long and short prompts? Then it's the network: round trips of set-up times the RTT. `curl -w` from Sydney splits TCP, TLS and first byte. I'd expect reuse to leave one RTT; if the client library opens a session per request, that's a one-line fix. A region costs a second queue and a cold prefix cache, so I'd want the number of users who'd feel it first." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>What's the least TTFT from another continent?</summary>
#
# 1. Light in glass: 300,000 / 1.468, about 204,000 km/s. So 100 km of cable and back take 1 ms.
# 2. Frankfurt to Sydney: 16,500 km along the great circle, cables some 1.5 times that: 25,000 km.
# 3. Round trip: 50,000 / 204,000 = 0.24 s.
# 4. TCP + TLS 1.3 + the request: three round trips, 0.73 s, before the server's own part.
# 5. Kept open: 0.24 s. Terminated at the edge: handshakes take milliseconds, and 0.24 s is left.
#
# </details>

# %% [markdown]
# ## Check yourself

# %%
check = checks(forms)
check.card()

# %% [markdown]
# ## Going deeper
#
# With a round trip $R$, $h$ round trips of set-up and the server's own part $S$ of TTFT; and with a distance $d$, a
# path $\gamma$ times as long, and light at $c/n$ in glass:
#
# $$\text{TTFT} = (h + 1)\,R + S, \qquad R \ge \frac{2\,\gamma\,d}{c/n}$$

# %%
import inspect

print(inspect.getsource(explorer.rtt_s))

# %% [markdown]
# ### What articles say

# %%
told = in_short(
    e1(forms),
    e7(trips),
)
server.close()
told

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --ssl-keyfile key.pem --ssl-certfile cert.pem
# sglang serve --model-path Qwen/Qwen3-8B --host 0.0.0.0 --enable-http2 --enable-metrics --port 8000
# curl -ks -o /dev/null -w '%{time_connect} %{time_appconnect} %{time_starttransfer}\n' https://HOST:8000/v1/models
# ```
#
# Run the last line where your users are (`http:` for the SGLang line; `HOST` is your server). `time_connect` is one
# round trip (plus DNS, if `HOST` is a name), `time_appconnect` adds TLS, and `time_starttransfer` adds the request and
# its answer: one more round trip, since listing models computes nothing.
#
# Then compare the client's TTFT with the server's mean `vllm:time_to_first_token_seconds`
# (`sglang:time_to_first_token_seconds`). The difference should be about one round trip on a kept connection, and
# about three on a new one with TLS 1.3. ITL is the same at both ends unless something in between lumps tokens together.
# Behind an 8k prompt or a queue, all of that is small.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **A real network.** Packet loss, retransmissions, congestion and mobile links that sleep add gaps of their own. A
#   new connection may also need a DNS lookup.
# - **Real paths.** Cables take detours; the table's factor of 1.5 is an assumption you can move. Measure yours.
# - **TCP slow start.** A long prompt on a new connection takes one or more extra round trips to upload; the prompts
#   here fit into the first window.
#
# ## Sources
#
# - E1, E7: *Latency Optimization in LLM Inference Systems*.
# - TCP: RFC 9293. TLS 1.2: RFC 5246. TLS 1.3: RFC 8446. QUIC and 0-RTT: RFC 9000, RFC 9001. HTTP/2: RFC 9113. HTTP/3:
#   RFC 9114. Fibre: ITU-T G.652.
