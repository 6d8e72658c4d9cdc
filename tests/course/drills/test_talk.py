"""Statements and facts of the drills: each file is whole, and what is true is decided for every draw."""

import pytest

from course.drills.library import ALL, FLAGSHIP, find_drill
from course.drills.library.formulas import simulated, step_time
from course.drills.talk import HERE, PUT, TRUE_OF_THEM, DrawnTalk, TalkError, parsed, shortcomings, talk_of
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model

WRITTEN = sorted(path.stem for path in HERE.glob("*.toml"))
STATEMENT = '[[statements]]\nsays = "It needs {servers:n} servers."\nbecause = "Because it does."\nabout = "replicas"\n'


def talk(text: str) -> DrawnTalk:
    return DrawnTalk(find_drill(FLAGSHIP).drawn(), parsed(text, "made.toml"))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_is_whole_and_decided_for_every_draw(name: str) -> None:
    assert name in {drill.id for drill in ALL}
    for seed in range(5):
        drawn = talk_of(find_drill(name).drawn(seed))
        assert shortcomings(drawn) == [], (name, seed)
        put = drawn.put()
        assert len({each.number for each in put}) == PUT and sum(each.is_true for each in put) in TRUE_OF_THEM
        texts = [each.says + each.because for each in drawn.claims] + [each.asks + each.says for each in drawn.facts]
        assert not any("{" in each or "}" in each for each in texts)


def test_truth_follows_the_numbers_and_names_of_its_own() -> None:
    own = '[derived]\nspare = "lambda n: n > servers"\ntwice = ["ratio", "2 * servers"]\n'
    (claim,) = talk(own + STATEMENT.replace(":n}", ":n} of {twice:n}") + 'true_if = "spare(servers + 1)"').claims
    assert claim.is_true and "5.37 of 10.7" in claim.says


def test_what_turns_with_the_rounding_is_not_put_on_the_table() -> None:
    close, clear = "servers > 5.3", "servers > 5"
    shown = STATEMENT.replace("It needs {servers:n} servers.", "It's more than it looks.")
    for text, true_if, is_close in (
        (shown, close, True),
        (shown, clear, False),
        (shown + "is_exact = true\n", close, False),
        (STATEMENT, close, False),  # it shows the number itself
    ):
        made = talk(f'{text}true_if = "{true_if}"\n')
        (claim,) = made.claims
        assert claim.is_true and made.is_close(claim) is is_close and bool(made.put()) is not is_close
    assert not any(t.is_close(c) for t in (talk_of(drill.drawn(401)) for drill in ALL) for c in t.put())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (STATEMENT, r"made.toml, statements 1: .*exactly one"),
        (STATEMENT + "holds = true", "source"),
        (STATEMENT.replace('"replicas"', '"moon"') + 'true_if = "True"', "moon"),
        (STATEMENT + 'true_if = "True"\ncolour = 1', "statements 1 colour"),
        ("nonsense", "made.toml"),
        ('[[facts]]\nkey = "a"\nasks = "A?"\nsays = "B."\nuse = "useful"', "changes"),
        (2 * (STATEMENT + 'true_if = "True"\n'), "twice"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(text: str, says: str) -> None:
    with pytest.raises(TalkError, match=says):
        talk(text)


@pytest.mark.parametrize(
    ("true_if", "says"), [("moon > 1", "moon"), ("servers", "neither"), ("1 / 0 > 1", "ZeroDivisionError")]
)
def test_a_mistake_in_an_expression_too(true_if: str, says: str) -> None:
    with pytest.raises(TalkError, match=f"dump-13b.toml, seed 0, statement 1.*{says}"):
        _ = talk(STATEMENT + f'true_if = "{true_if}"').claims
    with pytest.raises(TalkError, match="moon"):
        _ = talk(STATEMENT.replace("servers", "moon") + 'true_if = "True"').claims


def test_a_step_takes_longer_with_more_in_it_and_a_run_agrees() -> None:
    shape, card = find_model("llama-3.1-8b"), find_hardware("h100-sxm")
    alone, many, beside = (step_time(shape, card, 1, *work) for work in ((1, 1000), (64, 1000), (64, 1000, 1024)))
    assert 0.004 < alone < many < beside
    one, two = (simulated("llama-3.1-8b", "h100-sxm", 1, 20, 1000, 100, replicas=n, requests=60) for n in (1, 2))
    assert alone < two.itl_p50 < one.itl_p50 and two.ttft_p99 <= one.ttft_p99
