"""HTML in a page that says when no kernel answers any more, and lets bets be chosen by the keyboard."""

from pathlib import Path

import anywidget
import traitlets

from course.lab.view import bundle

ENTER_PRESSES = "mm-enter"
"""Class of a box with a text field and a button: Enter in the field presses it (accessible.js). The field's
`continuous_update` is False: a kernel that is still taking in one letter would be told of Enter before the next one."""


class LiveView(anywidget.AnyWidget):
    """HTML, as `widgets.HTML`, which a screen reader is told when it changes; beside it, controls have names, radio
    buttons are a group, and the arrow keys are their own."""

    _esm = bundle.keeping_script(Path(__file__).with_suffix(".js"))
    _css = Path(__file__).with_suffix(".css")
    value = traitlets.Unicode("").tag(sync=True)
