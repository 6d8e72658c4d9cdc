"""The same question at 70 billion weights: steps priced by the simulator."""

from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.explorer import Explorer, buttons, choices
from course.lab.lesson_06.pictures import KV_FILL, MULTIPLY, READ, STRIPES, roof_curve
from course.lab.lesson_06.roofline import Roof, on_paper
from course.lab.lesson_06.shapes import LLAMA_70B
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.simulated_70b import STACKS
from course.lab.style import ALARM, WIDTH, number, seconds
from course.lab.svg import FAINT, HALO, SOFT, Picture, Scale, line, rect, swatches, tag, text, time_axis
from minillm.simulate.cost.roofline import StepTime
from minillm.simulate.deployment import Deployment

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
LEFT, RIGHT = 64, 150
TERA = 1e12
CAUSES = {
    "weights: read or multiply": READ,
    "KV: read": KV_FILL,
    "GPUs talk": "#0072B2",
    "host, launches": "#999999",
    "per step and request": MULTIPLY,
}


def stack(name: str) -> Deployment:
    """Llama-3 70B on four H100s under one of STACKS."""
    return simulated_70b.deployment(profile=STACKS[name](simulated_70b.HARDWARE), max_num_seqs=BATCHES[-1])


@dataclass(frozen=True)
class Priced:
    """One decode step, simulated."""

    batch: int
    context: float
    time: StepTime

    @property
    def itl(self) -> float:
        return self.time.total

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.itl

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds, in the order of CAUSES."""
        t = self.time
        return (t.linear, t.attention, t.all_reduce, t.gaps + t.waiting_for_host, t.fixed)


def price(on: Deployment, batch: int, context: float) -> Priced:
    """A step in which `batch` requests write a token each, over contexts of so many tokens."""
    return Priced(batch, context, on.step_time().price(simulated_70b.decode_work(batch, context)))


def seats_that_fit(on: Deployment, context: float) -> int:
    """Requests of this context whose KV fits beside the weights."""
    return int(on.num_kv_blocks * on.block_size // context)


def step_parts() -> Explorer:
    """What a step of 70B is made of, batch by batch; with sliders for the contexts and for the stack under it."""
    return Explorer(
        lambda context, under: draw_parts(stack(under), context),
        context=choices("context of each, tokens", CONTEXTS, 1024),
        under=buttons("serving stack", list(STACKS)),
    )


def draw_parts(on: Deployment, context: int) -> Picture:
    """A bar a batch, cut by cause. Batches whose KV has no room are named, not drawn."""
    room = seats_that_fit(on, context)
    steps = [price(on, batch, context) for batch in BATCHES if batch <= room]
    scale = Scale(0, max(step.itl for step in steps) * 1.02, LEFT, WIDTH - RIGHT)
    bottom = 34 + 24 * len(BATCHES)
    body = tag("defs", STRIPES) + swatches(LEFT, 13, CAUSES) + time_axis(scale, 24, bottom, "one decode step: ITL")
    for i, batch in enumerate(BATCHES):
        y = 30 + 24 * i
        body += text(LEFT - 8, y + 14, str(batch), size=12, text_anchor="end")
        if batch > room:
            words = f"no room: KV for {room} at most" if i == len(steps) else "no room"
            body += text(LEFT + 4, y + 14, words, size=11, fill=ALARM)
            continue
        step, edge = steps[i], 0.0
        for part, fill in zip(step.parts, CAUSES.values()):
            wide = scale(edge + part) - scale(edge)
            body += rect(scale(edge), y, wide, 19, fill=fill, stroke=SOFT, stroke_width=0.4)
            edge += part
        body += text(scale(edge) + 5, y + 14, f"{seconds(edge)}, {number(step.tokens_per_s)} tok/s", size=11, **HALO)
    body += text(LEFT - 8, 20, "batch", size=11, fill=SOFT, text_anchor="end") + line(
        LEFT, 24, LEFT, bottom, stroke=FAINT
    )
    found = "; ".join(f"batch {s.batch}: ITL {seconds(s.itl)}, {number(s.tokens_per_s)} tokens/s" for s in steps)
    told = f"Contexts of {context} tokens, room for {room}. {found}."
    return Picture("70B on four H100s: what is each step made of?", body, bottom + 34, description=told)


def on_the_roof() -> Explorer:
    """Where 70B's steps fall under an H100's roof: trails of growing batches, and one dot to move."""
    return Explorer(
        lambda context, batch: draw_trail(on_paper(), context, batch),
        context=choices("context of each, tokens", CONTEXTS, 1024),
        batch=choices("batch, requests", BATCHES, 64),
    )


def draw_trail(roof: Roof, context: int, batch: int) -> Picture:
    """Intensity of a step, by its arithmetic alone, and what an H100 could do with it at best."""
    shape = LLAMA_70B
    room, limit = seats_that_fit(stack("the data sheet"), context), shape.highest_intensity(context)
    intensity = {each: shape.intensity(each, context) for each in BATCHES}
    right = 3 * max(roof.ridge, shape.intensity(BATCHES[-1], CONTEXTS[0]))
    curves = [roof_curve(roof, [0.6, roof.ridge, right], TERA)]
    for name, batches in (
        ("batches with room", [each for each in BATCHES if each <= room]),
        ("batches without room for their KV", [each for each in BATCHES if each > room]),
    ):
        xs = [intensity[each] for each in batches]
        curves.append(Curve(name, xs, [roof.at(x) / TERA for x in xs], style="points"))
    here = intensity[batch]
    marks = [Mark(f"batch {batch}: {number(here)} FLOP per byte", x=here, y=roof.at(here) / TERA)]
    if limit < right:
        marks.append(Mark("no batch gets past here", x=limit))
    told = (
        f"Context {context}, batch {batch}: {number(here)} FLOP per byte; the roof bends at {number(roof.ridge)}. "
        f"However large the batch, it is below {number(limit)}. There is room for {room} such requests on four H100s."
    )
    return draw_chart(
        "70B under an H100's roof: how far to the right can a batch get?",
        curves,
        Axis("operations for each byte read (FLOP/byte)", log=True),
        Axis("TFLOP/s of one H100", log=True),
        marks,
        height=330,
        description=told,
    )
