import codecs
import io


def field_of(line):
    if ":" not in line:
        return [line, ""]
    name, value = line.split(":", 1)
    return [name, value[1:] if value.startswith(" ") else value]


class EventParser:
    """A state machine over characters; Python decodes them, as they become whole."""

    def __init__(self):
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.characters = self.read()
        next(self.characters)
        self.done = False
        self.out = []

    def feed(self, chunk):
        for character in self.decode(chunk):
            self.characters.send(character)
        given, self.out = self.out, []
        return iter(given)

    def read(self):
        previous, line, begun = "", io.StringIO(), False
        event = {"data": None, "event": "", "id": ""}
        while True:
            character = yield
            if not begun:
                begun = True
                if character == "\ufeff":
                    continue
            if character == "\n" and previous == "\r":
                previous = ""
                continue
            previous = character
            if character not in "\r\n":
                line.write(character)
                continue
            text, line = line.getvalue(), io.StringIO()
            if text:
                self.note(event, *field_of(text))
            else:
                self.hand_out(event)

    def note(self, event, name, value):
        if name == "data":
            event["data"] = value if event["data"] is None else event["data"] + "\n" + value
        elif name == "event" or (name == "id" and "\x00" not in value):
            event[name] = value

    def hand_out(self, event):
        if event["data"] is not None and not self.done:
            self.done = event["data"] == "[DONE]"
            if not self.done:
                self.out.append({**event, "event": event["event"] or "message"})
        event["data"], event["event"] = None, ""
