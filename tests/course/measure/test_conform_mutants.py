"""`minillm conform` finds each of these mistakes in a small engine and a small server that are right without them."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import pytest

from course.measure.conform.adapter import Adapter
from course.measure.conform.checkpoint import Reference, write_checkpoint
from course.measure.conform.client import ServerUnderTest, UnreachableError
from course.measure.conform.runs import outcome_of
from course.measure.conform.scheduling import SCHEDULING_CHECKS
from course.measure.conform.serving import SERVING_CHECKS
from course.measure.conform.verdict import CheckOutcome

ENGINE = Path(__file__).parent / "paged_engine.py"
SERVER = Path(__file__).parent / "small_server.py"
CHECKS = {check.name: check for check in SCHEDULING_CHECKS}
SERVING = {check.name: check for check in SERVING_CHECKS}
ABORTED = "                self.leave(job)\n                self.release(job)"
PREEMPTED = "        self.release(job)\n        self.waiting.appendleft(job)"
DONE = "                self.running.remove(job)\n                self.release(job)"
FITS = "min(self.limits.max_model_len, self.limits.num_blocks * self.size)"


class Mutant(NamedTuple):
    mistake: str
    check: str
    """It finds the mistake."""
    right: str
    """A piece of the engine's text, once in it."""
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


SERVER_MUTANTS = [
    Mutant(
        "a long prompt loses its beginning", "tokens beside hugging face", "answer(prompt,", "answer(prompt[-500:],"
    ),
    Mutant("a stop string is shown", "stop strings", "text[: min(places)]", "text[: min(places) + 1]"),
    Mutant("a token too many", "usage", 'prompt, body["max_tokens"], **', 'prompt, body["max_tokens"] + 1, **'),
    Mutant(
        "a prompt's last token is dropped where it ends with a block",
        "cached prompts",
        "return tokens\n\n    def read_chat",
        "return tokens[: -(len(tokens) % 16 == 0) or None]\n\n    def read_chat",
    ),
    Mutant(
        "a chat's earlier messages are dropped",
        "chats",
        'encode_chat(body["messages"])',
        'encode_chat(body["messages"][-1:])',
    ),
    Mutant("a seed isn't heard", "seeds", 'random.Random(body.get("seed"))', "random.Random()"),
    Mutant("top_p isn't heard", "top p", ' or body.get("top_p", 1) < 1 / VOCABULARY', ""),
    Mutant("penalties aren't heard", "penalties", "**penalties", ""),
    Mutant("another token was likelier", "logprobs", '{"best": value}', '{"best": value + 1}'),
    Mutant("the last of several stop strings counts", "stop strings that only begin", "min(places)", "max(places)"),
    Mutant(
        "a stream loses what may begin a stop string",
        "stop strings that only begin",
        "self.streamed(text, reason, is_chat)",
        "self.streamed(text[:-1] if body.get('stop') and reason == 'length' else text, reason, is_chat)",
    ),
    Mutant(
        "a stream says twice why it ended",
        "streams",
        "events = [*choices,",
        "events = [*choices, {'finish_reason': reason},",
    ),
    Mutant("the prompt isn't counted", "usage", '{"prompt_tokens": len(prompt)', '{"prompt_tokens": 0'),
    Mutant("nonsense is the server's fault", "nonsense", "httpx.Response(400, text", "httpx.Response(500, text"),
    Mutant("top_p may be anything", "values out of range", '("top_p", 0, 1)', '("top_p", 0, 9)'),
    Mutant(
        "a long prompt is cut",
        "prompts that do not fit",
        'raise ValueError("it\'s too long")',
        "return tokens[-40:]",
    ),
]


def module_of(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of an engine's or server's text."""
    module = ModuleType("mutant")
    monkeypatch.setitem(sys.modules, "mutant", module)  # a dataclass asks for its module
    exec(compile(text, "mutant.py", "exec"), vars(module))
    return module


def mutated(file: Path, mutant: Mutant) -> str:
    right = file.read_text()
    assert right.count(mutant.right) == 1
    return right.replace(mutant.right, mutant.wrong)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mistake)
def test_a_mistake_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    make: type[Adapter] = module_of(mutated(ENGINE, mutant), monkeypatch).Adapter
    outcome, sent, expected, got = outcome_of(lambda: CHECKS[mutant.check].run(make))
    assert outcome is CheckOutcome.FAIL and sent and expected and got


@pytest.mark.parametrize("name", sorted({mutant.check for mutant in MUTANTS}))
def test_the_engine_is_right_without_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make: type[Adapter] = module_of(ENGINE.read_text(), monkeypatch).Adapter
    assert outcome_of(lambda: CHECKS[name].run(make)) == (CheckOutcome.PASS, "", "", "")


# ------------------------------------------------------------------ over HTTP


class RememberingReference(Reference):
    """Checks and small servers ask for the same answers again and again: each is computed once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.once = functools.cache(super().answer)

    def answer(self, prompt: Sequence[int], num_tokens: int, **penalties: float) -> tuple[list[int], list[float]]:
        token_ids, gaps = self.once(tuple(prompt), num_tokens, **penalties)
        return [*token_ids], [*gaps]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return RememberingReference(write_checkpoint(tmp_path_factory.mktemp("conform") / "tiny"))


def client_of(text: str, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> ServerUnderTest:
    transport, make = httpx.MockTransport(module_of(text, monkeypatch).Server(reference)), httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: make(transport=transport))
    return ServerUnderTest("http://small", reference)


@pytest.mark.parametrize("mutant", SERVER_MUTANTS, ids=lambda mutant: mutant.mistake)
def test_a_server_s_mistake_is_found(mutant: Mutant, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(mutated(SERVER, mutant), reference, monkeypatch)
    outcome, sent, expected, got = outcome_of(lambda: SERVING[mutant.check].run(client))
    assert outcome is CheckOutcome.FAIL and sent and expected and got


@pytest.mark.parametrize("name", sorted({mutant.check for mutant in SERVER_MUTANTS}))
def test_the_server_is_right_without_it(name: str, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(SERVER.read_text(), reference, monkeypatch)
    assert outcome_of(lambda: SERVING[name].run(client)) == (CheckOutcome.PASS, "", "", "")


def test_a_server_of_text_only_that_names_no_model(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SERVER.read_text().replace('[{"id": "tiny"}]', "[]")
    text = text.replace("isinstance(prompt, str) else prompt", "isinstance(prompt, str) else int(prompt)")
    with pytest.raises(UnreachableError, match="--model-name"):
        client_of(text, reference, monkeypatch)
    monkeypatch.undo()
    transport, make = httpx.MockTransport(module_of(text, monkeypatch).Server(reference)), httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: make(transport=transport))
    client = ServerUnderTest("http://small", reference, model="tiny")
    for name, outcome in {
        "tokens beside hugging face": CheckOutcome.PASS,
        "prompts that end inside a character": CheckOutcome.SKIPPED,
        "prompts that do not fit": CheckOutcome.PASS,
        "leaks": CheckOutcome.SKIPPED,
    }.items():
        assert outcome_of(lambda name=name: SERVING[name].run(client))[0] is outcome, name  # type: ignore[misc]
