"""Host memory for the KV blocks of preempted requests (preemption="swap").

The scheduler decides here which host blocks are used; the runner does the copying.
"""

from minillm.core.batch import BlockCopy


class SwapSpace:
    """`num_blocks` host blocks. With none, nothing ever fits, and preemption means recomputing."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._held: dict[str, list[int]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def swap_out(self, request_id: str, block_ids: list[int]) -> list[BlockCopy] | None:
        """Find room for a request's device blocks; the copies to make, or None when there is no room."""
        if not block_ids or len(block_ids) > len(self._free):
            return None
        host_ids = [self._free.pop() for _ in block_ids]
        self._held[request_id] = host_ids
        return [BlockCopy(device, host) for device, host in zip(block_ids, host_ids)]

    def swap_in(self, request_id: str, block_ids: list[int]) -> list[BlockCopy]:
        """Copies that bring a request back into `block_ids`, the first blocks of its new table."""
        copies = [BlockCopy(host, device) for host, device in zip(self._held[request_id], block_ids)]
        self.drop(request_id)
        return copies

    def drop(self, request_id: str) -> None:
        """Give up a request's host blocks, if it has any."""
        self._free.extend(self._held.pop(request_id, ()))

    def check_integrity(self) -> None:
        held = [block for blocks in self._held.values() for block in blocks]
        assert sorted(held + self._free) == list(range(self.num_blocks)), "a host block leaked"
