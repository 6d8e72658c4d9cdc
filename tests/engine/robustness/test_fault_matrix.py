"""What goes wrong, where, and what holds all the same.

| place | fault | what holds |
|---|---|---|
| any line of the engine's books | Ctrl-C | the next prompts are answered as ever |
| steps | the wall clock jumps by years | phases do not notice |
| a file being written | full, quota, read-only, Ctrl-C | the old file is whole, and nothing half-written is left |
| the cache folder | no home, no locks | the message says which variable to set |
| a draft head | damaged files | it is named |
| the C++ library | damaged, not to be had | it is built anew; without it PyTorch serves |
| a command | Ctrl-C, the disk, a bug, a signal | one line and a status; a bug is shown as one |
| a process | killed | nobody is left behind |

Faults of the engine's steps are in test_engine_faults.py, those of its thread in test_thread_faults.py, and memory that
runs out in test_memory.py.
"""

import errno
import io
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest
from draft_heads import make_head
from fake_runner import FakeRunner, GuessingProposer, expected_output, greedy
from patience import PATIENCE_S
from robustness.faults import raising
from robustness.judge import check_at_rest, check_steps, check_timeline

import minillm
from course.lab.json_store import JsonStore
from course.lab.progress import Progress
from minillm.cli import main
from minillm.core.params import SamplingParams
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.llm import LLM
from minillm.host import storage
from minillm.host.errors import StorageError
from minillm.host.storage import cache_home, write_whole
from minillm.kernels.cpu import NativeKernels, compiling, native_kernels
from minillm.model.errors import CorruptCheckpointError
from minillm.model.loader import LoadedModel
from minillm.model.pull import pull
from minillm.policies.config import EngineConfig
from minillm.speculation.head_file import FACTS, WEIGHTS, load_head

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
YEAR_S = 365 * 24 * 3600
posix = pytest.mark.skipif(os.name != "posix", reason="these are signals")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the library is built on Linux only")
Run = Callable[..., tuple[int, str, str]]


def no_room(code: int) -> OSError:
    return OSError(code, os.strerror(code), "/some/file")


# ------------------------------------------------------------------------ any line of the engine's books

PACKAGE = Path(minillm.__file__).parent
BOOKS = tuple(str(PACKAGE / name) for name in ("core", "policies", "frontend/engine.py"))
PROMPTS = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9], [7, 7]]
EVERY = 13
"""Lines between two places that are tried: a prime, so that loops are met in all their lines."""
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "drafts": {"speculative": {"method": "ngram", "k": 2, "min_output_tokens": 1, "acceptance_floor": 0}},
    "swap": {"preemption": "swap"},
    "running ahead": {"async_scheduling": True},
}


class PressAt:
    """A trace function that raises KeyboardInterrupt at the n-th line of the engine's books."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, argument: object) -> "PressAt | None":
        if not frame.f_code.co_filename.startswith(BOOKS):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def make_llm(fields: dict[str, Any]) -> LLM:
    clock = VirtualClock()
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=16, block_size=4, **fields)
    llm = LLM.__new__(LLM)
    llm._turn = threading.Lock()
    llm.engine = Engine.on_runner(config, FakeRunner(4, 4, clock, 8), clock, proposer=GuessingProposer())
    return llm


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_at_any_line(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "minillm")
    line, before = 1, sys.gettrace()
    while True:
        llm = make_llm(WAYS[way])
        sys.settrace(PressAt(line))
        try:
            llm.generate(PROMPTS, greedy(4), use_tqdm=False)
        except KeyboardInterrupt:
            pass
        else:
            break  # it was over before
        finally:
            sys.settrace(before)
        check_at_rest(llm.engine)
        outputs = llm.generate(PROMPTS, greedy(4), use_tqdm=False)
        assert [output.token_ids for output in outputs] == [expected_output(prompt, 4) for prompt in PROMPTS], line
        check_at_rest(llm.engine)
        line += EVERY
    assert line > 100 * EVERY, "that was too short to be a run"


# ------------------------------------------------------------------------ steps


def test_phases_do_not_notice_that_the_wall_clock_jumps(tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at it is years from the one before."""
    jumps = itertools.cycle([0.0, -YEAR_S, 10 * YEAR_S, -3 * YEAR_S])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + next(jumps))
    assert time.time() != pytest.approx(time.time(), abs=YEAR_S / 2), "the clock does not jump"
    config = EngineConfig(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=64, queue_timeout_s=600)
    before = time.perf_counter()
    with EngineThread(config) as thread:
        streams = [thread.submit([i, 2, 3], SamplingParams(max_tokens=10, temperature=0)) for i in range(1, 7)]
        outputs = [stream.result(timeout=120) for stream in streams]
        thread.call(check_steps).result(timeout=60)
    elapsed = time.perf_counter() - before
    for output in outputs:
        check_timeline(output.timeline)
        assert output.timeline.e2e <= elapsed, "no request took longer than all of them together"


