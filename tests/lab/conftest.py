"""A lab on a random model of two layers: a step takes a millisecond or two."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # made_run

from course.lab.lab import Lab


@pytest.fixture
def tiny_lab(tiny_llama_path: Path) -> Iterator[Lab]:
    lab = Lab(short=True, model=str(tiny_llama_path), dtype="float32", max_model_len=512, num_kv_blocks=96)
    yield lab
    lab.close()
