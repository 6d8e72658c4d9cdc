# %% [markdown]
# # 10 · Detok and stream
#
# "Your dashboard says the model is fast. My screen says it is not." Both may be right: between the engine's hand and a
# reader's eye lies a stretch that no engine measures. In this lesson you stand at both ends of it.
#
# You will be able to tell a slow server from a slow wire, to say what a proxy, a distance, or a new connection adds
# before you measure it, what becomes of an answer whose reader has left, and what one chunk costs.
#
# - **Surface**: one answer at both ends of the wire, and a bet on a proxy.
# - **Guided**: half characters, a reader's pace, readers who leave or stop, distance, the same in front of 70B.
# - **Deep dive**: what a token costs on its way to text, six claims put to the test.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_10 import batching, distance, front, leaving, letters, readers, sim_70b, traffic, trouble, wire
from course.lab.lesson_10.checks import checks
from course.lab.lesson_10.claims import a5, d15, d16, e1, e6, e7
from course.lab.server import LabServer

lab = open_lab()
# The real one, `minillm serve`, in the background, with the lab's weights. Run this again, and the one before is closed.
server = LabServer(lab, instead_of=globals().get("server"))
print("listening at", server.url)

# %% [markdown]
# ## Surface
#
# The engine writes token ids. On the way to a screen four things happen to each of them:
#
# - it becomes text (**detokenizing**), as far as its characters are whole;
# - the text is wrapped into a small JSON document, an **event**: `data: {...}` and an empty line. A sequence of these over
#   one HTTP answer is called **server-sent events** (SSE);
# - HTTP wraps the event once more, as a **chunk**, and hands it to the operating system;
# - whatever stands between you and the server (a gateway, a load balancer, a **proxy**) passes it on. Or not yet.
#
# The next cell asks the server for an answer over a real socket. Upper ticks: the engine hands a token over. Lower
# ticks: the client has it. Threads join the two ends of a token.

# %%
straight = traffic.through(server, "straight")
wire.draw_wire([straight])

# %% [markdown]
# The threads stand nearly upright: what leaves also arrives. Two numbers describe each end. **TTFT** (time to first
# token), from sending the question to the first token. **ITL** (inter-token latency), the gaps between one token and
# the next: half of the gaps are shorter than p50, one in a hundred is longer than p99.
#
# ### Predict
#
# Now put a proxy in between that holds the stream until it has 4096 bytes, then passes all of them on. Many proxies do so
# for ordinary pages, where it is a good idea.

# %%
bet = lab.predict(
    "proxy",
    "The proxy holds 4096 bytes. What happens to the ITL that the client measures?",
    list(traffic.RHYTHM.values()),
)
bet

# %%
held = traffic.through(server, "through a proxy that holds 4096 bytes", buffer_bytes=traffic.HELD_BYTES)
bet.score(traffic.rhythm(held))

# %%
wire.draw_wire([straight, held])

# %% [markdown]
# Look for lumps. Within a lump, tokens arrive at once; between two lumps there is one gap. Which kind of gap is the more
# frequent, and so the median? Which one is p99? And what must be full before the first token comes? If the **median got
# better**, whoever watches it alone would praise this proxy.
#
# What does the server itself say? These are its own `/metrics`, for each of the two answers.

# %%
wire.metrics_table([straight, held])

# %% [markdown]
# Nothing of it: the client's first token came later, the server's did not. (Small differences are noise.) The proxy takes
# every byte at once, and for the server that is the end of the matter. That is the surface:
# *only a client can measure a stream. And a stream has two numbers at each end.*

# %% [markdown]
# ## Guided
#
# ### Three ways to spoil a stream
#
# A proxy may hold bytes, pass several events on together (**coalescing**), or simply be slow by a constant. Each press sends a
# request over the wire.

# %%
wire.spoil(server, straight)

