"""Token ids to text, one token at a time, without ever showing half a character.

Three things make this harder than decoding each token alone:

- A character can span tokens. Byte-level vocabularies cut one emoji into up to four tokens, and
  decoding some of its bytes gives U+FFFD, the replacement character.
- A token's text depends on its left neighbour. SentencePiece-style decoders drop the space that
  starts a text, so "hello", decoded alone, has lost the space it has after "I say".
- A stop string can span tokens. Text that may be its beginning must wait.

The tokens of a byte-level vocabulary (GPT-2's, Llama 3's, Qwen's) are bytes, and their text is that of the bytes end
to end: Python's own incremental decoder does it, in a tenth of the time that the tokenizer would take.

For others the method is the two offsets of Hugging Face's text-generation-inference and of vLLM: decode a short
window of tokens, [prefix, end), whose head [prefix, read) has been released before and is there only
as left context; what the text has gained on that head is new. The window moves on with every
release, so a token costs the same however long the output is.
"""

import codecs
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 5
"""Prompt tokens decoded as left context of the first output token."""
SHOWN = ("<tool_call>", "</tool_call>")
"""Tags that are plain text in most vocabularies, and special tokens in some: a part of the output in all of them."""
MAX_PENDING_TOKENS = 4
"""A character is at most 4 bytes of UTF-8, and a token at least one: with 4 tokens the first character is over."""


class TextDecoder(Protocol):
    """The one method needed of a tokenizer; Hugging Face's `tokenizers` and `transformers` both have it."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class TokenBytes(dict[int, tuple[bytes, str, bytes]]):
    """The bytes of each token of a byte-level vocabulary, looked up when it first comes. Special tokens have none, but
    for those in SHOWN.

    With them, what they are as text where a character begins, and those at the end that only begin one.

    Args:
        tokenizer: a Tokenizer of the library `tokenizers`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = special_tokens(tokenizer) - set(SHOWN)

    def __missing__(self, token_id: int) -> tuple[bytes, str, bytes]:
        piece = self._tokenizer.id_to_token(token_id) or ""  # an id that it does not know leaves no trace
        text = b"" if piece in self._special else gpt2_bytes(piece) or piece.encode()
        return self.setdefault(token_id, (text, *decode_whole(text)))


def special_tokens(tokenizer: Any) -> set[str]:
    """Those that the library `tokenizers` leaves out of a text."""
    return {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}


@lru_cache(2)
def shown_tokens(tokenizer: Any) -> dict[int, str]:
    """The special tokens that are a part of the output all the same, by id."""
    if not hasattr(tokenizer, "get_added_tokens_decoder"):
        return {}
    return {tokenizer.token_to_id(tag): tag for tag in special_tokens(tokenizer).intersection(SHOWN)}


def decode_whole(text: bytes) -> tuple[str, bytes]:
    """The characters that are whole, and the bytes of the one that is not."""
    characters, num_bytes = codecs.utf_8_decode(text, "replace")
    return characters, text[num_bytes:]


@lru_cache(2)
def bytes_of(tokenizer: Any) -> TokenBytes | None:
    """The bytes of a tokenizer's tokens; None if its text is more than those of the tokens end to end."""
    decoder = getattr(tokenizer, "decoder", None)
    return TokenBytes(tokenizer) if type(decoder).__name__ == "ByteLevel" else None


def gpt2_bytes(piece: str) -> bytes | None:
    """The bytes of a vocabulary entry in GPT-2's letters for bytes; None if it is something else."""
    letters = gpt2_letters()
    return bytes(letters[c] for c in piece) if all(c in letters for c in piece) else None


