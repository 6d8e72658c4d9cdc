"""Requests that decode side by side: equally long prompts, all at once, nothing shared between them."""

import math
import random
from typing import Any

from course.lab.texts import CHAT_QUESTIONS
from course.lab.workloads import Arrival, Workload, document

SLOTS = 128
TOKEN_CHARACTERS = 2
"""At least so many characters make a token, in any of our texts: KV blocks are set aside by that."""
PARAGRAPH_TOKENS = 75
CHARACTERS_PER_TOKEN = 4.75
BLOCK = 16
BUDGET = 2048
"""Tokens of one step: all of the prompts, where they are short."""


def side_by_side(batch: int, context: int = 0, steps: int = 8) -> Workload:
    """`batch` requests in the same instant, each to write `steps` tokens, and a few more if prompts take long to read.

    Args:
        context: about so many tokens of handbook in each prompt, different ones; 0 = a few words.
    """
    steps += math.ceil(batch * context / BUDGET)
    prompts = [_prompt(i, context) for i in range(batch)]
    return Workload(
        f"{batch} side by side, context {context or 'short'}",
        "Equally long prompts in the same instant.",
        tuple(Arrival(0.0, prompt, steps) for prompt in prompts),
    )


def room(workload: Workload) -> dict[str, Any]:
    """Engine fields under which all of them decode at once: a slot and KV blocks for each, nothing reused."""
    tokens = [len(a.prompt) / TOKEN_CHARACTERS + a.max_tokens for a in workload.arrivals]
    return {
        "max_num_seqs": max(SLOTS, len(tokens)),
        "max_num_batched_tokens": BUDGET,
        "num_kv_blocks": sum(math.ceil(t / BLOCK) + 2 for t in tokens),
        "enable_prefix_caching": False,
    }


def _prompt(index: int, context: int) -> str:
    """The number in front keeps them apart."""
    if context == 0:
        return f"{index}. {CHAT_QUESTIONS[index % len(CHAT_QUESTIONS)][:24]}"
    text = document(random.Random(index), math.ceil(context / PARAGRAPH_TOKENS) + 1)
    return f"{index}. {text}"[: int(context * CHARACTERS_PER_TOKEN)]
