"""A bar that says how far a cell is, and what it is at. In the end it says how long all took."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any, TypeVar

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from course.lab.display import Html
from course.lab.marks import TRANSIENT
from course.lab.style import seconds

PATIENCE_S = 2.0
"""Nothing is shown of what takes less time."""
MARKS = {TRANSIENT: True}
Item = TypeVar("Item")


def with_progress(
    items: Iterable[Item],
    what: str,
    *,
    patience_s: float = PATIENCE_S,
    now: Callable[[], float] = time.monotonic,
    show: Any = None,
) -> Iterator[Item]:
    """The items, one after the other; after some seconds with a bar. Without a notebook, just the items.

    Args:
        what: is being done, in a few words; the bar adds the item's own.
        patience_s: no bar before; at 0 it is there while the first item is at work, which may take minutes.
        now: a clock in real seconds.
        show: as `display(..., display_id=True)`: shows something and returns an object with `update`; None = that.
    """
    items = list(items)
    if show is None and InteractiveShell.initialized():
        show = functools.partial(display, display_id=True, metadata=MARKS)
    began, handle = now(), None
    for i, item in enumerate(items):
        if show is not None and now() - began >= patience_s:
            bar = _bar(what, item, i, len(items))
            if handle is None:
                handle = show(bar)
            else:
                handle.update(bar, metadata=MARKS)  # an update leaves out marks that are not said again
        yield item
    if handle is not None:
        words = f"{what}: {seconds(now() - began)}"
        handle.update(Html(f'<div style="font-size:12px;opacity:.75">{words}</div>', words), metadata=MARKS)


def _bar(what: str, item: object, done: int, total: int) -> Html:
    words = f"{what}: {item}, {done} of {total} done"
    return Html(f'<p><progress value="{done}" max="{total}"></progress> <em>{escape(words)}</em></p>', words)
