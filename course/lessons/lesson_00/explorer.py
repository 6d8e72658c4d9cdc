"""How a model answers, stepped through by hand: what each step computes, with and without keys and values kept."""

from dataclasses import dataclass

from course.lab.explorer import Explorer, slider, switch
from course.lab.style import ALARM, TINT_INK, WIDTH
from course.lab.svg import HALO, INK, SOFT, Picture, phase_fill, rect, tag, text

PROMPT = ("The", " sun", " rises", " in", " the")
ANSWER = (" sky", ",", " casting", " a", " golden", " glow")
"""What SmolLM2-135M answers, greedily; one string a token."""
TOKENS = PROMPT + ANSWER
CELL, BOX = 65.0, 60.0
ROW, KV, BARS = 24.0, 88.0, 152.0
"""Where the rows stand: the tokens, their keys and values, and the work so far."""


@dataclass(frozen=True)
class ModelStep:
    """One pass through the model; number 0 is before the first."""

    number: int
    keeps: bool
    """Whether keys and values of earlier steps are kept."""

    @property
    def seen(self) -> int:
        """Tokens that there are when it begins."""
        return len(PROMPT) + max(self.number - 1, 0)

    @property
    def computed(self) -> range:
        """The tokens that it computes, by their place."""
        if self.number == 0:
            return range(0)
        return range(self.seen - 1 if self.keeps and self.number > 1 else 0, self.seen)

    @property
    def work(self) -> int:
        """Tokens computed by this step and all before it."""
        return sum(len(ModelStep(number, self.keeps).computed) for number in range(1, self.number + 1))

    @property
    def told(self) -> str:
        num, kept = len(self.computed), self.seen - len(self.computed)
        if self.number == 0:
            return f"The prompt has arrived: {self.seen} tokens. Nothing has been computed yet."
        came = f"Out comes “{TOKENS[self.seen].strip()}”."
        if self.number == 1:
            return f"Step 1 computes all {num} prompt tokens together. That's prefill. {came}"
        last = TOKENS[self.seen - 1].strip()
        if self.keeps:
            told = f"Step {self.number} computes only “{last}” and reads {kept} stored keys and values."
            return f"{told} That's decode. {came}"
        return f"Nothing was kept, so step {self.number} computes “{last}” and {num - 1} earlier tokens again. {came}"


def draw_step(step: int, keep: bool) -> Picture:
    """Tokens, their keys and values, and the work so far, as one step sees them."""
    at = ModelStep(step, keep)
    phase = "prefill" if step == 1 else "decode"
    body = text(4, ROW - 10, "the text so far, one box per token", size=11, fill=SOFT)
    body += text(4, KV - 10, "a key (K) and a value (V) per token, in every layer", size=11, fill=SOFT)
    there = at.seen + (step > 0)
    for place, word in enumerate(TOKENS):
        x, now = 4 + CELL * place, place in at.computed
        again = now and not keep and step > 1 and place < at.seen - 1
        body += _token(x, word.strip() if place < there else "", now, place == at.seen and step > 0, phase)
        body += _kv(x, now, again, place < at.seen and step > 0 and not now, phase)
    if step:
        body += _output(at)
    body += text(4, KV + 48, at.told, size=12, font_weight="bold")
    body += _bars(step, keep)
    return Picture("What does each step compute?", body, BARS + 54, description=at.told)


def _token(x: float, word: str, now: bool, new: bool, phase: str) -> str:
    look = {"fill": phase_fill(phase)} if now else {"fill": "none", "stroke": INK if word else SOFT}
    if not word:
        look |= {"stroke_dasharray": "3 3", "stroke_opacity": 0.6}
    drawn = rect(x, ROW, BOX, 26, rx=4, **look, stroke_width=2.5 if new else 1)
    return drawn + text(
        x + BOX / 2,
        ROW + 17,
        word,
        text_anchor="middle",
        fill="#ffffff" if now else INK,
        font_weight="bold" if new else None,
    )


def _kv(x: float, now: bool, again: bool, kept: bool, phase: str) -> str:
    drawn = ""
    for i, letter in enumerate("KV"):
        left = x + 31 * i
        if now:
            look = {"fill": phase_fill(phase), "stroke": ALARM if again else None, "stroke_width": 3 if again else None}
        elif kept:
            look = {"fill": "#BAC9F6"}
        else:
            look = {"fill": "none", "stroke": SOFT, "stroke_dasharray": "3 3", "stroke_opacity": 0.6}
        drawn += rect(left, KV, 28, 22, rx=3, **look)
        if now or kept:
            ink = "#ffffff" if now else TINT_INK
            drawn += text(left + 14, KV + 15, letter, size=11, text_anchor="middle", fill=ink)
    return drawn


def _output(at: ModelStep) -> str:
    """An arrow from the last token that was computed to the one it yields."""
    x = 4 + CELL * (at.seen - 1) + BOX / 2
    arrow = f"M{x} {ROW - 2}q{CELL / 2} -16 {CELL - 3} -1m-7 -6l7 6l-8 3"
    return tag("path", d=arrow, fill="none", stroke=INK, stroke_width=1.5)


def _bars(step: int, keep: bool) -> str:
    """Tokens computed so far, both ways."""
    most = ModelStep(len(ANSWER), False).work
    drawn = ""
    for row, (keeps, name) in enumerate(((True, "keeping K and V"), (False, "keeping nothing"))):
        y, work = BARS + 26 * row, ModelStep(step, keeps).work
        wide = (WIDTH - 290) * work / most
        drawn += text(4, y + 14, name, font_weight="bold" if keeps == keep else None)
        drawn += rect(
            120,
            y,
            wide,
            18,
            rx=3,
            fill=phase_fill("decode") if keeps else ALARM,
            fill_opacity=1 if keeps == keep else 0.35,
        )
        drawn += text(126 + wide, y + 14, f"{work} tokens computed so far", size=11.5, **HALO)
    return drawn


def step_through() -> Explorer:
    """Move the slider from step to step; then do without the cache."""
    return Explorer(draw_step, step=slider("step", 0, len(ANSWER), 1), keep=switch("keep keys and values", True))
