"""Log-probabilities in the two shapes of OpenAI's API, and what a single token looks like as text.

A token isn't a piece of text: it can be a part of a character, or special and not shown at all, and two tokens can have
the same text. So /v1/completions, where the likeliest tokens are the keys of an object, needs names for them
(`token_names`), and where a token stands in the text has to be asked of a Detokenizer (`TextOffsets`).
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from minillm.core.request import TokenLogprob
from minillm.frontend.detokenizer import REPLACEMENT, Detokenizer, gpt2_bytes

SENTENCEPIECE_SPACE = "\u2581"
KEPT_TOKENS = 65_536


class TokenTexts:
    """Tokens one by one. A token can be a part of a character: then only its bytes are exact."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self.look_up = lru_cache(KEPT_TOKENS)(self._look_up)

    def _look_up(self, token_id: int) -> tuple[str, bytes]:
        """The token's text, with U+FFFD for what is no character, and its bytes."""
        if self._tokenizer is None:
            return f"<{token_id}>", b""
        piece = self._tokenizer.id_to_token(token_id) or ""
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if piece.startswith(SENTENCEPIECE_SPACE) and not text.startswith(" "):
            text = " " + text  # decoders of this kind drop the space at the start of a text
        if REPLACEMENT in text:
            return text, piece_bytes(piece) or text.encode()
        return text, text.encode()

    def offsets(self, prompt_token_ids: Sequence[int]) -> "TextOffsets":
        """Counts the offsets of one answer to this prompt."""
        return TextOffsets(Detokenizer(self._tokenizer, prompt_token_ids))


class TextOffsets:
    """Tells where the tokens of one answer begin in its text.

    Args:
        detokenizer: a new one, without stop strings.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._num_characters = 0
        """Characters of text so far, counting whole ones only."""

    def add(self, token_ids: Iterable[int]) -> list[int]:
        """The next tokens' offsets, in characters. A token that goes on with a character begins where that does."""
        return [self._add(token_id) for token_id in token_ids]

    def _add(self, token_id: int) -> int:
        released, unfinished = self._num_characters, self._detokenizer.unfinished
        new = self._detokenizer.add(token_id)
        self._num_characters += len(new)
        # Before it stands what is finished by now, also where that is U+FFFD because it didn't go on with a character.
        num_equal = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(unfinished, new))))
        return released + max(len(unfinished.rstrip(REPLACEMENT)), num_equal)


def piece_bytes(piece: str) -> bytes | None:
    """The bytes of a vocabulary entry that is not text: `<0xE2>`, or GPT-2's letters for bytes."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return gpt2_bytes(piece)


def token_names(token_ids: Iterable[int], texts: TokenTexts) -> dict[int, str]:
    """A name for each token, no two of them the same: its text; OpenAI's `bytes:\\xe2\\x80` for a part of a character,
    or where an earlier token has that text; or else vLLM's `token_id:7`."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for token_id in dict.fromkeys(token_ids):
        text, raw = texts.look_up(token_id)
        possible = [] if REPLACEMENT in text and text.encode() != raw else [text]
        if raw:
            possible.append("bytes:" + repr(raw)[2:-1])
        names[token_id] = next((name for name in possible if name not in taken), f"token_id:{token_id}")
        taken.add(names[token_id])
    return names


def chat_logprobs(logprobs: Sequence[TokenLogprob], texts: TokenTexts) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""
    content = []
    for entry in logprobs:
        top = [_chat_entry(token_id, logprob, texts) for token_id, logprob in entry.top.items()]
        content.append({**_chat_entry(entry.token_id, entry.logprob, texts), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _chat_entry(token_id: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    text, raw = texts.look_up(token_id)
    return {"token": text, "logprob": logprob, "bytes": list(raw)}


def completion_logprobs(
    logprobs: Sequence[TokenLogprob], texts: TokenTexts, text_offsets: Sequence[int]
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion. The sampled token is among `top_logprobs` in any case: there may be one
    more than was asked for.

    Args:
        text_offsets: where each token begins, in characters of the answer's text.
    """
    # The sampled token is named first: so its name doesn't depend on what else is reported.
    names = [token_names((entry.token_id, *entry.top), texts) for entry in logprobs]
    return {
        "tokens": [of_entry[entry.token_id] for of_entry, entry in zip(names, logprobs)],
        "token_logprobs": [entry.logprob for entry in logprobs],
        "top_logprobs": [
            {of_entry[token_id]: logprob for token_id, logprob in {**entry.top, entry.token_id: entry.logprob}.items()}
            for of_entry, entry in zip(names, logprobs)
        ],
        "text_offset": list(text_offsets),
    }
