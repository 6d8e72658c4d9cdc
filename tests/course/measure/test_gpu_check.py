"""`make gpu-check` without a GPU: that it goes on where it stopped, and that its plan runs, in small."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import transformers
from patience import wait_for
from typer.testing import CliRunner
from vllm_stand_in import make_vllm_stand_in

from course.measure import gpu_check
from course.measure.gpu_check import TIME_LIMIT_S, Section, main, run, sections
from course.measure.peers.vllm_peer import PYTHON_VARIABLE
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


@pytest.mark.parametrize(("left", "outcome"), [(100, "failed"), (70, "not run")])
def test_a_section_cut_short_is_run_again(
    left: float, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own limit it has failed; by the end of the call it hasn't been run."""
    section = Script("one", "open(out, 'w').write('{}')", 60)
    with monkeypatch.context() as patch:
        patch.setattr(gpu_check, "exit_status", lambda *_: None)
        assert run(section, tmp_path, False, soon(left)) == outcome
    assert run(section, tmp_path, False, soon()) == "done"


def test_nothing_that_a_section_started_outlives_it(tmp_path: Path) -> None:
    """A server that lives on would hold the GPU's memory, and its time."""
    server = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid); raise SystemExit(1)"
    assert run(Script("one", server, 60), tmp_path, False, soon()) == "failed"
    pid = int((tmp_path / "one.log").read_text())

    def is_gone() -> bool:
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    wait_for(is_gone, "its server has ended")


def test_a_section_ends_with_the_call_that_is_ended(tmp_path: Path) -> None:
    script = "import os, signal, time; print(os.getpid(), flush=True)\nos.kill(os.getppid(), signal.SIGTERM)"
    with pytest.raises(SystemExit):
        run(Script("one", f"{script}\ntime.sleep(60)", 60), tmp_path, False, soon())
    assert not psutil.pid_exists(int((tmp_path / "one.log").read_text()))


def test_two_calls_reach_what_is_worth_most_even_if_each_section_takes_a_tenth_more_than_usual() -> None:
    left = sections()
    for _ in range(2):
        seconds = TIME_LIMIT_S
        for section in list(left):
            if section.usual_s <= seconds:
                left.remove(section)
                seconds -= 1.1 * section.usual_s + 1  # a process starts, and a record is written
    assert {section.name for section in left} <= {section.name for section in gpu_check._others()}
    assert all(section.usual_s <= TIME_LIMIT_S for section in left), "a call more reaches each"


def test_what_failed_before_is_tried_last_and_no_record_is_of_two_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [Script(name, f"raise SystemExit({name == 'first'})", 60, "no module") for name in ("first", "second")]
    monkeypatch.setattr(gpu_check, "sections", lambda: made)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_check, "describe", lambda *_: {"device": "A GPU", "tree": None})
    order = []
    for only in (["--only", "first"], []):
        main(["--out", str(tmp_path), *only])
        order.append([*json.loads((tmp_path / "gpu_check_a_gpu.json").read_text())["outcomes"].items()])
    assert order == [[("first", "failed")], [("second", "done"), ("first", "failed")]]
    monkeypatch.setattr(gpu_check, "describe", lambda *_: {"device": "Another GPU", "tree": None})
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path)])
    assert "what another device measured, gpu_check_a_gpu.json" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "no CUDA device" in capsys.readouterr().err


def test_a_folder_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    for arguments, says in ((["--out", str(file)], f"--out {file}"), (["--time-limit", "0"], "above 0, not 0")):
        with pytest.raises(SystemExit, match="2"):
            main(["--rehearse", "qwen3-0.6b", *arguments])
        assert says in capsys.readouterr().err


