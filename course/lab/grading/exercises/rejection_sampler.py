"""Speculative sampling: accept or reject drafts so that the output is distributed as if nothing had been drafted."""

import random
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import chdtrc

from course.lab.grading.exercise import Answer, Mistake
from course.lab.grading.tools import expect, listed, whole

ROUNDS = 2500
CANDIDATES = 150
"""Pairs of distributions that are looked at, to find one that tells mistakes apart."""
IMPOSSIBLE = 1e-7
"""A correct answer falls below this once in ten million checks."""
PLAUSIBLE = 1e-3
Probs = np.ndarray
"""[V] probabilities."""


def distribution(rng: random.Random, size: int, zeros: int = 0) -> Probs:
    weights = np.array([rng.uniform(0.15, 1) for _ in range(size)])
    weights[rng.sample(range(size), zeros)] = 0
    return weights / weights.sum()


def emitted(answer: Answer, target: Sequence[Probs], proposal: Sequence[Probs], drafts: list[int], rng) -> list[int]:
    """One call of the answer, its result read and held to what is possible."""
    found = listed(answer.verify(np.array(target), np.array(proposal), list(drafts), rng), "verify(...)")
    tokens = [whole(token, "a token of verify(...)") for token in found]
    k, vocab = len(drafts), len(target[0])
    expect(
        1 <= len(tokens) <= k + 1,
        f"verify gave {len(tokens)} tokens for {k} drafts: it is 1 to {k + 1}, the drafts that passed and one more"
        + (". When the first draft fails, its replacement is still a token" if not tokens else ""),
    )
    if any(not 0 <= token < vocab for token in tokens):
        raise Mistake(f"verify gave {tokens}: token ids go from 0 to {vocab - 1}")
    failed = next((i for i, token in enumerate(tokens[:-1]) if token != drafts[i]), None)
    expect(failed is None, "drafts_verify_gave", drafts=drafts, tokens=tokens, failed=failed)
    return tokens


# What the first token is distributed as under the usual mistakes. [V], from target p and proposal q.


def mix(p: Probs, q: Probs, passes: Probs, instead: Probs) -> Probs:
    """Drafts from q pass with these probabilities; otherwise a token from `instead`."""
    found = q * passes + (q * (1 - passes)).sum() * (instead / instead.sum() if instead.sum() > 0 else p)
    return found / found.sum()


def ratio(p: Probs, q: Probs) -> Probs:
    return np.minimum(1, p / np.maximum(q, 1e-300))


