# %% [markdown]
# # 10c · Clients that leave, stall and retry
#
# Half of your users closed the tab, and the server is still generating for them. Meanwhile a mobile client has stopped
# reading, and another one retries every failed request immediately, up to five times. What does each of them cost the
# others?
#
# You'll be able to say how far retries multiply load and what stops them, and what noticing a disconnect saves.
#
# - **Five minutes** (five): a retry storm, and a bet on its size.
# - **The lab** (five): clients that leave, what detecting that saves, and nine kinds of trouble sent to a real server.
# - **In the interview** (five): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (five): retries at 70B, the arithmetic, two claims.

# %%
from course.lab import open_lab
from course.lab.claims import in_short
from course.lab.display import stack
from course.lab.server import LabServer
from course.lessons.lesson_10c import pictures, run, simulated, words
from course.lessons.lesson_10c.check import checks
from course.lessons.lesson_10c.words import d15, e6

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# A request fails, so the client tries again. While the server is overloaded, *every* failure becomes another request,
# at the worst possible moment.
#
# Run it on a real server: for two seconds load is four times its capacity, then half its capacity. A client waits as
# long as four answers take, and tries up to six times.
#
# ### Predict

# %%
amplified = lab.predict(
    "storm",
    "Clients retry immediately, six attempts at most: how many attempts per user request, over the whole run?",
    unit="attempts",
    between=(1, 6),
)
amplified

# %%
stormy = run.live_storms(lab)
amplified.score(words.amplification(stormy))

# %%
stack(
    pictures.storms_table(stormy),
    pictures.draw_storms(stormy, "A retry storm on this machine"),
    words.tell_storm(stormy),
)

# %% [markdown]
# What clients can do instead:
#
# - **Exponential backoff with jitter**: wait longer after each failure, and randomize the wait, or clients that failed
#   together retry together. That spreads attempts without limiting them.
# - **A retry budget** on top limits them: retries are at most a tenth of requests. Past that, something's wrong that
#   retrying won't fix.
#
# ## The lab
#
# ### A client leaves
#
# A user closes the tab halfway through an answer. The first client is connected to the server directly. The second
# sits behind a **gateway** that keeps reading to the end (say, because it logs, checks or bills whole answers). How
# much of the rest is generated though no one will read it?

# %%
server = LabServer(lab, instead_of=globals().get("server"))
left = run.both_ways(server, run.HALF)
server.close()
stack(pictures.draw_leaving(left), words.tell_left(left))

# %% [markdown]
# ### What detecting a disconnect saves
#
# Eight clients ask, and half of them leave halfway. First there's a slot for each, then two slots and a queue.

# %%
crowds = run.crowds(lab)
stack(pictures.crowds_table(crowds), words.tell_crowds(crowds))

# %% [markdown]
# ### What happy-path tests leave out
#
# Some clients do worse than leave. A phone in a tunnel keeps its connection open and reads nothing, so the text has to
# wait somewhere. Others send half a request, or a prompt longer than the context. Here are nine kinds of trouble, one
# after the other, each beside another client's stream.

# %%
troubles = run.send_all_faults(lab)
pictures.faults_table(troubles)

# %% [markdown]
# For a client that stops reading, every server needs an answer to four questions. This one's:
#
# - *Does the engine wait?* No. A batch that waited for one client would hold up all the others.
# - *Where does the text wait?* In the operating system, up to 64 KiB. The rest stays in the process, merged, so it's
#   never more than the answer itself.
# - *For how long?* For `--reader-timeout` seconds. Then the server closes the connection.
# - *Which other requests notice?* None, beyond the usual: the slow client's answer shares their steps until it's
#   done, like any other.

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "I'd propagate disconnects through every hop, and test that by watching KV blocks come back. Each request gets a
# > bounded buffer, so a slow reader can't stall the batch. And clients get a retry budget, because backoff only
# > spreads attempts."
#
# **Follow-ups**
#
# <details><summary>"The spike ended ten minutes ago, and goodput is still zero. Why, and what now?"</summary>
#
# A metastable failure: retries keep the load above capacity, and with first-come order each slot goes to the attempt
# that has waited longest, whose client is about to give up. Cut load below capacity until the queue has drained:
# refuse beyond a short queue, and drop requests whose clients have gone. Then fix the clients.
#
# </details>
#
# <details><summary>"Does cancelling save money?"</summary>
#
# It saves time if another request is waiting for the slot, or if each request makes the step noticeably longer. In a
# small batch on a GPU neither is true, so cancelling one saves almost nothing. A token that isn't generated isn't
# necessarily time saved.
#
# </details>
#
# **"SDK users see 503s at peak. Product wants more retries."**
#
# | weak | senior | staff |
# |---|---|---|
# | "Add retries with exponential backoff." | "Backoff with jitter, `Retry-After` honoured, and a cap on attempts." | "With $n$ attempts, overload turns into up to $n$ times the load, and that stays after the peak. So I'd set a budget: retries are at most a tenth of each client's requests. On our side, refuse early, with `Retry-After`, and drop abandoned work. I'd rehearse it: four times capacity for a minute, then look at goodput five minutes later. And 503s at peak are a capacity question; retries only move them." |
#
# **Three numbers to know cold**

