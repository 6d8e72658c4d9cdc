"""Constants of our own engine on a GPU, from the records that `minillm bench --out FILE` writes there.

`bench decode` and `bench prefill` time single steps: those are fitted to, all models together. `bench throughput` times
256 ragged requests served together, which no constant has seen: it is simulated with what was fitted, and the error
goes into the profile. A record of `make gpu-check` holds many of these, as sections.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from course.simulator.calibration.fit import StepTable, TimedStep, error_report, fit_constants, fit_to_steps
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cost.hardware import find_hardware, read_json
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import Profile, today, typical_constants
from course.simulator.cost.roofline import Constants, StepWork
from course.simulator.deployment import Deployment
from course.simulator.errors import RecordingError
from course.simulator.workload.requests import Piece, Workload, WorkloadRequest

FREE = (
    *("mfu", "half_tokens", "bandwidth", "serial", "kv_bandwidth", "attention_mfu"),
    *("layer_s", "step_s", "request_s", "prefill_s"),
)
"""What the records decide. Launching is hidden behind the device in all of them (CUDA graphs), and no link is used."""
IN_PROCESS = {
    "serial": 0.05,
    "launch_s": 1e-6,
    "host_s": 5e-4,
    "prefill_host_s": 0.0,
    "step_s": 2e-4,
    "request_s": 1e-6,
}
"""What a fit starts from in place of a server's: an engine alone, in the process of its benchmark."""
NOISE_SHARE = 0.03
"""Relative error to be expected of one timed step."""
LENGTHS = (100, 1024)
"""Tokens in and out of the ragged workload, as in course/measure/workloads.py."""
PERCENT = 100.0


