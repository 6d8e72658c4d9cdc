"""What there is to do today: the incident of the day with its par, the sum of the day, the next drill and round."""

from datetime import date
from html import escape

import ipywidgets as widgets

from course.drills import attempts
from course.drills.library import find_drill, number_of
from course.incidents import Incident, daily
from course.incidents.desk import IncidentDesk
from course.lab.display import LivePanel, link_to
from course.lab.streak import streak
from course.lessons.start.contents import lessons
from course.napkin import results as sums
from course.rounds import history
from course.rounds.library import IDS, find_round

DRILLS, SUM = "13", "#A-sum-a-day"
"""The lesson of drills and rounds; where this page asks the sum."""


class Today(LivePanel):
    """Four things, and a button that opens the incident here.

    Args:
        day: None = today.
    """

    def __init__(self, day: date | None = None) -> None:
        self.day = day or date.today()
        self.desk: IncidentDesk | None = None
        """Once it's open."""
        self.view = widgets.HTML(layout=widgets.Layout(width="100%"))
        self.play = widgets.Button(
            description="Play today's incident", icon="bell", layout=widgets.Layout(width="max-content")
        )
        self.play.on_click(lambda _: self.open())
        self.par = widgets.HTML()
        self.place = widgets.VBox([])
        self.widget = widgets.VBox([self.view, self.play, self.par, self.place])
        self._draw()

    def open(self) -> None:
        """Draw the incident and its par, which takes some seconds, and put its desk below."""
        self.play.disabled = True
        self.par.value = "<p>Setting up today's incident, and playing it to find its par …</p>"
        incident = Incident.today(self.day)
        self.par.value = f"<p><b>{daily.par_of(incident)}</b></p>"
        self.desk = IncidentDesk(incident.fresh(), self._note)
        self.place.children = (self.desk.widget,)

    def _note(self) -> None:
        """Keep the result of a graded incident: the first one counts."""
        assert self.desk is not None, "what is graded is open"
        daily.keep(self.desk.incident, self.day, date.today())
        self._draw()

    def _draw(self) -> None:
        rows = "".join(f"<li>{row}</li>" for row in (self._incident(), self._sum(), *practice()))
        self.view.value = f"<ul>{rows}</ul>"

    def _incident(self) -> str:
        kept = daily.RESULTS.read()
        found, days = kept.days.get(f"{self.day}"), streak(kept.days, self.day)
        told = "not played yet" if found is None else f"{found.score:.0f} of 100, {found.questions} questions"
        here = "In a terminal: <code>minillm incident --today</code>."
        return f"<b>The incident of the day</b>: {told}; streak {days}. {here}"

    def _sum(self) -> str:
        days = sums.RESULTS.read().days
        told = "answered" if f"{self.day}" in days else "one minute"
        place = link_to(SUM, "further down").html
        return f"<b>The sum of the day</b>: {told}, {place}; streak {streak(days, self.day)}."

    def static_html(self) -> str:
        what = "The incident of the day with its par, the sum of the day, and the drill and round that come next"
        return f"<p>{what}: run this cell.</p>"


def practice() -> tuple[str, str]:
    """The drill and the round that come next, with where they are taken."""
    done, played = attempts.FILE.read().done, history.FILE.read().done
    weakest, name = attempts.practise_next(done)
    number = number_of(find_drill(name))
    why = f"your weakest of late: {escape(weakest)}" if done else "none taken yet"
    found, left = history.play_next(played)
    about = f"{len(IDS) - left} of {len(IDS)} played" if played else "none played yet"
    lesson = lessons().get(DRILLS)
    where = f", or {link_to(lesson.link(), 'lesson 13').html}" if lesson else ""
    return (
        f"<b>A drill</b> ({why}): <code>minillm drill show {number}</code>{where}.",
        f"<b>A design round</b> ({about}): {escape(find_round(found).title)}, <code>minillm round sit {found}</code>"
        f"{where}.",
    )
