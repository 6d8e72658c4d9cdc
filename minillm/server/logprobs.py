"""Log-probabilities in the two shapes of OpenAI's API, and what a single token looks like as text."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from minillm.core.request import TokenLogprob
from minillm.frontend.detokenizer import REPLACEMENT, gpt2_bytes

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


def piece_bytes(piece: str) -> bytes | None:
    """The bytes of a vocabulary entry that is not text: `<0xE2>`, or GPT-2's letters for bytes."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return gpt2_bytes(piece)


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


def completion_logprobs(logprobs: Sequence[TokenLogprob], texts: TokenTexts, offset: int) -> dict[str, Any]:
    """`choices[].logprobs` of a completion.

    Args:
        offset: characters of the output before the first of these tokens.
    """
    tokens = [texts.look_up(entry.token_id)[0] for entry in logprobs]
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in logprobs],
        "top_logprobs": [{texts.look_up(t)[0]: p for t, p in entry.top.items()} for entry in logprobs],
        "text_offset": list(accumulate(map(len, tokens), initial=offset))[:-1],
    }
