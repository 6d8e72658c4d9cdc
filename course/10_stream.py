# %% [markdown]
# # 10 · Detok and stream
#
# "Your dashboard says the model is fast. My screen says it isn't." Both can be right: between the engine and the user's
# screen lies a stretch that no engine measures. In this lesson you stand at both ends of it.
#
# You'll be able to tell a slow server from a slow wire, say what a proxy adds before you measure it, and what a chunk costs.
# ([10b](10b_network.ipynb) is about distance and connections, [10c](10c_clients.ipynb) about clients that leave and retry.)
#
# - **Surface** (ten minutes): one answer at both ends of the wire, and a bet on a proxy.
# - **Guided** (fifteen): three ways to spoil a stream, half characters, the same in front of 70B, a chunk per token.
# - **Deep dive** (ten): what a token costs on its way to text, two claims put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.display import stack
from course.lab.lesson_10 import batching, findings, front, letters, sim_70b, traffic, wire
from course.lab.lesson_10.checks import checks
from course.lab.lesson_10.claims import a5, d16
from course.lab.server import LabServer

lab = open_lab()
# The real one, `minillm serve`, in the background, with the lab's weights. Run this again, and the one before is closed.
server = LabServer(lab, instead_of=globals().get("server"))
print("listening at", server.url)

# %% [markdown]
# ## Surface
#
# The engine produces token ids. On the way to a screen four things happen to each of them:
#
# - it becomes text (**detokenizing**), as far as its characters are complete;
# - the text goes into a small JSON document, an **event**: `data: {...}` and an empty line. A sequence of these over one
#   HTTP response is called **server-sent events** (SSE);
# - HTTP wraps the event once more, as a **chunk**, and hands it to the operating system;
# - whatever sits between you and the server (a gateway, a load balancer, a **proxy**) passes it on. Or doesn't yet.
#
# The next cell asks the server for an answer over a real socket. Upper ticks: the engine hands a token over. Lower ticks: the
# client has it. Lines join the two ends of a token.

# %%
straight = traffic.through(server, "straight")
wire.draw_wire([straight])

# %% [markdown]
# The lines are nearly upright: what leaves also arrives. Now put a proxy in between that buffers the stream until it has 4,096
# bytes, then passes all of them on. Many proxies do that for ordinary pages, where it's a good idea.
#
# ### Predict

# %%
bet = lab.predict(
    "proxy",
    "The proxy buffers 4,096 bytes. What happens to the ITL that the client measures?",
    list(traffic.RHYTHM.values()),
)
bet

# %%
held = traffic.through(server, "through a proxy that buffers 4096 bytes", buffer_bytes=traffic.HELD_BYTES)
bet.score(traffic.rhythm(held))

# %%
stack(wire.draw_wire([straight, held]), findings.held(held))

# %% [markdown]
# What does the server say? Its own `/metrics`, for each of the two answers:

# %%
wire.metrics_table([straight, held])

# %% [markdown]
# It sees none of it. The proxy takes every byte at once, and for the server that's the end of the matter. **Only a client can
# measure a stream, and a stream has two numbers at each end.**

# %% [markdown]
# ## Guided
#
# ### Three ways to spoil a stream
#
# A proxy may buffer bytes, pass several events on together (**coalescing**), or simply be slow by a constant.

# %%
faults = traffic.faults(server)
wire.draw_both_ends([straight, held, *faults])

# %% [markdown]
# The upper bars are alike: that's all the server's dashboard will ever show. Now spoil it yourself. Each press sends a request over the wire.

# %%
wire.spoil(server, straight)

# %% [markdown]
# <details><summary>Four to try, answered</summary>
#
# - *Delayed, nothing else*: TTFT moves once, the rhythm doesn't. A constant delay is honest.
# - *512 bytes*: two or three tokens; an event is some two hundred bytes around a word of five.
# - *4 events together*: the first token is three ITLs late.
# - *More bytes than the answer has*: the first word comes with the last.
#
# Buffering trades rhythm for fewer, larger packets. Servers can ask proxies not to with a header (`X-Accel-Buffering: no`, which
# nginx reads and minillm sends); not every proxy reads it, and this one ignores it.
#
# </details>
#
# ### Half a character
#
# In UTF-8 `a` is one byte, `é` two, `日` three, a parrot four. Byte-level vocabularies may split a rare character between its
# bytes. What can be shown after each token?

# %%
letters.letters_table(letters.spell(lab.model.tokenizer))

# %% [markdown]
# Some tokens aren't text by themselves. Decoded alone they come out as �, and a client can't repair that: the bytes are gone.
# So they're held back until the character is complete. A token may release nothing, and the next one two tokens' worth. (A
# **stop string** is held back the same way, while the text so far might still become one.)

