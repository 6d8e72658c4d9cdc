# %% [markdown]
# # 10 · Exercises: detok and stream
#
# Write your answer where the stub says so, run its cell, then run the check below it. A check says what you earned and
# what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="incremental-utf8"
# ## Bytes into text, without half characters
#
# *incremental-utf8 · lesson 10 · ●●○ · 30 minutes · 13 points*
#
# A model writes **tokens**, and with a byte-level vocabulary a token is a few bytes. In **UTF-8** a character takes one to four
# bytes, and a token may end in the middle of one. A client must never see half a character.
#
# The first byte says how many there are:
#
# | first byte | bytes in all | then |
# |---|---|---|
# | `00`–`7F` | 1 | |
# | `C2`–`DF` | 2 | one of `80`–`BF` |
# | `E0`–`EF` | 3 | two of `80`–`BF`; but after `E0` the next is `A0`–`BF`, after `ED` it is `80`–`9F` |
# | `F0`–`F4` | 4 | three of `80`–`BF`; but after `F0` the next is `90`–`BF`, after `F4` it is `80`–`8F` |
#
# No other byte begins a character. Bytes that are none become **U+FFFD** (`�`), the replacement character. How many, Python
# decides: **everything shown, together with what `finish()` gives, is `all_bytes.decode("utf-8", errors="replace")`.**
#
# Write
#
# - `length_of(first)`: how many bytes a character has that begins with this byte (0 to 255); 0 if none does.
# - a class `TextStream`, one for each answer:
#   - `append(token)`: takes the bytes of the next token (perhaps none), gives back the text that is **certain** now: a
#     character comes with the token that completes it, not later. A `�` comes only when it is sure that no character will
#     come of these bytes; and at the latest when a byte follows that begins another character.
#   - `finish()`: no more tokens will come: gives back what was held. Asked again, it gives `""`.
#
# A token's work must not grow with the length of the text. Python's own incremental decoder (in `codecs`) does all of this;
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
