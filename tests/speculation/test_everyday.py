"""The plain questions that a draft head learns from the answers to."""

import re
import tomllib
from importlib import resources

from minillm.training.everyday import everyday_questions

JUDGED = re.compile(
    r"\b(france|photosynthesis|sea|winter|pancakes?|eggs?|virus|bacteri\w+|vowels?|good nights|curie|landlord|heater"
    r"|sky|romeo|juliet|hik(e|ing)|good morning|spanish|bicycles?|bikes?|fox|from home)\b"
)
"""What the questions of `minillm bench speculation` are about."""


def plain(question: str) -> str:
    return re.sub(r"[^a-z0-9 ]", "", question.lower()).strip()


def test_there_are_thousands_and_each_is_asked_once() -> None:
    questions = everyday_questions()
    assert len(questions) > 5000
    assert len(set(questions)) == len(questions)
    assert not any("{" in each or each != each.strip() or not each for each in questions)


def test_every_kind_asks_about_something() -> None:
    text = (resources.files("minillm.training") / "everyday.toml").read_text(encoding="utf-8")
    for name, kind in tomllib.loads(text).items():
        assert kind.keys() == {"asks", "about"}, name
        assert all(way.count("{}") == 1 for way in kind["asks"]), name
        assert len(set(kind["about"])) == len(kind["about"]) >= 10, name


def test_none_is_one_by_which_heads_are_judged() -> None:
    """Neither a question of the bench nor a question about the same thing."""
    judged = (resources.files("minillm.bench") / "chat_prompts.txt").read_text(encoding="utf-8").splitlines()
    asked = {plain(each) for each in everyday_questions()}
    assert not asked & {plain(each) for each in judged}
    assert [each for each in asked if JUDGED.search(each)] == []
    assert all(JUDGED.search(plain(each)) for each in judged)
