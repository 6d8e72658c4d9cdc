"""The grade of one answer: levels with evidence, what to do better, and what the interviewer asks next."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from course.lab.drills.drill import DIMENSIONS, LEVELS, WEIGHTS, DrawnDrill, Rules
from course.lab.drills.patterns import find
from course.lab.drills.reading import Reading, read
from course.lab.drills.scoring import CROWD, LONG, Dimension, decides, score, slips, techniques

OVERALL = (0.2, 0.6, 0.84)
"""Weighted points at which passing, strong and staff begin."""
HAIR = 0.03
"""Below a threshold, where a cap holds answers: better ones still stand above worse ones."""


@dataclass(frozen=True)
class Grade:
    """What became of one answer; prints as text and shows as HTML."""

    drill: DrawnDrill
    dimensions: tuple[Dimension, ...]
    points: float
    """Weighted, 0 to 1, after the caps."""
    caps: tuple[str, ...]
    """Why it could not be more, if something held it down."""
    beyond: tuple[str, ...]
    """Quotes that notice what the prompt's own numbers make impossible."""
    asks_next: tuple[str, ...]

    @property
    def level(self) -> str:
        return LEVELS[sum(self.points >= threshold for threshold in OVERALL)]

    def dimension(self, key: str) -> Dimension:
        return next(each for each in self.dimensions if each.key == key)

    @property
    def weakest(self) -> Dimension:
        """Where the most points are still to be had."""
        return max(self.dimensions, key=lambda each: WEIGHTS[each.key] * (1 - each.points))

    def to_dict(self, self_score: Mapping[str, str] | None = None) -> dict[str, Any]:
        return {
            "drill": self.drill.id,
            "seed": self.drill.seed,
            "level": self.level,
            "points": round(self.points, 3),
            "caps": list(self.caps),
            "beyond": list(self.beyond),
            "dimensions": [
                {
                    "dimension": each.key,
                    "name": each.name,
                    "level": each.level,
                    "points": round(each.points, 3),
                    "self_score": (self_score or {}).get(each.key),
                    "evidence": [
                        {"points": round(e.points, 3), "sign": e.sign, "quote": e.quote} for e in each.evidence
                    ],
                    "advice": each.advice,
                }
                for each in self.dimensions
            ],
            "practise_next": self.weakest.key,
            "follow_ups": list(self.asks_next),
        }

    def __str__(self) -> str:
        lines = [f"{self.drill.drill.title}: {self.level} ({self.points:.0%})"]
        lines += [f"  held down: {cap}" for cap in self.caps]
        lines += [f"  beyond the rubric: {quote}" for quote in self.beyond[:1]]
        for each in self.dimensions:
            lines.append(f"{each.name}: {each.level} ({each.points:.0%})")
            lines += [f'  {e.points:+.2f} {e.sign}: "{e.quote}"' for e in each.evidence]
            lines += [f"  advice: {advice}" for advice in each.advice]
        lines += [f"The interviewer asks: {ask}" for ask in self.asks_next]
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": str(self)}

    def html(self, self_score: Mapping[str, str] | None = None) -> str:
        """A table: level, the words that earned it, advice; next to the learner's own score where there is one."""
        head = f"<h4>{escape(self.drill.drill.title)}: {self.level} ({self.points:.0%})</h4>"
        notes = "".join(f"<p><b>Held down.</b> {escape(cap)}</p>" for cap in self.caps)
        if self.beyond:
            notes += f"<p><b>Beyond the rubric.</b> You noticed: {escape(self.beyond[0])}</p>"
        names = ("dimension", "level", *(("your own",) if self_score else ()), "your words", "advice")
        rows = "".join(_row(each, self_score) for each in self.dimensions)
        header = "".join(f'<th scope="col" style="{CELL};font-weight:bold">{name}</th>' for name in names)
        asks = "".join(f"<li>{escape(ask)}</li>" for ask in self.asks_next)
        return (
            f'{head}{notes}<table style="border-collapse:collapse;font-size:13px"><thead><tr>{header}</tr></thead>'
            f"<tbody>{rows}</tbody></table><p><b>The interviewer asks next</b></p><ul>{asks}</ul>"
        )