FIRST_SLIPS: dict[str, Callable[[Probs, Probs], Probs]] = {
    "rejected_draft_replaced_draw": lambda p, q: mix(p, q, ratio(p, q), p),
    "draft_own_distribution": lambda p, q: q,
    "drafts_pass_only_where": lambda p, q: mix(p, q, (p >= q).astype(float), np.maximum(p - q, 0)),
    "drafts_pass_probability_p": lambda p, q: mix(p, q, p, np.maximum(p - q, 0)),
    "replacement_drawn_from_p": lambda p, q: mix(p, q, ratio(p, q), np.abs(p - q)),
    "replacement_drawn_from_max": lambda p, q: mix(p, q, ratio(p, q), np.maximum(q - p, 0)),
    "drafts_pass_probability_min": lambda p, q: mix(p, q, ratio(q, p), np.maximum(p - q, 0)),
    "replacement_drawn_from_draft": lambda p, q: mix(p, q, ratio(p, q), q),
    "replacement_likeliest_token_p": lambda p, q: mix(p, q, ratio(p, q), np.eye(len(p))[p.argmax()]),
    "replacement_likeliest_max_p": lambda p, q: mix(p, q, ratio(p, q), np.eye(len(p))[(p - q).argmax()]),
    "replacement_any_token": lambda p, q: mix(p, q, ratio(p, q), np.ones_like(p)),
    "likeliest_token_p_every": lambda p, q: np.eye(len(p))[p.argmax()],
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


def plausibility(counts: Probs, expected: Probs) -> float:
    """The p-value (chi-square) of counts as draws from a distribution."""
    possible = expected > 0
    if counts[~possible].sum() > 0:
        return 0.0
    wanted = expected[possible] / expected[possible].sum() * counts.sum()
    statistic = ((counts[possible] - wanted) ** 2 / wanted).sum()
    return float(chdtrc(possible.sum() - 1, statistic)) if possible.sum() > 1 else 1.0


def judge_counts(counts: Probs, wanted: Probs, what: str, slips: dict[str, Probs]) -> None:
    if plausibility(counts, wanted) > IMPOSSIBLE:
        return
    found = {words: plausibility(counts, mistaken) for words, mistaken in slips.items()}
    slip = max(found, key=found.get)
    slip = slip if found[slip] > PLAUSIBLE else None
    shares = counts / counts.sum()
    worst = int(np.abs(shares - wanted).argmax())
    told = (
        f"{what}: token {worst} came in {shares[worst]:.1%} of {int(counts.sum())} rounds; p says {wanted[worst]:.1%}"
    )
    raise Mistake(told, slip=slip)


def first_token(answer: Answer, rng: random.Random) -> str:
    for zeros in (0, 1):
        p, q = telling_pair(rng, zeros)
        draws = np.random.default_rng(rng.getrandbits(48))
        drafts = draws.choice(6, size=ROUNDS, p=q)
        first = np.array([emitted(answer, [p, p], [q], [draft], draws)[0] for draft in drafts.tolist()])
        if (first == drafts).all():
            raise Mistake(f"{ROUNDS} drafts, and every draft passes, so the first token is distributed as q, not as p")
        counts = np.bincount(first, minlength=6).astype(float)
        judge_counts(counts, p, "the first token", {words: slip(p, q) for words, slip in FIRST_SLIPS.items()})
    return f"distributed as p, over {2 * ROUNDS} rounds"


def later_tokens(answer: Answer, rng: random.Random) -> str:
    target = [distribution(rng, 4) for _ in range(3)]
    proposal = [0.7 * p + 0.3 * distribution(rng, 4) for p in target[:2]]
    draws = np.random.default_rng(rng.getrandbits(48))
    second, bonus = np.zeros(4), np.zeros(4)
    for _ in range(ROUNDS):
        drafts = [int(draws.choice(4, p=q)) for q in proposal]
        tokens = emitted(answer, target, proposal, drafts, draws)
        if len(tokens) > 1:
            second[tokens[1]] += 1
        if len(tokens) > 2:
            bonus[tokens[2]] += 1
    if second.sum() == 0:
        raise Mistake("never more than one token came, though most drafts should pass: go on after one that passed")
    expect(bonus.sum() != 0, "never_three_tokens_for")
    slips = {
        "row_0_target": target[0],
        "second_last_row": target[1],
        **{words: slip(target[1], proposal[1]) for words, slip in FIRST_SLIPS.items()},
    }
    judge_counts(second, target[1], "the second token, after a draft that passed", slips)
    judge_counts(bonus, target[2], "the bonus token, after two drafts that passed", slips)
    return "each position follows its own row, the bonus the last one"


def certain(answer: Answer, rng: random.Random) -> str:
    size = rng.randint(5, 9)
    draws = np.random.default_rng(rng.getrandbits(48))
    rows = [distribution(rng, size) for _ in range(4)]
    for _ in range(60):
        drafts = [int(draws.choice(size, p=q)) for q in rows[:3]]
        tokens = emitted(answer, rows, rows[:3], drafts, draws)
        if len(tokens) != 4:
            raise Mistake(f"draft and target agree exactly (p = q), so every draft passes; of 3 drafts came {tokens}")
    never, always = rng.sample(range(size), 2)
    p = distribution(rng, size)
    p[never] = 0
    p /= p.sum()
    one_hot = np.eye(size)[always]
    for target, what in ((p, "p gives the draft no chance"), (one_hot, "p is certain of another token")):
        for _ in range(60):
            tokens = emitted(answer, [target] * 4, [np.eye(size)[never]] * 3, [never] * 3, draws)
            if never in tokens or len(tokens) != 1:
                raise Mistake("must_fail_all_drafts", what=what, drafts=[never] * 3, tokens=tokens)
            if target[tokens[0]] == 0:
                raise Mistake(f"{what}: the replacement {tokens[0]} has no chance under p either")
    return "what must pass passes, what cannot does not, and nothing follows a rejection"


def no_drafts(answer: Answer, rng: random.Random) -> str:
    p = distribution(rng, 5, 1)
    draws = np.random.default_rng(rng.getrandbits(48))
    counts = np.zeros(5)
    for _ in range(600):
        tokens = listed(answer.verify(p[None, :].copy(), np.zeros((0, 5)), [], draws), "verify without drafts", 1)
        counts[whole(tokens[0], "a token")] += 1
    judge_counts(counts, p, "without drafts", {"always_likeliest_token": np.eye(5)[p.argmax()]})
    return "without drafts it is plain sampling"


def inputs_alone(answer: Answer, rng: random.Random) -> str:
    draws = np.random.default_rng(rng.getrandbits(48))
    for _ in range(40):
        target, proposal = (np.array([distribution(rng, 4) for _ in range(rows)]) for rows in (3, 2))
        drafts = [int(draws.choice(4, p=q)) for q in proposal]
        given = target.copy(), proposal.copy(), list(drafts)
        listed(answer.verify(*given, draws), "verify(...)")
        for before, after, name in zip((target, proposal, drafts), given, ("target", "proposal", "drafts")):
            expect(np.array_equal(before, after), f"it changes `{name}`: work on a copy, the engine still needs it")
    return "the callers' arrays stay as they were"
