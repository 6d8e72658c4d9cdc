"""Lesson 07: verdicts, bets and the check, on traces made by hand; and each claim once on a tiny model."""

from dataclasses import replace

import pytest
from asserting import refuses_garbage, shows
from made_trace import MADE, found, frame, large, loss, outcome, trace_of

from course.lab.lab import Lab
from course.lessons.lesson_07 import bets, claims, sim_70b
from course.lessons.lesson_07.checks import checks
from course.lessons.lesson_07.sim_70b import Served
from course.lessons.lesson_07.trace import DECODE, GONE, Frame, Trace
from course.lessons.lesson_07b import claims as claims_07b
from course.lessons.lesson_07b import tiers
from course.lessons.lesson_07b.checks import checks as checks_07b

# ---------------------------------------------------------------- claims


def test_a11_compares_kinds_and_the_pool() -> None:
    claim = claims.a11(large(), 100, 100)
    assert claim.kind == "holds" and "493 MB" in claim.measured and "GQA model's, and +22% off" in claim.verdict
    assert claims.a11(large(), 100, 50).kind == "not shown"


def test_a12_tells_killed_from_read_again() -> None:
    roomy = trace_of(MADE.frames, (outcome(), outcome()))
    tight = trace_of(MADE.frames, (outcome(last=4), outcome(last=4)), evictions=2)
    assert claims.a12(tight, roomy, tight).kind == "holds only when"
    assert claims.a12(roomy, roomy, roomy).kind == "not shown"
    killed = trace_of(MADE.frames, (outcome(), outcome(finished=False)), evictions=1)
    assert claims.a12(killed, roomy, roomy).kind == "wrong"
    let_in = trace_of(MADE.frames, (outcome(), outcome(first=2)), num_blocks=3, evictions=1)
    assert claims.admitted_when_full(let_in) == 1 and claims.a12(let_in, roomy, roomy).kind == "wrong"


class Speed(Served):
    """A run of which only the speed and its limit are asked."""

    limit = "slots"

    def __init__(self, tokens_per_s: float) -> None:
        object.__setattr__(self, "speed", tokens_per_s)

    @property
    def tokens_per_s(self) -> float:
        return self.speed


@pytest.mark.parametrize(
    ("gains", "kind"),
    [((2.0, 4.0), "wrong"), ((2.0, 14.0), "holds only when"), ((11.0, 20.0), "holds"), ((1.0, 1.05), "not shown")],
)
def test_a15_by_the_gain(gains: tuple[float, float], kind: str) -> None:
    ladders = {name: {"first": Speed(100), "last": Speed(100 * g)} for name, g in zip(("chats", "talks"), gains)}
    claim = claims.a15(ladders, 31.5)
    assert claim.kind == kind and "100 tokens/s (slots)" in claim.measured
    assert ("in the end something else did: slots (chats)" in claim.verdict) == (kind in ("wrong", "holds only when"))


def scaled(running: int, seconds: float) -> Trace:
    """`running` requests in one step."""
    tables = {i: (i,) for i in range(running)}
    made = Frame((DECODE,) * running, tables, dict.fromkeys(tables, 4), frozenset(), 4, 0, seconds)
    return trace_of([made], (outcome(),) * 8, num_blocks=16)


def test_b2_needs_fewer_slots_and_less_speed() -> None:
    same = {"on": scaled(4, 1.0), "off": scaled(4, 1.0)}
    claim = claims.b2({0: scaled(8, 1.0), 512: scaled(2, 3.0)}, same)
    assert claim.kind == "holds only when"
    assert claims.b2({0: scaled(8, 1.0), 512: scaled(2, 1.0)}, same).kind == "not shown"
    assert claims.b2({0: scaled(8, 1.0), 512: scaled(8, 1.0)}, same).kind == "not shown"


