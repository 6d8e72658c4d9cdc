"""The quality gate: the same text in every format, floors to drag, and a verdict on both quality and cost."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course.lab.explorer import Explorer, choices
from course.lab.lesson_09 import steps
from course.lab.lesson_09.formats import FORMATS, PLAIN, Shelf
from course.lab.style import ALARM, PHASE_COLOURS
from course.lab.svg import FAINT, HALO, INK, SOFT, Picture, line, rect, tag, text
from minillm.bench.quality import Cost, Floors, Quality, Verdict, judge, request_bytes
from minillm.bench.scoring import TextScore, decode_texts, held_text
from minillm.bench.target import Costs

GIVEN = 4
"""The first of so many parts of a piece is a prompt, and not scored."""
PIECES, PIECE = (8, 96), (8, 32)
"""Pieces of the text, and tokens in each: usually, and in the short form."""
NOISE = 1.05
"""Decode speeds closer than that are equal."""
RISES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
KLS = (0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SAMES = (0.99, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Floors to choose from: strictest first."""
LEFT, ROW, TRACK, GAP = 70, 44, 128, 30


@dataclass(frozen=True)
class Scored:
    """One format: what a text says of it, and what it costs."""

    quality: Quality
    cost: Cost
    positions: int
    """Tokens scored."""


Scores = dict[str, Scored]
"""By format; the first is the 16-bit reference."""


def measure(shelf: Shelf, found: steps.Sweep | None = None, names: Sequence[str] = tuple(FORMATS)) -> Scores:
    """Every format decodes the same pieces of a text, token by token; what really came next is what scores.

    Args:
        found: decode steps of one reader, where they have been measured already.
        names: formats, the 16-bit reference first.
    """
    names = shelf.usable(names)
    speeds = {name: dots[0].tokens_per_s for name, dots in (found or {}).items()}
    missing = [name for name in names if name not in speeds]
    if missing:
        again = steps.sweep(shelf, list(dict.fromkeys((PLAIN, *missing))), (1,))
        plain = speeds.get(PLAIN, again[PLAIN][0].tokens_per_s)
        speeds |= {name: plain * steps.speedup(again, name) for name in again}
    with shelf.lab.alone():
        return _scores(shelf, names, speeds)


def _scores(shelf: Shelf, names: Sequence[str], speeds: Mapping[str, float]) -> Scores:
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
    for name in names:
        engine, score = shelf.engine(name), TextScore()
        for theirs, ours in zip(reference, decode_texts(engine, pieces, given)):
            score.add(theirs.logits, ours.logits, ours.next_ids)
        costs = Costs.of(engine).bytes
        plain_bytes = scores[PLAIN].cost.weight_bytes if scores else costs.weights
        gain = believed(speeds[name] / speeds[PLAIN], plain_bytes / costs.weights)
        speed = gain * speeds[PLAIN]
        scores[name] = Scored(
            _quality(score), Cost(costs.weights, costs.kv_per_token, request_bytes(engine), speed), score.positions
        )
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
        same_greedy_tokens=float("nan"),
        choices_right=0,
        reading_right=0,
        reading_prompt_tokens=0,
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
        lambda rise, kl, same: draw_gate(scores, Floors(rise, kl, same)),
        rise=choices("perplexity may rise by", [(f"{x:.1%}", x) for x in RISES], usual.perplexity_rise),
        kl=choices("KL at most, nats", KLS, usual.kl),
        same=choices("same likeliest token in", [(f"{x:.0%}", x) for x in SAMES], usual.agreement),
    )


