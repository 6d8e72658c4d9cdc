"""A node for each token, and a heap of ends to evict from."""

import heapq


class Node:
    __slots__ = ("t", "up", "kids", "used")

    def __init__(self, t, up, used):
        self.t, self.up, self.kids, self.used = t, up, {}, used


class RadixTree:
    """One node per token."""

    def __init__(self):
        self.top = Node(None, None, 0)
        self.now = 0
        self.size = 0

    @property
    def num_tokens(self):
        return self.size

    def _go(self, tokens, make):
        self.now += 1
        n, found, new = self.top, 0, 0
        for t in tokens:
            k = n.kids.get(t)
            if k is None:
                if not make:
                    break
                k = n.kids[t] = Node(t, n, self.now)
                new += 1
            k.used = self.now
            n = k
            found += 1
        self.size += new
        return found, new

    def insert(self, tokens):
        return self._go(tokens, True)[1]

    def match(self, tokens):
        return self._go(tokens, False)[0]

    def _leaves(self):
        todo = [self.top]
        while todo:
            n = todo.pop()
            todo += n.kids.values()
            if not n.kids and n.up:
                yield n

    def evict(self, count):
        gone = 0
        heap = [(n.used, id(n), n) for n in self._leaves()]
        heapq.heapify(heap)
        while heap and gone < count:
            _, _, n = heapq.heappop(heap)
            del n.up.kids[n.t]
            gone += 1
            if not n.up.kids and n.up.up:
                heapq.heappush(heap, (n.up.used, id(n.up), n.up))
        self.size -= gone
        return gone
