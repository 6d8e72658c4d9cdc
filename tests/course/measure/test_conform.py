"""`minillm conform` passes a right engine, and names what is wrong with a wrong one."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from patience import wait_for

from course.measure.child import ServerError, serving
from course.measure.conform.adapter import Adapter, AdapterError, Limits, load_adapter, time_limit
from course.measure.conform.adapters.minillm import Adapter as Minillm
from course.measure.conform.adapters.minillm import CountingRunner
from course.measure.conform.checkpoint import Reference, write_checkpoint
from course.measure.conform.client import ServerUnderTest
from course.measure.conform.counting import CountingModel, KernelError, KernelRow, expected_tokens
from course.measure.conform.report import badge
from course.measure.conform.runs import outcome_of, scheduling_verdicts
from course.measure.conform.scheduling import SCHEDULING_CHECKS
from course.measure.conform.serving import SERVING_CHECKS
from course.measure.conform.verdict import CheckOutcome, CheckVerdict, ConformityError

Run = Callable[..., tuple[int, str, str]]
LONG = ("leaks", "memory", "batch invariance")
CHECKS = [pytest.param(each, marks=[pytest.mark.slow] * (each.name in LONG)) for each in SCHEDULING_CHECKS]


def outcomes(make: type[Adapter], *names: str) -> list[CheckOutcome]:
    checks = {check.name: check for check in SCHEDULING_CHECKS}
    return [outcome_of(lambda name=name: checks[name].run(make))[0] for name in names]  # type: ignore[misc]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_our_scheduler_conforms(check: Any) -> None:
    assert outcome_of(lambda: check.run(Minillm)) == (CheckOutcome.PASS, "", "", "")


class OneTooFar(Minillm):
    """Decodes at a position one too high: nano-vllm until July 2025."""

    def __init__(self, limits: Limits, model: CountingModel) -> None:
        super().__init__(limits, model)
        runner: Any = self.engine.core.runner
        row = runner.row
        runner.row = lambda part: (
            each._replace(positions=[each.positions[0] + 1])
            if len((each := row(part)).token_ids) == 1 and part.start
            else each
        )


class Forgetful(Minillm):
    """Never hears that a client left."""

    def abort(self, name: str) -> None:
        pass


class Generous(Minillm):
    """Has every other block twice: what one request writes, another reads."""

    def __init__(self, limits: Limits, model: CountingModel) -> None:
        super().__init__(limits, model)
        runner: Any = self.engine.core.runner
        row, size = CountingRunner.row, limits.block_size

        def aliased(slots: Any) -> list[int]:
            return [slot - slot // size % 2 * size for slot in slots]

        def wrong(part: Any) -> KernelRow:
            each = row(runner, part)
            return each._replace(slots=aliased(each.slots), context=aliased(each.context))

        runner.row = wrong


def test_wrong_engines_are_found() -> None:
    alone, leaving, together = "one request alone", "aborts in each state", "block borders"
    assert outcomes(OneTooFar, alone, leaving) == [CheckOutcome.FAIL, CheckOutcome.FAIL]
    assert outcomes(Forgetful, alone, leaving) == [CheckOutcome.PASS, CheckOutcome.FAIL]
    assert outcomes(Generous, together) == [CheckOutcome.FAIL]


def test_an_engine_that_raises_crashes_and_one_that_cannot_is_skipped() -> None:
    class Raises(Minillm):
        def step(self) -> dict[str, list[int]]:
            raise KeyError("block 7")

        def abort(self, name: str) -> None:
            raise NotImplementedError("it can't")

    outcome, _, _, got = outcome_of(lambda: SCHEDULING_CHECKS[0].run(Raises))
    assert outcome is CheckOutcome.CRASH and "block 7" in got

    class Stays(Minillm):
        abort = Raises.abort

    assert outcomes(Stays, "aborts in each state") == [CheckOutcome.SKIPPED]


def test_the_model_depends_on_all_that_it_reads() -> None:
    prompt = list(range(20))
    [answer] = expected_tokens(prompt, 1)
    for place in (0, 7, 19):
        assert expected_tokens([*prompt[:place], 500, *prompt[place + 1 :]], 1) != [answer]
    model = CountingModel()
    whole = model.forward([KernelRow(prompt, range(20), range(100, 120), range(100, 120))])
    chunks = CountingModel()
    chunks.forward([KernelRow(prompt[:13], range(13), range(13), range(13))])
    assert whole == chunks.forward([KernelRow(prompt[13:], range(13, 20), range(13, 20), range(20))]) == [answer]
    following = chunks.forward([KernelRow([answer], [20], [20], range(21))])
    assert expected_tokens(prompt, 2) == [answer, *following], "by itself, without a model"
    with pytest.raises(KernelError):
        model.forward([KernelRow([], [], [], [])])


def test_an_adapter_that_cannot_be_used(tmp_path: Path) -> None:
    names = ("broken.py", "ends.py", "hangs.py", "text.txt", "empty.py", "number.py", "half.py")
    broken, ends, hangs, text, empty, number, half = (tmp_path / name for name in names)
    broken.write_text("import nobody_has_this")
    ends.write_text("import sys; sys.exit(3)")
    hangs.write_text("import signal; signal.pause()")
    text.write_text("some text")
    empty.write_text("")
    number.write_text("Adapter = 3")
    half.write_text("class Adapter:\n    def add(self, name, prompt, max_tokens): pass")
    for name, said in {
        "no_such_engine": "mini_sglang",
        str(broken): "nobody_has_this",
        str(ends): "SystemExit: 3",
        str(hangs): "its import hasn't ended",
        str(text): "SyntaxError",
        str(empty): "no class Adapter",
        str(number): "no class Adapter",
        str(half): "lacks step, is_idle, num_free_tokens, abort",
    }.items():
        with pytest.raises(AdapterError, match=said):
            load_adapter(name, limit_s=0.2 if name == str(hangs) else 60)
    assert load_adapter("minillm").__module__ == "conform_adapter"


NOISY = """
import os
from course.measure.conform.adapters.minillm import Adapter as Minillm
print("imported")
class Adapter(Minillm):
    def step(self):
        print("a step")
        os.write(1, b"from C")
        return super().step()
