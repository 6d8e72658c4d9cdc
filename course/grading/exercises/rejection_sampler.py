"""Speculative sampling: accept or reject drafts so that the output is distributed as if nothing had been drafted."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from course.grading.tools import Answer, Mistake, expect, listed, whole

ROUNDS = 400
"""For each draft. The generator's numbers are scripted so that they fill their range evenly: no luck is in the shares."""
TOLERANCE = 0.02
SURE = 4.5
"""Standard errors that a share of drawn tokens may be off: a right answer is off by more once in 100,000 shares."""
CANDIDATES = 150
"""Pairs of distributions that are looked at, to find one that tells mistakes apart."""
WIDE = 500
"""Tokens where the target is certain of one: whatever chance a smoothed replacement leaves to each other one adds up."""
CERTAIN_ROUNDS = 4000
"""A replacement that is impossible in 2 of 1,000 rounds stays unseen in one grading of 3,000."""
Probs = np.ndarray
"""[V] probabilities."""


def distribution(rng: random.Random, size: int, zeros: int = 0) -> Probs:
    """Far from even: one token may be ten times as likely as another."""
    weights = np.array([rng.choice((1, 2, 4, 8)) * rng.uniform(0.8, 1.2) for _ in range(size)])
    weights[rng.sample(range(size), zeros)] = 0
    return weights / weights.sum()


def played(
    answer: Answer, rng: random.Random, target: Sequence[Probs], proposal: Sequence[Probs], drafts: list[int], n: int
) -> list[list[int]]:
    """`n` rounds of the answer with a scripted generator, each result read and held to what is possible."""
    rows = np.array(proposal).reshape(len(drafts), len(target[0]))
    function, seed = answer.thing("verify"), rng.getrandbits(32)
    results, changed = answer.prop("rounds", function, np.array(target), rows, drafts, n, seed)
    expect(not changed, "changed_its_input", changed=changed)
    return [read(found, drafts, len(target[0])) for found in results]


def read(found: Any, drafts: list[int], vocab: int) -> list[int]:
    tokens, k = [whole(token, "a token of verify(...)") for token in listed(found, "verify(...)")], len(drafts)
    fields = {"count": len(tokens), "k": k, "most": k + 1, "slip": None if tokens else "no_replacement_token"}
    expect(1 <= len(tokens) <= k + 1, "wrong_number_of_tokens", **fields)
    if any(not 0 <= token < vocab for token in tokens):
        raise Mistake(f"verify gave {tokens}: token ids go from 0 to {vocab - 1}")
    failed = next((i for i, token in enumerate(tokens[:-1]) if token != drafts[i]), None)
    expect(failed is None, "went_on_after_rejection", drafts=drafts, tokens=tokens, failed=failed)
    return tokens


# What the first token is distributed as under the usual mistakes. [V], from target p and proposal q.


def mix(p: Probs, q: Probs, passes: Probs, instead: Probs) -> Probs:
    """Drafts from q pass with these probabilities; otherwise a token from `instead`."""
    found = q * passes + (q * (1 - passes)).sum() * (instead / instead.sum() if instead.sum() > 0 else p)
    return found / found.sum()


def ratio(p: Probs, q: Probs) -> Probs:
    return np.minimum(1, p / np.maximum(q, 1e-300))


FIRST_SLIPS: dict[str, Callable[[Probs, Probs], Probs]] = {
    "replaced_from_p": lambda p, q: mix(p, q, ratio(p, q), p),
    "accepted_every_draft": lambda p, q: q,
    "accepted_without_draw": lambda p, q: mix(p, q, (p >= q).astype(float), np.maximum(p - q, 0)),
    "accepted_with_p": lambda p, q: mix(p, q, p, np.maximum(p - q, 0)),
    "replaced_from_absolute_difference": lambda p, q: mix(p, q, ratio(p, q), np.abs(p - q)),
    "replaced_from_q_minus_p": lambda p, q: mix(p, q, ratio(p, q), np.maximum(q - p, 0)),
    "accepted_with_q_over_p": lambda p, q: mix(p, q, ratio(q, p), np.maximum(p - q, 0)),
    "replaced_from_q": lambda p, q: mix(p, q, ratio(p, q), q),
    "replaced_by_likeliest_of_p": lambda p, q: mix(p, q, ratio(p, q), np.eye(len(p))[p.argmax()]),
    "replaced_by_likeliest_of_residual": lambda p, q: mix(p, q, ratio(p, q), np.eye(len(p))[(p - q).argmax()]),
    "replaced_uniformly": lambda p, q: mix(p, q, ratio(p, q), np.ones_like(p)),
    "always_likeliest_of_p": lambda p, q: np.eye(len(p))[p.argmax()],
}


