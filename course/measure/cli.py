"""What the course adds to `minillm bench`, as it is typed: the command itself without a subcommand, and some of these.

Each imports what it needs.
"""

import enum
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from minillm.bench.options import Repeats, SharedOptions, sizes, with_shared_options
from minillm.core.errors import ConfigError

WorkloadName = enum.StrEnum(
    "WorkloadName",
    "one eight mixed shared_prefix prefill_128 prefill_512 prefill_1024 prefill_2048 "
    "batch_32 batch_128 prefill_4096 prefill_8192 prefill_16384",
)
"""Workloads of `minillm bench` without a command; the last five only where they are named."""
BaselineName = enum.StrEnum(
    "BaselineName", {"HF": "hf", "LLAMA_CPP": "llama.cpp", "NANO_VLLM": "nano-vllm", "VLLM": "vllm"}
)
"""Engines to be compared with."""
Compare = Annotated[
    list[BaselineName] | None,
    typer.Option(
        metavar="ENGINE", help=f"Measure this engine beside minillm: {', '.join(BaselineName)}. May be repeated."
    ),
]


def repeatable(help_text: str, metavar: str = "NAME") -> Any:
    """An option that may be given several times."""
    return typer.Option(help=f"{help_text}; may be repeated.", metavar=metavar)


@with_shared_options
def bench_engines(
    shared: SharedOptions,
    context: typer.Context,
    compare: Compare = None,
    workload: Annotated[list[WorkloadName] | None, repeatable(f"Only this one: {', '.join(WorkloadName)}")] = None,
    repeats: Repeats = 3,
) -> None:
    """Measure speed. Run it alone: two busy programs on one machine measure each other.

    Without a command: eight workloads, or those named, alone or beside other engines. llama.cpp in bfloat16 on a CPU
    is four of them: files of BF16 and F16, each with two layouts of the KV cache.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context, context.invoked_subcommand)
        return
    from course.measure.compare import peers_named, run

    shared.measure(run, peers_named(compare), workload, repeats)


def _refuse_options(context: typer.Context, name: str) -> None:
    """`minillm bench --model x decode` would measure another model than x.

    Raises:
        ConfigError: an option stands before the command.
    """
    command = cast(TyperGroup, context.command).get_command(context, name)
    taken = {option for parameter in command.params for option in parameter.opts} if command else set()
    takes_any = command is not None and "ignore_unknown_options" in command.context_settings  # the course's
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            if takes_any or option in taken:
                raise ConfigError(f"options of `bench {name}` come after it: minillm bench {name} {option} ...")
            raise ConfigError(f"`bench {name}` has no {option}: that is for `minillm bench` without a command")


@with_shared_options
def throughput(
    shared: SharedOptions,
    compare: Compare = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Default: 256; 32 on a CPU.")] = None,
    scale: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="Multiplies all lengths. Default: 1; 0.25 on a CPU.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of lengths and tokens.")] = 0,
    repeats: Repeats = 3,
) -> None:
    """Many requests together, 100 to 1024 tokens in and out: output tokens per second.

    The workload of the compact engines (nano-vllm's benchmark). On a CPU, fewer and shorter requests.
    """
    from course.measure.compare import peers_named, run_throughput

    shared.measure(run_throughput, peers_named(compare), requests, scale, seed, repeats)


@with_shared_options
def serve_overhead(
    shared: SharedOptions,
    streams: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="NUMBER", help="Concurrent streams; may be repeated. Default: 8, 64."),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Words of each prompt.")] = 32,
    output_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens of each answer. Default: 256.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the prompts.")] = 0,
    repeats: Repeats = 5,
) -> None:
    """What `minillm serve` adds to the engine: ITL and throughput of SSE streams over loopback, and without a server.

    Both do the same requests, in turns. The ratios are served over alone, each within one round.
    """
    from course.measure.serve_overhead import run

    shared.measure(run, streams, prompt_tokens, output_tokens, repeats, seed)


@with_shared_options
def attention(
    shared: SharedOptions,
    backend: Annotated[list[str] | None, repeatable("Only this one")] = None,
    batch: Annotated[list[int] | None, sizes("Decode: batch size")] = None,
    context: Annotated[list[int] | None, sizes("Decode: tokens of context")] = None,
    tokens: Annotated[list[int] | None, sizes("Prefill: new tokens")] = None,
    cached: Annotated[list[int] | None, sizes("Prefill on a cached context: tokens of it")] = None,
    repeats: Repeats = 7,
) -> None:
    """Attention backends against each other and the machine's peaks, on one layer without a model around it.

    The head shape is the model's (its config.json is all that is read, so --load-format changes nothing).
    """
    from course.measure.attention import run

    shared.measure(run, backend or None, batch, context, tokens, cached, repeats)


@with_shared_options
def start_up(shared: SharedOptions) -> None:
    """From starting a process to its first token: with compiled kernels and without, graphs captured at start or later.

    The cache of compiled Triton kernels is one of its own, empty at first. The model's files are not made cold.
    """
    from course.measure.start_up import run

    shared.measure(run)


@with_shared_options
def verify_costs(shared: SharedOptions, batch: Annotated[list[int] | None, sizes("Batch size")] = None) -> None:
    """What checking drafts costs by batch, and the gates of speculation that follow. Any weights will do."""
    from course.measure.verify_costs import run

    shared.measure(run, batch)


@with_shared_options
def quality(
    shared: SharedOptions,
    against: Annotated[
        list[str] | None, repeatable("A field of the reference; default: none set", "FIELD=VALUE")
    ] = None,
    perplexity_rise: Annotated[float, typer.Option(min=0, help="Limit: how much perplexity may rise.")] = 0.01,
    kl: Annotated[float, typer.Option(min=0, help="Limit: largest KL divergence, nats per token.")] = 0.05,
    agreement: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Limit: smallest share of tokens where both models agree on the most likely one."
        ),
    ] = 0.9,
    tasks_lost: Annotated[int, typer.Option(min=0, help="Limit: how many items may be lost per task.")] = 1,
) -> None:
    """What lossy settings cost in quality, beside speed and memory: --set is compared with --against.

    Exit status 1 if a limit is broken: then the candidate is not called better, however fast it is.
    """
    from course.measure.quality import QualityLimits, run

    limits = QualityLimits(perplexity_rise, kl, agreement, tasks_lost)
    verdict = shared.measure(run, shared.target_with(against), limits)
    raise typer.Exit(1 if verdict.broken else 0)


@with_shared_options
def speculation(
    shared: SharedOptions,
    method: Annotated[list[str] | None, repeatable("Way of drafting (ngram, draft_head, ...; default ngram)")] = None,
    job: Annotated[list[str] | None, repeatable("Only this one (chat, copy, few, short, crowd, hot)")] = None,
    prompts: Annotated[Path | None, typer.Option(help="Your own prompts instead, one per line.")] = None,
    repeats: Repeats = 3,
) -> None:
    """Speculative decoding against none: where it pays (chat, copying), and where it does not.

    Short answers, a crowd and a high temperature are there to lose on: the gates should switch drafting off.
    """
    from course.measure.speculation import run

    shared.measure(run, method or ["ngram"], job, repeats, prompts)
