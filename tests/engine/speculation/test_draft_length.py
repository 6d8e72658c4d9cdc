"""When drafting is worth it: short outputs, large batches, low acceptance, and how far to draft."""

import random
from typing import Any

import pytest

from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.policies.config import SpeculativeConfig
from minillm.speculation.draft_length import GPU_ROW, DraftLength


def make_request(name: str = "r", max_tokens: int = 1000, num_output: int = 1) -> Request:
    return Request(name, [1], SamplingParams(max_tokens=max_tokens), Timeline(0.0), output_token_ids=[0] * num_output)


def make_gates(**fields: object) -> DraftLength:
    return DraftLength(SpeculativeConfig(**{"method": "ngram", "k": 4, **fields}))


def feed(
    length: DraftLength, request: Request, rate: float, num_steps: int, seed: int = 0, num_running: int = 1
) -> list[int]:
    """Steps in which each draft token passes with probability `rate`; how many were drafted in each."""
    rng, drafted = random.Random(seed), []
    for _ in range(num_steps):
        k = length.num_drafts(request, num_running)
        drafted.append(k)
        passed = 0
        while passed < k and rng.random() < rate:
            passed += 1
        if k:
            length.observe(request, k, passed)
    return drafted


def test_short_outputs_and_large_batches_are_left_alone() -> None:
    length = make_gates(min_output_tokens=10, max_batch=3)
    assert length.num_drafts(make_request(max_tokens=9), 1) == 0
    assert length.num_drafts(make_request(max_tokens=10), 1) > 0
    assert length.num_drafts(make_request(), 3) > 0
    assert length.num_drafts(make_request(), 4) == 0


@pytest.mark.parametrize(
    ("row_cost", "fields", "most"),
    [
        (0.25, {}, 8),
        (0.12, {}, 8),
        (0.03, {}, 33),
        (GPU_ROW, {}, 64),
        (0.25, {"acceptance_floor": 0.0}, 64),
        (GPU_ROW, {"max_batch": 3}, 3),
    ],
)
def test_how_many_may_draft_follows_from_what_a_row_costs(row_cost: float, fields: dict[str, Any], most: int) -> None:
    config = SpeculativeConfig(method="ngram", k=4, **fields)
    length = DraftLength(config, row_cost)
    length._pooled.passed = length._pooled.tried  # all drafts pass: only the batch decides
    assert [length.num_drafts(make_request(), n) > 0 for n in (most, most + 1)] == [True, False]
    assert config.most_drafting >= most


def test_no_more_is_drafted_than_can_be_used() -> None:
    length = make_gates(adaptive_k=False)
    assert [length.num_drafts(make_request(max_tokens=20, num_output=n), 1) for n in (15, 17, 18, 19)] == [4, 2, 1, 0]


def test_below_the_floor_it_stops_and_tries_again_later() -> None:
    length, request = make_gates(acceptance_floor=0.3, reprobe_steps=50), make_request()
    drafted = feed(length, request, rate=0.0, num_steps=400)
    assert sum(k > 0 for k in drafted[:20]) <= 8, "it takes a few drafts to see that"
    tries = [step for step, k in enumerate(drafted[20:]) if k]
    assert len(tries) in (7, 8), "then one in 50 steps"
    assert sum(drafted[20:]) <= 8 * 4
    assert length.rate(request) < 0.1


def test_it_comes_back_when_drafts_pass_again() -> None:
    length, request = make_gates(acceptance_floor=0.25, reprobe_steps=20), make_request()
    feed(length, request, rate=0.0, num_steps=100)
    drafted = feed(length, request, rate=0.9, num_steps=300)
    assert drafted[-50:] == [4] * 50


@pytest.mark.parametrize(("rate", "k"), [(0.95, 8), (0.8, 6), (0.5, 2), (0.35, 1)])
def test_a_draft_ends_where_its_next_token_is_not_worth_it(rate: float, k: int) -> None:
    """The last j with rate^j at least 0.25: 0.8^6 = 0.26, 0.8^7 = 0.21."""
    length, request = make_gates(k=8, acceptance_floor=0.25), make_request()
    drafted = feed(length, request, rate, num_steps=600)[100:]
    assert sum(drafted) / len(drafted) == pytest.approx(k, abs=1.0)


@pytest.mark.parametrize(("num_running", "floor"), [(1, 0.25), (2, 0.4), (4, 4 / 7), (8, 8 / 11)])
def test_in_a_batch_only_what_is_likelier_to_pass_is_drafted(num_running: int, floor: float) -> None:
    """A row costs a quarter of a step with one row; a token of B that share a step costs (3 + B) / 4B of one."""
    per_row, per_token = 0.25, (0.75 + 0.25 * num_running) / num_running
    assert floor == pytest.approx(per_row / per_token)
    for rate, drafts in ((floor - 0.1, False), (floor + 0.2, True)):
        drafted = feed(make_gates(), make_request(), rate, 2000, num_running=num_running)[200:]
        share = sum(k > 0 for k in drafted) / len(drafted)
        assert share > 0.6 if drafts else share < 0.05


def test_many_requests_together_try_as_often_as_one() -> None:
    length, requests = make_gates(reprobe_steps=10), [make_request(str(i)) for i in range(8)]
    num_drafts = sum(sum(feed(length, request, 0.0, 800, num_running=8)[400:]) for request in requests)
    assert num_drafts <= 4 * 400 / 10 * 1.1


def test_without_adapting_it_is_all_or_nothing() -> None:
    length, request = make_gates(k=8, adaptive_k=False), make_request()
    assert set(feed(length, request, rate=0.5, num_steps=300)) <= {0, 8}
    assert set(feed(make_gates(acceptance_floor=0), request, rate=0.0, num_steps=100)) == {4}


def test_a_new_request_is_believed_to_be_like_the_others() -> None:
    length = make_gates()
    feed(length, make_request("a"), rate=0.0, num_steps=300)
    assert length.num_drafts(make_request("b"), 1) == 0
    length = make_gates()
    feed(length, make_request("a"), rate=1.0, num_steps=50)
    assert length.num_drafts(make_request("b"), 1) == 4


def test_what_passed_is_estimated_without_bias() -> None:
    """After a rejection nothing was put to the test. Passed over drafted would say 0.38 here, not 0.6."""
    length, request = make_gates(acceptance_floor=0), make_request()
    rates = []
    for seed in range(60):
        feed(length, request, rate=0.6, num_steps=30, seed=seed)
        rates.append(length.rate(request))
    assert sum(rates) / len(rates) == pytest.approx(0.6, abs=0.05)


def test_forgotten_requests_leave_nothing_behind() -> None:
    length, request = make_gates(), make_request()
    feed(length, request, 0.5, 10)
    length.forget(request)
    length.observe(request, 4, 2)
    assert not length._requests


def test_how_far_a_draft_goes_at_most_depends_on_what_it_costs() -> None:
    assert SpeculativeConfig(method="draft_head").k == 3 and SpeculativeConfig(method="ngram").k == 7
    assert SpeculativeConfig(method="draft_head", k=5).k == 5
    assert SpeculativeConfig(method="draft_head").model_dump(exclude_unset=True) == {"method": "draft_head"}
