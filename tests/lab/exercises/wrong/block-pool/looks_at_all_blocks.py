# feedback: grows with the pool
class BlockPool:
    def __init__(self, num_blocks):
        self.counts = [0] * num_blocks
        self.free = list(range(num_blocks))

    @property
    def num_free(self):
        return len(self.free)

    def allocate(self, count):
        if count > len(self.free):
            raise IndexError("too few")
        taken = [block for block, holders in enumerate(self.counts) if holders == 0][:count]
        gone = set(taken)
        self.free = [block for block in self.free if block not in gone]
        for block in taken:
            self.counts[block] = 1
        return taken

    def share(self, block_ids):
        self.must_be_held(block_ids)
        for block in block_ids:
            self.counts[block] += 1

    def release(self, block_ids):
        self.must_be_held(block_ids)
        for block in block_ids:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.free.append(block)

    def must_be_held(self, block_ids):
        for block in block_ids:
            if self.counts[block] == 0:
                raise ValueError("nobody holds it")
