"""A run played again, slower: the same stamps, with a slider for time."""

from dataclasses import replace
from html import escape

import ipywidgets as widgets

from course.lab.display import Html
from course.lab.explorer import Explorer, player, slider
from course.lab.pictures.timeline import draw_timeline
from course.lab.recording import MOST, record
from course.lab.run import Row, Run
from course.lab.style import PHASE_COLOURS, PHASE_LABELS, seconds
from minillm.core.timeline import PHASES
from minillm.frontend.snapshot import RequestView

FRAME_MS = 120
"""Between two pictures, when it plays by itself."""
PLAY_S = (12, 6, 30, 60)
"""How long a whole run plays, whatever it took; the first is the default."""


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
        return f"is queued: no step has included it yet ({seconds(now - view.borders[0])} so far)"
    if phase == "first_token":
        return "is done with prefill: its first token is being sampled and detokenized"
    if phase == "stream":
        return f"has all {view.num_output_tokens} tokens: the last text is on its way to the client"
    if phase == "prefill":
        mine = [
            share.num_tokens
            for s in run.steps
            if s.end <= now
            for share in s.shares
            if share.request_id == row.request_id
        ]
        computed = min(view.num_cached_tokens + sum(mine), view.num_prompt_tokens)
        return f"is in prefill: {computed} of {view.num_prompt_tokens} prompt tokens computed, in {len(mine)} chunks"
    count = sum(1 for stamp in view.deliveries if stamp <= now)
    return f"is decoding: token {count} of {view.max_tokens}"


class Replay(Explorer):
    """A slider over the time of a finished run, with a play button; it opens at the start and plays for PLAY_S.

    Args:
        run: what to play.
        row: the request to follow.
    """

    def __init__(self, run: Run, row: int = 0) -> None:
        self.run, self.row = run, run.rows[row]
        self.end_ms = int(run.duration * 1000) + 1
        super().__init__(lambda time_ms: self.frame(time_ms / 1000), time_ms=slider("time, ms", 0, self.end_ms, 0))
        self.play = player(self.controls["time_ms"], FRAME_MS)
        self.pace = widgets.Dropdown(options={f"plays {s} s": s for s in PLAY_S}, layout=widgets.Layout(width="110px"))
        self.pace.observe(lambda _: self._set_pace(), names="value")
        self._set_pace()
        self.widget.children = (widgets.HBox([self.play, self.pace]), *self.widget.children)

    def _set_pace(self) -> None:
        self.play.step = max(round(self.end_ms * FRAME_MS / 1000 / self.pace.value), 1)

    def static_html(self) -> str:
        """Where there is no kernel: how it ended."""
        return f"<div{record(self, MOST)}>{self.frame(self.end_ms / 1000).html}</div>"

    def frame(self, moment: float) -> Html:
        """The picture at a moment, with one sentence above it and the text so far below."""
        view = self.run.row_of(self.row.index)
        phase = phase_at(view, self.run.start + moment)
        count = sum(1 for stamp in view.deliveries if stamp <= self.run.start + moment)
        colour = PHASE_COLOURS[phase] if phase else "transparent"
        told = f"request #{self.row.index} {narrate(self.run, self.row, moment)}"
        picture = draw_timeline(
            rewind(self.run, moment), title=f"Where is request #{self.row.index} now?", whole=self.run
        )
        html = (
            f'<div style="border-left:12px solid {colour};padding:2px 10px;min-height:22px">'
            f"<b>{PHASE_LABELS[phase] if phase else ''}</b> {escape(told)}</div>{picture.svg()}"
            '<pre style="white-space:pre-wrap;word-break:normal;min-height:60px;margin:0 0 0 10px">'
            f"{escape(''.join(self.row.texts[:count]))}</pre>"
        )
        return Html(html, f"{told}. {picture.alternative}")
