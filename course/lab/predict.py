"""Predict, lock, run, score. A locked prediction cannot be changed; its key comes from the run, never from the text."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import ipywidgets as widgets

from course.lab import progress, svg
from course.lab.display import Html, LivePanel
from course.lab.live_view import LiveView
from course.lab.marks import EXAMPLE
from course.lab.recording import BET, OUTCOME, data_attribute
from course.lab.run import Run
from course.lab.run_below import RunBelow
from course.lab.style import ALARM, PHASE_LABELS, change, number, seconds

HOW = "Choose, then press <b>Lock it</b>. In JupyterLab the cell below then runs by itself; elsewhere, run it."
RIGHT, FAR = 1.1, 4.0
"""A number within a factor of RIGHT earns full marks; from there they fall with the logarithm, to none at FAR."""


class LockedError(RuntimeError):
    """The prediction is locked: the point of it is that it can no longer be changed."""


@dataclass(frozen=True)
class MeasuredAnswer:
    """What a run measured, as the answer to a question."""

    answer: str | float
    evidence: str
    """The measurement in words: 'queue grew most: 0.1 s to 2.3 s'."""
    also: tuple[str, ...] = ()
    """Answers that are as right: too close to `answer` to be told apart."""


class Prediction(LivePanel):
    """One question with a lock.

    Args:
        question: what will happen?
        options: answers to choose from; None = a number is asked for.
        unit: what the number is in, as text after it.
        key: its name in the learner's progress; none, and it is not kept.
        between: lowest and highest number, for a slider; None = it is typed. Above 0 and far apart: logarithmic.
        whole: the number is a count, and only the very one is right.
    """

    def __init__(
        self,
        question: str,
        options: Sequence[str] | None = None,
        unit: str = "",
        key: str = "",
        *,
        between: tuple[float, float] | None = None,
        whole: bool = False,
    ) -> None:
        self.question, self.whole, self.between = question, whole, between
        self.unit, self.key = unit, key
        self.locked = False
        self.picker: widgets.ValueWidget = (
            widgets.RadioButtons(options=list(options), value=None, layout=widgets.Layout(width="auto"))
            if options is not None
            else _number(unit, between, whole)
        )
        self.options = tuple(options) if options is not None else None
        self._is_said = options is not None  # a number stands somewhere before one was chosen
        self._early: MeasuredAnswer | str | None = None
        """What a run showed that was made before the lock: the bet is scored against it, so that the pictures below,
        which show that run, stay true."""
        self.picker.observe(lambda _: self._say(), names="value")
        self.lock_button = widgets.Button(description="Lock it", icon="lock", button_style="warning")
        self.lock_button.on_click(lambda _: self._try_lock())
        self.message = LiveView(value=HOW, layout=widgets.Layout(margin="0 8px"))
        heading = widgets.HTML(f'<div style="line-height:1.5"><b>Predict.</b> {escape(question)}</div>')
        self.below = RunBelow()
        locked = [self.lock_button, self.message, self.below]
        locking = widgets.HBox(locked, layout=widgets.Layout(align_items="center"))
        self.verdict = LiveView(value="")
        self.widget = widgets.VBox([heading, self.picker, locking, self.verdict])

    @property
    def choice(self) -> str | float | None:
        """None: nothing has been said yet."""
        return self.picker.value if self._is_said else None

    def _say(self) -> None:
        self._is_said = True

    def choose(self, value: str | float) -> "Prediction":
        """Pick an answer; it can be changed until it is locked.

        Raises:
            LockedError: it is locked already.
        """
        if self.locked:
            raise LockedError(f"locked at {self.choice!r}: see what the run says about it")
        self.picker.value = value
        self._say()
        return self

    def lock(self) -> "Prediction":
        """Fix the answer for good.

        Raises:
            ValueError: nothing has been chosen yet.
        """
        if self.choice is None:
            raise ValueError("choose an answer first, then lock it")
        self.locked = True
        progress.note_prediction(self.key, None)
        self.picker.disabled = self.lock_button.disabled = True
        said = escape(self._written(self.choice))
        self.message.value = f"Locked: <b>{said}</b>. The cell below shows how it ends; if it isn't running, run it."
        return self

    def _try_lock(self) -> None:
        if self.choice is None and self.options is None:
            self._say()
            self.message.value = f"Choose a number first. If {self.picker.value:g} is what you mean, lock it again."
        elif self.choice is None:
            self.message.value = "Choose an answer first."
        elif not self.locked:
            self.lock()
            if self._early is None:
                self.below.ask()
            else:
                self.message.value = f"Locked: <b>{escape(self._written(self.choice))}</b>."
                self.verdict.value = self._settle(self._early).html

    def _written(self, value: str | float) -> str:
        return value if isinstance(value, str) else f"{number(value)} {self.unit}".strip()

    def score(self, outcome: MeasuredAnswer | str | None) -> Html:
        """Compare with what was measured. Says nothing of the outcome before there is a locked prediction.

        Args:
            outcome: None = nothing has run yet; a sentence = why nothing can be told from what ran. The latter is done
                with, without points: a noisy machine keeps no lesson open.
        """
        if not self.locked and EXAMPLE in os.environ and isinstance(outcome, MeasuredAnswer):
            return _note(f"Measured: {outcome.evidence}.", {"answer": outcome.answer, "also": outcome.also})
        if not self.locked:
            self._early = outcome
            then = ", then run this cell again" if outcome is None else ", and it's scored there, against this run"
            return _note(f"Not scored yet. Lock your prediction above{then}.")
        if outcome is None:
            return _note("Not scored yet: there is no run to compare with. Press Run, then run this cell again.")
        return self._settle(outcome)

    def _settle(self, outcome: MeasuredAnswer | str) -> Html:
        """Points for the locked prediction, kept, and the verdict."""
        if isinstance(outcome, str):
            progress.note_untold(self.key)
            return _note(
                f"You said {self._written(self.choice)}. This run cannot tell: {outcome}. No points either way."
            )
        if isinstance(outcome.answer, str) and self.options and outcome.answer not in self.options:
            progress.note_untold(self.key)
            said = f"You said {self._written(self.choice)}. This run came out as none of the answers offered"
            return _note(f"{said}: {outcome.evidence}. No points either way.")
        points = self.points(outcome)
        progress.note_prediction(self.key, points)
        verdict = (
            "Right"
            if points == 1
            else "Not this time"
            if points == 0
            else f"{'Close' if points >= 0.5 else 'Some way off'}: {points:.0%} of the point"
        )
        said = f"You said {self._written(self.choice)}. Measured: {outcome.evidence}."
        colour = svg.INK if points == 1 else svg.SOFT if points else ALARM
        line = "" if isinstance(outcome.answer, str) else draw_distance(self.choice, outcome.answer, self.unit)
        told = f"<b>{verdict}.</b> {escape(said)}{line}"
        return Html(f'<div style="border-left:6px solid {colour};padding:4px 12px">{told}</div>', f"{verdict}. {said}")

    def points(self, outcome: MeasuredAnswer) -> float:
        measured = outcome.answer
        if isinstance(measured, str) or self.choice == measured:
            return float(self.choice in (measured, *outcome.also))
        if measured <= 0 or self.choice <= 0:
            return 0.0
        off = max(self.choice / measured, measured / self.choice)
        free = 1.0 if self.whole else RIGHT
        return round(min(max(math.log(FAR / off) / math.log(FAR / free), 0.0), 1.0), 2)

    def static_html(self) -> str:
        options = "".join(f"<li>{escape(option)}</li>" for option in self.options or ())
        asked = {"question": self.question, "options": self.options, "unit": self.unit, "whole": self.whole}
        data = data_attribute(BET, {**asked, "between": self.between})
        return f"<div{data}><p><b>Predict.</b> {escape(self.question)}</p><ul>{options}</ul></div>"


def _number(unit: str, between: tuple[float, float] | None, whole: bool) -> widgets.ValueWidget:
    """What a number is given with: a slider, whose reading can be typed over, or a field."""
    if between is None:
        ends = {"min": 0.0, "max": 1e9}  # seconds, tokens, requests: none is negative
        return widgets.BoundedFloatText(value=0.0, **ends, description=unit, layout=widgets.Layout(width="200px"))
    low, high = between
    look = {"description": unit, "continuous_update": False, "layout": widgets.Layout(width="420px", max_width="100%")}
    if whole:
        return widgets.IntSlider(value=int(low), min=int(low), max=int(high), **look)
    if low > 0 and high >= 10 * low:
        ends = math.log10(low), math.log10(high)
        return widgets.FloatLogSlider(value=low, min=ends[0], max=ends[1], step=0.01, readout_format=".3g", **look)
    return widgets.FloatSlider(value=low, min=low, max=high, step=(high - low) / 200, readout_format=".3g", **look)


def draw_distance(said: float, measured: float, unit: str) -> str:
    """Both numbers on one line, to see how far apart they are."""
    low, high = sorted((said, measured))
    scale = svg.WIDTH * 0.7 / ((high - low) or 1.0)
    at = {name: 60 + (value - low) * scale for name, value in (("you", said), ("measured", measured))}
    marks = "".join(
        svg.line(x, 14, x, 30, stroke=svg.INK, stroke_width=2)
        + svg.text(x, y, f"{name} {number(value)} {unit}".strip(), text_anchor="middle")
        for (name, x), value, y in zip(at.items(), (said, measured), (10, 44))
    )
    line = svg.line(40, 22, 80 + svg.WIDTH * 0.7, 22, stroke=svg.SOFT)
    return svg.Picture("", line + marks, 50, description=f"you {said:g}, measured {measured:g} {unit}").svg()


def _note(words: str, outcome: Mapping[str, object] | None = None) -> Html:
    data = data_attribute(OUTCOME, outcome) if outcome else ""
    return Html(f"<p{data}><em>{escape(words)}</em></p>", words)


def grew_most(
    before: Run | None, after: Run | None, apart: float = 0.1, least: float = 0.005
) -> MeasuredAnswer | str | None:
    """The phase whose mean grew by the most seconds; None until both runs are there and done.

    Args:
        apart: a phase whose growth is less than by this share behind counts as well.
        least: share of E2E by which it has to grow. Where none did, the answer is a sentence that says so.
    """
    if before is None or after is None or not (before.done and after.done):
        return None
    was, now = before.mean_phases(), after.mean_phases()
    grown = {phase: now[phase] - was[phase] for phase in now}
    best, *others = sorted(now, key=grown.get, reverse=True)
    if grown[best] < least * sum(was.values()):
        return f"no phase grew by as much as {least:.1%} of E2E"
    alike = [phase for phase in others if grown[phase] > (1 - apart) * max(grown[best], 0.0)]
    moved = {phase: f"{seconds(was[phase])} to {seconds(now[phase])}" for phase in now}
    told = {phase: f"{PHASE_LABELS[phase]} {moved[phase]}" for phase in now}
    ahead = [f"{PHASE_LABELS[phase]} ({moved[phase]})" for phase in (best, *alike)]
    rest = [told[phase] for phase in others if phase not in alike and now[phase] > 0.01]
    first = (
        f"{' and '.join(ahead)} grew equally (within {apart:.0%}), so each counts"
        if alike
        else f"{PHASE_LABELS[best]} grew most, {moved[best]}"
    )
    evidence = "; ".join([first, ", ".join(rest)] if rest else [first])
    return MeasuredAnswer(PHASE_LABELS[best], evidence, tuple(PHASE_LABELS[phase] for phase in alike))


def gained_most(
    was: Mapping[str, float], now: Mapping[str, float], tie: str, what: str, apart: float = 0.1
) -> MeasuredAnswer:
    """The one of two services whose seconds fell by the larger share; `tie` when they are closer than `apart`.

    Args:
        what: these seconds are, such as "p99 of E2E".
    """
    left = {name: now[name] / was[name] for name in now}
    parts = [f"{name} {seconds(was[name])} to {seconds(now[name])} ({change(was[name], now[name])})" for name in now]
    is_tie = max(left.values()) - min(left.values()) < apart
    return MeasuredAnswer(tie if is_tie else min(left, key=left.get), f"{what}: {', '.join(parts)}")


class PredictionBook:
    """The bets of one notebook, by key. Running a cell again shows the same bet, so that a lock stays a lock.

    Args:
        before: whose bets go on.
    """

    def __init__(self, before: "PredictionBook | None" = None) -> None:
        self._predictions: dict[str, Prediction] = {} if before is None else dict(before._predictions)

    def predict(
        self,
        key: str,
        question: str,
        options: Sequence[str] | None = None,
        unit: str = "",
        *,
        between: tuple[float, float] | None = None,
        whole: bool = False,
    ) -> Prediction:
        """A prediction to lock.

        Args:
            options: answers to choose from; None = a number, typed, or dragged on a slider if `between` gives its ends.
        """
        if key not in self._predictions:
            self._predictions[key] = Prediction(question, options, unit, key, between=between, whole=whole)
        return self._predictions[key]
