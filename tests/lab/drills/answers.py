"""Answers of people who have never seen the model answers: other words, other order, and some who only pretend."""

FLAGSHIP_PARAPHRASES = (
    """\
I'd refuse to treat this as a single latency. Writing out 180 tokens at 80 ms each takes roughly 14 seconds, so end
to end somebody waits
between 17 and 18 seconds, and the 3.2 s until the first token is less than a fifth of that. Whether those 3.2 s are
spent waiting in line or
processing the prompt I can't tell from the dump: I'd want to see queue time next to prefill time. Something else
bothers me. 60 requests a second
times 2200 tokens is 132,000 prompt tokens each second, some 3.4 PFLOP/s, while two A100s top out at 624 TFLOP/s. A
single server cannot do that.

The second problem is the gap between tokens. This model has no grouped-query attention, so each request keeps close
to 2 GB of keys and values, and
only about 70 of them fit. That means memory pressure, preemptions, and long decode steps.

What I would do, in this order. (1) Limit admission and slice long prompts into chunks: it targets queueing and
prefill, and should take 50 to 70% off
TTFT without costing a cent; behind a flag, so we can revert. (2) If the first token is still late after that, cache
the common prefix, which saves prefill
work in proportion to what is shared. (3) Only then work on decode: speculative decoding or an 8-bit KV cache, after
an accuracy check.

Things I need to know: How long is the queue wait at p99? Two seconds of it would change my order. How are prompt
lengths distributed, chat or RAG? If the tail is
RAG, chunking matters more. What is the batch limit, and does it preempt? One replica or several?
""",
    """\
**Diagnosis**
- Decode: 180 x 0.08 s = 14.4 s. TTFT: 3.2 s. Total 17.6 s, so TTFT is 18% and decoding is the real end-to-end story.
- TTFT is either queue or prefill; prefill of 2200 tokens should take around 0.1 s on 2 A100s, therefore most of it
  has to be queue wait. I would confirm with the queue-wait p99.
- Little's law: 60/s x 17.6 s = 1056 requests in flight, far more than two A100s can hold KV for, so this dump must
  be several replicas or a burst.

**Secondary**
- 80 ms ITL is slow for 13B: reading 26 GB of weights over 4 TB/s is about 6.4 ms. I suspect KV pressure (plain MHA,
  no GQA) or prefills that share the step with decode.

**Interventions (ranked)**
1. Admission control plus chunked prefill -> queue, prefill. Cuts p99 TTFT by half or more; config only, canary
   first, roll back if goodput drops.
2. Prefix caching -> prefill. If TTFT is still over 1 s after step 1; gain depends on the shared share.
3. KV int8, later speculation -> decode. Deferred until 1 and 2 are measured; needs a quality eval. For sustained
   load add replicas, for spikes shed.

**Open questions**
- What is queue wait p99? If it is near zero my ranking flips and prefix caching goes first.
- Prompt length p50/p99 and shared prefix? Decides between 1 and 2.
- Max batch size and KV usage? Tells whether ITL is KV-bound.
""",
)

FLAGSHIP_SHORT = """\
Decode is 80 ms x 180 = 14.4 s of a 17.6 s wait; TTFT of 3.2 s is queue or prefill, and I need the queue wait to
tell them apart. 132,000 prompt tokens/s is 5.5 times
what two A100s can compute, so this is not one server.
Second: no GQA, so KV limits the batch and ITL suffers.
1. Admission control and chunked prefill (queue, prefill) should halve TTFT, for free.
2. If TTFT is still high, prefix caching (prefill).
3. Then int8 KV (decode), behind a quality eval.
What is queue wait p99? If it is low, 2 goes first. Are there preemptions?
"""

PREACHING = """\
Latency in LLM serving has five phases: queue, prefill, first token, decode and stream, and each of them matters.
TTFT and ITL are important metrics, and p99 TTFT and p99 ITL must be
monitored on dashboards. To optimise the system we should leverage continuous batching, quantization, speculative
decoding, chunked prefill, prefix caching, PagedAttention, FlashAttention,
tensor parallelism, GQA, KV cache quantization, admission control, autoscaling and more replicas. Quantization
improves latency and throughput significantly. Speculative decoding improves latency
significantly. Chunked prefill improves TTFT significantly. Prefix caching improves TTFT significantly. Continuous
batching improves throughput significantly. PagedAttention improves memory
usage significantly. It is important to consider cost, quality, rollback, canary, monitoring, steady state and
spikes. We should measure the queue wait, the prefill time, the decode time, the KV cache
usage, the hit rate and the acceptance rate. First we should do admission control, second chunked prefill, third
speculative decoding. If the latency is still high, then we should add replicas. What is the
queue wait? What is the prompt length distribution? What is the batch size? In conclusion, a holistic approach to
queue, prefill, decode and stream will reduce TTFT and ITL and improve the p99 of the system.
"""
"""Whole sentences and every right word, and no diagnosis, no arithmetic, no choice."""

