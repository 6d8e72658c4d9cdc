"""Pictures that live: Python sends a frame when it has one, the browser lets it grow until the next.

A step of prefill may last a second, in which the engine has nothing new to say. What is going on is known, though: a
request that waits, waits on. So pictures mark what grows (`data-grow`, `data-move`: units per second), and the browser
draws that at its own pace. It also answers the mouse: one cursor over all pictures that share a time axis.
"""

from pathlib import Path

import anywidget
import traitlets


class LiveView(anywidget.AnyWidget):
    """HTML, as `widgets.HTML`, with what moves in it."""

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    value = traitlets.Unicode("").tag(sync=True)
    tips = traitlets.List().tag(sync=True)
    """What the controls beside it do, in their order: shown on hover."""
