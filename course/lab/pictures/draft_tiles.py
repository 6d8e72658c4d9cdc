"""Draft and verify as tiles: one verification at a time, with a slider; beside it the same text without."""

from collections.abc import Mapping

from course.lab.draft_story import DraftStep, DraftStory
from course.lab.explorer import Explorer, buttons, player, slider
from course.lab.style import ALARM, COLOURS, WIDTH
from course.lab.svg import FAINT, INK, PAPER, SOFT, Picture, line, rect, text

PASSED, OWN = COLOURS[0], COLOURS[4]
LEFT, TILE, GAP = 118, 30, 5
LINE_CHARACTERS = 92
FRAME_MS = 700


class StoryPlayer(Explorer):
    """A slider over the steps of an answer, and a button that plays them.

    Args:
        told: by name, an answer with drafts and the same one without.
    """

    def __init__(self, told: Mapping[str, tuple[DraftStory, DraftStory]]) -> None:
        self.told = told
        first = next(iter(told.values()))[0]
        super().__init__(
            self._draw_step,
            answer=buttons("answer", list(told)),
            step=slider("step", 1, len(first.steps), _telling(first)),
        )
        self._play = player(self.controls["step"], FRAME_MS)
        self.controls["answer"].observe(lambda change: self._turn_to(self.told[change["new"]][0]), names="value")
        self.widget.children = (self._play, *self.widget.children)

    def _turn_to(self, story: DraftStory) -> None:
        """Another answer has another number of steps."""
        for control in (self._play, self.controls["step"]):
            control.max = len(story.steps)
        self.controls["step"].value = _telling(story)

    def _draw_step(self, answer: str, step: int) -> Picture:
        story, plain = self.told[answer]
        return draw_step(story, plain, min(step, len(story.steps)))  # the slider follows an answer after its picture


def _telling(story: DraftStory) -> int:
    """The step that shows most: where a guess passed and another failed; else one with guesses; else the first."""
    both = (i for i, step in enumerate(story.steps, 1) if step.corrects and step.passed)
    guessed = (i for i, step in enumerate(story.steps, 1) if step.drafted)
    return next(both, next(guessed, 1))


def draw_step(story: DraftStory, plain: DraftStory, number: int) -> Picture:
    """What happened in a step (from 1), and how far both ways have come by then."""
    step = story.steps[number - 1]
    body = _written(story.written(number - 1))
    body += _guesses(step) + _outcome(step) + _lanes(story, plain, number)
    return Picture(f"Step {number}: which guesses pass?", body, 298, description=_told(story, plain, number, step))


def shown(token: str) -> str:
    """A token so that its spaces can be seen."""
    return token.replace(" ", "·").replace("\n", "↵").replace("\t", "→") or "∅"


def _written(before: str) -> str:
    kept = before.replace("\n", " ↵ ")[-2 * LINE_CHARACTERS :]
    lines = [kept[i : i + LINE_CHARACTERS] for i in range(0, len(kept), LINE_CHARACTERS)] or ["(nothing yet)"]
    body = text(4, 14, "generated so far", size=11, fill=SOFT)
    return body + "".join(text(LEFT, 14 + 17 * i, words, size=12.5) for i, words in enumerate(lines))


def _width(token: str) -> float:
    return max(TILE, 7.4 * len(shown(token)) + 14)


def _places(step: DraftStep) -> list[float]:
    """Left edges of the tiles: the guesses', and one more."""
    edges, x = [], float(LEFT)
    for i, token in enumerate((*step.drafted, step.own)):
        edges.append(x)
        other = step.emitted[i] if i < len(step.emitted) else ""
        x += max(_width(token), _width(other)) + GAP
    return edges


