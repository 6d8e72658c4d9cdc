"""Exercises in a browser tab: the judges are the course's own, and so is the engine that an answer serves in."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course.grading.blame import explain
from course.grading.exercise import Exercise
from course.grading.exercises import catalogue, find
from course.grading.parts import Parts, make_scheduler_with
from course.grading.remote import AnswerEndedError
from course.grading.source import answer_file, statement
from course.tab.answer_beside import AnswerBeside
from course.tab.dashboard import TabBench
from minillm.core.errors import ConfigError

GRADING = Path(__file__).resolve().parents[1] / "grading"
NOT_HERE = ("numpy", "torch", "triton", "asyncio")
"""Exercises that import one of these aren't offered: a browser has none of them, and an event loop of its own."""
FILE = "answer.py"
MOST_SEEDS = 1_000_000
LIMIT_S = 60.0
"""CPU seconds that all questions may take together; the page is less patient with one that hangs."""


@dataclass(frozen=True)
class ServedPart:
    """What an exercise's answer is in the engine, and what shows it."""

    part: str
    """Its name in course.grading.parts.Parts."""
    name: str
    """The function or class of the answer."""
    traffic: str
    fields: Mapping[str, Any]
    """Fields of EngineConfig that show it: little memory for a choice of victims, no step ahead of a planned one."""


SERVED = {
    "continuous-batching-step": ServedPart("scheduler_step", "plan_step", "burst", {"async_scheduling": False}),
    "preemption": ServedPart("pick_victim", "pick_victim", "burst", {"num_kv_blocks": 8}),
    "block-pool": ServedPart("block_pool", "BlockPool", "chat", {"enable_prefix_caching": False}),
    "prefix-hash-chain": ServedPart("block_names", "block_names", "rag", {}),
    "lru-eviction": ServedPart("eviction_order", "EvictionOrder", "mixed", {"num_kv_blocks": 64}),
    "radix-tree": ServedPart("prefix_tree", "RadixTree", "chat", {}),
}
"""Answers that can serve, in the place of the engine's own part."""


def offered() -> list[Exercise]:
    """Exercises whose judges and answers need nothing but Python."""
    return [each for each in catalogue() if not each.needs and not _wants(each)]


def _wants(exercise: Exercise) -> bool:
    """Whether its judges or its answer import what isn't there."""
    judges = GRADING / "exercises" / f"{exercise.id.replace('-', '_')}.py"
    texts = judges.read_text(encoding="utf-8"), answer_file(exercise, "solution")
    return any(f"import {name}" in text or f"from {name}" in text for name in NOT_HERE for text in texts)


def exported(exercise: Exercise) -> dict[str, Any]:
    """What a page shows of one before anything is checked."""
    return {
        "id": exercise.id,
        "title": exercise.title,
        "lesson": exercise.lesson,
        "level": exercise.level,
        "minutes": exercise.minutes,
        "points": exercise.max_score,
        "statement": statement(exercise),
        "stub": _code(exercise),
        "serves": SERVED[exercise.id].part if exercise.id in SERVED else "",
        "hints": [{"text": hint.text, "cost": hint.cost * exercise.max_score} for hint in exercise.hints],
    }


def _code(exercise: Exercise) -> str:
    """The starter without the statement, which stands beside it."""
    lines = answer_file(exercise, "stub").splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    return "".join(lines[first:])


def check(exercise: str, text: str, seed: int | None = None) -> dict[str, Any]:
    """Grade an answer.

    Args:
        exercise: its id.
        text: the answer's file.
        seed: of the questions; None = another one each time.
    Raises:
        LookupError: there is no such exercise, or a browser can't check it.
    """
    found = find(exercise)
    if found.id not in {each.id for each in offered()}:
        raise LookupError(f"{exercise} needs more than a browser has: it's in the notebooks")
    seed = secrets.randbelow(MOST_SEEDS) if seed is None else seed
    desk = AnswerBeside(LIMIT_S)
    try:
        answer = desk.loaded(FILE, text)
    except AnswerEndedError as error:
        criteria = found.ungraded(str(error))
    except Exception as error:
        criteria = found.ungraded(explain(error, frozenset((FILE,))))
    else:
        criteria = found.grade(answer, seed)
    told = [
        {"name": each.name, "earned": each.earned, "possible": each.possible, "feedback": each.words}
        for each in criteria
    ]
    return {"criteria": told, "seed": seed, "printed": desk.printed}


def serve(exercise: str, text: str, seed: int = 0) -> dict[str, Any]:
    """The same traffic by the engine's own part, and by the answer's.

    Returns:
        Runs as the dashboard's view is told them, `ours` and `yours`; and `notes`: what the engine had to replace.
    Raises:
        LookupError: this exercise has no part in the engine.
        ConfigError: the answer can't be loaded, or has no such part.
    """
    if exercise not in SERVED:
        raise LookupError(f"{exercise} is no part of the engine")
    served, bench = SERVED[exercise], TabBench.usual()
    names: dict[str, Any] = {"__name__": "answer"}
    try:
        exec(compile(text, FILE, "exec"), names)
    except Exception as error:
        raise ConfigError(explain(error, frozenset((FILE,)))) from error
    if served.name not in names:
        raise ConfigError(f"there is no `{served.name}` in your answer: keep the names of the stub")
    notes: list[str] = []
    own = make_scheduler_with(Parts(**{served.part: names[served.name]}), notes)
    traffic = bench.traffic(served.traffic, seed)
    ours = bench.run(traffic, served.fields)
    yours = replace(bench, device=replace(bench.device, make_scheduler=own)).run(traffic, served.fields)
    return {"ours": ours, "yours": yours, "notes": notes}
