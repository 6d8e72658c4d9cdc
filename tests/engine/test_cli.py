"""The `minillm` command: one JSON object on standard output, one clear message on standard error."""

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm import cli as minillm_main
from minillm.core.batch import ScheduledBatch
from minillm.core.timeline import PHASES
from minillm.runner.torch_runner import TorchRunner

Run = Callable[..., tuple[int, str, str]]

SMALL = ["--set", "dtype=float32", "--set", "num_kv_blocks=64", "--max-tokens", "4", "--temperature", "0"]
"""A quick engine. At temperature 0, so that runs agree."""


@pytest.fixture
def tiny(tiny_llama_path: Path) -> list[str]:
    return ["--model", str(tiny_llama_path), *SMALL]


def test_help_lists_the_commands(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    for command in ("pull", "doctor", "generate", "chat", "bench"):
        assert command in out
        assert run(command, "--help")[0] == 0


NO_MODEL = ("--help", "bench --help", "bench decode --help", "drill list", "simulate --help", "incident --help")
"""Commands that run no model: they should answer at once, so they must not import what takes seconds."""
AFTERWARDS = """
import sys
from minillm.cli import main
sys.argv = ["minillm", *sys.argv[1:]]
try:
    main()
finally:
    print(*{"torch", "transformers"}.intersection(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("command", NO_MODEL)
def test_commands_that_run_no_model_do_not_wait_for_torch(command: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AFTERWARDS, *command.split()], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr.splitlines()[-1:]) == (0, [""])


@pytest.mark.parametrize(("module", "is_ours"), [("typer", False), ("pydantic", False), ("minillm.server.cli", True)])
def test_only_a_broken_package_is_called_one(module: str, is_ours: bool) -> None:
    """What is missing of minillm itself is a mistake of ours, whose traceback is needed."""
    program = f"import sys; sys.modules[{module!r}] = None; import minillm.cli"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ("Traceback" in ended.stderr) == is_ours
    assert ("a package is missing or broken" in ended.stderr) == (not is_ours)


@pytest.mark.parametrize(
    ("file", "program", "is_ours"),
    [
        (minillm_main.__file__, "1 / 0", True),
        (minillm_main.__file__, "raise ImportError('made up')", True),
        (minillm_main.__file__, "import package_that_is_not_there", False),
        (minillm_main.__file__, "import minillm.not_there", True),
        ("/site-packages/typer/__init__.py", "1 / 0", False),
        ("/site-packages/typer/__init__.py", "raise ImportError('libfoo.so')", False),
        ("/site-packages/typer/__init__.py", "syntax error", False),
        (minillm_main.__file__, "syntax error", True),
    ],
)
def test_whose_mistake_an_error_is(file: str, program: str, is_ours: bool) -> None:
    with pytest.raises((ImportError, SyntaxError, ZeroDivisionError)) as caught:
        exec(compile(program, file, "exec"))
    assert minillm_main.is_ours(caught.value) == is_ours


def test_the_package_exports_what_is_promised() -> None:
    import minillm

    for name in minillm.__all__:
        assert getattr(minillm, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        minillm.LMM  # noqa: B018


def test_pull_prints_the_folder(run: Run, smollm_path: Path) -> None:
    assert run("pull")[:2] == (0, f"{smollm_path}\n")
    status, out, _ = run("pull", "--json")
    assert status == 0
    assert json.loads(out) == {"model": "smollm2-135m", "path": str(smollm_path)}


def test_pull_force_is_for_short_names(run: Run, tiny_llama_path: Path) -> None:
    status, out, err = run("pull", str(tiny_llama_path), "--force")
    assert (status, out) == (2, "")
    assert "smollm2-135m" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pull", "smolm2-135m"], "did you mean 'smollm2-135m'"),
        (["generate", "hi", "--model", "/no/such/folder"], "no model '/no/such/folder'"),
        (["generate", "hi", "--set", "block_sise=32"], "did you mean 'block_size'"),
        (["generate", "hi", "--set", "block_size=0"], "block_size"),
        (["generate", "hi", "--set", "block_size"], "FIELD=VALUE"),
        (["generate", "hi", "--set", "speculative.method=ngarm"], "'ngram'"),
        (["generate", "hi", "--sample", "temprature=1"], "did you mean 'temperature'"),
        (["generate", "hi", "--sample", "structured_outputs.regexp=a"], "regexp is none of json, regex"),
        (["generate", "hi", "--trace", "/"], "'/' is a folder"),
        (["chat", "--set", "batching=sometimes"], "batching"),
        (["chat", "--sample", "n=3"], "goes on with one answer"),
    ],
)
def test_mistakes_get_one_message_and_status_2(run: Run, arguments: list[str], said: str) -> None:
    for flags in ([], ["--json"]):
        status, out, err = run(*arguments, *flags)
        assert (status, out) == (2, "")
        assert said in err
        assert "Traceback" not in err


def test_what_a_terminal_sent_that_is_no_utf_8_is_one_too(run: Run, tiny: list[str]) -> None:
    status, out, err = run("generate", "\udcff", *tiny)
    assert (status, out) == (2, "") and "U+DCFF is a surrogate" in err and "Traceback" not in err


def check_output_json(output: dict[str, Any], max_tokens: int) -> None:
    for completion in output["completions"]:
        assert 1 <= len(completion["token_ids"]) <= max_tokens
        assert list(completion["phases"]) == list(PHASES)
        assert sum(completion["phases"].values()) == pytest.approx(completion["e2e"])


def test_generate_json_is_one_object(run: Run, tiny: list[str]) -> None:
    status, out, _ = run("generate", "one", "two words", *tiny, "--sample", "n=2", "--sample", "logprobs=1", "--json")
    assert status == 0
    report = json.loads(out)
    assert report["config"]["num_kv_blocks"] == 64
    assert report["sampling"]["n"] == 2
    assert [output["prompt"] for output in report["outputs"]] == ["one", "two words"]
    for output in report["outputs"]:
        assert len(output["completions"]) == 2
        check_output_json(output, max_tokens=4)


def test_a_grammar_can_be_typed(run: Run, tiny: list[str]) -> None:
    status, out, _ = run("generate", "x", *tiny, "--sample", "structured_outputs.regex=[ab]{3}", "--json")
    report = json.loads(out)
    assert status == 0 and report["sampling"]["structured_outputs"]["regex"] == "[ab]{3}"
    assert re.fullmatch("[ab]{3}", report["outputs"][0]["completions"][0]["text"])


def test_generate_prints_text_and_tells_the_phases_on_stderr(run: Run, tiny: list[str]) -> None:
    status, out, err = run("generate", "Once upon a time", *tiny)
    assert status == 0
    assert out.startswith("Once upon a time")
    for phase in ("queue", "prefill", "first token", "decode", "stream"):
        assert phase in err
        assert phase not in out


def test_generate_writes_a_trace(run: Run, tiny: list[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    status, _, _ = run("generate", "Once upon a time", *tiny, "--sample", "n=2", "--trace", str(file))
    names = [event["name"] for event in json.loads(file.read_text())["traceEvents"]]
    assert status == 0 and all(names.count(phase) == 2 for phase in PHASES) and "forward" in names
    status, _, err = run("generate", "hi", *tiny, "--trace", str(tmp_path / "nowhere" / "trace.json"))
    assert status != 0 and "there is no folder" in err


def test_generate_says_by_its_status_that_an_output_failed(
    run: Run, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minillm.frontend.loading.warm_up", lambda *_: None)
    monkeypatch.setattr(TorchRunner, "launch", lambda self, batch: 1 / 0)
    status, _, err = run("generate", "Once upon a time", *tiny)
    assert status == 1
    assert "not complete: ZeroDivisionError" in err
    status, out, _ = run("generate", "Once upon a time", *tiny, "--json")
    assert status == 1
    assert "ZeroDivisionError" in json.loads(out)["outputs"][0]["completions"][0]["error"]


def test_generate_chat_uses_the_template(run: Run, tiny: list[str]) -> None:
    _, out, _ = run("generate", "hello", *tiny, "--chat", "--json")
    prompt = json.loads(out)["outputs"][0]["prompt"]
    assert prompt.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


def test_chat_remembers_and_forgets(run: Run, tiny: list[str]) -> None:
    status, out, err = run("chat", *tiny, "--system", "Be brief.", "--json", stdin="first\n\nsecond\n/reset\nthird\n")
    assert status == 0
    turns = json.loads(out)["turns"]
    assert [turn["user"] for turn in turns] == ["first", "second", "third"]
    assert "Be brief." in turns[0]["prompt"]
    assert "first" in turns[1]["prompt"]
    assert turns[0]["completions"][0]["text"] in turns[1]["prompt"]
    assert "first" not in turns[2]["prompt"]
    assert "Be brief." in turns[2]["prompt"]
    for turn in turns:
        check_output_json(turn, max_tokens=4)
    assert "prefill" in err, "the conversation itself is shown on standard error"


def test_chat_is_told_what_to_do_with_a_slash(run: Run, tiny: list[str]) -> None:
    typed = "/help\n/phases\n/set max_tokens=2 seed=7\n/set max_tokens=0\n/set\n/dance\nfirst\n/phases\n"
    status, out, err = run("chat", *tiny, "--json", stdin=typed)
    assert status == 0
    (turn,) = json.loads(out)["turns"]
    assert turn["user"] == "first" and len(turn["completions"][0]["token_ids"]) <= 2
    for told in ("forget the conversation", "no answer yet", "max_tokens=2", "max_tokens", "no command /dance", "█"):
        assert told in err


def test_chat_outgrowing_the_window_goes_on(run: Run, tiny: list[str]) -> None:
    stdin = f"short\n{'long ' * 600}\nshort\n"
    status, out, err = run("chat", *tiny, "--json", stdin=stdin)
    assert status == 0
    assert [turn["user"] for turn in json.loads(out)["turns"]] == ["short", "short"]
    assert "/reset starts over" in err


def test_chat_goes_on_without_an_answer_that_failed(run: Run, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    launch, failures = TorchRunner.launch, iter([True])

    def fail_once(runner: TorchRunner, batch: ScheduledBatch) -> object:
        if next(failures, False):
            raise ZeroDivisionError
        return launch(runner, batch)

    monkeypatch.setattr("minillm.frontend.loading.warm_up", lambda *_: None)
    monkeypatch.setattr(TorchRunner, "launch", fail_once)
    status, out, err = run("chat", *tiny, "--json", stdin="first\nsecond\n")
    assert status == 1 and "not complete" in err and "ZeroDivisionError" in err
    failed, answered = json.loads(out)["turns"]
    assert failed["completions"][0]["error"] and answered["completions"][0]["error"] is None
    assert "first" not in answered["prompt"]


def test_a_terminal_that_is_not_utf_8_gets_what_it_can_show(run: Run, tiny: list[str]) -> None:
    shown = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(shown, encoding="latin-1")):
        status, _, err = run("generate", "a \u00e9 \u65e5", *tiny)
        assert status == 0, err
        assert shown.getvalue().startswith("a \u00e9 ?".encode("latin-1"))


def test_python_dash_m_is_the_same_command() -> None:
    run = subprocess.run([sys.executable, "-m", "minillm", "generate"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stdout == ""
    assert "Missing argument" in run.stderr
