"""Workloads: determinism, streams that do not disturb each other, shared pieces, conversations."""

import dataclasses
from collections import Counter

import pytest

from course.simulator.errors import WorkloadError
from course.simulator.workload.arrivals import Deterministic, Gamma, Poisson
from course.simulator.workload.kinds import (
    AZURE_CHAT,
    AZURE_CODE,
    AgentLoop,
    Independent,
    Rag,
    Sessions,
    SharedPrefix,
    cumulative_weights,
    pick,
)
from course.simulator.workload.lengths import Fixed, LogNormal, Uniform
from course.simulator.workload.requests import (
    Piece,
    Traffic,
    Workload,
    answer_piece,
    make_workload,
    merge,
    prompt_token_ids,
    token_ids,
)

KINDS = [AZURE_CHAT, AZURE_CODE, SharedPrefix(tenants=5), Rag(documents=50), Sessions(), AgentLoop()]


def made(traffic: Traffic, num: int = 200, **options) -> Workload:
    return make_workload(traffic, options.pop("arrivals", Poisson(rate=5)), num_requests=num, **options)


def rows(workload: Workload) -> list[dict]:
    return [dataclasses.asdict(request) for request in workload]


def names(workload: Workload) -> list[tuple[str, ...]]:
    return [tuple(piece.name for piece in r.pieces) for r in workload]


@pytest.mark.parametrize("traffic", KINDS, ids=lambda traffic: type(traffic).__name__)
def test_lengths_are_positive_and_indices_count(traffic: Traffic) -> None:
    workload = made(traffic)
    assert [r.index for r in workload] == list(range(len(workload)))
    assert all(r.output_tokens >= 1 and all(p.num_tokens >= 1 for p in r.pieces) for r in workload)


def test_changing_arrivals_changes_nothing_else() -> None:
    a, b = made(Sessions()), made(Sessions(), arrivals=Gamma(rate=1, cv=5))
    forget = {"arrival": None}
    assert [dataclasses.replace(r, **forget) for r in a] == [dataclasses.replace(r, **forget) for r in b]
    assert [r.arrival for r in a] != [r.arrival for r in b]


def test_changing_outputs_changes_nothing_else() -> None:
    a = made(Independent(prompt=LogNormal(median=100, sigma=1), output=Fixed(tokens=10)))
    b = made(Independent(prompt=LogNormal(median=100, sigma=1), output=Uniform(low=1, high=99)))
    assert [(r.arrival, r.pieces) for r in a] == [(r.arrival, r.pieces) for r in b]
    assert [r.output_tokens for r in a] != [r.output_tokens for r in b]


def test_changing_prompts_keeps_who_is_long() -> None:
    """Both are drawn from the same numbers, so the longest request stays the longest."""
    short, long = (
        [r.num_prompt_tokens for r in made(Independent(prompt=LogNormal(median=m, sigma=1), output=Fixed(tokens=1)))]
        for m in (100, 1000)
    )
    assert short.index(max(short)) == long.index(max(long))


def test_tokens_follow_from_the_name() -> None:
    a, b = token_ids(Piece("a", 50)), token_ids(Piece("b", 50))
    assert a == token_ids(Piece("a", 50))
    assert a[:20] == token_ids(Piece("a", 20))
    assert a != b
    drawn = token_ids(Piece("long", 64_000))
    assert min(drawn) >= 0 and max(drawn) < 32_000
    assert max(Counter(drawn).values()) < 15  # spread out: the mean is 2


def test_tenants_share_their_system_prompt_and_nothing_else() -> None:
    workload = made(SharedPrefix(tenants=4, prefix=Uniform(low=100, high=900), skew=1.0), 400)
    by_tenant = {r.tenant: r.pieces[0] for r in workload}
    assert len(by_tenant) == 4
    assert all(r.pieces[0] == by_tenant[r.tenant] for r in workload)
    assert len({r.pieces[1].name for r in workload}) == 400
    counts = sorted(Counter(r.tenant for r in workload).values(), reverse=True)
    assert counts[0] / 400 == pytest.approx(0.48, abs=0.08)  # 1 / (1 + 1/2 + 1/3 + 1/4)


def test_a_stamp_first_breaks_the_prefix_and_a_stamp_last_does_not() -> None:
    first = made(SharedPrefix(stamp_tokens=8, stamp_first=True), 2)
    last = made(SharedPrefix(stamp_tokens=8, stamp_first=False), 2)
    assert first.requests[0].pieces[0] != first.requests[1].pieces[0]
    assert last.requests[0].pieces[0] == last.requests[1].pieces[0]
    assert first.num_prompt_tokens == last.num_prompt_tokens