def telling_pair(rng: random.Random, zeros: int) -> tuple[Probs, Probs]:
    """A target and a proposal [6] under which the usual mistakes differ most, from each other and from the rule.

    Args:
        zeros: tokens that the target rules out.
    """
    pairs = [(distribution(rng, 6, zeros), distribution(rng, 6)) for _ in range(CANDIDATES)]
    return max(pairs, key=lambda pair: least_difference([pair[0], *(slip(*pair) for slip in FIRST_SLIPS.values())]))


def least_difference(distributions: list[Probs]) -> float:
    """How far apart the two most alike of these are (their chi-square distance)."""
    a, b = np.array(distributions)[:, None], np.array(distributions)[None]
    distances = ((a - b) ** 2 / np.maximum(a + b, 1e-12)).sum(axis=2)
    return float(distances[np.triu_indices(len(distributions), k=1)].min())


def shares(tokens: Sequence[int], size: int) -> Probs:
    return np.bincount(tokens, minlength=size)[:size] / max(len(tokens), 1)


def hold_shares(found: Probs, wanted: Probs, what: str, slips: Mapping[str, Probs], rounds: float = math.inf) -> None:
    """No token may come more or less often than it should; a slip is named that comes nearer by far.

    Args:
        rounds: independent ones that the shares are of; infinite where the generator's script leaves them no chance.
    """
    off = np.abs(found - wanted)
    if (off <= np.maximum(TOLERANCE, SURE * np.sqrt(wanted * (1 - wanted) / rounds))).all():
        return
    distances = {name: np.abs(found - mistaken).max() for name, mistaken in slips.items()}
    slip = min(distances, key=distances.__getitem__)
    worst = int(off.argmax())
    words = f"{what}: token {worst} came in {found[worst]:.1%} of the rounds; p says {wanted[worst]:.1%}"
    expect(not (found.max() == 1 > wanted.max() and distances[slip] > 0), "not_drawn_with_rng", words=words)
    raise Mistake(words, slip=slip if distances[slip] <= min(1.5 * TOLERANCE, off.max() / 2) else None)


def hold_passes(tokens: Sequence[Sequence[int]], draft: int, p: Probs, q: Probs) -> None:
    """The share of drafts that were accepted, where none can come back as its own replacement, is right to the round."""
    if p[draft] > q[draft]:
        return
    passed, wanted = float(np.mean([each[0] == draft for each in tokens])), p[draft] / q[draft]
    if abs(passed - wanted) > 2.5 / len(tokens):
        words = f"a draft with p = {p[draft]:.3f} and q = {q[draft]:.3f} came out in {passed:.1%} of the rounds"
        raise Mistake(f"{words}; min(1, p / q) is {wanted:.1%}")


def first_token(answer: Answer, rng: random.Random) -> str:
    for zeros in (0, 1):
        p, q = telling_pair(rng, zeros)
        results = [played(answer, rng, [p, p], [q], [draft], ROUNDS) for draft in range(6)]
        first = [[tokens[0] for tokens in own] for own in results]
        expect(not all((set(tokens) == {draft} for draft, tokens in enumerate(first))), "first_token_from_q")
        found = np.sum([q[draft] * shares(tokens, 6) for draft, tokens in enumerate(first)], axis=0)
        hold_shares(found, p, "the first token", {name: slip(p, q) for name, slip in FIRST_SLIPS.items()})
        for draft, own in enumerate(results):
            hold_passes(own, draft, p, q)
    return f"distributed as p, and each draft passes as often as it should ({12 * ROUNDS} rounds)"


