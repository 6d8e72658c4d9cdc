"""Notebooks run by `make test`: in a kernel of their own each, and a cell that fails is told."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course.lab.lab import Lab
from course.lab.run_notebooks import code_cells, load_once, with_first_layers
from minillm import EngineConfig
from minillm.frontend import loading
from minillm.model.loader import load_model

ROOT = Path(__file__).parents[3]


def write(path: Path, *codes: str) -> Path:
    nbformat.write(new_notebook(cells=[new_markdown_cell("# no code"), *map(new_code_cell, codes)]), path)
    return path


def test_cells_share_a_kernel_notebooks_do_not_and_what_fails_is_told(tmp_path: Path) -> None:
    right = ("import pathlib\nx = 1", "assert x == 1 and pathlib.Path('right.ipynb').exists() and get_ipython().kernel")
    notebooks = [
        write(tmp_path / "right.ipynb", *right),
        write(tmp_path / "wrong.ipynb", "x", "'not reached'"),
        write(tmp_path / "dead.ipynb", "import os", "os._exit(3)", "1"),
    ]
    assert code_cells(notebooks[0]) == list(right)
    command = [sys.executable, "-m", "course.lab.run_notebooks", "--jobs", "2", *map(str, notebooks)]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "right: 2 cells" in ended.stdout and "failed: " in ended.stdout
    assert set(ended.stdout.rpartition("failed: ")[2].strip().split(", ")) == {"wrong", "dead"}
    assert "name 'x' is not defined" in ended.stdout and "cell 0 failed" in ended.stdout
    assert "the kernel ended with 3" in ended.stdout and "cell 1 failed" in ended.stdout


def test_a_model_that_ends_early_has_the_whole_ones_first_layers(lively_llama_path: Path, tmp_path: Path) -> None:
    shallow = with_first_layers(lively_llama_path, 1, tmp_path)
    assert shallow.name == lively_llama_path.name
    whole, cut = (load_model(EngineConfig(model=str(path), dtype="float32")) for path in (lively_llama_path, shallow))
    assert replace(whole.model_config, num_layers=1) == cut.model_config != whole.model_config
    kept = cut.decoder.state_dict()
    assert kept and all(whole.decoder.state_dict()[name].equal(weight) for name, weight in kept.items())


def test_the_weights_of_the_lab_are_loaded_once(tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_LAB_MODEL", str(tiny_llama_path))
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    monkeypatch.setattr(loading, "load_model", loading.load_model)  # to be put back
    load_once()
    lab = Lab()
    usual, other = lab.config(), lab.config(dtype="bfloat16" if lab.config().dtype == "float32" else "float32")
    assert loading.load_model(usual) is loading.load_model(usual) is not loading.load_model(other)


def test_weights_that_no_kernel_could_use_or_that_are_not_there_are_left_for_the_cells(
    tiny_llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loading.load_model
    monkeypatch.setattr(loading, "load_model", before)
    for model, threads, gpus in ((tiny_llama_path, 2, 0), (tiny_llama_path, 1, 1), (tmp_path / "nowhere", 1, 0)):
        monkeypatch.setenv("MINILLM_LAB_MODEL", str(model))
        monkeypatch.setattr("torch.get_num_threads", lambda count=threads: count)
        monkeypatch.setattr("torch.cuda.device_count", lambda count=gpus: count)
        load_once()
        assert loading.load_model is before
