"""A folder with the log of a real server, replayed: how far off are the latencies of its requests?

    requests.jsonl   what came in when, and when tokens went out; see calibration/requests_log.py
    meta.json        the server: vLLM's arguments, the configuration that it resolved them to, its KV cache, its GPU
    config.json      the same machine as LLMServingSim describes it; asked for what meta.json leaves out

The format is that of the recordings that LLMServingSim is validated with (github.com/casys-kaist/LLMServingSim, MIT).
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.simulator.accuracy.engines import card_of, model_of, profile_for, shape_of
from course.simulator.accuracy.points import Refusal
from course.simulator.calibration.replay import compare_with_log, serve_log
from course.simulator.calibration.requests_log import LoggedRequest, read_requests_log, timed
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.cluster.routers import RouterConfig
from course.simulator.cost.profile import find_profile
from course.simulator.deployment import Deployment
from course.simulator.errors import RecordingError
from course.simulator.latencies import PERCENTILES, SummaryDict
from course.simulator.report import summary_text
from course.simulator.workload.requests import Piece, Workload, WorkloadRequest
from minillm.text_files import read_text

METRICS = ("ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True)
class LoggedServer:
    """What a folder says of its server."""

    shape: str
    card: str
    version: str
    tp: int
    ranks: int
    """Data-parallel: each serves requests of its own."""
    expert_parallel: bool
    weight_dtype: str
    kv_dtype: str
    kv_blocks: int | None
    """KV cache of each rank; None = what the memory holds."""
    async_scheduling: bool | None
    reserve_full_isl: bool
    prefix_caching: bool
    sizes: dict[str, int]
    """The engine's limits that are known."""

    def deployment(self, log: Sequence[LoggedRequest]) -> Deployment:
        """One rank. The ranks of a mixture of experts take their steps together, and share the experts; those of a
        dense model know nothing of each other."""
        ranks = self.ranks if model_of(self.shape).num_experts else 1
        longest = max(request.input_tokens + request.output_tokens for request in log)  # the server did serve it
        limits: dict[str, Any] = {"max_model_len": longest, **self.sizes}
        return Deployment.of(
            self.shape,
            find_profile(profile_for("vllm", self.version, self.card, self.shape, self.weight_dtype)),
            tp=self.tp * ranks,
            dp=ranks,
            weight_dtype=self.weight_dtype,
            kv_dtype=self.kv_dtype,
            expert_parallel=self.expert_parallel and self.tp * ranks > 1,
            null_block=self.kv_blocks is not None,
            num_kv_blocks=self.kv_blocks,
            async_scheduling=self.async_scheduling,
            scheduler_reserve_full_isl=self.reserve_full_isl,
            enable_prefix_caching=self.prefix_caching,
            **limits,
        )


def check_log(folder: Path) -> dict[str, Any]:
    """Replay a folder's log: `server`, `requests`, mean and percentiles of TTFT, TPOT and E2E (seconds): `simulated`,
    `measured`, `error_percent`.

    Of several data-parallel ranks, each request goes to the one with the fewest, as vLLM's front end has it.

    Raises:
        RecordingError: a file can't be read, or says too little.
        PricingError: the server can't be simulated so.
    """
    log = timed(read_requests_log(folder / "requests.jsonl"))
    server = read_server(folder)
    deployment = server.deployment(log)
    outputs = [output for part in shares(deployment, log, server.ranks) for output in serve_log(deployment, part)]
    parts = zip(("simulated", "measured", "error_percent"), compare_with_log(outputs, log))
    return {"server": _told(server), "requests": len(log), **{name: _asked(part) for name, part in parts}}


def shares(deployment: Deployment, log: Sequence[LoggedRequest], ranks: int) -> list[list[LoggedRequest]]:
    """The requests that each rank gets."""
    if ranks == 1:
        return [list(log)]
    requests = tuple(
        WorkloadRequest(index, (Piece("", each.input_tokens),), each.output_tokens, arrival=each.queued)
        for index, each in enumerate(log)
    )
    fleet = ClusterConfig(replicas=ranks, router=RouterConfig(policy="least_outstanding"), sample_every_s=None)
    run = simulate(Workload("log", requests), fleet, deployment.without_prefix_lookups().fast_engine)
    parts: defaultdict[str | None, list[LoggedRequest]] = defaultdict(list)
    for record, each in zip(run.records, log):
        parts[record.replica].append(each)
    return list(parts.values())


def log_text(found: dict[str, Any]) -> str:
    """The report as tables."""
    told = ", ".join(f"{name} {value}" for name, value in found["server"].items())
    lines = [f"{found['requests']} requests replayed: {told}"]
    for name, unit, form in (("measured", "s, measured", ".4f"), ("simulated", "s, simulated", ".4f")):
        lines += ["", summary_text(unit, found[name], form)]
    lines += ["", summary_text("error, percent", found["error_percent"], "+.2f")]
    lines.append("TTFT and E2E count from when the server's loop first saw the request, as its own stamps do.")
    return "\n".join(lines)


