"""The four seams: what one deployment decides differently from the next, each with a trivial default.

- `QueuePolicy`: which request is next. Default: first come, first served.
- `PreemptionPolicy`: which request is preempted when no block is free, and what becomes of its keys and values.
  Default: the one admitted last among those that are not in the step yet; its KV is dropped and computed again.
- `KVLayout`: which blocks a request keeps. Default: all of them.
- `DraftPolicy`: which tokens are guessed ahead. Default: none.

Everything optional comes through these: see `minillm.policies` and `minillm.speculation`. A policy is called by the
thread that steps the engine, between two steps or while one is put together. It must not wait, and what it keeps per
request it lets go of when told that the request is gone.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from minillm.core.batch import BlockCopy, ScheduledBatch, Step, StepOutput
from minillm.core.request import Request


class QueuePolicy(Protocol):
    """The requests that wait, new and preempted, in the order in which they will be admitted.

    Queues get long. What a push, peek, pop or removal costs must not grow with the number of requests queued, or only
    as its logarithm.
    """

    def push(self, request: Request) -> None:
        """A request has arrived, or was preempted (`status` says which) and waits again."""
        ...

    def peek(self, num_running: int) -> Request | None:
        """The request to admit next, None if none may join `num_running` others now.

        If it does not fit, admission ends for this step: nothing overtakes it.
        """
        ...

    def pop(self) -> Request:
        """The request that `peek` has just shown was admitted: take it out."""
        ...

    def remove(self, request: Request) -> None:
        """A waiting request has ended."""
        ...

    def overdue(self, now: float) -> list[Request]:
        """Requests that have waited too long at `now` (clock seconds): they end with FinishReason.TIMEOUT."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in the order in which they would be admitted if none arrived or ended meanwhile. For a look at
        the queue: it may take longer than the other methods, which are called in each step."""
        ...


class PreemptionPolicy(Protocol):
    """Which request is preempted when no block is free, and what becomes of its keys and values."""

    def rank(self, request: Request) -> int:
        """Running requests are kept in this order, equal ones in order of admission; the lowest are served first."""
        ...

    def choose_victim(self, needy: Request, running: Sequence[Request], scheduled: Mapping[Request, object]) -> Request:
        """The running request that loses its blocks because `needy` needs one.

        Args:
            running: in order of rank; `needy` is among them, and may be chosen: then it waits again.
            scheduled: requests that are in the step being put together. One of them is taken out again if chosen.
        """
        ...

    def save(self, request: Request, block_ids: Mapping[int, int]) -> Sequence[BlockCopy]:
        """The victim's computed blocks are about to be reused: the copies to make first, none if nothing is kept.

        Args:
            block_ids: the blocks of its computed tokens: index in its block table -> block.
        """
        ...

    def restore(self, request: Request, block_ids: Mapping[int, int]) -> Sequence[BlockCopy]:
        """A preempted request is admitted again: the copies that bring what was saved of it into its new blocks.

        Args:
            block_ids: the blocks it holds now, index -> block. A saved one that has expired since is not among them.
        """
        ...

    def forget(self, request: Request) -> None:
        """A request has ended, or what was saved of it is not to be trusted: let go of that."""
        ...


class KVLayout(Protocol):
    """Which blocks a request keeps."""

    @property
    def expires(self) -> bool:
        """Whether any block ever does. If not, requests keep all the blocks that their tokens fill."""
        ...

    def expired(self, position: int) -> range:
        """Indices in a block table that no token at `position` or later attends to. It only grows with `position`,
        and always begins at the same index."""
        ...

    @property
    def peak_blocks(self) -> int | None:
        """Most blocks that a request of any length ever holds; None = there is no such limit."""
        ...


class DraftPolicy(Protocol):
    """Which tokens are guessed ahead. Whatever is guessed, the output stays what it would have been."""

    def propose(self, running: Sequence[Request]) -> float:
        """Give each running request its `draft` for the step to come, empty where guessing does not pay.

        Returns:
            Seconds it took; 0 if nothing was tried.
        """
        ...

    def reserve(self, step: Step) -> None:
        """Tokens only: the decodes are in the step, prompts are not; claim budget for drafts (`Step.add_draft`)."""
        ...

    def place(self, step: Step, append: Callable[[Request, int], bool]) -> None:
        """Blocks only: all requests have theirs; give drafts some of what is left, or drop them (`Step.drop_draft`).

        Args:
            append: BlockManager.append.
        """
        ...

    def observe(self, batch: ScheduledBatch, output: StepOutput) -> None:
        """A step is over: its output says which draft tokens were accepted."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended, or lost its blocks. It may come back."""
        ...


def no_rank(request: Request) -> int:
    """No request outranks another."""
    return 0


def first_come(request: Request) -> tuple[int, ...]:
    """First come, first served. A preempted request came before all that wait, so it is next."""
    return (request.arrival_index,)


class SortedQueue:
    """Smallest key first, ties first come, first served. O(log n) each; removal is lazy."""

    def __init__(self, key: Callable[[Request], tuple[int, ...]] = first_come) -> None:
        self._key = key
        self._heap: list[tuple[tuple[int, ...], int, Request]] = []
        self._waiting: dict[Request, None] = {}

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (self._key(request), request.arrival_index, request))
        self._waiting[request] = None

    def peek(self, num_running: int) -> Request | None:
        return self.first() if self._waiting else None

    def first(self) -> Request:
        """The one to admit next; a request is waiting."""
        while self._heap[0][-1] not in self._waiting:
            heapq.heappop(self._heap)  # it was removed earlier
        return self._heap[0][-1]

    def pop(self) -> Request:
        request = heapq.heappop(self._heap)[-1]
        del self._waiting[request]
        return request

    def remove(self, request: Request) -> None:
        del self._waiting[request]
        if len(self._heap) > 2 * len(self._waiting):  # most of it has left
            self._heap = [entry for entry in self._heap if entry[-1] in self._waiting]
            heapq.heapify(self._heap)

    def overdue(self, now: float) -> list[Request]:
        return []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._waiting, key=lambda request: (self._key(request), request.arrival_index)))


class Recompute:
    """The last request that is not in this step yet is preempted; its KV is dropped, to be computed again.

    A request in the step is preempted only for one of a lower rank. At worst the needy request is its own victim: then
    earlier preemptions in this step were unnecessary.
    """

    def __init__(self, rank: Callable[[Request], int] = no_rank) -> None:
        self.rank = rank

    def choose_victim(self, needy: Request, running: Sequence[Request], scheduled: Mapping[Request, object]) -> Request:
        own = self.rank(needy)
        return next(r for r in reversed(running) if r not in scheduled or self.rank(r) > own)

    def save(self, request: Request, block_ids: Mapping[int, int]) -> Sequence[BlockCopy]:
        return ()

    def restore(self, request: Request, block_ids: Mapping[int, int]) -> Sequence[BlockCopy]:
        raise ValueError(f"nothing was saved of {request.request_id}")

    def forget(self, request: Request) -> None:
        pass


class KeepAll:
    """Every token attends to all before it, so no block expires."""

    expires = False
    peak_blocks = None

    def expired(self, position: int) -> range:
        return range(0)


class NoDrafts:
    """Nothing is guessed."""

    def propose(self, running: Sequence[Request]) -> float:
        return 0.0

    def reserve(self, step: Step) -> None:
        pass

    def place(self, step: Step, append: Callable[[Request, int], bool]) -> None:
        pass

    def observe(self, batch: ScheduledBatch, output: StepOutput) -> None:
        pass

    def forget(self, request: Request) -> None:
        pass