"""
SILENT = """
from course.measure.conform.adapters.minillm import Adapter as Minillm
class Adapter(Minillm):
    def __init__(self, limits, model):
        raise NotImplementedError("none of it")
"""


def test_an_adapter_that_prints_and_one_that_offers_nothing(run: Run, tmp_path: Path) -> None:
    noisy, silent, badge_file = tmp_path / "noisy.py", tmp_path / "silent.py", tmp_path / "conform.svg"
    noisy.write_text(NOISY)
    status, out, err = run("conform", "--adapter", str(noisy), "--only", "alone", "--json")
    assert status == 0 and json.loads(out)["counts"] == {"pass": 1}
    assert "imported" in err and "a step" in err and "from C" in err
    status, _, err = run("conform", "--adapter", str(noisy), "--only", "alone", "--badge", str(badge_file))
    assert status == 2 and "--only" in err and not badge_file.exists()
    silent.write_text(SILENT)
    status, out, _ = run("conform", "--adapter", str(silent), "--only", "alone", "--json")
    assert status == 1 and not json.loads(out)["conforms"]


def test_a_mistake_in_the_adapter_is_not_the_engine_s(tmp_path: Path) -> None:
    for method, body, said in (
        ("__init__", "raise KeyError('no engine')", "can't be made.*no engine"),
        ("step", "pass", r"step\(\) returned None"),
        ("step", "return {'stranger': [1]}", "'stranger', which nobody added"),
    ):
        file = tmp_path / "mine.py"
        file.write_text(
            "from course.measure.conform.adapters.minillm import Adapter as Minillm\n"
            f"class Adapter(Minillm):\n    def {method}(self, *arguments):\n        {body}\n"
        )
        with pytest.raises(AdapterError, match=said):
            list(scheduling_verdicts(str(file), ["alone"]))


def test_a_crash_and_an_endless_step_say_what_was_asked_and_where() -> None:
    class Raises(Minillm):
        def step(self) -> dict[str, list[int]]:
            raise KeyError("block 7")

    class Endless(Minillm):
        def step(self) -> dict[str, list[int]]:
            while True:
                signal.pause()

    class ReadsWrongly(Minillm):
        def step(self) -> dict[str, list[int]]:
            return json.loads("no batch")  # type: ignore[no-any-return]

    def endless() -> None:
        with time_limit(0.05, "the check"):
            SCHEDULING_CHECKS[0].run(Endless)

    crash, sent, _, got = outcome_of(lambda: SCHEDULING_CHECKS[0].run(Raises))
    assert crash is CheckOutcome.CRASH and "1 x 1+20" in sent and "step < " in got
    *_, got = outcome_of(lambda: SCHEDULING_CHECKS[0].run(ReadsWrongly))
    assert got.startswith("JSONDecodeError at test_conform.py:")  # not the library's own line
    late, sent, _, got = outcome_of(endless)
    assert (
        late is CheckOutcome.FAIL
        and "1 x 1+20" in sent
        and "0.05 s; it was at test_conform.py" in got
        and "step < " in got
    )


# ------------------------------------------------------------------ over HTTP


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("conform") / "tiny")


def test_the_checkpoint_answers_in_text_to_every_token_it_reads(tiny: Path) -> None:
    reference = Reference(tiny)
    prompt = list(range(40, 340))
    answer, _ = reference.answer(prompt, 12)
    text = reference.decode(answer)
    assert text.isprintable() and "\ufffd" not in text and reference.encode(text)
    for place in (0, 70, 150, 298):
        assert reference.answer([*prompt[:place], 7, *prompt[place + 1 :]], 12)[0] != answer


def test_our_server_conforms(run: Run, tiny: Path) -> None:
    serve = [sys.executable, "-m", "minillm", "serve", "--model", "{model}", "--port", "{port}", "--dtype", "float32"]
    status, out, err = run("conform", "--requests", "16", "--json", *serve)
    found = json.loads(out)
    assert [(v["check"], v["got"]) for v in found["verdicts"] if v["outcome"] != "pass"] == [], err
    assert status == 0 and found["conforms"] and len(found["verdicts"]) == len(SERVING_CHECKS)


class OneAtATime:
    """As much of a client as `fairness` asks. Its server answers a request when the stream before it has ended."""

    def __init__(self, num_pieces: int | None) -> None:
        """A stream of so many pieces; None = endless, and requests don't wait for it."""
        self.is_endless, self.is_over = num_pieces is None, threading.Event()
        self.texts = itertools.repeat({"text": "a"}, *([] if num_pieces is None else [num_pieces]))

    def known(self) -> None:
        pass

    def pieces(self, prompt: str, max_tokens: int) -> Iterator[dict[str, str]]:
        yield from self.texts
        self.is_over.set()

    def complete(self, prompt: str, max_tokens: int) -> None:
        if not self.is_endless:
            self.is_over.wait()
            time.sleep(0.1)  # until its client has noticed


