# feedback: is in use, and is given away
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
        for block in reversed(block_ids):
            self.order[block] = None
            self.order.move_to_end(block)

    def revive(self, block_id):
        self.order.move_to_end(block_id)
