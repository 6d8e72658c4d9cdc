"""`minillm simulate` and `minillm calibrate`. With `--json`, standard output is one JSON object."""

import contextlib
import enum
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from course.simulator.errors import PricingError, WorkloadError

if TYPE_CHECKING:  # `minillm --help` should not wait for NumPy
    from course.simulator.cluster.fleet import ClusterConfig
    from course.simulator.cost.profile import Profile
    from course.simulator.deployment import Deployment
    from minillm.observe.summary import SLO

Shape = Annotated[str, typer.Option(help="A shape such as llama-3.1-8b, a config.json or a model folder.")]
HardwareName = Annotated[str | None, typer.Option(help="A GPU such as h100-sxm, or a .json file with its peaks.")]
TensorParallel = Annotated[
    int | None, typer.Option("--tp", min=1, help="Tensor parallel degree; default: the meta.json's of a log, else 1.")
]
KVBlocks = Annotated[int | None, typer.Option(min=1, help="KV blocks; default: what the memory holds.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Requests that run at once; default 256.")]
Budget = Annotated[int | None, typer.Option(min=1, help="Token budget of a step; default 2048.")]
Window = Annotated[int | None, typer.Option(min=2, help="Longest prompt and output together; default: the model's.")]
SetHelp = "An EngineConfig field, e.g. sliding_window=4096; or null_block=true, as in vLLM's pool. May be repeated."
Set = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help=SetHelp)]
Dtype = Annotated[str, typer.Option(help="bfloat16, float16, float32, fp8, int8 or int4.")]
KVDtype = Annotated[str | None, typer.Option(help="Dtype of the KV cache; default: the weights'.")]
SpeculativeHelp = "Of speculation, e.g. method=synthetic, acceptance_rate=0.8, k=4; may be repeated."
Speculative = Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help=SpeculativeHelp)]
LoraHelp = "Adapters in use, e.g. adapters=32, rank=16; may be repeated."
LoraFields = Annotated[list[str] | None, typer.Option("--lora", metavar="FIELD=VALUE", help=LoraHelp)]
FleetHelp = "Of ClusterConfig, e.g. clients.timeout_s=10; may be repeated."
Fleet = Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help=FleetHelp)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Tokens = Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Of fixed traffic; default 1000 and 200.")]
Limit = Annotated[float | None, typer.Option(help="Service-level objective, seconds.")]
LOG_HELP = (
    "A log: JSON lines with input_toks, output_toks, queued_ts. A meta.json beside it fills in what is not given."
)
PROFILE_HELP = (
    "A file from `minillm calibrate`, or a hardware's name. With --hardware: its host and stack, on that hardware."
)
TRACE_HELP = (
    "Play a recorded trace (Azure's .csv or Mooncake's .jsonl), in place of --qps. With --plan and --qps: the trace's "
    "own requests at its own moments, all gaps made longer or shorter alike, so that --qps come on average; again when "
    "it ends."
)

SEARCH_HELP = "Plan: the cheapest over cards (--hardware A,B; else all with a price) and --tp (else 1, 2, 4, 8)."

ArrivalName = enum.StrEnum("ArrivalName", ["poisson", "gamma"])
Router = enum.StrEnum("Router", ["round_robin", "random", "least_outstanding", "prefix_aware"])
TrafficName = enum.StrEnum("TrafficName", ["fixed", "chat", "code", "rag", "agents", "tenants", "sessions"])

DEFAULT_REQUESTS = 1000
SIZES = {
    "kv_blocks": "num_kv_blocks",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
}
"""Options that are sizes of a server, and what `Deployment.of` calls them."""
SERVER = (*SIZES, "engine_fields", "tp", "weight_dtype", "kv_dtype")
"""Options of `calibrate` that only a log needs."""
MADE_UP = ("arrival", "cv", "traffic", "prompt_tokens", "output_tokens")
LIMITS = ("slo_ttft", "slo_tpot", "slo_e2e")


