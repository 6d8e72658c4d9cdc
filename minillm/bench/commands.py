"""The subcommands of `minillm bench`, as they are typed. Each imports what it needs, which takes seconds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.bench.options import (
    Against,
    Device,
    DeviceName,
    Dtype,
    DtypeName,
    Json,
    LoadFormat,
    LoadFormatName,
    Model,
    Out,
    Quick,
    Roofline,
    Set,
    check_can_draw,
    check_writable,
    make_target,
    show,
)
from minillm.core.errors import ConfigError

if TYPE_CHECKING:
    from minillm.bench.attention_shapes import HeadShape

DEFAULT_MODEL = "smollm2-135m"
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; in each, everything is measured once.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Measured steps; default: what suits the device.")]


def sizes(help_text: str) -> Any:
    """An option that may be given several times: batch sizes, prompt lengths."""
    return typer.Option(min=1, help=f"{help_text}; may be repeated. Default: what suits the device.")


def decode(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    batch: Annotated[list[int] | None, sizes("Batch size")] = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 512,
    steps: Steps = None,
    roofline: Roofline = None,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Steady decode by batch size: tokens per second, and how near to the speed of memory (MBU).

    A step must move all weights once, and the keys and values of every context. Those bytes over the
    bandwidth that this machine was measured to have are the floor; MBU is the floor over the step.
    """
    from minillm.bench.decode import format_table, run_decode
    from minillm.bench.roofline import DECODE_COLOUR, Point, draw_roofline

    check_writable(out, roofline)
    if roofline is not None:
        check_can_draw(roofline, "--roofline")
    target = make_target(model, load_format, dtype, device, engine_fields)
    report = run_decode(target, batch, context, steps, quick)
    if roofline is not None:
        points = [Point(f"{r.batch}", r.flops / r.bytes, r.flops / r.step_s) for r in report["results"]]
        title = f"{report['model']}, {report['dtype']}: steady decode, by batch size\n{report['device']}"
        draw_roofline(roofline, points, report["roof"], title, DECODE_COLOUR)
    show(report, format_table(report), out, as_json)


def prefill(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    tokens: Annotated[list[int] | None, sizes("Prompt length, cut to the model's window")] = None,
    repeats: Repeats = 5,
    roofline: Roofline = None,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Prefill by prompt length: tokens per second, and how near to the speed of arithmetic (MFU).

    One prompt a step, nothing cached. MFU is the model's floating-point operations per second over
    those of a large matrix product, measured in the dtype that the linear layers compute in.
    """
    from minillm.bench.prefill import format_table, run_prefill
    from minillm.bench.roofline import PREFILL_COLOUR, Point, draw_roofline

    check_writable(out, roofline)
    if roofline is not None:
        check_can_draw(roofline, "--roofline")
    target = make_target(model, load_format, dtype, device, engine_fields)
    report = run_prefill(target, tokens, repeats, quick)
    if roofline is not None:
        points = [Point(f"{r.prompt_len}", r.flops / r.bytes, r.flops_per_s) for r in report["results"]]
        title = f"{report['model']}, {report['dtype']}: prefill, by tokens of the prompt\n{report['device']}"
        draw_roofline(roofline, points, report["roof"], title, PREFILL_COLOUR)
    show(report, format_table(report), out, as_json)


def throughput(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    compare: Annotated[list[Against] | None, typer.Option(help="Measure this one beside it; may be repeated.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Default: 256; 32 on a CPU.")] = None,
    scale: Annotated[
        float | None, typer.Option(min=0.001, max=1, help="Multiplies all lengths. Default: 1; 0.25 on a CPU.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of lengths and tokens.")] = 0,
    repeats: Repeats = 3,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Many requests at once, 100 to 1024 tokens in and out: output tokens per second.

    The workload of the compact engines (nano-vllm's benchmark). On a CPU, fewer and shorter requests.
    """
    from minillm.bench.throughput import format_table, run_throughput

    check_writable(out)
    target = make_target(model, load_format, dtype, device, engine_fields)
    report = run_throughput(
        target,
        against=[name.value for name in compare or []],
        requests=requests,
        scale=scale,
        seed=seed,
        repeats=repeats,
        quick=quick,
    )
    show(report, format_table(report), out, as_json)


def step_breakdown(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that decode together.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 512,
    steps: Steps = None,
    repeats: Repeats = 8,
    variant: Annotated[list[str] | None, typer.Option(help="Only the default and this one; may be repeated.")] = None,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Where a decode step's microseconds go; then again with each optimisation switched alone.

    Stages: schedule, build, forward, sample, detokenize, and the rest. The variants take turns, so that
    a slow spell of the machine hits all of them alike.
    """
    from minillm.bench.breakdown import format_table, run_breakdown

    check_writable(out)
    target = make_target(model, load_format, dtype, device, engine_fields)
    report = run_breakdown(
        target, batch=batch, context=context, steps=steps, repeats=repeats, names=variant or None, quick=quick
    )
    show(report, format_table(report), out, as_json)


def idle(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that decode together.")] = 8,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 512,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """How much of a steady decode a GPU works, and how much it waits for Python. GPU only."""
    from minillm.bench.idle import format_table, run_idle

    check_writable(out)
    target = make_target(model, load_format, dtype, device, engine_fields)
    report = run_idle(target, batch, context, quick)
    show(report, format_table(report), out, as_json)


def serve_overhead(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    streams: Annotated[list[int] | None, typer.Option(min=1, help="At once; may be repeated. Default: 8, 64.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Words of each prompt.")] = 32,
    output_tokens: Annotated[
        int | None, typer.Option(min=2, help="Of each answer; default: what suits the device.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    repeats: Repeats = 5,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """What `minillm serve` adds to the engine: ITL and throughput of SSE streams over loopback, and without a server.

    Both do the same requests, in turns. The ratios are served over alone, each within one round.
    """
    from minillm.bench.serve_overhead import format_table, run_serve_overhead

    check_writable(out)
    target = make_target(model, load_format, dtype, device, engine_fields)
    report = run_serve_overhead(target, streams, prompt_tokens, output_tokens, repeats, seed, quick)
    show(report, format_table(report), out, as_json)


def attention(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    backend: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Query heads; with --kv-heads and --head-dim.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key and value heads.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, help="Elements of a head.")] = None,
    batch: Annotated[list[int] | None, sizes("Decode: batch size")] = None,
    context: Annotated[list[int] | None, sizes("Decode: tokens of context")] = None,
    tokens: Annotated[list[int] | None, sizes("Prefill: new tokens")] = None,
    cached: Annotated[list[int] | None, sizes("Prefill on a cached context: tokens of it")] = None,
    repeats: Repeats = 7,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Attention backends against each other and the roof, on one layer without a model around it.

    The head shape is the model's (its config.json is all that is read, so --load-format changes nothing).
    """
    from minillm.bench.attention import format_table, run_attention

    check_writable(out)
    target = make_target(model, load_format, dtype, device, engine_fields)
    report = run_attention(
        target,
        heads=head_shape(heads, kv_heads, head_dim),
        backends=backend or None,
        batches=batch,
        contexts=context,
        prompts=tokens,
        cached=cached,
        repeats=repeats,
        quick=quick,
    )
    show(report, format_table(report), out, as_json)


def quality(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="A field of the reference; may be repeated. Default: none set."),
    ] = None,
    prune: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="The candidate reads this share of each text's tokens.")
    ] = None,
    perplexity_rise: Annotated[float, typer.Option(min=0, help="Floor: most that perplexity may rise.")] = 0.01,
    kl: Annotated[float, typer.Option(min=0, help="Floor: most KL divergence, nats a token.")] = 0.05,
    agreement: Annotated[float, typer.Option(min=0, max=1, help="Floor: least share of same likeliest tokens.")] = 0.9,
    tasks_lost: Annotated[int, typer.Option(min=0, help="Floor: most items that may be lost, of each task.")] = 1,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """What lossy settings cost in quality, beside speed and memory: --set is compared with --against.

    Exit status 1 if a floor is broken: then the candidate is not called better, however fast it is.
    """
    from minillm.bench.quality import Floors, format_table, run_quality

    check_writable(out)
    candidate = make_target(model, load_format, dtype, device, engine_fields)
    reference = make_target(model, load_format, dtype, device, against)
    floors = Floors(perplexity_rise, kl, agreement, tasks_lost)
    report = run_quality(reference, candidate, floors, prune, quick)
    show(report, format_table(report), out, as_json)
    raise typer.Exit(1 if report["results"].broken else 0)


