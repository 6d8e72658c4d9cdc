"""Sampled tokens follow the exact distribution, seeds reproduce in any company, greedy is an argmax."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.runner import sampler
from minillm.runner.draws import uniform
from minillm.runner.sampler import FIRST_PREFIX, Sampler, apply_penalties

LOGITS = torch.tensor([2.0, -1.0, 0.5, 3.0, 0.0, 1.5, -3.0, 2.5, 0.7, -0.2])


def make_request(
    seed: int = 0, output: list[int] | None = None, prompt: list[int] | None = None, name: str = "r", **params: object
) -> Request:
    return Request(name, prompt or [1], SamplingParams(**params), Timeline(0.0), seed, output_token_ids=output or [])


def draws(logits: torch.Tensor, num_draws: int, **params: object) -> Counter[int]:
    """Many independent draws from one distribution: every row has another seed or another position."""
    settings_ = SamplingParams(**params)
    requests = [
        Request(str(i), [1], settings_, Timeline(0.0), seed=i // 8, output_token_ids=[0] * (i % 8))
        for i in range(num_draws)
    ]
    return Counter(Sampler()(logits.expand(num_draws, -1), requests).token_ids)


def reference(logits: torch.Tensor, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """The distribution by the definitions, slowly, on Python floats."""
    weights = {token: math.exp((x - max(logits.tolist())) / temperature) for token, x in enumerate(logits.tolist())}
    ranked = sorted(weights, key=lambda token: -weights[token])
    if top_k:
        ranked = ranked[:top_k]
    whole, mass, nucleus = sum(weights[token] for token in ranked), 0.0, []
    for token in ranked:
        if mass >= top_p * whole and top_p < 1:
            break
        nucleus.append(token)
        mass += weights[token]
    kept = [token for token in nucleus if weights[token] >= min_p * weights[ranked[0]]]
    result = np.zeros(len(weights))
    result[kept] = [weights[token] for token in kept]
    return result / result.sum()


def assert_follows(counts: Counter[int], expected: np.ndarray) -> None:
    assert set(counts) <= set(np.flatnonzero(expected)), "a token that the filters remove was drawn"
    support = np.flatnonzero(expected)
    if len(support) > 1:
        total = counts.total()
        assert chisquare([counts[t] for t in support], expected[support] * total).pvalue > 1e-4


COMBINATIONS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.5},
    {"top_k": 3},
    {"top_p": 0.8},
    {"top_p": 0.3},
    {"min_p": 0.1},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.8, "top_k": 4, "top_p": 0.6},
    {"temperature": 3.0, "top_p": 0.9, "min_p": 0.5},
    {"top_k": 100},
    {"top_k": 2**63 - 1, "top_p": 0.9},
    {"top_k": 10**400},
]


@pytest.mark.parametrize("params", COMBINATIONS, ids=str)
def test_draws_follow_the_exact_distribution(params):
    assert_follows(draws(LOGITS, 20_000, **params), reference(LOGITS, **params))


@pytest.mark.parametrize("params", COMBINATIONS, ids=str)
def test_the_support_is_hugging_faces(params):
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.get("temperature", 1.0))])
    if params.get("top_k"):
        warpers.append(TopKLogitsWarper(params["top_k"]))
    if params.get("top_p", 1.0) < 1:
        warpers.append(TopPLogitsWarper(params["top_p"]))
    if params.get("min_p"):
        warpers.append(MinPLogitsWarper(params["min_p"]))
    expected = torch.softmax(warpers(None, LOGITS[None].clone()), -1)[0]
    np.testing.assert_allclose(reference(LOGITS, **params), expected.numpy(), atol=1e-6)


def test_a_nucleus_wider_than_the_first_prefix_is_exact():
    """Flat logits: 90% of the mass needs far more tokens than are sorted at first."""
    logits = torch.linspace(0, 0.5, 10 * FIRST_PREFIX)
    counts = draws(logits, 4000, top_p=0.9)
    support = np.flatnonzero(reference(logits, top_p=0.9))
    assert len(support) > FIRST_PREFIX
    assert set(counts) <= set(support.tolist())
    assert min(counts) < support.min() + 50, "the border of the nucleus is reached"


@pytest.mark.parametrize("top_k", [1, 3, FIRST_PREFIX, FIRST_PREFIX + 1, 2000, 5000])
def test_top_k_keeps_exactly_k_even_among_equals(top_k):
    """All logits equal: the k lowest ids are kept, and the draws reach (nearly) to the border."""
    counts = draws(torch.zeros(2500), 3000, top_k=top_k)
    kept = min(top_k, 2500)
    assert 0.9 * (kept - 1) <= max(counts) < kept


def test_bfloat16_ties_are_drawn_alike():
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0, 3.0, 2.0]).bfloat16()
    expected = reference(logits.float(), top_k=4)
    assert np.count_nonzero(expected) == 4
    assert_follows(draws(logits, 20_000, top_k=4), expected)


@pytest.mark.parametrize(
    "params",
    [
        *({"top_p": 0.9}, {"top_p": 0.6, "min_p": 0.7}),
        *(pytest.param(each, marks=pytest.mark.slow) for each in ({"min_p": 0.7}, {"top_p": 0.1})),
    ],
    ids=str,
)
@pytest.mark.parametrize("ties", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_gpu_draws_from_a_wide_nucleus_without_being_waited_for(params, ties, monkeypatch):
    """The same tokens as a CPU's, which looks at how wide the nucleus is; only the sums' last bits may differ."""
    pytest.importorskip("triton", reason="triton is for Linux")
    torch.manual_seed(0)
    logits = torch.rand(12, 4 * FIRST_PREFIX) * 0.7
    logits = logits.bfloat16() if ties else logits
    requests = [make_request(i, name=str(i), **params) for i in range(10)]
    requests += [make_request(i, name=str(i), **params, top_k=9 * i) for i in (10, 11)]
    expected = Sampler()(logits, requests)
    for name in ("item", "tolist", "__int__", "__bool__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, read_back)
    with pytest.raises(AssertionError, match="waits"):
        Sampler().launch(logits, requests)
    from minillm.kernels.triton.nucleus import draw_wide  # here, as Triton may not be installed

    monkeypatch.setattr(sampler, "select_draw_wide", lambda device: draw_wide)
    launched = Sampler().launch(logits, requests)
    monkeypatch.undo()
    same = [mine == own for mine, own in zip(launched.wait().token_ids, expected.token_ids)]
    assert sum(same) >= 11


def read_back(*_: object) -> None:
    raise AssertionError("the host waits for the device")


def test_uniform_numbers_are_uniform_and_uncorrelated():
    grid = np.array([[uniform(seed, position) for position in range(200)] for seed in range(200)])
    assert chisquare(np.histogram(grid, bins=100, range=(0, 1))[0]).pvalue > 1e-4
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.02, "neighbouring seeds"
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.02, "neighbouring positions"
    assert grid.min() >= 0
    assert grid.max() < 1


params_strategy = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 5, 1000]),
        "top_p": st.sampled_from([1.0, 0.9, 0.2]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
    }
)


@given(rows=st.lists(st.tuples(st.integers(0, 2**63 - 1), params_strategy), min_size=1, max_size=8), data=st.data())
@settings(max_examples=60)
def test_a_request_draws_the_same_token_in_any_batch(rows, data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    logits = (torch.randn(len(rows), 700) * 3).bfloat16()
    requests = [make_request(seed, output=[i, i, 3], name=str(i), **params) for i, (seed, params) in enumerate(rows)]
    alone = [Sampler()(logits[i : i + 1], [request]).token_ids[0] for i, request in enumerate(requests)]
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = Sampler()(logits[order], [requests[i] for i in order]).token_ids
    assert shuffled == [alone[i] for i in order]


def test_seed_and_position_both_matter():
    logits = torch.zeros(1, 50_000)
    tokens = {
        (seed, n): Sampler()(logits, [make_request(seed, [0] * n)]).token_ids[0] for seed in (1, 2) for n in (0, 1)
    }
    assert len(set(tokens.values())) == 4


def test_greedy_ignores_everything_random():
    requests = [make_request(seed, temperature=0, top_k=5, top_p=0.5, min_p=0.2) for seed in range(20)]
    assert set(Sampler()(LOGITS.expand(20, -1), requests).token_ids) == {3}


def test_logits_are_left_unchanged():
    logits = torch.randn(4, 30)
    before = logits.clone()
    requests = [make_request(i, [1, 2], temperature=i % 2, repetition_penalty=2.0, logprobs=3) for i in range(4)]
    Sampler()(logits, requests)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("repetition", "presence", "frequency"), [(1.3, 0, 0), (0.7, 0, 0), (1, 1.5, 0), (1, 0, -0.4), (1.2, 0.5, 0.25)]
)
def test_penalties_match_the_definitions(repetition, presence, frequency):
    prompt, output = [0, 1, 1, 6], [3, 6, 3, 3]
    expected = LOGITS.tolist()
    for token in range(len(expected)):
        if token in prompt or token in output:
            expected[token] *= repetition if expected[token] < 0 else 1 / repetition
        expected[token] -= presence * (token in output) + frequency * output.count(token)
    logits = torch.stack([LOGITS, LOGITS])
    penalized = make_request(
        0, output, prompt, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    apply_penalties(logits, [penalized, make_request()])
    torch.testing.assert_close(logits[0], torch.tensor(expected))
    assert torch.equal(logits[1], LOGITS), "the neighbour has no penalty"


def test_a_bias_is_added_before_the_penalties():
    logits = LOGITS[None].clone()
    request = make_request(output=[3], logit_bias={3: 2.0, 7: -1.5}, frequency_penalty=0.5)
    apply_penalties(logits, [request])
    changed = {3: LOGITS[3] + 2.0 - 0.5, 7: LOGITS[7] - 1.5}
    assert all(logits[0, token] == pytest.approx(float(changed.get(token, LOGITS[token]))) for token in range(10))
    assert hash(request.params) == hash(request.params), "parameters can be keys"


@pytest.mark.parametrize("penalty", [5e-324, 1e-40, 1e40, 1e308])
def test_extreme_penalties_still_yield_a_token(penalty):
    request = make_request(output=list(range(10)), repetition_penalty=penalty)
    assert Sampler()(LOGITS[None], [request]).token_ids[0] in range(10)


@pytest.mark.parametrize(
    "params",
    [
        *({"temperature": temperature, "top_k": 5, "top_p": 0.9} for temperature in (5e-324, 1e-40, 1e-6)),
        *({"temperature": 5e-324}, {"top_p": 1e-300}, {"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}),
        *({"temperature": 1e300}, {"temperature": 1e300, "top_k": 100}),
    ],
    ids=str,
)
def test_extremes_follow_it_too(params):
    """The tightest keep the likeliest, a huge temperature makes all alike."""
    assert_follows(
        draws(LOGITS, 5_000 if params.get("temperature", 0) > 1 else 300, **params), reference(LOGITS, **params)
    )


@pytest.mark.parametrize(
    "params", [{}, {"top_k": 4}, {"top_p": 0.5}, {"min_p": 0.1}, {"temperature": 0}, {"temperature": 9}]
)
def test_all_but_one_impossible(params):
    logits = torch.full((10,), -math.inf)
    logits[6] = -2.0
    assert set(draws(logits, 300, **params)) == {6}


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_harms_no_other(broken, temperature):
    logits = LOGITS.repeat(3, 1)
    healthy = [make_request(i, name=str(i), temperature=temperature, logprobs=1) for i in range(3)]
    expected = Sampler()(logits, healthy)
    logits[1, 4] = broken
    sampled = Sampler()(logits, healthy)
    assert list(sampled.errors) == ["1"]
    assert "checkpoint" in sampled.errors["1"]
    assert sampled.token_ids == [expected.token_ids[0], -1, expected.token_ids[2]]
    assert sampled.logprobs == [expected.logprobs[0], None, expected.logprobs[2]]


def test_a_row_with_nothing_possible_is_an_error():
    sampled = Sampler()(torch.full((1, 8), -math.inf), [make_request()])
    assert sampled.token_ids == [-1]
    assert "infinite" in sampled.errors["r"]


def test_logprobs_are_of_the_raw_distribution():
    request = make_request(output=[3, 3], temperature=0.1, top_k=2, repetition_penalty=1.9, logprobs=4)
    sampled = Sampler()(torch.stack([LOGITS, LOGITS]), [request, make_request(1)])
    raw = torch.log_softmax(LOGITS, -1)
    found = sampled.logprobs[0]
    assert found.token_id == sampled.token_ids[0]
    assert found.logprob == pytest.approx(raw[found.token_id].item(), abs=1e-6)
    assert list(found.top) == [3, 7, 0, 5], "likeliest first"
    assert list(found.top.values()) == pytest.approx(raw[[3, 7, 0, 5]].tolist(), abs=1e-6)
    assert sampled.logprobs[1] is None


def test_zero_logprobs_reports_the_sampled_token_alone():
    found = Sampler()(LOGITS[None], [make_request(temperature=0, logprobs=0)]).logprobs[0]
    assert (found.token_id, found.top) == (3, {})


def test_as_many_requests_as_rows():
    with pytest.raises(ValueError, match="2 rows"):
        Sampler()(torch.zeros(2, 5), [make_request()])


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"temperature": 0.5, "top_k": 3, "top_p": 0.9}], ids=str)
def test_no_stop_token_comes_before_min_tokens(params: dict):
    """Token 3 is the likeliest; what a client names as stop tokens may be no tokens at all."""

    def sample(num_output: int, **more: object) -> int:
        request = make_request(seed=5, output=[0] * num_output, **{**params, "min_tokens": 2, **more})
        request.stop_token_ids = frozenset({3, 7, -1, 10**12})
        neighbour = make_request(temperature=0, name="neighbour")
        tokens = Sampler()(LOGITS.expand(2, -1), [request, neighbour]).token_ids
        assert tokens[1] == 3
        return tokens[0]

    assert {sample(num_output) for num_output in (0, 1)} <= set(range(10)) - {3, 7}
    assert sample(0, logit_bias={3: 1e30}) != 3 and sample(1, repetition_penalty=1e-30, prompt=[3]) != 3
    assert sample(2, logit_bias={3: 100}) == 3


def test_a_greedy_request_with_its_min_tokens_is_done_after_one_pass(monkeypatch: pytest.MonkeyPatch):
    chosen: list[str] = []
    choose = Sampler.choose

    def noted(self: Sampler, logits: torch.Tensor, rows: list[Request]) -> torch.Tensor:
        chosen.extend(row.request_id for row in rows)
        return choose(self, logits, rows)

    monkeypatch.setattr(Sampler, "choose", noted)
    for num_output, general in ((1, ["r"]), (2, [])):
        request = make_request(temperature=0, min_tokens=2, output=[0] * num_output)
        request.stop_token_ids = frozenset({7})
        assert Sampler()(LOGITS[None], [request]).token_ids == [3]
        assert chosen == general
        chosen.clear()


def test_a_grammar_that_allows_only_the_end_outranks_min_tokens():
    request = make_request(temperature=0.7, min_tokens=5, logprobs=1)
    request.stop_token_ids = frozenset({3})
    only_the_end = torch.full((1, 10), -math.inf)
    only_the_end[0, 3] = LOGITS[3]
    sampled = Sampler().launch(LOGITS[None], [request], only_the_end).wait()
    assert sampled.token_ids == [3] and not sampled.errors
    assert sampled.logprobs[0].logprob == pytest.approx(LOGITS.log_softmax(-1)[3].item())
