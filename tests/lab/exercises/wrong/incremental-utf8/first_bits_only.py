# feedback: 0xC0 and 0xC1
def length_of(first):
    if first <= 0x7F:
        return 1
    for length, low, high in ((2, 0xC0, 0xDF), (3, 0xE0, 0xEF), (4, 0xF0, 0xF4)):
        if low <= first <= high:
            return length
    return 0


class TextStream:
    def __init__(self):
        self.held = b""  # the beginning of a character

    def append(self, token):
        data = self.held + token
        kept = next((size for size in (1, 2, 3) if size <= len(data) and self._unfinished(data[-size:])), 0)
        self.held = data[len(data) - kept :]
        return data[: len(data) - kept].decode("utf-8", errors="replace")

    def finish(self):
        rest, self.held = self.held, b""
        return rest.decode("utf-8", errors="replace")

    def _unfinished(self, tail):
        """Whether these bytes begin a character that more bytes could complete."""
        if len(tail) >= length_of(tail[0]):
            return False
        narrow = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
        low, high = narrow.get(tail[0], (0x80, 0xBF))
        return (len(tail) < 2 or low <= tail[1] <= high) and all(0x80 <= byte <= 0xBF for byte in tail[2:])
