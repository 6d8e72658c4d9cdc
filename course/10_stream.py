# %% [markdown]
# # 10 · Detok and stream
#
# "Your dashboard says the model is fast. My screen says it isn't." Both can be right, because no engine measures the
# stretch between itself and the user's screen. In this lesson you measure at both ends of it.
#
# You'll be able to tell a slow server from a slow path to the client, predict what a proxy adds, and say what a chunk
# costs.
# ([10b](10b_network.ipynb) is about distance and connections, [10c](10c_clients.ipynb) about clients that leave and
# retry.)
#
# - **Five minutes** (five): one response at both ends of the wire, and a bet on a proxy.
# - **The lab** (five): three ways to spoil a stream, and the cost of a chunk per token.
# - **In the interview** (ten): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (ten): characters split across tokens, the same wire at 70B, the cost of turning tokens into text.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.claims import in_short
from course.lab.display import stack
from course.lab.server_tap import open_server
from course.lessons.lesson_10 import pictures, run, simulated, words
from course.lessons.lesson_10.check import checks
from course.lessons.lesson_10.words import a5, d16

lab = open_lab()
# The real one, `minillm serve`, in the background, with the lab's weights. Running this again closes the previous one.
server = open_server(lab, instead_of=globals().get("server"))
print(server.about)

# %% [markdown]
# ## Five minutes
#
# The engine produces token ids. On the way to a screen, four things happen to each one:
#
# - it becomes text (**detokenizing**), once its characters are complete;
# - the text goes into a small JSON document, an **event**: `data: {...}` and an empty line. A sequence of these over
#   one HTTP response is called **server-sent events** (SSE);
# - HTTP wraps the event once more, as a **chunk** (of HTTP, not of a prompt), and hands it to the operating system;
# - whatever sits between you and the server (a gateway, a load balancer, a **proxy**) passes it on. Or doesn't yet.
#
# The run below sends the server a request over a real socket. An upper tick is the engine handing over a token, a lower
# tick is the client receiving it, and a line joins the two.

# %%
straight = run.through(server, "straight")
pictures.draw_wire([straight])

# %% [markdown]
# The lines are nearly vertical, so tokens arrive as soon as they leave. Now put a proxy in between that buffers the
# stream until it has 4,096 bytes, then passes them all on. For ordinary pages that's a good idea, and many proxies do
# it.
#
# ### Predict

# %%
bet = lab.predict(
    "proxy",
    "The proxy buffers 4,096 bytes. What happens to the ITL that the client measures?",
    list(words.RHYTHM.values()),
)
bet

# %%
held = run.through(server, buffer_bytes=run.HELD_BYTES)
bet.score(words.rhythm(held))

# %%
stack(pictures.draw_wire([straight, held]), words.tell_held(held))

# %% [markdown]
# What does the server see of it? Here's its own `/metrics`, for each of the two responses:

# %%
pictures.metrics_table([straight, held])

# %% [markdown]
# The server sees nothing of it, because the proxy accepts every byte immediately. **Only a client can measure a
# stream, so take TTFT and ITL at both ends.**

# %% [markdown]
# ## The lab
#
# ### Three ways to spoil a stream
#
# A proxy may buffer bytes, pass several events on together (**coalescing**), or simply add a constant delay.

# %%
faults = run.faults(server)
ways = [straight, held, *faults]
stack(pictures.draw_both_ends(ways), words.tell_both_ends(ways))

# %% [markdown]
# Now spoil it yourself. Each press sends a request over the wire.

# %%
pictures.spoil(server, straight)

# %% [markdown]
# <details><summary>Four to try, answered</summary>
#
# - *Delay only*: TTFT grows by the delay; the rhythm stays the same. A constant delay is harmless to ITL.
# - *512 bytes*: about three tokens arrive together, since an event takes some two hundred bytes for a five-letter word.
# - *4 events together*: the first token is three ITLs late.
# - *More bytes than the answer has*: the first token arrives together with the last.
#
# Buffering trades rhythm for fewer, larger packets. A server can ask a proxy not to buffer with a header
# (`X-Accel-Buffering: no`, which nginx honours and minillm sends); not every proxy honours it, and this one doesn't.
#
# </details>
#
# ### Where it hurts: a chunk per token
#
# One thread on one core, the **event loop**, builds, frames and sends all events. Here's that thread alone: the
# server's own JSON, SSE and HTTP code, fed with canned words instead of an engine's.

# %%
costs = run.by_size(lab)
pictures.chunk_cost_table(costs)

