"""The truth about an incident, and the debrief: what you did, minute by minute, beside what was really going on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from course.incidents.causes import CAUSES
from course.incidents.evidence import NamedRows, Row, as_html
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
    tried: NamedRows = field(repr=False)
    """Interventions, each alone, on held-out traffic."""

    __repr__ = brief

    @property
    def effects(self) -> "pd.DataFrame":
        """What was tried, to compute with."""
        return self.tried.frame()

    @property
    def told(self) -> tuple[str, ...]:
        """In sentences."""
        missing, stale = ("; ".join(BY_ID[name].text for name in names) for names in self.broken)
        address, reported = self.source
        told = (
            f"{self.title} ({self.cause}). What happened: {self.what_happened}.",
            f"Dominant phase: {self.dominant_phase.replace('_', ' ')}; {self.regime}."
            + (f" Besides: {self.also}." if self.also else ""),
            f"It looks like '{CAUSES[self.looks_like].title}'; '{BY_ID[self.told_apart_by].text}' tells them apart. "
            f"Proven by: {'; '.join(BY_ID[name].text for name in self.convicting)}",
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
        tried = enumerate(self.tried.rows.items())
        rows: dict[Any, Any] = {name: row for place, (name, row) in tried if place < SHOWN or name in self.yours}
        if not rows:
            return []
        before = next(iter(rows.values()))["before"]
        lines = [
            f"{row['after']:>11.0%}  {row['$ an hour']:>9,.2f}  {row['value']:>+5.2f}  "
            f"{find_intervention(str(name)).text} ({row['effort']}){', yours' * (name in self.yours)}"
            for name, row in rows.items()
        ]
        head = f"What each change would have done by itself. Without any, {before:.0%} were within the SLO."
        return [head, "within SLO  $ an hour  worth", *lines]

    def _repr_html_(self) -> str:
        from course.lab.display import link_to, table
        from course.lab.style import with_minus

        lines = [(with_minus(str(one.minute)), one.did, one.saw, one.truth) for one in self.timeline]
        debrief = table(("minute", "you", "what you saw", "what was going on"), lines)
        shares = {name: f"{name}, share" for name in ("before", "after")}
        rows = {find_intervention(name).text: _in_words(row, shares) for name, row in self.tried.rows.items()}
        told, address = "<br>".join(map(escape, self.told)), self.source[0]
        if address:
            told = told.replace(escape(address), link_to(address, "It's reported here.").html)
        tried = "<p>What each change would have done by itself:</p>" if rows else ""
        return f"<p>{told}</p>{debrief}{tried}{as_html(NamedRows(rows))}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        plain = {name: value for name, value in self.__dict__.items() if name not in ("tried", "timeline")}
        effects = self.tried.records("id")
        return {**plain, "timeline": [asdict(one) for one in self.timeline], "effects": effects}


def _in_words(row: Row, names: Mapping[str, str]) -> Row:
    """To two digits, columns under other names."""
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}
    return {names.get(name, name): value for name, value in rounded.items()}
