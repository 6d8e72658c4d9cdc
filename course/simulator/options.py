"""Options of `minillm simulate` and `minillm calibrate`, in groups, and what each group stands for.

A group is a dataclass whose fields typer reads as options (`minillm.bench.options.with_options`).
"""

import enum
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from course.simulator.errors import PricingError, WorkloadError
from minillm.core.errors import ConfigError

if TYPE_CHECKING:  # `minillm --help` should not wait for NumPy
    from course.simulator.cluster.fleet import ClusterConfig
    from course.simulator.cost.profile import Profile
    from course.simulator.deployment import Deployment
    from course.simulator.workload.arrivals import Arrivals
    from course.simulator.workload.requests import Traffic, Workload
    from course.summary import SLO

ArrivalName = enum.StrEnum("ArrivalName", ["poisson", "gamma"])
Router = enum.StrEnum("Router", ["round_robin", "random", "least_outstanding", "prefix_aware"])
TrafficName = enum.StrEnum("TrafficName", ["fixed", "chat", "code", "rag", "agents", "tenants", "sessions"])
DEFAULT_REQUESTS = 1000

LOG_HELP = (
    "A log: JSON lines with input_toks, output_toks, queued_ts. A meta.json beside it fills in what is not given."
)
BENCH_HELP = (
    "A record of `minillm bench decode`, `prefill` or `throughput` on a GPU (--out), or of `make gpu-check`. Steps are "
    "fitted to, throughput is checked. May be repeated."
)
PROFILE_HELP = (
    "A file from `minillm calibrate`, or a hardware's name. With --hardware: its host and stack, on that hardware."
)
TRACE_HELP = (
    "Play a recorded trace (Azure's .csv or Mooncake's .jsonl), in place of --qps. With --plan and --qps: the trace's "
    "requests with its gaps scaled so that --qps arrive on average; it repeats when it ends."
)
SET_HELP = "An EngineConfig field, e.g. sliding_window=4096; or null_block=true, as in vLLM's pool. May be repeated."
SPECULATIVE_HELP = "A speculation field, e.g. method=synthetic, acceptance_rate=0.8, k=4; may be repeated."
FLEET_HELP = "A ClusterConfig field, e.g. clients.timeout_s=10; may be repeated."
LORA_HELP = "Adapters in use, e.g. adapters=32, rank=16; may be repeated."
SEARCH_HELP = "Plan: the cheapest over cards (--hardware A,B; else all with a price) and --tp (else 1, 2, 4, 8)."

