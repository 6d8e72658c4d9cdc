"""Pictures of lesson 11c: dollars against what they buy."""

from course.lab.display import Html, as_table, stack, table_by_name
from course.lab.explorer import Explorer, buttons, choices, slider, switch
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.prices import dollars, gpu_price
from course.lab.style import number, seconds
from course.lab.svg import Picture
from course.lessons.lesson_11 import fleet
from course.lessons.lesson_11.run import GPUS, SMALL, SMALL_GPUS
from course.lessons.lesson_11c import run


def draw_mends(trouble: run.MissedSlo, replicas: int, changed: bool, price: float) -> Picture:
    """Share in time against dollars an hour: replicas go to the right, a config change goes up."""
    bills = {each: [run.bill(trouble, n, each, price) for n in run.REPLICAS] for each in (False, True)}
    names = {False: "as it is", True: trouble.change}
    curves = [
        Curve(names[each], [b.per_hour for b in found], [100 * b.attainment for b in found])
        for each, found in bills.items()
    ]
    here = run.bill(trouble, replicas, changed, price)
    label = f"{replicas} replica{'s' * (replicas > 1)}"
    title = (
        f"{names[changed]}, {label}: {here.attainment:.0%} within SLO, {dollars(here.per_hour)} an hour, "
        f"{dollars(here.per_million)} a million output tokens"
    )
    told = "; ".join(
        f"{names[each]}: "
        + ", ".join(f"{b.replicas} replica{'s' * (b.replicas > 1)} {b.attainment:.0%}" for b in found)
        for each, found in bills.items()
    )
    return draw_chart(
        title,
        curves,
        Axis("dollars an hour (one point per replica)", low=0, high=1.06 * bills[False][-1].per_hour),
        Axis("requests within the SLO, %", low=-4, high=108),
        [Mark(f"wanted: {run.TARGET:.0%}", y=100 * run.TARGET), Mark(label, x=here.per_hour, y=100 * here.attainment)],
        description=f"{trouble.about} {told}",
    )


def mends() -> Explorer:
    """Three troubles; money on one handle, a field on the other."""

    return Explorer(
        lambda trouble, replicas, changed, price: draw_mends(run.TROUBLES[trouble], replicas, changed, price),
        slow=True,
        trouble=buttons("what is wrong", list(run.TROUBLES)),
        replicas=slider("replicas", run.REPLICAS[0], run.REPLICAS[-1], 1),
        changed=switch("change the setting"),
        price=slider("dollars for a GPU and hour", 0.5, 12.0, gpu_price(), 0.01),
    )


def regimes_table(gpu_price: float, fill: float) -> Html:
    """What a request and a million tokens cost.

    Args:
        fill: share of the capacity that is used; rent is paid for the rest, too.
    """
    rent = gpu_price * GPUS / fill
    return table_by_name(
        f"${gpu_price:.2f} per GPU hour, {fill:.0%} full",
        run.regimes(),
        {
            "running requests": lambda r: str(r.slots),
            "requests/s": lambda r: number(r.rate),
            "1,000 requests": lambda r: f"${1000 * r.per_request(rent):.2f}",
            "1M input tokens": lambda r: f"${r.input_price(rent):.2f}",
            "1M output tokens": lambda r: f"${r.output_price(rent):.2f}",
            "time in prefill": lambda r: f"{r.prefill_share:.0%}",
        },
    )


def prices_per_token() -> Explorer:
    return Explorer(
        regimes_table,
        gpu_price=slider("$ per GPU hour", 0.5, 8.0, gpu_price(), 0.1),
        fill=slider("how full, on average", 0.1, 1.0, 0.6, 0.05),
    )


def energy_table() -> Html:
    """What replicas draw at a quarter, half and nine tenths of their capacity."""
    rows = [
        (
            f"{each.name}, {each.load:.0%} of capacity",
            number(each.output_tokens_per_s),
            f"{each.energy.watts:.0f} W ({each.energy.power.limit:.0f} W limit)",
            f"{each.energy.busy_share:.0%}",
            f"{each.energy.joules_per_output_token:.1f} J",
            f"{each.kwh_per_million:.2f} kWh",
        )
        for each in run.metered()
    ]
    head = (
        "chats, 1,500 in, 150 out",
        "output tokens/s",
        "draw per GPU",
        "time in steps",
        "per output token",
        "per million tokens",
    )
    return as_table(head, rows)


MISROUTE_RATES = tuple(i / 50 for i in range(26))
"""Misroute rates on the axis: none to half, where a coin would do as well."""
PER_REQUESTS = 1000
"""Dollars are for so many requests."""