# %% [markdown]
# ### The same wire in front of 70B
#
# Llama-3 70B on four H100s, simulated, under light load: the same proxy, and distances. 22 chunks are about what 4,096 bytes
# hold.

# %%
sim_70b.explore()

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - Let the proxy flush after a tenth of a second: TTFT and p99 come back down to it. p50 stays at zero, because most tokens still arrive with others.
# - Hold 88 chunks: a short answer isn't a stream any more.
# - The row *leaves* never moves, whatever you set. An operator who sees only those numbers concludes that all is well.
#
# </details>
#
# ### Where it hurts: a chunk per token
#
# All events are built, framed and sent by one thread, the **event loop**, on one core. Here's that thread alone: the server's
# own JSON, SSE and HTTP, fed with ready-made words instead of an engine's.

# %%
costs = front.by_size(lab)
front.chunk_cost_table(costs)

# %% [markdown]
# A chunk costs nearly the same whatever's in it, so several tokens per chunk divide the bill (vLLM's `--stream-interval` does
# that). Streams × tokens per second × CPU per chunk is the number of cores that streaming takes. And beyond one core?

# %%
busy = front.too_many(lab)
stack(front.too_many_table(busy), findings.busy(busy))

# %% [markdown]
# ## Deep dive
#
# **Text from tokens, at a constant cost.** The simple way to get characters right is to decode *all* tokens again at each new
# one and show what's new. That's correct, and its cost grows with the answer: a token at position $n$ costs about $c\,n$, so an
# answer costs $c\,n^2/2$. The engine decodes a short window instead.

# %%
detok = letters.cost(lab.model.tokenizer, traffic.PROMPT, lab.scale < 1)
letters.cost_table(detok)

# %% [markdown]
# The heart of it is in `minillm/frontend/detokenizer.py`; the method is that of Hugging Face's text-generation-inference and
# of vLLM:

# %%
import inspect

from minillm.frontend.detokenizer import Detokenizer
from minillm.server.answers import AnswerShape

print(inspect.getsource(Detokenizer._take))

# %% [markdown]
# **The arithmetic.** A buffer of $b$ bytes, events of $e$ bytes; $k$ tokens per chunk at a cost of $c$ each:
#
# $$\Delta\text{TTFT} = \lceil b/e - 1 \rceil \cdot \text{ITL}, \qquad
# \text{cores} = \frac{\text{streams} \times \text{tokens/s}}{k} \cdot c$$
#
# One event, as it's made: everything that doesn't change is built once per request.

# %%
print(straight.heard.body[:400].decode())
print(inspect.getsource(AnswerShape.chunk))

# %% [markdown]
# **The claims, measured.**

# %%
four = traffic.through(server, coalesce=4)
a5(straight, [four, held], busy)

# %% [markdown]
# *D16* puts two techniques into one number. Here they're apart: the same questions, batched or one by one, streamed or whole.

# %%
d16(batching.four_ways(lab))

# %%
server.close()

# %% [markdown]
# ## Say it in an interview
#
# > "I'd measure at the client, TTFT and ITL separately, and put the server's own numbers beside them. If they differ, it's the
# > wire. A median ITL near zero with a large p99 is a buffer. Everything late with a busy front end is too many chunks, so
# > I'd put several tokens into one. Neither shows up in any engine metric."
#
# ## Check yourself
#
# Replace the dots. Answers come from the streams above.

# %%
check = checks(straight, costs)

check("q1", ...)  # how many tokens fill the proxy's 4096 bytes? straight.heard.event_bytes helps

# %%
# 400 streams of 50 tokens a second, a chunk for each token, costs[0].cpu_per_chunk of CPU each:
# how many cores?
check("q2", ...)

# %%
check("q3", ...)  # which figure of the server shows a proxy that buffers: "ttft", "itl", "stream", or "none"?

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your chain.** Every hop has a buffer, a time-out and an opinion on streams. Send one request through all of them with
#   `curl -N`, and watch when the lines come.
# - **The cost of a chunk in your server.** Python's is high. Yours may build events in other processes or another language; the
#   arithmetic stays, the constant doesn't.
# - **One process.** Client, proxy, server and engine share this one, and Python's lock. That's also why both ends have one clock;
#   across machines you'd have to compare clocks first.
#
# ## Sources
#
# - A5: *Serving LLMs: The Latency Anatomy Framework*. D16: an article on techniques for lower LLM latency, from batching to streaming.
# - Server-sent events: the HTML Living Standard, section 9.2. HTTP/1.1: RFC 9112.
# - nginx: `proxy_buffering`, `proxy_buffer_size`, `X-Accel-Buffering`, in its documentation of ngx_http_proxy_module.
# - Incremental detokenizing: vLLM, `vllm/v1/engine/detokenizer.py`; Hugging Face, text-generation-inference.