def speculation(
    model: Model = DEFAULT_MODEL,
    load_format: LoadFormat = LoadFormatName.AUTO,
    dtype: Dtype = DtypeName.AUTO,
    device: Device = DeviceName.AUTO,
    engine_fields: Set = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Way of drafting (ngram, draft_head, ...; default ngram); may be repeated."),
    ] = None,
    job: Annotated[
        list[str] | None, typer.Option(help="Only this one (chat, copy, few, short, crowd, hot); may be repeated.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Your own prompts instead, one on each line: what would you gain?")
    ] = None,
    repeats: Repeats = 3,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Speculative decoding against none: where it pays (chat, copying), and where it does not.

    Short answers, a crowd and a high temperature are there to lose on: the gates should switch drafting off.
    """
    from minillm.bench.speculation import format_table, run_speculation

    check_writable(out)
    target = make_target(model, load_format, dtype, device, engine_fields)
    report = run_speculation(target, method or ["ngram"], job, repeats, quick, prompts)
    show(report, format_table(report), out, as_json)


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
    from minillm.bench.kv_bill import format_table, run_kv_bill
    from minillm.policies.window import Window

    check_writable(out)
    if sinks and window is None:
        raise ConfigError("--sinks are what stays in sight beside a --window: give that, too")
    report = run_kv_bill(model, tokens, block_size, Window(window, sinks))
    show(report, format_table(report), out, as_json)


def choose_model(
    hardware: Annotated[
        list[str] | None,
        typer.Option(help="A card, such as l4; may be repeated. Default: this machine's; without a GPU, all known."),
    ] = None,
    at_least: Annotated[
        int, typer.Option(min=1, help="Tokens of KV cache below which a model counts as too large.")
    ] = 8192,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Which models a card has room for, and for how many tokens beside them. Measures nothing."""
    from minillm.bench.choose_model import format_table, run_choose_model

    check_writable(out)
    report = run_choose_model(hardware or [], at_least)
    show(report, format_table(report), out, as_json)


def head_shape(heads: int | None, kv_heads: int | None, head_dim: int | None) -> "HeadShape | None":
    """What was asked for; None = the model's.

    Raises:
        ConfigError: given in part, or the heads are not a multiple of the KV heads.
    """
    if heads is None and kv_heads is None and head_dim is None:
        return None
    if heads is None or kv_heads is None or head_dim is None:
        raise ConfigError("--heads, --kv-heads and --head-dim describe one shape: give all three, or none")
    if heads % kv_heads:
        raise ConfigError(f"--heads {heads} is not a multiple of --kv-heads {kv_heads}: each serves a group of heads")
    from minillm.bench.attention_shapes import HeadShape

    return HeadShape(heads, kv_heads, head_dim)