# %% [markdown]
# | try | say beforehand |
# |---|---|
# | delayed, nothing else | which of TTFT, ITL p50, ITL p99 move? |
# | 512 bytes | how many tokens is that? (an event is far larger than its word) |
# | 4 events together | how much later is the first token, in ITLs? |
# | more bytes than the answer has | when does the first word come? |
#
# A constant delay is honest: it moves TTFT once, and leaves the rhythm alone. Holding trades rhythm for fewer, larger
# packets. Servers ask proxies to refrain with a header (`X-Accel-Buffering: no`, which nginx reads and minillm sends);
# not every proxy reads it. The one here ignores it.
#
# ### Half a character
#
# A **token** is a piece of text as the model's vocabulary has it, and to a computer text is bytes. In UTF-8, `a` is one
# byte, `é` two, `日` three, a parrot four. Vocabularies of the byte-level kind may cut a rare character between its bytes.
# What may be shown after each token?

# %%
letters.letters_table(letters.spell(lab.model.tokenizer))

# %% [markdown]
# Some tokens are no text by themselves. Decoded alone they come out as �, the sign for "no character", and
# a client cannot repair that: the bytes are gone. The right way is to hold them back until the character is whole. So a
# token may release nothing, and the next one two tokens' worth. (A **stop string** is held back in the same way, while
# what has come may still become one.) In the client's ITL such a token is a gap in which nothing appeared.
#
# ### Faster, or only sooner?
#
# The same answer from the same server, streamed and as a whole. Lines: text that is there. Dashes: text that has been read,
# by somebody who cannot read what is not there. Move the handle from a slow reader to a very fast one.

# %%
forms = readers.both_forms(server)
readers.reading(forms)

# %% [markdown]
# On a quiet machine both lines end at about the same time (if not, run the cell again): streaming makes nothing faster.
# The reader begins earlier, and reads while the engine writes. Look for the pace at which the streamed dashes touch the
# line: from the engine's own pace on (it stands under the picture) the *engine* is the slower of the two, and a shorter
# ITL would be felt. Below it, it would not.
#
# ### The reader leaves
#
# A tab is closed halfway through an answer. Once the reader is connected to the server directly. Once there is a
# **gateway** in between (one that logs, checks or bills whole answers, say) which reads on to the end.

# %%
gone = lab.predict(
    "leaving",
    "The reader leaves after half of the answer. How much of the rest does the engine not write?",
    list(leaving.SAVES.values()),
)
gone

# %%
left = leaving.both_ways(server, traffic.HALF)
gone.score(leaving.saving(left))

# %%
leaving.draw_leaving(left)

# %% [markdown]
# The curves are the KV blocks (the memory of what the model has read and written) that are held at each step. When are they
# free again, straight, and when through the gateway? If a server sees that the connection has closed, it can end the request between
# two steps: its seat and its blocks are free at once. If it does not, it has a reader who never tires. Detecting a disconnect is
# only as good as the last hop that passes it on. So test it through *your* whole chain.
#
# What is it worth? Eight readers, half of whom leave halfway. Once with a seat for each, once with a line before two seats.

# %%
crowds = leaving.crowds(lab)
leaving.crowds_table(crowds)

# %% [markdown]
# Compare the two columns of savings. With a seat for each, the engine takes its steps for those who stay, whoever else
# is in them: tokens are saved, and no steps. (A smaller step is a little shorter; on a GPU very little, since each
# reads all weights anyway.) With a queue, a freed slot goes to the next request, and the whole load needs fewer steps.

# %% [markdown]
# ### What friendly tests leave out
#
# Some readers do worse than leave. A phone in a tunnel: the connection is there, no bytes are taken, and somewhere the
# text must wait. A client sends half of a request, or a prompt longer than the context. Here are nine of them, one after the
# other, each beside a neighbour's stream. The one that stops reading asked for a fat stream (four answers, with the likeliest
# twenty words at each place).

# %%
troubles = trouble.send_all(lab)
trouble.trouble_table(troubles)

# %% [markdown]
# For a reader who stops reading, every server needs an answer to four questions. This one's, by design (the table shows only
# that the neighbour's answer came whole, and that no block stayed held):
#
# - *Does the engine wait?* No. A batch that waited for one reader would hold up all of them. It writes on, until the answer
#   is done or the server gives up.
# - *Where does the text wait?* A bounded piece in the operating system (64 KiB asked for; Linux counts it double). The rest stays in
#   the process, merged, so that it is never more than the answer itself, once. Nothing grows with the number of *steps*.
# - *For how long?* `--reader-timeout-s`, here much shorter than the default. Then the connection is cut.
# - *Who else notices?* The slow reader's answer is in the neighbour's steps until it is written, like any other.
#
# ### Far away
#
# A new connection is an exchange of greetings before the first byte of the question: one round trip for TCP, one more for
# the encryption of TLS 1.3 (two for TLS 1.2). Then question and answer take one themselves. A connection that is **kept
# alive** has all greetings behind it. Commit yourself: from next door on an open connection, to another continent on a new one with TLS 1.3.

