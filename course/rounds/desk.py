"""A round in a notebook: ask from a menu, fill in page after page, and read the verdict at the end.

The clock runs in the browser, as a drill's does.
"""

import functools
import time
from collections.abc import Callable
from html import escape
from uuid import uuid4

import ipywidgets as widgets
from IPython.display import display

from course.drills.clock import clock_html, written
from course.lab.display import LivePanel, fold
from course.lab.live_view import LiveView
from course.rounds.errors import CommitmentError
from course.rounds.history import keep
from course.rounds.judge import judge
from course.rounds.library import find_round
from course.rounds.pages import BOARD, Pages, RoundField, RoundPage, pages
from course.rounds.prompt import AREAS, COLUMNS, DrawnRound
from course.rounds.report import area_text, debrief, sample_text
from course.rounds.sitting import RoundSitting

WIDE = widgets.Layout(width="calc(100% - 4px)", max_width="900px")  # beside its margins
NAMED = {"description_width": "170px"}


class RoundDesk(LivePanel):
    """A design round to sit. Show it as the last thing of a cell, and press Start.

    Args:
        name: as `minillm round list` names it.
        seed: which numbers; 0 is the classic.
        now: seconds, from a clock that only goes forward.
    """

    def __init__(self, name: str, seed: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        drawn = find_round(name).drawn(seed)
        self.sitting, self.is_over = RoundSitting(drawn), False
        self.fields: dict[str, widgets.ValueWidget] = {}
        """The fields of the page that is open, by key."""
        self.page: RoundPage | None = None
        self._pages: Pages = pages(self.sitting)
        self._now, self._began = now, 0.0
        self._name = f"round-{uuid4().hex[:8]}"
        self.start = _button(f"Start {drawn.round.minutes} minutes", self.begin)
        self.start.add_class(f"{self._name}-start")
        questions = [("–", ""), *((fact.asks, fact.key) for fact in drawn.menu)]
        self.question = widgets.Dropdown(description="ask", options=questions, layout=WIDE, disabled=True)
        self.asking = _button("Ask", self.ask)
        self.asking.disabled = True
        self.answers = LiveView(layout=WIDE)
        self.opening = widgets.HTML("<p><em>The prompt appears when the clock starts.</em></p>", layout=WIDE)
        self.asked = widgets.VBox([])
        self.result = LiveView(layout=widgets.Layout(width="100%"))
        self._on = self.start
        asks = widgets.VBox([widgets.HBox([self.question, self.asking]), self.answers])
        self.widget = widgets.VBox([self.start, self.opening, asks, self.asked, self.result])

    def begin(self) -> None:
        """Start the clock, show the opening, and open the first page; once."""
        if self.page is not None:
            return
        drawn, self._began = self.sitting.drawn, self._now()
        self.start.disabled, self.question.disabled, self.asking.disabled = True, False, False
        self.opening.value = f'<p style="font-size:15px">{escape(drawn.fill(drawn.round.opening))}</p>'
        self._open(next(self._pages))
        self.question.focus()  # the button that had it can't be pressed any more

    def ask(self) -> None:
        """Put the chosen question to the interviewer."""
        if not self.question.value or self.is_over:
            return
        fact = self.sitting.drawn.fact(self.question.value)
        try:
            said = self.sitting.ask(fact.key)
        except CommitmentError as error:
            said = str(error)
        left = self.sitting.questions_left
        self.answers.value += f"<p><b>{escape(fact.asks)}</b><br>{escape(said)} <em>({left} questions left)</em></p>"

    def go_on(self, place: int) -> None:
        """Take what is filled in, and open the next page; after the last, show everything.

        Args:
            place: of the page whose button was pressed; one of a page that is done does nothing.
        """
        if self.page is None or self.is_over or place != len(self.asked.children):
            return
        try:
            filled = {field.key: field.checked(self.fields[field.key].value or "") for field in self.page.fields}
        except CommitmentError as error:
            self.result.value = f"<p>{escape(str(error))}</p>"
            return
        self.result.value = ""
        for each in (*self.fields.values(), self._on):
            each.disabled = True
        try:
            self._open(self._pages.send(filled))
            next(iter(self.fields.values())).focus()
        except StopIteration:
            self.is_over, self.sitting.seconds = True, self._now() - self._began
            keep(self.sitting)
            used = f"<p>You took {written(self.sitting.seconds)} of {self.sitting.drawn.round.minutes}:00.</p>"
            self.result.value = used + debrief_html(self.sitting)

    def _open(self, page: RoundPage) -> None:
        self.page = page
        self.fields = {field.key: _widget(field) for field in page.fields}
        rows: list[widgets.Widget] = []
        for field in page.fields:
            rows += [widgets.HTML(_lines(field.about), layout=WIDE), self.fields[field.key]]
            if field.key == BOARD:
                rows.append(self._arrows(self.fields[BOARD]))
        head = widgets.HTML(f"<h4>{escape(page.title)}</h4>{_lines(page.text)}", layout=WIDE)
        self._on = _button("Go on", functools.partial(self.go_on, len(self.asked.children) + 1))
        if page.key == "change":
            self._on.add_class(f"{self._name}-stop")  # what comes after it isn't on the clock
        self.asked.children = (*self.asked.children, widgets.VBox([head, *rows, self._on]))

    def _arrows(self, board: widgets.ValueWidget) -> widgets.HBox:
        """Two menus and a button that writes an arrow, for those who'd rather not type."""
        boxes = [(f"{each.key}: {each.name}", each.key) for each in self.sitting.drawn.round.components]
        layout = widgets.Layout(width="38%")
        start, end = (widgets.Dropdown(options=boxes, tooltip=at, layout=layout) for at in ("arrow from", "arrow to"))

        def add() -> None:
            board.value = f"{board.value.rstrip()}\n{start.value} > {end.value}".lstrip()

        return widgets.HBox([start, widgets.HTML("→"), end, _button("Add arrow", add)])

    def _ipython_display_(self) -> None:
        """The clock is HTML with a script of its own; the rest is a widget."""
        clock = clock_html(self._name, 60 * self.sitting.drawn.round.minutes)
        display({"text/html": clock, "text/plain": "a clock"}, raw=True)
        display(self._repr_mimebundle_(), raw=True)

    def static_html(self) -> str:
        about = self.sitting.drawn.round
        return f"<p><b>{escape(about.title)}</b>, {about.minutes} minutes: run this cell to sit the round.</p>"


def debrief_html(sitting: RoundSitting) -> str:
    """The debrief, with everything that was hidden folded below it."""
    areas = "".join(fold(f"{AREAS[each.area]}: {each.level}", _lines(area_text(each))) for each in judge(sitting).areas)
    columns = fold("The same prompt at three levels, side by side", columns_html(sitting.drawn))
    sample = fold("A sound board, and how a staff candidate talked", _lines(sample_text(sitting.drawn)))
    return _lines(debrief(sitting)) + areas + columns + sample


def columns_html(drawn: DrawnRound) -> str:
    """The three columns side by side."""
    head = "".join(f"<th>{name}</th>" for name in ("", *COLUMNS))
    rows = "".join(
        f"<tr><th>{AREAS[area]}</th>{''.join(f'<td>{escape(drawn.fill(text))}</td>' for text in columns)}</tr>"
        for area, columns in drawn.round.rubric.items()
    )
    style = 'style="text-align:left;vertical-align:top;max-width:900px"'
    return f"<table {style}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _button(name: str, press: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=name, button_style="primary")
    button.on_click(lambda _: press())
    return button


def _widget(field: RoundField) -> widgets.ValueWidget:
    if field.options is not None:
        options = [("–", ""), *((says, key) for key, says in field.options.items())]
        return widgets.Dropdown(description=field.label, options=options, style=NAMED, layout=WIDE)
    if field.is_long:
        return widgets.Textarea(placeholder=field.label, rows=5, layout=WIDE)
    return widgets.Text(description=field.label, style=NAMED, layout=WIDE)


def _lines(text: str) -> str:
    """Plain text as HTML, line by line."""
    return "".join(f"<p>{escape(part).replace(chr(10), '<br>')}</p>" for part in text.split("\n\n") if part)
