"""A picture with sliders: move one, and it is drawn anew.

Explorer(draw, k=slider("draft length k", 0, 8, 4), rate=slider("acceptance", 0, 1, 0.6))

What takes longer than a blink is drawn by a button, in a thread of its own; it may yield pictures as it goes.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, Protocol

import ipywidgets as widgets

from course.lab.display import LivePanel, bundle_of, trouble, words_of
from course.lab.live_view import LiveView
from course.lab.recording import MOST, MOST_SLOW, record
from course.lab.waiting import telling

WIDE = widgets.Layout(width="100%", max_width="620px")
STYLE = {"description_width": "190px"}


class Shown(Protocol):
    """What a notebook can show: a Picture, an Html."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Any: ...


def slider(label: str, low: float, high: float, value: float, step: float | None = None) -> widgets.ValueWidget:
    """A number between two ends; whole numbers if all of them are."""
    whole = all(isinstance(each, int) for each in (low, high, value, step or 1))
    kind = widgets.IntSlider if whole else widgets.FloatSlider
    step = step or (1 if whole else (high - low) / 100)
    return kind(value=value, min=low, max=high, step=step, description=label, style=STYLE, layout=WIDE)


def choices(label: str, options: Sequence[Any], value: Any = None) -> widgets.ValueWidget:
    """One of a few values, in order; the first, if none is named. Words have no order: they are a menu."""
    value = options[0] if value is None else value
    if all(isinstance(each, str) and not each[:1].isdigit() for each in options):
        return menu(label, options, value)
    return widgets.SelectionSlider(options=list(options), value=value, description=label, style=STYLE, layout=WIDE)


def menu(label: str, options: Sequence[str], value: str) -> widgets.ValueWidget:
    """One of many names."""
    return widgets.Dropdown(options=list(options), value=value, description=label, style=STYLE, layout=WIDE)


def buttons(label: str, options: Sequence[str], value: str | None = None) -> widgets.ValueWidget:
    """One of a few names, all in sight."""
    return widgets.ToggleButtons(
        options=list(options), value=value or options[0], description=label, style={**STYLE, "button_width": "auto"}
    )


def switch(label: str, value: bool = False) -> widgets.ValueWidget:
    """A switch: on or off."""
    return widgets.Checkbox(value=value, description=label, indent=False, layout=widgets.Layout(width="auto"))


def player(control: widgets.IntSlider, interval_ms: int, step: int = 1) -> widgets.Play:
    """A button that moves a slider by itself, from wherever it stands."""
    play = widgets.Play(value=control.value, min=control.min, max=control.max, step=step, interval=interval_ms)
    widgets.jslink((play, "value"), (control, "value"))
    return play


class Explorer(LivePanel):
    """Controls over one picture.

    Args:
        draw: from the controls' values, by name, to what is shown: a Picture or Html. With a `button` it may be a
            generator of several, each shown until the next one comes. A ValueError's words are shown in its place.
        button: what is written on the button that draws; None = every move of a slider draws.
        slow: drawing takes a second or so: a slider draws when it is released, and the panel says that it is at it.
        controls: by the names under which `draw` takes them.
    """

    def __init__(
        self,
        draw: Callable[..., Shown | Iterator[Shown]],
        *,
        button: str | None = None,
        slow: bool = False,
        **controls: widgets.ValueWidget,
    ) -> None:
        self.draw, self.controls, self.slow = draw, controls, slow
        self.shown: Shown | None = None
        """What is in sight, or None before the button was pressed."""
        self.error: str | None = None
        self._thread: threading.Thread | None = None
        self._view = LiveView(layout=widgets.Layout(width="100%"))
        self._is_drawn = button is not None
        self.busy = widgets.HTML("")
        self.run_view = widgets.VBox(layout=widgets.Layout(width="100%"))
        parts: list[widgets.Widget] = list(controls.values())
        self.button: widgets.Button | None = None
        if button is None:
            for control in controls.values():
                if slow and control.has_trait("continuous_update"):
                    control.continuous_update = False
                control.observe(lambda _: self._work() if slow else self._draw(), names="value")
            if slow:
                parts.append(self.busy)
        else:
            self.button = widgets.Button(description=button, icon="play", button_style="primary")
            self.button.layout.width = "auto"
            self.button.on_click(lambda _: self.press())
            parts += [widgets.HBox([self.button, self.busy]), self.run_view]
        self.widget = widgets.VBox([*parts, self._view], layout=widgets.Layout(width="100%"))

    @property
    def view(self) -> LiveView:
        """The picture, which is first drawn when it's first looked at: a page in a browser has one from a recording."""
        if not self._is_drawn:
            self._draw()
        return self._view

    @property
    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def set(self, **values: Any) -> "Explorer":
        """Move sliders, as a reader would."""
        for name, value in values.items():
            self.controls[name].value = value
        return self

    def showing(self, shown: Shown) -> "Explorer":
        """With something in sight before the button is pressed for the first time."""
        self.shown, self._is_drawn = shown, True
        self._view.value = bundle_of(shown)[0]["text/html"]
        return self

    def press(self) -> None:
        """Press the button: draws in the background. While that is going on, a press does nothing."""
        if self._thread is None or not self._thread.is_alive():  # not disabled: the keyboard's focus would be gone
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def wait(self) -> "Explorer":
        """Until what the button started is done."""
        if self._thread is not None:
            self._thread.join()
        return self

    def _work(self) -> None:
        self.busy.value = "<progress></progress> running …"
        with telling(lambda html, _: setattr(self.busy, "value", html), self._show_run):
            self._draw()
            self.busy.value = ""

    def _show_run(self, shown: widgets.Widget | None) -> None:
        """A run that goes on."""
        self.run_view.children = () if shown is None else (shown,)

    def _draw(self) -> None:
        self.error = None
        try:
            for shown in self._pictures(**self.values):
                self.showing(shown)
        except Exception as error:  # or a press would end in a thread and stay unseen
            self.error, self._is_drawn = words_of(error), True
            self._view.value = trouble(self.error)

    def _pictures(self, **values: Any) -> Iterator[Shown]:
        drawn = self.draw(**values)
        yield from drawn if isinstance(drawn, Iterator) else (drawn,)

    def drawn_at(self, **values: Any) -> str:
        """What it would show with its controls there, as HTML. It shows what it showed before."""
        try:
            *_, last = self._pictures(**values)
            return bundle_of(last)[0]["text/html"]
        except ValueError as error:
            return trouble(words_of(error))

    def static_html(self) -> str:
        settings = ", ".join(f"{c.description}: {c.value}" for c in self.controls.values())
        recorded = "" if self.button else record(self, MOST_SLOW if self.slow else MOST)
        return f"<div{recorded}><p><em>{escape(settings)}</em></p>{self.view.value}</div>"
