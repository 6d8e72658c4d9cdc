"""`minillm simulate`. With `--json`, standard output is one JSON object."""

import enum
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.core.errors import PricingError, WorkloadError
from minillm.core.known import known

Shape = Annotated[str, typer.Option(help="A shape such as llama-3.1-8b, a config.json or a model folder.")]
HardwareName = Annotated[str | None, typer.Option(help="A GPU such as h100-sxm, or a .json file with its peaks.")]
TensorParallel = Annotated[int, typer.Option("--tp", min=1, help="Tensor parallel degree.")]
KVBlocks = Annotated[int | None, typer.Option(min=1, help="KV blocks; default: what the memory holds.")]
BlockSize = Annotated[int | None, typer.Option(min=1, help="Tokens per KV block; default 16.")]
Seats = Annotated[int | None, typer.Option(min=1, help="Requests that run at once; default 256.")]
Budget = Annotated[int | None, typer.Option(min=1, help="Token budget of a step; default 2048.")]
Window = Annotated[int | None, typer.Option(min=2, help="Longest prompt and output together; default: the model's.")]
ReserveFullISL = Annotated[
    bool | None,
    typer.Option(help="Admit a prompt only if all of it has free blocks, as vLLM; default: as the log says, or no."),
]
NullBlock = Annotated[
    bool | None,
    typer.Option(help="One of the KV blocks is nobody's, as in vLLM's own count; default: as the log says, or no."),
]
Dtype = Annotated[str, typer.Option(help="bfloat16, float16, float32, fp8, int8 or int4.")]
Speculative = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=VALUE",
        help="Of SpeculativeConfig, e.g. method=synthetic, acceptance_rate=0.8, k=4; may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
LOG_HELP = (
    "A log: JSON lines with input_toks, output_toks, queued_ts. A meta.json beside it fills in what is not given."
)


def engine_fields(
    log: Path | None,
    kv_blocks: int | None,
    block_size: int | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    max_model_len: int | None,
    reserve_full_isl: bool | None,
    null_block: bool | None,
) -> dict[str, Any]:
    """The sizes and habits of a server, as `Deployment.of` takes them, that were given, or that the log's meta.json
    states."""
    from minillm.simulate.calibration.requests_log import longest_request, read_server_facts

    given = {
        "num_kv_blocks": kv_blocks,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "scheduler_reserve_full_isl": reserve_full_isl,
        "null_block": null_block,
    }
    if log is not None:
        facts = asdict(read_server_facts(log))
        given = {name: facts.get(name) if value is None else value for name, value in given.items()}
        if given["max_model_len"] is None:
            given["max_model_len"] = longest_request(log)  # the server did serve it
    return {name: value for name, value in given.items() if value is not None}


# The engine imports torch, which takes seconds; `minillm --help` should not wait for it.
if TYPE_CHECKING:
    from minillm.simulate.cluster.fleet import ClusterConfig
    from minillm.simulate.cost.deployment import Deployment


class Arrival(enum.StrEnum):
    """Kinds of arrivals, by the names of the command line."""

    POISSON = "poisson"
    GAMMA = "gamma"


class Router(enum.StrEnum):
    """Routers, by the names of the command line."""

    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    LEAST_OUTSTANDING = "least_outstanding"
    PREFIX_AWARE = "prefix_aware"


class TrafficName(enum.StrEnum):
    """Kinds of traffic, by the names of the command line."""

    FIXED = "fixed"
    CHAT = "chat"
    CODE = "code"
    RAG = "rag"
    AGENTS = "agents"
    TENANTS = "tenants"
    SESSIONS = "sessions"


class TraceFormat(enum.StrEnum):
    """Formats of traces."""

    AZURE = "azure"
    MOONCAKE = "mooncake"


DEFAULT_REQUESTS = 1000


