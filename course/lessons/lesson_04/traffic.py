"""Workloads for the real engine: stamps in a prompt, tenants in turns or in groups, a conversation, nothing shared.

In all of them one request is open at a time, unless said otherwise: no queue blurs a TTFT.
"""

import random
from collections.abc import Iterable
from statistics import median

from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.texts import CHAT_QUESTIONS, MANUAL, MANUAL_QUESTIONS
from course.lab.workloads import Arrival, Workload

OFFICE = "You are the assistant of a small harbour office. Answer from the handbook below, in one sentence."
ANSWER_TOKENS = 4


def handbook(lab: Lab, paragraphs: int | None = None) -> str:
    """The handbook: about 75 tokens a paragraph."""
    return "\n\n".join(MANUAL[: paragraphs or (8 if lab.scale == 1 else 3)])


def stamp(number: int) -> str:
    """The time at which request `number` was sent, to the second."""
    return f"It is 09:{14 + number // 8:02}:{(2 + 7 * number) % 60:02}, on 14 March 2026."


def stamped(lab: Lab, place: str, count: int = 4) -> Workload:
    """The same handbook before different questions, with the time in the first line, the last, or nowhere."""
    body = f"{OFFICE}\n\n{handbook(lab)}\n\n"
    prompts = []
    for i in range(count):
        first = f"{stamp(i)}\n\n" if place == "first line" else ""
        last = f"{stamp(i)}\n\n" if place == "last line" else ""
        prompts.append(f"{first}{body}{last}Question: {MANUAL_QUESTIONS[i % len(MANUAL_QUESTIONS)]}")
    return one_by_one(f"the time: {place}", "One handbook, different questions.", prompts)


def unique(lab: Lab) -> Workload:
    """Prompts as long as the others, of which no two begin alike."""
    count = 4 if lab.scale == 1 else 2
    rng = random.Random("unique")
    pages = list(MANUAL[: 8 if lab.scale == 1 else 3])
    prompts = []
    for i in range(count):
        rng.shuffle(pages)
        prompts.append(f"Letter {i + 1} of {count}.\n\n" + "\n\n".join(pages) + f"\n\n{CHAT_QUESTIONS[i]}")
    return one_by_one("unique prompts", "Nothing is shared.", prompts)


def tenants(lab: Lab, grouped: bool, count: int = 3, visits: int | None = None) -> Workload:
    """Each tenant has a long handbook of its own; they ask in turns (A B C A B C), or grouped (A A B B C C)."""
    visits = visits or (4 if lab.scale == 1 else 2)
    order = [(tenant, visit) for visit in range(visits) for tenant in range(count)]
    prompts = [_tenant_prompt(lab, *each) for each in (sorted(order) if grouped else order)]
    how = "grouped" if grouped else "in turns"
    return one_by_one(f"{count} tenants {how}", f"Each tenant has its own handbook; they ask {how}.", prompts)


def favourite(lab: Lab) -> Workload:
    """Tenant A asks every other time; the others share the turns between: A B A C A D, and again."""
    rounds = 3 if lab.scale == 1 else 2
    order = [(tenant, i) for i in range(rounds) for other in (1, 2, 3) for tenant in (0, other)]
    prompts = [_tenant_prompt(lab, *each) for each in order]
    return one_by_one("a favourite", "Tenant A asks every other time; three others share the rest.", prompts)


def _tenant_prompt(lab: Lab, tenant: int, visit: int) -> str:
    pages = list(MANUAL[: 4 if lab.scale == 1 else 2])
    random.Random(tenant).shuffle(pages)
    name = "ABCDEFGHIJ"[tenant]
    question = MANUAL_QUESTIONS[(3 * tenant + visit) % len(MANUAL_QUESTIONS)]
    return f"Handbook of harbour {name}.\n\n" + "\n\n".join(pages) + f"\n\nQuestion: {question}"


def room_for(run: Run, requests: int) -> int:
    """KV blocks that hold so many of a run's largest requests, prompt and answer."""
    size = run.snapshot.block_size
    return requests * max(-(-(view.num_prompt_tokens + view.num_output_tokens) // size) for view in run.views)


def conversation(lab: Lab, turns: int | None = None) -> Workload:
    """One user, turn after turn: each prompt repeats everything before it and adds a message.

    The answers in the history are written here, not by the model, so a turn finds the former prompt, but not the
    former answer.
    """
    turns = turns or (6 if lab.scale == 1 else 3)
    text, prompts = f"{OFFICE}\n\n{handbook(lab, 1)}", []
    for i in range(turns):
        text += f"\n\nVisitor: {MANUAL_QUESTIONS[i]}"
        prompts.append(f"{text}\n\nOffice:")
        text += f"\n\nOffice: {MANUAL[(i + 1) % len(MANUAL)]}"
    return one_by_one("conversation", "Each turn repeats everything before it.", prompts)


def short_prefix(lab: Lab, block_size: int, share: float, count: int = 4) -> Workload:
    """Prompts that share a beginning of about `share` blocks of `block_size` tokens, and nothing after it."""
    words = f"{OFFICE} {handbook(lab)}".split()
    beginning = " ".join(words[: round(share * block_size / 1.35)])
    prompts = [f"{beginning}\n\nCase {i + 1}. {CHAT_QUESTIONS[i]}" for i in range(count)]
    return one_by_one(f"a shared beginning of {share:g} blocks", "A short common beginning.", prompts)


def one_by_one(name: str, about: str, prompts: Iterable[str], in_flight: int = 1) -> Workload:
    """These prompts, each sent when the one before it has been answered."""
    return Workload(name, about, tuple(Arrival(0.0, prompt, ANSWER_TOKENS) for prompt in prompts), in_flight)


def hit_rate(run: Run) -> float:
    """Prompt tokens found in the cache / prompt tokens looked up."""
    looked_up = sum(view.num_prompt_tokens for view in run.views)
    return sum(view.num_cached_tokens for view in run.views) / looked_up if looked_up else 0.0


def ttfts(run: Run) -> list[float | None]:
    """TTFT of each request by its row, seconds; None while it has none."""
    return [
        row.view.deliveries[0] - row.view.borders[0] if row.view and row.view.deliveries else None for row in run.rows
    ]


def later_ttft(run: Run) -> float:
    """Median TTFT of all requests but the first, which finds every cache cold. Seconds."""
    return median([value for value in ttfts(run)[1:] if value is not None])
