"""Holders in a dictionary; an id is made when it's first needed."""


class BlockPool:
    def __init__(self, num_blocks):
        self.holders, self.back, self.next, self.end = {}, set(), 0, num_blocks
        self.num_free = num_blocks

    def allocate(self, count):
        if count > self.num_free:
            raise IndexError
        out = []
        while len(out) < count:
            if self.back:
                b = self.back.pop()
            else:
                b, self.next = self.next, self.next + 1
            self.holders[b] = 1
            out.append(b)
        self.num_free -= count
        return out

    def share(self, block_ids):
        if not all(b in self.holders for b in block_ids):
            raise ValueError("free")
        for b in block_ids:
            self.holders[b] += 1

    def release(self, block_ids):
        if not all(b in self.holders for b in block_ids):
            raise ValueError("free")
        for b in block_ids:
            self.holders[b] -= 1
            if not self.holders[b]:
                del self.holders[b]
                self.back.add(b)
                self.num_free += 1
