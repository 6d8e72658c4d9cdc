"""`minillm bench serve`, as it is typed. It imports what it needs when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from minillm.bench.options import Json, Out, check_can_draw, check_writable, show
from minillm.core.errors import WorkloadError

if TYPE_CHECKING:
    from minillm.bench.loadgen.load_test import LoadTest
    from minillm.bench.loadgen.observation import CountTokens
    from minillm.simulate.workload.requests import Workload


DEFAULT_REQUESTS = 100


def serve(
    url: Annotated[str, typer.Option(help="Of the server, without /v1.")] = "http://127.0.0.1:8000",
    api: Annotated[
        Literal["completions", "chat"], typer.Option(help="/v1/completions or /v1/chat/completions.")
    ] = "completions",
    model: Annotated[str, typer.Option(help="Default: the first that the server lists.")] = "",
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Closed loop of so many; with --rate or --trace, a cap on it.")
    ] = None,
    arrival: Annotated[Literal["poisson", "gamma"], typer.Option(help="How --rate is spread.")] = "poisson",
    cv: Annotated[float | None, typer.Option(help="gamma: standard deviation of the gaps over their mean.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Play a recorded trace: .csv is Azure's, .jsonl Mooncake's.")
    ] = None,
    speed: Annotated[float, typer.Option(help="Play the trace so many times as fast.")] = 1.0,
    traffic: Annotated[
        str, typer.Option(help="fixed, chat, code, rag, agents, tenants or sessions, as in `minillm simulate`.")
    ] = "fixed",
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Words of each fixed prompt; default 128.")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="Of each fixed answer; default 64.")] = None,
    num_requests: Annotated[int | None, typer.Option(min=1, help="Default 100, or all of a trace.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same requests at the same moments.")] = 0,
    body: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Into every request, e.g. ignore_eos=true; may be repeated."),
    ] = None,
    slo_ttft: Annotated[float | None, typer.Option(help="Limit on TTFT, seconds.")] = None,
    slo_itl: Annotated[float | None, typer.Option(help="Limit on a request's largest gap, seconds.")] = None,
    slo_tpot: Annotated[float | None, typer.Option(help="Limit on TPOT, seconds.")] = None,
    slo_e2e: Annotated[float | None, typer.Option(help="Limit on the whole request, seconds.")] = None,
    timeout: Annotated[float, typer.Option(help="For a whole answer, seconds.")] = 600.0,
    retries: Annotated[int, typer.Option(min=0, help="After 429, 5xx or no connection; waits as the server says.")] = 0,
    warm_up: Annotated[int, typer.Option(min=1, help="Requests before the test, not counted.")] = 1,
    keep_alive: Annotated[bool, typer.Option(help="Use connections again, or open one for each request.")] = True,
    tokenizer: Annotated[str | None, typer.Option(help="Folder or Hub id, to count where no usage comes.")] = None,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the key.")] = "OPENAI_API_KEY",
    picture: Annotated[Path | None, typer.Option(dir_okay=False, help="Draw the test here (.png or .svg).")] = None,
    per_request: Annotated[bool, typer.Option("--per-request", help="A row for each request in the JSON.")] = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Load-test any OpenAI-compatible server: ours, vLLM's, SGLang's.

    Open loop with --rate or --trace: requests come when they are due, as users do. Closed loop with --concurrency:
    each of so many workers waits for its answer first. Exit status 1 if no request was answered.
    """
    import asyncio
    import os
    import sys

    from minillm.bench.loadgen.client import Api, Endpoint
    from minillm.bench.loadgen.load_test import LoadSettings, run_load_test
    from minillm.bench.loadgen.planned_requests import planned_requests
    from minillm.bench.loadgen.report import format_report, make_report
    from minillm.observe.summary import stated_limits
    from minillm.policies.config import parse_fields
    from minillm.simulate.cluster.events import rare_collections

    check_writable(out, picture)
    if picture is not None:
        check_can_draw(picture, "--picture")
    slo = stated_limits(ttft=slo_ttft, itl=slo_itl, tpot=slo_tpot, e2e=slo_e2e)
    workload = plan_workload(
        rate, concurrency, arrival, cv, trace, speed, traffic, prompt_tokens, output_tokens, num_requests, seed
    )
    endpoint = Endpoint(
        url.rstrip("/").removesuffix("/v1"), Api(api), model, parse_fields(body, "--body"),
        os.environ.get(api_key_env),
    )  # fmt: skip
    settings = LoadSettings(concurrency, retries + 1, timeout, keep_alive, warm_up)
    with rare_collections():
        test = asyncio.run(
            run_load_test(endpoint, planned_requests(workload), settings, counter(tokenizer), sys.stderr.isatty())
        )
    told = {
        "rate": rate, "concurrency": concurrency, "arrival": None if rate is None else arrival, "cv": cv,
        "speed": speed, "trace": trace and trace.name, "traffic": traffic, "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens, "requests": len(workload), "seed": seed, "retries": retries,
        "timeout_s": timeout, "keep_alive": keep_alive, "warm_up": warm_up, "body": endpoint.extra,
    }  # fmt: skip
    report = make_report(test, told, slo, has_schedule=rate is not None or trace is not None, per_request=per_request)
    if picture is not None:
        draw(picture, test, report)
    show(report, format_report(report), out, as_json)
    raise typer.Exit(0 if any(o.completed for o in test.observations) else 1)


