"""`minillm bench`, as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.measure.cli import WorkloadName
from course.measure.workloads import BY_NAME
from minillm.cli import app
from minillm.core.errors import ConfigError

QUICK = ["bench", "--quick", "--dtype", "float32"]


@pytest.mark.slow
def test_comparison_prints_one_json_object(tiny_llama_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    arguments = [*QUICK, "--model", str(tiny_llama_path), "--compare", "hf", "--json", "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)
    assert report == json.loads(out.read_text())
    assert set(report["peers"]) == {"minillm", "hf_generate", "hf_continuous"}
    assert report["peers"]["hf_continuous"]["attention"] == "sdpa over a paged cache"
    assert {"cpu", "cores", "flags", "torch", "transformers"} <= set(report["machine"])
    assert [workload["name"] for workload in report["results"]] == [
        name for name in WorkloadName if name not in BY_NAME
    ]
    for workload in report["results"]:
        own = workload["peers"][0]
        assert own["peer"] == "minillm"
        assert set(own["speedups"]) == {"hf_generate", "hf_continuous"}
        assert all(ratio["low"] <= ratio["median"] <= ratio["high"] for ratio in own["speedups"].values())
        assert (own["percent_of_floor"] is None) == (workload["floor_itl"] is None)
        assert (own["itl_p50"] is None) == workload["name"].startswith("prefill")


def test_alone_it_prints_a_table_of_the_chosen_workload(tiny_llama_path: Path) -> None:
    arguments = [*QUICK, "--model", str(tiny_llama_path), "--workload", "one"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "1 request, 128 in, 64 out (quick: 1/8 of it); memory floor" in result.stdout
    assert "8 requests" not in result.stdout
    assert "hf_generate" not in result.stdout
    assert "speedup" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "also_float32"), [(["avx2"], True), (["avx2", "avx512_bf16"], False)], ids=str)
def test_hugging_face_also_gets_float32_where_bfloat16_is_emulated(
    tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], also_float32: bool
) -> None:
    monkeypatch.setattr("course.measure.peers.make.describe_cpu", lambda: ("a CPU", flags))
    arguments = ["bench", "--quick", "--model", str(tiny_llama_path), "--compare", "hf", "--workload", "one", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    peers = json.loads(result.stdout)["peers"]
    assert peers["hf_generate"]["dtype"] == "bfloat16"
    assert ("hf_generate_fp32" in peers) == also_float32


@pytest.mark.parametrize("arguments", [["--compare", "vlm"], ["--repeats", "0"], ["--dtype", "int3"]], ids=str)
def test_bad_options_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["bench", *arguments]).exit_code == 2


@pytest.mark.parametrize(
    ("before", "advice"),
    [
        (["--model", "x"], "minillm bench decode --model"),
        (["--json"], r"come after it: minillm bench decode --json \.\.\."),  # not --as_json, as the code has it
        (["--compare", "hf"], r"`bench decode` has no --compare"),
    ],
    ids=str,
)
def test_what_is_proposed_instead_exists(before: list[str], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        CliRunner().invoke(app, ["bench", *before, "decode"], catch_exceptions=False)


def test_an_engine_without_the_course_lists_its_own_benchmarks() -> None:
    script = """if True:
        import importlib.util, sys
        found = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *package: None if name == "course" else found(name, *package)
        sys.modules["course"] = None  # an import of it fails
        from minillm.bench.cli import bench_app
        bench_app(["--help"])
    """
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    listed = shown.stdout.partition("Commands:")[2].splitlines()
    assert [line.split()[0] for line in listed if line] == ["decode", "prefill", "step-breakdown"]
