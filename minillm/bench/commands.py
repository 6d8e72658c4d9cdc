"""The subcommands of `minillm bench`, as they are typed. Each imports what it needs, which takes seconds."""

from pathlib import Path
from typing import Annotated, Any

import typer

from minillm.bench.options import (
    DEFAULT_MODEL,
    Compare,
    Json,
    Out,
    Repeats,
    Roofline,
    Shared,
    Steps,
    check_can_draw,
    check_writable,
    show,
    with_shared_options,
)
from minillm.core.errors import ConfigError

Batch = Annotated[int, typer.Option(min=1, help="Sequences that decode together.")]
Context = Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")]


def repeatable(help_text: str, metavar: str | None = None) -> Any:
    """An option that may be given several times."""
    return typer.Option(help=f"{help_text}; may be repeated.", metavar=metavar)


def sizes(help_text: str) -> Any:
    """The same for numbers: batch sizes, prompt lengths."""
    return typer.Option(min=1, help=f"{help_text}; may be repeated. Default: what suits the device.")


@with_shared_options
def decode(
    shared: Shared,
    batch: Annotated[list[int] | None, sizes("Batch size")] = None,
    context: Context = 512,
    steps: Steps = None,
    roofline: Roofline = None,
) -> None:
    """Steady decode by batch size: tokens per second, and how near to the speed of memory (MBU).

    A step must move all weights once, and the keys and values of every context. Those bytes over the
    bandwidth that this machine was measured to have are the floor; MBU is the floor over the step.
    """
    from minillm.bench import decode as benchmark

    if roofline is not None:
        check_can_draw(roofline, "--roofline")
    report = shared.measure(benchmark, batch, context, steps)
    if roofline is not None:
        benchmark.draw(report, roofline)


@with_shared_options
def prefill(
    shared: Shared,
    tokens: Annotated[list[int] | None, sizes("Prompt length, cut to the model's window")] = None,
    repeats: Repeats = 5,
    roofline: Roofline = None,
) -> None:
    """Prefill by prompt length: tokens per second, and how near to the speed of arithmetic (MFU).

    One prompt a step, nothing cached. MFU is the model's floating-point operations per second over
    those of a large matrix product, measured in the dtype that the linear layers compute in.
    """
    from minillm.bench import prefill as benchmark

    if roofline is not None:
        check_can_draw(roofline, "--roofline")
    report = shared.measure(benchmark, tokens, repeats)
    if roofline is not None:
        benchmark.draw(report, roofline)


@with_shared_options
def throughput(
    shared: Shared,
    compare: Compare = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Default: 256; 32 on a CPU.")] = None,
    scale: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="Multiplies all lengths. Default: 1; 0.25 on a CPU.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of lengths and tokens.")] = 0,
    repeats: Repeats = 3,
) -> None:
    """Many requests at once, 100 to 1024 tokens in and out: output tokens per second.

    The workload of the compact engines (nano-vllm's benchmark). On a CPU, fewer and shorter requests.
    """
    from minillm.bench import throughput as benchmark

    shared.measure(benchmark, compare or [], requests, scale, seed, repeats)


@with_shared_options
def step_breakdown(
    shared: Shared,
    batch: Batch = 1,
    context: Context = 512,
    steps: Steps = None,
    repeats: Repeats = 8,
) -> None:
    """Where a decode step's microseconds go; then again with each optimisation switched alone.

    Stages: schedule, build, forward, sample, detokenize, and the rest. The variants take turns, so that
    a slow spell of the machine hits all of them alike.
    """
    from minillm.bench import breakdown as benchmark

    shared.measure(benchmark, batch, context, steps, repeats)


@with_shared_options
def idle(shared: Shared, batch: Batch = 8, context: Context = 512) -> None:
    """How much of a steady decode a GPU works, and how much it waits for Python. GPU only."""
    from minillm.bench import idle as benchmark

    shared.measure(benchmark, batch, context)


