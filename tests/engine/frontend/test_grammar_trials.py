"""Grammars are tried in a child process: what kills it is one request's refusal, and nothing waits for it."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from frontend.grammars import compiled
from hypothesis import HealthCheck, given, settings
from integrity import check_engine
from server.nasty_grammars import WORST, asked, rules

from minillm import EngineConfig, SamplingParams, StructuredOutputsParams
from minillm.core.errors import InvalidSamplingParamsError, QueueFullError
from minillm.frontend import grammar_trials, grammar_worker, structured_outputs
from minillm.frontend.engine import Engine
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.errors import EngineDeadError, InvalidGrammarError
from minillm.frontend.structured_outputs import GrammarCompiler, resolve_tokens
from minillm.model.loader import LoadedModel
from minillm.server.errors import ApiError
from minillm.server.protocol import CompletionBody, parse

ROOT = Path(__file__).parents[3]
CRASHING = StructuredOutputsParams(grammar=f"start: %json {json.dumps(WORST)}")
"""What the limits don't see: they read no Lark."""
ENDLESS = StructuredOutputsParams(regex="a?" * 16_000)
"""Many seconds on any machine."""
YES = StructuredOutputsParams(choice=["yes"])


@pytest.mark.parametrize("crashing", [CRASHING, StructuredOutputsParams(grammar=rules(3000))])
def test_a_crash_is_the_refusal_of_the_request_that_caused_it(
    grammars: GrammarCompiler, crashing: StructuredOutputsParams
) -> None:
    before = grammars.trials.num_deaths
    with pytest.raises(InvalidGrammarError, match="structured outputs: grammar: the grammar library crashes on it"):
        compiled(grammars, crashing)
    assert compiled(grammars, YES) is not None
    assert grammars.trials.num_deaths == before + 1