def draw_routing(easy: float, wrong: float, caught: float, harm: float, price: float) -> Picture:
    """Dollars for 1000 requests against the misroute rate."""
    small, large = run.cost_of(SMALL, SMALL_GPUS, price), run.cost_of(fleet.MODEL, GPUS, price)
    route = run.Route(small, large, easy, caught, harm * large)
    noticed = run.Route(small, large, easy, 1.0)
    here = route.routed(wrong)
    xs = [100 * rate for rate in MISROUTE_RATES]
    curves = [
        Curve("routed", xs, [PER_REQUESTS * route.routed(rate) for rate in MISROUTE_RATES]),
        Curve(
            "routed, every wrong answer caught",
            xs,
            [PER_REQUESTS * noticed.routed(rate) for rate in MISROUTE_RATES],
            "dashes",
        ),
        Curve("all to the large model", xs, [PER_REQUESTS * large] * len(xs), "dashes"),
    ]
    border = route.break_even
    pays = "at any misroute rate" if border is None else "never" if border == 0 else f"below {border:.0%} misrouted"
    verb = "saves" if here <= large else "adds"
    title = f"{wrong:.0%} misrouted: routing {verb} {abs(1 - here / large):.0%}; it pays {pays}"
    marks = [Mark(f"{dollars(PER_REQUESTS * here)}", x=100 * wrong, y=PER_REQUESTS * here)]
    if border and border <= MISROUTE_RATES[-1]:
        marks.append(Mark("break-even", x=100 * border))
    costs = [dollars(PER_REQUESTS * each) for each in (large, small, here)]
    return draw_chart(
        title,
        curves,
        Axis("misrouted, % of the requests"),
        Axis(f"dollars for {PER_REQUESTS} requests", low=0),
        marks,
        description=f"All large {costs[0]}, small {costs[1]}, routed {costs[2]}.",
    )


def routing() -> Explorer:
    """The break-even with sliders."""
    return Explorer(
        draw_routing,
        easy=slider("easy, share of the requests", 0.0, 1.0, 0.7, 0.05),
        wrong=slider("misrouted, share", 0.0, 0.5, 0.1, 0.02),
        caught=slider("wrong answers caught, share", 0.0, 1.0, 0.5, 0.05),
        harm=choices("a wrong answer costs, x a large request", (0, 1, 3, 10, 30, 100, 1000), 30),
        price=slider("dollars for a GPU and hour", 0.5, 12.0, gpu_price(), 0.01),
    )


def draw_adapters(model: str, batch: int, rank: int, fine_tunes: int) -> Picture:
    """ITL against the number of adapters."""
    plain, mixed = run.itl_with_adapters(model, batch), run.itl_with_adapters(model, batch, fine_tunes, rank)
    title = f"{fine_tunes} adapters: a step takes {seconds(mixed)}, the base alone {seconds(plain)}"
    curve = Curve(
        "adapters in use",
        run.ADAPTER_COUNTS,
        [1000 * run.itl_with_adapters(model, batch, n, rank) for n in run.ADAPTER_COUNTS],
    )
    axis = Axis("a decode step, ms (launching the adapters' kernels is left out)", low=0)
    marks = [Mark("the base alone", y=1000 * plain), Mark("", x=fine_tunes)]
    return draw_chart(title, [curve], Axis("fine-tunes served", log=True), axis, marks, description=title)


def adapters_bill(model: str, rank: int, fine_tunes: int) -> Html:
    """What it takes to serve them all, however little each is asked."""
    one, (_, gpus) = run.with_adapters(model, 1, rank), run.ADAPTER_BASES[model]
    adapter = one.placement.lora.stored_bytes(one.model)
    rows = [
        (name, str(count * gpus), dollars(24 * count * gpus * gpu_price()), f"{stored / 1e9:.1f} GB")
        for name, count, stored in (("a replica each", fine_tunes, 0), ("one base", 1, fine_tunes * adapter))
    ]
    return as_table(("", "GPUs", "per day", "adapters' memory"), rows)


def adapters() -> Explorer:
    """How many, how large, how many requests at a time."""
    return Explorer(
        lambda model, batch, rank, fine_tunes: stack(
            draw_adapters(model, batch, rank, fine_tunes), adapters_bill(model, rank, fine_tunes)
        ),
        model=choices("base", list(run.ADAPTER_BASES)),
        batch=slider("requests in a step", 1, 128, 32),
        rank=choices("rank of the adapters", (8, 16, 32, 64), 16),
        fine_tunes=choices("fine-tunes", run.ADAPTER_COUNTS, 32),
    )
