"""Dollars per million tokens from capacity: what a full replica writes, for four kinds of traffic."""

import functools
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.display import Html, table_by_name
from course.lab.explorer import Explorer, slider
from course.lab.finding import Finding, tell
from course.lab.predict import Outcome
from course.lab.style import number
from course.lessons.lesson_11 import fleet, money

REGIMES = {
    "chat, 1,500 in, 150 out": (1500, 150),
    "RAG, 6,000 in, 200 out": (6000, 200),
    "batch summaries, 4,000 in, 500 out": (4000, 500),
    "reasoning, 800 in, 8,000 out": (800, 8000),
}
GPUS = 4


@dataclass(frozen=True)
class Regime:
    """One kind of traffic on one replica that is always full."""

    prompt: int
    answer: int
    rate: float
    """Requests per second."""
    prefill_share: float
    """Of a replica's time, spent on prompts."""

    def per_request(self, rent: float) -> float:
        return rent / 3600 / self.rate

    def input_price(self, rent: float) -> float:
        """Dollars per million prompt tokens: the rent of the time that prefill takes."""
        return 1e6 * self.per_request(rent) * self.prefill_share / self.prompt

    def output_price(self, rent: float) -> float:
        return 1e6 * self.per_request(rent) * (1 - self.prefill_share) / self.answer


@functools.cache
def regimes() -> dict[str, Regime]:
    """All four, at capacity."""
    on = fleet.deployment()
    found = {}
    for name, (prompt, answer) in REGIMES.items():
        traffic = fleet.asking(prompt, answer, spread=False)
        rate = fleet.capacity(traffic)
        prefill = on.step_time().price(simulated_70b.prefill_work(prompt)).total
        found[name] = Regime(prompt, answer, rate, min(rate * prefill, 1.0))
    return found


def regimes_table(gpu_price: float, fill: float) -> Html:
    """What a request and a million tokens cost.

    Args:
        fill: share of the capacity that is used; rent is paid for the rest, too.
    """
    rent = gpu_price * GPUS / fill
    return table_by_name(
        f"${gpu_price:.2f} per GPU hour, {fill:.0%} full",
        regimes(),
        {
            "requests/s": lambda r: number(r.rate),
            "1,000 requests": lambda r: f"${1000 * r.per_request(rent):.2f}",
            "1M input tokens": lambda r: f"${r.input_price(rent):.2f}",
            "1M output tokens": lambda r: f"${r.output_price(rent):.2f}",
            "time in prefill": lambda r: f"{r.prefill_share:.0%}",
        },
    )


def explorer() -> Explorer:
    return Explorer(
        regimes_table,
        gpu_price=slider("$ per GPU hour", 0.5, 8.0, money.gpu_price(), 0.1),
        fill=slider("how full, on average", 0.1, 1.0, 0.6, 0.05),
    )


def told(gpu_price: float) -> Finding:
    """Dollars per million tokens on a full replica, and why they differ."""
    chat, *_, long = regimes().values()
    rent = gpu_price * GPUS
    prices = {
        "chat_in": chat.input_price(rent),
        "chat_out": chat.output_price(rent),
        "long_out": long.output_price(rent),
    }
    return tell("11c", "regimes", "here", gpu=gpu_price, ratio=prices["chat_out"] / prices["chat_in"], **prices)


def reasoning() -> Outcome:
    """A reasoning request's cost over a chat's, on a full replica: the answer to a prediction."""
    chat, *_, long = regimes().values()
    ratio = chat.rate / long.rate
    return Outcome(ratio, f"{number(chat.rate)} chats/s, {number(long.rate)} reasoning requests/s")
