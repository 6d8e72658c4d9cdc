"""The same question at production size: decode steps priced by the simulator, cut by what they wait for."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, draw_chart
from course.lab.simulated_70b import OLD, STACKS, TODAY
from course.lab.style import ALARM, COLOURS, WIDTH, number, seconds
from course.lab.svg import HALO, SOFT, Picture, Scale, line, rect, swatches, text, time_axis
from course.lessons.lesson_06.pictures import KV_FILL, MULTIPLY, READ
from course.lessons.lesson_06.run import Dot
from course.simulator.cost.profile import Profile, find_profile
from course.simulator.cost.roofline import StepTime
from course.simulator.cost.work import decode_work
from course.simulator.deployment import Deployment
from minillm.model.arithmetic import share_woken

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
SLOS = (0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.08)
MODELS = {
    "Llama-3 70B (dense)": "llama-3-70b",
    "Qwen3 32B (dense)": "qwen3-32b",
    "Qwen3 30B-A3B (MoE)": "qwen3-30b-a3b",
}
CARDS = {"H100": "h100-sxm", "B200": "b200"}
NO_GRAPHS = "vLLM 0.19, CUDA graphs off"
LEFT, RIGHT = 58, 152
CAUSES = {
    "weights": READ,
    "KV": KV_FILL,
    "compute, past the knee": MULTIPLY,
    "communication": COLOURS[0],
    "kernel gaps, launches": COLOURS[4],
    "host, per step and request": COLOURS[2],
}


def stack(name: str, model: str = simulated_70b.MODEL, card: str = simulated_70b.HARDWARE, tp: int = 4) -> Deployment:
    """A model under one of STACKS, or under vLLM 0.19 with a launch for each kernel, at the price of 2023."""
    profile = _no_graphs(card) if name == NO_GRAPHS else STACKS[name](card)
    return Deployment.of(model, profile, tp=tp, max_num_seqs=BATCHES[-1])


@functools.cache
def _no_graphs(card: str) -> Profile:
    today, launch_s = find_profile(card), STACKS[OLD](card).constants.launch_s
    return today.replace(constants=today.constants.model_copy(update={"launch_s": launch_s}))


@dataclass(frozen=True)
class Priced:
    """One decode step, simulated."""

    batch: int
    context: float
    time: StepTime
    weights_s: float
    """The part of `time.linear` that reading the weights takes."""

    @property
    def itl(self) -> float:
        return self.time.total

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.itl

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds, in the order of CAUSES."""
        t, read = self.time, min(self.weights_s, self.time.linear)
        return (read, t.attention, t.linear - read, t.all_reduce, t.gaps + t.waiting_for_host, t.fixed)


def price(on: Deployment, batch: int, context: float) -> Priced:
    """A step in which `batch` requests write a token each, over contexts of so many tokens."""
    model = on.step_time()
    read = model.weights_s + model.idle_s * share_woken(model.skip, batch)
    return Priced(batch, context, model.price(decode_work(batch, context)), read)


def parts_of(lab: Lab, dot: Dot) -> dict[str, float]:
    """What the simulator's price of a lab's step is made of, seconds by cause; nothing where the engine computes."""
    if lab.simulated is None:
        return {}
    on = lab.simulated.deployment(lab.config(max_num_seqs=dot.batch, max_num_batched_tokens=dot.batch))
    return dict(zip(CAUSES, price(on, dot.batch, dot.context).parts))


