"""A bar that says how far a cell is. It comes late; in the end it says how long all took."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from course.lab.display import Html
from course.lab.marks import TRANSIENT
from course.lab.style import seconds

PATIENCE_S = 2.0
"""Nothing is shown of what takes less time."""
Item = TypeVar("Item")


def with_progress(
    items: Iterable[Item], what: str, now: Callable[[], float] = time.monotonic, show: Any = None
) -> Iterator[Item]:
    """The items, one after the other; after two seconds with a bar. Without a notebook, just the items.

    Args:
        what: is being done, in a few words.
        now: a clock in real seconds.
        show: as `display(..., display_id=True)`: shows something and returns a handle with `update`; None = that.
    """
    items = list(items)
    if show is None and InteractiveShell.initialized():
        show = functools.partial(display, display_id=True, metadata={TRANSIENT: True})
    began, handle = now(), None
    for i, item in enumerate(items):
        if show is not None and now() - began > PATIENCE_S:
            bar = _bar(what, i, len(items))
            if handle is None:
                handle = show(bar)
            else:
                handle.update(bar)
        yield item
    if handle is not None:
        words = f"{what}: {seconds(now() - began)}"
        handle.update(Html(f'<div style="font-size:12px;opacity:.75">{words}</div>', words))


def _bar(what: str, done: int, total: int) -> Html:
    words = f"{what}: {done} of {total} done"
    return Html(f'<p><progress value="{done}" max="{total}"></progress> <em>{words}</em></p>', words)
