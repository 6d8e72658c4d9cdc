# feedback: of one release they go by their numbers
class EvictionOrder:
    def __init__(self):
        self.clock = 0
        self.stamps = {}

    def __len__(self):
        return len(self.stamps)

    def evict(self, count):
        if count > len(self.stamps):
            raise IndexError(count)
        gone = sorted(self.stamps, key=lambda block: (self.stamps[block], block))[:count]
        for block in gone:
            del self.stamps[block]
        return gone

    def release(self, block_ids):
        if any(block in self.stamps for block in block_ids):
            raise ValueError(block_ids)
        self.clock += 1
        for block in block_ids:
            self.stamps[block] = self.clock

    def revive(self, block_id):
        del self.stamps[block_id]
