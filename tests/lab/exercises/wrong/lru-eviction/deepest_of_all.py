# feedback: depth only within one release
from collections import OrderedDict


class EvictionOrder:
    def __init__(self):
        self.order = OrderedDict()  # block id -> None; the next to go is the first

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
        for depth in range(len(block_ids) - 1, -1, -1):
            self.order[block_ids[depth]] = depth
        self.order = OrderedDict(sorted(self.order.items(), key=lambda item: -item[1]))

    def revive(self, block_id):
        del self.order[block_id]
