"""The check of lesson 07. Keys come from the traces and scores that are passed in, and from the models' shapes."""

from collections.abc import Mapping
from dataclasses import replace

from course.lab.grading import Checks, Criterion, choice, near
from course.lab.lesson_07.kv_bytes import GQA, MHA, Account, kinds_of
from course.lab.lesson_07.losses import Loss
from course.lab.lesson_07.trace import Trace
from minillm.bench.quality import Floors

CHAT, LONG, WINDOW = 1500, 6000, 2048
"""Tokens of the questions."""


def checks(large: Account, traces: Mapping[str, Trace], tight: Trace, losses: Mapping[str, Loss]) -> Checks:
    """Questions about the bill, the pool, and what it costs to make either smaller.

    q1: MB of KV that a chat of 1500 tokens takes on Llama-3-70B, bf16.
    q2: how many such chats fit beside its weights on four H100s.
    q3: share of the held places (0 to 1) that kept no token under `max_len`.
    q4: what became of the evicted in the tight pool: "killed", "started over" or "read again".
    q5: share (0 to 1) of a 6000-token request's KV that a window of 2048 frees.
    q6: "yes" or "no": does KV in int8 keep the floors of the quality gate here?

    Args:
        traces: by kv_reservation.
        tight: a trace with evictions, under preemption="recompute".
    """
    chat = replace(large, context=CHAT, window=None)

    def q1(answer: object) -> tuple[Criterion, ...]:
        mega = {name: kind.chat_bytes / 1e6 for name, kind in kinds_of(chat).items()}
        slips = {
            mega[MHA]: "that is for MHA: Llama-3-70B keeps 8 heads of the 64",
            mega[GQA] / 2: "a factor of two off: a token leaves a key and a value",
            mega[GQA] * 2: "a factor of two off: bf16 has two bytes",
            mega[GQA] / chat.kv.layers: "that is one layer's: there are 80",
        }
        return (near(answer, chat.chat_bytes / 1e6, "KV of a chat, MB", slips),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        everything = chat.room / chat.chat_bytes
        bytes_of = {name: kind.chat_bytes for name, kind in kinds_of(chat).items()}
        slips = {
            everything: "the weights lie in the same memory: take them off first",
            chat.chats * bytes_of[GQA] / bytes_of[MHA]: "that is for MHA",
        }
        return (near(answer, chat.chats, "chats", slips),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        key = 1 - traces["max_len"].filled_share
        slips = {1 - key: "that is the share that was in use: the rest was empty"}
        return (near(answer, key, "share of held places that were empty", slips, percent=True),)

    def q4(answer: object) -> tuple[Criterion, ...]:
        ended, of = sum(outcome.finished for outcome in tight.outcomes), len(tight.outcomes)
        cost = f"{tight.again} of {tight.tokens} tokens computed had been computed before"
        told = {
            "killed": f"{ended} of {of} answers came whole, after {tight.evictions} evictions",
            "started over": f"nothing that was written was written again: {ended} of {of} answers came whole; {cost}",
            "read again": f"{cost}; the answers went on where they had stopped",
        }
        return choice(answer, "read again" if ended == of else "killed", told)

    def q5(answer: object) -> tuple[Criterion, ...]:
        key = 1 - replace(large, window=WINDOW).chat_bytes_at(LONG) / replace(large, window=None).chat_bytes_at(LONG)
        slips = {1 - key: "that is the share that stays", 0.7: "that is the article's figure: it belongs to one length"}
        return (near(answer, key, "share freed", slips, percent=True),)

    def q6(answer: object) -> tuple[Criterion, ...]:
        loss = losses["KV in int8"]
        broken = loss.broken(Floors())
        told = f"perplexity {loss.rise:+.1%}, KL {loss.kl:.4f}, the same likeliest token in {loss.agreement:.1%}"
        words = f"{told}: breaks {', '.join(broken)}" if broken else f"{told}: all three floors are kept"
        return choice(answer, "no" if broken else "yes", {"yes": words, "no": words})

    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5, "q6": q6})
