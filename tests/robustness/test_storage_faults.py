"""Disks that are full or cannot be written, and files that are damaged: one message that says what to do, and nothing
half-written is left."""

import errno
import json
import os
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from course.lab.grading.exercises import find
from course.lab.grading.history import History
from course.lab.json_store import JsonStore
from course.lab.progress import Progress
from minillm.core.errors import (
    ConfigError,
    CorruptCheckpointError,
    MinillmError,
    PricingError,
    StorageError,
    TrainingError,
)
from minillm.kernels import storage
from minillm.kernels.cpu import NativeKernels, compiling, native_kernels
from minillm.kernels.storage import cache_home, write_whole
from minillm.model.loader import LoadedModel, load_model
from minillm.model.pull import pull
from minillm.policies.config import EngineConfig
from minillm.simulate.cost.hardware import find_hardware
from minillm.simulate.cost.profile import Profile, find_profile, this_machine_path, typical_profile
from minillm.speculation.head_file import FACTS, WEIGHTS, load_head, new_head, save_head
from minillm.training.conversations import Conversation, load_conversations, sample_conversations, save_conversations
from minillm.training.train import Training, TrainingSettings

CPU = torch.device("cpu")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of our own."""
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def model(tiny_llama_path: Path) -> LoadedModel:
    return load_model(EngineConfig(model=str(tiny_llama_path), dtype="float32", device="cpu"))


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> None:
    """Every file gets the first half of what is written to it."""
    write = Path.write_bytes

    def half(path: Path, content: bytes | memoryview) -> int:
        write(path, bytes(content)[: len(content) // 2])
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "write_bytes", half)


def block(folder: Path) -> None:
    """A file where the folder should be: nobody can write there, not even root, whom rights do not stop."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("not a folder")


# ------------------------------------------------------------------------ files, whole or not at all


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENOSPC, "is full.*Free some space"), (errno.EDQUOT, "is full"), (errno.EROFS, "Check its rights")],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "file"
    write_whole(file, b"old", "choose a folder")
    fill_the_disk(monkeypatch, code)
    with pytest.raises(StorageError, match=f"(?s){says}.*choose a folder"):
        write_whole(file, b"new and longer", "choose a folder")
    assert file.read_bytes() == b"old" and list(file.parent.iterdir()) == [file]


def test_without_a_home_folder_it_says_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINILLM_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(StorageError, match="set MINILLM_HOME"):
        cache_home()


def test_a_file_system_without_locks_is_a_storage_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object, **__: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(storage.FileLock, "acquire", no_locks)
    with pytest.raises(StorageError, match=r"cannot be locked.*MINILLM_HOME"):
        pull("smollm2-135m", progress=False)
    said: list[str] = []
    JsonStore("progress.json", Progress, anywhere=True, say=said.append).change(lambda content: content.lesson("06"))
    assert len(said) == 1 and "The lesson works all the same" in said[0]


def test_pull_into_a_folder_that_cannot_be(home: Path) -> None:
    block(home)
    with pytest.raises(StorageError, match="Check its rights, or set MINILLM_HOME"):
        pull("smollm2-135m", progress=False)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_pull_without_rights(home: Path) -> None:
    home.mkdir(parents=True)
    home.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StorageError, match="Check its rights, or set MINILLM_HOME"):
        pull("smollm2-135m", progress=False)


# ------------------------------------------------------------------------ profiles


def test_a_profile_on_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, path = typical_profile(find_hardware("h100-sxm")), this_machine_path()
    profile.write(path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        fill_the_disk(patch)
        with pytest.raises(PricingError, match=r"full.*--out"):
            profile.write(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 1, "hardware": {}, "constants": 3}']
)
def test_a_damaged_profile_of_this_machine_is_named(content: str, home: Path) -> None:
    path = this_machine_path()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(PricingError, match=f"{path.name}.*minillm calibrate"):
        find_profile("this-machine")
    typical_profile(find_hardware("h100-sxm")).write(path)  # as calibrating anew does
    assert isinstance(find_profile("this-machine"), Profile)


# ------------------------------------------------------------------------ training


def conversations(model: LoadedModel, count: int = 4) -> list[Conversation]:
    hidden = model.model_config.hidden_size
    return [
        Conversation(torch.arange(5, 17, dtype=torch.int32), 4, torch.randn(11, hidden).half()) for _ in range(count)
    ]


def make_training(model: LoadedModel, checkpoint: Path) -> Training:
    head = new_head(model, torch.arange(0, 64), 0, CPU)
    seen = conversations(model)
    return Training(
        head, seen[1:], seen[:1], TrainingSettings(passes=2, conversations_per_step=1, draft_len=1), checkpoint
    )


