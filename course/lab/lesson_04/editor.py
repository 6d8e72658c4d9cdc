"""The prompt editor: change a template, see what the linter says, and play it to the real engine."""

import threading
from html import escape

import ipywidgets as widgets

from course.lab.display import Html, LivePanel, trouble, words_of
from course.lab.lab import Lab
from course.lab.lesson_04 import cache_model, template
from course.lab.lesson_04.beads import draw_finds
from course.lab.lesson_04.chain import block_size_of, count_tokens
from course.lab.lesson_04.linter import Finding, findings_table, lint
from course.lab.lesson_04.traces import trace_of_prompts
from course.lab.run import Run

FRAME_S = 0.3
"""Between two pictures of a run in progress."""


class PromptEditor(LivePanel):
    """A template with a linter beside it, a button that reorders it, and a button that runs it.

    Args:
        lab: whose engine plays it.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.block_size = block_size_of(lab)
        self.runs: list[Run] = []
        """Played so far; the last two are shown."""
        self.findings: list[Finding] = []
        self.expected = 0.0
        """Share of the sample's prompt tokens that an empty, roomy cache will find."""
        self.error: str | None = None
        self._thread: threading.Thread | None = None
        self._playing = False
        wide = widgets.Layout(width="100%")
        self.text = widgets.Textarea(template.AS_FOUND, rows=8, layout=wide, continuous_update=True)
        self.sort_tools = widgets.Checkbox(False, description="tools and keys in one fixed order", indent=False)
        self.reorder_button = self._button("Reorder by stability", "sort-amount-asc", self.reorder)
        self.undo_button = self._button("As found", "undo", self.as_found)
        self.run_button = self._button("Run on the engine", "play", self.press, "primary")
        self.report, self.view = widgets.HTML(layout=wide), widgets.HTML(layout=wide)
        for control in (self.text, self.sort_tools):
            control.observe(lambda _: self._check(), names="value")
        self._check()
        buttons = widgets.HBox([self.reorder_button, self.undo_button, self.run_button])
        fields = widgets.HTML(f"<small>fields: {', '.join(template.fields(0))}</small>")
        self.widget = widgets.VBox([self.text, fields, self.sort_tools, buttons, self.report, self.view], layout=wide)

    @staticmethod
    def _button(words: str, icon: str, action: object, style: str = "") -> widgets.Button:
        button = widgets.Button(description=words, icon=icon, button_style=style, layout=widgets.Layout(width="auto"))
        button.on_click(lambda _: action())
        return button

    def reorder(self) -> "PromptEditor":
        """What changes least often first."""
        self.text.value = template.by_stability(self.text.value, self.sort_tools.value)
        return self

    def as_found(self) -> "PromptEditor":
        """Back to the start."""
        self.sort_tools.value = False
        self.text.value = template.AS_FOUND
        return self

    def press(self) -> None:
        """Play the sample, in a thread of its own; the picture follows it."""
        if not self.run_button.disabled:
            self._playing = True
            self._enable()
            self._thread = threading.Thread(target=self._play, daemon=True)
            self._thread.start()

    def wait(self) -> "PromptEditor":
        """Until what is being played has ended."""
        if self._thread is not None:
            self._thread.join()
        return self

    def _play(self) -> None:
        try:
            traffic = template.workload(self.lab, self.text.value, self.sort_tools.value)
            session = self.lab.start(traffic, self.lab.config())
            while not session.wait(FRAME_S):
                self._draw(session.run())
            self.runs.append(session.run())
            self._draw(None)
        except Exception as error:  # or it would end in a thread where nobody sees it
            self.view.value = trouble(words_of(error))
        finally:
            self._playing = False
            self._enable()

    def _enable(self) -> None:
        """The button can be pressed when it would do something."""
        self.run_button.disabled = self._playing or self.error is not None

    def _draw(self, live: Run | None) -> None:
        shown = [*self.runs, *([live] if live else [])][-2:]
        names = ("before this", "this run") if len(shown) == 2 else ("this run",)
        self.view.value = draw_finds(dict(zip(names, shown))).svg()

    def _check(self) -> None:
        """Lint what is written, and count what a cache would find of it."""
        try:
            sample = template.prompts(self.text.value, self.sort_tools.value)
            self.findings = lint(sample, lambda line: count_tokens(self.lab, line))
            self.expected = cache_model.hit_rate(trace_of_prompts(self.lab, sample, self.block_size))
            self.error = None
        except ValueError as error:
            self.error = str(error)
        self._enable()
        self.report.value = self._said()

    def _said(self) -> str:
        if self.error is not None:
            return trouble(self.error)
        found = f"Of {template.SAMPLE} such requests' tokens, a cache can find <b>{self.expected:.0%}</b>."
        return f"{findings_table(self.findings).html}<p>{found}</p>"

    def static_html(self) -> str:
        written = f'<pre style="white-space:pre-wrap">{escape(self.text.value)}</pre>'
        return written + self._said() + self.view.value


def lint_prompts(lab: Lab, *prompts: str) -> Html:
    """Your own prompts: one, for suspects by their looks; several of the same service, for what really differs."""
    return findings_table(lint(prompts, lambda line: count_tokens(lab, line)))