def test_one_record_tells_all_that_two_calls_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"results": [{"batch": 1, "mbu": 0.7}]}
    made = [
        Script("decode_8b", f"import json; json.dump({found}, open(out, 'w'))", 60),
        Script("nano", "import sys; sys.exit(print('minillm: there is no nanovllm here') or 2)", 60),
        Script("parity", "raise SystemExit(2)", 60, "pytest"),
        Script("lessons", "", 60, needs="a_package_that_nobody_has"),
    ]
    monkeypatch.setattr(gpu_check, "sections", lambda: made)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(report, "describe_versions", lambda: {"driver": "1"})
        patch.setattr(report, "describe_machine", dict)
        patch.setattr(gpu_check, "git_commit", lambda: None)
        where = ["--out", str(tmp_path), "--tree", "0123abc"]
        assert main([*where, "--only", "decode_8b", "--only", "nano"]) == 0, "what cannot run here is no failure"
        assert main(where) == 1
    record = json.loads((tmp_path / "gpu_check_a_gpu.json").read_text())
    assert record["outcomes"] == {"decode_8b": "kept", "nano": "refused", "parity": "failed", "lessons": "refused"}
    assert "a_package_that_nobody_has" in record["reasons"]["lessons"]
    assert record["reasons"]["nano"] == "minillm: there is no nanovllm here"
    kept = record["sections"]["decode_8b"]
    assert kept["results"] == found["results"] and kept["commit"] == record["tree"] == "0123abc"
    told = {"date", "command", "sources", "device", "num_gpus", "versions", "flash_attention", "vllm", "goals"}
    assert told <= set(record) and {"driver", "triton"} <= set(record["versions"])
    said = capsys.readouterr().out
    assert "not yet measured" in said and "0.70  NOT MET" in said


def test_equal_trees_have_equal_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy on a machine without git says which tree it is."""
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    source = tmp_path / "minillm" / "core" / "engine.py"
    source.parent.mkdir(parents=True)
    digests = []
    for text in ("one", "two", "one"):
        source.write_text(text)
        digests.append(gpu_check.digest_of_sources())
    assert digests[0] == digests[2] != digests[1]


def test_every_command_is_one_that_bench_understands() -> None:
    """Typer names a wrong option before it reads --help; a wrong model or field fails when the target is made."""
    for section in sections():
        if section.module == "minillm":
            words = section.arguments.split()
            result = CliRunner().invoke(app, ["bench", *words, "--out", "x.json", "--help"])
            assert result.exit_code == 0, section.name
            assert all(word in result.output for word in words if word.startswith("--")), section.name
            assert {"--device", "cuda"} <= {*words} or "device=cuda" in words, section.name


def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path, *arguments: str) -> dict[str, str]:
    """What became of the plan's sections on this CPU, in small, beside a stand-in for vLLM."""
    monkeypatch.setenv(PYTHON_VARIABLE, str(make_vllm_stand_in(tmp_path)))
    main(["--rehearse", str(model), "--out", str(tmp_path / "out"), "--time-limit", "3000", *arguments])
    record = json.loads((tmp_path / "out" / "rehearsal.json").read_text())
    print(record["reasons"])
    return record["outcomes"]


def test_a_section_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama_path: Path) -> None:
    outcomes = rehearse(tmp_path, monkeypatch, tiny_llama_path, "--only", "verify_costs_8b")
    assert outcomes == {"verify_costs_8b": "done"}


@pytest.mark.slow
def test_the_whole_plan_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_llama_path: Path) -> None:
    """Each section's command starts, ends well, and leaves a report; but for what only a GPU has."""
    outcomes = rehearse(tmp_path, monkeypatch, tiny_llama_path)
    only_on_gpus = {"decode_8b_fp8", "decode_8b_fp8_pdl", "prefill_8b_fp8", "nano_vllm_0.6b"}
    assert {name for name, outcome in outcomes.items() if outcome != "done"} == only_on_gpus
    assert set(outcomes) == {section.name for section in sections()}


@pytest.mark.parametrize(("flash", "requests"), [(True, 256), (False, 64)])
def test_without_a_flash_kernel_transformers_gets_a_quarter(
    monkeypatch: pytest.MonkeyPatch, flash: bool, requests: int
) -> None:
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: False)
    monkeypatch.setattr(transformers.utils, "is_flash_attn_3_available", lambda: flash)
    [section] = [section for section in sections() if section.name == "hf_0.6b"]
    assert f"--requests {requests} " in section.arguments