# %%
far = lab.predict("far", "What happens to the first token, and to the gaps after it?", list(traffic.FAR_ANSWERS))
far

# %%
trips = traffic.trips(server)
far.score(traffic.far_away(trips))

# %%
distance.trips_table(trips)

# %% [markdown]
# All round trips but the last are pure set-up: no model, however fast, shortens them. And the gaps between tokens: do they
# know how far they have travelled? If not, a stream is a pipe: what enters it evenly leaves it evenly, only later. (Our distance is a relay on this machine that
# holds bytes for half a round trip each way; a new connection's first bytes wait as long as its greetings would take. Real
# distances also lose packets, which makes gaps of its own. And there are short cuts: resumed TLS sessions and QUIC greet in fewer
# round trips.)

# %% [markdown]
# ### The same wire in front of 70B
#
# Llama-3 70B on four H100s, simulated, under light load: the same proxy, the same distances. 22 chunks are about
# what 4096 bytes hold.

# %%
sim_70b.explore()

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# Things to find:
#
# - Let the proxy flush after a tenth of a second. What becomes of TTFT and p99? Why does p50 stay at zero?
# - Hold 88 chunks: for a short answer, is that still a stream?
# - The row *leaves*: does it move with *any* handle? What would an operator who sees only those conclude?
# - The error band is of the *engine's* times. The network here is arithmetic: exact, and without packet loss.
#
# ### Where it hurts: a chunk for each token
#
# An event is some two hundred bytes around a word of five. All of them are shaped, framed and sent by one thread, the
# **event loop**, on one core. Here is that thread alone: the server's own JSON, SSE and HTTP, fed with ready-made
# words in place of an engine's.

# %%
costs = front.by_size(lab)
front.chunk_cost_table(costs)

# %% [markdown]
# A chunk costs nearly the same whatever is in it. So several tokens in a chunk divide the bill (vLLM's `--stream-interval`
# does this). Streams × tokens a second × CPU of a chunk is the number of cores that streaming takes.
#
# And beyond one core? Now far more chunks are due each second than the loop can send, even if it never rests; then the
# same tokens again with larger chunks.

# %%
busy = front.too_many(lab)
front.too_many_table(busy)

# %% [markdown]
# In the first row streaming is itself the illness: chunks are late, and the longer it lasts the later. (A note under the
# table says if somebody else had the core. Then this is not shown: run the cell again on a quieter machine.) No engine is
# involved here at all, and in a real server every engine metric would be fine. Larger chunks cure it, at the price of a coarser rhythm: a token waits for those that share its
# chunk. Other cures: more front processes, or a faster language. For a program that waits for the end anyway, stream nothing.
# That is the other place where streaming does nothing: a consumer that needs the last byte before it can begin.

# %% [markdown]
# ## Deep dive
#
# **Text from tokens, at a constant price.** The simple way to get characters right is to decode *all* tokens again at
# each new one, and show what is new. That is right, and its cost grows with the answer. The engine decodes a
# short window instead.

# %%
detok = letters.cost(lab.model.tokenizer, traffic.PROMPT, lab.scale < 1)
letters.cost_table(detok)

# %% [markdown]
# A token at place $n$ costs about $c\,n$ the simple way, and so an answer costs $c\,n^2/2$: *quadratic*. With a window it is a constant. The
# heart of it, `minillm/frontend/detokenizer.py`; the method is that of Hugging Face's text-generation-inference and of vLLM:

# %%
import inspect

from minillm.frontend.detokenizer import Detokenizer
from minillm.server.answers import AnswerShape

print(inspect.getsource(Detokenizer._take))

