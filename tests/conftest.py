"""What many tests share: models made once per run, the command in this process, and Triton kernels without a GPU.

Libraries that take seconds to import are imported where they're used: the process that hands tests out to those of
pytest-xdist reads this file, too, and runs none.
"""

import contextlib
import dataclasses
import functools
import gc
import importlib.util
import io
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Two threads of a test, or of a process that it starts, wait for each other asleep: while other tests have the cores, a
# kernel of a millisecond would spin for fifty. OpenMP reads this when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from tiny_llama import make_lively_llama, make_tiny_llama, make_tiny_moe
from typer.testing import CliRunner, Result

from minillm.cli import app, main
from minillm.host.storage import build_once
from minillm.model.errors import ModelError
from minillm.policies.config import EngineConfig

if TYPE_CHECKING:
    from minillm.frontend.engine_thread import EngineThread
    from minillm.kernels.cpu import NativeKernels
    from minillm.model.loader import LoadedModel

with contextlib.suppress(ModuleNotFoundError):  # an image for GPUs has none, and tests/engine/gpu want none
    from hypothesis import HealthCheck, settings

    # On a slow or busy one, either would fail tests.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


WAITING = (
    "tests/course/browser/test_tab.py",
    "tests/course/lessons/test_lesson_10",
    "tests/course/browser/test_site.py",
    "tests/course/browser/",
    "tests/course/loadgen/",
    "tests/engine/server/",
    "tests/course/lab/",
    "tests/engine/frontend/",
    "tests/engine/robustness/",
    "tests/course/drills/",
    "tests/engine/model/",
)
"""Tests that wait most, for browsers, clients, processes, by a part of their path. They come first, while `make test`
does other things beside them. Tests that only compute leave no core idle: they can come when that has ended."""
LONGEST = (
    "incidents/test_every_cause.py",
    "grading/test_every_exercise.py",
    "incidents/test_playing.py",
    "parity/test_whole_model.py",
    "measure/test_quality.py",
    "parity/test_parity.py",
    "lessons/test_lesson_12.py",
    "simulator/test_cli_fleets.py",
    "incidents/test_dumps.py",
    "runner/test_cuda_graphs.py",
    "engine/test_lossy.py",
    "kernels/test_triton_paged.py",
    "kernels/test_selftest.py",
    "cluster/test_faults.py",
    "grading/test_runner.py",
    "engine/test_no_network.py",
)
"""Of the rest, files that take longest: they come next, since one process would finish them when the other has nothing
left."""


def pytest_configure(config: pytest.Config) -> None:
    """Without a GPU, kernels run in Triton's interpreter. Triton looks at this when it is imported, so it has to be
    said before any test, or torch.compile, imports it."""
    if config.getoption("numprocesses", None):
        return  # this process runs no test: those that do have no such option
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Importing libraries and tests makes a million objects that stay: looking for garbage among them is in vain."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


class LastFirst(pytest.Dir):
    """A folder whose tests are collected from its end."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return reversed([*super().collect()])


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """In a fresh clone every file is compiled, with pytest's rewriting of `assert`. Every other process begins at the
    end, so that each finds half of the files compiled by another."""
    is_odd = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2
    return LastFirst.from_parent(parent, path=path) if is_odd else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By file: those that wait, those that take longest, the rest. All processes agree, as pytest-xdist wants it."""
    items.sort(key=lambda item: (_turn(item.path.as_posix()), item.path))


