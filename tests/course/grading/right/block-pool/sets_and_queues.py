from collections import Counter, deque


class BlockPool:
    """Free ones wait in a queue; holders are counted only where there are any."""

    def __init__(self, num_blocks):
        self.queue = deque(range(num_blocks))
        self.holders = Counter()
        self.num_free = num_blocks

    def allocate(self, count):
        if self.num_free < count:
            raise IndexError
        given = tuple(self.queue.popleft() for _ in range(count))
        self.holders.update(given)
        self.num_free -= count
        return given

    def share(self, block_ids):
        if not all(self.holders[block] for block in block_ids):
            raise ValueError(block_ids)
        self.holders.update(block_ids)

    def release(self, block_ids):
        if any(self.holders[block] < 1 for block in block_ids):
            raise ValueError(block_ids)
        self.holders.subtract(block_ids)
        gone = [block for block in block_ids if not self.holders[block]]
        for block in gone:
            del self.holders[block]
        self.queue.extend(gone)
        self.num_free += len(gone)
