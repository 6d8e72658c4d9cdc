"""The course's key facts, as cards. Numbers come from the formulas that the lessons show."""

import tomllib
from collections.abc import Callable
from pathlib import Path

from course.lab.model_shape import LLAMA_13B, LLAMA_70B
from course.lab.roof import on_paper
from course.lab.speculation_gain import emitted
from course.lab.style import number, seconds
from course.lessons.lesson_02.theory import md1_wait
from course.lessons.start.cards import Card
from course.simulator.cost.profile import find_profile
from minillm.model.arithmetic import find_model

CHAT = 1500
"""Tokens of a chat in these cards: prompt and answer."""


def waits() -> str:
    told = ", ".join(f"{load:.0%}: {number(md1_wait(load))}" for load in (0.5, 0.8, 0.95))
    return f"In service times, M/D/1: {told}. It grows with load / (1 - load)."


def crossover() -> str:
    model = find_model("llama-3-70b")
    half = model.layer_params / (model.layers * model.query_size)
    told = f"about {round(half, -3):,.0f} tokens"
    return f"At P / (layers x heads x head size): {told}. Far below that a prompt is nearly linear."


def floor() -> str:
    shortest = seconds(on_paper(gpus=4).reading(LLAMA_70B.weight_bytes))
    return (
        f"Bytes of weights over bandwidth: {number(LLAMA_70B.weight_bytes / 1e9)} GB over four times "
        f"{number(on_paper().bandwidth / 1e12)} TB/s is {shortest}. No step is shorter; launches and links add to it."
    )


def kv_of_a_chat() -> str:
    each = LLAMA_70B.kv_bytes_per_token
    formula = "2 x layers x KV heads x head size x bytes"
    return f"{formula} = {each:,} B a token: {CHAT * each / 1e6:.0f} MB for {CHAT:,} tokens."


def kv_border() -> str:
    told = ", ".join(f"{m.name} ({m.kind}) {m.crossover_tokens:,.0f}" for m in (LLAMA_13B, LLAMA_70B))
    return f"Weight bytes over KV bytes a token, over all contexts together: {told} tokens in 16 bits."


def ridge() -> str:
    return (
        f"FLOP/s over bytes/s: {number(on_paper().ridge)} for an H100 by its data sheet. Below it, memory is the limit."
    )


def drafts() -> str:
    return (
        f"1 + a + ... + a^k = {number(emitted(0.6, 4))} tokens for a = 0.6, k = 4. Not k x a: the first wrong guess "
        "ends it, and even then one token comes out. Divide by what drafting and checking cost."
    )


def demand() -> str:
    qps, prompt, gpus, mfu = 100, CHAT, 4, find_profile("h100-sxm").constants.mfu
    needs = 2 * find_model("llama-3-70b").layer_params * prompt * qps
    has = gpus * on_paper().flops * mfu
    return (
        f"Prefill alone: 2 x P x tokens/s = {needs:.1e} FLOP/s, and four H100s have {has:.1e} at an MFU of "
        f"{mfu:.0%}: {needs / has:.0f} times what they can do. No setting changes that."
    )


ANSWERS: dict[str, Callable[[], str]] = {
    answer.__name__: answer for answer in (waits, crossover, floor, ridge, kv_border, kv_of_a_chat, drafts, demand)
}


def read_cards(file: Path) -> tuple[Card, ...]:
    """The cards of a TOML file; answers that are numbers are computed by ANSWERS when they are asked for."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["card"]
    return tuple(
        Card(row["key"], row["lesson"], row["heading"], row["question"], row.get("answer") or ANSWERS[row["answer_by"]])
        for row in rows
    )


CARDS = read_cards(Path(__file__).with_name("cards.toml"))
