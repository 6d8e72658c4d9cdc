# feedback: Half a character was shown
def length_of(first):
    if first <= 0x7F:
        return 1
    for length, low, high in ((2, 0xC2, 0xDF), (3, 0xE0, 0xEF), (4, 0xF0, 0xF4)):
        if low <= first <= high:
            return length
    return 0


class TextStream:
    def append(self, token):
        return token.decode("utf-8", errors="replace")

    def finish(self):
        return ""
