"""The pool of KV blocks: reference counts, a free list in eviction order, and the prefix index.

A block is free when nobody holds it, but a free block may still *cache* a prefix: its hash stays in
the index until somebody else is given the block. So the cache costs no memory that a request wants.

The free list is a doubly linked list threaded through the blocks themselves (vLLM v1's block_pool):
taking a block out of its middle, when a request hits it, is O(1), and so is LRU order.
"""

from collections.abc import Iterable, Sequence


class Block:
    """One KV block of `block_size` token positions. `block_id` is its index in the KV tensors."""

    __slots__ = ("block_id", "hash", "next", "prev", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.hash: bytes | None = None
        self.prev: Block | None = None
        self.next: Block | None = None


class FreeList:
    """Free blocks in the order they will be handed out. All operations are O(1)."""

    def __init__(self) -> None:
        # Two sentinels, so that no operation needs a special case for an end of the list.
        self._head, self._tail = Block(-1), Block(-1)
        self._head.next, self._tail.prev = self._tail, self._head
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self):
        block = self._head.next
        while block is not self._tail:
            yield block
            block = block.next

    def push_back(self, block: Block) -> None:
        self._insert(self._tail.prev, block, self._tail)

    def push_front(self, block: Block) -> None:
        self._insert(self._head, block, self._head.next)

    def pop_front(self) -> Block:
        block = self._head.next
        if block is self._tail:
            raise IndexError("the free list is empty")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        block.prev.next, block.next.prev = block.next, block.prev
        block.prev = block.next = None
        self._length -= 1

    def _insert(self, before: Block, block: Block, after: Block) -> None:
        block.prev, block.next = before, after
        before.next = after.prev = block
        self._length += 1


class BlockPool:
    """`num_blocks` KV blocks, each free or held by one or more requests."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.free_list = FreeList()
        for block in self.blocks:
            self.free_list.push_back(block)
        self.index: dict[bytes, Block] = {}
        """Prefix index: hash of a full block (and all before it) -> the block that holds it."""

    @property
    def num_free(self) -> int:
        return len(self.free_list)

    @property
    def num_used(self) -> int:
        return len(self.blocks) - len(self.free_list)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, least recently used first; whatever prefix they cached is forgotten.

        Raises:
            IndexError: fewer are free. Callers check `num_free` first.
        """
        if count > self.num_free:
            raise IndexError(f"{count} blocks wanted, {self.num_free} free")
        taken = []
        for _ in range(count):
            block = self.free_list.pop_front()
            self._forget(block)
            block.ref_count = 1
            taken.append(block.block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One more holder for each block: a prefix hit. Free ones leave the free list."""
        for block_id in block_ids:
            block = self.blocks[block_id]
            if block.ref_count == 0:
                self.free_list.remove(block)
            block.ref_count += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One holder less for each block of a block table, given in table order.

        Blocks are freed last to first, so that the tail of a sequence is evicted before its head: a
        prefix is only useful while everything before it is still there. Blocks that cache nothing
        go to the front, to be handed out before any that might be hit.
        """
        for block_id in reversed(block_ids):
            block = self.blocks[block_id]
            if block.ref_count <= 0:
                raise ValueError(f"block {block_id} is released but nobody holds it")
            block.ref_count -= 1
            if block.ref_count == 0:
                (self.free_list.push_front if block.hash is None else self.free_list.push_back)(block)

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Enter a full block in the prefix index. If an equal block is there already, it stays the one."""
        if block_hash not in self.index:
            self.index[block_hash] = self.blocks[block_id]
            self.blocks[block_id].hash = block_hash

    def find(self, block_hash: bytes) -> int | None:
        """The block that caches this prefix, or None."""
        block = self.index.get(block_hash)
        return None if block is None else block.block_id

    def forget(self, block_ids: Iterable[int]) -> None:
        """Take some blocks out of the prefix index. Requests keep the blocks they hold."""
        for block_id in block_ids:
            self._forget(self.blocks[block_id])

    def forget_prefixes(self) -> None:
        """Empty the prefix index. Requests keep the blocks they hold."""
        self.forget([block.block_id for block in self.index.values()])

    def _forget(self, block: Block) -> None:
        if block.hash is not None:
            del self.index[block.hash]
            block.hash = None

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless counts, free list and index agree with the block tables in use."""
        holders = [0] * len(self.blocks)
        for table in tables:
            assert len(set(table)) == len(table), f"a table holds a block twice: {table}"
            for block_id in table:
                holders[block_id] += 1
        for block, count in zip(self.blocks, holders):
            assert block.ref_count == count, f"block {block.block_id}: {block.ref_count} counted, {count} holders"
        free = [block.block_id for block in self.free_list]
        assert len(free) == len(set(free)) == len(self.free_list), "the free list is broken"
        assert set(free) == {i for i, count in enumerate(holders) if count == 0}, "free list and counts disagree"
        for block_hash, block in self.index.items():
            assert block.hash == block_hash, f"block {block.block_id} is indexed under a hash it does not have"
        hashed = sum(block.hash is not None for block in self.blocks)
        assert hashed == len(self.index), "a block has a hash that the index does not know"
