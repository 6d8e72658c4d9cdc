"""Every lesson has a box about vLLM and SGLang, in one place; what it names is on the page of checked names."""

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass

import pytest
from pages import ROOT, split
from test_commands import parse_words

from course.lab.server_lab import FLAGS
from course.lab.three_machines import LESSONS
from course.lessons.start.contents import lessons

PAGE = ROOT / "docs" / "same_on_vllm.md"
BOX = "<details><summary>The same on vLLM and SGLang</summary>"
FLAG, METRIC, CODE = re.compile(r"--[a-z][a-z0-9-]*"), re.compile(r"(?:vllm|sglang):\w+"), re.compile(r"`([^`]+)`")
KEY = re.compile(r'"(\w+)":')
BEFORE_VALUE = re.compile(r'"?([^:="]+)')
"""A log line, a label or a key of JSON without what comes after it."""
LEAST_WORDS, MOST_WORDS = 60, 120
PROGRAMS = ("vllm serve", "vllm bench serve", "sglang serve")
MEASURED_WITH = ("vllm bench serve", "minillm bench serve", "curl", "timeout")
NOT_THEIRS = re.compile(
    r"HOST|http:|top|timeout|curl .*|usage|priority|_sum|_count|time_\w+|Qwen/\S+|minillm bench serve", re.S
)
"""What a box sets in code and is no name of vLLM's or SGLang's: curl's own, models, a field of OpenAI's API."""


@dataclass(frozen=True)
class ServerBox:
    """One lesson's."""

    commands: list[str]
    prose: str

    @classmethod
    def of(cls, lesson: str) -> "ServerBox":
        [cell] = [text for kind, text in lessons()[lesson].cells if kind == "markdown" and BOX in text]
        assert cell.startswith(BOX) and cell.rstrip().endswith("</details>"), "a cell of its own"
        fence, prose = re.fullmatch(rf"{BOX}\n\n```sh\n(.*?)^```\n(.*)</details>\s*", cell, re.S | re.M).groups()
        return cls(split(fence), prose)


def listed() -> dict[str, set[str]]:
    """Names on the page, by its sections: `vllm serve`, ..., and all of them."""
    found = defaultdict[str, set[str]](set)
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        program = CODE.search(title)
        names = {name for row in text.splitlines() if row.startswith("|") for name in CODE.findall(row)}
        found[program[1] if program else title] |= names
        found["all"] |= names | set(CODE.findall(text))
    return found


@pytest.mark.parametrize("lesson", LESSONS)
def test_what_a_box_names_was_checked(lesson: str) -> None:
    box, known = ServerBox.of(lesson), listed()
    for command in box.commands:
        if command.startswith("minillm"):
            parse_words(*shlex.split(command))
        for program in PROGRAMS:
            if command.startswith(f"{program} "):
                assert set(FLAG.findall(command)) <= known[program]
                assert set(KEY.findall(command)) <= known["vllm serve"]
    named = {" ".join(each.split()) for each in CODE.findall(box.prose)}
    for each in named:
        assert {flag for flag in FLAG.findall(each) if flag not in ("--rate", "--timeout")} <= known["all"]
        assert {name.removesuffix("_bucket") for name in METRIC.findall(each)} <= known["Metrics"]
        if not (FLAG.search(each) or METRIC.search(each) or NOT_THEIRS.fullmatch(each)):
            name = BEFORE_VALUE.match(each)[1]
            assert any(name in line for line in (*known["all"], *PROGRAMS)), each


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_box_has_two_servers_and_a_measurement(lesson: str) -> None:
    box = ServerBox.of(lesson)
    first, second, third = box.commands
    assert first.startswith("vllm serve ") and second.startswith("sglang serve ") and third.startswith(MEASURED_WITH)
    words = len(re.findall(r"[^\W_][\w'’:.-]*", box.prose.partition("[What each name is")[0]))
    assert LEAST_WORDS <= words <= MOST_WORDS, f"{words} words"


def test_what_a_lab_on_a_server_advises_was_checked_too() -> None:
    assert {flag for how in FLAGS.values() for flag in FLAG.findall(how)} <= listed()["all"]


def test_the_page_lists_nothing_that_no_box_names() -> None:
    boxes = "\n".join("\n".join((*box.commands, box.prose)) for box in map(ServerBox.of, LESSONS))
    known = listed()
    names = set().union(*(known[program] for program in PROGRAMS), known["Metrics"])
    unnamed = {name for name in names if "/" not in name and not re.search(rf"{re.escape(name)}(?![\w-])", boxes)}
    assert unnamed == set()
