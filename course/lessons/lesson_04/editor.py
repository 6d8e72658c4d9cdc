"""The prompt editor: change a template, see what the linter says, and play it to the real engine."""

from collections.abc import Iterator
from html import escape

import ipywidgets as widgets

from course.lab.display import Html, trouble
from course.lab.explorer import Explorer, switch
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.svg import Picture
from course.lessons.lesson_04 import cache_model, template
from course.lessons.lesson_04.beads import draw_finds
from course.lessons.lesson_04.chain import block_size_of, count_tokens
from course.lessons.lesson_04.linter import Finding, findings_table, lint
from course.lessons.lesson_04.traces import trace_of_prompts

FRAME_S = 0.3
"""Between two pictures of a run in progress."""


class PromptEditor(Explorer):
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
        wide = widgets.Layout(width="100%")
        super().__init__(
            self._play,
            button="Run on the engine",
            text=widgets.Textarea(template.AS_FOUND, rows=8, layout=wide),
            sort_tools=switch("tools and keys in one fixed order"),
        )
        self.report = widgets.HTML(layout=wide)
        for control in self.controls.values():
            control.observe(lambda _: self._check(), names="value")
        self._check()
        reorder = widgets.Button(description="Reorder by stability", layout=widgets.Layout(width="auto"))
        reorder.on_click(lambda _: self.reorder())
        fields = widgets.HTML(f"<small>fields: {', '.join(template.fields(0))}</small>")
        text, sort_tools, run, view = self.widget.children
        self.widget.children = (text, fields, sort_tools, widgets.HBox([reorder, run]), self.report, view)

    def reorder(self) -> "PromptEditor":
        """What changes least often first."""
        return self.set(text=template.by_stability(**self.values))

    def _play(self, text: str, sort_tools: bool) -> Iterator[Picture]:
        """Play the sample; the picture follows it."""
        session = self.lab.start(template.workload(self.lab, text, sort_tools), self.lab.config())
        while not session.wait(FRAME_S):
            yield self._draw_last(*self.runs, session.run())
        self.runs.append(session.run())
        yield self._draw_last(*self.runs)

    def _draw_last(self, *runs: Run) -> Picture:
        names = ("before this", "this run")
        return draw_finds(dict(zip(names[-len(runs) :], runs[-2:])))

    def _check(self) -> None:
        """Lint what is written, and count what a cache would find of it."""
        try:
            sample = template.prompts(**self.values)
        except ValueError as error:
            self.report.value = trouble(str(error))
            return
        self.findings = lint(sample, lambda line: count_tokens(self.lab, line))
        self.expected = cache_model.hit_rate(trace_of_prompts(self.lab, sample, self.block_size))
        found = f"Of {template.SAMPLE} such requests' tokens, a cache can find <b>{self.expected:.0%}</b>."
        self.report.value = f"{findings_table(self.findings).html}<p>{found}</p>"

    def static_html(self) -> str:
        written = f'<pre style="white-space:pre-wrap">{escape(self.values["text"])}</pre>'
        return written + self.report.value + self.view.value


def lint_prompts(lab: Lab, *prompts: str) -> Html:
    """Your own prompts: one, for suspects by their looks; several of the same service, for what really differs."""
    return findings_table(lint(prompts, lambda line: count_tokens(lab, line)))
