"""A lab on a random model of two layers, whose steps take a millisecond or two; and a home for what a learner keeps."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.lab.lab import Lab


@pytest.fixture
def tiny_lab(tiny_llama_path: Path) -> Iterator[Lab]:
    gc.collect()
    gc.freeze()  # the search for garbage that closing makes then need not walk what tests before this one have imported
    lab = Lab(short=True, model=str(tiny_llama_path), dtype="float32", max_model_len=512, num_kv_blocks=96)
    yield lab
    lab.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MINILLM_HOME of a learner who works in lesson 06; not there yet."""
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JPY_SESSION_NAME", "course/06_decode.ipynb")
    return tmp_path / "home"
