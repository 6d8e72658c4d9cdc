LENGTHS = bytes([1] * 0x80 + [0] * 0x42 + [2] * 0x1E + [3] * 0x10 + [4] * 5 + [0] * 11)


def length_of(first):
    return LENGTHS[first]


def fits(place, first, byte):
    low = {0xE0: 0xA0, 0xF0: 0x90}.get(first, 0x80) if place == 1 else 0x80
    high = {0xED: 0x9F, 0xF4: 0x8F}.get(first, 0xBF) if place == 1 else 0xBF
    return low <= byte <= high


class TextStream:
    """A state machine: one byte at a time."""

    def __init__(self):
        self.open = []

    def append(self, token):
        out = []
        for byte in token:
            if self.open:
                if fits(len(self.open), self.open[0], byte):
                    self.open.append(byte)
                    if len(self.open) == LENGTHS[self.open[0]]:
                        out.append(bytes(self.open).decode())
                        self.open = []
                    continue
                out.append("\ufffd")
                self.open = []
            if LENGTHS[byte] == 0:
                out.append("\ufffd")
            elif LENGTHS[byte] == 1:
                out.append(chr(byte))
            else:
                self.open = [byte]
        return "".join(out)

    def finish(self):
        was_open, self.open = bool(self.open), []
        return "\ufffd" if was_open else ""
