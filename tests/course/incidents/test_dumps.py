"""Dumps on paper: the model answers earn everything, typical wrong ones are told why, and nothing that is handed in
raises."""

import ast
import functools
from typing import Any

import pytest

from course.grading import Result, source
from course.incidents.dumps import DUMPS, check, find_dump, numbers, read
from course.incidents.dumps import sums as arithmetic
from course.incidents.dumps.catalogue import drawn
from course.incidents.dumps.check import SUM_POINTS, decisive, sums_marked
from course.incidents.dumps.sums import ASKED, Sums
from course.incidents.generate import IncidentError
from course.incidents.interventions import BY_ID as CHANGES
from course.incidents.marking import ON_PAPER
from course.incidents.questions import BY_ID as QUESTIONS
from minillm.core.timeline import PHASES

SOURCE = source.SOLUTIONS / "12_diagnosis_dumps.py"
QUICK = ("13b", "essays", "push")
"""Dumps that `make test` marks whole: those that tests below look at, too."""
IDS = [pytest.param(dump.id, marks=[pytest.mark.slow] * (dump.id not in QUICK)) for dump in DUMPS]
PLAIN = Sums(rate=10, prompt=1000, output=101, ttft=1.8, gap=0.012, gpus=2, peak=1e14, weights=1e10, pool=21_000)
"""e2e 3 s, so 30 in flight; 2e14 FLOP/s of 2e14; 21,000 tokens for 1050.5 each."""


@functools.cache
def right(name: str) -> dict[str, Any]:
    """The model answer to one dump, as the solution hands it in. What it reads of the dump is simulated."""
    tree = ast.parse(source.resolve(SOURCE.read_text(encoding="utf-8"), "solution"))
    made = [node for node in tree.body if isinstance(node, (ast.ImportFrom, ast.FunctionDef))]
    scope: dict[str, Any] = {}
    exec(compile(ast.Module(made, []), str(SOURCE), "exec"), scope)
    [call] = [node.value for node in tree.body if ast.unparse(node).startswith(f"check('{name}'")]
    return eval(compile(ast.Expression(call), str(SOURCE), "eval"), {**scope, "check": lambda _, **fields: fields})


def feedback(result: Result, name: str) -> str:
    return next(criterion.feedback for criterion in result.criteria if criterion.name == name)


def earned(result: Result, name: str) -> float:
    return next(criterion.earned for criterion in result.criteria if criterion.name == name)


@pytest.mark.parametrize("name", IDS)
def test_the_model_answer_earns_everything(name: str) -> None:
    result = check(name, **right(name))
    assert result.score == result.max_score, str(result)


@pytest.mark.parametrize("name", [each for each, dump in zip(IDS, DUMPS) if "double_fleet" not in dump.cause.fixes])
def test_always_buying_machines_earns_little(name: str) -> None:
    result = check(name, dominant_phase="queue", evidence=["gpu"], ranked=["double_fleet"], regime="steady")
    assert result.score < 0.4 * result.max_score, str(result)
    assert earned(result, "evidence") == earned(result, "in_flight") == 0


@pytest.mark.parametrize("name", IDS)
def test_the_tempting_change_breaks_the_promise_and_the_number_against_it_is_named(name: str) -> None:
    cause = find_dump(name).cause
    result = check(name, dominant_phase=cause.phase, evidence=list(cause.convicting), ranked=[cause.tempting])
    assert earned(result, "SLO restored") < ON_PAPER["SLO restored"] / 4
    assert cause.why_not in feedback(result, "ranking")


@pytest.mark.parametrize("name", IDS)
def test_a_dump_tells_enough_and_not_all(name: str) -> None:
    dump, (hidden, _) = find_dump(name), drawn(name)
    assert len({*dump.cause.convicting, dump.cause.told_apart_by} & {*dump.shown}) >= 2
    assert decisive(dump, hidden)
    told = str(read(dump.id))
    assert all(f"[{label}]" in told for label in dump.shown)
    assert dump.cause.title not in told and dump.cause.name not in told


def test_the_order_of_the_ranking_counts() -> None:
    fields = {**right("essays"), "ranked": right("essays")["ranked"][::-1]}
    assert 0 < earned(check("essays", **fields), "ranking") < earned(check("essays", **right("essays")), "ranking")


