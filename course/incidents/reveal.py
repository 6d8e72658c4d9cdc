"""The truth about an incident, and the debrief: what you did, minute by minute, beside what was really going on."""

from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from course.incidents.causes import CAUSES
from course.incidents.evidence import as_html
from course.incidents.generate import find_intervention
from course.incidents.questions import BY_ID
from minillm.core.brief import brief

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 8
"""Changes whose effects a terminal shows, and those that were deployed."""


@dataclass(frozen=True)
class TimelineEntry:
    """One line of the debrief."""

    minute: int
    """Since the page; negative = before it."""
    did: str
    saw: str
    truth: str


@dataclass(frozen=True)
class Reveal:
    """The truth about an incident."""

    cause: str
    title: str
    dominant_phase: str
    secondary: tuple[str | None, ...]
    """Any of these was right."""
    regime: str
    also: str | None
    """The second, smaller ailment."""
    what_happened: str
    convicting: tuple[str, ...]
    looks_like: str
    told_apart_by: str
    fixes: tuple[str, ...]
    tempting: str
    why_not: str
    mitigation: str
    """What helps most within half an hour, as measured."""
    yours: tuple[str, ...]
    """Ids of the changes that were deployed."""
    broken: tuple[tuple[str, ...], tuple[str, ...]]
    """Ids of the panels that were missing, and of those that showed last week's data."""
    source: tuple[str, str]
    """Where something like it was reported, and what; empty = nowhere in particular."""
    lost_s: dict[str, float]
    """By phase: how much longer a mean request takes than last week."""
    timeline: tuple[TimelineEntry, ...]
    effects: "pd.DataFrame" = field(repr=False)
    """Interventions, each alone, on held-out traffic."""

    __repr__ = brief

    @property
    def told(self) -> tuple[str, ...]:
        """In sentences."""
        missing, stale = ("; ".join(BY_ID[name].text for name in names) for names in self.broken)
        address, reported = self.source
        told = (
            f"{self.title} ({self.cause}). What happened: {self.what_happened}.",
            f"Dominant phase: {self.dominant_phase.replace('_', ' ')}; {self.regime}."
            + (f" Besides: {self.also}." if self.also else ""),
            f"Proven by: {'; '.join(BY_ID[name].text for name in self.convicting)}. It looks like "
            f"'{CAUSES[self.looks_like].title}'; what tells them apart: {BY_ID[self.told_apart_by].text}.",
            f"Within half an hour: {find_intervention(self.mitigation).text}. For good: "
            f"{'; '.join(find_intervention(name).text for name in self.fixes)}. Tempting: "
            f"{find_intervention(self.tempting).text}. {self.why_not}",
            f"Broken panels. Without data: {missing or 'none'}. With last week's: {stale or 'none'}."
            if missing or stale
            else "",
            f"It has happened: {reported} {address}" if address else "",
        )
        return tuple(part for part in told if part)

    def __str__(self) -> str:
        debrief, truth = [], ""
        for one in self.timeline:
            going_on = f"  [{one.truth}]" if one.truth != truth else ""  # said once, until it changes
            debrief += [f"{one.minute:4} min  {one.did}{going_on}", *([f"          {one.saw}"] if one.saw else [])]
            truth = one.truth
        return "\n".join([*self.told, "", *debrief, "", *self._effects_in_lines()])

    def _effects_in_lines(self) -> list[str]:
        """What the best changes would have done, a line each: in a terminal their texts come last, or nothing would be
        in columns."""
        if not len(self.effects):
            return []
        is_shown = [place < SHOWN or name in self.yours for place, name in enumerate(self.effects.index)]
        rows = self.effects[is_shown].to_dict("index")
        before = next(iter(rows.values()))["before"]
        lines = [
            f"{row['after']:>11.0%}  {row['$ an hour']:>9,.2f}  {row['value']:>+5.2f}  "
            f"{find_intervention(str(name)).text} ({row['effort']}){', yours' * (name in self.yours)}"
            for name, row in rows.items()
        ]
        head = f"What each change would have done by itself. Without any, {before:.0%} were within the SLO."
        return [head, "within SLO  $ an hour  worth", *lines]

    def _repr_html_(self) -> str:
        from course.lab.display import table

        rows = [(str(one.minute), one.did, one.saw, one.truth) for one in self.timeline]
        debrief = table(("minute", "you", "what you saw", "what was going on"), rows)
        shares = {name: f"{name}, share" for name in ("before", "after")}
        in_words = self.effects.rename(index=lambda name: find_intervention(name).text, columns=shares)
        return f"<p>{'<br>'.join(map(escape, self.told))}</p>{debrief}{as_html(in_words.round(2))}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        plain = {name: value for name, value in self.__dict__.items() if name not in ("effects", "timeline")}
        effects = self.effects.reset_index(names="id").to_dict("records")
        return {**plain, "timeline": [asdict(one) for one in self.timeline], "effects": effects}