def slots_that_fit(on: Deployment, context: float) -> int:
    """Requests of this context whose KV fits beside the weights."""
    return int(simulated_70b.room_tokens(on) // context)


def within(on: Deployment, context: float, slo: float) -> int:
    """The largest batch that has room and keeps this ITL; 0 = not even one request does."""
    low, high = 0, min(slots_that_fit(on, context), BATCHES[-1])
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if price(on, middle, context).itl <= slo else (low, middle - 1)
    return low


def step_parts(model: str = "Llama-3 70B (dense)") -> Explorer:
    """What a step is made of, batch by batch; with controls for everything that changes it."""

    def draw(model: str, card: str, under: str, tp: int, context: int, slo: float) -> Picture:
        return draw_parts(stack(under, MODELS[model], CARDS[card], tp), context, slo)

    return Explorer(
        draw,
        model=buttons("model", list(MODELS), model),
        card=buttons("card", list(CARDS)),
        under=buttons("serving stack", [TODAY, NO_GRAPHS, OLD]),
        tp=choices("GPUs (tensor parallel)", (1, 2, 4, 8), 4),
        context=choices("context of each, tokens", CONTEXTS, 1024),
        slo=choices("ITL SLO, seconds", SLOS, 0.03),
    )


def draw_parts(on: Deployment, context: int, slo: float) -> Picture:
    """A bar a batch, cut by cause. Batches whose KV has no room are named, not drawn."""
    room, most = slots_that_fit(on, context), within(on, context, slo)
    steps = [price(on, batch, context) for batch in BATCHES if batch <= room]
    scale = Scale(0, max([step.itl for step in steps] + [slo]) * 1.02, LEFT, WIDTH - RIGHT)
    top, bottom = 58, 58 + 24 * len(BATCHES)
    causes = list(CAUSES.items())
    body = swatches(LEFT, 12, dict(causes[:3])) + swatches(LEFT, 30, dict(causes[3:]))
    body += time_axis(scale, top - 6, bottom, "one decode step (ITL)") + text(
        LEFT - 8, top - 8, "batch", size=11, fill=SOFT, text_anchor="end"
    )
    for x, words in ((WIDTH - 84, "ITL"), (WIDTH - 4, "tokens/s")):
        body += text(x, top - 8, words, size=11, fill=SOFT, text_anchor="end")
    for i, batch in enumerate(BATCHES):
        y = top + 24 * i
        body += text(LEFT - 8, y + 14, str(batch), size=12, text_anchor="end")
        if batch > room:
            words = f"no room: KV for {room} at most" if i == len(steps) else "no room"
            body += text(LEFT + 4, y + 14, words, size=11, fill=ALARM, **HALO)
            continue
        edge = 0.0
        for part, fill in zip(steps[i].parts, CAUSES.values()):
            wide = scale(edge + part) - scale(edge)
            body += rect(scale(edge), y, wide, 19, fill=fill, stroke=SOFT, stroke_width=0.4)
            edge += part
        late = {"fill": ALARM} if edge > slo else {}
        body += text(WIDTH - 84, y + 14, seconds(edge), size=11, text_anchor="end", **late)
        body += text(WIDTH - 4, y + 14, number(steps[i].tokens_per_s), size=11, text_anchor="end")
    body += line(scale(slo), top - 6, scale(slo), bottom, stroke=ALARM, stroke_width=1.6, stroke_dasharray="5 3")
    body += text(scale(slo), top - 10, f"SLO {seconds(slo)}", size=11, fill=ALARM, text_anchor="middle", **HALO)
    found = "; ".join(f"batch {s.batch}: ITL {seconds(s.itl)}, {number(s.tokens_per_s)} tokens/s" for s in steps)
    told = f"Contexts of {context} tokens, room for {room}. {found}."
    ends = f"holds up to batch {most}" if most else "is out of reach"
    return Picture(f"What is a step made of? An ITL of {seconds(slo)} {ends}", body, bottom + 34, description=told)


def tp_table(batch: int = 64, context: int = 1024, degrees: Sequence[int] = (2, 4, 8)) -> Html:
    """What communication takes of 70B's step, by GPUs, beside the same with free all-reduces."""
    first, rows = price(stack(TODAY, tp=degrees[0]), batch, context), []
    for tp in degrees:
        step = price(stack(TODAY, tp=tp), batch, context)
        free, talk = step.itl - step.time.all_reduce, step.time.all_reduce
        gain = f"{first.itl / step.itl:.2f}"
        rows.append((str(tp), seconds(step.itl), seconds(talk), f"{talk / step.itl:.0%}", seconds(free), f"× {gain}"))
    return as_table(("GPUs", "ITL", "all-reduces", "share", "ITL if they were free", "speedup over 2"), rows)


# ---------------------------------------------------------------- long answers

PROMPT, ANSWER = 1000, 8000
POINTS = 17
"""How many points a curve over an answer has."""


def drift() -> Explorer:
    """ITL over a long answer, by the number of requests that decode together."""

    def draw(model: str, batch: int) -> Picture:
        return draw_drift(stack(TODAY, MODELS[model]), batch)

    return Explorer(draw, model=buttons("model", list(MODELS)), batch=choices("batch, requests", BATCHES, 32))


def drifted(on: Deployment, batch: int) -> list[tuple[int, float]]:
    """(tokens so far, ITL in seconds) of requests that began together, up to the last one whose KV has room."""
    counts = [round(ANSWER * i / (POINTS - 1)) for i in range(POINTS)]
    room = [n for n in counts if batch <= slots_that_fit(on, PROMPT + n)]
    return [(n, price(on, batch, PROMPT + n).itl) for n in room]


def draw_drift(on: Deployment, batch: int) -> Picture:
    """Requests that began together, and what a steady mix of requests at all places of their answers shows."""
    found = drifted(on, batch)
    if not found:
        return draw_chart(f"No room for {batch} prompts", [], Axis("tokens of the answer so far"), Axis("ITL, ms"))
    mixed = price(on, batch, PROMPT + ANSWER / 2).itl
    counts, itl = [n for n, _ in found], [1e3 * each for _, each in found]
    curves = [
        Curve("began together", counts, itl),
        Curve("spread over their answers", (0, ANSWER), (1e3 * mixed,) * 2, "dashes"),
    ]
    if counts[-1] < ANSWER:
        title = f"Batch {batch}: after {counts[-1]:,} tokens there's no room for more KV, and requests are preempted"
    else:
        title = f"Batch {batch}: ITL drifts from {itl[0]:.1f} to {itl[-1]:.1f} ms, × {itl[-1] / itl[0]:.2f}"
    axes = Axis("tokens of the answer so far", low=0, high=ANSWER), Axis("ITL, ms", low=0)
    return draw_chart(title, curves, *axes)
