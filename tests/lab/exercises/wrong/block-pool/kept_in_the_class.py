# feedback: ANOTHER pool
class BlockPool:
    counts = {}

    def __init__(self, num_blocks):
        self.size = num_blocks

    @property
    def num_free(self):
        return self.size - len(self.counts)

    def allocate(self, count):
        if count > self.num_free:
            raise IndexError("too few")
        taken = [block for block in range(self.size) if block not in self.counts][:count]
        for block in taken:
            self.counts[block] = 1
        return taken

    def share(self, block_ids):
        for block in block_ids:
            self.counts[block] += 1

    def release(self, block_ids):
        for block in block_ids:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                del self.counts[block]