def test_a_checkpoint_on_a_full_disk_keeps_the_one_before(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "training.pt"
    make_training(model, file).run(progress=False, until=2)
    with monkeypatch.context() as patch:
        fill_the_disk(patch)
        with pytest.raises(StorageError, match=r"is full.*choose with --out"):
            make_training(model, file).run(progress=False, until=3)
    assert list(tmp_path.iterdir()) == [file]
    resumed = make_training(model, file)
    assert resumed.step == 2
    resumed.run(progress=False)
    assert resumed.step == resumed.num_steps


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.999])
def test_a_damaged_checkpoint_is_named(keep: float, model: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "training.pt"
    make_training(model, file).run(progress=False, until=1)
    content = file.read_bytes()
    file.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(TrainingError, match=r"training.pt is damaged .*delete it"):
        make_training(model, file)


def test_talks_on_a_full_disk_and_damaged_talks(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "conversations-00000.safetensors"
    with monkeypatch.context() as patch:
        fill_the_disk(patch)
        with pytest.raises(StorageError, match="is full"):
            save_conversations(file, conversations(model))
    assert not list(tmp_path.iterdir())
    save_conversations(file, conversations(model))
    assert len(load_conversations(file)) == 4
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(TrainingError, match="delete it, and its conversations are sampled again"):
        load_conversations(file)
    block(tmp_path / "out")
    with pytest.raises(StorageError, match="choose with --out"):
        sample_conversations(None, tmp_path / "out" / "conversations", [0])


def test_a_draft_head_on_a_full_disk(model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = new_head(model, torch.arange(0, 64), 0, CPU)
    fill_the_disk(monkeypatch)
    with pytest.raises(StorageError, match=r"is full.*choose with --out"):
        save_head(head, tmp_path / "head", {})
    assert not list((tmp_path / "head").iterdir())


@pytest.mark.parametrize("damage", ["no weights", "half the weights", "empty facts", "half the facts", "no shape"])
def test_a_damaged_draft_head_is_named(damage: str, model: LoadedModel, tmp_path: Path) -> None:
    save_head(new_head(model, torch.arange(0, 64), 0, CPU), tmp_path, {})
    weights, facts = tmp_path / WEIGHTS, tmp_path / FACTS
    if damage == "no weights":
        weights.unlink()
    elif damage == "half the weights":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    else:
        text = {"empty facts": "", "half the facts": facts.read_text()[:10], "no shape": "{}"}[damage]
        facts.write_text(text)
    with pytest.raises(CorruptCheckpointError, match="train it again"):
        load_head(str(tmp_path), model)
    assert issubclass(ConfigError, MinillmError)


# ------------------------------------------------------------------------ what is kept for a learner


def test_a_history_that_cannot_be_written_says_so_and_goes_on(home: Path) -> None:
    block(home)
    exercise, history = find("percentiles"), History()
    assert "not saved" in history.add_attempt(exercise, 0, 1.0)
    assert history.standing(exercise).attempts == 0


# ------------------------------------------------------------------------ the C++ library

COMPILER = """\
#!/bin/sh
case " $* " in *" --version "*) echo "fake 1.0"; exit 0;; esac
echo called >> {log}
while [ "$1" != -o ]; do shift; done
for letter in l i b r a r y; do printf $letter >> "$2"; sleep {pause}; done
exit {status}
"""


def make_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, pause: float = 0.0, status: int = 0) -> Path:
    """A slow compiler that writes letter by letter. Returns the file that counts its calls."""
    program, log = folder / "c++", folder / "calls"
    program.write_text(COMPILER.format(log=log, pause=pause, status=status))
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


linux = pytest.mark.skipif(sys.platform != "linux", reason="the library is built on Linux only")


@linux
def test_two_build_at_once_and_nobody_sees_half_a_library(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = make_compiler(tmp_path, monkeypatch, pause=0.02)
    with ThreadPoolExecutor(2) as pool:  # the compilers are processes; Python's part has nothing of its own to share
        built = [pool.submit(lambda: compiling.build().read_text()) for _ in range(2)]
    assert [each.result() for each in built] == ["library"] * 2
    assert len(list((home / "native").iterdir())) == 1
    assert len(calls.read_text().splitlines()) == 2 * (len(compiling.SOURCES) + 1), "they did not build at once"


@linux
@pytest.mark.usefixtures("fresh_kernels")
def test_a_damaged_library_is_compiled_anew(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = make_compiler(tmp_path, monkeypatch)
    library = compiling.build()
    library.write_text("half a lib")
    before = len(calls.read_text().splitlines())
    loaded: list[str] = []

    def load(self: NativeKernels, path: Path) -> None:
        loaded.append(path.read_text())
        if loaded[-1] != "library":
            raise OSError(f"{path}: file too short")

    monkeypatch.setattr(NativeKernels, "__init__", load)
    monkeypatch.setattr("minillm.kernels.cpu.is_right", lambda kernels: True)
    assert native_kernels() is not None
    assert loaded == ["half a lib", "library"] and len(calls.read_text().splitlines()) == 2 * before


@linux
@pytest.mark.usefixtures("fresh_kernels")
@pytest.mark.parametrize("trouble", ["not a library", "compiler fails", "nowhere to write", "disk full"])
def test_without_the_library_pytorch_serves_and_the_log_says_what_it_needs(
    trouble: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_compiler(tmp_path, monkeypatch, status=int(trouble == "compiler fails"))
    if trouble == "nowhere to write":
        block(home)
    if trouble == "disk full":
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(full))
    assert native_kernels() is None
    assert "Using PyTorch's" in caplog.text and "MINILLM_HOME" in caplog.text
    left = [file for file in home.rglob("*") if file.is_file()] if home.is_dir() else []
    assert [file.read_text() for file in left] == (["library"] if trouble == "not a library" else [])


# ------------------------------------------------------------------------ damaged models


def test_every_file_of_a_model_cut_short_is_named(tiny_llama_path: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder = tmp_path / name
        folder.mkdir()
        for file in tiny_llama_path.iterdir():
            os.link(file, folder / file.name) if file.name != name else None
        content = (tiny_llama_path / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(MinillmError) as told:
            load_model(EngineConfig(model=str(folder), device="cpu"))
        assert isinstance(told.value, CorruptCheckpointError) and str(folder) in str(told.value)


def test_a_config_that_is_no_json_object_is_named(tiny_llama_path: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps([1, 2]))
    with pytest.raises(CorruptCheckpointError, match=r"config\.json"):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"))
