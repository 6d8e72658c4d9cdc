import heapq
import itertools


class EvictionOrder:
    """A heap of stamps; one whose block was revived meanwhile is passed over when it comes up."""

    def __init__(self):
        self.heap = []
        self.stamp_of = {}
        self.clock = itertools.count()

    def __len__(self):
        return len(self.stamp_of)

    def release(self, block_ids):
        if not self.stamp_of.keys().isdisjoint(block_ids):
            raise ValueError("free already")
        for block in block_ids[::-1]:
            self.stamp_of[block] = next(self.clock)
            heapq.heappush(self.heap, (self.stamp_of[block], block))

    def revive(self, block_id):
        self.stamp_of.pop(block_id)

    def evict(self, count):
        if len(self) < count:
            raise IndexError(count)
        gone = []
        while len(gone) < count:
            stamp, block = heapq.heappop(self.heap)
            if self.stamp_of.get(block) == stamp:
                del self.stamp_of[block]
                gone.append(block)
        return tuple(gone)
