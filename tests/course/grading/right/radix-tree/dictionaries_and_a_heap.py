import heapq
import itertools


class RadixTree:
    """One node a token, as nested dictionaries; the heap holds every use, and old entries are passed over."""

    def __init__(self):
        self._root = {"next": {}, "up": None, "token": None, "used": 0}
        self._clock = itertools.count(1)
        self._heap, self._order = [], itertools.count()
        self._size = 0

    num_tokens = property(lambda self: self._size)

    def _walk(self, tokens, grow):
        now, node, found = next(self._clock), self._root, 0
        for token in tokens:
            below = node["next"].get(token)
            if below is None:
                if not grow:
                    break
                below = node["next"][token] = {"next": {}, "up": node, "token": token, "used": now}
                self._size += 1
            else:
                found += 1
            below["used"] = now
            node = below
        self._offer(node)
        return found

    def _offer(self, node):
        if node["up"] is not None and not node["next"]:
            heapq.heappush(self._heap, (node["used"], next(self._order), node))

    def match(self, tokens):
        return self._walk(tokens, grow=False)

    def insert(self, tokens):
        tokens = tuple(tokens)
        return len(tokens) - self._walk(tokens, grow=True)

    def evict(self, count):
        gone = 0
        while gone < count and self._size:
            used, _, node = heapq.heappop(self._heap)
            if node["next"] or node["used"] != used or node["up"]["next"].get(node["token"]) is not node:
                continue
            del node["up"]["next"][node["token"]]
            self._offer(node["up"])
            self._size -= 1
            gone += 1
        return gone
