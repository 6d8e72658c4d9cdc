"""Parked requests: those that will only decode for a while, and so need not be looked at in every step.

In each step a parked request reads its context and gets a token, like all the others. As its context grows by one token
a step, everything else is known beforehand: in which step it will need its next KV block (the same step out of every
`block_size`), and in which it will get its last token. So one step more, for all of them, is two sums.
"""

import bisect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from course.simulator.cost.roofline import StepWork
from minillm.core.block_pool import ROOT
from minillm.core.request import Request
from minillm.core.scheduler import Scheduler


@dataclass(slots=True, eq=False)
class Parked:
    """A request in the parking lot. Steps are counted from 0, in the order of their launches."""

    request: Request
    block_ids: list[int]
    """Its block table."""
    first: int
    """The first step it is parked in."""
    last: int
    """The step that yields its last token."""
    end: int
    """Its context length before the first, tokens."""
    prefix: bytes
    """The name of its last full block when it was parked."""
    num_told: int = 0
    """Tokens of its parked steps that it has been given."""

    def num_steps(self, until: int) -> int:
        """How many of the steps before this one it is in."""
        return min(until, self.last + 1) - self.first


class ParkingLot:
    """All parked requests, and what the next step does for them.

    Args:
        block_size: tokens of a KV block.
    """

    def __init__(self, block_size: int) -> None:
        self.next_step = 0
        """Steps that were launched."""
        self.count = 0
        """Parked requests that are in the next step: all but those whose last token is in one that was launched."""
        self.context = 0
        """Tokens that these attend to in it, their own new ones included."""
        self._block_size = block_size
        self._parked: dict[Request, Parked] = {}
        self._by_turn: list[dict[Parked, None]] = [{} for _ in range(block_size)]
        """By step, modulo the block size: those that need a block then."""
        self._by_last: defaultdict[int, list[Parked]] = defaultdict(list)
        self._by_prefix: defaultdict[bytes, dict[Parked, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._parked)

    def __iter__(self) -> Iterator[Parked]:
        return iter([*self._parked.values()])

    def find(self, request: Request) -> Parked | None:
        return self._parked.get(request)

    def add(self, parked: Parked) -> None:
        """Park a request from the next step on."""
        self._parked[parked.request] = parked
        self._by_turn[self._turn(parked)][parked] = None
        self._by_last[parked.last].append(parked)
        self._by_prefix[parked.prefix][parked] = None
        self.count += 1
        self.context += parked.end + 1

    def remove(self, parked: Parked) -> None:
        """Its tokens up to here are all that it gets here."""
        del self._parked[parked.request]
        del self._by_prefix[parked.prefix][parked]
        if not self._by_prefix[parked.prefix]:
            del self._by_prefix[parked.prefix]
        self._by_last[parked.last].remove(parked)
        if not self._by_last[parked.last]:
            del self._by_last[parked.last]
        if parked.last >= self.next_step:
            self._leave_step(parked)

    def launched(self, num_steps: int = 1) -> None:
        """So many steps were launched. None but the last may be the last of some parked request."""
        self.next_step += num_steps
        self.context += num_steps * self.count
        for parked in self._by_last.get(self.next_step - 1, ()):
            self._leave_step(parked)

    def _leave_step(self, parked: Parked) -> None:
        """It is not in the next step."""
        del self._by_turn[self._turn(parked)][parked]
        self.count -= 1
        self.context -= parked.end + 1 + self.next_step - parked.first

    def _turn(self, parked: Parked) -> int:
        """It needs a block in the step in which its table is full, and every block_size steps from then on."""
        room = len(parked.block_ids) * self._block_size - parked.end
        return (parked.first + room) % self._block_size

    def add_work(self, work: StepWork) -> None:
        """Add what the parked requests do in the next step."""
        work.tokens += self.count
        work.logits += self.count
        work.requests += self.count
        work.context += self.context
        work.pairs += self.context

    def in_need(self, step: int) -> Collection[Parked]:
        """Those that need a block in this step, if nothing changes before."""
        return self._by_turn[step % self._block_size]

    def ending(self, step: int) -> list[Parked]:
        """Those that get their last token in this step."""
        return [*self._by_last.get(step, ())]

    def next_ending(self) -> int:
        """The first step in which some get their last token; there are some."""
        return min(self._by_last)

    def continuing(self, prefixes: list[bytes]) -> list[Parked]:
        """Those that may have written something behind these prefixes, which are named as the block pool does."""
        if ROOT not in self._by_prefix and self._by_prefix.keys().isdisjoint(prefixes):
            return []
        return [parked for prefix in (ROOT, *prefixes) for parked in self._by_prefix.get(prefix, ())]

    def clear(self) -> None:
        """Forget all requests."""
        for parked in self:
            self.remove(parked)


class ParkingScheduler(Scheduler):
    """A scheduler some of whose running requests are parked: each takes a slot, and a token of every step it is in."""

    def __init__(self, like: Scheduler, lot: ParkingLot) -> None:
        super().__init__(like.config, like.kv, queue=like.waiting, preemption=like.preemption, drafts=like.drafts)
        self.lot = lot

    @property
    def num_running(self) -> int:
        return super().num_running + len(self.lot)

    def leave_budget(self) -> None:
        """Set `token_budget` to what the parked requests leave of the next step's."""
        self.token_budget = self.config.max_num_batched_tokens - self.lot.count

    def park(self, parked: Parked) -> None:
        """Take a running request out of sight."""
        self.running.remove(parked.request)
        self.lot.add(parked)

    def unpark(self, parked: Parked, key: Callable[[Request], Any]) -> None:
        """Put it back among the running ones, which are in the order of this key."""
        self.lot.remove(parked)
        bisect.insort(self.running, parked.request, key=key)
