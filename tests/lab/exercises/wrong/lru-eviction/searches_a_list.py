# feedback: grows with their number
from collections import OrderedDict


class EvictionOrder:
    def __init__(self):
        self.order = []

    def __len__(self):
        return len(self.order)

    def evict(self, count):
        if count > len(self.order):
            raise IndexError(f"{count} blocks wanted, {len(self.order)} there")
        return [self.order.pop(0) for _ in range(count)]

    def release(self, block_ids):
        for block in block_ids:
            if self.order.count(block):
                raise ValueError(f"block {block} is free already")
        for block in reversed(block_ids):
            self.order.append(block)

    def revive(self, block_id):
        if block_id not in self.order:
            raise KeyError(block_id)
        self.order.remove(block_id)