# %% [markdown]
# A chunk costs roughly the same whatever it carries (the differences between the rows are mostly noise), so putting
# several tokens into each divides the cost. vLLM's `--stream-interval` does that. The event loop wakes up for each
# chunk here. Under full load, as in the run below, one wake-up serves many chunks, so a core manages more than the
# last column says. To size a front end, multiply streams by chunks per second by CPU-seconds per chunk: that's the
# number of cores it needs. What happens if it needs more than one?

# %%
busy = run.too_many(lab)
stack(pictures.too_many_table(busy), words.tell_busy(busy))

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "I'd measure TTFT and ITL at the client and compare them with the server's. If the client's median ITL is near
# > zero with a large p99, while the server is smooth, something is buffering. If a front-end core is full, send
# > fewer, larger chunks."
#
# **Follow-ups**
#
# <details><summary>"Users say it stutters. Every server panel is green. First three minutes?"</summary>
#
# `curl -N` one request from where a user is, then from beside the server. If the lines come in lumps only from
# outside, walk the chain hop by hop. The first hop after which they come in lumps is the one that buffers; look there
# for response buffering, and for gzip on `text/event-stream`. If they come in lumps right beside the server, look at
# the front end's CPU, not at the GPU.
#
# </details>
#
# <details><summary>"Why not stream every token, always?"</summary>
#
# Each chunk costs CPU: JSON, framing, a system call. Once that adds up to a full core, chunks get later and later
# while every engine metric looks fine. Putting several tokens into a chunk divides the cost. People read some four
# words a second, so a chunk every 50 ms is plenty; a voice pipeline or an editor may want each token.
#
# </details>
#
# **"p99 ITL at the client is 400 ms. The server says 30 ms."**
#
# | weak | senior | staff |
# |---|---|---|
# | "The network is slow. Use a CDN." | "Something in between buffers or coalesces, such as nginx's `proxy_buffering` or a gateway. Turn that off for streams." | "I'd look at the client's median first: near zero means lumps, unchanged means stalls. Tokens per lump times bytes per event gives me the buffer's size, and 4 or 8 kB looks like nginx's default. I'd fix that hop, add a client-side ITL probe through the whole chain, and alert on the client's ITL *relative to* the server's, because this can't show in any server metric." |
#
# **Three numbers to know cold**

# %%
words.three_numbers(straight, costs)

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>How much does a buffering proxy add to TTFT?</summary>
#
# 1. The buffer takes $b$ bytes, an event has $e$: it passes on once $\lceil b/e \rceil$ events are in.
# 2. The first event is there after the server's TTFT, and each further one takes an ITL.
# 3. Added to TTFT: $\lceil b/e - 1 \rceil \cdot \text{ITL}$.
# 4. 4,096 bytes, events of 190: 22 events, so 21 ITLs. At 20 ms that's 0.42 s.
# 5. From then on tokens come in lumps. The median gap is 0, and every 22nd gap is 22 ITLs long. p99 is one of those,
#    because 1 in 22 is more than 1 in 100.
#
# </details>

# %% [markdown]
# ## Check yourself
#
# Answers come from the streams above.

# %%
check = checks(straight, costs)
check.card()

# %% [markdown]
# ## Going deeper
#
# ### Half a character
#
# In UTF-8 `a` is one byte, `é` two, `日` three, `🦜` four. A byte-level vocabulary may split a rare character across
# tokens. What can be shown after each token?

# %%
pictures.letters_table(run.spell(lab.model.tokenizer))

# %% [markdown]
# Some tokens aren't text by themselves. Decoded alone they come out as �, and a client can't repair that, because the
# bytes are gone. So the server holds them back until the character is complete. One token may release nothing, and
# the next one the text of both. (Text that might turn into a **stop string** is held back the same way. A reasoning
# or tool-call parser can hold back far more, so for such models measure the time to the first *visible* token.)

# %% [markdown]
# ### The same wire in front of 70B
#
# Here's Llama-3 70B on four H100s, simulated under light load, behind the same proxy and at a distance. About 22 chunks
# fit into 4,096 bytes.

# %%
simulated.explore()

# %%
simulated_70b.error_band(simulated_70b.deployment())

