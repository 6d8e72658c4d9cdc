import re


def field_of(line):
    found = re.fullmatch("([^:]*)(?:: ?(.*))?", line, re.DOTALL)
    return found[1], found[2] or ""


class EventParser:
    def __init__(self):
        self.pieces, self.skip, self.number = [], False, 0
        self.done, self.fields, self.current_id = False, [], ""

    def feed(self, chunk):
        return list(self.events(chunk))

    def events(self, chunk):
        for part in re.findall(rb"\r|\n|[^\r\n]+", chunk):
            if part == b"\n" and self.skip:
                self.skip = False
                continue
            self.skip = part == b"\r"
            if part not in (b"\r", b"\n"):
                self.pieces.append(part)
                continue
            line, self.pieces = b"".join(self.pieces), []
            if self.number == 0 and line.startswith(b"\xef\xbb\xbf"):
                line = line[3:]
            self.number += 1
            if line:
                self.fields.append(field_of(line.decode(errors="replace")))
                continue
            fields, self.fields = self.fields, []
            data = [value for name, value in fields if name == "data"]
            for name, value in fields:
                if name == "id" and "\0" not in value:
                    self.current_id = value
            kinds = [value for name, value in fields if name == "event"]
            if data == ["[DONE]"]:
                self.done = True
            if data and not self.done:
                kind = kinds[-1] if kinds and kinds[-1] else "message"
                yield {"id": self.current_id, "data": "\n".join(data), "event": kind}