def test_rag_retrieves_distinct_documents_of_constant_length() -> None:
    workload = made(Rag(documents=20, retrieved=3), 300)
    lengths: dict[str, int] = {}
    for r in workload:
        documents = r.pieces[1:-1]
        assert len({d.name for d in documents}) == 3
        for d in documents:
            assert lengths.setdefault(d.name, d.num_tokens) == d.num_tokens
    assert len(set(lengths.values())) > 5


def test_a_conversation_repeats_everything_before() -> None:
    workload = made(Sessions(turns=Fixed(tokens=3), think_s=10.0), 100)
    assert len(workload) == 300
    first, second, third = workload.requests[:3]
    assert (first.after, second.after, third.after) == (None, 0, 1)
    assert (second.arrival, third.arrival) == (None, None)
    prompt = workload.prompt(third)
    assert prompt == (*first.pieces, answer_piece(first), *second.pieces, answer_piece(second), *third.pieces)
    assert third.num_prompt_tokens == sum(piece.num_tokens for piece in prompt)
    thinking = [r.think_s for r in workload if r.after is not None]
    assert sum(thinking) / len(thinking) == pytest.approx(10.0, rel=0.25)


def test_real_answers_replace_made_up_ones() -> None:
    workload = made(Sessions(turns=Fixed(tokens=2), output=Fixed(tokens=3)), 1)
    first, second = workload.requests
    answer = answer_piece(first)
    tokens = prompt_token_ids(workload.prompt(second), {answer.name: [7, 8, 9]})
    start = first.num_prompt_tokens
    assert tokens[start : start + 3] == [7, 8, 9]
    assert tokens[:start] == prompt_token_ids(workload.prompt(first), {})
    assert len(tokens) == second.num_prompt_tokens


def test_merged_workloads_keep_their_moments_and_turns() -> None:
    chat = made(Sessions(turns=Fixed(tokens=2)), 20, name="chat")
    rag = made(Rag(), 30, name="rag")
    both = merge("both", chat, rag)
    assert sorted(r.arrival for r in both if r.after is None) == sorted(
        r.arrival for w in (chat, rag) for r in w if r.after is None
    )
    assert [r.index for r in both] == list(range(70))
    assert {r.tenant for r in both} == {"chat", "rag"}
    for r in both:
        if r.after is not None:
            assert both.requests[r.after].session == r.session
            assert both.requests[r.after].index < r.index
    assert sum(r.num_prompt_tokens for r in both) == chat.num_prompt_tokens + rag.num_prompt_tokens
    assert not {n for r in names(chat) for n in r} & {n for r in names(rag) for n in r}


def test_merging_twins_is_refused() -> None:
    with pytest.raises(WorkloadError, match="different names"):
        merge("both", made(AZURE_CHAT), made(AZURE_CODE))


def test_faster_and_with_priority() -> None:
    workload = made(AZURE_CHAT, 10, arrivals=Deterministic(rate=1))
    assert [r.arrival for r in workload.faster(4)] == [i / 4 for i in range(1, 11)]
    assert workload.last_arrival == 10.0
    assert all(r.priority == 2 for r in workload.with_priority(2))
    with pytest.raises(WorkloadError):
        workload.faster(0)


def test_zipf() -> None:
    assert cumulative_weights(3, 1.0) == pytest.approx([6 / 11, 9 / 11, 1.0])
    assert [pick(3, 1.0, u) for u in (0.0, 0.54, 0.55, 0.82, 0.9999)] == [0, 0, 1, 2, 2]
    assert [pick(4, 0.0, u) for u in (0.0, 0.25, 0.5, 0.99)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rag(documents=2, retrieved=3),
        lambda: SharedPrefix(tenants=0),
        lambda: Independent(prompt=Fixed(tokens=1)),
        lambda: make_workload(AZURE_CHAT, Poisson(rate=1)),
        lambda: make_workload(AZURE_CHAT, Poisson(rate=1), num_requests=1, seed=-1),
    ],
)
def test_nonsense_is_refused(make) -> None:
    with pytest.raises(WorkloadError):
        make()


def test_tokens_are_the_same_on_every_machine() -> None:
    """A golden value: it guards recorded results against a change of the hash."""
    assert token_ids(Piece("golden", 8)) == [29297, 14265, 19136, 5461, 19942, 29297, 6721, 26862]
