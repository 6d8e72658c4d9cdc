"""Text tables for a terminal, drawn by rich."""

import io
from collections.abc import Iterable, Sequence


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The rows under their headings, without a frame: the first column aligned left, all others right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    drawn = io.StringIO()
    # As wide as the table wants: a terminal may wrap it, a file should not.
    Console(file=drawn, width=10_000, color_system=None, markup=False, emoji=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines())