def simulate(
    context: typer.Context,
    model: Shape = "llama-3-70b",
    requests: Annotated[Path | None, typer.Option(help=LOG_HELP)] = None,
    profile: Annotated[str | None, typer.Option(help=PROFILE_HELP)] = None,
    hardware: HardwareName = None,
    typical: Annotated[bool, typer.Option("--typical", help="Typical constants, to compare hardware alone.")] = False,
    tp: TensorParallel = None,
    pp: Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages, of --tp accelerators each.")] = 1,
    kv_blocks: KVBlocks = None,
    max_num_seqs: Slots = None,
    max_num_batched_tokens: Budget = None,
    max_model_len: Window = None,
    engine_fields: Set = None,
    speculative: Speculative = None,
    lora: LoraFields = None,
    weight_dtype: Dtype = "bfloat16",
    kv_dtype: KVDtype = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Instead of the model's: 1 is multi-query.")] = None,
    expert_parallel: Annotated[bool, typer.Option("--expert-parallel", help="Whole experts on each GPU.")] = False,
    expert_skew: Annotated[float, typer.Option(help="Tokens of the busiest GPU's experts, in even shares.")] = 1.0,
    qps: Annotated[float | None, typer.Option(help="Requests per second, without a log.")] = None,
    arrival: Annotated[ArrivalName, typer.Option(help="How arrivals are spread.")] = ArrivalName.poisson,
    cv: Annotated[float | None, typer.Option(help="gamma: variation of the gaps, up to 15; default 1.")] = None,
    traffic: Annotated[TrafficName, typer.Option(help="chat, code: lengths as in Azure's traces.")] = TrafficName.fixed,
    prompt_tokens: Tokens = None,
    output_tokens: Tokens = None,
    num_requests: Annotated[int | None, typer.Option(min=1, help="Default 1000, or all of a trace.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    trace: Annotated[Path | None, typer.Option(help=TRACE_HELP)] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Engines behind a router.")] = 1,
    router: Annotated[Router, typer.Option(help="Which replica gets a request.")] = Router.least_outstanding,
    fleet: Fleet = None,
    slo_ttft: Limit = None,
    slo_tpot: Limit = None,
    slo_e2e: Limit = None,
    plan: Annotated[bool, typer.Option("--plan", help="How many replicas serve --qps within the limits?")] = False,
    search: Annotated[bool, typer.Option("--search", help=SEARCH_HELP)] = False,
    target: Annotated[float, typer.Option(help="Plan: share of requests that must meet all limits.")] = 0.99,
    headroom: Annotated[float, typer.Option(help="Plan: share of the knee to leave unused.")] = 0.0,
    price_per_hour: Annotated[float | None, typer.Option(help="Plan: of a replica; default: the catalogue's.")] = None,
    per_request: Annotated[bool, typer.Option("--per-request", help="A row for each request.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a log, a trace or made-up traffic on hardware that need not be here; or plan its capacity.

    --requests plays a log, --trace a trace, --qps made-up traffic; --plan finds the replicas for --qps, made up or
    like a --trace.
    """
    from course.simulator.capacity.plan import simulate_plan
    from course.simulator.capacity.search import DEGREES, search_plans
    from course.simulator.cluster.events import rare_collections
    from course.simulator.cost.lora import Lora
    from course.simulator.report import as_text, describe, latency_text, simulate_log, simulate_workload
    from course.simulator.workload.arrivals import find_arrivals
    from course.simulator.workload.kinds import find_traffic
    from course.simulator.workload.requests import made_up_workload
    from course.simulator.workload.traces import load_trace
    from minillm.observe.summary import stated_limits
    from minillm.policies.config import parse_fields

    check_options(context)
    slo = stated_limits(ttft=slo_ttft, tpot=slo_tpot, e2e=slo_e2e)
    start = time.perf_counter()

    def replica(profile: "Profile", tp: int | None) -> "Deployment":
        return deploy(
            model=model, profile=profile, tp=tp, pp=pp, weight_dtype=weight_dtype, kv_dtype=kv_dtype, kv_heads=kv_heads,
            expert_parallel=expert_parallel, expert_skew=expert_skew, lora=Lora(**parse_fields(lora, "--lora")),
            speculative=parse_fields(speculative, "--speculative") or None, log=requests, options=context.params,
        )  # fmt: skip

    with progress_bar() as progress, rare_collections():
        kind, num = find_traffic(traffic.value, prompt_tokens, output_tokens), num_requests or DEFAULT_REQUESTS
        config = cluster_config(fleet, replicas, router, seed)
        sheet: dict[str, Any] = {
            "headroom": headroom, "target": target, "config": config, "num_requests": num, "seed": seed,
            "arrivals": None if trace else lambda rate: find_arrivals(arrival.value, rate, cv), "progress": progress,
        }  # fmt: skip
        asked = kind if trace is None or not plan else load_trace(trace)
        if search:
            cards = hardware.split(",") if hardware else ()
            found = search_plans(
                lambda card, tp: replica(profile_for(None, card, typical), tp), asked, needed(slo), qps or 0.0,
                cards=cards, degrees=(tp,) if tp else DEGREES, **sheet,
            )  # fmt: skip
            print(json.dumps({"model": model, **found.to_dict()}) if as_json else found)
            return
        deployment = replica(profile_for(profile, hardware, typical), tp)
        if requests is not None:
            result = simulate_log(deployment, requests, per_request)
        elif plan:
            result = simulate_plan(
                deployment, asked, needed(slo), demand=qps or 0.0, price_per_hour=price_per_hour, **sheet
            )
        else:
            made_up = (kind, qps or 0.0, arrival.value, cv, num, seed)
            workload = load_trace(trace, num_requests) if trace else made_up_workload(*made_up)
            result = simulate_workload(deployment, workload, config, slo, per_request, progress)
    body = result.pop("text", None) or latency_text(result)
    report = {**describe(model, deployment), **result, "wall_s": round(time.perf_counter() - start, 3)}
    print(json.dumps(report) if as_json else as_text(report, body))


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """On standard error, if that is a terminal: what is simulated, and the share of its requests that have ended."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task, told = bar.add_task("simulating", total=None), 0.0

        def tell(words: str, share: float) -> None:
            nonlocal told
            if abs(share - told) >= 0.01:  # to draw costs more than to simulate
                told = share
                bar.update(task, description=words, total=1.0, completed=share)

        yield tell


def needed(slo: "SLO | None") -> "SLO":
    """Raises WorkloadError: there are no limits to plan for."""
    if slo is None:
        raise WorkloadError("--plan needs a limit to plan for: --slo-ttft, --slo-tpot or --slo-e2e, in seconds")
    return slo


def given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of the options that stand on the command line, as one writes them."""
    written = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    return [written[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"]


def check_options(context: typer.Context) -> None:
    """Raise WorkloadError or PricingError for options that don't go together."""
    is_log, is_trace, has_qps, is_plan = (bool(given(context, [name])) for name in ("requests", "trace", "qps", "plan"))
    if is_log + is_trace + (has_qps and not (is_plan and is_trace)) != 1:
        raise PricingError(
            "give one of these: a log of requests with --requests, or a rate of made-up ones with --qps, or a "
            "recorded trace with --trace. A first taste: --hardware h100-sxm --tp 4 --traffic chat --qps 2"
        )
    in_pools = any(field.startswith("disaggregation") for field in context.params["fleet"] or ())
    if is_plan and (not has_qps or (given(context, ["replicas"]) and not in_pools)):
        raise WorkloadError("--plan finds the number of replicas for a rate: give it --qps, and no --replicas")
    rules = (
        (not is_plan, ("target", "headroom", "price_per_hour", "search"), "these go with --plan"),
        (bool(given(context, ["search"])), ("price_per_hour", "profile"), "--search goes by the catalogue's prices"),
        (is_log, (*LIMITS, "fleet", "replicas"), "a log is played to one replica as it is"),
        (is_log, ("num_requests", "seed", "router"), "a log is played whole, to one replica"),
        (is_log or is_trace, MADE_UP, "a recording says what was asked, and when"),
        (is_plan, ("per_request",), "--plan plays many runs"),
    )
    for applies, names, why in rules:
        if applies and (unread := given(context, names)):
            raise WorkloadError(f"{why}: leave out {', '.join(unread)}")


def deploy(log: Path | None, options: dict[str, Any], **fields: Any) -> "Deployment":
    """One replica, with what is given of SIZES, else what the log's meta.json says. `--set` wins over all.

    Args:
        fields: further arguments of `Deployment.of`.
    """
    from course.simulator.calibration.requests_log import longest_request, read_server_facts
    from course.simulator.deployment import Deployment
    from minillm.policies.config import parse_fields

    fields = {name: value for name, value in fields.items() if value is not None}
    if log is not None:  # the server did serve the longest
        fields = {"max_model_len": longest_request(log), **read_server_facts(log), **fields}
    fields |= {field: options[option] for option, field in SIZES.items() if options[option] is not None}
    given = parse_fields(options["engine_fields"], "--set")
    null_block = given.pop("null_block", fields.pop("null_block", False))
    if not isinstance(null_block, bool):
        raise PricingError(f"--set null_block wants true or false, not {null_block!r}")
    if own := given.keys() & inspect.signature(Deployment.of).parameters.keys():
        raise PricingError(f"--set {min(own)}: that has an option of its own, if it can be set")
    return Deployment.of(**{**fields, **given, "null_block": null_block})


def profile_for(profile: str | None, hardware: str | None, typical: bool) -> "Profile":
    """A profile by its file or its hardware; with both, moved to that. Raises PricingError: neither was given."""
    from course.simulator.cost.hardware import find_hardware
    from course.simulator.cost.profile import find_profile, moved, typical_profile

    if (on := profile or hardware) is None:
        raise PricingError("say what it runs or ran on: --hardware NAME, such as h100-sxm")
    found = find_profile(on)
    if profile and hardware:
        found = moved(found, find_hardware(hardware))
    return typical_profile(found.hardware) if typical else found


def cluster_config(fleet: list[str] | None, replicas: int, router: Router, seed: int) -> "ClusterConfig":
    """The fleet: `--replicas` and `--router`, and whatever `--fleet` sets, as in `clients.timeout_s=10`.

    Raises:
        WorkloadError: no such field, or a value it cannot have.
    """
    from course.simulator.cluster.fleet import ClusterConfig
    from minillm.policies.config import parse_fields

    policy = {"policy": router.value}
    fields: dict[str, Any] = {"replicas": replicas, "router": policy, "seed": seed, "sample_every_s": None}
    for name, value in parse_fields(fleet, "--fleet").items():
        parts = isinstance(value, dict)
        if parts and not isinstance(fields.get(name, {}), dict):
            raise WorkloadError(f"--fleet {name}.{next(iter(value))}: {name} has no fields")
        fields[name] = {**fields.get(name, {}), **value} if parts else value
    return ClusterConfig(**fields)


def calibrate(
    context: typer.Context,
    model: Shape = "smollm2-135m",
    from_requests: Annotated[Path | None, typer.Option(help=LOG_HELP + " Needs all four time stamps.")] = None,
    hardware: HardwareName = None,
    tp: TensorParallel = None,
    kv_blocks: KVBlocks = None,
    max_num_seqs: Slots = None,
    max_num_batched_tokens: Budget = None,
    max_model_len: Window = None,
    engine_fields: Set = None,
    weight_dtype: Dtype = "bfloat16",
    kv_dtype: KVDtype = None,
    quick: Annotated[bool, typer.Option("--quick", help="This machine: a few steps; tries it out.")] = False,
    validate: Annotated[bool, typer.Option("--validate", help="This machine: also compare on served traffic.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the profile here.")] = None,
    as_json: Json = False,
) -> None:
    """Fit the simulator's constants: to this machine, or to a log of a real server.

    Without a log, the real engine runs a designed set of batches here, and the profile `this-machine` is kept in
    the cache folder. Run it alone: two busy programs on one machine measure each other.
    """
    from course.simulator.cost.profile import this_machine_path

    report: dict[str, Any] = {}
    if from_requests is not None:
        from course.simulator.calibration.fit_log import calibrate_from_requests

        refuse(context, "--from-requests", "quick", "validate")
        server = deploy(
            model=model, profile=profile_for(None, hardware, typical=True), tp=tp, weight_dtype=weight_dtype,
            kv_dtype=kv_dtype, log=from_requests, options=context.params,
        )  # fmt: skip
        fitted, report = calibrate_from_requests(from_requests, server, model)
    else:
        refuse(context, "measuring this machine", *SERVER, "hardware")
        from course.simulator.calibration.measure import calibrate_this_machine

        fitted = calibrate_this_machine(model, quick=quick, with_traffic=validate)
        out = out or this_machine_path()
    if out is not None:
        fitted.write(out)
    told = {"constants": fitted.constants.model_dump(), "provenance": fitted.provenance}
    if as_json:
        where = {"profile": None if out is None else str(out), "hardware": fitted.hardware.name}
        print(json.dumps({**where, **told, **report}))
    else:
        print(json.dumps(told, indent=2))
        print(f"profile: {out}" if out else "not kept: name a file with --out", file=sys.stderr)


def refuse(context: typer.Context, what: str, *unread: str) -> None:
    """Raise PricingError if an option is given that `what` does not read."""
    if options := given(context, unread):
        raise PricingError(f"{what} does not read {', '.join(options)}: leave out what has no effect")
