"""The course's key facts, as cards. Numbers come from the formulas that the lessons show."""

from course.lab.lesson_02.theory import md1_wait
from course.lab.lesson_06.roofs import on_paper
from course.lab.lesson_06.shapes import LLAMA_13B, LLAMA_70B
from course.lab.lesson_08.formulas import emitted
from course.lab.start.cards import Card
from course.lab.start.contents import DEEP, SAY, SURFACE
from course.lab.style import number, seconds
from minillm.model.arithmetic import find_model
from minillm.simulate.cost.profile import find_profile

CHAT = 1500
"""Tokens of a chat in these cards: prompt and answer."""


def waits() -> str:
    told = ", ".join(f"{load:.0%}: {number(md1_wait(load))}" for load in (0.5, 0.8, 0.95))
    return f"In service times, M/D/1: {told}. It grows with load / (1 - load)."


def crossover() -> str:
    model = find_model("llama-3-70b")
    half = model.layer_params / (model.layers * model.query_size)
    return f"At P / (layers x heads x head size): about {round(half, -3):,.0f} tokens. Far below that a prompt is nearly linear."


def floor() -> str:
    return (f"Bytes of weights over bandwidth: {number(LLAMA_70B.weight_bytes / 1e9)} GB over four times "
            f"{number(on_paper().bandwidth / 1e12)} TB/s is {seconds(on_paper(gpus=4).reading(LLAMA_70B.weight_bytes))}. "
            "No step is shorter; launches and links come on top.")  # fmt: skip


def kv_of_a_chat() -> str:
    each = LLAMA_70B.kv_bytes_per_token
    return f"2 x layers x KV heads x head size x bytes = {each:,} B a token: {CHAT * each / 1e6:.0f} MB for {CHAT:,} tokens."


def kv_border() -> str:
    told = ", ".join(f"{m.name} ({m.kind}) {m.crossover_tokens:,.0f}" for m in (LLAMA_13B, LLAMA_70B))
    return f"Weight bytes over KV bytes a token, over all contexts together: {told} tokens in 16 bits."


def ridge() -> str:
    return (
        f"FLOP/s over bytes/s: {number(on_paper().ridge)} for an H100 by its data sheet. Below it, memory is the limit."
    )


def drafts() -> str:
    return (f"1 + a + ... + a^k = {number(emitted(0.6, 4))} tokens a verification for a = 0.6, k = 4. Not k x a: "
            "the first wrong draft ends it, and one token comes even then. Divide by what drafts and check cost.")  # fmt: skip


def demand() -> str:
    qps, prompt, gpus, mfu = 100, CHAT, 4, find_profile("h100-sxm").constants.mfu
    needs = 2 * find_model("llama-3-70b").layer_params * prompt * qps
    has = gpus * on_paper().flops * mfu
    return (f"Prefill alone: 2 x P x tokens/s = {needs:.1e} FLOP/s, and four H100s have {has:.1e} at an MFU of {mfu:.0%}: "
            f"{needs / has:.0f} times what they can do. No setting cures that.")  # fmt: skip


