"""What a cell can't have."""

from minillm.core.errors import MinillmError


class NotInThisLabError(MinillmError):
    """This lab can't show it, whatever is tried: its engine is simulated, or runs elsewhere. Its message says why, and
    what to start instead. A notebook shows it as a note (notes.py)."""

    def _render_traceback_(self) -> list[str]:
        """A cell ends with a sentence, in place of a traceback."""
        return [str(self)]
