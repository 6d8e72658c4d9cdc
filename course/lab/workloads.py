"""Traffic to play to an engine: seeded lists of requests, each with its moment of arrival.

The same seed gives the same requests, so that two configurations are compared on the same traffic.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from course.lab.texts import CHAT_QUESTIONS, MANUAL, MANUAL_QUESTIONS
from minillm import SamplingParams
from minillm.core.brief import brief
from minillm.frontend.prompts import Prompt


@dataclass(frozen=True)
class PromptArrival:
    """One request of a workload."""

    offset: float
    """Seconds after the run begins."""
    prompt: Prompt
    """Text, mostly; token ids where its exact length matters."""
    max_tokens: int
    tenant: str = ""
    """Whose request it is, with scheduling_order="fair"."""
    ends: bool = False
    """Where the model ends it. Otherwise it is exactly max_tokens long: part of the traffic, not of the luck."""

    __repr__ = brief

    @property
    def params(self) -> SamplingParams:
        """Greedy."""
        return SamplingParams(temperature=0.0, max_tokens=self.max_tokens, ignore_eos=not self.ends)


@dataclass(frozen=True)
class LabWorkload:
    """A named list of arrivals, in order of arrival."""

    name: str
    about: str
    """What traffic this is, in one sentence."""
    arrivals: tuple[PromptArrival, ...]
    max_in_flight: int | None = None
    """A client that never has more requests open than this; None = it sends whenever one is due."""

    __repr__ = brief

    def at_pace(self, pace: float) -> "LabWorkload":
        """The same requests, each `pace` times as long after the beginning."""
        if pace == 1:
            return self
        arrivals = tuple(replace(arrival, offset=pace * arrival.offset) for arrival in self.arrivals)
        return replace(self, arrivals=arrivals)


def document(rng: random.Random, paragraphs: int) -> str:
    """A document of so many handbook paragraphs (about 75 tokens each), each under its own number."""
    return "\n\n".join(f"Section {i + 1}. {rng.choice(MANUAL)}" for i in range(paragraphs))


def chat(rng: random.Random, scale: float) -> tuple[PromptArrival, ...]:
    """Short questions, medium answers, arriving at random."""
    arrivals, moment = [], 0.0
    for question in rng.sample(CHAT_QUESTIONS, _count(8, scale)):
        arrivals.append(PromptArrival(moment, question, _tokens(rng.randint(24, 48), scale)))
        moment += rng.expovariate(1 / 0.35) * scale
    return tuple(arrivals)


def rag(rng: random.Random, scale: float) -> tuple[PromptArrival, ...]:
    """The same long context before every question."""
    context = "Answer from this handbook.\n\n" + "\n\n".join(MANUAL[: 6 if scale >= 1 else 3])
    questions = rng.sample(MANUAL_QUESTIONS, _count(8, scale))
    return tuple(
        PromptArrival(0.4 * scale * i, f"{context}\n\nQuestion: {q}", _tokens(20, scale))
        for i, q in enumerate(questions)
    )


def long_document(rng: random.Random, scale: float) -> tuple[PromptArrival, ...]:
    """Short chats are being answered when one long document arrives."""
    chats = [
        PromptArrival(0.15 * scale * i, q, _tokens(48, scale))
        for i, q in enumerate(rng.sample(CHAT_QUESTIONS, _count(5, scale)))
    ]
    page = document(rng, 14 if scale >= 1 else 4) + "\n\nList the rules above that protect people."
    return tuple(
        sorted([*chats, PromptArrival(1.2 * scale, page, _tokens(16, scale))], key=lambda arrival: arrival.offset)
    )


def burst(rng: random.Random, scale: float) -> tuple[PromptArrival, ...]:
    """Many requests in the same instant."""
    questions = rng.sample(CHAT_QUESTIONS, _count(12, scale))
    return tuple(PromptArrival(0.0, question, _tokens(rng.randint(16, 40), scale)) for question in questions)


def mixed(rng: random.Random, scale: float) -> tuple[PromptArrival, ...]:
    """Chats, handbook questions and documents, one after the other in random order."""
    arrivals, moment = [], 0.0
    for _ in range(_count(8, scale)):
        kind = rng.choice(("chat", "chat", "rag", "document"))
        prompt = rng.choice(CHAT_QUESTIONS)
        if kind != "chat":
            prompt = f"{document(rng, 2 if kind == 'rag' else 5)}\n\nQuestion: {rng.choice(MANUAL_QUESTIONS)}"
        arrivals.append(PromptArrival(moment, prompt, _tokens(rng.randint(12, 40), scale)))
        moment += rng.expovariate(1 / 0.5) * scale
    return tuple(arrivals)


MAKERS: dict[str, Callable[[random.Random, float], tuple[PromptArrival, ...]]] = {
    "chat": chat,
    "rag": rag,
    "long document": long_document,
    "burst": burst,
    "mixed": mixed,
}


def workload(name: str, seed: int = 0, scale: float = 1.0) -> LabWorkload:
    """A named workload.

    Args:
        name: one of MAKERS.
        seed: other seeds give other requests of the same kind.
        scale: size relative to the usual; below 1 there are fewer and shorter requests.
    Raises:
        LookupError: there is no such workload.
    """
    if name not in MAKERS:
        raise LookupError(f"no workload {name!r}: choose one of {', '.join(MAKERS)}")
    maker = MAKERS[name]
    return LabWorkload(name, maker.__doc__ or "", maker(random.Random(f"{name}/{seed}"), scale))


def _count(number: int, scale: float) -> int:
    return max(2, round(number * scale))


def _tokens(number: int, scale: float) -> int:
    return max(4, round(number * min(scale, 1.0)))
