"""The pictures of lesson 03 with sliders."""

from collections.abc import Mapping

from course.lab.display import Html, stack
from course.lab.explorer import Explorer, choices
from course.lab.lab import Lab
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.svg import Picture
from course.lessons.lesson_03 import chunks, sim_70b, traffic
from course.lessons.lesson_03.costs import BIG, lab_shape, shape_of, short_name
from course.lessons.lesson_03.measured import Ladder
from course.lessons.lesson_03.pictures import draw_ladder, draw_shares, draw_trade
from course.lessons.lesson_03.square import draw_square

SQUARE_LENGTHS = (64, 128, 256, 512, 1024, 2048)
COUNTED_LENGTHS = tuple(2**i for i in range(7, 18))
WHOLE = "whole"


def length_explorer(lab: Lab, ladder: Ladder) -> Explorer:
    """Send a prompt of the slider's length to the real engine: its TTFT becomes a point among the measured ones."""
    own: list[tuple[int, float]] = []

    def draw(tokens: int) -> Picture:
        run = lab.run(traffic.one(lab, tokens), **traffic.fields(lab, tokens))
        own.extend((view.num_prompt_tokens, view.deliveries[0] - view.borders[0]) for view in run.views)
        return draw_ladder(ladder, own)

    steps = sorted({round(length * factor) for length in ladder.best for factor in (0.75, 1, 1.5)})
    offered = [tokens for tokens in steps if tokens < traffic.window(lab)]
    explorer = Explorer(
        draw, button="Send it", tokens=choices("prompt length, tokens", offered, offered[len(offered) // 2])
    )
    return explorer.showing(draw_ladder(ladder))


def square_explorer(lab: Lab) -> Explorer:
    """The square of pairs: length and rows a step."""
    config = lab_shape(lab)

    return Explorer(
        lambda tokens, chunk: draw_square(config, tokens, tokens if chunk == WHOLE else chunk, SQUARE_LENGTHS[-1]),
        tokens=choices("prompt length, tokens", SQUARE_LENGTHS, 512),
        chunk=choices("rows per step", (128, 256, 512, WHOLE), WHOLE),
    )


def flops_explorer(lab: Lab) -> Explorer:
    """Where the FLOPs of a prompt go, in the lab's model and in a 70B; counted from their shapes."""
    shapes = {short_name(lab): lab_shape(lab), BIG: shape_of(BIG)}

    return Explorer(
        lambda tokens: draw_shares(shapes, tokens), tokens=choices("prompt length, tokens", COUNTED_LENGTHS, 4096)
    )


def chunk_explorer(lab: Lab, swept: Mapping[int, Run]) -> Explorer:
    """The long prompt among chats, on the real engine, in chunks of the slider's size. Each run adds its points."""
    kept = dict(swept)
    longest = max(kept)
    offered = [*(chunk for chunk in chunks.CHUNKS if chunk < longest), longest]

    def draw(chunk: int) -> Html:
        kept[chunk] = lab.run(traffic.long_among_chats(lab), **chunks.fields(lab, chunk))
        return picture(chunk)

    def picture(chunk: int) -> Html:
        trades = [chunks.trade(kept[each]) for each in sorted(kept)]
        name = "whole" if chunk == longest else f"in chunks of {chunk}"
        return stack(
            draw_trade(trades, chunk), draw_timeline(kept[chunk], title=f"The long prompt, {name}: the last row")
        )

    start = sorted(kept)[len(kept) // 2]
    explorer = Explorer(draw, button="Run", chunk=choices("chunk, prompt tokens per step", offered, start))
    return explorer.showing(picture(start))


def explore_70b() -> Explorer:
    """The same trade for a 70B on four H100s, simulated for every chunk size at once."""

    def draw(tokens: int, chunk: int) -> Picture:
        trades = sim_70b.trades(tokens)
        on = sim_70b.deployment()
        floor = [sim_70b.weight_floor(on, each.steps) for each in trades]
        return draw_trade(trades, min(chunk, tokens), floor, "70B on four H100s: ")

    return Explorer(
        draw,
        tokens=choices("prompt length, tokens", (4096, 8192, 16384, 32768), 32768),
        chunk=choices("chunk, prompt tokens per step", sim_70b.CHUNKS, 512),
    )
