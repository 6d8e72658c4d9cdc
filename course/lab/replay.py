"""A run played again, slower: the same stamps, with a handle on time."""

from dataclasses import replace
from html import escape

import ipywidgets as widgets

from course.lab.display import LivePanel
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Row, Run
from course.lab.style import PHASE_COLOURS, PHASE_LABELS, seconds
from minillm.core.timeline import PHASES
from minillm.frontend.snapshot import RequestView


def rewind(run: Run, moment: float) -> Run:
    """The run as it looked `moment` seconds after it began."""
    now = run.start + moment
    steps = tuple(replace(step, end=min(step.end, now)) for step in run.steps if step.start < now)
    rows = tuple(replace(row, view=_rewind_view(row.view, now)) for row in run.rows)
    return replace(run, rows=rows, steps=steps, snapshot=replace(run.snapshot, now=now), done=moment >= run.duration)


def _rewind_view(view: RequestView | None, now: float) -> RequestView | None:
    if view is None or view.borders[0] > now:
        return None
    deliveries = tuple(stamp for stamp in view.deliveries if stamp <= now)
    return replace(
        view,
        borders=tuple(min(border, now) for border in view.borders),
        deliveries=deliveries,
        num_output_tokens=len(deliveries),
        finish_reason=view.finish_reason if view.borders[-1] <= now else None,
        phase=phase_at(view, now),
    )


def phase_at(view: RequestView, now: float) -> str | None:
    """The phase a request was in at `now` (the engine's clock); None before and after."""
    if now < view.borders[0]:
        return None
    return next((phase for phase, end in zip(PHASES, view.borders[1:]) if now < end), None)


def narrate(run: Run, row: Row, moment: float) -> str:
    """One sentence about where a request is, `moment` seconds after the run began."""
    view, now = run.row_of(row.index), run.start + moment
    phase = phase_at(view, now)
    if phase is None:
        return (
            "has not arrived yet"
            if now < view.borders[0]
            else f"finished, after {seconds(view.borders[-1] - view.borders[0])}"
        )
    if phase == "queue":
        return f"waits: it has arrived, and no step has taken it yet ({seconds(now - view.borders[0])} so far)"
    if phase == "first_token":
        return "has been read: its first token is picked and turned into text"
    if phase == "stream":
        return f"is written, all {view.num_output_tokens} tokens: the last text is on its way to the client"
    if phase == "prefill":
        mine = [
            share.num_tokens
            for s in run.steps
            if s.end <= now
            for share in s.shares
            if share.request_id == row.request_id
        ]
        computed = min(view.num_cached_tokens + sum(mine), view.num_prompt_tokens)
        return f"reads its prompt: {computed} of {view.num_prompt_tokens} tokens computed, in {len(mine)} chunks"
    count = sum(1 for stamp in view.deliveries if stamp <= now)
    return f"writes: token {count} of {view.max_tokens}"


class Replay(LivePanel):
    """A slider over the time of a finished run, with a play button.

    Args:
        run: what to play.
        row: the request to follow.
        speed: seconds of the run per second of watching.
    """

    def __init__(self, run: Run, row: int = 0, speed: float = 0.25) -> None:
        self.run = run
        self.row = run.rows[row]
        end = int(run.duration * 1000) + 1
        frame_ms = 120
        self.slider = widgets.IntSlider(
            value=end, min=0, max=end, description="time, ms", layout=widgets.Layout(width="100%")
        )
        player = widgets.Play(value=end, min=0, max=end, step=max(round(frame_ms * speed), 1), interval=frame_ms)
        widgets.jslink((player, "value"), (self.slider, "value"))  # both ways: it goes on from where the slider is
        self.view = widgets.HTML(layout=widgets.Layout(width="100%"))
        self.slider.observe(lambda change: self._show(change["new"]), names="value")
        self._show(end)
        controls = widgets.HBox([player, self.slider])
        self.widget = widgets.VBox([controls, self.view], layout=widgets.Layout(width="100%"))

    def _show(self, moment_ms: int) -> None:
        self.view.value = self.frame(moment_ms / 1000)

    def frame(self, moment: float) -> str:
        """The picture at a moment, with one sentence above it and the text so far below. HTML."""
        view = self.run.row_of(self.row.index)
        now = self.run.start + moment
        phase = phase_at(view, now)
        count = sum(1 for stamp in view.deliveries if stamp <= now)
        written = "".join(self.row.texts[:count])
        colour = PHASE_COLOURS[phase] if phase else "transparent"
        label = PHASE_LABELS[phase] if phase else ""
        picture = draw_timeline(
            rewind(self.run, moment), title=f"Where is request #{self.row.index} now?", whole=self.run
        )
        return (
            f'<div style="border-left:12px solid {colour};padding:2px 10px;min-height:22px"><b>{label}</b> '
            f"request #{self.row.index} {escape(narrate(self.run, self.row, moment))}</div>{picture.svg()}"
            f'<pre style="white-space:pre-wrap;min-height:60px;margin:0 0 0 10px">{escape(written)}</pre>'
        )

    def static_html(self) -> str:
        return self.frame(self.run.duration)
