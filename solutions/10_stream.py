# %% [markdown]
# # 10 · Exercises: detok and stream
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="incremental-utf8"
# ## Incremental UTF-8: no half characters
#
# *incremental-utf8 · lesson 10 · ●●○ · 30 minutes · 13 points*
#
# A model generates **tokens**, and with a byte-level vocabulary a token is a few bytes. In **UTF-8** a character takes one to
# four bytes, and a token may end in the middle of one. A client must never see half a character.
#
# The first byte says how many bytes the character has:
#
# | first byte | bytes in all | then |
# |---|---|---|
# | `00`–`7F` | 1 | |
# | `C2`–`DF` | 2 | one of `80`–`BF` |
# | `E0`–`EF` | 3 | two of `80`–`BF`; but after `E0` the next is `A0`–`BF`, after `ED` it is `80`–`9F` |
# | `F0`–`F4` | 4 | three of `80`–`BF`; but after `F0` the next is `90`–`BF`, after `F4` it is `80`–`8F` |
#
# No other byte starts a character. Invalid bytes become **U+FFFD** (`�`), the replacement character. Python decides how many: **everything shown, together with what `finish()` gives, is `all_bytes.decode("utf-8", errors="replace")`.**
#
# Write
#
# - `length_of(first)`: the length in bytes of a character that starts with this byte (0 to 255); 0 if none does.
# - a class `TextStream`, one for each answer:
#   - `append(token)`: takes the bytes of the next token (perhaps none) and returns the text that is now **certain**: a
#     character comes with the token that completes it, no later. A `�` comes only once these bytes can't become a
#     character any more, and at the latest with the first byte of the next one.
#   - `finish()`: no more tokens will come; return what was held back. A second call returns `""`.
#
# The work per token mustn't grow with the length of the text. Python's own incremental decoder (in `codecs`) does all of this;
# the point here is to know how.

# %% [markdown]
# **A worked example.** A parrot in three tokens, decoded one by one, and together:

# %%
tokens = [b"a \xf0\x9f", b"\xa6", b"\x9c!"]
print("each alone:", [token.decode(errors="replace") for token in tokens])
print("together:  ", b"".join(tokens).decode())
print("shown:     ", ["a ", "", "🦜!"])

# %% [markdown]
# `F0` promises four bytes. The first token brings two of them, the second a third: nothing to show. The third token brings the
# last one, and with it the parrot.
#
# **Now you.** `length_of` has one gap to fill; the stream is all yours.


# %% answer="incremental-utf8"
def length_of(first):
    if first <= 0x7F:
        return 1
    # [solution]
    for length, low, high in ((2, 0xC2, 0xDF), (3, 0xE0, 0xEF), (4, 0xF0, 0xF4)):
        if low <= first <= high:
            return length
    # [stub]
    # raise NotImplementedError("which first bytes begin a character of two, three, four bytes?")
    # [end]
    return 0


class TextStream:
    def __init__(self):
        self.held = b""  # the beginning of a character

    def append(self, token):
        # [solution]
        data = self.held + token
        kept = next((size for size in (1, 2, 3) if size <= len(data) and self._unfinished(data[-size:])), 0)
        self.held = data[len(data) - kept :]
        return data[: len(data) - kept].decode("utf-8", errors="replace")
        # [stub]
        # raise NotImplementedError("show what is certain, keep what may still become a character")
        # [end]

    def finish(self):
        # [solution]
        rest, self.held = self.held, b""
        return rest.decode("utf-8", errors="replace")
        # [stub]
        # raise NotImplementedError("no more bytes will come")
        # [end]

    # [solution]
    def _unfinished(self, tail):
        """Whether these bytes begin a character that more bytes could complete."""
        if len(tail) >= length_of(tail[0]):
            return False
        narrow = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
        low, high = narrow.get(tail[0], (0x80, 0xBF))
        return (len(tail) < 2 or low <= tail[1] <= high) and all(0x80 <= byte <= 0xBF for byte in tail[2:])

    # [stub]
    # [end]


# %%
check("incremental-utf8", length_of, TextStream)

# %% [markdown]
# **Your code reads a real vocabulary** (optional; loads the model's tokenizer). Each row is a token of the model, in bytes, and what your
# stream showed when it came.

# %%
from course.lab import Lab
from course.lessons.lesson_10.run import spell

letters = spell(Lab().tokenizer, "日本 🦜!")
# [solution]
stream = TextStream()
for letter in letters:
    print(f"{letter.raw.hex(' '):12} {stream.append(letter.raw)!r}")