def records_of(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All records in some files; of a gpu-check's file, its sections.

    Raises:
        RecordingError: a file is no record of a benchmark.
    """
    found = []
    for path in paths:
        content = read_json(path)
        sections = content.get("sections")
        found += [each for each in sections.values() if "results" in each] if sections else [content]
        if not sections and not {"results", "settings", "model", "device"} <= content.keys():
            raise RecordingError(f"{path} is no record of `minillm bench` (one is written with --out)")
    return found


def is_plain(record: Mapping[str, Any]) -> bool:
    """Greedy, with unquantized weights: what the constants are of."""
    engine, sampling = record["settings"].get("engine", {}), record["settings"].get("sampling", {})
    return engine.get("quantization") is None and not sampling.get("temperature")


def kv_dtype_of(record: Mapping[str, Any]) -> str:
    """What its KV cache is kept in."""
    dtype = record["settings"]["engine"]["kv_cache_dtype"]
    return "bfloat16" if dtype == "auto" else str(dtype)


def steps_of(record: Mapping[str, Any]) -> StepTable:
    """The timed steps of a record of `bench decode` or `bench prefill`."""
    steps = []
    for row in record["results"]:
        is_prompt = "prompt_len" in row
        work = StepWork.of_prompt(row["prompt_len"]) if is_prompt else StepWork.of_decodes(row["batch"], row["context"])
        steps.append(TimedStep(work, row["step_s"]))
    hardware = find_hardware(record["device"])
    return StepTable(find_model(record["model"]), hardware, Placement(kv_dtype=kv_dtype_of(record)), steps)


def is_of_steps(record: Mapping[str, Any]) -> bool:
    """Decodes or prompts of a dense model, timed step by step by an engine."""
    rows = record.get("results") or [{}]
    is_timed = "step_s" in rows[0] and ("batch" in rows[0] or "prompt_len" in rows[0])
    return is_timed and is_plain(record) and not find_model(record["model"]).num_experts


def is_of_throughput(record: Mapping[str, Any]) -> bool:
    """The ragged workload at its whole size, served by our engine among others."""
    rows = record.get("results") or [{}]
    return rows[0].get("name") == "throughput" and is_plain(record) and record["settings"].get("scale") == 1.0


def fit_to_records(paths: Sequence[Path]) -> Profile:
    """A profile of the engine on the card that the records were measured on.

    Raises:
        RecordingError: a file is no such record, no record has steps, or they are of several cards.
        UnknownHardwareError: the card isn't in the catalogue.
    """
    records = records_of(paths)
    stepwise = [record for record in records if is_of_steps(record)]
    plain = [record for record in stepwise if kv_dtype_of(record) == "bfloat16"]
    if not plain:
        raise RecordingError("no record has steps to fit to: name one of `minillm bench decode` or `bench prefill`")
    tables = [steps_of(record) for record in plain]
    cards = {table.hardware.name for table in tables}
    if len(cards) > 1:
        raise RecordingError(f"the records are of several cards ({', '.join(sorted(cards))}): name those of one")
    hardware = tables[0].hardware
    prior = typical_constants(hardware).replace(**IN_PROCESS)
    fitted = fit_to_steps(tables, prior, FREE)
    narrow = [steps_of(record) for record in stepwise if kv_dtype_of(record) != "bfloat16"]
    by_kv = {table.placement.kv_dtype: _kv_bandwidth(table, fitted.constants) for table in narrow}
    versions = plain[-1]["versions"]
    profile = Profile(
        hardware=hardware,
        constants=fitted.constants,
        by_kv=by_kv,
        provenance={
            "stack": f"minillm {versions['minillm']}, alone in its process (CUDA graphs, torch {versions['torch']})",
            "source": f"{sum(len(each.steps) for each in (*tables, *narrow))} step times of our own engine on "
            f"{plain[-1]['device']}: `minillm bench decode` and `bench prefill`",
            "records": [record["command"].partition(" --out")[0] for record in stepwise],
            "model": sorted({record["model"] for record in plain}),
            "tp": 1,
            "weight_dtype": "bfloat16",
            "fitted": list(FREE),
            "decided_by_data": list(fitted.decided),
            "date": today(),
            "fit_error": error_report(tables, fitted.constants),
        },
    )
    checks = {
        f"{record['settings']['requests']} ragged requests of {record['model']}, {record['date']}": error
        for record in records
        if is_of_throughput(record) and (error := throughput_error(profile, record))
    }
    return profile.replace(provenance={**profile.provenance, "held_out_error_percent": checks})


def _kv_bandwidth(table: StepTable, constants: Constants) -> dict[str, float]:
    """What attention reaches of the bandwidth over a narrower KV cache, whose entries it has to widen."""

    def residuals(candidate: Constants) -> list[float]:
        return [error / NOISE_SHARE for error in table.relative_errors(candidate)]

    return {"kv_bandwidth": fit_constants(residuals, constants, ("kv_bandwidth",)).constants.kv_bandwidth}


def ragged_requests(count: int, seed: int) -> Workload:
    """The lengths of `bench throughput` at scale 1, all at once; no two prompts share a token."""
    rng = random.Random(seed)
    prompts = [rng.randint(*LENGTHS) for _ in range(count)]
    answers = [rng.randint(*LENGTHS) for _ in range(count)]
    pieces = enumerate(zip(prompts, answers))
    return Workload("ragged", tuple(WorkloadRequest(i, (Piece("", p),), a, arrival=0.0) for i, (p, a) in pieces))


def throughput_error(profile: Profile, record: Mapping[str, Any]) -> dict[str, float]:
    """How far the simulation of a throughput record is from it, in percent: tokens per second and median gap."""
    settings, engine = record["settings"], record["settings"]["engine"]
    deployment = Deployment.of(
        record["model"],
        profile,
        max_num_seqs=engine["max_num_seqs"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        num_kv_blocks=engine["kv_blocks"],
    )
    workload = ragged_requests(settings["requests"], settings["seed"])
    plain = deployment.without_prefix_lookups()
    run = simulate(workload.anonymous(), ClusterConfig(sample_every_s=None), plain.fast_engine)
    measured = next(each for each in record["results"][0]["peers"] if each["peer"] == "minillm")
    rate = sum(each.num_tokens for each in run.records) / run.duration
    gap = run.summary().metrics["itl"].p50
    assert gap is not None, "every request was answered"
    return {
        "tokens_per_s": round(PERCENT * (rate / measured["tokens_per_s"]["median"] - 1), 2),
        "itl_p50": round(PERCENT * (gap / measured["itl_p50"] - 1), 2),
    }