def draw_gate(scores: Scores, floors: Floors) -> Picture:
    """A row a format: decode speed at one reader, three measures against their floors, and the verdict."""
    names = list(scores)[1:]
    tracks = [LEFT + i * (TRACK + GAP) for i in range(4)]
    bottom = 40 + ROW * len(names)
    fastest = max(1.1, *(scores[name].cost.tokens_per_s / scores[PLAIN].cost.tokens_per_s for name in names))
    heads = ("decode speed, 1 reader", "perplexity rises by", "KL, nats a token", "same likeliest token")
    body = "".join(text(x, 12, head, size=11, fill=SOFT) for x, head in zip(tracks, heads))
    body += _forbidden(tracks[1], RISES, floors.perplexity_rise, bottom, "floor")
    body += _forbidden(tracks[2], KLS, floors.kl, bottom, "floor")
    body += _forbidden(tracks[3], SAMES, floors.agreement, bottom, "floor")
    told = []
    for i, name in enumerate(names):
        y, each = 30 + ROW * i, scores[name]
        body += text(LEFT - 8, y + 15, name, size=12, text_anchor="end", font_weight="bold")
        ratio = each.cost.tokens_per_s / scores[PLAIN].cost.tokens_per_s
        body += rect(tracks[0], y + 4, (TRACK - 34) * ratio / fastest, 14, fill=PHASE_COLOURS["decode"])
        body += text(tracks[0] + (TRACK - 34) * ratio / fastest + 4, y + 15, f"×{ratio:.2f}", size=11)
        values = (rise(scores, name), each.quality.kl, each.quality.agreement)
        kept = (values[0] <= floors.perplexity_rise, values[1] <= floors.kl, values[2] >= floors.agreement)
        words = (f"{values[0]:+.2%}", f"{values[1]:.4f}", f"{values[2]:.1%}")
        for x, ladder, value, word, is_kept in zip(tracks[1:], (RISES, KLS, SAMES), values, words, kept):
            body += _mark(x + TRACK * _place(ladder, value), y + 11, x, word, is_kept)
        said = verdict(scores, name, floors)
        words = f"broken: {len(said.broken)}" if said.broken else "better" if said.better else "a trade"
        summary = _told(said)
        body += text(tracks[0], y + 33, summary, size=11, fill=ALARM if said.broken else INK)
        told.append(f"{name}: ×{ratio:.2f} decode speed, {words}; {summary}")
    title = "Faster or smaller, and is it still the same model?"
    return Picture(title, body, bottom + 4, description=". ".join(told) + ".")


def _told(said: Verdict) -> str:
    gains = "; ".join(said.gains) or "nothing gained"
    if said.broken:
        return f"NOT BETTER: {len(said.broken)} of 3 floors broken, whatever it gains ({gains})"
    if said.losses:
        return f"a trade, not better: {gains}, for {'; '.join(said.losses)}"
    return f"better: {gains}" if said.better else "not better: nothing gained"


def _place(ladder: tuple[float, ...], value: float) -> float:
    """Where a value stands on a track, 0 to 1: the ladder's values are equally far apart."""
    falling = ladder[0] > ladder[-1]
    rungs, value = ([-x for x in ladder], -value) if falling else (list(ladder), value)
    if value <= rungs[0]:
        return 0.0
    for i, (low, high) in enumerate(itertools.pairwise(rungs)):
        if value <= high:
            return (i + (value - low) / (high - low)) / (len(rungs) - 1)
    return 1.0


def _forbidden(x: float, ladder: tuple[float, ...], floor: float, bottom: float, name: str) -> str:
    """What lies beyond the floor, hatched."""
    edge = x + TRACK * _place(ladder, floor)
    hatch = tag("path", d="M0 6L6 0", stroke=ALARM, stroke_width=1)
    pattern = tag("pattern", hatch, id="@beyond", width=6, height=6, patternUnits="userSpaceOnUse")
    drawn = tag("defs", pattern) if ladder is RISES else ""
    for top in range(30, round(bottom) - ROW + 1, ROW):
        drawn += rect(edge, top, x + TRACK + 8 - edge, 22, fill="url(#@beyond)", fill_opacity=0.45)
        drawn += line(edge, top - 3, edge, top + 24, stroke=ALARM, stroke_width=1.6)
        drawn += line(x, top, x, top + 22, stroke=FAINT)
    return drawn + text(edge + 3, 26, name, size=10, fill=ALARM)


def _mark(x: float, y: float, start: float, words: str, is_kept: bool) -> str:
    """A dot that keeps its floor, a cross that does not."""
    colour = PHASE_COLOURS["decode"] if is_kept else ALARM
    drawn = line(start, y, start + TRACK, y, stroke=FAINT)
    if is_kept:
        drawn += tag("circle", cx=x, cy=y, r=5, fill=colour)
    else:
        drawn += tag("path", d=f"M{x - 5} {y - 5}L{x + 5} {y + 5}M{x - 5} {y + 5}L{x + 5} {y - 5}", stroke=colour,
                     stroke_width=2.4, fill="none")  # fmt: skip
    left = x > start + TRACK / 2
    return drawn + text(x - 9 if left else x + 9, y + 4, words, size=11, text_anchor="end" if left else "start", **HALO)


def sampling_error(share: float, items: int) -> float:
    """Standard error of a share of so many independent items: what an accuracy moves by luck alone."""
    return (share * (1 - share) / items) ** 0.5
