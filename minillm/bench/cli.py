"""`minillm bench`: minillm on four workloads, alone or beside other engines, with the memory floor."""

import datetime
import enum
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

DEFAULT_REPEATS = 3


class Against(enum.StrEnum):
    HF = "hf"
    LLAMA_CPP = "llama.cpp"
    NANO_VLLM = "nano-vllm"


class Dtype(enum.StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class WorkloadName(enum.StrEnum):
    ONE = "one"
    EIGHT = "eight"
    MIXED = "mixed"
    SHARED_PREFIX = "shared_prefix"


def bench(
    model: Annotated[str, typer.Option(help="Short name, local folder, GGUF file or Hub id.")] = "smollm2-135m",
    compare: Annotated[list[Against] | None, typer.Option(help="Measure this one beside it; may be repeated.")] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="Also minillm with compile=True.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Of weights, activations and KV, for everyone.")] = Dtype.BFLOAT16,
    workload: Annotated[list[WorkloadName] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; in each, everyone runs once.")] = DEFAULT_REPEATS,
    quick: Annotated[bool, typer.Option("--quick", help="A few tokens, once: tries it, measures nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Measure speed on four workloads. Run it alone: two busy programs on one machine measure each other."""
    report = run_benchmark(
        model,
        against=[name.value for name in compare or []],
        compiled=compiled,
        dtype=dtype.value,
        names=[name.value for name in workload or WorkloadName],
        repeats=1 if quick else repeats,
        quick=quick,
    )
    text = json.dumps(_plain(report), indent=2)
    if out is not None:
        out.write_text(text + "\n")
    if as_json:
        print(text)
    else:
        from minillm.bench.report import format_table

        print(format_table(report["machine"], report["bandwidth"], report["results"]))


def run_benchmark(
    model: str,
    *,
    against: Sequence[str],
    compiled: bool,
    dtype: str,
    names: Sequence[str],
    repeats: int,
    quick: bool,
) -> dict[str, Any]:
    """Load everyone, measure, and return the whole report (machine, settings, results)."""
    # Seconds of imports that `minillm --help` should not pay for.
    from minillm.bench.compare import compare
    from minillm.bench.peers import MinillmPeer
    from minillm.bench.references import Settings, check_installed, make_references
    from minillm.bench.report import computes_bfloat16, describe_machine
    from minillm.bench.roof import measure_bandwidth
    from minillm.bench.workloads import make_workloads
    from minillm.models.checkpoints import load_config, resolve

    check_installed(against)
    machine = describe_machine()
    folder = resolve(model)
    bandwidth = measure_bandwidth(*((10_000_000, 2) if quick else ()))
    workloads = [w for w in make_workloads(load_config(folder)["vocab_size"], quick=quick) if w.name in names]
    own = [MinillmPeer(model, dtype)]
    if compiled:
        own.append(MinillmPeer(model, dtype, name="minillm_compiled", compile=True))
    engine = own[0].llm.engine
    settings = Settings(
        model=model,
        folder=folder,
        dtype=dtype,
        device=str(engine.model.device),
        max_num_seqs=engine.config.max_num_seqs,
        max_num_batched_tokens=engine.config.max_num_batched_tokens,
        kv_tokens=engine.runner.num_kv_blocks * engine.config.block_size,
        emulates_bfloat16=not computes_bfloat16(machine),
    )
    references = make_references(against, settings)
    report = compare(own, references, workloads, repeats, bandwidth, folder, dtype)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "model": model,
        "dtype": dtype,
        "repeats": repeats,
        "quick": quick,
        "machine": machine,
        "bandwidth": bandwidth,
        **report,
    }


def _plain(report: dict[str, Any]) -> dict[str, Any]:
    """The report with its dataclasses turned into dicts, ready for JSON."""
    results = [asdict(result) for result in report["results"]]
    return {**report, "bandwidth": asdict(report["bandwidth"]), "results": results}
