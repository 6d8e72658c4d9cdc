# feedback: grows with
def length_of(first):
    if first <= 0x7F:
        return 1
    for length, low, high in ((2, 0xC2, 0xDF), (3, 0xE0, 0xEF), (4, 0xF0, 0xF4)):
        if low <= first <= high:
            return length
    return 0


class TextStream:
    def __init__(self):
        self.data = b""
        self.shown = 0

    def append(self, token):
        self.data += token
        text = self.data.decode("utf-8", errors="replace")
        kept = next((n for n in (1, 2, 3) if n <= len(self.data) and self._unfinished(self.data[-n:])), 0)
        stop = len(text) - (1 if kept else 0)
        new, self.shown = text[self.shown : stop], stop
        return new

    def finish(self):
        text = self.data.decode("utf-8", errors="replace")
        new, self.shown = text[self.shown :], len(text)
        return new

    def _unfinished(self, tail):
        """Whether these bytes begin a character that more bytes could complete."""
        if len(tail) >= length_of(tail[0]):
            return False
        narrow = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
        low, high = narrow.get(tail[0], (0x80, 0xBF))
        return (len(tail) < 2 or low <= tail[1] <= high) and all(0x80 <= byte <= 0xBF for byte in tail[2:])
