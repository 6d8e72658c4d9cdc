"""Draft and verify as tiles: one verification at a time, with a slider; beside it the same text without."""

from collections.abc import Mapping

from course.lab.draft_story import DraftStep, DraftStory
from course.lab.explorer import Explorer, buttons, player, slider
from course.lab.style import ALARM, COLOURS, WIDTH
from course.lab.svg import FAINT, INK, PAPER, SOFT, Picture, line, rect, text

PASSED, OWN = COLOURS[0], COLOURS[4]
LEFT, TILE, GAP = 118, 30, 5
"""Left edge of tiles and lanes, height and least width of a tile, space between two."""
EDGE = 4
"""Left edge of the names of rows."""
LINE_CHARACTERS, LINE_HEIGHT = 92, 17
WRITTEN_BASELINE = 14
GUESSES_TOP, OUTPUT_TOP = 58, 118
"""Upper edges of the two rows of tiles."""
LABEL_DROP, ROLE_DROP, MARK_DROP = 18, 20, 46
"""From the top of a row of tiles down to the baselines of its name, of what follows it, of the marks under it."""
RULE = 164
LANE_TOPS = {"with drafts": 190, "without": 244}
LANE_HEIGHT, WIDEST_CELL = 17, 14.0
LEGEND_TOP, LEGEND_BOX = 274, 12
HEIGHT = 298
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
    return Picture(
        f"Step {number}: which draft tokens are accepted?", body, HEIGHT, description=_told(story, plain, number, step)
    )


def shown(token: str) -> str:
    """A token so that its spaces can be seen."""
    return token.replace(" ", "·").replace("\n", "↵").replace("\t", "→") or "∅"


def _written(before: str) -> str:
    kept = before.replace("\n", " ↵ ")[-2 * LINE_CHARACTERS :]
    lines = [kept[i : i + LINE_CHARACTERS] for i in range(0, len(kept), LINE_CHARACTERS)] or ["(nothing yet)"]
    body = text(EDGE, WRITTEN_BASELINE, "generated so far", size=11, fill=SOFT)
    return body + "".join(
        text(LEFT, WRITTEN_BASELINE + LINE_HEIGHT * i, words, size=12.5) for i, words in enumerate(lines)
    )


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
    baseline = GUESSES_TOP + LABEL_DROP
    body = text(EDGE, baseline, "guessed", size=12, font_weight="bold")
    if not step.drafted:
        return body + text(LEFT, baseline, "nothing: the model takes an ordinary step", size=12, fill=SOFT)
    for i, (x, token) in enumerate(zip(_places(step), step.drafted)):
        passed, looked_at = i < step.passed, i <= step.passed
        mark, colour = ("✓", PASSED) if passed else ("✗", ALARM)
        opacity = 1.0 if looked_at else 0.4
        body += _tile(x, GUESSES_TOP, token, colour, opacity)
        shown_mark = mark if looked_at else "–"
        centre = x + _width(token) / 2
        body += text(centre, GUESSES_TOP + MARK_DROP, shown_mark, size=14, fill=colour, text_anchor="middle")
    return body


def _outcome(step: DraftStep) -> str:
    body = text(EDGE, OUTPUT_TOP + LABEL_DROP, "output", size=12, font_weight="bold")
    places = _places(step)
    for i, token in enumerate(step.emitted):
        is_own = i == len(step.emitted) - 1
        body += _tile(places[i], OUTPUT_TOP, token, OWN if is_own else PASSED)
    if step.drafted:
        role = "the model's own token instead" if step.corrects else "plus the model's own"
    else:
        role = "the model's own"
    x = places[step.passed] + _width(step.own) + 8
    return body + text(x, OUTPUT_TOP + ROLE_DROP, role, size=12, fill=SOFT)


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
    cell = min(WIDEST_CELL, (WIDTH - LEFT - 20) / max(plain.num_tokens, story.num_tokens))
    body = line(EDGE, RULE, WIDTH - 10, RULE, stroke=FAINT)
    for (name, top), told in zip(LANE_TOPS.items(), (story, plain)):
        steps = min(number, len(told.steps))
        count = told.tokens_after(steps)
        body += text(EDGE, top + 13, name, size=12, font_weight="bold")
        body += text(LEFT, top - 6, f"after {_counted(steps, 'step')}: {_counted(count, 'token')}", size=12)
        x = float(LEFT)
        for i, step in enumerate(told.steps):
            for j in range(len(step.emitted)):
                if i < steps:
                    fill = PASSED if j < len(step.emitted) - 1 else OWN
                    body += rect(x, top, cell - 0.8, LANE_HEIGHT, fill=fill)
                else:
                    body += rect(x, top + 0.5, cell - 1.5, LANE_HEIGHT - 1, fill="none", stroke=FAINT)
                x += cell
            if i < steps:
                body += line(x - 0.4, top - 2, x - 0.4, top + LANE_HEIGHT + 3, stroke=INK, stroke_width=0.8)
    return body + _legend()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _legend() -> str:
    baseline, body = LEGEND_TOP + LEGEND_BOX - 2, ""
    for x, fill, words in ((LEFT, PASSED, "accepted draft"), (LEFT + 150, OWN, "the model’s own")):
        body += rect(x, LEGEND_TOP, LEGEND_BOX, LEGEND_BOX, fill=fill)
        body += text(x + LEGEND_BOX + 5, baseline, words, size=11, fill=SOFT)
    rest = "a line ends each step; empty cells are still to come"
    return body + text(LEFT + 290, baseline, rest, size=11, fill=SOFT)


def _told(story: DraftStory, plain: DraftStory, number: int, step: DraftStep) -> str:
    guesses = ", ".join(repr(token) for token in step.drafted) or "nothing"
    return (
        f"Guessed: {guesses}. {step.passed} of {len(step.drafted)} accepted. Output: "
        f"{', '.join(repr(token) for token in step.emitted)}. After {_counted(number, 'step')}: "
        f"{_counted(story.tokens_after(number), 'token')} with drafts, {plain.tokens_after(number)} without; "
        f"the whole answer takes {len(story.steps)} steps with them and {len(plain.steps)} without."
    )
