"""A generator of characters, fed with single bytes."""


def length_of(first):
    return (
        1
        if first < 0x80
        else 2
        if 0xC2 <= first <= 0xDF
        else 3
        if 0xE0 <= first <= 0xEF
        else 4
        if 0xF0 <= first <= 0xF4
        else 0
    )


LOW = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


class TextStream:
    def __init__(self):
        self.part = []

    def _push(self, b):
        if self.part:
            lo, hi = LOW.get(self.part[0], (0x80, 0xBF)) if len(self.part) == 1 else (0x80, 0xBF)
            if lo <= b <= hi:
                self.part.append(b)
                if len(self.part) == length_of(self.part[0]):
                    text, self.part = bytes(self.part).decode(), []
                    yield text
                return
            self.part = []
            yield "\ufffd"
        n = length_of(b)
        if n == 1:
            yield chr(b)
        elif n == 0:
            yield "\ufffd"
        else:
            self.part = [b]

    def append(self, token):
        return "".join(c for b in token for c in self._push(b))

    def finish(self):
        left, self.part = self.part, []
        return "\ufffd" if left else ""
