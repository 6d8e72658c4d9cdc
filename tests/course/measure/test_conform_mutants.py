"""`minillm conform` finds each of these mistakes in a small engine that is right without them."""

import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from course.measure.conform.adapter import Adapter
from course.measure.conform.runs import outcome_of
from course.measure.conform.scheduling import SCHEDULING_CHECKS
from course.measure.conform.verdict import CheckOutcome

ENGINE = Path(__file__).parent / "paged_engine.py"
CHECKS = {check.name: check for check in SCHEDULING_CHECKS}
ABORTED = "                self.leave(job)\n                self.release(job)"
PREEMPTED = "        self.release(job)\n        self.waiting.appendleft(job)"
DONE = "                self.running.remove(job)\n                self.release(job)"
FITS = "min(self.limits.max_model_len, self.limits.num_blocks * self.size)"


class Mutant(NamedTuple):
    mistake: str
    check: str
    """It finds the mistake."""
    right: str
    """Of the engine's text, once in it."""
    wrong: str


MUTANTS = [
    Mutant(
        "the same block is to be found twice, as in nano-vllm-v1",
        "leaks",
        "if key not in self.known and block not in self.keys:",
        "if block not in self.keys:",
    ),
    Mutant(
        "an abort frees no block that another uses as well",
        "leaks",
        ABORTED,
        "                job.blocks = [block for block in job.blocks if self.users[block] == 1]\n" + ABORTED,
    ),
    Mutant(
        "what an aborted prompt would have computed can be found",
        "leaks",
        ABORTED,
        "                job.computed = min(len(job.tokens), len(job.blocks) * self.size)\n"
        "                self.remember(job)\n" + ABORTED,
    ),
    Mutant("a preempted request's last block is lost", "leaks", PREEMPTED, "        job.blocks.pop()\n" + PREEMPTED),
    Mutant(
        "what a prompt found stays in use where it can't be admitted",
        "leaks",
        "                self.release(job)\n                break",
        "                job.blocks, job.computed = [], 0\n                break",
    ),
    Mutant(
        "a prompt that is cached but for its last block keeps one",
        "leaks",
        "            job.computed = end\n",
        "            job.computed = end\n"
        "            self.users[block] += end == 3 * self.size == len(job.tokens) - self.size\n",
    ),
    Mutant(
        "an answer that is found as a prompt is used twice",
        "leaks",
        "self.users[block] += 1",
        "self.users[block] += 1 + (end > 64)",
    ),
    Mutant(
        "a request is kept when it has ended",
        "memory",
        DONE,
        DONE + "\n                self.done = [*getattr(self, 'done', []), job.tokens]",
    ),
    Mutant(
        "in the queue, an abort isn't heard",
        "aborts in each state",
        "for job in [*self.waiting, *self.running]:",
        "for job in [*self.running]:",
    ),
    Mutant(
        "preempted, an abort isn't heard",
        "aborts in each state",
        "            if job.name == name:",
        "            if job.name == name and not (job in self.waiting and job.end - len(job.tokens) in range(21, 40)):",
    ),
    Mutant(
        "a block's name is its own tokens only",
        "same block after another prefix",
        "key = tuple(job.tokens[:end])\n            if key",
        "key = tuple(job.tokens[end - self.size : end])\n            if key",
    ),
    Mutant("the context is one too short", "borders of the context", f"end > {FITS}", f"end >= {FITS} - 1"),
    Mutant(
        "the context has no end",
        "borders of the context",
        f"end > {FITS}",
        "end > self.limits.num_blocks * self.size",
    ),
    Mutant("the pool is taken for larger", "borders of the pool", f"end > {FITS}", f"end > {FITS} + 2"),
    Mutant(
        "a part of a prompt answers",
        "chunk borders",
        "if job.computed == len(job.tokens):",
        "if job.computed == len(job.tokens) or count == self.limits.max_num_batched_tokens:",
    ),
    Mutant(
        "prompts don't use up a step's budget",
        "limits of a step",
        "            parts.append((job, count))\n            budget -= count\n        return",
        "            parts.append((job, count))\n        return",
    ),
    Mutant("one request too many", "limits of a step", "< self.limits.max_num_seqs", "<= self.limits.max_num_seqs"),
    Mutant(
        "who came last is next",
        "first come first served",
        "job = self.waiting[0]\n            self.find",
        "self.waiting.rotate(1)\n            job = self.waiting[0]\n            self.find",
    ),
    Mutant(
        "the shortest is next",
        "long prompts get their turn",
        "job = self.waiting[0]\n            self.find",
        "self.waiting = deque(sorted(self.waiting, key=lambda job: len(job.tokens)))\n"
        "            job = self.waiting[0]\n            self.find",
    ),
]


def engine(text: str, monkeypatch: pytest.MonkeyPatch) -> type[Adapter]:
    """The class Adapter of an engine's text."""
    module = ModuleType("mutant")
    monkeypatch.setitem(sys.modules, "mutant", module)  # a dataclass asks for its module
    exec(compile(text, str(ENGINE), "exec"), vars(module))
    return module.Adapter  # type: ignore[no-any-return]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mistake)
def test_a_mistake_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ENGINE.read_text()
    assert right.count(mutant.right) == 1
    make = engine(right.replace(mutant.right, mutant.wrong), monkeypatch)
    outcome, sent, expected, got = outcome_of(lambda: CHECKS[mutant.check].run(make))
    assert outcome is CheckOutcome.FAIL and sent and expected and got


@pytest.mark.parametrize("name", sorted({mutant.check for mutant in MUTANTS}))
def test_the_engine_is_right_without_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = engine(ENGINE.read_text(), monkeypatch)
    assert outcome_of(lambda: CHECKS[name].run(make)) == (CheckOutcome.PASS, "", "", "")