def telling_rows(target: list[Probs]) -> float:
    """How far apart the second token is under the rule and where the first row is taken for the second."""
    p, q, other = target[1], np.roll(target[1], 1), np.roll(target[0], 1)
    mistakes = mix(p, q, ratio(p, q), np.maximum(p - other, 0)), mix(p, q, ratio(p, other), np.maximum(p - q, 0))
    return least_difference([p, target[0], *mistakes])


def later_tokens(answer: Answer, rng: random.Random) -> None:
    target = max(([distribution(rng, 4) for _ in range(3)] for _ in range(CANDIDATES)), key=telling_rows)
    proposal = [np.roll(p, 1) for p in target[:2]]
    lead = int(np.argmin([abs(p / q - 0.6) for p, q in zip(target[0], proposal[0])]))
    second, bonus, weight, variance = np.zeros(4), np.zeros(4), 0.0, 0.0
    for draft in range(4):
        rounds = played(answer, rng, target, proposal, [lead, draft], 4 * ROUNDS)
        after = [tokens[1] for tokens in rounds if len(tokens) > 1]
        expect(after, "stopped_after_first_draft")
        second += proposal[1][draft] * shares(after, 4)
        variance += proposal[1][draft] ** 2 / len(after)
        last = [tokens[2] for tokens in rounds if len(tokens) > 2]
        bonus += len(last) * shares(last, 4)
        weight += len(last)
    expect(weight > 0, "bonus_missing")
    slips = {
        "bonus_from_first_row": target[0],
        "bonus_from_second_last_row": target[1],
        **{words: slip(target[1], proposal[1]) for words, slip in FIRST_SLIPS.items()},
    }
    why = " (is one random number used for two decisions?)"
    hold_shares(second, target[1], f"the second token, after an accepted draft{why}", slips, 1 / variance)
    hold_shares(bonus / weight, target[2], f"the bonus token, after two accepted drafts{why}", slips, weight)


def one_hot(token: int, size: int) -> Probs:
    found = np.zeros(size)
    found[token] = 1
    return found


def certain(answer: Answer, rng: random.Random) -> None:
    size = rng.randint(5, 9)
    draws = answer.prop("draws", rng.getrandbits(48))
    rows = [distribution(rng, size) for _ in range(4)]
    for _ in range(20):
        drafts = rng.choices(range(size), k=3)
        tokens = read(answer.verify(np.array(rows), np.array(rows[:3]), list(drafts), draws), drafts, size)
        expect(len(tokens) == 4, "rejected_identical_draft", tokens=tokens)
    never, always = rng.sample(range(size), 2)
    p = distribution(rng, size)
    p[never] = 0
    p /= p.sum()
    for target, what, rounds in (
        (p, "p gives the draft no chance", 60),
        (one_hot(always, WIDE), "p is certain of another token", CERTAIN_ROUNDS),
    ):
        proposal = one_hot(never, len(target))
        for tokens in played(answer, rng, [target] * 4, [proposal] * 3, [never] * 3, rounds):
            if never in tokens or len(tokens) != 1:
                raise Mistake("accepted_impossible_draft", what=what, drafts=[never] * 3, tokens=tokens)
            if target[tokens[0]] == 0:
                raise Mistake(f"{what}: the replacement {tokens[0]} has no chance under p either")


def no_drafts(answer: Answer, rng: random.Random) -> None:
    p = distribution(rng, 5, 1)
    found = shares([tokens[0] for tokens in played(answer, rng, [p], [], [], ROUNDS)], 5)
    hold_shares(found, p, "without drafts", {"bonus_likeliest": np.eye(5)[p.argmax()]})


def inputs_alone(answer: Answer, rng: random.Random) -> None:
    for _ in range(10):
        target, proposal = ([distribution(rng, 4) for _ in range(rows)] for rows in (3, 2))
        played(answer, rng, target, proposal, rng.choices(range(4), k=2), 10)
