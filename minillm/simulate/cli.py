"""`minillm simulate` and `minillm calibrate`. With `--json`, standard output is one JSON object."""

import enum
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.errors import PricingError

# The engine imports torch, which takes seconds; `minillm --help` should not wait for it.
if TYPE_CHECKING:
    from minillm.simulate.deployment import Deployment
    from minillm.simulate.profile import Profile


class Arrival(enum.StrEnum):
    POISSON = "poisson"
    GAMMA = "gamma"


class Router(enum.StrEnum):
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    LEAST_OUTSTANDING = "least_outstanding"
    PREFIX_AWARE = "prefix_aware"


Shape = Annotated[str, typer.Option(help="A shape such as llama-3.1-8b, a config.json or a model folder.")]
HardwareName = Annotated[str | None, typer.Option(help="A GPU such as h100-sxm, or a .json file with its peaks.")]
TensorParallel = Annotated[int, typer.Option("--tp", min=1, help="Tensor parallel degree.")]
KVBlocks = Annotated[int | None, typer.Option(min=1, help="KV blocks; default: what the memory holds.")]
BlockSize = Annotated[int | None, typer.Option(min=1, help="Tokens per KV block; default 16.")]
Seats = Annotated[int | None, typer.Option(min=1, help="Requests that run at once; default 256.")]
Budget = Annotated[int | None, typer.Option(min=1, help="Token budget of a step; default 2048.")]
Window = Annotated[int | None, typer.Option(min=2, help="Longest prompt and output together; default: the model's.")]
Dtype = Annotated[str, typer.Option(help="bfloat16, float16, float32, fp8, int8 or int4.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
LOG_HELP = (
    "A log: JSON lines with input_toks, output_toks, queued_ts. A meta.json beside it fills in what is not given."
)


def simulate(
    model: Shape,
    requests: Annotated[Path | None, typer.Option(help=LOG_HELP)] = None,
    profile: Annotated[str | None, typer.Option(help="A file from `minillm calibrate`, or a hardware's name.")] = None,
    hardware: HardwareName = None,
    roofline: Annotated[bool, typer.Option("--roofline", help="Paper peaks and no overheads, to compare.")] = False,
    tp: TensorParallel = 1,
    kv_blocks: KVBlocks = None,
    block_size: BlockSize = None,
    max_num_seqs: Seats = None,
    max_num_batched_tokens: Budget = None,
    max_model_len: Window = None,
    prefix_caching: Annotated[bool, typer.Option(help="Reuse KV blocks of an equal prefix.")] = True,
    weight_dtype: Dtype = "bfloat16",
    kv_dtype: Annotated[str | None, typer.Option(help="Of the KV cache; default: as the weights.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="In place of the model's: 1 is multi-query.")] = None,
    qps: Annotated[float | None, typer.Option(help="Requests per second, without a log.")] = None,
    arrival: Annotated[Arrival, typer.Option(help="How they are spread.")] = Arrival.POISSON,
    cv: Annotated[float, typer.Option(help="gamma: standard deviation of the gaps over their mean.")] = 1.0,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of every prompt.")] = 1000,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of every answer.")] = 200,
    num_requests: Annotated[int, typer.Option(min=1, help="How many.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    replicas: Annotated[int, typer.Option(min=1, help="Engines behind a router.")] = 1,
    router: Annotated[Router, typer.Option(help="Which replica gets a request.")] = Router.LEAST_OUTSTANDING,
    per_request: Annotated[bool, typer.Option("--per-request", help="A row for each request.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a log's requests, or made-up traffic, on hardware that need not be here."""
    from minillm.simulate.deployment import Deployment
    from minillm.simulate.profile import find_profile, roofline_profile

    if (requests is None) == (qps is None):
        raise PricingError("give a log of requests with --requests, or a rate of made-up ones with --qps")
    if profile is None and hardware is None:
        raise PricingError("say what it runs on: --profile PROFILE.json, or --hardware NAME (such as h100-sxm)")
    chosen = find_profile(profile or hardware)
    chosen = roofline_profile(chosen.hardware) if roofline else chosen
    fields = engine_fields(requests, kv_blocks, block_size, max_num_seqs, max_num_batched_tokens, max_model_len)
    deployment = Deployment.of(
        model, chosen, tp=tp, weight_dtype=weight_dtype, kv_dtype=kv_dtype, kv_heads=kv_heads,
        enable_prefix_caching=prefix_caching, **fields,
    )  # fmt: skip
    start = time.perf_counter()
    if requests is not None:
        from minillm.simulate.log_report import simulate_log

        result = simulate_log(deployment, requests, per_request)
    else:
        from minillm.simulate.fleet_report import simulate_traffic

        result = simulate_traffic(
            deployment, qps=qps, arrival=arrival.value, cv=cv, prompt_tokens=prompt_tokens,
            output_tokens=output_tokens, num_requests=num_requests, seed=seed, replicas=replicas,
            router=router.value, per_request=per_request,
        )  # fmt: skip
    report = {**describe(model, deployment), **result, "wall_s": round(time.perf_counter() - start, 3)}
    if as_json:
        print(json.dumps(report))
    else:
        print(as_text(report))


def calibrate(
    model: Shape = "smollm2-135m",
    from_requests: Annotated[Path | None, typer.Option(help=LOG_HELP + " Needs all four time stamps.")] = None,
    from_steps: Annotated[Path | None, typer.Option(help="A table of step times in Splitwise's format (CSV).")] = None,
    link_from: Annotated[Path | None, typer.Option(help="A log with --tp 2 or more: fits only the link.")] = None,
    profile: Annotated[str | None, typer.Option(help="With --link-from: where all other constants are from.")] = None,
    hardware: HardwareName = None,
    tp: TensorParallel = 1,
    kv_blocks: KVBlocks = None,
    block_size: BlockSize = None,
    max_num_seqs: Seats = None,
    max_num_batched_tokens: Budget = None,
    max_model_len: Window = None,
    weight_dtype: Dtype = "bfloat16",
    kv_dtype: Annotated[str | None, typer.Option(help="Of the KV cache; default: as the weights.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="This machine: a few steps; tries it, measures little.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the profile here.")] = None,
    as_json: Json = False,
) -> None:
    """Fit the simulator's constants: to this machine, or to a log of a real server.

    Without a log, the real engine runs a designed set of batches here, and the profile `this-machine` is kept in
    the cache folder. Run it alone: two busy programs on one machine measure each other.
    """
    if sum(source is not None for source in (from_requests, from_steps)) > 1:
        raise PricingError("give one of --from-requests and --from-steps")
    sizes = (kv_blocks, block_size, max_num_seqs, max_num_batched_tokens, max_model_len)
    if from_steps is not None:
        from minillm.simulate.calibrate import calibrate_from_steps

        fitted = calibrate_from_steps(from_steps, model, needed_hardware(hardware))
        report: dict[str, Any] = {}
    elif from_requests is not None or link_from is not None:
        fitted, report = fit_logs(
            from_requests, link_from, model, profile, hardware, tp, sizes, weight_dtype, kv_dtype, out
        )
    else:
        from minillm.simulate.measure import calibrate_this_machine
        from minillm.simulate.profile import this_machine_path

        fitted, report = calibrate_this_machine(model, quick=quick), {}
        out = out or this_machine_path()
    if out is not None:
        fitted.write(out)
    report = {
        "profile": None if out is None else str(out),
        "hardware": fitted.hardware.name,
        "constants": asdict(fitted.constants),
        "provenance": fitted.provenance,
        **report,
    }
    if as_json:
        print(json.dumps(report))
    else:
        print(json.dumps({key: report[key] for key in ("constants", "provenance")}, indent=2))
        print(f"profile: {out}" if out else "not kept: name a file with --out", file=sys.stderr)


def fit_logs(
    from_requests: Path | None,
    link_from: Path | None,
    model: str,
    profile: str | None,
    hardware: str | None,
    tp: int,
    sizes: tuple[int | None, ...],
    weight_dtype: str,
    kv_dtype: str | None,
    out: Path | None,
) -> "tuple[Profile, dict[str, Any]]":
    """Fit to one log, or to one for everything but the link and one for the link."""
    from minillm.simulate.calibrate import calibrate_from_requests, starting_profile
    from minillm.simulate.deployment import Deployment
    from minillm.simulate.fit_requests import LINK_CONSTANTS
    from minillm.simulate.profile import Profile, find_profile

    def deploy(base: Profile, log: Path, degree: int) -> Deployment:
        fields = engine_fields(log, *sizes)
        return Deployment.of(model, base, tp=degree, weight_dtype=weight_dtype, kv_dtype=kv_dtype, **fields)

    reports = {}
    if from_requests is not None:
        base = starting_profile(needed_hardware(hardware))
        first = calibrate_from_requests(from_requests, deploy(base, from_requests, 1 if link_from else tp), model)
        fitted, reports = first.profile, {"summary": first.simulated, "measured": first.measured}
        reports["error_percent"] = first.error_percent
    elif profile is not None:
        fitted = find_profile(profile)
    elif out is not None and out.is_file():
        fitted = Profile.read(out)
    else:
        fitted = find_profile(needed_hardware(hardware).name)
    if link_from is not None:
        link = calibrate_from_requests(link_from, deploy(fitted, link_from, tp), model, LINK_CONSTANTS)
        fitted, reports = link.profile, {"summary": link.simulated, "measured": link.measured}
        reports["error_percent"] = link.error_percent
    return fitted, reports


def needed_hardware(name: str | None) -> Any:
    """The hardware of that name. Raises PricingError: none was given."""
    from minillm.simulate.hardware import find_hardware

    if name is None:
        raise PricingError("say what the log was recorded on: --hardware NAME (such as h100-sxm)")
    return find_hardware(name)


def engine_fields(
    log: Path | None,
    kv_blocks: int | None,
    block_size: int | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    max_model_len: int | None,
) -> dict[str, int]:
    """The fields of EngineConfig that were given, or that the log's meta.json states."""
    from minillm.simulate.requests_log import longest_request, read_server_facts

    given = {
        "num_kv_blocks": kv_blocks,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
    }
    if log is not None:
        facts = asdict(read_server_facts(log))
        given = {name: facts.get(name) if value is None else value for name, value in given.items()}
        if given["max_model_len"] is None:
            given["max_model_len"] = longest_request(log)  # the server did serve it
    return {name: value for name, value in given.items() if value is not None}


def describe(model: str, deployment: "Deployment") -> dict[str, Any]:
    """What was simulated, and on whose word."""
    profile = deployment.profile
    return {
        "model": model,
        "hardware": profile.hardware.name,
        "tp": deployment.placement.tp,
        "weight_dtype": deployment.placement.weight_dtype,
        "kv_dtype": deployment.placement.kv_dtype,
        "kv_blocks": deployment.num_kv_blocks,
        "max_num_seqs": deployment.config.max_num_seqs,
        "max_num_batched_tokens": deployment.config.max_num_batched_tokens,
        "constants": asdict(profile.constants),
        "provenance": profile.provenance,
    }


def as_text(report: dict[str, Any]) -> str:
    """A table for people, with the profile's own error under it."""
    lines = [
        f"{report['model']} on {report['tp']} x {report['hardware']}, {report['kv_blocks']} KV blocks",
        f"{'seconds':<10}" + "".join(f"{part:>12}" for part in ("mean", "p50", "p90", "p99")),
    ]
    for name, spread in report["summary"].items():
        cells = ("-" if value is None else f"{value:.4f}" for value in spread.values())
        lines.append(f"{name.removesuffix('_s'):<10}" + "".join(f"{cell:>12}" for cell in cells))
    lines.append("  ".join(f"{name} {value:.2f}" for name, value in report["throughput"].items()))
    if "error_percent" in report:
        lines.append("error against the log, percent:")
        for name, errors in report["error_percent"].items():
            cells = ("-" if value is None else f"{value:+.2f}" for value in errors.values())
            lines.append(f"{name.removesuffix('_s'):<10}" + "".join(f"{cell:>12}" for cell in cells))
    lines.append(f"constants: {report['provenance'].get('source', 'unknown')}")
    errors = {name: value for name, value in report["provenance"].items() if "error" in name}
    lines.append(f"their error: {json.dumps(errors) if errors else 'not known'}")
    lines.append(f"{report['virtual_s']:.1f} s simulated in {report['wall_s']:.1f} s")
    return "\n".join(lines)