# %% [markdown]
# **The arithmetic of the wire.** With a round trip $R$, $h$ round trips of greetings, and a server's own part $S$:
#
# $$\text{TTFT} = (h + 1)\,R + S, \qquad \text{a buffer of } b \text{ bytes, events of } e \text{ bytes: } + \lceil b/e - 1 \rceil \cdot \text{ITL}$$
#
# $$\text{compute saved} = \underbrace{p}_{\text{who leave}} \cdot \underbrace{(1 - f)}_{\text{unread}} \cdot
# \underbrace{(1 - q)}_{\text{not prompt}}, \qquad \text{cores} = \frac{\text{streams} \times \text{tokens/s}}{k} \cdot c_\text{chunk}$$
#
# One event, as it is made: all that does not change is built once a request.

# %%
print(straight.heard.body[:400].decode())
print(inspect.getsource(AnswerShape.chunk))

# %% [markdown]
# **The claims, measured.** *A5*: a proxy that holds, and a front that is too busy.

# %%
four = traffic.through(server, coalesce=4)
a5(straight, [four, held], busy)

# %%
d15(crowds)

# %% [markdown]
# *D16* puts two techniques into one number. Here they are apart: the same questions, batched or one by one, streamed or whole.

# %%
d16(batching.four_ways(lab))

# %%
e1(forms)

# %% [markdown]
# *E6*: what friendly tests leave out, as sent above.

# %%
e6(troubles)

# %%
e7(trips)

# %%
server.close()

# %% [markdown]
# ## Say it in an interview
#
# > "I would measure at the client, TTFT and ITL apart, and lay the server's own numbers beside them. If they differ, the wire did it. A median ITL
# > near zero with a large p99 is a buffer; TTFT up by whole round trips is set-up or distance; everything late and a busy front is
# > chunks per token. I would propagate disconnects through every hop and check it by watching KV blocks come back. Streaming changes
# > when people can start to read, not the total; so for machines I would turn it off."
#
# ## Check yourself
#
# Replace the dots. Keys come from the streams above.

# %%
check = checks(straight, forms, costs)

check("q1", ...)  # how many tokens fill the proxy's 4096 bytes? straight.heard.event_bytes helps

# %%
# a round trip takes 150 ms; a new connection with TCP and TLS 1.2; the server needs 250 ms
# to its first token: TTFT at the client, in milliseconds?
check("q2", ...)

# %%
# 40% of readers leave, having read a quarter; a fifth of a request's compute is its prompt:
# which share of all compute does noticing save?
check("q3", ...)

# %%
# 400 streams of 50 tokens a second, a chunk for each token, costs[0].cpu_per_chunk of CPU each:
# how many cores?
check("q4", ...)

# %%
check("q5", ...)  # which figure of the server shows a proxy that buffers: "ttft", "itl", "stream", or "none"?

# %%
check("q6", ...)  # whose last token came first here: "streamed", "whole", or "alike" (within a tenth)?

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your chain.** Every hop has a buffer, a time-out and an opinion on streams. Send one request through all of them with
#   `curl -N`, and look at when the lines come. Then close it, and see whether the server noticed.
# - **A real network.** Losses, retransmissions and mobile links that sleep make gaps of their own. HTTP/2 carries many streams
#   over one connection, and one lost packet holds up all of them; HTTP/3 does not.
# - **The price of a chunk in your server.** Python's is dear. Yours may shape events in other processes or another language;
#   the arithmetic stays, the constant does not.
# - **Compute saved in money.** Token shares are exact here. What a saved token is worth depends on who waits for the seat.
# - **One process.** Client, proxy, server and engine share this one, and Python's lock: fine details of the pictures are
#   theirs. That is also why both ends have one clock; across machines you need to compare clocks first.
#
# ## Sources
#
# - A5: *Serving LLMs: The Latency Anatomy Framework*. D15 and D16: an article on techniques for lower LLM latency, from batching to
#   streaming, with measured gains. E1, E6, E7: *Latency Optimization in LLM Inference Systems*.
# - Server-sent events: the HTML Living Standard, section 9.2. TLS 1.3: RFC 8446. TCP: RFC 9293. HTTP/1.1: RFC 9112.
# - nginx: `proxy_buffering`, `proxy_buffer_size`, `X-Accel-Buffering`, in its documentation of ngx_http_proxy_module.
# - Incremental detokenizing: vLLM, `vllm/v1/engine/detokenizer.py`; Hugging Face, text-generation-inference.