print(f"{'finish()':12} {stream.finish()!r}")
# [stub]
# # stream = TextStream()
# # [stream.append(letter.raw) for letter in letters]
# [end]

# %% [markdown] exercise="sse-parser"
# ## A parser for server-sent events
#
# *sse-parser · lesson 10 · ●●● · 45 minutes · 18 points*
#
# Tokens travel as **server-sent events** (SSE): lines of text in one long HTTP answer. The network cuts that answer into **chunks**
# wherever it likes: in the middle of a line, of a character, of a line end. A client that takes a chunk for an event works on
# the developer's machine, and nowhere else. The rules (those of browsers):
#
# - The bytes are **UTF-8**; invalid bytes become U+FFFD. A byte order mark (`EF BB BF`) at the very beginning is dropped.
# - A **line** ends with LF, CR, or CR LF (together, one end), and with nothing else. A lone CR ends its line **immediately**; if the
#   next byte is an LF, in the next chunk perhaps, it belongs to that end.
# - A line is a **field**: name, colon, value. *One* space right after the colon is dropped. A line without a colon is a
#   name with an empty value. A line that starts with a colon is a comment.
# - `data` adds a line of data; several are joined with `"\n"`. `event` names the event. `id` sets the id, which **stays** for
#   later events until another arrives; an id that contains the character NUL is ignored. Other fields are ignored.
# - An **empty line** ends the event. It is emitted if it had at least one `data` line (even an empty one). An event without
#   a name, or with an empty one, is called `message`. The name doesn't carry over.
# - An event that is never ended is not emitted.
# - OpenAI's convention: an event whose data is `[DONE]` ends the stream. Neither it nor anything after it is emitted.
#
# Write
#
# - `field_of(line)`: the pair (name, value) of a line that is not empty, a str. (A comment's name is `""`.)
# - a class `EventParser`, one for each answer:
#   - `feed(chunk)`: takes the next bytes (perhaps none) and returns the list of events that they **complete**. An event is a dictionary of three strings: `{"event": "message", "data": "...", "id": ""}`.
#   - `done`: an attribute; True after `[DONE]`.
#
# The work must be proportional to the bytes: one long line in many small chunks, or many events in one chunk, may not take
# longer.

# %% [markdown]
# **A worked example.** Three chunks as they might arrive; what a naive client makes of each, and what was sent:

# %%
chunks = [
    b'data: {"text": "caf',
    "é".encode()[:1],
    "é".encode()[1:] + b'"}\r\n\r\n: keep-alive\r\n\r\ndata: [DONE]\r\n\r\n',
]
for chunk in chunks:
    print("a chunk:", chunk.decode(errors="replace").split("\r\n"))
print("sent:   ", b"".join(chunks).decode().split("\r\n"))

# %% [markdown]
# The first chunk has no whole line: `feed` gives `[]`. The second is half a character: `[]`. The third completes the first line, and
# the empty line behind it ends the event: `[{"event": "message", "data": '{"text": "café"}', "id": ""}]`. The comment is ignored, and
# the empty line after it ends an event without data: nothing. `[DONE]` sets `done`.
#
# **Now you.** `field_of` has one gap to fill; the parser is all yours.


# %% answer="sse-parser"
import re


def field_of(line):
    name, _, value = line.partition(":")
    # [solution]
    return name, value.removeprefix(" ")
    # [stub]
    # raise NotImplementedError("one space right after the colon is dropped")
    # [end]


class EventParser:
    def __init__(self):
        self.done = False
        # [solution]
        self.line = bytearray()  # of which the end has not come
        self.ended_in_cr = False
        self.is_first_line = True
        self.data, self.kind, self.last_id = [], "", ""
        # [stub]
        # # what has to survive from one chunk to the next?
        # [end]

    def feed(self, chunk):
        # [solution]
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
        # [stub]
        # raise NotImplementedError("lines that are complete; the rest waits for the next chunk")
        # [end]

    # [solution]
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
        if is_event and event["data"] == "[DONE]":
            self.done = True
        return [event] if is_event and not self.done else []

    # [stub]
    # [end]


# %%
check("sse-parser", field_of, EventParser)

