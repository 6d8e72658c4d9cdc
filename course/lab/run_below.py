"""Runs the cells below, as if the reader had: a bet that is locked reveals how it ends."""

from pathlib import Path

import anywidget
import traitlets


class RunBelow(anywidget.AnyWidget):
    """Nothing to see. Where the page can't run cells (VS Code, an older set-up), nothing happens."""

    _esm = Path(__file__).with_suffix(".js")
    asked = traitlets.Int(0).tag(sync=True)
    until = traitlets.Unicode(r"\.score\(").tag(sync=True)
    """The last cell to run: the first below whose source matches this, as a JavaScript pattern."""

    def ask(self) -> None:
        """Run them, once."""
        self.asked += 1
