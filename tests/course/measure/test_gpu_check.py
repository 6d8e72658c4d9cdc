"""`make gpu-check` without a GPU: that it goes on where it stopped, and reads its targets off real reports."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers
from patience import wait_for
from typer.testing import CliRunner, Result

from course.measure import gpu_check
from course.measure.gpu_check import GOALS, TIME_LIMIT_S, Section, main, reached, run, sections
from minillm.bench import report
from minillm.cli import app


class Script(Section):
    """A section whose process is a line of Python; `out` is where it writes."""

    def command(self, out: Path) -> list[str]:
        return [sys.executable, "-c", f"out = {str(out)!r}\n{self.arguments}"]


def soon(seconds: float = 100) -> float:
    return time.monotonic() + seconds


def test_a_section_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    section = Script("one", "open(out, 'w').write('{}')", 60)
    assert run(section, tmp_path, False, soon()) == "done"
    broken = Script("one", "raise SystemExit(3)", 60)
    assert run(broken, tmp_path, False, soon()) == "kept"
    assert run(broken, tmp_path, True, soon()) == "failed"


def test_a_section_that_dies_leaves_no_file_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = Script("one", "open(out, 'w').write('{'); raise SystemExit('out of memory')", 60)
    assert run(half, tmp_path, False, soon(1)) == "not run", "there is no time left"
    assert run(half, tmp_path, False, soon()) == "failed"
    assert not (tmp_path / "one.json").exists()
    assert "out of memory" in capsys.readouterr().err


def test_a_section_cut_short_is_run_again(tmp_path: Path) -> None:
    assert run(Script("one", "import time; time.sleep(60)", 0), tmp_path, False, soon()) == "failed"
    assert run(Script("one", "open(out, 'w').write('{}')", 60), tmp_path, False, soon()) == "done"


def test_nothing_that_a_section_started_outlives_it(tmp_path: Path) -> None:
    """A server that lives on would hold the GPU's memory, and its time."""
    server = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid); raise SystemExit(1)"
    assert run(Script("one", server, 60), tmp_path, False, soon()) == "failed"
    pid = int((tmp_path / "one.log").read_text())

    def is_gone() -> bool:
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    wait_for(is_gone, "its server has ended")


def test_two_calls_reach_all_sections_even_if_each_takes_its_limit() -> None:
    left = [section.limit_s for section in sections()]
    for _ in range(2):
        seconds = TIME_LIMIT_S
        for limit in list(left):
            if limit <= seconds:
                left.remove(limit)
                seconds -= limit
    assert left == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "no CUDA device" in capsys.readouterr().err


def test_one_record_tells_all_that_two_calls_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"results": [{"batch": 1, "mbu": 0.7}]}
    made = [
        Script("decode_8b", f"import json; json.dump({found}, open(out, 'w'))", 60),
        Script("nano", "import sys; sys.exit(print('minillm: there is no nanovllm here') or 2)", 60),
        Script("parity", "raise SystemExit(2)", 60),
    ]
    monkeypatch.setattr(gpu_check, "sections", lambda: made)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(report, "describe_versions", lambda: {"driver": "1"})
        patch.setattr(report, "describe_machine", dict)
        where = ["--out", str(tmp_path)]
        assert main([*where, "--only", "decode_8b", "--only", "nano"]) == 0, "what cannot run here is no failure"
        assert main(where) == 1
    record = json.loads((tmp_path / "gpu_check_a_gpu.json").read_text())
    assert record["outcomes"] == {"decode_8b": "kept", "nano": "refused", "parity": "failed"}
    assert record["reasons"]["nano"] == "minillm: there is no nanovllm here"
    kept = record["sections"]["decode_8b"]
    assert kept["results"] == found["results"] and "commit" in kept
    assert {"date", "command", "commit", "device", "versions"} <= set(record)
    said = capsys.readouterr().out
    assert "not yet measured" in said and "0.70  0.80" in said


def test_every_command_is_one_that_bench_understands() -> None:
    """Typer names a wrong option before it reads --help; a wrong model or field fails when the target is made."""
    for section in sections()[1:]:
        words = section.arguments.split()
        result = CliRunner().invoke(app, ["bench", *words, "--out", "x.json", "--help"])
        assert result.exit_code == 0, section.name
        assert all(word in result.output for word in words if word.startswith("--")), section.name


@pytest.mark.parametrize(("flash", "requests"), [(True, 256), (False, 64)])
def test_without_a_flash_kernel_transformers_gets_a_quarter(
    monkeypatch: pytest.MonkeyPatch, flash: bool, requests: int
) -> None:
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: False)
    monkeypatch.setattr(transformers.utils, "is_flash_attn_3_available", lambda: flash)
    [section] = [section for section in sections() if section.name == "hf_0.6b"]
    assert f"--requests {requests} " in section.arguments


def test_targets_are_read_off_what_the_benchmarks_write(bench: Callable[..., Result], tmp_path: Path) -> None:
    """The benchmarks' own reports, made small on the CPU, in the places where gpu-check looks."""
    reports: dict[str, Any] = {"decode_0.6b": {"idle": {"1": 0.02, "64": 0.25}}}
    for name, arguments in {
        "decode_8b": ("decode", "--batch", "1"),
        "prefill_8b": ("prefill",),
        "attention_8b": ("attention",),
        "hf_0.6b": ("throughput", "--compare", "hf"),
    }.items():
        bench(*arguments, "--out", str(tmp_path / f"{name}.json"))
        reports[name] = json.loads((tmp_path / f"{name}.json").read_text())
    for row in reports["prefill_8b"]["results"]:
        row["prompt_len"] *= 200  # the window of the tiny model is short of 2000 tokens
    found = {goal.section: reached(goal, reports) for goal in GOALS}
    assert all((found[name] or 0) > 0 for name in ("decode_8b", "prefill_8b", "hf_0.6b"))
    assert found["decode_0.6b"] == pytest.approx(0.75)
    assert found["nano_vllm_0.6b"] is None, "not installed"
    assert found["attention_8b"] is None, "not on a CPU"


def test_triton_is_held_against_fa3_on_its_worst_decode() -> None:
    def row(kind: str, batch: int, backend: str, call_s: float) -> dict[str, Any]:
        return {"shape": {"kind": kind, "batch": batch}, "backend": backend, "call_s": {"median": call_s}}

    rows = [row("decode", 1, "fa3", 1.0), row("decode", 1, "triton", 1.0), row("decode", 8, "fa3", 0.9)]
    rows += [row("decode", 8, "triton", 1.2), row("prefill", 1, "fa3", 1.0), row("prefill", 1, "triton", 5.0)]
    assert gpu_check.triton_over_fa3({"results": rows}) == pytest.approx(0.75)
