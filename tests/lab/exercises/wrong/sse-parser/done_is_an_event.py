# feedback: it only says that the stream is over
import re


def field_of(line):
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


class EventParser:
    def __init__(self):
        self.done = False
        self.line = bytearray()  # of which the end has not come
        self.ended_in_cr = False
        self.is_first_line = True
        self.data, self.kind, self.last_id = [], "", ""

    def feed(self, chunk):
        if self.ended_in_cr and chunk.startswith(b"\n"):
            chunk, self.ended_in_cr = chunk[1:], False
        if not chunk:
            return []
        self.ended_in_cr = chunk.endswith(b"\r")
        *ended, rest = re.split(rb"\r\n|\r|\n", chunk)
        events = []
        for piece in ended:
            self.line += piece
            line, self.line = self.line.decode("utf-8", errors="replace"), bytearray()
            events += self._take(line)
        self.line += rest
        return events

    def _take(self, line):
        """One whole line: the event that it ends, if it ends one, in a list."""
        if self.is_first_line:
            self.is_first_line, line = False, line.removeprefix("\ufeff")
        if line == "":
            return self._end_event()
        name, value = field_of(line)
        if name == "data":
            self.data.append(value)
        elif name == "event":
            self.kind = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        return []

    def _end_event(self):
        event = {"event": self.kind or "message", "data": "\n".join(self.data), "id": self.last_id}
        is_event, self.data, self.kind = bool(self.data), [], ""
        over, self.done = self.done, self.done or (is_event and event["data"] == "[DONE]")
        return [event] if is_event and not over else []
