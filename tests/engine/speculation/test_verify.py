"""Checked drafts change nothing: whole outputs, several verifications long, follow the target's exact distribution."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from minillm.core.params import SamplingParams
from minillm.core.request import Draft, Request
from minillm.core.timeline import Timeline
from minillm.runner import rejection_sampler as verify
from minillm.runner.rejection_sampler import RejectionSampler, check_drawn, num_kept
from minillm.runner.rows import DraftPosition
from minillm.runner.sampler import pick, probabilities
from minillm.speculation.draft_model import draw_from

VOCAB, LENGTH, K = 5, 3, 2
NUM_REQUESTS = 8_000
"""Each writes LENGTH tokens."""
TARGET = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1)) * 1.5
"""The model: logits of the next token, by the last one."""
SMALL = TARGET + torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2))
"""Another one, like it but not the same."""
PROMPT = [0]
STOP = int(TARGET[0].argmax())
"""Ends a request; only with min_tokens does that concern the sampler."""

SETTINGS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top-p": {"temperature": 1.3, "top_p": 0.8},
    "top-k": {"top_k": 3},
    "min-p": {"min_p": 0.15},
    "all filters": {"temperature": 1.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.4, "frequency_penalty": 0.6},
    "min tokens": {"min_tokens": 2},
    "penalties and top-p": {"frequency_penalty": 1.0, "top_p": 0.85},
}
QUICK = ("plain", "all filters", "penalties", "min tokens")
"""In `make test`: each filter is in one of them."""


def exact(history: list[int], params: SamplingParams) -> np.ndarray:
    """The next token's distribution, by the definitions, on Python floats."""
    logits = TARGET[(PROMPT + history)[-1]].tolist()
    counts = Counter(history)
    for token in {*PROMPT, *history}:
        value = logits[token]
        value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        logits[token] = value - params.frequency_penalty * counts[token] - params.presence_penalty * (counts[token] > 0)
    if len(history) < params.min_tokens:
        logits[STOP] = -math.inf
    weights = [math.exp((x - max(logits)) / params.temperature) for x in logits]
    ranked = sorted(range(VOCAB), key=lambda token: -weights[token])[: params.top_k or VOCAB]
    nucleus, mass = [], 0.0
    for token in ranked:
        if params.top_p == 1 or mass < params.top_p * sum(weights[t] for t in ranked):
            nucleus.append(token)
        mass += weights[token]
    result = np.zeros(VOCAB)
    for token in nucleus:
        if weights[token] >= params.min_p * weights[ranked[0]]:
            result[token] = weights[token]
    return result / result.sum()


def last_tokens(rows: list[DraftPosition]) -> list[int]:
    return [(row.prompt_token_ids + row.output_token_ids)[-1] for row in rows]


def choose_likeliest(requests: list[Request]) -> None:
    """Drafts as a lookup makes them: chosen, and wrong now and then."""
    for request in requests:
        tokens = [*PROMPT, *request.output_token_ids]
        for _ in range(K):
            tokens.append(int(SMALL[tokens[-1]].argmax()))
        request.draft = Draft(tokens[-K:])


def draw_from_small(requests: list[Request]) -> None:
    """Drafts as a small model makes them, token by token."""
    probs = []
    for request in requests:
        request.draft = Draft()
    for place in range(K):
        rows = [DraftPosition(request, place) for request in requests]
        q = probabilities(SMALL[last_tokens(rows)].clone(), rows)
        for request, token in zip(requests, draw_from(q, rows)):
            request.draft.token_ids.append(token)
        probs.append(q)
    for request, own in zip(requests, torch.stack(probs, dim=1)):
        request.draft.probs = own


def write(draft: Callable[[list[Request]], None], params: SamplingParams) -> tuple[list[tuple[int, ...]], float]:
    """What many requests with different seeds say, and how many tokens a verification yielded."""
    stops = frozenset({STOP})
    requests = [
        Request(str(i), PROMPT, params, Timeline(0.0), seed=i, stop_token_ids=stops) for i in range(NUM_REQUESTS)
    ]
    num_tokens = num_verifications = 0
    while writing := [request for request in requests if request.num_output_tokens < LENGTH]:
        draft(writing)
        rows = [DraftPosition(request, place) for request in writing for place in range(len(request.draft) + 1)]
        outcomes = RejectionSampler()(TARGET[last_tokens(rows)], rows).token_ids
        for request in writing:
            own, outcomes = outcomes[: len(request.draft) + 1], outcomes[len(request.draft) + 1 :]
            kept = own[: num_kept(own, request.draft.token_ids)]
            request.output_token_ids += kept
            num_tokens, num_verifications = num_tokens + len(kept), num_verifications + 1
    return [tuple(request.output_token_ids[:LENGTH]) for request in requests], num_tokens / num_verifications


