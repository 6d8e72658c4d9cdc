"""Requests to speculate on: copying, chat, verse; one after the other, or many at once. And ways to draft for them."""

import math
from dataclasses import dataclass
from typing import Any

from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.texts import CHAT_QUESTIONS, MANUAL
from course.lab.workloads import Arrival, Workload
from minillm import SamplingParams
from minillm.frontend.prompts import Prompt
from minillm.speculation import head_file

HOT = 1.0
"""The temperature of the verse: words are drawn as likely as the model finds them."""
VERSES = (
    "Write a strange poem about a lighthouse in fog.",
    "Invent a dream in which a bicycle writes to the moon.",
    "Write an unusual story about a key that fits no lock.",
    "Describe a colour that does not exist.",
)
COPYING, CHAT, CREATIVE = "copying", "chat", "creative"
KINDS = (COPYING, CHAT, CREATIVE)
GATES_OPEN: dict[str, Any] = {"min_output_tokens": 1, "max_batch": 1024, "acceptance_floor": 0.0, "adaptive_k": False}
"""Draft always, and as far as k says."""
OFF: dict[str, Any] = {"speculative": None}
SHIPPED: dict[str, Any] = {"speculative": {"method": "ngram"}}
ALWAYS: dict[str, Any] = {"speculative": {"method": "ngram", **GATES_OPEN}}
SHORT_CROWD = 5
BUDGET, BLOCK = 1024, 16
PROMPT_TOKENS, MARGIN = 176, 48
"""No prompt here is longer; and what drafts take beyond the answer."""


@dataclass(frozen=True)
class Sampled(Arrival):
    """A request whose words are drawn."""

    temperature: float = 0.0
    seed: int = 0

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, seed=self.seed, max_tokens=self.max_tokens, ignore_eos=True)


def prompt_of(kind: str, index: int) -> Prompt:
    """The index-th prompt of a kind, as a chat message."""
    if kind == COPYING:
        words = f"Repeat the following text word for word:\n\n{MANUAL[index % len(MANUAL)]}"
    else:
        texts = CHAT_QUESTIONS if kind == CHAT else VERSES
        words = texts[index % len(texts)]
    return [{"role": "user", "content": words}]


def workload(kind: str, count: int, tokens: int, at_once: int = 1) -> Workload:
    """`count` requests of a kind, `at_once` of them in the engine together, each to write `tokens` tokens."""
    temperature = HOT if kind == CREATIVE else 0.0
    arrivals = tuple(Sampled(0.0, prompt_of(kind, i), tokens, temperature=temperature, seed=i) for i in range(count))
    name = f"{kind}, {count} × {tokens} tokens" + (", all at once" if at_once > 1 else "")
    return Workload(name, "", arrivals, max_in_flight=at_once)


def one_by_one(lab: Lab, kind: str) -> Workload:
    """A few answers of a kind, one after the other."""
    return workload(kind, 2 if lab.scale == 1 else 1, 64 if lab.scale == 1 else 24)


def crowd(lab: Lab, at_once: int) -> Workload:
    """Copying, the best case for looking up, by many at once; by fewer in the lab's short form."""
    if lab.scale < 1:
        return workload(COPYING, SHORT_CROWD, 10, SHORT_CROWD)
    return workload(COPYING, at_once, 24, at_once)


def play(lab: Lab, traffic: Workload, way: dict[str, Any]) -> Run:
    """One run, nothing reused: every request reads its own prompt.

    Args:
        way: fields of EngineConfig, such as OFF, SHIPPED or ALWAYS.
    """
    at_once = traffic.max_in_flight or len(traffic.arrivals)
    longest = max(arrival.max_tokens for arrival in traffic.arrivals)
    room = {
        "max_num_seqs": at_once,
        "max_num_batched_tokens": BUDGET,
        "num_kv_blocks": at_once * math.ceil((PROMPT_TOKENS + longest + MARGIN) / BLOCK),
    }
    return lab.run(traffic, enable_prefix_caching=False, **{**room, **way})


def made_up(lab: Lab, alpha: float, k: int) -> Run:
    """Chats by eight at once, with drafts of k tokens each of which passes with a chance of alpha. No gates."""
    requests, tokens = (8, 25) if lab.scale == 1 else (4, 12)
    way = {"method": "synthetic", "acceptance_rate": alpha, "k": k, "seed": round(1000 * alpha) + k, **GATES_OPEN}
    return play(lab, workload(CHAT, requests, tokens, requests), {"speculative": way})


def rounds(lab: Lab) -> int:
    """How often each way is measured, by turns."""
    return 3 if lab.scale == 1 else 2


def drafters(lab: Lab) -> dict[str, dict[str, Any]]:
    """Ways to draft that cost no second model here: looking up, and a trained draft head, if one comes with minillm."""
    model = lab.config().model
    found = {"ngram": {"method": "ngram"}}
    if (head_file.HEADS / model / head_file.WEIGHTS).is_file():
        found["draft head"] = {"method": "draft_head"}
    return found