def _turn(path: str) -> tuple[int, int]:
    waiting = (place for place, part in enumerate(WAITING) if part in path)
    longest = (place for place, name in enumerate(LONGEST) if path.endswith(f"/{name}"))
    return next(waiting, len(WAITING)), next(longest, len(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def _shared_tokenizers() -> Iterator[None]:
    """Reading one takes longer than making a tiny model, and no engine changes it."""
    from minillm.model import checkpoints

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "load_tokenizer", functools.lru_cache(4)(checkpoints.load_tokenizer))
        yield


@pytest.fixture(scope="session", autouse=True)
def _quicker_interpreter(request: pytest.FixtureRequest) -> Iterator[None]:
    """Triton's interpreter takes half the time without two things that it does again and again.

    It replaces the names of its language when a kernel starts, and anew whenever that kernel calls a function: the
    first time is enough. And it computes every sum of 32 bits in 64, too, to tell overflow: not in `make test`.
    """
    if not os.environ.get("TRITON_INTERPRET") or not importlib.util.find_spec("triton"):
        yield
        return
    from triton.runtime.interpreter import InterpretedFunction, interpreter_builder

    seen: set[InterpretedFunction[Any]] = set()
    call = InterpretedFunction.__call__

    def call_as_replaced(self: InterpretedFunction[Any], *args: Any, **kwargs: Any) -> Any:
        if self in seen:
            return self.rewrite()(*args, **kwargs)
        seen.add(self)
        return call(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "__call__", call_as_replaced)
        if request.config.getoption("markexpr") == "not slow":
            unchecked = dataclasses.replace(interpreter_builder.options, sanitize_overflow=False)
            patch.setattr(interpreter_builder, "options", unchecked)
        yield


@pytest.fixture(scope="module", autouse=True)
def _what_stays() -> None:
    """A search for garbage, as each lab that closes makes one, need not walk libraries and collected tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Call the command in this process: `run("pull", "--json")` gives (exit status, stdout, stderr)."""

    def call(*arguments: object, stdin: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["minillm", *map(str, arguments)])
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return call


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the static site, written once for all of pytest-xdist's processes."""
    from course.site.__main__ import write

    own = tmp_path_factory.getbasetemp()
    return build_once((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "site", write, 50 << 20)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """`make test` gives each of its processes one thread; code that shares work among threads is tried with two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def kernels() -> "NativeKernels":
    """The CPU's kernels, compiled."""
    from minillm.kernels.cpu import native_kernels
    from minillm.kernels.cpu.compiling import known_fault, why_none

    found = native_kernels()
    if found is None:
        assert known_fault() is None, known_fault()
        pytest.skip(why_none() or "they could not be compiled: see the log")
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of its own."""
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """The embedded default model's folder; fetched if it is not there yet."""
    from minillm.model.checkpoints import resolve

    try:
        return resolve("smollm2-135m")
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the default model cannot be fetched: {error}")


@pytest.fixture(scope="session")
def tiny_llama_path(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights (hidden 64, 2 layers, 4 heads, 2 KV heads, fp32); part of SmolLM2's tokenizer."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), smollm_path)


@pytest.fixture(scope="session")
def lively_llama_path(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of four such layers, tied embeddings and answers that depend on all of the prompt."""
    return make_lively_llama(tmp_path_factory.mktemp("lively-llama"), smollm_path)


@pytest.fixture(scope="session")
def tiny_moe_path(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-MoE of its size: 8 experts, 2 per token, in 3 of 4 layers."""
    return make_tiny_moe(tmp_path_factory.mktemp("tiny-moe"), smollm_path)


@pytest.fixture(scope="session")
def tiny(tiny_llama_path: Path) -> "LoadedModel":
    """That Llama, in float32 on the CPU."""
    from minillm.model.loader import load_model

    return load_model(EngineConfig(model=str(tiny_llama_path), dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def config(tiny_llama_path: Path) -> EngineConfig:
    """That Llama, too; a test module may have its own."""
    return EngineConfig(model=str(tiny_llama_path), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def model(config: EngineConfig) -> "LoadedModel":
    """The weights that `config` names."""
    from minillm.model.loader import load_model

    return load_model(config)


@pytest.fixture
def thread(config: EngineConfig, model: "LoadedModel") -> "Iterator[EngineThread]":
    """A live engine on them."""
    from minillm.frontend.engine_thread import EngineThread

    with EngineThread(config, model) as thread:
        yield thread


BenchJson = Callable[..., dict[str, Any]]


@pytest.fixture
def bench(tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`bench("decode", "--json")`: quick, in float32, on the tiny model."""

    def call(command: str, *arguments: str) -> Result:
        whole = ["bench", command, "--quick", "--dtype", "float32", "--model", str(tiny_llama_path), *arguments]
        monkeypatch.setattr(sys, "argv", ["/usr/local/bin/minillm", *whole])
        return CliRunner().invoke(app, whole, catch_exceptions=False)

    return call


@pytest.fixture
def bench_json(bench: Callable[..., Result]) -> BenchJson:
    """The same with --json: its standard output, which must be one JSON object in the common envelope."""

    def call(command: str, *arguments: str) -> dict[str, Any]:
        result = bench(command, *arguments, "--json")
        assert result.exit_code == 0, result.stderr
        report = json.loads(result.stdout)
        assert {"date", "command", "model", "dtype", "device", "versions", "machine", "settings", "results"} <= set(
            report
        )
        assert report["command"].startswith(f"minillm bench {command} --quick")
        assert report["dtype"] == "float32"
        assert report["settings"]["quick"] is True
        # A report is meant to be published: it names no folder of this machine.
        assert "/" not in report["command"] + report["model"] + json.dumps(report["settings"])
        return report

    return call
