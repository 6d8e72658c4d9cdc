# feedback: whole are held back
def length_of(first):
    if first <= 0x7F:
        return 1
    for length, low, high in ((2, 0xC2, 0xDF), (3, 0xE0, 0xEF), (4, 0xF0, 0xF4)):
        if low <= first <= high:
            return length
    return 0


class TextStream:
    def __init__(self):
        self.held = b""

    def append(self, token):
        text = (self.held + token).decode("utf-8", errors="replace")
        if text.endswith("\ufffd"):
            self.held += token
            return ""
        self.held = b""
        return text

    def finish(self):
        rest, self.held = self.held, b""
        return rest.decode("utf-8", errors="replace")