# %%
words.three_numbers(stormy)

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>How much load do retries add?</summary>
#
# 1. An attempt fails with probability $p$; at most $n$ attempts.
# 2. Attempts per request: $A = 1 + p + \dots + p^{n-1} = (1 - p^n)/(1 - p)$.
# 3. Load becomes $\lambda A$. Above capacity $\mu$, at best a share $\mu / \lambda A$ succeeds, so $p \ge 1 - \mu /
#    \lambda A$.
# 4. A spike with $\lambda > \mu$ drives $p$ to 1 and $A$ to $n$. It can stay there if $n \lambda' > \mu$ at the normal
#    load $\lambda'$.
# 5. At half load, three attempts are enough for that. A budget of 10% caps $A$ at 1.1.
#
# </details>

# %% [markdown]
# ## Check yourself

# %%
check = checks()
check.card()

# %% [markdown]
# ## Going deeper
#
# ### Retries at 70B
#
# A queue takes longer to drain there, so overload lasts twenty seconds, clients wait six seconds for a first byte, and
# the server doesn't detect disconnects. Two policies join: backoff without jitter, and a **circuit breaker**, which
# stops calling for a while after a run of failures (*open*), then lets one request through and *closes* again if it
# succeeds.

# %%
at_70b = simulated.storms_at_70b()
servers = simulated.servers_at_70b()
stack(
    pictures.storms_table(at_70b),
    pictures.storms_table(servers, "retry immediately; the server"),
    words.tell_clients(at_70b, servers),
)

# %%
pictures.draw_storms(
    {name: at_70b[name] for name in (simulated.GIVE_UP, simulated.JITTER, simulated.BREAKER)}, "The same at 70B", 10.0
)

# %% [markdown]
# <details><summary>If the server refuses early, do breakers still help?</summary>
#
# Try `run.live_storms(lab, only=(simulated.IMMEDIATELY, simulated.BREAKER), max_queue_len=8)`. A refusal costs the server
# almost nothing, so clients that retry immediately soon get in. The breaker counts refusals as failures, opens, and holds
# back requests that would've been served. Let a breaker count time-outs and 5xx, and let clients obey the `Retry-After`
# on a 429; this server sends one with every 429 and 503.
#
# </details>

# %% [markdown]
# ### The arithmetic
#
# A share $p$ of clients leaves after reading a share $f$, and a share $q$ of a request's compute is its prompt. An
# attempt fails with probability $p_f$, and clients try at most $n$ times:
#
# $$\text{compute saved} = p\,(1 - f)\,(1 - q), \qquad
# \text{attempts per request} = 1 + p_f + \dots + p_f^{\,n-1} = \frac{1 - p_f^{\,n}}{1 - p_f}$$
#
# The second is the amplification: with $p_f$ near 1 it's $n$. The extra load raises $p_f$, which raises the load
# again: that's how a **metastable** failure outlives the spike that triggered it. (Attempts aren't independent then,
# so the formula is where it starts, not where it ends.)

# %%
import inspect

print(inspect.getsource(simulated.expected_attempts))

# %% [markdown]
# ### What articles say

# %%
in_short(
    d15(crowds),
    e6(troubles),
)

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-8B --max-num-seqs 4 --max-num-queued-reqs 20
# sglang serve --model-path Qwen/Qwen3-8B --max-running-requests 4 --max-queued-requests 16 --enable-metrics --port 8000
# timeout 1 curl -N http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
#     -d '{"model":"Qwen/Qwen3-8B","prompt":"Once upon a time","max_tokens":4000,"stream":true}'
# ```
#
# `timeout` hangs up after a second. `vllm:num_requests_running` and `vllm:kv_cache_usage_perc` should fall within a
# step or two; `vllm:request_success_total` stays as it is, since vLLM 0.33.0 counts no aborted request there
# (`sglang:num_running_reqs` and `sglang:token_usage` fall, `sglang:num_aborted_requests_total` counts one more). If the
# request runs on, something in between hides the hang-up: try the same through your gateway.
#
# Then the storm: `minillm bench serve` above capacity with `--timeout 2`. With the limits, excess requests are refused
# immediately with 503 (`vllm:admission_rejections_total`), and those admitted finish. Without them,
# `vllm:num_requests_waiting` climbs, and the server works for clients that have left.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Compute saved in money.** Token shares here are counted exactly. What a saved token is worth depends on what's
#   waiting for the slot, and on what one request more costs in a step: almost nothing in a GPU's small batch, more in
#   a full one.
# - **Your clients.** SDKs retry by default: find out how often, on which errors, and with which delays, before an
#   incident does.
#
# ## Sources
#
# - D15: an article on techniques for lower LLM latency, from batching to streaming. E6: *Latency Optimization in LLM
#   Inference Systems*.
# - Brooker, *Exponential Backoff And Jitter*, AWS Architecture Blog, 2015. Beyer et al., *Site Reliability
#   Engineering*, 2016, chapters 21 and 22 (retry budgets). Bronson et al., *Metastable Failures in Distributed
#   Systems*, HotOS 2021. Nygard, *Release It!*, 2007 (circuit breakers).