CELL = "text-align:left;vertical-align:top;padding:4px 14px 4px 0;line-height:1.35;white-space:normal"
MARKS = dict(zip(LEVELS, ("○○○", "●○○", "●●○", "●●●")))


def _row(each: Dimension, self_score: Mapping[str, str] | None) -> str:
    signs: dict[tuple[str, bool], list[str]] = {}
    for e in each.evidence:
        signs.setdefault((_short(e.quote), e.points > 0), []).append(e.sign)
    words = "".join(
        f"<div>{'+' if is_credit else '−'} <i>“{escape(quote)}”</i> <small>{escape(', '.join(why))}</small></div>"
        for (quote, is_credit), why in signs.items()
    )
    advice = "".join(f"<div>{escape(advice)}</div>" for advice in each.advice[:2])
    own = f'<td style="{CELL}">{escape(self_score.get(each.key, "–"))}</td>' if self_score else ""
    return (
        f'<tr><th scope="row" style="{CELL}">{each.name}</th><td style="{CELL};white-space:nowrap">{MARKS[each.level]} '
        f'{each.level}</td>{own}<td style="{CELL}">{words or "–"}</td><td style="{CELL}">{advice or "–"}</td></tr>'
    )


def _short(quote: str, most: int = 160) -> str:
    return quote if len(quote) <= most else quote[: most - 1].rstrip() + "…"


def is_long_and_empty(reading: Reading) -> bool:
    """Many words, and not one number that follows from the prompt's."""
    sums = (each.holds for sentence in reading.claims for each in sentence.sums)
    return reading.num_words > LONG and not any(s.derived for s in reading.claims) and not any(sums)


MOST_FOLLOW_UPS = 4


def follow_ups(drill: DrawnDrill, reading: Reading) -> tuple[str, ...]:
    """What an interviewer asks after this answer: the drill's own questions first, then general ones."""
    possible = (*drill.rubric.follow_ups, *Rules.read().follow_ups)
    asked = [each.asks for each in possible if bool(find(each.rule, reading)) != each.missing]
    return tuple(dict.fromkeys(asked))[:MOST_FOLLOW_UPS]


def grade(drill: DrawnDrill, answer: str) -> Grade:
    """Grade an answer by the drill's rules. Never raises, whatever is in it."""
    reading = read(str(answer), drill.numbers, drill.prompt)
    dimensions = score(drill, reading)
    weights = {each.key: WEIGHTS[each.key] for each in dimensions}
    points = sum(weights[each.key] * each.points for each in dimensions) / sum(weights.values())
    levels = {each.key: each.level for each in dimensions}
    caps = []
    for holds, limit, why in (
        (reading.is_stuffed, OVERALL[1], "much of it is keywords without claims, or repetition: not above passing"),
        (len(techniques(reading)) > CROWD, OVERALL[1], "a list of techniques instead of a choice: not above passing"),
        (is_long_and_empty(reading), OVERALL[1], "long, and no number of its own: not above passing"),
        (levels["diagnosis"] == "weak", OVERALL[1], f"no {DIMENSIONS['diagnosis']}: not above passing"),
        (levels["evidence"] in LEVELS[:2], OVERALL[2], "too little arithmetic of its own: not above strong"),
        (levels["operations"] == "weak", OVERALL[2], "nothing on cost, roll-out or spikes: not above strong"),
        (not decides(drill, reading), OVERALL[2], "no question says what its answer decides: not above strong"),
        (bool(slips(reading)), OVERALL[2], "a statement that is wrong: not above strong"),
    ):
        if holds and points >= limit:
            points = limit - HAIR * (1 - 0.9 * (points - limit) / (1 - limit))
            caps.append(why)
    noticed = find(drill.rubric.beyond, reading) if drill.rubric.beyond else []
    return Grade(drill, tuple(dimensions), points, tuple(caps), tuple(noticed), follow_ups(drill, reading))
