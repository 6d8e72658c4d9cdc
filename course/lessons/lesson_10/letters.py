"""From token ids to text: what each token is in bytes, what may be shown of it, and what that costs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course.lab.display import Html, as_table
from course.lab.style import seconds
from minillm.frontend.detokenizer import Detokenizer
from minillm.server.logprobs import TokenTexts

SAMPLE = "Café 🦜 says: 日本!"
LENGTHS, SHORT_LENGTHS = (32, 128, 512, 2048), (32, 128, 512)


@dataclass(frozen=True)
class Letter:
    """One token on its way to a screen."""

    token_id: int
    raw: bytes
    alone: str
    """The token decoded by itself: U+FFFD where it is no whole character."""
    released: str
    """What minillm's detokenizer lets out at this token."""


def spell(tokenizer: Any, sample: str = SAMPLE) -> list[Letter]:
    """A text, token by token."""
    ids = tokenizer.encode(sample, add_special_tokens=False)
    texts, growing = TokenTexts(tokenizer), Detokenizer(tokenizer, [])
    return [Letter(i, texts.look_up(i)[1], texts.look_up(i)[0], growing.add(i)) for i in ids]


def letters_table(letters: Sequence[Letter]) -> Html:
    """A row a token: its bytes, what it is by itself, and what minillm lets out when it comes."""
    rows = [(str(each.token_id), each.raw.hex(" "), repr(each.alone), repr(each.released)) for each in letters]
    return as_table(("token", "bytes", "decoded alone", "minillm shows"), rows)


# ---------------------------------------------------------------- what it costs


def whole_text(tokenizer: Any, ids: Sequence[int]) -> None:
    """Decode all that there is, at each token, and show what is new."""
    decode = getattr(tokenizer, "backend_tokenizer", tokenizer).decode
    for i in range(len(ids)):
        decode(ids[: i + 1])


def incremental(tokenizer: Any, ids: Sequence[int]) -> None:
    """As the engine does."""
    growing = Detokenizer(tokenizer, [])
    for token_id in ids:
        growing.add(token_id)


def cost(tokenizer: Any, sample: str, short: bool) -> dict[int, tuple[float, float]]:
    """CPU seconds for a token of an answer, mean, by the answer's length: the whole text again, and as minillm does.

    Measured on this machine, in CPU time, so that neighbours do not count.
    """
    lengths = SHORT_LENGTHS if short else LENGTHS
    ids = (tokenizer.encode(sample, add_special_tokens=False) * lengths[-1])[: lengths[-1]]
    incremental(tokenizer, ids[:16])
    return {n: tuple(_per_token(way, tokenizer, ids[:n]) for way in (whole_text, incremental)) for n in lengths}


def _per_token(way: Callable[[Any, Sequence[int]], None], tokenizer: Any, ids: Sequence[int]) -> float:
    rounds, begun = max(1, 256 // len(ids)), time.thread_time()
    for _ in range(rounds):
        way(tokenizer, ids)
    return (time.thread_time() - begun) / rounds / len(ids)


def cost_table(found: Mapping[int, tuple[float, float]]) -> Html:
    """One price that grows with the answer, and one that does not."""
    rows = [(str(length), seconds(whole), seconds(window)) for length, (whole, window) in found.items()]
    return as_table(("tokens in the answer", "a token, the whole text again", "a token, as minillm does it"), rows)