def _guesses(step: DraftStep) -> str:
    body = text(4, 76, "guessed", size=12, font_weight="bold")
    if not step.drafted:
        return body + text(LEFT, 76, "nothing: the model takes an ordinary step", size=12, fill=SOFT)
    for i, (x, token) in enumerate(zip(_places(step), step.drafted)):
        passed, looked_at = i < step.passed, i <= step.passed
        mark, colour = ("✓", PASSED) if passed else ("✗", ALARM)
        opacity = 1.0 if looked_at else 0.4
        body += _tile(x, 58, token, colour, opacity)
        shown_mark = mark if looked_at else "–"
        body += text(x + _width(token) / 2, 104, shown_mark, size=14, fill=colour, text_anchor="middle")
    return body


def _outcome(step: DraftStep) -> str:
    body = text(4, 136, "output", size=12, font_weight="bold")
    places = _places(step)
    for i, token in enumerate(step.emitted):
        is_own = i == len(step.emitted) - 1
        body += _tile(places[i], 118, token, OWN if is_own else PASSED)
    if step.drafted:
        role = "the model's own token instead" if step.corrects else "plus the model's own"
    else:
        role = "the model's own"
    x = places[step.passed] + _width(step.own) + 8
    return body + text(x, 138, role, size=12, fill=SOFT)


def _tile(x: float, y: float, token: str, fill: str, opacity: float = 1.0) -> str:
    wide = _width(token)
    return rect(x, y, wide, TILE, fill=fill, rx=4, opacity=opacity) + on_paper(
        x + 5, y + 6, wide - 10, shown(token), opacity
    )


def on_paper(x: float, y: float, wide: float, words: str, opacity: float = 1.0) -> str:
    """Words on a strip of paper, readable over any colour."""
    strip = rect(x, y, wide, 18, fill=PAPER, rx=3)
    return strip + text(x + wide / 2, y + 13.5, words, size=12.5, text_anchor="middle", opacity=max(opacity, 0.6))


def _lanes(story: DraftStory, plain: DraftStory, number: int) -> str:
    """Every token a cell, in both ways, as many steps far."""
    cell = min(14.0, (WIDTH - LEFT - 20) / max(plain.num_tokens, story.num_tokens))
    body = line(4, 164, WIDTH - 10, 164, stroke=FAINT)
    lanes = (("with drafts", story, 190), ("without", plain, 244))
    for name, told, y in lanes:
        steps = min(number, len(told.steps))
        count = told.tokens_after(steps)
        body += text(4, y + 13, name, size=12, font_weight="bold")
        body += text(LEFT, y - 6, f"after {steps} steps: {count} tokens", size=12)
        x = float(LEFT)
        for i, step in enumerate(told.steps):
            for j in range(len(step.emitted)):
                if i < steps:
                    fill = PASSED if j < len(step.emitted) - 1 else OWN
                    body += rect(x, y, cell - 0.8, 17, fill=fill)
                else:
                    body += rect(x, y + 0.5, cell - 1.5, 16, fill="none", stroke=FAINT)
                x += cell
            if i < steps:
                body += line(x - 0.4, y - 2, x - 0.4, y + 20, stroke=INK, stroke_width=0.8)
    legend = f"{rect(LEFT, 274, 12, 12, fill=PASSED)}{text(LEFT + 17, 284, 'a guess that passed', size=11, fill=SOFT)}"
    legend += f"{rect(LEFT + 150, 274, 12, 12, fill=OWN)}{text(LEFT + 167, 284, 'the model’s own', size=11, fill=SOFT)}"
    return (
        body
        + legend
        + text(LEFT + 290, 284, "a line ends each step; empty cells are still to come", size=11, fill=SOFT)
    )


def _told(story: DraftStory, plain: DraftStory, number: int, step: DraftStep) -> str:
    guesses = ", ".join(repr(token) for token in step.drafted) or "nothing"
    return (
        f"Guessed: {guesses}. {step.passed} of {len(step.drafted)} passed. Output: "
        f"{', '.join(repr(token) for token in step.emitted)}. After {number} steps: {story.tokens_after(number)} "
        f"tokens with drafts, {plain.tokens_after(number)} without; the whole answer takes {len(story.steps)} "
        f"steps with them and {len(plain.steps)} without."
    )
