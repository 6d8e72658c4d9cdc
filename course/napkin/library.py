"""All templates, and which sum belongs to a number: a day's, or any."""

import random
from collections.abc import Callable
from datetime import date
from typing import TypeVar

from course.napkin import load, memory, money, steps
from course.napkin.draw import Pick
from course.napkin.napkin import Napkin

T = TypeVar("T")
Template = Callable[[Pick], Napkin]

TEMPLATES: tuple[Template, ...] = (
    memory.kv_per_token,
    memory.kv_of_context,
    memory.latent_kv,
    memory.requests_that_fit,
    memory.kv_transfer,
    memory.swap_or_recompute,
    memory.weights_to_a_node,
    memory.weights_to_a_fleet,
    steps.prefill_time,
    steps.decode_floor,
    steps.sparse_decode_floor,
    steps.decode_rate,
    steps.mbu,
    steps.mfu,
    steps.bend,
    steps.chunk_for_itl,
    steps.experts_read,
    steps.all_reduces,
    steps.tokens_per_verification,
    steps.speculation_speedup,
    steps.dashboards_acceptance,
    steps.context_splits,
    load.in_flight,
    load.most_requests,
    load.ttft_from_queue,
    load.wait_for_prefill,
    load.wait_with_long_tails,
    load.fan_out,
    load.knee,
    load.drain,
    load.replicas_for_prefill,
    load.replicas_for_decode,
    load.prefill_after_hits,
    money.tokens_per_dollar,
    money.price_of_a_million,
    money.agents_tokens,
    money.bill_of_a_month,
)


def napkin_of(seed: int) -> Napkin:
    """The sum of a seed. Seeds that follow each other go through all templates, in another order each time around."""
    times_around, place = divmod(seed, len(TEMPLATES))
    order = random.Random(f"napkins {times_around}").sample(TEMPLATES, len(TEMPLATES))
    return drawn_from(order[place], f"napkin {seed}")


def drawn_from(template: Template, name: str) -> Napkin:
    """A sum from one template: the same name, the same numbers."""
    drawn = random.Random(name)

    def pick(_: str, *options: T) -> T:
        return drawn.choice(options)

    return template(pick)


def napkin_of_day(day: date) -> Napkin:
    """The sum of a day: the same for everyone."""
    return napkin_of(day.toordinal())
