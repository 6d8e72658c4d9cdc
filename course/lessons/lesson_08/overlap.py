"""Are the words still the model's? A drafter's distribution and the model's, what the engine's rule makes of them, and
how far the outcome is from the model's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course.lab.explorer import Explorer, buttons, slider
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, draw_chart
from course.lab.run import percentile
from course.lab.svg import Picture
from course.lessons.lesson_08.tiles import shown
from course.measure.scoring import decode_texts
from minillm.core.brief import brief
from minillm.runner.rejection_sampler import check_drawn

PHRASE = "Thank you very"
"""Its next word is nearly certain, and the one after that is not."""
DRAWS, REPEATS = 4000, 1000
MOVED = 3
NAMED = 7
"""Of the vocabulary, the likeliest so many are drawn; the rest is one bar."""
HALF = 2
Rule = Callable[[Tensor, Tensor, Tensor, torch.Generator], Tensor]


def next_token(lab: Lab, token_ids: Sequence[int]) -> Tensor:
    """[V] float64, the model's distribution of the token after some others, at temperature 1."""
    with lab.alone():
        engine = lab.engine()
        decoded = next(iter(decode_texts(engine, [[*token_ids, 0]], [len(token_ids)])))
        return decoded.logits[0].double().softmax(-1).cpu()


@dataclass(frozen=True)
class Choice:
    """The model's distribution at one place of a text."""

    text: str
    probs: Tensor
    """[V] float64"""
    names: tuple[str, ...]
    """Of the likeliest tokens, likeliest first."""
    ids: tuple[int, ...]

    __repr__ = brief

    @classmethod
    def after(cls, lab: Lab, phrase: str = PHRASE) -> "Choice":
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


# ---------------------------------------------------------------- rules for checking a draft


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


def overlap_lab(choice: Choice) -> Explorer:
    """How good the drafter is, and by which rule its guesses are checked."""
    return Explorer(
        lambda skill, rule: draw_overlap(choice, skill, rule),
        skill=slider("how alike drafter and model are", 0.0, 1.0, 0.5, 0.05),
        rule=buttons("rule", list(RULES)),
    )


def draw_overlap(choice: Choice, skill: float, rule: str) -> Picture:
    """The model's distribution and the drafter's; points are what comes out, of thousands of guesses."""
    p = choice.coarse()
    q, rng = drafter(p, skill), torch.Generator().manual_seed(0)
    drafts = torch.multinomial(q, DRAWS, True, generator=rng)
    outcomes = RULES[rule](p, q, drafts, rng)
    out = outcomes.bincount(minlength=len(p)).double() / DRAWS
    off, (_, usual) = distance(out, p), usual_distance(p, DRAWS)
    passed = float(torch.minimum(p, q).sum())
    verdict = "as close as plain sampling" if off <= usual else "farther off than plain sampling"
    title = f"{off:.3f} from the model's own (plain sampling: within {usual:.3f}): {verdict}"
    places = range(len(p))
    return draw_chart(
        title,
        [
            Curve("p: the model", places, p.tolist()),
            Curve("q: the drafter", places, q.tolist(), "dashes"),
            Curve("what comes out", places, out.tolist(), "points"),
        ],
        Axis(f"next token; a guess passes in {passed:.0%} of cases", names=(*map(shown, choice.names), "all others")),
        Axis("probability", low=0),
        description=f"After {choice.text!r} a guess passes in {passed:.0%} of cases, the sum of min(p, q). {title}.",
    )
