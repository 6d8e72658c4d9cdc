"""Traffic that lessons 00 and 01 need: one request, eight at once, two ill services, a sample for percentiles."""

import random
from collections.abc import Sequence
from dataclasses import replace

from course.lab.lab import Lab
from course.lab.run import Run, percentile
from course.lab.style import seconds
from course.lab.texts import CHAT_QUESTIONS
from course.lab.workloads import LabWorkload, PromptArrival, document
from minillm.frontend.prompts import Prompt

STORY = "Write a story about one night in this harbour, from the arrival of a strange ship on."
"""A small model tells better than it answers."""


def together(count: int, lab: Lab, seed: int = 0) -> LabWorkload:
    """`count` different prompts of about 250 tokens, arriving in the same instant; the first is always the same one.

    The answers are long enough that waiting for a slot takes longer than prefilling the prompts together.
    """
    rng = random.Random(seed)
    paragraphs, output = (3, 96) if lab.scale == 1 else (2, 6)
    # The page is the system's message: its number comes first, so that no two prompts share a block.
    prompts = [
        [
            {"role": "system", "content": f"Page {i + 1}.\n\n{document(rng, paragraphs)}"},
            {"role": "user", "content": STORY},
        ]
        for i in range(count)
    ]
    return LabWorkload(
        f"{count} together", "Different prompts that arrive in the same instant.", _at_once(prompts, output)
    )


def staggered(count: int, lab: Lab) -> LabWorkload:
    """The same prompts as `together`, arriving one after the other while the earlier ones decode."""
    each = together(count, lab).arrivals
    apart = 0.3 if lab.scale == 1 else 0.05
    arrivals = tuple(replace(arrival, offset=apart * i) for i, arrival in enumerate(each))
    return LabWorkload(f"{count} staggered", "Different prompts, one after the other.", arrivals)


def few_slots(lab: Lab) -> LabWorkload:
    """Short questions with short answers, all at once: for a server with one slot: a long queue."""
    count, output = (10, 12) if lab.scale == 1 else (5, 6)
    return LabWorkload("short answers", "Short questions, short answers.", _at_once(_questions(count), output))


def long_answers(lab: Lab, output: int) -> LabWorkload:
    """Short questions with answers of `output` tokens, all at once, for a server with a slot for each."""
    return LabWorkload(
        "long answers", "Short questions, long answers.", _at_once(_questions(16 if lab.scale == 1 else 8), output)
    )


def two_ill_services(lab: Lab, **fields: object) -> dict[str, Run]:
    """A: one slot. B: sixteen slots and long answers. B's answers are as long as makes the two p99 of E2E agree."""
    a = lab.run(few_slots(lab), **{**A_FIELDS, **fields})
    target, output = percentile(a.e2e, 99), 8
    b = lab.run(long_answers(lab, output), **{**B_FIELDS, **fields})
    for _ in range(3):
        found = percentile(b.e2e, 99)
        if abs(found / target - 1) < 0.05:
            break
        output = max(2, output + round((target - found) / percentile(b.itl, 50)))
        b = lab.run(long_answers(lab, output), **{**B_FIELDS, **fields})
    return {"A": a, "B": b}


def same_traffic(lab: Lab, runs: dict[str, Run], **fields: object) -> dict[str, Run]:
    """Both services again, on the traffic they had, with some fields changed in both."""
    length = runs["B"].views[0].max_tokens
    return {
        "A": lab.run(few_slots(lab), **{**A_FIELDS, **fields}),
        "B": lab.run(long_answers(lab, length), **{**B_FIELDS, **fields}),
    }


A_FIELDS = {"max_num_seqs": 1}
B_FIELDS = {"max_num_seqs": 16}


def sample(lab: Lab, seed: int = 0) -> LabWorkload:
    """Requests for a distribution: most short, some long, a few very long; two at a time, so that no queue blurs it."""
    rng = random.Random(seed)
    count = 80 if lab.scale == 1 else 10
    arrivals = []
    for i in range(count):
        pages = rng.choices((0, 2, 7) if lab.scale == 1 else (0, 1, 3), weights=(72, 20, 8))[0]
        question = f"({i}) {rng.choice(CHAT_QUESTIONS)}"
        arrivals.append(PromptArrival(0.0, f"{question}\n\n{document(rng, pages)}" if pages else question, 4))
    return LabWorkload("sample", "Mostly short prompts, a few very long ones.", tuple(arrivals), max_in_flight=2)


PUSH = 2.0
"""How many times as often requests are due as the slots can serve them."""


def steady(lab: Lab, at_once: Run | None = None, in_flight: int | None = None) -> LabWorkload:
    """Short requests, equally far apart, and too many.

    Args:
        at_once: what became of them when all came in the same instant: they're due PUSH times as often as they
            finished there. None = that very workload.
        in_flight: how many a client has open at most; None = it sends each request when it's due.
    """
    count = 24 if lab.scale == 1 else 8
    apart = 0.0 if at_once is None else at_once.duration / len(at_once.finished) / PUSH
    arrivals = tuple(PromptArrival(apart * i, question, 8) for i, question in enumerate(_questions(count)))
    return LabWorkload("steady", f"A short request every {seconds(apart)}.", arrivals, max_in_flight=in_flight)


def _questions(count: int) -> list[str]:
    """Different questions: the number in front keeps the prefix cache out of the experiment."""
    return [f"({i}) {CHAT_QUESTIONS[i % len(CHAT_QUESTIONS)]}" for i in range(count)]


def _at_once(prompts: Sequence[Prompt], output: int) -> tuple[PromptArrival, ...]:
    return tuple(PromptArrival(0.0, prompt, output) for prompt in prompts)
