"""The on-call desk: an incident with buttons. Everything it does, `Incident` does; it only shows and asks."""

import threading
from collections.abc import Callable
from html import escape
from itertools import groupby

import ipywidgets as widgets

from course.incidents.generate import IncidentError
from course.incidents.incident import GRADED, Incident
from course.incidents.interventions import AT_ONCE
from course.incidents.numbers import PLACES
from course.lab.display import LivePanel
from course.lab.live_view import LiveView
from course.lab.style import ALARM

NONE = "none"
NOT_SAID = "not said"
"""Nearly all incidents are of one of the two kinds: a preset answer would be points for nothing."""
NUM_RANKED = 3
WIDE = widgets.Layout(width="calc(100% - 4px)", max_width="840px")  # beside its margins
CLOCK = widgets.Layout(margin="6px 2px")
AUTO, WHOLE_LINE = widgets.Layout(width="auto"), widgets.Layout(flex="0 0 100%", margin="0 2px")
WORDS, TIGHT = {"description_width": "150px"}, {"description_width": "initial"}
HINT = "<i>What you ask is answered here, the newest on top.</i>"
PLAYING = "<p>Playing the same traffic again, before and after …</p>"
PANE = widgets.Layout(flex="1 1 390px", min_width="0", margin="0 12px 0 0")
"""What is done stands left, what is seen right; under each other on a narrow page."""


