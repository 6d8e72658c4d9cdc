"""Many fine-tunes: a replica for each, or LoRA adapters over one base, and what adapters add to a step."""

from course.lab import simulated_70b
from course.lab.display import Html, as_table, stack
from course.lab.explorer import Explorer, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lessons.lesson_06 import sim_70b
from course.lessons.lesson_11.money import dollars, gpu_price
from course.simulator.cost.lora import Lora
from course.simulator.deployment import Deployment

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT = 1000
MODELS = {"Llama-3.1 8B on one H100": ("llama-3.1-8b", 1), "Llama-3 70B on four H100s": ("llama-3-70b", 4)}


def base(model: str, adapters: int = 0, rank: int = 16) -> Deployment:
    """The model, with so many adapters in memory. Raises PricingError: they don't fit."""
    name, tp = MODELS[model]
    lora = Lora(adapters=adapters, rank=rank) if adapters else Lora()
    return simulated_70b.deployment(model=name, tp=tp, max_num_seqs=256, lora=lora)


def itl(model: str, batch: int, adapters: int = 0, rank: int = 16) -> float:
    """Of a decode step, seconds, when each request is as likely to use one adapter as another."""
    return sim_70b.price(base(model, adapters, rank), batch, CONTEXT).itl


def draw(model: str, batch: int, rank: int, fine_tunes: int) -> Picture:
    """ITL against the number of adapters."""
    plain, mixed = itl(model, batch), itl(model, batch, fine_tunes, rank)
    title = f"{fine_tunes} adapters: a step takes {seconds(mixed)}, the base alone {seconds(plain)}"
    curve = Curve("adapters in use", COUNTS, [1000 * itl(model, batch, n, rank) for n in COUNTS])
    axis = Axis("a decode step, ms (launching the adapters' kernels is left out)", low=0)
    marks = [Mark("the base alone", y=1000 * plain), Mark("", x=fine_tunes)]
    return draw_chart(title, [curve], Axis("fine-tunes served", log=True), axis, marks, description=title)


def bill(model: str, rank: int, fine_tunes: int) -> Html:
    """What it takes to serve them all, however little each is asked."""
    one, (_, gpus) = base(model, 1, rank), MODELS[model]
    adapter = one.placement.lora.stored_bytes(one.model)
    rows = [
        (name, str(count * gpus), dollars(24 * count * gpus * gpu_price()), f"{stored / 1e9:.1f} GB")
        for name, count, stored in (("a replica each", fine_tunes, 0), ("one base", 1, fine_tunes * adapter))
    ]
    return as_table(("", "GPUs", "per day", "adapters' memory"), rows)


def explorer() -> Explorer:
    """How many, how large, how many requests at a time."""
    return Explorer(
        lambda model, batch, rank, fine_tunes: stack(
            draw(model, batch, rank, fine_tunes), bill(model, rank, fine_tunes)
        ),
        model=choices("base", list(MODELS)),
        batch=slider("requests in a step", 1, 128, 32),
        rank=choices("rank of the adapters", (8, 16, 32, 64), 16),
        fine_tunes=choices("fine-tunes", COUNTS, 32),
    )
