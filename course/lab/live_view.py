"""HTML in a page that says when no kernel answers any more, and lets bets be chosen by the keyboard."""

from pathlib import Path

import anywidget
import traitlets

from course.lab.view import bundle


class LiveView(anywidget.AnyWidget):
    """HTML, as `widgets.HTML`; beside it, radio buttons are a group, and the arrow keys are their own."""

    _esm = bundle.keeping_script(Path(__file__).with_suffix(".js"))
    _css = Path(__file__).with_suffix(".css")
    value = traitlets.Unicode("").tag(sync=True)