def test_a_short_request_is_not_kept_waiting_and_the_long_one_is_left_then() -> None:
    [fairness] = (check for check in SERVING_CHECKS if check.name == "fairness")
    assert outcome_of(lambda: fairness.run(OneAtATime(None)))[0] is CheckOutcome.PASS
    assert outcome_of(lambda: fairness.run(OneAtATime(1_000)))[0] is CheckOutcome.FAIL


@pytest.mark.parametrize(
    ("trouble", "outcome", "said"),
    [
        (None, CheckOutcome.FAIL, "data"),
        (httpx.ReadTimeout("nothing came"), CheckOutcome.FAIL, "none after"),
        (httpx.ConnectError("refused"), CheckOutcome.CRASH, "gone: refused"),
        (httpx.RemoteProtocolError("cut off"), CheckOutcome.FAIL, "hung up: cut off"),
    ],
)
def test_a_server_that_says_something_else_or_nothing_fails(
    trouble: Exception | None, outcome: CheckOutcome, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/completions" and trouble:
            raise trouble
        return httpx.Response(200, json={"data": [{"id": "tiny"}]})

    make = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: make(transport=httpx.MockTransport(answer)))
    [usage] = (check for check in SERVING_CHECKS if check.name == "usage")
    found, _, expected, got = outcome_of(lambda: usage.run(ServerUnderTest("http://odd")))
    assert found is outcome and expected and said in got


