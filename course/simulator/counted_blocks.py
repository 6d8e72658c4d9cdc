"""CountedBlocks: a pool for simulations that keep no prefix, in which nothing depends on which block is which."""

from collections.abc import Iterable, Sequence

from minillm.core.block_pool import BlockPool

ANY = 0
"""The number of every block."""


class CountedBlocks(BlockPool):
    """`num_blocks` KV blocks that are only counted: as many are free as of any other pool, and all are numbered alike.

    A table of a long prompt is then made and let go of in one go, block by block nothing is done. It can cache no
    prefix, so the block manager must not look for any.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(0)
        self._num_blocks = self._num_free = num_blocks

    def __len__(self) -> int:
        return self._num_blocks

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self._num_blocks - self._num_free

    def allocate(self, count: int) -> list[int]:
        if count > self._num_free:
            raise IndexError(f"{count} blocks wanted, {self._num_free} free")
        self._num_free -= count
        return [ANY] * count

    def release(self, block_ids: Sequence[int]) -> None:
        if len(block_ids) > self.num_used:
            raise ValueError(f"{len(block_ids)} blocks are released, but requests hold {self.num_used}")
        self._num_free += len(block_ids)

    def forget(self, block_ids: Iterable[int]) -> None:
        """No prefix is cached that could be forgotten."""
