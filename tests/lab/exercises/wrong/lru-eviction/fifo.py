# feedback: that is FIFO
from collections import OrderedDict


class EvictionOrder:
    def __init__(self):
        self.order = OrderedDict()
        self.stamps = {}
        self.clock = 0

    def __len__(self):
        return len(self.order)

    def evict(self, count):
        if count > len(self.order):
            raise IndexError(f"{count} blocks wanted, {len(self.order)} there")
        gone = [self.order.popitem(last=False)[0] for _ in range(count)]
        for block in gone:
            del self.stamps[block]
        return gone

    def release(self, block_ids):
        for block in block_ids:
            if block in self.order:
                raise ValueError(f"block {block} is free already")
        for block in reversed(block_ids):
            self.clock += 1
            self.stamps.setdefault(block, self.clock)
            self.order[block] = None
        self.order = OrderedDict.fromkeys(sorted(self.order, key=self.stamps.get))

    def revive(self, block_id):
        del self.order[block_id]
