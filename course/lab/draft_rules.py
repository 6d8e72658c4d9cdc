"""Are the words still the model's? A drafter's distribution and the model's, what the engine's rule makes of them, and
how far the outcome is from the model's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course.lab.lab import Lab
from course.lab.run import percentile
from course.measure.scoring import decode_texts
from minillm.core.brief import brief
from minillm.runner.rejection_sampler import check_drawn

PHRASE = "Thank you very"
"""Its next word is nearly certain, and the one after that is not."""
DRAWS, REPEATS = 4000, 1000
MOVED = 3
NAMED = 7
"""Likeliest tokens that are drawn one by one; the rest of the vocabulary is one bar."""
HALF = 2
Rule = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]


def next_token(lab: Lab, token_ids: Sequence[int]) -> Tensor:
    """[V] float64, the model's distribution of the token after some others, at temperature 1."""
    with lab.alone():
        engine = lab.next_engine()
        decoded = next(iter(decode_texts(engine, [[*token_ids, 0]], [len(token_ids)])))
        return decoded.logits[0].double().softmax(-1).cpu()


@dataclass(frozen=True)
class NextToken:
    """The model's distribution at one place of a text."""

    text: str
    probs: Tensor
    """[V] float64"""
    names: tuple[str, ...]
    """Likeliest tokens as text, likeliest first."""
    ids: tuple[int, ...]

    __repr__ = brief

    @classmethod
    def after(cls, lab: Lab, phrase: str = PHRASE) -> "NextToken":
        """After a phrase and its likeliest next token."""
        tokenizer = lab.tokenizer
        ids = tokenizer.encode(phrase)
        first = int(next_token(lab, ids).argmax())
        probs = next_token(lab, [*ids, first])
        best = [int(i) for i in probs.topk(NAMED).indices]
        names = tuple(tokenizer.decode([i]) for i in best)
        return cls(tokenizer.decode([*ids, first]), probs, names, tuple(best))

    def coarse(self) -> Tensor:
        """[NAMED + 1]: the named tokens, and all others together."""
        named = self.probs[list(self.ids)]
        return torch.cat((named, (1 - named.sum()).clamp(min=0)[None]))


def distance(one: Tensor, other: Tensor) -> float:
    """Total variation: the largest difference that any event's probability can have; 0 = equal, 1 = nothing shared."""
    return float((one - other).abs().sum()) / HALF


def usual_distance(probs: Tensor, draws: int, seed: int = 0) -> tuple[float, float]:
    """(median, largest) of the distance between a distribution and plain samples from it."""
    rng = torch.Generator().manual_seed(seed)
    found = [distance(_sampled(probs, draws, rng), probs) for _ in range(REPEATS)]
    return percentile(found, 50), max(found)


def _sampled(probs: Tensor, draws: int, rng: torch.Generator) -> Tensor:
    return torch.multinomial(probs, draws, True, generator=rng).bincount(minlength=len(probs)).double() / draws


def engine_rule(p: Tensor, q: Tensor, drafts: Tensor, rng: torch.Generator) -> Tensor:
    """What the engine does: minillm/runner/rejection_sampler.py."""
    accept, again = (torch.rand(len(drafts), dtype=torch.float64, generator=rng) for _ in range(2))
    count = len(drafts)
    return check_drawn(p.float().expand(count, -1), q.float().expand(count, -1), drafts, accept, again)


def redraw_from_p(p: Tensor, q: Tensor, drafts: Tensor, rng: torch.Generator) -> Tensor:
    """The slip: after a rejection, draw from p instead of from what q had too little of."""
    passes = torch.rand(len(drafts), dtype=torch.float64, generator=rng) * q[drafts] < p[drafts]
    return torch.where(passes, drafts, torch.multinomial(p, len(drafts), True, generator=rng))


def keep_all(p: Tensor, q: Tensor, drafts: Tensor, rng: torch.Generator) -> Tensor:
    """No check at all."""
    return drafts


RULES: dict[str, Rule] = {
    "the engine's rule": engine_rule,
    "redraw from p": redraw_from_p,
    "keep every guess": keep_all,
}


def drafter(p: Tensor, skill: float) -> Tensor:
    """[n] q: the model's distribution, mixed with itself moved by some places: at 0 it likes other words."""
    return skill * p + (1 - skill) * p.roll(MOVED)
