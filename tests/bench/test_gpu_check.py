"""`make gpu-check` without a GPU: that it goes on where it stopped, and reads its targets off real reports."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from minillm.__main__ import app
from minillm.bench import gpu_check
from minillm.bench.gpu_check import GOALS, Section, reached, run, sections


class Script(Section):
    """A section whose process is a line of Python; `out` is where it writes."""

    def command(self, out: Path) -> list[str]:
        return [sys.executable, "-c", f"out = {str(out)!r}\n{self.arguments}"]


def soon(seconds: float = 60) -> float:
    return time.monotonic() + seconds


def test_a_section_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    section = Script("one", "open(out, 'w').write('{}')", 60)
    assert run(section, tmp_path, False, soon()) == "done"
    broken = Script("one", "raise SystemExit(3)", 60)
    assert run(broken, tmp_path, False, soon()) == "kept"
    assert run(broken, tmp_path, True, soon()) == "failed"


def test_a_section_that_dies_leaves_no_file_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = Script("one", "open(out, 'w').write('{'); raise SystemExit('out of memory')", 60)
    assert run(half, tmp_path, False, soon()) == "failed"
    assert not (tmp_path / "one.json").exists()
    assert "out of memory" in capsys.readouterr().err


def test_time_that_is_out_is_said_and_the_next_run_goes_on(tmp_path: Path) -> None:
    section = Script("one", "open(out, 'w').write('{}')", 60)
    assert run(section, tmp_path, False, soon(1)) == "not run"
    slow = Script("two", "import time; time.sleep(60)", 1)
    assert run(slow, tmp_path, False, soon()) == "failed"
    assert run(section, tmp_path, False, soon()) == "done"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    import typer

    command = typer.Typer()
    command.command()(gpu_check.check)
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 2


def test_every_command_is_one_that_bench_understands() -> None:
    """Typer names a wrong option before it reads --help; a wrong model or field fails when the target is made."""
    for section in sections()[1:]:
        words = section.arguments.split()
        result = CliRunner().invoke(app, ["bench", *words, "--out", "x.json", "--help"])
        assert result.exit_code == 0, section.name
        assert all(word in result.output for word in words if word.startswith("--")), section.name


def test_targets_are_read_off_what_the_benchmarks_write(bench: Callable[..., Result], tmp_path: Path) -> None:
    """The benchmarks' own reports, made small on the CPU, in the places where gpu-check looks."""
    reports: dict[str, Any] = {}
    for name, arguments in {
        "decode_8b": ("decode", "--batch", "1"),
        "prefill_8b": ("prefill",),
        "attention_8b": ("attention",),
        "compare_0.6b": ("throughput", "--compare", "hf"),
    }.items():
        bench(*arguments, "--out", str(tmp_path / f"{name}.json"))
        reports[name] = json.loads((tmp_path / f"{name}.json").read_text())
    for row in reports["prefill_8b"]["results"]:
        row["prompt_len"] *= 200  # the window of the tiny model is short of 2000 tokens
    by_name = {goal.what: reached(goal, reports) for goal in GOALS}
    assert by_name["8B shape, batch 1: share of copy bandwidth"] > 0
    assert by_name["8B shape, 2k+ prompts: share of matmul rate"] > 0
    assert by_name["256 requests over Hugging Face continuous batching"] > 0
    assert by_name["256 requests over nano-vllm"] is None, "not installed"
    assert by_name["Triton decode attention over FlashAttention-3"] is None, "not on a CPU"


def test_triton_is_held_against_fa3_on_its_worst_decode() -> None:
    def row(kind: str, batch: int, backend: str, call_s: float) -> dict[str, Any]:
        return {"shape": {"kind": kind, "batch": batch}, "backend": backend, "call_s": {"median": call_s}}

    rows = [row("decode", 1, "fa3", 1.0), row("decode", 1, "triton", 1.0), row("decode", 8, "fa3", 0.9)]
    rows += [row("decode", 8, "triton", 1.2), row("prefill", 1, "fa3", 1.0), row("prefill", 1, "triton", 5.0)]
    assert gpu_check.triton_over_fa3({"results": rows}) == pytest.approx(0.75)
