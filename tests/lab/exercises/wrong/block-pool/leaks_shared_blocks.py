# feedback: leaks
class BlockPool:
    def __init__(self, num_blocks):
        self.counts = [0] * num_blocks
        self.free = list(range(num_blocks))
        self.ever_shared = set()

    @property
    def num_free(self):
        return len(self.free)

    def allocate(self, count):
        if count > len(self.free):
            raise IndexError("too few")
        taken = [self.free.pop() for _ in range(count)]
        for block in taken:
            self.counts[block] = 1
        return taken

    def share(self, block_ids):
        self.must_be_held(block_ids)
        for block in block_ids:
            self.counts[block] += 1
            self.ever_shared.add(block)

    def release(self, block_ids):
        self.must_be_held(block_ids)
        for block in block_ids:
            self.counts[block] -= 1
            if self.counts[block] == 1:
                continue
            if self.counts[block] == 0 and block not in self.ever_shared:
                self.free.append(block)

    def must_be_held(self, block_ids):
        for block in block_ids:
            if self.counts[block] == 0:
                raise ValueError("nobody holds it")