CARDS: tuple[Card, ...] = (
    Card("phases", "00", SURFACE, "Which five phases does a request pass through, and what do they add up to?",
         "Queue, prefill, first token, decode, stream. They tile its life: their sum is E2E, exactly."),
    Card("ttft", "00", DEEP, "Which phases make up TTFT? Which one does ITL live in?",
         "Queue + prefill + first token. ITL lives in decode."),
    Card("steps", "00", DEEP, "Why does one long prompt make other people's text stutter?",
         "Requests do not have steps, steps have requests: everybody in a step waits for all of it."),
    Card("two numbers", "01", SAY, "Somebody says: our p99 is eight seconds. What do you ask first?",
         "TTFT and ITL apart, by prompt length, from how many samples, and whether the load test holds requests back."),
    Card("average percentiles", "01", "A ruler over the tail", "Two servers' p99 are known. What is the p99 of both together?",
         "Nobody can tell from those two. Pool the samples, then rank."),
    Card("little cap", "01", "A client that hides the queue", "TTFT stays flat however much load you ask for. What do you "
         "suspect, and what gives it away?", "A client with a cap on open requests. Requests per second x mean E2E sits at a "
         "round number: the cap (Little's law)."),
    Card("wait by load", "02", "The curve", "One seat, equal requests: how long is the mean wait at 50, 80 and 95% load?", waits),
    Card("static", "02", "Who sits where?", "What does static batching waste, and when nothing?",
         "Seats of those who are done, until the longest answer ends. With equal answers that come together: nothing."),
    Card("order", "02", "Who is next?", "What does shortest-first cost?",
         "The long ones wait for everybody who comes after them. At more than full load they starve; at low load it changes nothing."),
    Card("shed", "02", "Whom to refuse?", "How do you choose the limit of a queue?",
         "From the promise: seats x promised wait / mean time in a seat. Too tight, and clumps are refused by an idle server."),
    Card("four times", "03", DEEP, "A prompt four times as long: how much dearer is its prefill?",
         "About 4 ^ (1 + attention's share of the work): a little over four, unless it is very long. Less when fixed costs rule."),
    Card("crossover", "03", "When does the square win?", "At what prompt length is attention half the work in Llama-3-70B?", crossover),
    Card("chunks", "03", "One long prompt, and everybody else", "Who gains from chunked prefill, and who pays?",
         "The others gain: shorter gaps. The long prompt pays with its own TTFT; the more so, the smaller the chunks."),
    Card("fused", "03", "The square, built or not", "What does fused attention change, and what not?",
         "The square of scores is never in memory, so long prompts fit and go faster. Useful work and result are the same; short prompts gain little."),
    Card("static first", "04", SURFACE, "Where in a prompt does a timestamp belong, and why?",
         "Last. A cache hit ends at the first block that differs, so everything behind it is computed again."),
    Card("prefix unit", "04", DEEP, "What must agree for a block of KV to be reused?",
         "All of its tokens, and all tokens before it: its hash contains its parent's. Only whole blocks count."),
    Card("prefix nothing", "04", "Where it does nothing", "When is prefix caching of no use?",
         "When prompts share nothing, or when what they share has been evicted before it comes again."),
    Card("neighbours", "05", SURFACE, "TTFT doubled, prompts are as long as before. What is the first split?",
         "Queue, own prefill, and other people's share of the same steps. Only one of them is yours."),
    Card("policies", "05", "Where each policy hurts", "Prefill first or decode first: who pays?",
         "Prefill first: those who are being written to, in pauses. Decode first: newcomers, in the queue. A budget with chunks shares it out."),
    Card("apart", "05", "The same question at 70B", "What does it take for prefill and decode on machines of their own to pay?",
         "A split that matches the traffic, and a fast link for the KV. Otherwise one side idles while the other queues."),
    Card("floor", "06", SURFACE, "What is the shortest ITL of Llama-3-70B in bf16 on four H100s, by the data sheet?", floor),
    Card("ridge", "06", "The roofline", "From which arithmetic intensity on does an H100 wait for arithmetic?", ridge),
    Card("border", "06", "Weights or KV?", "At how much context does a decode step read as much KV as weights?", kv_border),
    Card("utilisation", "06", "How much of the machine is used?", "GPU utilisation is 100%. What does that tell you?",
         "That some kernel was running. Ask for MBU (bytes) at small batches, MFU (operations) at large ones."),
    Card("kv chat", "07", "The bill", "How much KV does a chat of 1500 tokens take in Llama-3-70B, bf16?", kv_of_a_chat),
    Card("thrash", "07", "Where it hurts: thrashing", "KV usage is at 1 and preemptions rise. What helps, and what makes it worse?",
         "Fewer seats, more KV (int8, GQA, memory) or reserving. More seats make it worse: more tokens are computed twice."),
    Card("kv linear", "07", DEEP, "Does KV memory grow with the square of the length?",
         "No, linearly: one key and one value a token, layer and KV head. The square is in attention's work."),
    Card("drafts", "08", DEEP, "Acceptance 0.6, four drafts: how many tokens does one verification bring?", drafts),
    Card("rejected", "08", DEEP, "A draft is rejected at place three. What has to be done again?",
         "Nothing: two tokens are kept, and the check itself yields the third. What came after it is thrown away."),
    Card("speculation load", "08", "Where it hurts: a full batch", "Speculation is fast at night and slow at noon. Why?",
         "At large batches the multipliers are busy: rows for drafts are no longer free. Gate it by batch size."),
    Card("quant phases", "09", "Two other kinds of traffic", "Which phases do int8 weights move?",
         "Decode at small batches: fewer bytes a step. Prefill hardly, or the wrong way: it waits for arithmetic, and unpacking is more of it."),
    Card("quant queue", "09", "When capacity is what is short", "Can quantization shorten a queue?",
         "Only if capacity was short of bytes or of memory. A queue is made of other people's service time."),
    Card("proxy", "10", "Three ways to spoil a stream", "TTFT is up, ITL p50 is near zero, p99 is large, E2E is as ever. What is it?",
         "Something between holds chunks back and passes them on in clumps. Compare server stamps with client stamps."),
    Card("abandoned", "10", "The reader leaves", "A user closes the tab. What should happen in the server?",
         "Its request ends within a step and its KV blocks are free: noticed at the write, or by a disconnect."),
    Card("hundred", "11", "What it takes", "100 requests a second, prompts of 1500 tokens, 70B on four H100s: can it work?", demand),
    Card("replica or config", "11", "Replicas or a field? In dollars", "A queue grows. How do you tell a replica problem from a config problem?",
         "Running at max_num_seqs, KV free, ITL short: seats. KV full: memory, or seats if preemptions rise. ITL at its limit: capacity, and only that is bought."),
    Card("spike", "11", "A spike", "Why does autoscaling not save you from a spike?",
         "It sees the past, looks now and then, and a cold replica takes its time: the queue has grown by then. Buffer, shed, or fall back."),
)  # fmt: skip
