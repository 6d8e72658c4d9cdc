"""One round of speculation against the same tokens without: drag acceptance, length, price of a draft, batch."""

from course.lab.explorer import Explorer, choices, slider
from course.lab.lesson_08.costs import VerifyCosts, gain
from course.lab.lesson_08.formulas import best_k, break_even, emitted, popular
from course.lab.lesson_08.tiles import OWN, on_paper
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import PHASE_COLOURS, WIDTH, number
from course.lab.svg import SOFT, Picture, Scale, line, phase_fill, rect, tag, text

LEFT, RIGHT, LANES, CHART = 118, 30, 148, 230
LONGEST = 8
DRAFT_FILL = PHASE_COLOURS["first_token"]


def price_lab(costs: VerifyCosts) -> Explorer:
    """The four sliders over one picture."""
    return Explorer(
        lambda alpha, k, c, batch: draw_round(costs, alpha, k, c, batch),
        alpha=slider("α, acceptance", 0.0, 1.0, 0.6, 0.05),
        k=slider("k, guesses in a draft", 1, LONGEST, 4),
        c=slider("c, a guess's price in steps", 0.0, 1.0, 0.1, 0.05),
        batch=choices("batch, requests", costs.batches, costs.batches[0]),
    )


def draw_round(costs: VerifyCosts, alpha: float, k: int, c: float, batch: int) -> Picture:
    """Above: one round, in decode steps of this machine at this batch. Below: the speedup at every batch."""
    verify, tokens = costs.relative(batch, k), emitted(alpha, k)
    scale = Scale(0, max(verify + k * c, tokens) * 1.05, LEFT, WIDTH - RIGHT)
    body = _axis(scale)
    body += _lane_of_drafts(scale, k, c, verify, tokens) + _plain_lane(scale, tokens)
    chart = _by_batch(costs, alpha, k, c, batch)
    best = best_k(alpha, c, lambda n: costs.relative(batch, n), LONGEST)
    body += tag("g", chart.body, transform=f"translate(0 {LANES})")
    body += text(LEFT, LANES + CHART + 16, f"best k at this batch, α and c: {best}", size=12)
    faster = gain(costs, batch, k, alpha, c)
    title = (
        costs.doubt + f"×{faster:.2f}: " + ("faster" if faster >= 1 else "slower") + f" than without, at batch {batch}"
    )
    border = break_even(k, c, verify)
    told = (
        f"A round takes {number(verify + k * c)} decode steps ({number(k * c)} to draft, {number(verify)} to verify) "
        f"and yields {number(tokens)} tokens; k x alpha would say {number(popular(alpha, k))}. "
        + ("It loses at any acceptance. " if border is None else f"It gains above an acceptance of {border:.0%}. ")
        + f"The best k here is {best}. {chart.description}"
    )
    return Picture(title, body, LANES + CHART + 26, description=told)


def _axis(scale: Scale) -> str:
    body = ""
    for tick in scale.ticks():
        body += line(scale(tick), 8, scale(tick), 108) + text(
            scale(tick), 121, f"{tick:g}", size=11, fill=SOFT, text_anchor="middle"
        )
    return body + text(LEFT, 136, "decode steps of this machine, at this batch", size=11, fill=SOFT)


def _lane_of_drafts(scale: Scale, k: int, c: float, verify: float, tokens: float) -> str:
    body = text(4, 30, "with drafts", size=12, font_weight="bold")
    wide = scale(c) - scale(0)
    for i in range(k if c else 0):
        body += rect(scale(0) + i * wide, 14, wide, 24, fill=DRAFT_FILL, stroke="#fff", stroke_width=0.8)
    start = scale(k * c)
    body += rect(start, 14, scale(k * c + verify) - start, 24, fill=phase_fill("decode"))
    if start - LEFT > 70:
        body += on_paper(LEFT + 5, 17, 56, f"draft {k}")
    body += on_paper(start + 6, 17, 132, f"verify: {number(verify)} steps")
    return body + text(LEFT, 53, f"yields {number(tokens)} tokens in the mean", size=12)


def _plain_lane(scale: Scale, tokens: float) -> str:
    body, whole = text(4, 82, "without", size=12, font_weight="bold"), int(tokens)
    for i in range(whole + (tokens > whole)):
        end = min(i + 1, tokens)
        body += rect(scale(i), 66, scale(end) - scale(i) - 1, 24, fill=OWN)
    return body + text(LEFT, 105, f"{number(tokens)} tokens take {number(tokens)} steps", size=12)


def _by_batch(costs: VerifyCosts, alpha: float, k: int, c: float, batch: int) -> Picture:
    gains = [gain(costs, each, k, alpha, c) for each in costs.batches]
    here = gain(costs, batch, k, alpha, c)
    return draw_chart(
        "",
        [Curve("speedup", costs.batches, gains, colour=PHASE_COLOURS["decode"])],
        Axis("batch, requests", log=True),
        Axis("speedup (×)", low=0, high=max(2.0, *gains) * 1.15),
        [Mark("below: it loses", y=1.0), Mark(f"×{here:.2f}", batch, here)],
        height=CHART,
        description="By batch: " + ", ".join(f"{b}: ×{g:.2f}" for b, g in zip(costs.batches, gains)) + ".",
    )