# ------------------------------------------------------------------------ a file being written

MID_WRITE: dict[str, tuple[str, BaseException, str]] = {
    "full": ("write_bytes", no_room(errno.ENOSPC), "is full.*Free some space"),
    "quota": ("write_bytes", no_room(errno.EDQUOT), "is full"),
    "read-only": ("write_bytes", no_room(errno.EROFS), "Check its rights"),
    "Ctrl-C": ("replace", KeyboardInterrupt(), ""),
}
"""Which step of the writing fails, with what, and what is said."""


@pytest.mark.parametrize("fault", MID_WRITE)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "file"
    write_whole(file, b"old", "choose a folder")
    step, error, says = MID_WRITE[fault]
    whole_step = getattr(Path, step)

    def half(path: Path, content: Any) -> None:
        if isinstance(content, bytes):
            whole_step(path, content[: len(content) // 2])
        raise error

    monkeypatch.setattr(Path, step, half)
    expected = StorageError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected, match=f"(?s){says}.*choose a folder" if says else None):
        write_whole(file, b"new and longer", "choose a folder")
    assert file.read_bytes() == b"old" and list(file.parent.iterdir()) == [file]


# ------------------------------------------------------------------------ the cache folder


def test_without_a_home_folder_it_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINILLM_HOME", raising=False)
    monkeypatch.setattr(Path, "home", raising(RuntimeError("Could not determine home directory.")))
    with pytest.raises(StorageError, match="set MINILLM_HOME"):
        cache_home()


def test_a_file_system_without_locks_is_a_storage_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.FileLock, "acquire", raising(NotImplementedError("no support for flock")))
    with pytest.raises(StorageError, match=r"cannot be locked.*MINILLM_HOME"):
        pull("smollm2-135m")
    said: list[str] = []
    JsonStore("progress.json", Progress, anywhere=True, say=said.append).change(lambda content: content.lesson("06"))
    assert len(said) == 1 and "The lesson works anyway" in said[0]


# ------------------------------------------------------------------------ a draft head


@pytest.mark.parametrize("damage", ["no weights", "half the weights", "empty facts", "half the facts", "no shape"])
def test_a_damaged_draft_head_is_named(damage: str, model: LoadedModel, tmp_path: Path) -> None:
    make_head(tmp_path, model)
    weights, facts = tmp_path / WEIGHTS, tmp_path / FACTS
    if damage == "no weights":
        weights.unlink()
    elif damage == "half the weights":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    else:
        text = {"empty facts": "", "half the facts": facts.read_text()[:10], "no shape": "{}"}[damage]
        facts.write_text(text)
    with pytest.raises(CorruptCheckpointError, match="fetch its files again"):
        load_head(str(tmp_path), model)


# ------------------------------------------------------------------------ the C++ library

COMPILER = """\
#!/bin/sh
case " $* " in *" --version "*) echo "fake 1.0"; exit 0;; esac
echo called >> {log}
while [ "$1" != -o ]; do shift; done
printf library > "$2"
case "$2" in */selftest) chmod +x "$2"; cat /bin/true > "$2";; esac
exit {status}
"""


def make_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Path:
    """A compiler. Returns the file that counts its calls."""
    program, log = folder / "c++", folder / "calls"
    program.write_text(COMPILER.format(log=log, status=status))
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    log.touch()
    return log