def test_the_thirteen_billion_cannot_be_one_server_and_its_seconds_are_in_decode() -> None:
    hidden, _ = drawn("13b")
    sums = find_dump("13b").sums(hidden.scene.now)
    assert (sums.rate, sums.prompt, sums.output) == (60, 2200, 180)
    assert sums.prefill_share > 1 and sums.servers > 1
    assert sums.in_flight > 10 * sums.kv_requests
    means = dict.fromkeys(PHASES, 0.0)
    for record in hidden.scene.now.run.records:
        for phase, spent in record.as_request_record().timeline.phases().items():
            means[phase] += spent
    assert max(means, key=means.get) == "decode"
    assert "60" in str(read("13b")) and numbers("13b")["gpus"] == 2


# ---------------------------------------------------------------- arithmetic, without a simulation


def test_the_sums_by_hand() -> None:
    assert PLAIN.e2e == pytest.approx(3.0)
    assert PLAIN.in_flight == pytest.approx(30)
    assert PLAIN.prefill_share == pytest.approx(1.0)
    assert PLAIN.kv_requests == pytest.approx(21_000 / 1050.5)
    assert PLAIN.servers == 1


class OnPaper:
    """A dump of which only the arithmetic is asked."""

    @staticmethod
    def sums(play: object) -> Sums:
        return PLAIN


class Behind:
    class scene:
        now = None


def marked(**capacity: object) -> dict[str, tuple[float, str]]:
    return {each.name: (each.earned, each.feedback) for each in sums_marked(OnPaper, Behind, capacity)}


def test_a_slip_is_named() -> None:
    for name, value, words in (
        ("in_flight", 18.0, "TTFT alone"),
        ("in_flight", 12.0, "leaves TTFT out"),
        ("in_flight", 10.0, "the rate"),
        ("prefill_share", 0.5, "used twice"),
        ("prefill_share", 2.0, "one GPU"),
        ("prefill_share", 100, "in percent"),
        ("kv_requests", 21_000, "in tokens"),
        ("in_flight", "many", "a number"),
        ("servers", None, "not answered"),
    ):
        points, said = marked(**{name: value})[name]
        assert points == 0 and words.lower() in said.lower(), (name, value)


def test_right_sums_earn_everything_and_near_ones_half() -> None:
    assert all(points == SUM_POINTS for points, _ in marked(**{name: getattr(PLAIN, name) for name in ASKED}).values())
    points, said = marked(in_flight=36)["in_flight"]
    assert points == SUM_POINTS / 2 and "36" in said
    assert set(ASKED) == set(arithmetic.slips(PLAIN))


# ---------------------------------------------------------------- what is handed in


def test_what_is_still_open_is_no_line_of_the_dump() -> None:
    def asked(*names: str) -> str:
        return feedback(check("push", dominant_phase="queue", open_questions=list(names)), "open questions")

    assert "in the dump already" in asked("arrivals")
    assert "narrow it down" in asked("changes")
    assert "Fair" in asked("collectives")
    assert "leaves out" in asked()


def test_the_stub_is_not_answered_yet() -> None:
    result = check("13b", dominant_phase=..., evidence=[...], ranked=[...], capacity={"in_flight": ..., "servers": ...})
    assert result.score == 0 and "not answered yet" in str(result) and "✗" in str(result)


def test_garbage_never_raises_and_earns_little() -> None:
    for fields in (
        {"dominant_phase": 7, "evidence": 3.5, "ranked": {"a": 1}},
        {"dominant_phase": "decoding", "evidence": ["kv_usage", None], "ranked": ["more_gpus", ["x"]]},
        {"ranked": list(CHANGES) * 2, "evidence": list(QUESTIONS)},
        {"dominant_phase": "queue", "capacity": {"in_flight": float("nan"), "servers": "two", 5: 5}},
        {"capacity": [1, 2], "regime": object(), "secondary": 1j},
        {"capacity": {"in_flight": 10**400, "kv_requests": -1, "prefill_share": True}, "open_questions": "tea"},
    ):
        result = check("push", **fields)
        assert result.score < 0.5 * result.max_score, fields
        assert str(result)


def test_a_misspelt_name_is_told_the_near_one() -> None:
    assert "did you mean 'helpdesk'" in str(check("helpdesks", dominant_phase="queue"))
    assert check(["13b"]).score == 0
    result = check("push", dominant_phase="queue", evidence=["arrival"], ranked=["warm_pools"])
    assert "did you mean 'arrivals'" in str(result) and "did you mean 'warm_pool'" in str(result)
    with pytest.raises(IncidentError, match="no dump"):
        read("tea")


def test_a_build_wants_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_STRICT", "1")
    with pytest.raises(AssertionError, match="dominant phase"):
        check("push", dominant_phase="decode")