def plan_workload(
    rate: float | None,
    concurrency: int | None,
    arrival: str,
    cv: float | None,
    trace: Path | None,
    speed: float,
    traffic: str,
    prompt_tokens: int | None,
    output_tokens: int | None,
    num_requests: int | None,
    seed: int,
) -> "Workload":
    """What is sent and when.

    Raises:
        WorkloadError: no rate is given, or two are; or an option that the others leave without effect.
    """
    from minillm.simulate.workload.arrivals import AllAtOnce
    from minillm.simulate.workload.kinds import find_traffic
    from minillm.simulate.workload.requests import made_up_workload, make_workload, mean_turns
    from minillm.simulate.workload.traces import load_trace

    if trace is not None:
        made_up = (rate, arrival, cv, traffic, prompt_tokens, output_tokens, seed)
        if made_up != (None, "poisson", None, "fixed", None, None, 0):
            raise WorkloadError(
                "a trace says what was asked, and when: give it --speed, not --rate, --arrival, --traffic, --seed, ..."
            )
        return load_trace(trace, limit=num_requests).faster(speed)
    if rate is None and concurrency is None:
        raise WorkloadError("say how to load it: --rate (open loop), --trace, or --concurrency (closed loop)")
    if speed != 1.0:
        raise WorkloadError("--speed goes with --trace: otherwise say the --rate")
    if traffic == "fixed":
        prompt_tokens, output_tokens = prompt_tokens or 128, output_tokens or 64
    kind = find_traffic(traffic, prompt_tokens, output_tokens)
    count = num_requests or DEFAULT_REQUESTS
    if rate is not None:
        return made_up_workload(kind, qps=rate, arrival=arrival, cv=cv, num_requests=count, seed=seed)
    if arrival != "poisson" or cv is not None:
        raise WorkloadError("a closed loop has no arrivals: --arrival and --cv go with --rate")
    return make_workload(kind, AllAtOnce(), num_requests=max(round(count / mean_turns(kind, seed)), 1), seed=seed)


def counter(tokenizer: str | None) -> "CountTokens | None":
    """Counts a text's tokens."""
    if tokenizer is None:
        return None
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    return lambda text: len(loaded.encode(text, add_special_tokens=False))


def draw(file: Path, test: "LoadTest", report: dict[str, Any]) -> None:
    """Write the picture of a test."""
    from minillm.bench.loadgen.picture import draw_load_test

    how = report["settings"]
    load = f"{how['rate']:g} requests/s" if how["rate"] else f"trace {how['trace']}" if how["trace"] else "closed loop"
    cap = f", at most {how['concurrency']} open" if how["concurrency"] else ""
    draw_load_test(file, test.observations, f"{test.endpoint.model}: {load}{cap}", report["slo"])