def simulate(
    model: Shape,
    requests: Annotated[Path | None, typer.Option(help=LOG_HELP)] = None,
    profile: Annotated[str | None, typer.Option(help="A file from `minillm calibrate`, or a hardware's name.")] = None,
    hardware: HardwareName = None,
    roofline: Annotated[bool, typer.Option("--roofline", help="Paper peaks and no overheads, to compare.")] = False,
    typical: Annotated[
        bool, typer.Option("--typical", help="Typical constants, not fitted ones: to compare hardware with hardware.")
    ] = False,
    tp: TensorParallel = 1,
    kv_blocks: KVBlocks = None,
    block_size: BlockSize = None,
    max_num_seqs: Seats = None,
    max_num_batched_tokens: Budget = None,
    max_model_len: Window = None,
    reserve_full_isl: ReserveFullISL = None,
    null_block: NullBlock = None,
    sliding_window: Annotated[
        int | None, typer.Option(min=1, help="A token sees so many, itself included; blocks behind them are freed.")
    ] = None,
    attention_sinks: Annotated[
        int, typer.Option(min=0, help="--sliding-window: so many of the first tokens stay in sight.")
    ] = 0,
    prefix_caching: Annotated[bool, typer.Option(help="Reuse KV blocks of an equal prefix.")] = True,
    speculative: Speculative = None,
    weight_dtype: Dtype = "bfloat16",
    kv_dtype: Annotated[str | None, typer.Option(help="Of the KV cache; default: as the weights.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="In place of the model's: 1 is multi-query.")] = None,
    qps: Annotated[float | None, typer.Option(help="Requests per second, without a log.")] = None,
    arrival: Annotated[Arrival, typer.Option(help="How they are spread.")] = Arrival.POISSON,
    cv: Annotated[
        float | None, typer.Option(help="gamma: standard deviation of the gaps over their mean, up to 15; default 1.")
    ] = None,
    traffic: Annotated[TrafficName, typer.Option(help="What they ask; chat and code: as Azure's.")] = TrafficName.FIXED,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Of every fixed prompt; default 1000.")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Of every fixed answer; default 200.")
    ] = None,
    num_requests: Annotated[
        int | None, typer.Option(min=1, help="How many; default 1000, or all of a trace. With --plan: of each run.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Play a recorded trace, in place of --qps. With --plan and --qps: the trace's own requests at its own "
            "moments, all gaps made longer or shorter alike, so that --qps come on average; again when it ends."
        ),
    ] = None,
    trace_format: Annotated[TraceFormat | None, typer.Option(help="Default: .csv is azure, .jsonl mooncake.")] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Engines behind a router.")] = 1,
    router: Annotated[Router, typer.Option(help="Which replica gets a request.")] = Router.LEAST_OUTSTANDING,
    fleet: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Of ClusterConfig, e.g. clients.timeout_s=10; may be repeated."),
    ] = None,
    slo_ttft: Annotated[float | None, typer.Option(help="Limit on TTFT, seconds.")] = None,
    slo_tpot: Annotated[float | None, typer.Option(help="Limit on TPOT, seconds.")] = None,
    slo_e2e: Annotated[float | None, typer.Option(help="Limit on the whole request, seconds.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="How many replicas serve --qps within the limits?")] = False,
    target: Annotated[float, typer.Option(help="Plan: share of requests that must meet all limits.")] = 0.99,
    headroom: Annotated[float, typer.Option(help="Plan: share of the knee to leave unused.")] = 0.0,
    price_per_hour: Annotated[
        float | None, typer.Option(help="Plan: of a replica; default: the catalogue's price of its accelerators.")
    ] = None,
    per_request: Annotated[bool, typer.Option("--per-request", help="A row for each request.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a log, a trace or made-up traffic on hardware that need not be here; or plan its capacity.

    --requests plays a log, --trace a trace, --qps made-up traffic; --plan finds the replicas for --qps, made up or
    like a --trace.
    """
    from minillm.observe.summary import stated_limits
    from minillm.policies.config import parse_fields
    from minillm.simulate.calibration.replay import simulate_log
    from minillm.simulate.capacity.plan import simulate_plan
    from minillm.simulate.cluster.events import rare_collections
    from minillm.simulate.progress import Progress
    from minillm.simulate.report import as_text, describe, latency_text, simulate_workload
    from minillm.simulate.workload.arrivals import find_arrivals
    from minillm.simulate.workload.kinds import find_traffic
    from minillm.simulate.workload.requests import made_up_workload
    from minillm.simulate.workload.traces import load_trace

    only_one_source(requests, trace, None if plan and trace else qps)
    slo = stated_limits(ttft=slo_ttft, tpot=slo_tpot, e2e=slo_e2e)
    if plan and (qps is None or replicas != 1):
        raise WorkloadError("--plan finds the number of replicas for a rate: give it --qps, and no --replicas")
    if not plan and (target, headroom, price_per_hour) != (0.99, 0.0, None):
        raise WorkloadError("--target, --headroom and --price-per-hour go with --plan")
    if requests is not None and (slo is not None or fleet or replicas != 1):
        raise WorkloadError("a log is played to one replica as it is: --slo-..., --fleet and --replicas go with --qps")
    if requests is not None and (num_requests is not None or seed != 0 or router is not Router.LEAST_OUTSTANDING):
        raise WorkloadError("a log is played whole, to one replica: --num-requests, --seed and --router go with --qps")
    if trace_format is not None and trace is None:
        raise WorkloadError("--trace-format goes with --trace")
    if profile is not None and hardware is not None:
        raise PricingError("a profile says what hardware it is of: give --profile or --hardware, not both")
    made_up = (arrival, cv, traffic, prompt_tokens, output_tokens)
    if (qps is None or trace is not None) and made_up != (Arrival.POISSON, None, TrafficName.FIXED, None, None):
        raise WorkloadError(
            "a recording says what was asked, and when: --arrival, --cv, --traffic, --...-tokens go with --qps"
        )
    if plan and per_request:
        raise WorkloadError("--plan plays many runs: --per-request goes without it")
    speculation = parse_fields(speculative, "--speculative") or None
    sizes = engine_fields(
        requests, kv_blocks, block_size, max_num_seqs, max_num_batched_tokens, max_model_len, reserve_full_isl,
        null_block,
    )  # fmt: skip
    deployment = deploy(
        model, profile or hardware, roofline, typical, tp=tp, weight_dtype=weight_dtype, kv_dtype=kv_dtype,
        kv_heads=kv_heads, enable_prefix_caching=prefix_caching, speculative=speculation,
        sliding_window=sliding_window, attention_sinks=attention_sinks, **sizes,
    )  # fmt: skip
    start = time.perf_counter()
    with Progress() as progress, rare_collections():
        if requests is not None:
            result = simulate_log(deployment, requests, per_request, progress)
        else:
            config = cluster_config(fleet, replicas, router, seed)
            kind = find_traffic(traffic.value, prompt_tokens, output_tokens)
            if plan:
                made_up_arrivals = None if trace else lambda rate: find_arrivals(arrival.value, rate, cv)
                result, body = simulate_plan(
                    deployment, load_trace(trace, trace_format) if trace else kind, slo, made_up_arrivals,
                    demand=known(qps), target=target, headroom=headroom, price_per_hour=price_per_hour, config=config,
                    seed=seed, num_requests=num_requests or DEFAULT_REQUESTS, progress=progress,
                )  # fmt: skip
            else:
                workload = (
                    load_trace(trace, trace_format, num_requests) if trace is not None else
                    made_up_workload(kind, qps=known(qps), arrival=arrival.value, cv=cv, seed=seed,
                                     num_requests=num_requests or DEFAULT_REQUESTS)
                )  # fmt: skip
                result = simulate_workload(deployment, workload, config, slo, per_request, progress)
    report = {**describe(model, deployment), **result, "wall_s": round(time.perf_counter() - start, 3)}
    print(json.dumps(report) if as_json else as_text(report, body if plan else latency_text(result)))


def only_one_source(requests: Path | None, trace: Path | None, qps: float | None) -> None:
    """Raise PricingError unless exactly one of them is given."""
    if sum(source is not None for source in (requests, trace, qps)) != 1:
        raise PricingError(
            "give one of these: a log of requests with --requests, or a rate of made-up ones with --qps, or a "
            "recorded trace with --trace"
        )


def deploy(model: str, on: str | None, roofline: bool, typical: bool, **fields: Any) -> "Deployment":
    """One replica. Raises PricingError: nobody said what it runs on, or both --roofline and --typical."""
    from minillm.simulate.cost.deployment import Deployment
    from minillm.simulate.cost.profile import find_profile, roofline_profile, typical_profile

    if on is None:
        raise PricingError("say what it runs on: --profile PROFILE.json, or --hardware NAME (such as h100-sxm)")
    if roofline and typical:
        raise PricingError("--roofline and --typical are two ways to price steps: choose one")
    profile = find_profile(on)
    if roofline or typical:
        profile = (roofline_profile if roofline else typical_profile)(profile.hardware)
    return Deployment.of(model, profile, **fields)


def cluster_config(fleet: list[str] | None, replicas: int, router: Router, seed: int) -> "ClusterConfig":
    """The fleet: `--replicas` and `--router`, and whatever `--fleet` sets, as in `clients.timeout_s=10`.

    Raises:
        WorkloadError: no such field, or a value it cannot have.
    """
    from minillm.policies.config import parse_fields
    from minillm.simulate.cluster.fleet import ClusterConfig

    fields: dict[str, Any] = {
        "replicas": replicas, "router": {"policy": router.value}, "seed": seed, "sample_every_s": None
    }  # fmt: skip
    for name, value in parse_fields(fleet, "--fleet").items():
        parts = isinstance(value, dict)
        if parts and not isinstance(fields.get(name, {}), dict):
            raise WorkloadError(f"--fleet {name}.{next(iter(value))}: {name} has no fields")
        fields[name] = {**fields.get(name, {}), **value} if parts else value
    return ClusterConfig(**fields)
