"""A streamed answer that is looked at while it arrives."""

from collections.abc import Iterable, Sequence

from course.loadgen.stream import Read, StreamedAnswer, read_into

EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
"""The usual ones. The standard allows more, which are found when the stream is over."""


class GrowingAnswer:
    """An answer that is looked at again and again while it arrives. Every event is read once.

    What stands behind the last event's end waits until that event is whole.
    """

    def __init__(self) -> None:
        self._answer = StreamedAnswer()
        self._num_seen = 0
        self._waiting: list[Read] = []

    def read(self, reads: Sequence[Read]) -> StreamedAnswer:
        """Args: reads: all so far; those of the last call must still be its beginning."""
        self._waiting += reads[self._num_seen :]
        self._num_seen = max(self._num_seen, len(reads))
        text = b"".join(data for _, data in self._waiting)
        end = max(text.rfind(border) + len(border) if border in text else 0 for border in EVENT_ENDS)
        whole, self._waiting = _cut(self._waiting, end)
        read_into(self._answer, whole)
        return self._answer


def _cut(reads: Iterable[Read], at: int) -> tuple[list[Read], list[Read]]:
    """The reads with the first `at` bytes, and those with the rest."""
    before, after = [], []
    for stamp, data in reads:
        if at > 0:
            before.append((stamp, data[:at]))
        if len(data) > at:
            after.append((stamp, data[max(at, 0) :]))
        at -= len(data)
    return before, after
