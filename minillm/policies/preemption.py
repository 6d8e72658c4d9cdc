"""Preemption policies: which requests outrank others, and swap, which keeps the KV of a preempted request.

Swap decides here which host blocks are used; the runner does the copying.
"""

from collections.abc import Callable, Mapping, Sequence

from minillm.core.batch import BlockCopy
from minillm.core.request import Request
from minillm.core.seams import PreemptionPolicy, Recompute, no_rank
from minillm.policies.config import EngineConfig


class Swap(Recompute):
    """A preempted request's KV blocks move to host memory, and come back when it is admitted again.

    Where there is no room for all of them, it is computed again.

    Args:
        num_blocks: host blocks.
        rank: as in Recompute.
    """

    def __init__(self, num_blocks: int, rank: Callable[[Request], int]) -> None:
        super().__init__(rank)
        self.num_blocks = num_blocks
        self._num_touched = 0
        """Blocks that have ever held something, the first ones: a simulated host may have more than a list of them all
        has room for."""
        self._free: list[int] = []
        """Those of them that hold nothing now."""
        self._saved: dict[Request, dict[int, int]] = {}
        """Index in the block table -> host block."""

    def save(self, request: Request, block_ids: Mapping[int, int]) -> Sequence[BlockCopy]:
        if len(block_ids) > self.num_free:
            return ()
        missing = max(len(block_ids) - len(self._free), 0)
        self._free += range(self._num_touched, self._num_touched + missing)
        self._num_touched += missing
        self._saved[request] = host_ids = {index: self._free.pop() for index in block_ids}
        return [BlockCopy(block_ids[index], host_ids[index]) for index in block_ids]

    def restore(self, request: Request, block_ids: Mapping[int, int]) -> Sequence[BlockCopy]:
        # What has left a sliding window while it waited is not copied back.
        saved = self._saved[request]
        copies = [BlockCopy(host, block_ids[index]) for index, host in saved.items() if index in block_ids]
        self.forget(request)
        return copies

    def forget(self, request: Request) -> None:
        self._free.extend(self._saved.pop(request, {}).values())

    @property
    def num_free(self) -> int:
        """Host blocks that hold nothing."""
        return self.num_blocks - self._num_touched + len(self._free)


def priority_rank(request: Request) -> int:
    """The lowest number is served first and preempted last."""
    return request.priority


def make_preemption(config: EngineConfig, num_host_blocks: int) -> PreemptionPolicy:
    """The preemption policy that a configuration asks for."""
    rank = priority_rank if config.scheduling_order == "priority" else no_rank
    return Swap(num_host_blocks, rank) if config.preemption == "swap" else Recompute(rank)