@lru_cache(1)
def gpt2_letters() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the other 68 for letters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class Detokenizer:
    """The growing text of one output.

    For byte-level vocabularies everything released, in sum, is exactly `tokenizer.decode(all tokens)`.
    For SentencePiece-style ones it is the text as it continues the prompt, leading space included.
    """

    def __init__(
        self,
        tokenizer: TextDecoder | None,
        prompt_token_ids: Sequence[int],
        stop: tuple[str, ...] = (),
        min_tokens: int = 0,
    ) -> None:
        """
        Args:
            tokenizer: None for models without one (random weights): the text stays empty.
            prompt_token_ids: only the last few are read, as left context.
            stop: strings that end the text; neither they nor anything after them is released.
            min_tokens: a stop string counts if a later token than so many completes it, as in vLLM.
        """
        # The Rust tokenizer behind a transformers one: faster, and it never tidies up spaces, which
        # would change text already released.
        self._tokenizer: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._stop, self._min_tokens = stop, min_tokens
        self._bytes = bytes_of(self._tokenizer)
        self._shown = {} if self._bytes is not None else shown_tokens(self._tokenizer)
        self._cut = b""
        """The first bytes of a character, of tokens that are bytes."""
        self._window = [] if self._bytes is not None else list(prompt_token_ids[-CONTEXT_TOKENS:])
        self._window_text = self._decode(self._window) if tokenizer is not None and self._window else ""
        if self._window_text.endswith(REPLACEMENT):  # a prompt cut inside a character is no context
            self._window, self._window_text = [], ""
        self._read = len(self._window)
        """Tokens of the window whose text has been taken."""
        self._taken = len(self._window_text)
        """Characters of the window's text that have been taken."""
        self._held = ""
        """Taken, but not released: it may be the beginning of a stop string."""

        self.num_tokens = 0
        """Output tokens consumed. Less than were appended if a stop string matched before the last."""
        self.stopped_by: str | None = None
        """The stop string that matched; of several, the one that was complete first."""

    @property
    def unfinished(self) -> str:
        """Text that waits for the rest of a character, which is U+FFFD as long as it hasn't come. What waits because it
        may begin a stop string isn't part of it."""
        return self._cut.decode(errors="replace") or self._window_text[self._taken :]

    def add(self, token_id: int) -> str:
        """Take the next output token; return the text it releases, which may be "".

        Once a stop string has matched, tokens after the one that completed it are not consumed.
        """
        if self.stopped_by is not None:
            return ""
        self.num_tokens += 1
        if self._bytes is not None:
            piece, new, cut = self._bytes[token_id]
            if self._cut:
                new, cut = decode_whole(self._cut + piece)
            self._cut = cut
        else:
            new = "" if self._tokenizer is None else self._take(token_id)
        return self._release(new) if self._stop else new

    def finish(self) -> str:
        """No more tokens will come: return what was held back. A character cut short becomes U+FFFD."""
        if self.stopped_by is not None or self._tokenizer is None:
            return ""
        rest = self._release(self.unfinished)
        self._taken = len(self._window_text)
        held, self._held = self._held, ""
        return rest + held if self.stopped_by is None else rest

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def _take(self, token_id: int) -> str:
        """Move the window over one more token; return the text that is certain by now."""
        if token_id in self._shown:
            pending, self._taken = self._window_text[self._taken :], len(self._window_text)
            return pending + self._shown[token_id]
        text = self._decode([*self._window, token_id])
        if text == self._window_text and self._decode([token_id]) == "":
            return ""  # a special token, or an id the tokenizer does not know: it leaves no trace
        self._window.append(token_id)
        self._window_text = text
        unfinished = text.endswith(REPLACEMENT)
        if unfinished and len(self._window) - self._read < MAX_PENDING_TOKENS:
            return ""  # the next token may complete it

        # After so many tokens only the last U+FFFD can still become a character: the bytes before it
        # have been followed by too many others.
        new = text[self._taken : len(text) - unfinished]
        self._window = self._window[self._read :]
        self._read = len(self._window)
        self._window_text = self._decode(self._window)
        self._taken = len(self._window_text) - unfinished
        return new

    def _release(self, new: str) -> str:
        """Add new text; return what cannot become part of a stop string, or precedes the one that matched."""
        num_old, self._held = len(self._held), self._held + new
        # The match that was complete first, for it does not depend on how the text was cut into tokens. It ends in the
        # new text: one that ended before has stopped the output then, or came too early to.
        firsts = [(self._held.find(stop, max(num_old + 1 - len(stop), 0)), stop) for stop in self._stop]
        matches = [(at + len(stop), at, stop) for at, stop in firsts if at >= 0]
        if matches and self.num_tokens > self._min_tokens:
            _, at, self.stopped_by = min(matches)
            released, self._held = self._held[:at], ""
        else:
            kept = self._longest_beginning_of_a_stop()
            released, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return released

    def _longest_beginning_of_a_stop(self) -> int:
        """How many of the last held characters are the beginning of some stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
