"""A progress bar that stays where its cell is, and leaves one sentence behind."""

import time
from html import escape
from types import TracebackType

from IPython.display import display

from course.lab.display import Html
from course.lab.lesson_14.rows import Row
from course.lab.style import seconds


class Progress:
    """`with Progress(5) as progress:` then for each of the five, `begin` and `done`.

    Args:
        total: how many there are; nothing is shown for none.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.finished = self.failed = 0
        self._now = ""
        self._began = time.perf_counter()
        self._handle = display(self._bar(), display_id=True) if total else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None):
        self._show(self._ending(interrupted=kind is not None))

    def begin(self, claim: str, words: str) -> None:
        """This one is being measured."""
        self._now = f"{claim}: {words}"
        self._show(self._bar())

    def done(self, row: Row) -> None:
        """It has been."""
        self.finished += 1
        self.failed += not row.is_done
        self._show(self._bar())

    def _show(self, content: Html) -> None:
        if self._handle is not None:
            self._handle.update(content)

    def _bar(self) -> Html:
        told = f"{self.finished} of {self.total} measured{self._left()}. {self._now}"
        label = f"{self.finished} of {self.total}"
        bar = f'<progress value="{self.finished}" max="{self.total}" aria-label="{label}"></progress>'
        return Html(f"<div>{bar} {escape(told)}</div>", told)

    def _left(self) -> str:
        """Time to go, at the pace so far; nothing before there is one."""
        if not 0 < self.finished < self.total:
            return ""
        pace = (time.perf_counter() - self._began) / self.finished
        return f", about {seconds((self.total - self.finished) * pace)} to go at this pace"

    def _ending(self, interrupted: bool) -> Html:
        told = f"{self.finished} measured in {seconds(time.perf_counter() - self._began)}"
        told += f", {self.failed} of them failed" if self.failed else ""
        told += f"; interrupted, {self.total - self.finished} are left for another time" if interrupted else ""
        return Html(f"<p><em>{escape(told)}.</em></p>", f"{told}.")