@pytest.fixture
def fresh_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody has asked for the native kernels yet, and nobody will see what this test makes of them."""
    native_kernels.cache_clear()
    yield
    monkeypatch.undo()
    native_kernels.cache_clear()


@linux
@pytest.mark.usefixtures("fresh_kernels")
def test_a_damaged_library_is_compiled_anew(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = make_compiler(tmp_path, monkeypatch)
    compiling.build().path.write_text("half a lib")
    before = len(calls.read_text().splitlines())
    loaded: list[str] = []

    def load(self: NativeKernels, path: Path) -> None:
        loaded.append(path.read_text())
        if loaded[-1] != "library":
            raise OSError(f"{path}: file too short")

    monkeypatch.setattr(NativeKernels, "__init__", load)
    assert native_kernels() is not None
    assert loaded == ["half a lib", "library"] and len(calls.read_text().splitlines()) == 2 * before


@linux
@pytest.mark.usefixtures("fresh_kernels")
@pytest.mark.parametrize("trouble", ["not a library", "compiler fails", "nowhere to write", "disk full"])
def test_without_the_library_pytorch_serves_and_the_log_says_what_it_needs(
    trouble: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_compiler(tmp_path, monkeypatch, status=int(trouble == "compiler fails"))
    if trouble == "nowhere to write":  # not even for root, whom rights do not stop
        home.parent.mkdir(parents=True, exist_ok=True)
        home.write_text("not a folder")
    if trouble == "disk full":
        monkeypatch.setattr(Path, "rename", raising(no_room(errno.ENOSPC)))
    assert native_kernels() is None
    assert "Using PyTorch's" in caplog.text and "MINILLM_HOME" in caplog.text
    left = [file.read_text() for file in home.rglob("kernels.so")] if home.is_dir() else []
    assert left == (["library"] if trouble == "not a library" else [])


# ------------------------------------------------------------------------ a command

GENERATE = ["generate", "hello", "--model", "MODEL"]
CTRL_C: dict[str, tuple[list[str], str]] = {
    "generate": (GENERATE, "minillm.runner.torch_runner.TorchRunner.launch"),
    "generate, loading": (GENERATE, "minillm.frontend.loading.load_model"),
    "chat": (["chat", "--model", "MODEL", "--set", "num_kv_blocks=64"], "sys.stdin.readline"),
    "serve, loading": (["serve", "--model", "MODEL", "--port", "0"], "minillm.server.server.make_service"),
    "bench": (["bench", "--model", "MODEL", "--quick"], "course.measure.compare.run"),
    "pull": (["pull", "--force"], "minillm.model.pull._download_wheel"),
    "simulate": (
        ["simulate", "--qps", "1", "--model", "llama-3.1-8b", "--hardware", "h100-sxm"],
        "course.simulator.deployment.Deployment.of",
    ),
    "calibrate": (["calibrate", "--quick"], "course.simulator.calibration.measure.calibrate_this_machine"),
}
"""A command, and the function in which Ctrl-C is pressed."""


@pytest.mark.parametrize("name", CTRL_C)
def test_ctrl_c_is_one_line_and_status_130(
    name: str, run: Run, tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "pull":  # not where the native kernels lie
        monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    arguments, place = CTRL_C[name]
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(place, raising(KeyboardInterrupt()))
    before = set(threading.enumerate())  # those of other tests, perhaps
    status, out, err = run(*(tiny_llama_path if argument == "MODEL" else argument for argument in arguments))
    assert status == 130 and (name == "chat" or out == "")
    assert err.splitlines()[-1] == "minillm: stopped by Ctrl-C" and "Traceback" not in err
    assert "minillm-engine" not in {thread.name for thread in {*threading.enumerate()} - before}
    assert [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith(".lock")] == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_what_the_disk_says_is_one_line_too(code: int, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course.measure.compare.run", raising(no_room(code)))
    status, _, err = run("bench", "--quick")
    assert status == 2 and err.count("\n") == 1
    assert err.startswith("minillm: ") and os.strerror(code) in err and "/some/file" in err and "Free some space" in err


def test_a_bug_is_still_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course.measure.compare.run", raising(OSError(errno.EBADF, "bad file descriptor")))
    monkeypatch.setattr(sys, "argv", ["minillm", "bench", "--quick"])
    with pytest.raises(OSError, match="bad file descriptor"):
        main()


@pytest.mark.slow
@posix
def test_a_real_signal_in_a_real_process(tiny_llama_path: Path) -> None:
    """While it generates: a step takes longer than the signal, on a machine that's busy, too."""
    options = ["--max-tokens", "400", "--set", "num_kv_blocks=32"]
    program = (
        "import time; from minillm.runner.torch_runner import TorchRunner; launch = TorchRunner.launch\n"
        "def slow(self, batch):\n    print('step', flush=True); time.sleep(2); return launch(self, batch)\n"
        "TorchRunner.launch = slow; from minillm.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "generate", "hello", "--model", str(tiny_llama_path), *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as process:
        try:
            assert process.stdout.readline() == "step\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "minillm: stopped by Ctrl-C" and "Traceback" not in err


# ------------------------------------------------------------------------ a process

GRADES_FOR_EVER = """
import threading
from dataclasses import replace
from course.grading import runner
from course.grading.exercises import find

exercise = replace(find("percentiles"), limit_s=10_000.0)
text = "print('begun', flush=True)\\nwhile True:\\n    pass\\n"
with runner.GradingWorker() as worker:
    submission = runner.Submission.of_text(text, "answer.py")
    thread = threading.Thread(target=worker.grade, args=(exercise, submission, 0), daemon=True)
    thread.start()
    while not worker._children or "begun" not in worker._child("0").printed.text():
        thread.join(0.05)
    print(worker._child("0")._process.pid, flush=True)
    thread.join()
"""


@posix
def test_an_endless_answer_ends_when_the_kernel_that_checks_it_is_killed() -> None:
    command = [sys.executable, "-c", GRADES_FOR_EVER]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as parent:
        try:
            child = psutil.Process(int(parent.stdout.readline()))
        finally:
            parent.kill()
    _, left = psutil.wait_procs([child], timeout=PATIENCE_S)
    assert not left
