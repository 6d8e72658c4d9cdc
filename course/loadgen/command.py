"""`minillm bench serve`, as it is typed. It imports what it needs when it runs."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from course.simulator.errors import WorkloadError
from minillm.bench.options import DEFAULT_MODEL, Json, Out, Set, check_writable, show, with_options
from minillm.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from course.simulator.workload.requests import Workload

    Tests = Callable[[str], dict[str, dict[str, Any]]]

DEFAULT_REQUESTS = 100
CROWD = 128
"""Requests in flight when a server's capacity is looked for."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is sent, when, and how."""

    url: Annotated[str, typer.Option(help="The server's address, without /v1.")] = "http://127.0.0.1:8000"
    api: Annotated[Literal["completions", "chat"], typer.Option(help="/v1/completions or /v1/chat/completions.")] = (
        "completions"
    )
    model: Annotated[str, typer.Option(help="Default: the first that the server lists.")] = ""
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Closed loop of this many; with --rate or --trace, a cap.")
    ] = None
    arrival: Annotated[Literal["poisson", "gamma"], typer.Option(help="How --rate is spread.")] = "poisson"
    cv: Annotated[float | None, typer.Option(help="gamma: standard deviation of the gaps over their mean.")] = None
    trace: Annotated[Path | None, typer.Option(help="Play a recorded trace: .csv is Azure's, .jsonl Mooncake's.")] = (
        None
    )
    speed: Annotated[float, typer.Option(help="Play the trace this many times as fast.")] = 1.0
    traffic: Annotated[
        str, typer.Option(help="fixed, chat, code, rag, agents, tenants or sessions, as in `minillm simulate`.")
    ] = "fixed"
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Words of each fixed prompt; default 128.")] = None
    output_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of each fixed answer; default 64.")] = None
    num_requests: Annotated[int | None, typer.Option(min=1, help="Default 100, or all of a trace.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same requests at the same moments.")] = 0
    body: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Added to every request, e.g. ignore_eos=true; may be repeated."),
    ] = None
    slo_ttft: Annotated[float | None, typer.Option(help="Limit on TTFT, seconds.")] = None
    slo_itl: Annotated[float | None, typer.Option(help="Limit on a request's largest gap, seconds.")] = None
    slo_tpot: Annotated[float | None, typer.Option(help="Limit on TPOT, seconds.")] = None
    slo_e2e: Annotated[float | None, typer.Option(help="Limit on the whole request, seconds.")] = None
    timeout: Annotated[float, typer.Option(help="Limit for a whole answer, seconds.")] = 600.0
    warm_up: Annotated[int, typer.Option(min=1, help="Requests before the test, not counted.")] = 1
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the key.")] = "OPENAI_API_KEY"

    def workload(self) -> "Workload":
        """What is sent and when.

        Raises:
            WorkloadError: no rate is given, or two are; or an option that the others leave without effect.
        """
        from course.simulator.workload.arrivals import AllAtOnce
        from course.simulator.workload.kinds import find_traffic
        from course.simulator.workload.requests import made_up_workload, make_workload, mean_turns
        from course.simulator.workload.traces import load_trace

        if self.trace is not None:
            ignored = ("rate", "arrival", "cv", "traffic", "prompt_tokens", "output_tokens", "seed")
            if any(getattr(self, name) != getattr(LoadOptions(), name) for name in ignored):
                options = "--rate, --arrival, --traffic, --seed, ..."
                raise WorkloadError(f"a trace says what was asked, and when: give it --speed, not {options}")
            return load_trace(self.trace, limit=self.num_requests).faster(self.speed)
        if self.rate is None and self.concurrency is None:
            raise WorkloadError("say how to load it: --rate (open loop), --trace, or --concurrency (closed loop)")
        if self.speed != 1.0:
            raise WorkloadError("--speed goes with --trace: otherwise say the --rate")
        prompt_tokens, output_tokens = self.prompt_tokens, self.output_tokens
        if self.traffic == "fixed":
            prompt_tokens, output_tokens = prompt_tokens or 128, output_tokens or 64
        kind = find_traffic(self.traffic, prompt_tokens, output_tokens)
        count = self.num_requests or DEFAULT_REQUESTS
        if self.rate is not None:
            return made_up_workload(
                kind, qps=self.rate, arrival=self.arrival, cv=self.cv, num_requests=count, seed=self.seed
            )
        if self.arrival != "poisson" or self.cv is not None:
            raise WorkloadError("a closed loop has no arrivals: --arrival and --cv go with --rate")
        count = max(round(count / mean_turns(kind, self.seed)), 1)
        return make_workload(kind, AllAtOnce(), num_requests=count, seed=self.seed)


Compare = Annotated[
    Literal["vllm"] | None,
    typer.Option(help="Start `minillm serve` and then this engine's server with its limits; measure both."),
]


