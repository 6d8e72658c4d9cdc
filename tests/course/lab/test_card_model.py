"""Which model lessons get on a box with a GPU, and what `make lab` says about it."""

import re
from pathlib import Path

import pytest

from course.lab import card_model
from course.lab.card_model import LARGE, Box, choose
from minillm.model.errors import UnknownModelError

ROOMY = {"gpu": "NVIDIA H100", "free_bytes": 80 * 10**9, "disk_bytes": 100 * 10**9}


@pytest.mark.parametrize(
    ("box", "model", "said"),
    [
        (Box(None), None, ""),
        (Box(**ROOMY), LARGE, "fetched now, once: 16.4 GB, 3 minutes at 100 MB/s"),
        (Box(**ROOMY, has_weights=True), LARGE, "what an 8B took on an H100."),
        (
            Box(**ROOMY, hub_error="ConnectError"),
            None,
            r"can't be fetched \(ConnectError\), so lessons run on the small",
        ),
        (Box(**{**ROOMY, "disk_bytes": 10**10}), None, "10 GB of disk are free, and it takes 16.4"),
        (Box("Tesla T4", 15 * 10**9, has_weights=True), None, "An 8B wants 21 GB free"),
        (Box("a card that a server fills", 2 * 10**9), None, "2 GB free: lessons run on the small model"),
    ],
)
def test_the_large_model_where_it_fits_and_can_be_had(box: Box, model: str | None, said: str) -> None:
    found, words = choose(box)
    assert found == model and re.search(said, words) and bool(words) == bool(said)


def test_only_the_name_is_printed_and_a_fetch_that_fails_leaves_the_small_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(card_model, "look", lambda: Box(**ROOMY))
    monkeypatch.setattr(card_model.checkpoints, "resolve", lambda model: Path(model))
    assert card_model.main() == 0
    told = capsys.readouterr()
    assert told.out == f"{LARGE}\n" and "80 GB free" in told.err

    def cut_short(model: str) -> Path:
        raise UnknownModelError("the connection broke")

    monkeypatch.setattr(card_model.checkpoints, "resolve", cut_short)
    assert card_model.main() == 0
    told = capsys.readouterr()
    assert told.out == "" and "the connection broke. Lessons run on the small model" in told.err


def test_a_machine_without_a_gpu_is_not_asked_for_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert card_model.look() == Box(None)


def test_weights_of_a_fetch_that_was_cut_short_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    assert not card_model.has_weights()
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (tmp_path / "1.safetensors").touch()
    assert not card_model.has_weights()
    (tmp_path / "2.safetensors").touch()
    assert card_model.has_weights()
