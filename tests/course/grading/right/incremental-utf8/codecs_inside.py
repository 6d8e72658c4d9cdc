import codecs

Decoder = codecs.getincrementaldecoder("utf-8")


def length_of(first):
    if first < 128:
        return 1
    for n in (2, 3, 4):
        for second in (0x80, 0x90, 0xA0):
            try:
                (bytes([first, second]) + b"\x80\x80")[:n].decode()
                return n
            except UnicodeDecodeError:
                pass
    return 0


class TextStream:
    def __init__(self):
        self.decoder = Decoder("replace")

    def append(self, token):
        return self.decoder.decode(token)

    def finish(self):
        rest = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        return rest