@with_options(LoadOptions)
def serve(
    load: LoadOptions,
    per_request: Annotated[bool, typer.Option("--per-request", help="A row for each request in the JSON.")] = False,
    share: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01,
            metavar="SHARE",
            help="Open loop at this share of the first server's capacity, which a closed loop of --concurrency (128) "
            "measures first; may be repeated.",
        ),
    ] = None,
    compare: Compare = None,
    engine_fields: Set = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Load-test any OpenAI-compatible server: ours, vLLM's, SGLang's.

    Open loop with --rate or --trace: requests come when they are due, as users do. Closed loop with --concurrency:
    each of so many workers waits for its answer first. Exit status 1 if no request was answered.
    """
    from course.loadgen.report import figures_table, format_report

    check_writable(out)
    if compare is not None:
        tests = _tests(replace(load, model=""), share, per_request)  # the servers say what they call it
        engines = _beside(load, compare, engine_fields, tests)
    elif engine_fields:
        raise ConfigError("--set is for a server that is started here: it goes with --compare")
    else:
        engines = {"": _tests(load, share, per_request)(load.url)}
    reports = {f"{name} {of}".strip(): report for name, own in engines.items() for of, report in own.items()}
    texts = [f"{name}: {format_report(report)}" if name else format_report(report) for name, report in reports.items()]
    table = figures_table(reports) if len(reports) > 1 else ""
    told = {name: own.get("", own) for name, own in engines.items()}
    show(told[""] if list(told) == [""] else {"engines": told}, "\n\n".join([*texts, table]).strip(), out, as_json)
    raise typer.Exit(0 if all(report["counts"].get("completed") for report in reports.values()) else 1)


def _tests(load: LoadOptions, shares: list[float] | None, per_request: bool) -> "Tests":
    """What each server goes through, given its URL: one load test, under an empty name. With shares a closed loop,
    called `closed`, and open loops at those shares of what the first server completed in it, so all get the same loads.

    Raises:
        WorkloadError: the options don't make a workload; or with shares, a rate or a trace is given as well.
    """
    if not shares:
        load.workload()  # what's wrong with it is said before a server is started
        return lambda url: {"": _load_test(load, per_request, url)}
    if load.rate is not None or load.trace is not None:
        raise WorkloadError("--share finds the rate itself: leave out --rate and --trace")
    replace(load, rate=1.0).workload()
    closed = replace(load, concurrency=load.concurrency or CROWD, arrival=LoadOptions().arrival, cv=None)
    capacities: list[float] = []

    def tests(url: str) -> dict[str, dict[str, Any]]:
        reports = {"closed": _load_test(closed, per_request, url)}
        capacities.append(reports["closed"]["rates"]["requests_per_s"])
        for share in shares if capacities[0] else ():
            open_loop = replace(load, rate=share * capacities[0], concurrency=None)
            reports[f"{share:g}"] = _load_test(open_loop, per_request, url)
        return reports

    return tests


def _load_test(load: LoadOptions, per_request: bool, url: str) -> dict[str, Any]:
    """Send a load's requests to a server. Returns the report."""
    import asyncio
    import os
    import sys

    from course.loadgen.client import Api, Endpoint
    from course.loadgen.load_test import LoadSettings, run_load_test
    from course.loadgen.planned_requests import planned_requests
    from course.loadgen.report import make_report
    from course.simulator.cluster.events import rare_collections
    from course.simulator.options import stated_limits
    from minillm.policies.config import parse_fields

    workload = load.workload()
    slo = stated_limits(ttft=load.slo_ttft, itl=load.slo_itl, tpot=load.slo_tpot, e2e=load.slo_e2e)
    fields = parse_fields(load.body, "--body")
    key = os.environ.get(load.api_key_env)
    endpoint = Endpoint(url.rstrip("/").removesuffix("/v1"), Api(load.api), load.model, fields, key)
    settings = LoadSettings(load.concurrency, load.timeout, load.warm_up)
    with rare_collections():
        test = asyncio.run(run_load_test(endpoint, planned_requests(workload), settings, sys.stderr.isatty()))
    told = {**asdict(load), "url": url, "trace": load.trace and load.trace.name}
    told |= {"requests": len(workload), "body": fields}
    has_schedule = load.rate is not None or load.trace is not None
    return make_report(test, told, slo, has_schedule=has_schedule, per_request=per_request)


def _beside(
    load: LoadOptions, name: str, engine_fields: list[str] | None, tests: "Tests"
) -> dict[str, dict[str, dict[str, Any]]]:
    """Our server and the named one, measured in turn. Returns each one's reports.

    Raises:
        ConfigError: a server is named as well, or --set doesn't fit.
    """
    from course.measure.served_engines import in_turn
    from minillm.policies.config import EngineConfig, parse_fields

    if load.url != LoadOptions().url:
        raise ConfigError("--compare starts the servers itself: leave out --url")
    config = EngineConfig(**{"model": load.model or DEFAULT_MODEL, **parse_fields(engine_fields, "--set")})
    return in_turn(config, name, tests)
