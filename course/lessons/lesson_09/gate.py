"""The quality gate: the same text in every format, floors to drag, and a verdict on both quality and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices
from course.lessons.lesson_09 import steps
from course.lessons.lesson_09.formats import FORMATS, PLAIN, Shelf
from course.measure.quality import Cost, Floors, Quality, Verdict, conclusion, judge, request_bytes
from course.measure.scoring import GIVEN, TextScore, decode_texts, held_text
from minillm.bench.target import Costs
from minillm.core.brief import brief

PIECES, PIECE = (8, 96), (8, 32)
"""Pieces of the text, and tokens in each: usually, and in the short form."""
NOISE = 1.05
"""Decode speeds closer than that are equal."""
RISES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
KLS = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SAMES = (0.99, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Floors to choose from: strictest first."""


@dataclass(frozen=True)
class Scored:
    """One format: what a text says of it, and what it costs."""

    quality: Quality
    cost: Cost
    positions: int
    """Tokens scored."""

    __repr__ = brief


Scores = dict[str, Scored]
"""By format; the first is the 16-bit reference."""


def measure(shelf: Shelf, names: Sequence[str] = tuple(FORMATS)) -> Scores:
    """Every format decodes the same pieces of a text, token by token; what really came next is what scores.

    Args:
        names: formats, the 16-bit reference first.
    """
    names = shelf.usable(names)
    speeds = {name: dots[0].tokens_per_s for name, dots in steps.sweep(shelf, names, (1,)).items()}
    with shelf.lab.alone():
        return _scores(shelf, speeds)


def _scores(shelf: Shelf, speeds: Mapping[str, float]) -> Scores:
    """Of a text, decoded in each format.

    Args:
        speeds: tokens/s of one reader, by format.
    """
    count, size = PIECES if shelf.lab.scale == 1 else PIECE
    token_ids = shelf.lab.model.tokenizer.encode(held_text())
    apart = (len(token_ids) - size) // (count - 1)
    pieces = [token_ids[i * apart : i * apart + size] for i in range(count)]
    given = [size // GIVEN] * count
    reference = list(decode_texts(shelf.engine(PLAIN), pieces, given))
    scores: Scores = {}
    for name, speed in speeds.items():
        engine, score = shelf.engine(name), TextScore()
        for theirs, ours in zip(reference, decode_texts(engine, pieces, given)):
            score.add(theirs.logits, ours.logits, ours.next_ids)
        costs = Costs.of(engine).bytes
        plain_bytes = scores[PLAIN].cost.weight_bytes if scores else costs.weights
        gain = believed(speed / speeds[PLAIN], plain_bytes / costs.weights)
        cost = Cost(costs.weights, costs.kv_per_token, request_bytes(engine), gain * speeds[PLAIN])
        scores[name] = Scored(_quality(score), cost, score.positions)
    return scores


def believed(gain: float, allowed: float) -> float:
    """A speed-up, or 1 where it is noise: too small to be told from none, or more than the bytes allow."""
    return 1.0 if 1 / NOISE < gain < NOISE or gain > steps.PLAUSIBLE * allowed else gain


def _quality(score: TextScore) -> Quality:
    """What a text alone can tell: the tasks of `minillm bench quality` are left out, for all formats alike."""
    return Quality(
        perplexity=score.candidate_perplexity,
        kl=score.kl / score.positions,
        agreement=score.agreed / score.positions,
        choices_right=0,
        reading_right=0,
    )


def rise(scores: Mapping[str, Scored], name: str) -> float:
    """Of perplexity over the reference's, as a share."""
    return scores[name].quality.perplexity / scores[PLAIN].quality.perplexity - 1


def verdict(scores: Mapping[str, Scored], name: str, floors: Floors) -> Verdict:
    """By the rule of `minillm bench quality`: better only with a gain, without a loss, and with every floor kept."""
    both = scores[PLAIN], scores[name]
    return judge([each.quality for each in both], [each.cost for each in both], floors)


def gate(scores: Scores) -> Explorer:
    """Drag the floors; see who passes. They begin where `minillm bench quality` has them."""
    usual = Floors()
    return Explorer(
        lambda rise, kl, same: gate_table(scores, Floors(rise, kl, same)),
        rise=choices("perplexity may rise by", [(f"{x:.1%}", x) for x in RISES], usual.perplexity_rise),
        kl=choices("KL at most, nats", KLS, usual.kl),
        same=choices("same likeliest token in", [(f"{x:.0%}", x) for x in SAMES], usual.agreement),
    )


def gate_table(scores: Scores, floors: Floors) -> Html:
    """A row a format: decode speed of one reader, three measures, crossed where they break a floor, and the verdict."""
    rows = []
    for name in list(scores)[1:]:
        quality, cost, more = scores[name].quality, scores[name].cost, rise(scores, name)
        measures = (
            (f"{more:+.2%}", more <= floors.perplexity_rise),
            (f"{quality.kl:.4f}", quality.kl <= floors.kl),
            (f"{quality.agreement:.1%}", quality.agreement >= floors.agreement),
        )
        told = (words if is_kept else f"✗ {words}" for words, is_kept in measures)
        speed = f"×{cost.tokens_per_s / scores[PLAIN].cost.tokens_per_s:.2f}"
        rows.append((name, speed, *told, conclusion(verdict(scores, name, floors))))
    heads = ("decode speed, batch 1", "perplexity rises by", "KL, nats a token", "same likeliest token", "verdict")
    return as_table(("format", *heads), rows)


def sampling_error(share: float, items: int) -> float:
    """Standard error of a share of so many independent items: what an accuracy moves by luck alone."""
    return (share * (1 - share) / items) ** 0.5