# %% [markdown] exercise="cancellation"
# ## The client disconnects
#
# *cancellation · lesson 10 · ●●○ · 35 minutes · 14 points*
#
# People close tabs. A server that keeps decoding for them wastes slots, and one that forgets to free what the request
# held **leaks**: every closed tab costs a few KV blocks until none are left. One that frees them twice gives the same block
# to two requests.
#
# A server works in **steps**. `begin()` launches one on the accelerator; `end()` collects its results. Clients come and go
# in the meantime, so `cancel` may be called between two steps **or during one**. During a step the accelerator is still
# writing to the blocks of every request in it: they must not be freed before `end()`.
#
# Write a class `Server`:
#
# - `Server(pool, slots)`: `pool` is given. `pool.take(count)` returns a list of block ids, `pool.give_back(block_ids)` returns
#   them to the pool, `pool.free` says how many are left. Take no more than that.
# - `submit(name, prompt_blocks, answer_tokens)`: a request joins the end of the queue (both numbers are at least 1; names
#   are unique).
# - `begin()`: starts a step. First, requests are admitted in queue order, while there's a free slot and enough free blocks
#   for the first: `prompt_blocks + 1`, for its prompt and its answer, all taken now. (If the first doesn't fit, those
#   behind it wait too.) Returns the names of all requests in the step, in order of admission.
# - `end()`: ends it. For each request that took part, the step was **prefill** (its first `prompt_blocks` steps: one block of the prompt each) or
#   **decode** (one token). Returns the names of the requests that got a token, in the same order. A request
#   that has all its tokens frees its blocks and its slot.
# - `cancel(name)`: the client has disconnected. True if the request was alive: waiting, or running and not yet cancelled. It gets **no
#   more tokens**, and everything it held is freed **exactly once**: immediately between two steps, in `end()` during one. False,
#   with no effect, if it has finished, was already cancelled, or never existed.
#
# No other request may notice: the rest get their tokens as if it had finished on its own.

# %% [markdown]
# **A worked example.** A pool of 6 blocks, 2 slots. A and B have prompts of 2 blocks, C of 1:
#
# | | in the step | gets a token | free blocks |
# |---|---|---|---|
# | `submit` A, B, C | | | 6 |
# | `begin()` | A, B (C has no slot) | | 0 |
# | `cancel("A")`, during the step | | | **0**: the step writes into A's blocks |
# | `end()` | | none: that was prefill | 3: A's |
# | `begin()` | B, C | | 1 |
# | `end()` | | none: C's first step, B's second | 1 |
# | `cancel("A")`, once more: False | | | 1 |
# | `cancel("B")`, between two steps | | | **4**, at once |
# | `begin()`, `end()` | C | C | 4 |

# %% [markdown]
# **Now you.** `begin` is written, `end` has a gap to fill; `cancel` is all yours.


# %% answer="cancellation"
from collections import deque
from dataclasses import dataclass, field


@dataclass
class Request:
    name: str
    prompt_blocks: int
    answer_tokens: int
    blocks: list = field(default_factory=list)
    steps: int = 0
    has_left: bool = False


class Server:
    def __init__(self, pool, slots):
        self.pool, self.slots = pool, slots
        self.waiting = deque()
        self.running = []
        self.in_step = False

    def submit(self, name, prompt_blocks, answer_tokens):
        self.waiting.append(Request(name, prompt_blocks, answer_tokens))

    def begin(self):
        while self.waiting and len(self.running) < self.slots:
            if self.waiting[0].prompt_blocks + 1 > self.pool.free:
                break
            request = self.waiting.popleft()
            request.blocks = self.pool.take(request.prompt_blocks + 1)
            self.running.append(request)
        self.in_step = True
        return [request.name for request in self.running]

    def end(self):
        tokens = []
        self.in_step = False
        for request in list(self.running):
            request.steps += 1
            # [solution]
            decoded = request.steps - request.prompt_blocks
            if decoded > 0 and not request.has_left:
                tokens.append(request.name)
            if request.has_left or decoded == request.answer_tokens:
                self._let_go(request)
            # [stub]
            # raise NotImplementedError("does it get a token? Is it finished?")
            # [end]
        return tokens

    def cancel(self, name):
        # [solution]
        for request in self.waiting:
            if request.name == name:
                self.waiting.remove(request)
                return True
        for request in self.running:
            if request.name == name and not request.has_left:
                request.has_left = True
                if not self.in_step:
                    self._let_go(request)
                return True
        return False
        # [stub]
        # raise NotImplementedError("where is it, and what does it hold?")
        # [end]

    # [solution]
    def _let_go(self, request):
        """The one place where a request gives back what it holds."""
        self.running.remove(request)
        self.pool.give_back(request.blocks)

    # [stub]
    # [end]


# %%
check("cancellation", Server)
