"""Sums about money: tokens and dollars."""

from course.drills.amounts import MONEY, RATIO, TOKEN_RATE, TOKENS
from course.napkin.draw import Pick
from course.napkin.napkin import Napkin
from course.napkin.quantity import Quantity
from course.simulator.cost.hardware import find_hardware

RENTED = ("h100-sxm", "h200", "a100-80gb", "b200")
"""Cards that the catalogue has a price for."""
HOUR_S, MILLION = 3600, 1e6


def tokens_per_dollar(pick: Pick) -> Napkin:
    card, price = _rented(pick)
    speed, full = Quantity(pick("speed", 500, 1_000, 2_000), TOKEN_RATE), Quantity(pick("full", 0.4, 0.5, 0.8), RATIO)
    an_hour = Quantity(HOUR_S * speed.value * full.value, TOKENS)
    tokens = Quantity(an_hour.value / price.value, TOKENS)
    return Napkin(
        "11c",
        f"A card of type {card} rents for {price} an hour. It writes {speed} when it's full, and it's full {full} of "
        "the time, else idle. How many tokens does a dollar buy?",
        tokens,
        (f"an hour: 3600 x {speed} x {full} = {an_hour}", f"{an_hour} / {price} = {tokens}"),
    )


def price_of_a_million(pick: Pick) -> Napkin:
    card, price = _rented(pick)
    cards, speed = pick("cards", 2, 4, 8), Quantity(pick("speed", 1_000, 2_000, 3_000), TOKEN_RATE)
    an_hour = Quantity(HOUR_S * speed.value, TOKENS)
    cost = Quantity(cards * price.value / speed.value / HOUR_S * MILLION, MONEY)
    return Napkin(
        "11c",
        f"A replica of {cards} x {card}, each {price} an hour, writes {speed} on average over the day. What do a "
        "million tokens cost?",
        cost,
        (
            f"tokens an hour: 3600 x {speed} = {an_hour}",
            f"{cards} x {price} / {an_hour} x 1 million = {cost}",
        ),
    )


def agents_tokens(pick: Pick) -> Napkin:
    turns, first = pick("turns", 10, 20, 40), pick("first", 2_000, 4_000, 8_000)
    grown, price = pick("grown", 500, 1_000, 2_000), Quantity(pick("price", 0.5, 1.0, 3.0), MONEY)
    tokens = Quantity(turns * first + grown * turns * (turns - 1) / 2, TOKENS)
    cost = Quantity(tokens.value * price.value / MILLION, MONEY)
    return Napkin(
        "11c",
        f"An agent calls a model {turns} times. The first prompt has {first:,} tokens, and each call sends all of it "
        f"again with {grown:,} more. A million prompt tokens cost {price}, cached or not. What do the prompts of the "
        "task cost?",
        cost,
        (
            f"prompts grow, so it's a triangle: {turns} x {first:,} + {grown:,} x {turns} x ({turns} - 1) / 2 = "
            f"{tokens}",
            f"{tokens} x {price} / 1 million = {cost}",
        ),
    )


def bill_of_a_month(pick: Pick) -> Napkin:
    card, price = _rented(pick)
    replicas, cards = pick("replicas", 6, 10, 25, 60), pick("cards", 2, 4, 8)
    bill = Quantity(replicas * cards * price.value * 24 * 30, MONEY)
    return Napkin(
        "11c",
        f"{replicas} replicas of {cards} x {card} run day and night, at {price} an hour for each card. What does a "
        "month of 30 days cost?",
        bill,
        (f"{replicas} x {cards} x {price} x 24 x 30 = {bill}",),
    )


def _rented(pick: Pick) -> tuple[str, Quantity]:
    """A card, and what an hour of it costs."""
    name = pick("card", *RENTED)
    return name, Quantity(find_hardware(name).price_per_hour or 0.0, MONEY)