def p_value(outputs: list[tuple[int, ...]], params: SamplingParams) -> float:
    """How likely outputs at least as far from the exact distribution are."""
    expected = {}
    for tokens in itertools.product(range(VOCAB), repeat=LENGTH):
        steps = [exact(list(tokens[:i]), params)[token] for i, token in enumerate(tokens)]
        expected[tokens] = math.prod(steps) * len(outputs)
    seen = Counter(outputs)
    assert not [tokens for tokens in seen if expected[tokens] == 0], "a token that the filters rule out"
    common = [tokens for tokens, count in expected.items() if count >= 5]
    rare = len(outputs) - sum(expected[tokens] for tokens in common)
    observed = [seen[tokens] for tokens in common]
    pooled = ([rare], [len(outputs) - sum(observed)]) if rare > 1e-6 else ([], [])
    return chisquare(observed + pooled[1], [expected[tokens] for tokens in common] + pooled[0]).pvalue


@pytest.mark.parametrize("draft", [choose_likeliest, draw_from_small])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in SETTINGS]
)
def test_outputs_follow_the_target(name: str, draft: Callable[[list[Request]], None]) -> None:
    params = SamplingParams(**SETTINGS[name])
    outputs, per_verification = write(draft, params)
    assert p_value(outputs, params) > 1e-3
    assert 1.2 < per_verification < K + 0.9, "some drafts must pass, and some must not"


def test_the_chi_square_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is nearly right fails: drafts that always pass, and a rejected one replaced from the target itself."""
    params = SamplingParams()

    def always(target: Tensor, proposal: Tensor, drafts: Tensor, *_: Tensor) -> Tensor:
        return drafts

    def no_residual(target: Tensor, proposal: Tensor, drafts: Tensor, accept: Tensor, again: Tensor) -> Tensor:
        p, q = (probs.gather(1, drafts[:, None])[:, 0] for probs in (target, proposal))
        return torch.where(accept * q < p, drafts, pick(target.cumsum(-1), target.sum(-1), again))

    for wrong in (always, no_residual):
        monkeypatch.setattr(verify, "check_drawn", wrong)
        assert p_value(write(draw_from_small, params)[0], params) < 1e-9


def test_the_share_that_passes_is_the_overlap_of_the_two() -> None:
    """Leviathan et al.'s α = Σ min(p, q), and a chosen token is the case q(x) = 1."""
    n = 40_000
    p = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0]).expand(n, -1)
    q = torch.tensor([0.1, 0.6, 0.1, 0.1, 0.1]).expand(n, -1)
    generator = torch.Generator().manual_seed(0)
    accept, again, draw = torch.rand(3, n, dtype=torch.float64, generator=generator)
    drafts = pick(q.cumsum(-1), q.sum(-1), draw)
    outcomes = check_drawn(p, q, drafts, accept, again)
    assert (outcomes == drafts).double().mean().item() == pytest.approx(0.1 + 0.3 + 0.1 + 0.05, abs=0.01)
    counts = outcomes.bincount(minlength=5)
    assert counts[4] == 0
    assert chisquare(counts[:4].tolist(), [n * share for share in (0.5, 0.3, 0.15, 0.05)]).pvalue > 1e-3
    chosen = torch.zeros_like(q)
    chosen[:, 1] = 1
    outcomes = check_drawn(p, chosen, torch.ones(n, dtype=torch.int64), accept, again)
    assert (outcomes == 1).double().mean().item() == pytest.approx(0.3, abs=0.01)


def test_a_draft_from_the_target_itself_always_passes() -> None:
    p = torch.rand(100, 50, generator=torch.Generator().manual_seed(0)).softmax(-1)
    accept = torch.full((100,), 1 - 2**-52, dtype=torch.float64)
    drafts = torch.arange(100) % 50
    assert torch.equal(check_drawn(p, p.clone(), drafts, accept, accept), drafts)


def test_greedy_and_drawn_rows_share_a_batch() -> None:
    greedy, random = (
        Request(name, PROMPT, SamplingParams(temperature=temperature), Timeline(0.0))
        for name, temperature in (("greedy", 0), ("random", 1))
    )
    for request in (greedy, random):
        request.draft = Draft([3], None if request is greedy else torch.eye(VOCAB)[[3]])
    rows = [DraftPosition(greedy, 0), DraftPosition(random, 0), DraftPosition(greedy, 1), DraftPosition(random, 1)]
    outcomes = RejectionSampler()(TARGET[last_tokens(rows)], rows).token_ids
    assert outcomes[0] == TARGET[0].argmax() and outcomes[2] == TARGET[3].argmax()


@pytest.mark.parametrize(
    ("outcomes", "drafts", "kept"),
    [([7], [], 1), ([7, 8], [7], 2), ([7, 8], [6], 1), ([1, 2, 3], [1, 5], 2), ([1, 2, 3], [5, 2], 1)],
)
def test_outcomes_are_kept_up_to_the_first_that_differs(outcomes: list[int], drafts: list[int], kept: int) -> None:
    assert num_kept(outcomes, drafts) == kept