class IncidentDesk(LivePanel):
    """Page on top; left what helps at once, questions, what you suspect, the diagnosis, the rollout; right what came of
    it, newest first.

    Args:
        incident: played by this desk from here on.
    """

    def __init__(self, incident: Incident) -> None:
        self.incident = incident
        self._is_warned = False
        self._revealing: threading.Thread | None = None
        self.clock, self.board, self.verdict = LiveView(layout=CLOCK), widgets.HTML(), widgets.HTML(HINT)
        self.refused = widgets.HTML()  # beside the buttons: the verdict may be out of sight
        self.ask_buttons = {
            question.id: widgets.Button(
                description=f"{question.minutes} min · {question.text}", tooltip=question.text, layout=AUTO
            )
            for question in incident.questions()
        }
        for name, button in self.ask_buttons.items():
            button.on_click(lambda _, name=name: self._guarded(lambda: self.ask(name)))
        self.help_buttons = {
            one.id: widgets.Button(description=one.text, tooltip=one.cost, button_style="danger", layout=AUTO)
            for one in AT_ONCE
            if one in incident.interventions()
        }
        for name, button in self.help_buttons.items():
            button.on_click(lambda _, name=name: self._guarded(lambda: self.mitigate(name)))
        self.hypothesis = widgets.Textarea(
            placeholder="What do you think it is, and why? In your own words; no points. The menus come after.",
            description="hypothesis",
            rows=2,
            style=WORDS,
            layout=WIDE,
        )
        self.suspect_button = widgets.Button(description="Write it down", icon="pencil")
        suspects = [(NOT_SAID, ""), *((each.title, each.name) for each in incident.suspects())]
        self.cause = _choice("cause", suspects)
        self.other = _choice("not the cause", suspects)
        self.ruled_out_by = _choice("ruled out by", [(NOT_SAID, "")])
        self.phase = _choice("dominant phase", [NONE, *PLACES])
        self.secondary = _choice("secondary problem", [NONE, *PLACES])
        self.regime = _choice("spike or steady", [NOT_SAID, "steady", "spike"])
        self.evidence = widgets.SelectMultiple(description="what proves it", rows=5, style=WORDS, layout=WIDE)
        known = [(f"{one.text} ({one.cost})", one.id) for one in incident.interventions()]
        self.ranked = [_choice(f"change, rank {place + 1}", [(NONE, ""), *known]) for place in range(NUM_RANKED)]
        self.commit = widgets.Button(
            description="Commit to this", icon="lock", button_style="warning", tooltip="A diagnosis is committed once."
        )
        self.chosen = widgets.SelectMultiple(options=known, description="deploy", rows=6, style=TIGHT, layout=WIDE)
        self.canary_button = widgets.Button(description="To a canary", icon="flask", layout=AUTO)
        self.deploy_button = widgets.Button(description="Deploy to all", icon="rocket", layout=AUTO)
        self.roll_back_button = widgets.Button(description="Roll back", icon="undo", layout=AUTO)
        self.grade_button = widgets.Button(description="Grade me", icon="check", layout=AUTO)
        actions = {
            self.suspect_button: self.suspect,
            self.commit: self.answer,
            self.canary_button: self.canary,
            self.deploy_button: self.deploy,
            self.roll_back_button: self.roll_back,
            self.grade_button: self.grade,
        }
        for button, action in actions.items():
            button.on_click(lambda _, action=action: self._guarded(action))
        questions = widgets.VBox(
            [
                widgets.Box(
                    [
                        widgets.HTML(f"<i>{group}</i>", layout=WHOLE_LINE),
                        *(self.ask_buttons[each.id] for each in asked),
                    ],
                    layout=widgets.Layout(flex_flow="row wrap"),
                )
                for group, asked in groupby(incident.questions(), lambda question: question.group)
            ]
        )
        self._form = [
            self.cause,
            self.phase,
            self.secondary,
            self.regime,
            self.evidence,
            self.other,
            self.ruled_out_by,
            *self.ranked,
        ]
        helping = widgets.Box(
            [widgets.HTML("<i>help users first</i>", layout=WHOLE_LINE), *self.help_buttons.values()],
            layout=widgets.Layout(flex_flow="row wrap"),
        )
        rollout = [self.canary_button, self.deploy_button, self.roll_back_button, self.grade_button]
        self.menus = widgets.VBox(
            [
                widgets.HTML("<b>Diagnosis</b>"),
                *self._form,
                self.commit,
                widgets.HTML("<b>Rollout</b>"),
                self.chosen,
                widgets.HBox(rollout),
            ],
            layout=widgets.Layout(display="none"),
        )
        doing = [helping, questions, self.hypothesis, self.suspect_button, self.menus, self.refused]
        panes = [widgets.VBox(each, layout=PANE) for each in (doing, [self.verdict, self.board])]
        side_by_side = widgets.Box(panes, layout=widgets.Layout(flex_flow="row wrap", align_items="flex-start"))
        self.widget = widgets.VBox([widgets.HTML(incident.page._repr_html_()), self.clock, side_by_side])
        self._tell_time()

    def ask(self, name: str) -> None:
        """Put the answer to a question on top of the board."""
        found = self.incident.ask(name)
        if not self.ask_buttons[name].disabled:
            self.ask_buttons[name].disabled = True
            self.board.value = found._repr_html_() + self.board.value
            marked = self.evidence.value  # new options take every mark away
            self.evidence.options = [*self.evidence.options, (found.question, found.id)]
            self.evidence.value = marked
            by = self.ruled_out_by.value
            self.ruled_out_by.options = [*self.ruled_out_by.options, (found.question, found.id)]
            self.ruled_out_by.value = by
        self._tell_time()

    def mitigate(self, name: str) -> None:
        """Do what helps at once, and show before and after."""
        self.verdict.value = PLAYING
        self.verdict.value = self.incident.mitigate([name])._repr_html_()
        self._tell_time()

    def suspect(self) -> None:
        """Note the hypothesis, and show the menus.

        Raises:
            IncidentError: it is blank.
        """
        if not self.hypothesis.value.strip():
            raise IncidentError("write down what you suspect; a few words will do")
        self.incident.suspect(self.hypothesis.value)
        self.hypothesis.disabled = self.suspect_button.disabled = True
        self.menus.layout.display = None

    def answer(self) -> None:
        """Commit."""
        fields = {"dominant_phase": self.phase.value, "secondary": self.secondary.value}
        named = {field: value for field, value in fields.items() if value != NONE}
        ranked = [choice.value for choice in self.ranked if choice.value]
        when = None if self.regime.value == NOT_SAID else self.regime.value
        by, other = self.ruled_out_by.value, self.other.value
        self.incident.answer(
            **named,
            evidence=self.evidence.value,
            ranked=ranked,
            regime=when,
            cause=self.cause.value or None,
            ruled_out={by: other} if by and other else {},
        )
        for part in (*self._form, self.commit):
            part.disabled = True
        self.verdict.value = f"<p>Noted. Now deploy. {GRADED}</p>"

    def canary(self) -> None:
        """Deploy what is chosen to a canary, and show before and after; it may raise as `deploy`."""
        self.deploy(canary=True)

    def deploy(self, canary: bool = False) -> None:
        """Deploy what is chosen, and show before and after.

        Raises:
            IncidentError: nothing is chosen.
        """
        self.verdict.value = PLAYING
        self.verdict.value = self.incident.deploy(list(self.chosen.value), canary)._repr_html_()
        self._tell_time()

    def roll_back(self) -> None:
        """Take it back.

        Raises:
            IncidentError: nothing is deployed.
        """
        self.incident.roll_back()
        self.verdict.value = "<p>Rolled back.</p>"
        self._tell_time()

    def grade(self) -> None:
        """Show the marks, and the truth. Who has deployed nothing is asked once whether that is meant."""
        if self.incident.is_undeployed and not self._is_warned:
            self._is_warned = True
            self.verdict.value = "<p>Nothing is deployed: press again to be graded without it.</p>"
            return
        marks = self.incident.grade()._repr_mimebundle_()["text/html"]
        self.verdict.value = f"{marks}<p><progress></progress> Playing a dozen other changes, too. Go on meanwhile.</p>"

        def reveal() -> None:
            told = self.incident.reveal()._repr_html_()
            self.verdict.value = f"{marks}{told}<p><code>{escape(self.incident.share())}</code></p>"

        self._revealing = threading.Thread(target=reveal, daemon=True)
        self._revealing.start()

    def wait(self) -> None:
        """For scripts and tests: until all is told."""
        if self._revealing is not None:
            self._revealing.join()

    def static_html(self) -> str:
        asked = "".join(f"<li>{escape(question.text)}</li>" for question in self.incident.questions())
        return f"{self.incident.page._repr_html_()}<p>What can be asked:</p><ul>{asked}</ul>"

    def _guarded(self, action: Callable[[], None]) -> None:
        """What comes out of turn is told, not raised."""
        self.refused.value = ""
        try:
            action()
        except IncidentError as error:
            self.verdict.value = self.refused.value = f'<p style="color:{ALARM}">{escape(str(error))}</p>'

    def _tell_time(self) -> None:
        minutes = "1 minute" if self.incident.minutes == 1 else f"{self.incident.minutes} minutes"
        bar = f'<progress aria-label="budget burned" max="1" value="{min(self.incident.burned, 1.0):.3f}"></progress>'
        self.clock.value = f"<b>{minutes}</b> on the incident clock. {self.incident.status} {bar}"


def _choice(label: str, options: list) -> widgets.Dropdown:
    return widgets.Dropdown(options=options, description=label, style=WORDS, layout=WIDE)
