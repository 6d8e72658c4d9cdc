"""What a notebook shows of something that has no picture: its repr, or the beginning of it."""

from typing import Any

from IPython.core.formatters import PlainTextFormatter
from IPython.core.interactiveshell import InteractiveShell

LONGEST = 2000
"""Characters. Eight requests' steps, or a list of logits, would be hundreds of thousands."""
PRINTERS = ("singleton_printers", "type_printers", "deferred_printers")


class Beginning(PlainTextFormatter):
    """IPython's own, cut off where it is long."""

    def __call__(self, thing: Any) -> str | None:
        text = super().__call__(thing)
        if text is None or len(text) <= LONGEST:
            return text
        return f"{text[:LONGEST]}\n... ({len(text):,} characters; print(repr(...)) shows all of them)"


def show_beginnings(shell: InteractiveShell) -> None:
    """From now on, no cell of this notebook prints more than that because of its last line."""
    formatters = shell.display_formatter.formatters
    shortened = Beginning(parent=shell.display_formatter)
    for printers in PRINTERS:
        setattr(shortened, printers, getattr(formatters["text/plain"], printers))
    formatters["text/plain"] = shortened