@with_shared_options
def serve_overhead(
    shared: Shared,
    streams: Annotated[list[int] | None, typer.Option(min=1, help="At once; may be repeated. Default: 8, 64.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Words of each prompt.")] = 32,
    output_tokens: Annotated[
        int | None, typer.Option(min=2, help="Of each answer; default: what suits the device.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    repeats: Repeats = 5,
) -> None:
    """What `minillm serve` adds to the engine: ITL and throughput of SSE streams over loopback, and without a server.

    Both do the same requests, in turns. The ratios are served over alone, each within one round.
    """
    from minillm.bench import serve_overhead as benchmark

    shared.measure(benchmark, streams, prompt_tokens, output_tokens, repeats, seed)


@with_shared_options
def attention(
    shared: Shared,
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
    from minillm.bench import attention as benchmark

    shared.measure(benchmark, backend or None, batch, context, tokens, cached, repeats)


@with_shared_options
def quality(
    shared: Shared,
    against: Annotated[
        list[str] | None, repeatable("A field of the reference; default: none set", "FIELD=VALUE")
    ] = None,
    prune: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="The candidate reads this share of each text's tokens.")
    ] = None,
    perplexity_rise: Annotated[float, typer.Option(min=0, help="Floor: most that perplexity may rise.")] = 0.01,
    kl: Annotated[float, typer.Option(min=0, help="Floor: most KL divergence, nats a token.")] = 0.05,
    agreement: Annotated[float, typer.Option(min=0, max=1, help="Floor: least share of same likeliest tokens.")] = 0.9,
    tasks_lost: Annotated[int, typer.Option(min=0, help="Floor: most items that may be lost, of each task.")] = 1,
) -> None:
    """What lossy settings cost in quality, beside speed and memory: --set is compared with --against.

    Exit status 1 if a floor is broken: then the candidate is not called better, however fast it is.
    """
    from minillm.bench import quality as benchmark

    floors = benchmark.Floors(perplexity_rise, kl, agreement, tasks_lost)
    report = shared.measure(benchmark, shared.target_with(against), floors, prune)
    raise typer.Exit(1 if report["results"].broken else 0)


@with_shared_options
def speculation(
    shared: Shared,
    method: Annotated[list[str] | None, repeatable("Way of drafting (ngram, draft_head, ...; default ngram)")] = None,
    job: Annotated[list[str] | None, repeatable("Only this one (chat, copy, few, short, crowd, hot)")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Your own prompts instead, one on each line: what would you gain?")
    ] = None,
    repeats: Repeats = 3,
) -> None:
    """Speculative decoding against none: where it pays (chat, copying), and where it does not.

    Short answers, a crowd and a high temperature are there to lose on: the gates should switch drafting off.
    """
    from minillm.bench import speculation as benchmark

    shared.measure(benchmark, method or ["ngram"], job, repeats, prompts)


def kv_bill(
    model: Annotated[
        str, typer.Option(help="Packaged shape (llama-3-70b), config.json, short name, folder or Hub id.")
    ] = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(min=1, help="Of a request.")] = 4096,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a KV block.")] = 16,
    window: Annotated[int | None, typer.Option(min=1, help="Sliding window, tokens.")] = None,
    sinks: Annotated[int, typer.Option(min=0, help="Attention sinks beside it, tokens.")] = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """What keys and values take, by dtype: arithmetic (MHA, GQA, MQA, MLA), beside what a pool allocates."""
    from minillm.bench.kv_bill import run, table
    from minillm.policies.window import Window

    check_writable(out)
    if sinks and window is None:
        raise ConfigError("--sinks are what stays in sight beside a --window: give that, too")
    report = run(model, tokens, block_size, Window(window, sinks))
    show(report, table(report), out, as_json)


def choose_model(
    hardware: Annotated[
        list[str] | None,
        repeatable("A card, such as l4. Default: this machine's; without a GPU, all known"),
    ] = None,
    at_least: Annotated[
        int, typer.Option(min=1, help="Tokens of KV cache below which a model counts as too large.")
    ] = 8192,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Which models a card has room for, and for how many tokens beside them. Measures nothing."""
    from minillm.bench.choose_model import run, table

    check_writable(out)
    report = run(hardware or [], at_least)
    show(report, table(report), out, as_json)
