"""The goals on a GPU, read off made-up records, off the benchmarks' own reports, and off those that are committed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from course.measure import gpu_goals
from course.measure.gpu_goals import GOALS, goals_table, judged

RECORDS = Path(__file__).parents[3] / "course" / "data" / "measured"


def peer(tokens_per_s: float = 1.0, **over: float) -> dict[str, Any]:
    ratios = {engine: {"median": ratio} for engine, ratio in over.items()}
    inverse = {engine: {"median": 1 / ratio} for engine, ratio in over.items()}
    return {"tokens_per_s": {"median": tokens_per_s}, "speedups": ratios, "itl_ratios": inverse}


def workload(name: str, own: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "peers": [own, peer()]}


def served(attainment: float, ttft: float, itl: float) -> dict[str, Any]:
    return {"rates": {"attainment": attainment}, "latency": {"ttft": {"p99": ttft}, "itl": {"p99": itl}}}


def decodes(*rows: tuple[int, float, float]) -> dict[str, Any]:
    return {"results": [{"batch": batch, "step_s": step_s, "mbu": mbu} for batch, step_s, mbu in rows]}


def prompts(**seconds: float) -> dict[str, Any]:
    return {"results": [{"prompt_len": int(name[1:]), "step_s": step, "mfu": 0.7} for name, step in seconds.items()]}


MADE_UP = {
    "vllm_throughput_0.6b": {"results": [workload("throughput", peer(vllm=1.2))]},
    "vllm_8b": {
        "results": [
            workload("one", peer(vllm=1.06)),
            workload("batch_32", peer(vllm=1.04)),
            workload("prefill_2048", peer(vllm=1.3)),
            workload("prefill_16384", peer(vllm=0.9)),
        ]
    },
    "vllm_served_8b": {
        "engines": {
            "minillm": {"closed": served(0.1, 9, 9), "0.5": served(1.0, 0.1, 0.02), "0.9": served(0.9, 0.4, 0.05)},
            "vllm": {"closed": served(0.9, 1, 1), "0.5": served(0.8, 0.2, 0.02), "0.9": served(0.9, 0.2, 0.10)},
        }
    },
    "decode_8b": decodes((1, 0.006, 0.81), (32, 0.007, 0.8)),
    "decode_8b_int4": decodes((1, 0.0023, 0.6), (32, 0.004, 0.6)),
    "decode_8b_int8": decodes((1, 0.004, 0.76)),
    "decode_8b_fp8": decodes((1, 0.004, 0.6)),
    "decode_8b_kv_int8": decodes((32, 0.008, 0.86), (128, 0.013, 0.84)),
    "moe_30b": decodes((1, 0.004, 0.5), (64, 0.02, 0.92)),
    "prefill_8b": prompts(_512=0.01, _2048=0.05, _4096=0.1),
    "prefill_8b_int4": prompts(_2048=0.06, _4096=0.11),
    "start_up_8b": {"results": [{"way": way, "total_s": s} for way, s in (("cold", 3), ("warm", 9), ("warm, x", 6))]},
    "few_0.6b": {"results": [workload("throughput", peer(120.0))]},
    "few_0.6b_no_pieces": {"results": [workload("throughput", peer(100.0))]},
}
EXPECTED = {
    "Beside vLLM: 0.6B, 256 requests, throughput": (1.2, True),
    "Beside vLLM: 8B, decode, slowest of the batches": (1.04, False),
    "Beside vLLM: 8B, prompts of 2k to 16k, slowest": (0.9, False),
    "Beside vLLM: 8B served at 50, 70, 90% of the knee, goodput": (1.0, True),
    "  the same, 1 / p99 of TTFT": (0.5, False),
    "  the same, 1 / p99 of ITL": (1.0, True),
    "8B in int4, batch 1, ms a step": (2.3, True),
    "8B in int4, batch 32, ms a step": (4.0, False),
    "8B in int4, prompts, times bf16's seconds": (1.2, False),
    "8B in int8, batch 1, share of copy bandwidth": (0.76, True),
    "8B in fp8, batch 1, times as fast as bf16": (1.5, False),
    "8B, int8 KV at 2k, share of copy bandwidth": (0.84, False),
    "30B-A3B, batch 1, share of copy bandwidth": (0.5, False),
    "30B-A3B, batch 64, share of copy bandwidth": (0.92, True),
    "8B, start to first token, warm, seconds": (6, False),
    "0.6B, 16 requests, with piecewise graphs over without": (1.2, True),
    "8B, batch 1, share of copy bandwidth": (0.81, True),
    "8B, prompts of 2k and more, share of matmul rate": (0.7, True),
}


def test_each_goal_takes_the_worst_of_what_it_is_about() -> None:
    found = {each.what: (each.measured, each.met) for each in judged(MADE_UP) if each.measured is not None}
    assert {what: met for what, (_, met) in found.items()} == {what: met for what, (_, met) in EXPECTED.items()}
    for what, (measured, _) in EXPECTED.items():
        assert found[what][0] == pytest.approx(measured), what
    table = goals_table(MADE_UP)
    assert table.count("NOT MET") == sum(not met for _, met in EXPECTED.values())
    assert table.count("not yet measured") == len(GOALS) - len(EXPECTED)


def test_what_an_engine_lacks_is_not_judged() -> None:
    """A server that met no limit, a percentile of nothing, a run without the other engine."""
    ours, theirs = served(0.5, 0.1, 0.02), served(0.0, 0.1, 0.02)
    theirs["latency"]["itl"]["p99"] = None
    sections = {"vllm_served_8b": {"engines": {"minillm": {"0.5": ours}, "vllm": {"0.5": theirs}}}}
    sections |= {"vllm_8b": {"results": [{"name": "one", "peers": [{"itl_ratios": {}, "speedups": {}}]}]}}
    found = {each.what: each.measured for each in judged(sections) if each.measured is not None}
    assert found == {"  the same, 1 / p99 of TTFT": 1.0}


def test_committed_records_are_judged_by_today_s_goals() -> None:
    few_bits = json.loads((RECORDS / "gpu_check_h100_few_bits.json").read_text())["sections"]
    rows = {row["batch"]: row for row in few_bits["decode_8b_int4"]["results"]}
    found = {each.what: each for each in judged(few_bits)}
    assert found["8B in int4, batch 1, ms a step"].measured == 1e3 * rows[1]["step_s"]
    assert found["8B in int4, batch 1, ms a step"].met is (1e3 * rows[1]["step_s"] <= 2.3)
    earlier = json.loads((RECORDS / "gpu_check_h100.json").read_text())
    verdicts = {each.measured for each in judged(earlier["sections"])}
    assert all(goal["reached"] in verdicts for goal in earlier["goals"]), "as they were read on the day"


def test_goals_are_read_off_what_the_benchmarks_write(bench: Callable[..., Result], tmp_path: Path) -> None:
    """The benchmarks' own reports, made small on the CPU, in the places where the goals look."""
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
    found = {each.what: each.measured for each in judged(reports)}
    assert (found["8B, batch 1, share of copy bandwidth"] or 0) > 0
    assert (found["8B, prompts of 2k and more, share of matmul rate"] or 0) > 0
    assert (found["0.6B, 256 requests (64 without flash-attn) over HF"] or 0) > 0
    assert found["0.6B, decode, GPU busy (idle under 3%)"] == pytest.approx(0.75)
    assert found["Triton decode attention over FlashAttention-3"] is None, "not on a CPU"


def test_triton_is_held_against_fa3_on_its_worst_decode() -> None:
    def row(kind: str, batch: int, backend: str, call_s: float) -> dict[str, Any]:
        return {"shape": {"kind": kind, "batch": batch}, "backend": backend, "call_s": {"median": call_s}}

    rows = [row("decode", 1, "fa3", 1.0), row("decode", 1, "triton", 1.0), row("decode", 8, "fa3", 0.9)]
    rows += [row("decode", 8, "triton", 1.2), row("prefill", 1, "fa3", 1.0), row("prefill", 1, "triton", 5.0)]
    assert gpu_goals.triton_over_fa3({"attention_8b": {"results": rows}}) == pytest.approx(0.75)


@pytest.mark.parametrize("content", [None, "no JSON", "[]", "{}"])
def test_a_file_that_is_no_record_is_named(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "record.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit, match="2"):
        gpu_goals.main([str(file)])
    assert f"{file} is no record of gpu-check" in capsys.readouterr().err
