"""A mixture of experts: which experts a token goes to, with which shares, and what the layer gives."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course.grading.arrays import array, finite, within
from course.grading.blame import Mistake
from course.grading.props import DIM, Mlp
from course.grading.remote import Answer
from course.grading.tools import Slips, compare, each, expect, hold, listed, whole

Array = np.ndarray
TOLERANCE = 1e-5


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def right_experts(logits: Array, k: int, normalize: bool = True) -> list[list[int]]:
    return [sorted(range(len(row)), key=lambda e: (-row[e], e))[:k] for row in logits.tolist()]


def taken(values: Array, logits: Array, k: int) -> Array:
    return np.take_along_axis(values, np.array(right_experts(logits, k)), axis=1)


def right_shares(logits: Array, k: int, normalize: bool) -> Array:
    shares = taken(softmax(logits), logits, k)
    return shares / shares.sum(axis=1, keepdims=True) if normalize else shares


EXPERT_SLIPS: Slips = {
    "chose_smallest": lambda logits, k, _: right_experts(-logits, k),
    "ordered_by_number": lambda logits, k, _: [sorted(row) for row in right_experts(logits, k)],
    "ordered_ascending": lambda logits, k, _: [row[::-1] for row in right_experts(logits, k)],
    "tie_to_higher_number": lambda logits, k, _: [
        [logits.shape[1] - 1 - e for e in row] for row in right_experts(logits[:, ::-1], k)
    ],
}
SHARE_SLIPS: Slips = {
    "shares_not_normalized": lambda logits, k, _: taken(softmax(logits), logits, k),
    "always_normalized": lambda logits, k, _: right_shares(logits, k, True),
    "logits_as_shares": lambda logits, k, _: taken(logits, logits, k),
    "sigmoid_as_shares": lambda logits, k, _: taken(1 / (1 + np.exp(-logits)), logits, k),
}


def right_rows(experts: Sequence[Sequence[int]], num_experts: int) -> list[list[int]]:
    return [[t for t, row in enumerate(experts) if e in row] for e in range(num_experts)]


ROW_SLIPS: Slips = {
    "grouped_by_token": lambda experts, n: [list(row) for row in experts],
    "idle_expert_left_out": lambda experts, n: [rows for rows in right_rows(experts, n) if rows],
}


def mixed(join: Callable[[Array, Array, Array], Array]) -> Callable[..., Array]:
    """An output made of one token's (experts' outputs [k, h], shares [k], experts [k])."""

    def output(x: Array, logits: Array, k: int, seed: int, normalize: bool) -> Array:
        mlps = [Mlp(seed + e) for e in range(logits.shape[1])]
        chosen, parts = right_experts(logits, k), right_shares(logits, k, normalize)
        outs = [np.array([mlps[e](x[t : t + 1])[0] for e in chosen[t]]) for t in range(len(x))]
        return np.array([join(*each) for each in zip(outs, parts, np.array(chosen))])

    return output


right_output = mixed(lambda outs, parts, chosen: parts @ outs)
OUTPUT_SLIPS: Slips = {
    "summed_without_shares": mixed(lambda outs, parts, chosen: outs.sum(axis=0)),
    "first_expert_only": mixed(lambda outs, parts, chosen: parts[0] * outs[0]),
    "averaged_experts": mixed(lambda outs, parts, chosen: outs.mean(axis=0)),
    "last_expert_wins": mixed(lambda outs, parts, chosen: parts[chosen.argmax()] * outs[chosen.argmax()]),
}


def some_logits(rng: random.Random, tokens: int, experts: int, ties: bool = False, large: float = 1.0) -> Array:
    """Whole eighths: equal ones are exactly equal."""
    draws = np.random.default_rng(rng.getrandbits(48))
    logits = np.round(draws.normal(0, 2 * large, (tokens, experts)) * 8) / 8 + (large > 1) * 1000
    if ties:
        logits[:, rng.sample(range(experts), 3)] = logits.max(axis=1, keepdims=True) + 1
    return logits


def questions(rng: random.Random) -> list[tuple[Array, int, bool]]:
    shapes = [(1, 4, 1), (3, 8, 2), (6, 8, 3), (5, 16, 4), (4, 5, 5), (2, 64, 8)]
    found = [(some_logits(rng, t, n), k, normalize) for t, n, k in shapes for normalize in (True, False)]
    found += [(some_logits(rng, 4, 8, ties=True), 2, normalize) for normalize in (True, False)]
    far = np.array([[-400.0, 900.0, -300.0, 0.0]])  # so far apart that a softmax gives 0 for most
    return [*found, (far, 3, False), *((some_logits(rng, 3, 6, large=300), 2, each) for each in (True, False))]


def routed(answer: Answer, question: tuple[Array, int, bool]) -> list[Any]:
    return listed(answer.route(*question), "route(...)", 2)


def described(logits: Array, k: int, normalize: bool) -> str:
    return f"route of {len(logits)} tokens over {logits.shape[1]} experts, k={k}, normalize={normalize}:"


def which(answer: Answer, rng: random.Random) -> None:
    cases = [(q, each(each(whole))(routed(answer, q)[0], "the experts")) for q in questions(rng)]
    compare("experts", cases, right_experts, EXPERT_SLIPS, describe=lambda *q: f"{described(*q)} the experts")


def shares(answer: Answer, rng: random.Random) -> None:
    for normalize in (True, False):
        asked = [q for q in questions(rng) if q[2] == normalize]
        tip = "exp() of a large logit overflows: subtract each row's largest first"
        cases = [(q, finite(routed(answer, q)[1], "the shares", (len(q[0]), q[1]), tip)) for q in asked]
        about = {"agree": within(TOLERANCE), "describe": lambda *q: f"{described(*q)} the shares"}
        compare("shares", cases, right_shares, SHARE_SLIPS, **about)


def rows(answer: Answer, rng: random.Random) -> None:
    chosen = [(right_experts(some_logits(rng, t, n), k), n) for t, n, k in ((5, 4, 2), (1, 8, 2), (9, 6, 1), (3, 3, 3))]
    asked = [*chosen, ([[0, 2], [2, 0]], 4), *((np.array(experts), n) for experts, n in chosen)]
    hold(answer.rows_of, asked, right_rows, ROW_SLIPS, each(each(whole)))


def layers(rng: random.Random) -> list[tuple[Array, Array, int, int, bool]]:
    """x, logits, k, the seed of the MLPs, normalize."""
    draws = np.random.default_rng(rng.getrandbits(48))
    shapes = ((1, 4, 1), (6, 8, 2), (6, 8, 2), (5, 4, 3), (12, 16, 4), (3, 6, 2))
    return [
        (draws.normal(size=(t, DIM)), some_logits(rng, t, n), k, rng.randrange(10**6), i % 2 == 0)
        for i, (t, n, k) in enumerate(shapes)
    ]


def asked_layer(answer: Answer, case: tuple[Array, Array, int, int, bool]) -> tuple[Array, list[list[int]]]:
    """The output, and of each expert how many rows each of its calls had."""
    x, logits, k, seed, normalize = case
    mlps = [answer.prop("Mlp", seed + e) for e in range(logits.shape[1])]
    found = array(answer.mixture(x, logits, k, mlps, normalize), "mixture(...)", x.shape)
    return found, [mlp.calls for mlp in mlps]


def output(answer: Answer, rng: random.Random) -> None:
    cases = [(case, asked_layer(answer, case)[0]) for case in layers(rng)]
    compare(
        "mixture",
        cases,
        right_output,
        OUTPUT_SLIPS,
        agree=within(TOLERANCE),
        describe=lambda x, logits, k, _, normalize: f"mixture: {len(x)} tokens, {logits.shape[1]} experts, k={k}",
    )


def idle(answer: Answer, rng: random.Random) -> None:
    for case in layers(rng):
        x, logits, k, *_ = case
        what = f"mixture of {len(x)} tokens over {logits.shape[1]} experts, k={k}"
        _, calls = asked_layer(answer, case)
        for expert, (own, tokens) in enumerate(zip(calls, right_rows(right_experts(logits, k), logits.shape[1]))):
            if 0 in own or (own and not tokens):
                raise Mistake("called_idle_expert", 0.5 if tokens else 0.0, what=what, expert=expert)
            expect(len(own) <= 1, "called_expert_often", what=what, expert=expert, times=len(own))
            expect(sum(own) == len(tokens), f"{what}: expert {expert} got {sum(own)} rows for {len(tokens)} tokens")
