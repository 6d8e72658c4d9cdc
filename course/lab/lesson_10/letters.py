"""From token ids to text: what each token is in bytes, what may be shown of it, and what that costs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course.lab.explorer import Explorer, slider
from course.lab.pictures.chart import Axis, Curve, draw_chart
from course.lab.style import ALARM, PHASE_COLOURS, WIDTH
from course.lab.svg import FAINT, INK, SOFT, Picture, rect, text
from minillm.frontend.detokenizer import REPLACEMENT, Detokenizer
from minillm.server.logprobs import TokenTexts

SAMPLE = "Café 🦜 says: 日本!"
HALFWAY = 5
"""Tokens of it that end inside a character."""
COLUMNS, BOX, ROW = 9, 76, 62
LENGTHS, SHORT_LENGTHS = (32, 64, 128, 256, 512, 1024, 2048), (32, 128, 512)


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
    return [Letter(i, texts.look_up(i)[1], texts.look_up(i)[0], growing.append([i])) for i in ids]


def step_through(tokenizer: Any, sample: str = SAMPLE) -> Explorer:
    """The sample with a handle: how many of its tokens have come."""
    letters = spell(tokenizer, sample)
    return Explorer(
        lambda come: draw_letters(letters, come),
        come=slider("tokens that have come", 1, len(letters), min(HALFWAY, len(letters))),
    )


def draw_letters(letters: Sequence[Letter], come: int) -> Picture:
    """Tokens as boxes with their bytes; below, what a reader sees by either way of decoding."""
    body = ""
    for i, letter in enumerate(letters):
        x, y = 8 + (BOX + 3) * (i % COLUMNS), 4 + ROW * (i // COLUMNS)
        is_here, broken = i < come, REPLACEMENT in letter.alone
        stroke = FAINT if not is_here else ALARM if broken else SOFT
        dash, wide = None if is_here else "3 2", 2 if i == come - 1 else 1
        body += rect(x, y, BOX, ROW - 8, fill="none", stroke=stroke, stroke_width=wide, stroke_dasharray=dash, rx=4)
        if is_here:
            body += text(x + 6, y + 14, f"{letter.token_id}", size=10, fill=SOFT)
            body += text(x + 6, y + 31, _visible(letter.alone), size=14)
            body += text(x + 6, y + 47, letter.raw[:4].hex(" ") + (" …" if len(letter.raw) > 4 else ""), size=10)
    naive, ours = shown(letters, come)
    held = sum(len(letter.raw) for letter in letters[:come]) - len(ours.encode())
    y = 16 + ROW * (-(-len(letters) // COLUMNS))
    rows = (
        ("each token decoded alone", naive, ALARM if REPLACEMENT in naive else INK),
        ("minillm: whole characters only", ours, PHASE_COLOURS["decode"]),
    )
    for name, line, fill in rows:
        body += text(8, y + 8, name, size=12, fill=SOFT) + text(214, y + 8, line, size=17, fill=fill)
        y += 30
    words = f"{held} bytes wait for the rest of their character" if held else "nothing waits"
    body += text(214, y, words, size=12, fill=SOFT)
    told = f"{come} of {len(letters)} tokens. Alone: {naive}. minillm: {ours}. {words}."
    return Picture("What may be shown of these tokens?", body, y + 8, WIDTH, told)


def shown(letters: Sequence[Letter], come: int) -> tuple[str, str]:
    """What a reader has before them after so many tokens: decoded one by one, and by minillm."""
    return "".join(each.alone for each in letters[:come]), "".join(each.released for each in letters[:come])


def _visible(characters: str) -> str:
    return characters.replace(" ", "␣").replace("\n", "⏎")[:7]


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
        growing.append([token_id])


@dataclass(frozen=True)
class Cost:
    """CPU seconds for a token of an answer, mean, by length of the answer."""

    lengths: tuple[int, ...]
    whole: tuple[float, ...]
    incremental: tuple[float, ...]

    @property
    def growth(self) -> tuple[float, float]:
        """From the shortest to the longest: how much dearer a token becomes, either way."""
        return self.whole[-1] / self.whole[0], self.incremental[-1] / self.incremental[0]


def cost(tokenizer: Any, sample: str, short: bool) -> Cost:
    """Measured on this machine, in CPU time, so that neighbours do not count."""
    lengths = SHORT_LENGTHS if short else LENGTHS
    ids = (tokenizer.encode(sample, add_special_tokens=False) * lengths[-1])[: lengths[-1]]
    incremental(tokenizer, ids[:16])
    both = [tuple(_per_token(way, tokenizer, ids[:n]) for n in lengths) for way in (whole_text, incremental)]
    return Cost(lengths, *both)


def _per_token(way: Callable[[Any, Sequence[int]], None], tokenizer: Any, ids: Sequence[int]) -> float:
    rounds, begun = max(1, 256 // len(ids)), time.thread_time()
    for _ in range(rounds):
        way(tokenizer, ids)
    return (time.thread_time() - begun) / rounds / len(ids)


def draw_cost(found: Cost) -> Picture:
    """A flat line, and one that grows with the answer."""
    whole, ours = found.growth
    return draw_chart(
        "What does it cost to turn one token into text?",
        [
            Curve("the whole text again at each token", found.lengths, [1e6 * c for c in found.whole], colour=ALARM),
            Curve(
                "a short window (minillm)",
                found.lengths,
                [1e6 * c for c in found.incremental],
                colour=PHASE_COLOURS["decode"],
            ),
        ],
        Axis("tokens in the answer", log=True),
        Axis("µs of CPU for a token, mean", log=True),
        description=f"The whole text again: ×{whole:.0f} from end to end of the chart. A short window: ×{ours:.1f}.",
    )
