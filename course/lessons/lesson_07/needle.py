"""A needle to find: something said earlier, said again after more and more other text. Is the model still surprised?

A model of this size answers few questions about a text. But it copies well: when a passage comes a second time, it
foresees nearly every token of it, as long as it sees the first time. That is what is measured, token by token, through
the engine's own steps of decode.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lab.workloads import document
from course.measure.scoring import decode_texts
from minillm import Engine

NEEDLES = (
    "The lockers have codes: Anna 7413, Boris 2958, Chandra 6604, Dalia 3127, Emil 8850.",
    "The spare keys hang here: crane 91, lifeboat 35, pump 62, footbridge 78, cupboard 24.",
)
"""No one can guess these; one has to look."""
LEAD = 48
"""Tokens before the needle: more than the sinks keep."""
CUE_TOKENS = 4
"""Of the second time, given: from then on the model is asked."""
FIRST_TIME = -1
"""In place of a distance: the needle comes for the first time."""


@dataclass(frozen=True)
class Found:
    """What the model made of the needle's second time."""

    distance: int
    """Tokens between the first time and the second; FIRST_TIME = there was none before."""
    right: int
    """Tokens that it found likeliest, and that came."""
    tokens: int
    surprise: float
    """Mean of -ln p, nats a token."""

    @property
    def share(self) -> float:
        return self.right / self.tokens


@dataclass(frozen=True)
class Haystack:
    """A text in which the needle comes twice."""

    distance: int
    token_ids: list[int]
    num_given: int


def haystacks(lab: Lab, distances: Sequence[int]) -> list[list[Haystack]]:
    """By needle, in a handbook of its own: one at each distance. FIRST_TIME: it comes once, after a little text."""
    encode, found = lab.model.tokenizer.encode, []
    for i, needle in enumerate(NEEDLES):
        said = encode("\n\n" + needle)
        hay = encode(document(random.Random(f"hay-{i}"), (LEAD + max(distances)) // 40 + 2))
        stacks = []
        for distance in distances:
            before = hay[:LEAD] if distance == FIRST_TIME else hay[:LEAD] + said + hay[LEAD : LEAD + distance]
            stacks.append(Haystack(distance, before + said, len(before) + CUE_TOKENS))
        found.append(stacks)
    return found


def look_for(engine: Engine, haystacks: Sequence[Sequence[Haystack]]) -> dict[int, Found]:
    """By distance: what the model makes of the needles. Texts with the same needle are decoded side by side."""
    right: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    surprise: defaultdict[int, float] = defaultdict(float)
    for stacks in haystacks:
        for step in decode_texts(engine, [s.token_ids for s in stacks], [s.num_given for s in stacks]):
            logprobs = step.logits.float().log_softmax(-1)
            came = logprobs.gather(1, step.next_ids[:, None])[:, 0].tolist()
            foreseen = (logprobs.argmax(-1) == step.next_ids).tolist()
            for text, logprob, is_right in zip(step.texts, came, foreseen):
                distance = stacks[text].distance
                right[distance] += is_right
                tokens[distance] += 1
                surprise[distance] -= logprob
    return {d: Found(d, right[d], tokens[d], surprise[d] / tokens[d]) for d in tokens}


def spans(lab: Lab) -> tuple[int, int]:
    """Tokens of the shorter needle and of the longer one, as said once."""
    told = [len(lab.model.tokenizer.encode("\n\n" + needle)) for needle in NEEDLES]
    return min(told), max(told)


def reach(lab: Lab, window: int) -> int:
    """Tokens back at which the longer needle begins to leave the window."""
    return window - spans(lab)[1]
