# feedback: two orders are mixed up
from collections import OrderedDict


class EvictionOrder:
    order = OrderedDict()

    def __len__(self):
        return len(self.order)

    def evict(self, count):
        if count > len(self.order):
            raise IndexError(f"{count} blocks wanted, {len(self.order)} there")
        return [self.order.popitem(last=False)[0] for _ in range(count)]

    def release(self, block_ids):
        for block in block_ids:
            if block in self.order:
                raise ValueError(f"block {block} is free already")
        for block in reversed(block_ids):
            self.order[block] = None

    def revive(self, block_id):
        del self.order[block_id]