def test_a_deadline_is_one_too_and_the_next_trial_begins_anew(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars.trials.end_idle(0)
    monkeypatch.setattr(grammars.trials, "timeout_s", 0.2)
    deaths = grammars.trials.num_deaths
    late = r"regex: it takes longer than 0.2 s of CPU time.*ask the operator to raise --grammar-timeout"
    with pytest.raises(InvalidGrammarError, match=late):
        compiled(grammars, ENDLESS)
    assert grammars.trials.num_deaths == deaths + 1
    after = StructuredOutputsParams(choice=["after a deadline"])
    assert compiled(grammars, after) is not None, "a start takes longer than the deadline, which does not count it"


def next_worker(grammars: GrammarCompiler) -> psutil.Process:
    """The child that will try the next grammar."""
    compiled(grammars, StructuredOutputsParams(choice=[f"{time.monotonic()}"]))
    return psutil.Process(grammars.trials._idle[-1]._process.pid)


def test_a_busy_machine_is_no_reason_for_a_deadline(grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trials, "WALL_TIMES", 1000)
    monkeypatch.setattr(grammars.trials, "timeout_s", 0.5)
    worker = next_worker(grammars)
    worker.suspend()  # as one that gets no core
    future = grammars.start(StructuredOutputsParams(choice=["busy"]))
    threading.Event().wait(0.8)
    worker.resume()
    assert future.result(60) is not None


def test_workers_that_have_nothing_to_do_end(grammars: GrammarCompiler) -> None:
    deaths, worker = grammars.trials.num_deaths, next_worker(grammars)
    grammars.trials.end_idle()
    assert worker.is_running(), "it has had something to do a moment ago"
    grammars.trials.end_idle(0)
    assert not worker.is_running()
    assert compiled(grammars, StructuredOutputsParams(choice=["idle"])) is not None
    assert grammars.trials.num_deaths == deaths


def test_a_client_that_left_leaves_the_queue_and_one_that_waits_too_long_is_told(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    run = grammars.trials.run
    monkeypatch.setattr(grammars.trials, "run", lambda text, **how: (tried.append(text), run(text, **how))[1])
    with grammars._working:  # as if another's grammar were being written
        gone = grammars.start(StructuredOutputsParams(choice=["gone"]))
        stays = grammars.start(StructuredOutputsParams(choice=["stays"]))
        assert gone.cancel()
    assert stays.result(60) is not None
    assert grammars.start(StructuredOutputsParams(choice=["gone"])).result(60) is not None, "for one who stays"
    assert len(tried) == 2
    for taken in range(grammar_trials.MAX_WORKERS):
        assert grammars.trials._free.acquire(timeout=60), taken
    late = grammars.start(StructuredOutputsParams(choice=["late"]))
    assert late.cancel()
    with monkeypatch.context() as patch:
        patch.setattr(grammar_trials, "PATIENCE", 0.0)
        with pytest.raises(QueueFullError, match="try again later"):
            compiled(grammars, StructuredOutputsParams(choice=["one too many"]))
    for _ in range(grammar_trials.MAX_WORKERS):
        grammars.trials._free.release()
    assert grammars.start(StructuredOutputsParams(choice=["late"])).result(60) is not None


def test_a_worker_that_was_killed_is_replaced(grammars: GrammarCompiler) -> None:
    deaths, worker = grammars.trials.num_deaths, next_worker(grammars)
    worker.kill()
    worker.wait(60)
    assert compiled(grammars, StructuredOutputsParams(choice=["killed"])) is not None
    assert grammars.trials.num_deaths == deaths, "no grammar did that"


def test_one_that_is_killed_from_outside_says_so(grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars.trials, "timeout_s", 300)
    worker = next_worker(grammars)
    idle = worker.cpu_times().user
    future = grammars.start(ENDLESS)
    while worker.cpu_times().user < idle + 0.05:  # until it has begun
        threading.Event().wait(0.01)
    worker.kill()
    with pytest.raises(InvalidGrammarError, match="killed from outside"):
        future.result(60)


def test_engines_leave_no_process_behind(config: EngineConfig, model: LoadedModel) -> None:
    engine = Engine(config, model)
    started = next_worker(engine.grammars)
    assert started.nice() > psutil.Process().nice() or sys.platform != "linux"
    engine.close()
    assert not started.is_running(), "no zombie either"
    with pytest.raises(InvalidGrammarError, match="closed"):
        compiled(engine.grammars, StructuredOutputsParams(choice=["no"]))


def test_a_notebook_may_have_put_a_path_among_those_that_python_searches(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grammars.trials.end_idle(0)  # the next one starts with the paths of now
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert compiled(grammars, StructuredOutputsParams(choice=["a path"])) is not None


KILLED = """
import os, signal
from minillm.frontend.structured_outputs import GrammarCompiler, StructuredOutputsParams
from tokenizers import Tokenizer
from types import SimpleNamespace
import psutil
tokenizer = SimpleNamespace(backend_tokenizer=Tokenizer.from_file({folder!r} + "/tokenizer.json"))
compiler = GrammarCompiler(tokenizer, None, [2], timeout_s=3)
for future in [compiler.start(StructuredOutputsParams(choice=[text])) for text in "ab"]:
    future.result()
print(*(child.pid for child in psutil.Process().children()), flush=True)
future = compiler.start(StructuredOutputsParams(regex="a?" * 16_000))
input()
"""
"""One of its children is idle, and one is not."""


def test_workers_end_with_their_engine_however_that_ends(tiny_llama_path: Path) -> None:
    command = [sys.executable, "-c", KILLED.format(folder=str(tiny_llama_path))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as parent:
        try:
            children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        finally:
            parent.kill()
    assert len(children) == 2
    _, left = psutil.wait_procs(children, timeout=60)
    assert not left


def test_no_step_waits_for_a_grammar(config: EngineConfig, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_in: list[str] = []
    compile_grammar = structured_outputs.compile_grammar

    def noted(*args: object) -> object:
        compiled_in.append(threading.current_thread().name)
        return compile_grammar(*args)

    monkeypatch.setattr(structured_outputs, "compile_grammar", noted)
    with EngineThread(config.replace(grammar_timeout_s=60), model) as thread:
        slow = thread.submit_nowait([5], SamplingParams(structured_outputs=ENDLESS), lambda _: None)
        assert thread.submit([5], SamplingParams(max_tokens=4)).result(60).finished
        many = SamplingParams(n=8, max_tokens=4, structured_outputs=YES)
        output = thread.submit([5], many).result(60)
        assert {completion.text for completion in output.completions} == {"yes"}
        assert compiled_in == ["minillm-grammar"], "once for all of them"
        assert not slow.done()
    with pytest.raises(EngineDeadError):
        slow.result(60)


def test_a_request_that_is_cancelled_while_its_grammar_compiles_never_runs(
    config: EngineConfig, model: LoadedModel
) -> None:
    with EngineThread(config, model) as thread:
        outputs: list[object] = []
        while not thread.submit_nowait([5], SamplingParams(structured_outputs=YES), outputs.append).cancel():
            pass  # it was compiled already
        thread.submit([5], SamplingParams(structured_outputs=YES)).result(60)
        thread.call(check_engine).result(60)


def test_a_token_that_the_tokenizer_has_not_is_its_text() -> None:
    text = r'start: <a> "<a>" <b> /<a>/ [<a>] // <a>'
    assert resolve_tokens(text, {"<b>"}) == r'start: "<a>" "<a>" <b> /<a>/ [<a>] // <a>'


def test_what_is_kept_is_bounded_in_bytes(grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured_outputs, "CACHED_BYTES", 250)
    tried: list[str] = []
    monkeypatch.setattr(grammars.trials, "run", lambda text, **_: tried.append(text) or grammar_trials.Tried(text, 100))
    so_far = []
    for choice in "abbcba":  # two have room
        compiled(grammars, StructuredOutputsParams(choice=[choice]))
        so_far.append(len(tried))
    assert so_far == [1, 2, 2, 3, 3, 4]


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(fields=asked.filter(lambda fields: "tools" not in fields))
def test_what_passed_its_trial_harms_nothing_here(grammars: GrammarCompiler, fields: dict[str, Any]) -> None:
    """Compiled and followed in this process, for longer than in the trial: a crash would end the tests."""
    try:
        [params] = (
            parse(json.dumps({"model": "m", "prompt": "", **fields}).encode(), CompletionBody).constraints().values()
        )
        matcher = compiled(grammars, params)
    except (ApiError, InvalidSamplingParamsError):
        return
    with contextlib.suppress(ValueError):  # too large, further on
        for seed in range(grammar_worker.WALKS, 3 * grammar_worker.WALKS):
            grammar_worker.walk(matcher.deep_copy(), seed)