KEYWORDS = (
    "queue prefill first token decode stream TTFT ITL p99 14.4 s KV cache pressure GQA admission control "
    "chunked prefill prefix caching "
    "speculative decoding quality eval rollback canary steady state spike queue wait if then first second third. "
) * 6

TEMPLATE = " ".join(
    f"We should use {name} because it reduces {phase} latency by {n}%."
    for n, (name, phase) in enumerate(
        [("admission control", "queue"), ("chunked prefill", "prefill"), ("prefix caching", "prefill"),
         ("speculative decoding", "decode"),
         ("int8 KV", "decode"), ("GQA", "decode"), ("replicas", "queue"), ("quantization", "decode")], start=31,
    )
)  # fmt: skip

GARBAGE = (
    "",
    "   \n\n\t ",
    "asdf",
    "?" * 500,
    "1 / 0 = 0. 0 x 0 = 0. 5 / 0. 1e999 x 1e999 = 3",
    "$" * 50 + "{ttft} {} {0} %s \\",
    "\x00\x01\ud7ff " * 20,
    "Die Latenz entsteht in der Warteschlange; ich würde zuerst die Wartezeit messen und dann die Stapelgröße senken.",
    "レイテンシーの問題はキューにあります。まず待ち時間を測定します。80 ms × 180 = 14.4 秒。",
    "<script>alert('x')</script> <b>queue</b> " * 30,
    "queue " * 5000,
)

FLUENT = """\
When approaching a latency problem such as this one, a structured view of the request path is essential. The p99
TTFT of 3.2 s is a major concern, as users expect a fast first token, and the inter-token
latency of 80 ms also contributes to a poor experience. The dominant phase may be the queue, the prefill or the
decode, and all of them deserve attention because the prompt has 2200 tokens.

The secondary problem is memory pressure, since the KV cache competes with the weights for HBM and fragmentation
limits the batch size. PagedAttention and a larger batch would help throughput here.

My first intervention is continuous batching, which improves both queueing and decode. Then I would introduce
quantization to int8 or fp8 in order to speed up decode while watching quality. Chunked prefill helps
prefill, and prefix caching removes duplicate work from prompts. Speculative decoding could further lower ITL with a
draft model, FlashAttention accelerates attention, and tensor parallelism across the two A100s
splits the weights. If this is not enough, autoscaling and more replicas bring capacity, admission control protects
from spikes, and a smaller model serves as a fallback. Priority lanes, routing and
offloading to host memory are further options for the long term.

In terms of operations, costs should be monitored, each change goes through a canary with rollback, and steady state
is treated apart from spikes. Quality must be evaluated.

Open questions: What is the queue wait at p99? What is the prompt length distribution? Which batching policy is in
use? Is there a shared prefix? Depending on the answers the priorities could change.
"""
"""Fluent, long, and all of it true enough: everything is proposed, so nothing is."""

SHORT_AND_RIGHT = {
    "ttft-7s": """\
Prefill is 350 ms of 7 s, so 6.65 s, 95% of TTFT, is queue. Decode is fine at 50 ms, so quantization would not help.
1. Admission control (queue), free, behind a flag: cuts TTFT for those let in.
2. If KV has room, more seats (queue), watching ITL.
3. Replicas only if load exceeds capacity in steady state; they cost money.
Is KV use near one? If so, seats are no way out. What is the load over the day: a spike, or growth?
""",
    "code-drafts": """\
Speculation helps decode, because one read of the weights checks five tokens. At 0.8 and k = 4 a verification brings
3.36 tokens for 1.4 steps, so 2.4x: ITL 24 ms to 10 ms. In chat 1.38x, which depends on acceptance: not worth it.
1. Drafts for code only (decode), on a canary, with rollback.
2. If the batch grows in a spike, a gate turns drafts off (capacity).
What is the batch at peak? If it is beyond the knee, I would not ship it. How is acceptance by position?
""",
    "quantized-in-vain": """\
The wait of 4.8 s is 44% of p99, so it is the queue; quantization saves at most 1.2 s of decode.
Prompts are 3 times as long: prefill is short of capacity, or the KV pool is full, because 96 seats want 230,400 tokens.
1. Admission control (queue), a flag, free: bounds the wait.
2. If KV is full, int8 KV (memory), behind a quality eval, which makes room.
3. Shorter prompts (prefill). Replicas cost money, so they come last.
Is KV use near 1? If not, prefill is what is short. What is the load against capacity?
""",
}
"""By drill: a few lines that say what matters."""