@pytest.mark.parametrize("line", ["data: <html>", "data: [1]", 'data: {"choices": [3]}'])
def test_a_stream_of_something_else_fails(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        return httpx.Response(200, text=f"{line}\n\n")

    make = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: make(transport=httpx.MockTransport(answer)))
    with pytest.raises(ConformityError, match="OpenAI's API"):
        ServerUnderTest("http://odd").stream("a prompt")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_separators_in_a_text_end_no_line(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a\u2028b", "c\x85", "d"]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        events = [json.dumps({"choices": [{"text": text}]}, ensure_ascii=False) for text in texts]
        sent = "".join(f"data: {event}{end}{end}" for event in [*events, "[DONE]"]).encode()
        return httpx.Response(200, content=(sent[at : at + 1] for at in range(len(sent))))

    make = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: make(transport=httpx.MockTransport(answer)))
    assert ServerUnderTest("http://odd").stream("a prompt") == (texts, [])


def test_nothing_or_two_things_to_try(run: Run, tmp_path: Path) -> None:
    for arguments in ((), ("--url", "http://localhost:1", "--adapter", "minillm"), ("--checkpoint", "x", "python")):
        status, _, err = run("conform", *arguments)
        assert status == 2 and ("one thing" in err or "COMMAND" in err)
    status, _, err = run("conform", "--url", "http://127.0.0.1:1")
    assert status == 2 and "/v1/models" in err
    status, _, err = run("conform", sys.executable, "-c", "print({'no': 'server'})")
    assert status == 2 and "{'no': 'server'}" in err
    status, _, err = run("conform", "--url", "http://127.0.0.1:1", "--checkpoint", str(tmp_path))
    assert status == 2 and "config.json" in err
    status, _, err = run("conform", "--write-checkpoint", __file__)
    assert status == 2 and __file__ in err


def test_a_server_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    waits = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(ServerError, match="isn't ready after"), serving(waits, tmp_path / "log", limit_s=0.1):
        pass


def test_what_a_command_has_started_ends_with_it(tmp_path: Path) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    log = tmp_path / "log"
    with (
        pytest.raises(ServerError, match="it ended"),
        serving([sys.executable, "-c", script, "{model}{odd}"], log, {"model": tmp_path}),
    ):
        pass
    wait_for(lambda: is_over(int(log.read_text())), "the end of what the command had started")


def test_a_server_ends_with_us_even_if_we_are_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    serve = "import signal, subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); signal.pause()"
    ours = f"""
from course.measure.child import serving
from pathlib import Path
with serving({[sys.executable, "-c", serve]}, Path({str(log)!r})): pass
"""
    with subprocess.Popen([sys.executable, "-c", ours]) as process:
        wait_for(lambda: log.is_file() and log.read_text().endswith("\n"), "the server's own child")
        process.kill()
    wait_for(lambda: is_over(int(log.read_text())), "the end of what the killed process had started")


def is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # where no init looks after orphans
    except psutil.NoSuchProcess:
        return True


def test_a_badge_counts_what_ran() -> None:
    verdicts = [
        CheckVerdict("a", CheckOutcome.PASS, ""),
        CheckVerdict("b", CheckOutcome.SKIPPED, ""),
        CheckVerdict("c", CheckOutcome.FAIL, ""),
    ]
    assert ">1 of 2<" in badge(verdicts) and "1 skipped" in badge(verdicts)
