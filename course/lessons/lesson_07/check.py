"""The check of lesson 07. Keys come from the traces that are passed in, and from the models' shapes."""

from collections.abc import Mapping
from dataclasses import replace

from course.grading import Checks, Criterion, Question, choice, near
from course.lab.pool_trace import PoolTrace
from course.lessons.lesson_07.run import GQA, MHA, Account, kinds_of

CHAT = 1500
"""Tokens of the questions."""


def checks(large: Account, traces: Mapping[str, PoolTrace], tight: PoolTrace) -> Checks:
    """Questions about KV bytes and the pool.

    q1: MB of KV that a chat of 1500 tokens takes on Llama-3-70B, bf16.
    q2: how many such chats fit beside its weights on four H100s.
    q3: share of the held positions (0 to 1) that kept no token under `max_len`.
    q4: what became of the evicted in the tight pool: "killed", "started over" or "prefilled again".

    Args:
        traces: by kv_reservation.
        tight: a trace with evictions, under preemption="recompute".
    """
    chat = replace(large, context=CHAT, window=None)

    def q1(answer: object) -> tuple[Criterion, ...]:
        mega = {name: kind.chat_bytes / 1e6 for name, kind in kinds_of(chat).items()}
        slips = {
            mega[MHA]: "that's for MHA; Llama-3-70B keeps keys and values for 8 heads, not 64",
            mega[GQA] / 2: "a factor of two off: a token leaves a key and a value",
            mega[GQA] * 2: "a factor of two off: bf16 takes two bytes",
            mega[GQA] / chat.kv.layers: "that's one layer's; there are 80",
        }
        return (near(answer, chat.chat_bytes / 1e6, "KV of a chat, MB", slips),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        everything = chat.room / chat.chat_bytes
        bytes_of = {name: kind.chat_bytes for name, kind in kinds_of(chat).items()}
        slips = {
            everything: "the weights are in the same memory: subtract them first",
            chat.chats * bytes_of[GQA] / bytes_of[MHA]: "that's for MHA",
        }
        return (near(answer, chat.chats, "chats", slips),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        key = 1 - traces["max_len"].filled_share
        slips = {1 - key: "that's the share that was in use; the rest was empty"}
        return (near(answer, key, "share of held positions that were empty", slips, percent=True),)

    def q4(answer: object) -> tuple[Criterion, ...]:
        ended, of = sum(outcome.finished for outcome in tight.outcomes), len(tight.outcomes)
        cost = f"{tight.again} of {tight.tokens} tokens computed had been computed before"
        told = {
            "killed": f"{ended} of {of} answers were complete, after {tight.evictions} preemptions",
            "started over": f"no token was generated twice: {ended} of {of} answers were complete; {cost}",
            "prefilled again": f"{cost}; the answers continued where they had stopped",
        }
        return choice(answer, "prefilled again" if ended == of else "killed", told)

    questions = {
        "q1": Question(
            "Llama-3-70B in bf16 (80 layers, 8 KV heads, head size 128): how many MB (1e6 bytes) of KV does a chat of "
            "1,500 tokens keep, in whole blocks of 16?",
            "MB",
        ),
        "q2": Question("How many such chats fit beside its weights on four H100s? (The bill says.)", "chats"),
        "q3": Question(
            "Under max_len, in the small pool, what share of the token positions that were held stayed empty?", "0 to 1"
        ),
        "q4": Question(
            "What happened to the preempted requests in the tight pool?",
            options=("killed", "started over", "prefilled again"),
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4}, questions)
