"""What the runs of lesson 11c showed: its verdicts on claims, its findings, and what its prediction is scored by."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.prices import dollars, gpu_price
from course.lab.style import number, seconds
from course.lessons.lesson_11.run import GPUS
from course.lessons.lesson_11c.run import (
    ARTICLE_GAIN,
    FEW_A_DAY,
    TROUBLES,
    GpuOption,
    Metered,
    MissedSlo,
    PlayedRouting,
    Route,
    gpu_options,
    regimes,
    routing_runs,
)

KWH_PRICE = 0.1
"""Dollars: what large consumers pay, about."""


def tell_mends(troubles: Mapping[str, MissedSlo]) -> Finding:
    """Which trouble a field mends, and which takes replicas."""
    lines = []
    for name, trouble in troubles.items():
        field, replicas = trouble.enough(True) == 1, trouble.enough(False)
        how = "the setting alone" if field else f"{replicas} replicas" if replicas else "neither"
        lines.append(f"*{name}*: {how}")
    return tell("11c", "mends", "here", told="; ".join(lines))


def tell_prices(gpu_price: float) -> Finding:
    """Dollars per million tokens on a full replica, and why a reasoning request costs what it does."""
    chat, *_, long = regimes().values()
    rent = gpu_price * GPUS
    prices = {
        "chat_in": chat.input_price(rent),
        "chat_out": chat.output_price(rent),
        "long_out": long.output_price(rent),
    }
    return tell(
        "11c",
        "regimes",
        "here",
        gpu=gpu_price,
        ratio=prices["chat_out"] / prices["chat_in"],
        times=chat.rate / long.rate,
        longer=long.answer / chat.answer,
        dearer=prices["long_out"] / prices["chat_out"],
        output_share=1 - chat.prefill_share,
        chat=chat,
        long=long,
        **prices,
    )


def tell_energy(runs: Sequence[Metered], price: float) -> Finding:
    """What load does to joules per token, what power costs beside the rent, and how far off such forecasts are."""
    low, *_, high = [each for each in runs if each.name == runs[0].name]
    other = runs[-1]
    band = high.energy.power.band
    assert band is not None, "packaged constants have one"
    rent = 1e6 * high.gpus * price / 3600 / high.output_tokens_per_s
    return tell(
        "11c",
        "energy",
        "here",
        low=low,
        high=high,
        ratio=low.kwh_per_million / high.kwh_per_million,
        draw=low.energy.watts / high.energy.watts,
        made=low.output_tokens_per_s / high.output_tokens_per_s,
        other=other,
        saved=1 - other.kwh_per_million / high.kwh_per_million,
        kwh_price=KWH_PRICE,
        share=high.kwh_per_million * KWH_PRICE / rent,
        band=band,
    )


def cost_of_reasoning() -> MeasuredAnswer:
    """A reasoning request's cost over a chat's, on a full replica: the answer to a prediction."""
    chat, *_, long = regimes().values()
    ratio = chat.rate / long.rate
    return MeasuredAnswer(ratio, f"{number(chat.rate)} chats/s, {number(long.rate)} reasoning requests/s")


COIN = 0.5
"""A router that is wrong as often as this knows nothing."""


def a20(troubles: Sequence[MissedSlo], price: float) -> Claim:
    """Each trouble mended by replicas, and by a field. Price: dollars for a GPU and hour."""
    found, free, paid, neither = [], [], [], []
    for trouble in troubles:
        before, after = trouble.enough(False), trouble.enough(True)
        is_free = after == 1
        (free if is_free else paid if before is not None else neither).append(trouble.name)
        by_replicas = (
            "no number of replicas that was tried is enough"
            if before is None
            else f"{before} replicas are enough ({dollars((before - 1) * GPUS * price)} more an hour)"
        )
        by_field = "alone is enough" if is_free else f"still takes {after} replicas" if after else "isn't enough either"
        found.append(f"{trouble.name}: {by_replicas}, and the setting ({trouble.change}) {by_field}")
    verdict = "wrong" if not free else "only_when" if paid or neither else "holds"
    more = say("A20.replicas_for_work", paid=", ".join(paid)) if paid else ""
    return conclude("A20", verdict, told="; ".join(found), free=", ".join(free), more=more)


def d20(options: Mapping[str, GpuOption]) -> Claim:
    """The same few requests on several GPUs; the first two are the article's old and new one."""
    old, new, *fields = options.values()
    gain = old.e2e / new.e2e
    cheapest = min(options.values(), key=lambda each: each.per_day)
    told = "; ".join(
        f"{h.name}: E2E {seconds(h.e2e)}, {dollars(h.per_day)} a day, load {h.load:.2%}" for h in options.values()
    )
    is_off = abs(gain / ARTICLE_GAIN - 1) > 0.25
    return conclude(
        "D20",
        "only_when" if cheapest in fields and cheapest.per_day < old.per_day else "holds",
        few_a_day=FEW_A_DAY,
        told=told,
        gain=gain,
        old_ratio=old.ttft / new.ttft,
        tpot_ratio=old.tpot / new.tpot,
        ratio=new.per_day / old.per_day,
        cheapest=cheapest,
        cheapest_dollars=dollars(cheapest.per_day),
        article=say("D20.article", article_gain=ARTICLE_GAIN) if is_off else "",
    )


def e8(caught: Route, uncaught: Route, plain: PlayedRouting, routed: PlayedRouting, bad: PlayedRouting) -> Claim:
    """Money on paper, with wrong answers caught or not; time simulated: no router, a good one, a bad one."""
    borders = ["any share" if r.break_even is None else f"up to {r.break_even:.0%}" for r in (caught, uncaught)]
    twice = median(itertools.compress(bad.e2e, bad.twice)) if any(bad.twice) else math.nan
    if caught.break_even == 0.0:
        verdict = "wrong"
    elif uncaught.break_even is not None and (
        caught.break_even is None or caught.break_even > COIN > uncaught.break_even
    ):
        verdict = "only_when"
    else:
        verdict = "holds"
    return conclude(
        "E8",
        verdict,
        caught=dollars(1000 * caught.large),
        routed_dollars=dollars(1000 * caught.routed(0.0)),
        borders=borders,
        uncaught=uncaught,
        uncaught_ratio=uncaught.harm / uncaught.large,
        median=[median(run.ttft) for run in (plain, routed, bad)],
        slow="" if math.isnan(twice) else f" A request that was asked twice took {seconds(twice)} in all, p50.",
    )


def three_numbers(price: float) -> Html:
    """The lesson's three numbers, of Llama-3 70B on four H100s at this price of a GPU and hour."""
    chat, *_, _ = regimes().values()
    rent, reasoning = price * GPUS, cost_of_reasoning().answer
    return know_cold(
        (
            f"${chat.input_price(rent):.2f} and ${chat.output_price(rent):.2f}",
            "for a million input and a million output tokens of chat, on a replica that's always full",
            f"rent over tokens, at {dollars(price)} per GPU hour, simulated",
        ),
        (f"×{reasoning:.0f}", "what a reasoning request costs, against a chat", "the bet above"),
        ("×3", "what a request costs on replicas that are a third full, against full ones", "1 / fill"),
    )


EXPERIMENT = ("lab/prices.py", "lessons/lesson_11/run.py", "lessons/lesson_11/fleet.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A20": lambda lab: a20(list(TROUBLES.values()), gpu_price()),
    "D20": lambda lab: d20(gpu_options()),
    "E8": lambda lab: e8(*routing_runs(gpu_price())),
}
