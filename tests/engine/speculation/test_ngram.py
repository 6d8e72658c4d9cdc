"""Prompt lookup finds the longest, latest earlier place, in time that does not grow with the context."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.speculation.base import DraftRequest
from minillm.speculation.ngram import MOST_PLACES, NgramProposer, Places


def make_request(tokens: list[int]) -> Request:
    return Request("r", tokens, SamplingParams(), Timeline(0.0))


def propose(tokens: list[int], k: int = 4, shortest: int = 2, longest: int = 8) -> list[int]:
    return NgramProposer(shortest, longest).propose([DraftRequest(make_request(tokens), k)])[0].token_ids


def test_what_followed_the_last_tokens_before() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 1, 2]) == [3, 4, 5, 6]
    assert propose([1, 2, 3, 9, 2, 3, 7, 1, 2, 3], k=1) == [9], "three tokens agree there, two elsewhere"
    assert propose([2, 3, 7, 0, 2, 3, 9, 0, 0, 2, 3], k=1, longest=2) == [9], "the latest of equals"
    assert propose([1, 2, 3, 4]) == []
    assert propose([1, 2, 1], shortest=3) == []
    assert propose([1]) == [] == propose([1, 2])


def test_a_loop_is_followed_round() -> None:
    assert propose([5, 1, 2, 3, 1, 2, 3, 1, 2, 3], k=7) == [1, 2, 3, 1, 2, 3, 1]
    assert propose([8, 7, 7, 7], k=5) == [7] * 5


def brute_force(tokens: list[int], shortest: int, longest: int) -> int | None:
    best, found = 0, None
    for end in range(len(tokens) - 1, shortest - 1, -1):
        length = 0
        while length < min(longest, end) and tokens[end - length - 1] == tokens[-length - 1]:
            length += 1
        if length >= shortest and length > best:
            best, found = length, end
    return found


@settings(max_examples=200)
@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=MOST_PLACES),
    cuts=st.lists(st.integers(1, 5), max_size=12),
    shortest=st.integers(1, 3),
)
def test_it_finds_what_looking_everywhere_would(tokens: list[int], cuts: list[int], shortest: int) -> None:
    """Entered a few at a time, as a request grows."""
    places, num_entered = Places(shortest), 0
    for cut in [*cuts, len(tokens)]:
        part = tokens[num_entered : num_entered + cut]
        places.extend(part)
        num_entered += len(part)
        assert places.longest_match(4) == brute_force(tokens[:num_entered], shortest, 4)


def test_each_token_is_entered_once(monkeypatch) -> None:
    """A context of 20,000 tokens costs no more a step than one of 20."""
    request = make_request([random.Random(0).randrange(50) for _ in range(20_000)])
    proposer = NgramProposer(2, 8)
    proposer.propose([DraftRequest(request, 4)])
    entered = []
    monkeypatch.setattr(request.__class__, "token_ids", lambda self, a, b: entered.append(b - a) or [1] * (b - a))
    for _ in range(5):
        request.output_token_ids += [1, 2, 3]
        proposer.propose([DraftRequest(request, 4)])
    assert entered == [3] * 5
    assert max(len(ends) for ends in proposer._places["r"].ends.values()) > MOST_PLACES, "but few are compared"


def test_forgetting() -> None:
    proposer, request = NgramProposer(2, 8), make_request([1, 2, 1, 2])
    proposer.propose([DraftRequest(request, 2)])
    proposer.forget(request)
    assert not proposer._places
    proposer.forget(request)