def held(blocks: int) -> Trace:
    return trace_of([frame({0: tuple(range(blocks))}, {0: 16 * blocks}, (DECODE,))], (outcome(),), num_blocks=4096)


def test_d8_reads_the_exponent() -> None:
    linear = claims.d8({256: held(16), 1024: held(64)})
    assert linear.kind == "wrong" and "power 1.00" in linear.verdict
    assert claims.d8({256: held(16), 1024: held(256)}).kind == "holds"
    assert claims.d8({256: held(16)}).kind == "not shown"


@pytest.mark.parametrize(("paged", "kind"), [(2, "holds only when"), (8, "holds"), (20, "not shown")])
def test_d12_by_what_paging_saved(paged: int, kind: str) -> None:
    traces = {"max_len": held(20), "on_demand": held(paged)}
    assert claims.saved(traces) == pytest.approx(1 - paged / 20)
    assert claims.d12({320: traces}).kind == kind


def test_d14_by_length_and_by_what_is_lost() -> None:
    back = trace_of([frame({0: (0, GONE, GONE, 3)}, {0: 64}, (DECODE,))])
    whole = found(0.9, 0.9)
    claim = claims_07b.d14(large(), back, 32, {"whole": whole, "window": found(0.9, 0.2)})
    assert claim.kind == "holds only when" and "6,827 tokens" in claim.verdict
    assert "1,500 tokens: 0%" in claim.measured and "2 blocks given back, 2 held" in claim.measured
    assert claims_07b.d14(large(), held(4), 32, {"whole": whole, "window": whole}).kind == "not shown"


def test_fetching_wins_above_the_break_even() -> None:
    n = 8192
    bandwidth = n * tiers.token_bytes() / tiers.compute_s(n) / 1e9
    assert 3 < bandwidth < 6, "about 5 GB/s for a 70B on four H100s"
    assert tiers.fetch_s(n, 1.1 * bandwidth, 0) < tiers.compute_s(n) < tiers.fetch_s(n, 0.9 * bandwidth, 0)
    shows(tiers.draw(50.0, 0.1), "fetching wins")
    shows(tiers.draw(0.5, 0.1), "computing is faster")


def test_every_claim_measures_itself(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_70b, "ladders", lambda: {"chats": sim_70b.ladder(sim_70b.CHAT, 60)})
    for name, measure in {**claims.MEASURE, **claims_07b.MEASURE}.items():
        assert measure(tiny_lab).id == name


# ---------------------------------------------------------------- bets and the check


def test_work_done_twice_is_a_share() -> None:
    for again, share in ((0, 0), (1, 10), (5, 50)):
        made = trace_of([frame({}, {}, (DECODE,), num_tokens=10, num_again=again)], (outcome(),))
        assert bets.done_twice(made).answer == share


TRACES = {"max_len": trace_of([frame({0: (0, 1)}, {0: 8}, (DECODE,))]), "on_demand": MADE}
TIGHT = trace_of(MADE.frames, (outcome(), outcome()), evictions=3)


def test_the_check_rewards_what_is_right() -> None:
    check = checks(large(), TRACES, TIGHT)
    for question, answer in (("q1", 492.8), ("q2", large().chats), ("q3", 0.75), ("q3", 75), ("q4", "Prefilled again")):
        assert check(question, answer).score == 1, question
    freed = 1 - replace(large(), window=2048).chat_bytes_at(6000) / large().chat_bytes_at(6000)
    smaller = checks_07b(large(), {"KV in int8": loss()})
    for question, answer in (("q1", freed), ("q2", "yes"), ("q3", 4096 * 327_680 / 50e9)):
        assert smaller(question, answer).score == 1, question
    assert checks_07b(large(), {"KV in int8": loss(rise=0.5)})("q2", "no").score == 1


def test_no_answer_raises() -> None:
    refuses_garbage(checks(large(), TRACES, TIGHT), 4)
    refuses_garbage(checks_07b(large(), {"KV in int8": loss()}), 3)