Fields = list[str] | None
Model = Annotated[str, typer.Option(help="A shape such as llama-3.1-8b, a config.json or a model folder.")]
HardwareName = Annotated[str | None, typer.Option(help="A GPU such as h100-sxm, or a .json file with its peaks.")]
TensorParallel = Annotated[
    int | None, typer.Option("--tp", min=1, help="Tensor parallel degree; default: the meta.json's of a log, else 1.")
]
KVBlocks = Annotated[int | None, typer.Option(min=1, help="KV blocks; default: what the memory holds.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Requests that run at once; default 256.")]
Budget = Annotated[int | None, typer.Option(min=1, help="Token budget of a step; default 2048.")]
Window = Annotated[int | None, typer.Option(min=2, help="Longest prompt and output together; default: the model's.")]
LoraFields = Annotated[Fields, typer.Option("--lora", metavar="FIELD=VALUE", help=LORA_HELP)]
FleetFields = Annotated[Fields, typer.Option(metavar="FIELD=VALUE", help=FLEET_HELP)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Tokens = Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Of fixed traffic; default 1000 and 200.")]
Limit = Annotated[float | None, typer.Option(help="Service-level objective, seconds.")]


@dataclass(frozen=True)
class ServerOptions:
    """A server: a model on some accelerators, and its sizes."""

    model: Model = "llama-3-70b"
    hardware: HardwareName = None
    tp: TensorParallel = None
    kv_blocks: KVBlocks = None
    max_num_seqs: Slots = None
    max_num_batched_tokens: Budget = None
    max_model_len: Window = None
    engine_fields: Annotated[Fields, typer.Option("--set", metavar="FIELD=VALUE", help=SET_HELP)] = None
    weight_dtype: Annotated[str, typer.Option(help="bfloat16, float16, float32, fp8, int8, int4 or fp4.")] = "bfloat16"
    kv_dtype: Annotated[
        str | None,
        typer.Option(help="Dtype of the KV cache; default: the weights', or bfloat16 if those are quantized."),
    ] = None

    def stated(self) -> dict[str, Any]:
        """What was given, as arguments of `Deployment.of`; but for --set and the hardware."""
        given = {
            "model": self.model,
            "tp": self.tp,
            "weight_dtype": self.weight_dtype,
            "kv_dtype": self.kv_dtype,
            "num_kv_blocks": self.kv_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
        }
        return {name: value for name, value in given.items() if value is not None}

    def deploy(self, profile: "Profile", log: Path | None = None, **more: Any) -> "Deployment":
        """One replica. What isn't given is as the log's meta.json says; `--set` wins over all.

        Args:
            more: in place of what was given.
        """
        from course.simulator.calibration.requests_log import check_window, longest_request, read_server_facts
        from course.simulator.deployment import Deployment
        from minillm.policies.config import parse_fields

        fields = {**self.stated(), **more}
        facts = {} if log is None else read_server_facts(log)
        if log is not None:  # the pool that a log's server had may be smaller than the model's window
            fields = {"max_model_len": longest_request(log), **facts, **fields}
        engine_fields = parse_fields(self.engine_fields, "--set")
        null_block = engine_fields.pop("null_block", fields.pop("null_block", False))
        if not isinstance(null_block, bool):
            raise PricingError(f"--set null_block wants true or false, not {null_block!r}")
        if own := engine_fields.keys() & inspect.signature(Deployment.of).parameters.keys():
            raise PricingError(f"--set {min(own)}: that has an option of its own, if it can be set")
        deployment = Deployment.of(**{"profile": profile, **fields, **engine_fields, "null_block": null_block})
        if log is not None and self.max_model_len is None:
            check_window(log, facts.get("max_model_len", deployment.model.max_context), self.model)
        return deployment


SERVER = tuple(each.name for each in fields(ServerOptions) if each.name not in ("model", "hardware"))
"""Options of `calibrate` that only a log needs."""


@dataclass(frozen=True)
class ReplicaOptions(ServerOptions):
    """A server, and what only `simulate` lets one choose: its constants, parallelism, adapters, drafts."""

    profile: Annotated[str | None, typer.Option(help=PROFILE_HELP)] = None
    typical: Annotated[bool, typer.Option("--typical", help="Typical constants, to compare hardware alone.")] = False
    pp: Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages, of --tp accelerators each.")] = 1
    speculative: Annotated[Fields, typer.Option(metavar="FIELD=VALUE", help=SPECULATIVE_HELP)] = None
    lora: LoraFields = None
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Instead of the model's; 1 = multi-query.")] = None
    expert_parallel: Annotated[bool, typer.Option("--expert-parallel", help="Whole experts on each GPU.")] = False
    expert_skew: Annotated[
        float, typer.Option(help="Load of the busiest GPU's experts, relative to an even split.")
    ] = 1.0

    def stated(self) -> dict[str, Any]:
        from course.simulator.cost.lora import Lora
        from minillm.policies.config import parse_fields

        fields = {
            "pp": self.pp,
            "kv_heads": self.kv_heads,
            "expert_parallel": self.expert_parallel,
            "expert_skew": self.expert_skew,
            "lora": Lora(**parse_fields(self.lora, "--lora")),
            "speculative": parse_fields(self.speculative, "--speculative") or None,
        }
        return {**super().stated(), **{name: value for name, value in fields.items() if value is not None}}


@dataclass(frozen=True)
class TrafficOptions:
    """What is asked of the service: a log, a trace, or made-up traffic."""

    requests: Annotated[Path | None, typer.Option(help=LOG_HELP)] = None
    trace: Annotated[Path | None, typer.Option(help=TRACE_HELP)] = None
    qps: Annotated[float | None, typer.Option(help="Requests per second, without a log.")] = None
    arrival: Annotated[ArrivalName, typer.Option(help="How arrivals are spread.")] = ArrivalName.poisson
    cv: Annotated[float | None, typer.Option(help="gamma: variation of the gaps, up to 15; default 1.")] = None
    traffic: Annotated[TrafficName, typer.Option(help="chat, code: lengths as in Azure's traces.")] = TrafficName.fixed
    prompt_tokens: Tokens = None
    output_tokens: Tokens = None
    num_requests: Annotated[int | None, typer.Option(min=1, help="Default 1000, or all of a trace.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0

    @property
    def rate(self) -> float:
        return self.qps or 0.0

    @property
    def count(self) -> int:
        """Requests of made-up traffic."""
        return self.num_requests or DEFAULT_REQUESTS

    def kind(self) -> "Traffic":
        """What made-up requests are like."""
        from course.simulator.workload.kinds import find_traffic

        return find_traffic(self.traffic.value, self.prompt_tokens, self.output_tokens)

    def workload(self) -> "Workload":
        """The requests to be played."""
        from course.simulator.workload.requests import made_up_workload
        from course.simulator.workload.traces import load_trace

        if self.trace is not None:
            return load_trace(self.trace, self.num_requests)
        return made_up_workload(self.kind(), self.rate, self.arrival.value, self.cv, self.count, self.seed)

    def to_plan_for(self) -> "Traffic | Workload":
        """What a plan plays at many rates."""
        from course.simulator.workload.traces import load_trace

        return self.kind() if self.trace is None else load_trace(self.trace)

    def arrivals(self) -> "Callable[[float], Arrivals] | None":
        """The arrival process at a rate; None = the trace's own."""
        from course.simulator.workload.arrivals import find_arrivals

        return None if self.trace else lambda rate: find_arrivals(self.arrival.value, rate, self.cv)


@dataclass(frozen=True)
class FleetOptions:
    """The replicas, and what stands before them."""

    replicas: Annotated[int, typer.Option(min=1, help="Engines behind a router.")] = 1
    router: Annotated[Router, typer.Option(help="Which replica gets a request.")] = Router.least_outstanding
    fleet: FleetFields = None

    def cluster(self, seed: int, profile: "Profile | None" = None) -> "ClusterConfig":
        """The fleet: `--replicas` and `--router`, and whatever `--fleet` sets, as in `clients.timeout_s=10`.

        Args:
            profile: has what the engine's own server takes, both ways, and to tokenize. `--fleet network` goes first.

        Raises:
            WorkloadError: no such field, or a value it cannot have.
        """
        from course.simulator.cluster.fleet import ClusterConfig
        from minillm.policies.config import parse_fields

        policy = {"policy": self.router.value}
        fields: dict[str, Any] = {"replicas": self.replicas, "router": policy, "seed": seed, "sample_every_s": None}
        if profile is not None:
            network = {"rtt_s": profile.client_s, "ingress_s_per_token": profile.constants.tokenize_s}
            fields["network"] = {name: seconds for name, seconds in network.items() if seconds}
        for name, value in parse_fields(self.fleet, "--fleet").items():
            parts = isinstance(value, dict)
            if parts and not isinstance(fields.get(name, {}), dict):
                raise WorkloadError(f"--fleet {name}.{next(iter(value))}: {name} has no fields")
            fields[name] = {**fields.get(name, {}), **value} if parts else value
        return ClusterConfig(**fields)


def stated_limits(**limits: float | None) -> "SLO | None":
    """The SLO of a command's --slo-... options, seconds; None if none is stated.

    Raises:
        ConfigError: one is not above zero.
    """
    from course.summary import SLO

    for name, limit in limits.items():
        if limit is not None and not 0 < limit < math.inf:
            raise ConfigError(f"--slo-{name} is a number of seconds above 0, not {limit}")
    return None if set(limits.values()) == {None} else SLO(**limits)


@dataclass(frozen=True)
class LimitOptions:
    """The SLO."""

    slo_ttft: Limit = None
    slo_tpot: Limit = None
    slo_e2e: Limit = None

    @property
    def slo(self) -> "SLO | None":
        return stated_limits(ttft=self.slo_ttft, tpot=self.slo_tpot, e2e=self.slo_e2e)

    def slo_to_plan_for(self) -> "SLO":
        """Raises WorkloadError: there are no limits to plan for."""
        if (slo := self.slo) is None:
            raise WorkloadError("--plan needs a limit to plan for: --slo-ttft, --slo-tpot or --slo-e2e, in seconds")
        return slo


@dataclass(frozen=True)
class PlanOptions:
    """How many replicas, and of what."""

    plan: Annotated[bool, typer.Option("--plan", help="How many replicas serve --qps within the limits?")] = False
    search: Annotated[bool, typer.Option("--search", help=SEARCH_HELP)] = False
    target: Annotated[float, typer.Option(help="Plan: share of requests that must meet all limits.")] = 0.99
    headroom: Annotated[
        float, typer.Option(help="Plan: headroom, the share of capacity at the knee to leave unused.")
    ] = 0.0
    price_per_hour: Annotated[
        float | None, typer.Option(help="Plan: US dollars for a replica; default: the catalogue's.")
    ] = None


@dataclass(frozen=True)
class SimulateOptions(PlanOptions, LimitOptions, FleetOptions, TrafficOptions, ReplicaOptions):
    """All of `minillm simulate`. (A dataclass has the fields of its last base first.)"""

    per_request: Annotated[bool, typer.Option("--per-request", help="One row per request.")] = False
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Where the constants come from, and how far this extrapolates beyond their fit."
        ),
    ] = False
    as_json: Json = False

    @property
    def is_recorded(self) -> bool:
        return self.requests is not None or self.trace is not None


FIRST_TASTE: dict[str, Any] = {"hardware": "h100-sxm", "tp": 4, "traffic": TrafficName.chat, "qps": 2}
"""What `minillm simulate` plays when it's given nothing."""
FIRST_TASTE_WRITTEN = "--hardware h100-sxm --tp 4 --traffic chat --qps 2"
LOG_IS_PLAYED_AS_IT_IS = ("slo_ttft", "slo_tpot", "slo_e2e", "fleet", "replicas")
Rule = tuple[Callable[[SimulateOptions], bool], tuple[str, ...], str]
RULES: tuple[Rule, ...] = (
    (lambda o: not o.plan, ("target", "headroom", "price_per_hour", "search"), "these go with --plan"),
    (lambda o: o.search, ("price_per_hour", "profile"), "--search goes by the catalogue's prices"),
    (lambda o: o.requests is not None, LOG_IS_PLAYED_AS_IT_IS, "a log is played to one replica as it is"),
    (lambda o: o.requests is not None, ("num_requests", "seed", "router"), "a log is played whole, to one replica"),
    (
        lambda o: o.is_recorded,
        ("arrival", "cv", "traffic", "prompt_tokens", "output_tokens"),
        "a recording says what was asked, and when",
    ),
    (lambda o: o.plan, ("per_request",), "--plan plays many runs"),
)
"""Options that nothing would read: when, which, and why."""


def check_options(options: SimulateOptions, context: typer.Context) -> None:
    """Raise WorkloadError or PricingError for options that don't go together."""
    is_log, is_trace, has_qps = (each is not None for each in (options.requests, options.trace, options.qps))
    at_a_rate = has_qps and not (options.plan and is_trace)  # a plan replays the trace at the rate
    if is_log + is_trace + at_a_rate != 1:
        raise PricingError(
            "give one of these: a log of requests with --requests, or a rate of made-up ones with --qps, or a "
            f"recorded trace with --trace. A first taste: {FIRST_TASTE_WRITTEN}"
        )
    in_pools = any(field.startswith("disaggregation") for field in options.fleet or ())
    if options.plan and (not has_qps or (given(context, ["replicas"]) and not in_pools)):
        raise WorkloadError("--plan finds the number of replicas for a rate: give it --qps, and no --replicas")
    for applies, names, why in RULES:
        if applies(options) and (unread := given(context, names)):
            raise WorkloadError(f"{why}: leave out {', '.join(unread)}")


def given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of the options that stand on the command line, as one writes them."""
    written = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    return [written[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"]


def refuse(context: typer.Context, what: str, *unread: str) -> None:
    """Raise PricingError if an option is given that `what` does not read."""
    if options := given(context, unread):
        raise PricingError(f"{what} does not read {', '.join(options)}: leave out what has no effect")


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
