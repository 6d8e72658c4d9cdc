"""Prompts whose length is the experiment: cut to exact numbers of tokens from the harbour handbook."""

import random

from course.lab.lab import Lab
from course.lab.texts import CHAT_QUESTIONS
from course.lab.workloads import Arrival, Workload, document
from course.lessons.lesson_03.costs import lab_shape
from minillm.model.loader import choose_device

ROUNDS = 3
LENGTHS = {"cpu": (32, 64, 128, 256, 512, 1024), "cuda": (256, 512, 1024, 2048, 4096, 8192)}
SHORT_LENGTHS = {"cpu": (16, 32, 64, 128, 256), "cuda": (64, 128, 256, 512, 1024)}
"""Prompt lengths by kind of device, tokens; each is twice the one before it."""
LONG_PROMPT = {"cpu": 768, "cuda": 8192}
SHORT_LONG_PROMPT = {"cpu": 192, "cuda": 1024}
"""The long prompt among chats."""
PARAGRAPH_TOKENS = 60
"""A paragraph of the handbook has a few more than this."""


def device(lab: Lab) -> str:
    """cpu or cuda: where the lab's engine computes."""
    return choose_device(lab.config().device).type


def window(lab: Lab) -> int:
    """Longest prompt and answer that the lab's model has positions for, tokens."""
    return lab_shape(lab).max_position_embeddings


def lengths(lab: Lab) -> tuple[int, ...]:
    """The lengths of the ladder: those of the device that fit the model."""
    chosen = (LENGTHS if lab.scale == 1 else SHORT_LENGTHS)[device(lab)]
    return tuple(length for length in chosen if length < window(lab))


def fields(lab: Lab, longest: int) -> dict[str, object]:
    """EngineConfig fields that the runs of this lesson have in common: a prompt of `longest` tokens, with a few
    others, is one step, and nothing is found in a cache.

    In float32 on a CPU: many have no instructions for 16 bits, and then PyTorch's fused kernel is slow for a reason
    that has nothing to do with attention.
    """
    room = min(longest + 512, window(lab))
    exact = {"dtype": "float32"} if device(lab) == "cpu" else {}
    sizes = {"max_model_len": room, "max_num_batched_tokens": room, "num_kv_blocks": 2 * room // 16 + 64}
    return {"enable_prefix_caching": False, **exact, **sizes}


def pages(lab: Lab, tokens: int, seed: int = 0) -> list[int]:
    """So many tokens of the handbook, its paragraphs in random order."""
    text = document(random.Random(f"pages/{seed}"), 1 + tokens // PARAGRAPH_TOKENS)
    return lab.tokenizer.encode(text)[:tokens]


def ladder(lab: Lab, rounds: int = ROUNDS) -> Workload:
    """A prompt of each length, one at a time, and again: what disturbs the machine disturbs all lengths."""
    order = [length for _ in range(rounds) for length in lengths(lab)]
    arrivals = tuple(Arrival(0.0, pages(lab, length, seed), 1) for seed, length in enumerate(order))
    return Workload("ladder", "One prompt at a time, each twice as long as the one before.", arrivals, max_in_flight=1)


def one(lab: Lab, tokens: int) -> Workload:
    """A prompt of this length, alone."""
    return Workload(f"{tokens} tokens", "One prompt and one token.", (Arrival(0.0, pages(lab, tokens), 1),))


def long_prompt(lab: Lab) -> int:
    """Tokens of the long prompt among chats."""
    wanted = (LONG_PROMPT if lab.scale == 1 else SHORT_LONG_PROMPT)[device(lab)]
    return min(wanted, window(lab) // 2)


def long_among_chats(lab: Lab, answer: int | None = None, after: float | None = None) -> Workload:
    """Three chats are being answered when one long prompt arrives. It is the last row.

    Args:
        answer: tokens of each chat's answer.
        after: seconds until the long prompt arrives.
    """
    on_cpu = device(lab) == "cpu"
    after = (0.25 if on_cpu else 0.05) if after is None else after
    answer = answer or (64 if lab.scale == 1 else 24) * (1 if on_cpu else 3)
    chats = [Arrival(0.0, question, answer) for question in CHAT_QUESTIONS[:3]]
    return Workload(
        "long among chats",
        "Three chats are being answered when one long prompt arrives.",
        (*chats, Arrival(after, pages(lab, long_prompt(lab)), 4)),
    )
