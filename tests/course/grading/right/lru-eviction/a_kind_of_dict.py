class EvictionOrder(dict):
    revive = dict.pop

    def release(self, block_ids):
        if self.keys() & set(block_ids):
            raise ValueError("free already")
        self.update((block, block) for block in reversed(block_ids))

    def evict(self, count):
        if len(self) < count:
            raise IndexError(count)
        return [self.pop(next(iter(self))) for _ in range(count)]