# %% [markdown]
# <details><summary>What to look for</summary>
#
# - Let the proxy flush after a tenth of a second: it adds no more than that to TTFT and to p99. p50 stays at zero,
#   because most tokens still arrive with others.
# - Hold 88 chunks: a short answer doesn't stream at all any more.
# - The row *leaves the engine* never moves, whatever you set. An operator who sees only those numbers concludes that
#   all is well.
#
# </details>
#
# ### Text from tokens, at a constant cost
#
# The simple way to get characters right is to decode *all* tokens again after each one and show what's new. That's
# correct, but the token at position $n$ costs about $c\,n$, so an answer of $n$ tokens costs $c\,n^2/2$. The engine
# decodes a short window instead; where every token stands for bytes, as in this model's vocabulary, it decodes the
# new token's bytes alone.

# %%
detok = run.detokenizing_cost(lab.model.tokenizer, run.PROMPT, lab.scale < 1)
pictures.detokenizing_table(detok)

# %% [markdown]
# Both ways are in `minillm/frontend/detokenizer.py`. The window is for vocabularies that aren't bytes. vLLM and
# Hugging Face's text-generation-inference use one, too:

# %%
import inspect

from minillm.frontend.detokenizer import Detokenizer
from minillm.server.answers import AnswerShape

print(inspect.getsource(Detokenizer._take))

# %% [markdown]
# **The arithmetic.** With a buffer of $b$ bytes, events of $e$ bytes, $k$ tokens per chunk, and $c$ seconds of CPU for
# each chunk:
#
# $$\Delta\text{TTFT} = \lceil b/e - 1 \rceil \cdot \text{ITL}, \qquad
# \text{cores} = \frac{\text{streams} \times \text{tokens/s}}{k} \cdot c$$
#
# Here's one event, and the code that builds it. Everything that doesn't change is built once per request.

# %%
print(straight.heard.body[:400].decode())
print(inspect.getsource(AnswerShape.chunk))

# %% [markdown]
# ### What articles say
#
# *D16* puts two techniques into one number. Here they're separated: the same questions, batched or one by one,
# streamed or whole.

# %%
four = run.through(server, coalesce=4)
told = in_short(
    a5(straight, [four, held], busy),
    d16(run.four_ways(lab)),
)
server.close()
told

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --stream-interval 8
# sglang serve --model-path Qwen/Qwen3-8B --stream-interval 8 --enable-metrics --port 8000
# curl -N http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
#     -d '{"model":"Qwen/Qwen3-8B","prompt":"Once upon a time","max_tokens":200,"stream":true}'
# ```
#
# Send that to the server, then through your gateway. Do the lines trickle in, or come in lumps? `vllm bench serve`
# (`--base-url`) puts numbers to it: behind a buffer the client's ITL p50 drops to nearly zero while p99 and TTFT grow,
# and `vllm:inter_token_latency_seconds` on the server doesn't move.
#
# `--stream-interval 8` looks much the same to a client, on purpose: fewer, larger chunks. It's worth it when a
# front-end process fills its core (look with `top`). Throughput then rises. The other cure is more of those
# processes: `--api-server-count` in vLLM, `--tokenizer-worker-num` and `--detokenizer-worker-num` in SGLang.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your chain.** Every hop has its own buffer, time-out and handling of streams. Send one request through all of
#   them with `curl -N`, and watch when the lines arrive. While a long prompt waits or prefills, no bytes flow at all,
#   and nginx or AWS's application load balancer hangs up after 60 idle seconds, unless you raise that limit or send
#   SSE comments as a heartbeat.
# - **The cost of a chunk in your server.** Python's is high. Yours may build events in other processes or another
#   language. The arithmetic stays the same, but the constant doesn't. (Events here are built by hand. A framework
#   that validates each one takes more.)
# - **Your proportions.** A buffer delays the first token by a number of ITLs. At batch size 1 an 8B on an H100 has an
#   ITL of 6.2 ms (docs/measured.md), so the same buffer costs it less time than it costs the example run's two
#   cores. And the longer your prefill or queue, the smaller a buffer's share of TTFT.
# - **One process.** Client, proxy, server and engine share one process, and Python's lock. They also share a clock;
#   across machines you'd have to compare clocks first.
#
# ## Sources
#
# - A5: *Serving LLMs: The Latency Anatomy Framework*. D16: an article on techniques for lower LLM latency, from
#   batching to streaming.
# - Server-sent events: the HTML Living Standard, section 9.2. HTTP/1.1: RFC 9112.
# - nginx: `proxy_buffering`, `proxy_buffer_size`, `X-Accel-Buffering`, in its documentation of ngx_http_proxy_module.
# - Incremental detokenizing: vLLM, `vllm/v1/engine/detokenizer.py`; Hugging Face, text-generation-inference.
