"""Ctrl-C in any command: exit status 130, one line, nothing half-written, nobody left running."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.cli import main
from minillm.host.storage import write_whole
from minillm.runner.torch_runner import TorchRunner

ROOT = Path(__file__).parents[3]
Run = Callable[..., tuple[int, str, str]]


def press(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


class Pressed:
    """A standard input at which somebody presses Ctrl-C."""

    isatty = staticmethod(lambda: False)

    def readline(self) -> str:
        raise KeyboardInterrupt


WHERE = {
    "generate": (["generate", "hello", "--model", "MODEL"], (TorchRunner, "launch")),
    "generate, loading": (["generate", "hello", "--model", "MODEL"], ("minillm.frontend.loading", "load_model")),
    "serve, loading": (["serve", "--model", "MODEL", "--port", "0"], ("minillm.server.server", "make_service")),
    "bench": (["bench", "--model", "MODEL", "--quick"], ("minillm.bench.compare", "run")),
    "pull": (["pull", "--force"], ("minillm.model.pull", "_download_wheel")),
    "simulate": (
        ["simulate", "--qps", "1", "--model", "llama-3.1-8b", "--hardware", "h100-sxm"],
        ("course.simulator.deployment", "Deployment.of"),
    ),
    "calibrate": (["calibrate", "--quick"], ("course.simulator.calibration.measure", "calibrate_this_machine")),
}


@pytest.mark.parametrize("name", WHERE)
def test_one_line_and_status_130(
    name: str, run: Run, tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "pull":  # not where the native kernels lie
        monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    arguments, (owner, attribute) = WHERE[name]
    if isinstance(owner, str):
        monkeypatch.setattr(f"{owner}.{attribute}", press)
    else:
        monkeypatch.setattr(owner, attribute, press)
    before = set(threading.enumerate())
    status, out, err = run(*(tiny_llama_path if argument == "MODEL" else argument for argument in arguments))
    assert status == 130 and out == ""
    assert err.splitlines()[-1] == "minillm: stopped by Ctrl-C" and "Traceback" not in err
    left = {thread.name for thread in threading.enumerate() if thread not in before}
    assert "minillm-engine" not in left
    assert [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith(".lock")] == []


def test_chat_leaves_at_the_prompt(run: Run, tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Pressed())
    before = set(threading.enumerate())  # those of other tests, perhaps
    status, _, err = run("chat", "--model", str(tiny_llama_path), "--set", "num_kv_blocks=64")
    assert status == 130 and err.splitlines()[-1] == "minillm: stopped by Ctrl-C"
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name == "minillm-engine"]


def test_in_the_middle_of_writing_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "profile.json"
    write_whole(file, b"the old one", "")
    monkeypatch.setattr(Path, "replace", press)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, b"the next one", "")
    assert file.read_bytes() == b"the old one" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_what_the_disk_says_is_one_line_too(code: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), "/some/file")

    monkeypatch.setattr("minillm.bench.compare.run", refuse)
    status, _, err = run("bench", "--quick")
    assert status == 2 and err.count("\n") == 1
    assert err.startswith("minillm: ") and os.strerror(code) in err and "/some/file" in err and "Free some space" in err


def test_a_bug_is_still_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise OSError(errno.EBADF, "bad file descriptor")

    monkeypatch.setattr("minillm.bench.compare.run", bug)
    monkeypatch.setattr(sys, "argv", ["minillm", "bench", "--quick"])
    with pytest.raises(OSError, match="bad file descriptor"):
        main()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a signal")
def test_a_real_signal_in_a_real_process(tiny_llama_path: Path) -> None:
    """While it generates what takes for ever."""
    options = ["--max-tokens", "100000", "--set", "num_kv_blocks=32", "--set", "sliding_window=32"]
    program = (
        "import sys; from minillm.runner.torch_runner import TorchRunner; launch = TorchRunner.launch\n"
        "def slow(self, batch):\n    print('step', flush=True); return launch(self, batch)\n"
        "TorchRunner.launch = slow; from minillm.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "generate", "hello", "--model", str(tiny_llama_path), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            assert process.stdout.readline() == "step\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "minillm: stopped by Ctrl-C" and "Traceback" not in err