def read_server(folder: Path) -> LoggedServer:
    """What meta.json and config.json say.

    vLLM reports the KV blocks of all its data-parallel engines together.

    Raises:
        RecordingError: one can't be read, or model or GPU are not told, or can't be priced.
    """
    meta, instance = _object(folder / "meta.json"), _instance(_object(folder / "config.json"))
    asked, resolved = _part(meta, "engine_kwargs"), _part(meta, "resolved_config")
    scheduler, parallel = _part(resolved, "scheduler_config"), _part(resolved, "parallel_config")
    model, cache = _part(resolved, "model_config"), _part(meta, "kv_cache")

    def first(name: str, *places: Mapping[str, Any]) -> Any:
        return next((place[name] for place in places if place.get(name) is not None), None)

    if _size(first("pipeline_parallel_size", asked, parallel), 1) > 1:
        raise RecordingError(f"{folder} is of a server with pipeline stages, which a log's replay doesn't know")
    name = meta.get("model") or first("model", asked, model) or instance.get("model_name")
    gpu = _part(meta, "hardware").get("device_name") or instance.get("hardware")
    if not name or not gpu:
        raise RecordingError(
            f"{folder} doesn't tell the model, or the GPU: meta.json has them as model and device_name"
        )
    try:
        shape, card = shape_of(str(name)), card_of(str(gpu))
    except Refusal as refusal:
        raise RecordingError(f"{folder}: {name} on {gpu}: {refusal}") from None
    ranks = _size(first("data_parallel_size", asked, parallel), 1)
    weights = weights_of(str(name), first("dtype", asked, model), first("quantization", asked, model))
    kv_cache = str(first("kv_cache_dtype", asked) or _part(resolved, "cache_config").get("cache_dtype") or "auto")
    blocks = _size(cache.get("num_gpu_blocks"), 0)
    limits = {each: first(each, asked, scheduler, model) for each in ("max_num_seqs", "max_num_batched_tokens")}
    limits |= {"max_model_len": first("max_model_len", asked, model), "block_size": cache.get("block_size")}
    overlaps = scheduler.get("async_scheduling")
    return LoggedServer(
        shape=shape,
        card=card,
        version=str(meta.get("vllm_version", "")),
        tp=_size(first("tensor_parallel_size", asked, parallel) or instance.get("tp_size"), 1),
        ranks=ranks,
        expert_parallel=first("enable_expert_parallel", asked, parallel) is True,
        weight_dtype=weights,
        kv_dtype="fp8" if kv_cache.startswith("fp8") else "float16" if weights == "float16" else "bfloat16",
        kv_blocks=blocks // ranks or None,
        async_scheduling=overlaps if isinstance(overlaps, bool) else None,
        reserve_full_isl=scheduler.get("scheduler_reserve_full_isl") is True,
        prefix_caching=cache.get("enable_prefix_caching") is not False,
        sizes={each: size for each, value in limits.items() if (size := _size(value, 0))},
    )


def weights_of(model: str, dtype: Any, quantization: Any) -> str:
    """The dtype of the weights: as they are quantized, if the server says so or the checkpoint's name does."""
    told = f"{quantization or ''} {model}".lower()
    for word, weights in (("fp4", "fp4"), ("gpt-oss", "fp4"), ("fp8", "fp8"), ("awq", "int4"), ("gptq", "int4")):
        if word in told:
            return weights
    plain = str(dtype or "").removeprefix("torch.")
    return plain if plain in ("float16", "float32") else "bfloat16"


def _told(server: LoggedServer) -> dict[str, Any]:
    told = {"model": server.shape, "hardware": server.card, "vllm": server.version, "tp": server.tp}
    return {**told, "dp": server.ranks, "weights": server.weight_dtype, "kv_blocks": server.kv_blocks}


def _asked(summary: SummaryDict) -> SummaryDict:
    return {metric: {part: summary[metric][part] for part in ("mean", *PERCENTILES)} for metric in METRICS}


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise RecordingError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise RecordingError(f"{path} holds no JSON object")
    return content


def _part(whole: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = whole.get(name)
    return part if isinstance(part, dict) else {}


def _instance(config: Mapping[str, Any]) -> dict[str, Any]:
    """The first server in LLMServingSim's description of a machine; empty if there is none."""
    for node in config.get("nodes") or ():
        for instance in node.get("instances") or ():
            return dict(instance)
    return {}


def _size(value: Any, otherwise: int) -> int:
    return value if type(value) is int and value > 0 else otherwise
