"""A prompt as a template: parts that change seldom or often, in an order that can be changed."""

import json
import random
import re

from course.lab.lab import Lab
from course.lab.texts import MANUAL, MANUAL_QUESTIONS
from course.lab.workloads import Workload
from course.lessons.lesson_04.linter import in_order
from course.lessons.lesson_04.traffic import one_by_one

AS_FOUND = """\
It is {time}.
Session: {session}
User: {user}
Tools: {tools}
You are the assistant of a small harbour office. Use the tools, and answer from the handbook, in one sentence.
{documents}
Question: {question}"""
"""How many services really send it: whatever is at hand first."""

STEPS = ("as found", "time to the end", "session id, too", "user name, too", "tools sorted, too")
"""One fix after the other, from the top."""

TOOLS = (
    {"name": "tide_table", "description": "the tides of a day", "arguments": {"day": "date", "gauge": "text"}},
    {"name": "book_mooring", "description": "reserve a place", "arguments": {"boat": "text", "nights": "number"}},
    {"name": "crane_slot", "description": "ask for the crane", "arguments": {"boat": "text", "tonnes": "number"}},
    {"name": "weather", "description": "wind and waves", "arguments": {"day": "date", "place": "text"}},
)
USERS = ("tern", "gannet", "plover")
SAMPLE = 6


def fields(number: int, sort_tools: bool = False, pages: int = 3) -> dict[str, str]:
    """What stands in the place of each field in request `number`. Always the same for the same number."""
    rng = random.Random(f"request {number}")
    tools: object = _shuffled(list(TOOLS), rng)
    documents = MANUAL[:pages] if number % 3 != 1 else MANUAL[-pages:]
    return {
        "time": f"09:{14 + number // 8:02}:{(2 + 7 * number) % 60:02} on 14 March 2026",
        "date": "14 March 2026",
        "session": f"{rng.getrandbits(64):016x}",
        "user": USERS[number % len(USERS)],
        "tools": json.dumps(in_order(tools) if sort_tools else tools),
        "documents": "\n".join(documents),
        "question": MANUAL_QUESTIONS[number % len(MANUAL_QUESTIONS)],
    }


def _shuffled(data: object, rng: random.Random) -> object:
    """As a program hands it over that keeps its tools in a set and its keys in no order."""
    if isinstance(data, dict):
        return {key: _shuffled(data[key], rng) for key in rng.sample(sorted(data), len(data))}
    return [_shuffled(each, rng) for each in rng.sample(data, len(data))] if isinstance(data, list) else data


def render(template: str, number: int, sort_tools: bool = False, pages: int = 3) -> str:
    """The prompt of request `number`.

    Raises:
        ValueError: the template names a field that there is not.
    """
    known = fields(number, sort_tools, pages)

    def value(found: re.Match[str]) -> str:
        if found.group(1) not in known:
            raise ValueError(f"there is no field {{{found.group(1)}}}; there are {', '.join(known)}")
        return known[found.group(1)]

    return re.sub(r"\{(\w+)\}", value, template)


def prompts(text: str, sort_tools: bool, count: int = SAMPLE, pages: int = 3) -> list[str]:
    """A sample of what the service sends."""
    return [render(text, number, sort_tools, pages) for number in range(count)]


def by_stability(text: str, sort_tools: bool) -> str:
    """The same lines, those that change least often first; lines that change equally often keep their order."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(sorted(lines, key=lambda line: len(set(prompts(line, sort_tools)))))


def step(name: str) -> tuple[str, bool]:
    """The template after one of STEPS, and whether tools are sorted then."""
    lines = AS_FOUND.splitlines()
    moved = min(STEPS.index(name), 3)
    return "\n".join([*lines[moved:-1], *lines[:moved], lines[-1]]), name == STEPS[-1]


def workload(lab: Lab, template: str, sort_tools: bool, name: str = "template") -> Workload:
    """The sample as traffic, one request at a time; shorter in the lab's short form."""
    count, pages = (SAMPLE, 3) if lab.scale == 1 else (3, 1)
    return one_by_one(name, "One service's requests.", prompts(template, sort_tools, count, pages))


def step_workload(lab: Lab, name: str) -> Workload:
    """The sample after one of STEPS."""
    return workload(lab, *step(name), name)
