"""`minillm bench` and its subcommands, as they are typed. Each imports what it needs, which takes seconds."""

import enum
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from minillm.bench.options import Compare, Repeats, Sample, SharedOptions, Steps, with_shared_options
from minillm.core.errors import ConfigError
from minillm.course_commands import add_course_commands

WorkloadName = enum.StrEnum(
    "WorkloadName",
    "one eight mixed shared_prefix prefill_128 prefill_512 prefill_1024 prefill_2048 "
    "batch_32 batch_128 prefill_4096 prefill_8192 prefill_16384",
)
"""Workloads of `minillm bench` without a command; the last five only where they are named."""
Batch = Annotated[int, typer.Option(min=1, help="Sequences that decode together.")]
Context = Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")]


def repeatable(help_text: str, metavar: str = "NAME") -> Any:
    """An option that may be given several times."""
    return typer.Option(help=f"{help_text}; may be repeated.", metavar=metavar)


def sizes(help_text: str) -> Any:
    """The same for numbers: batch sizes, prompt lengths."""
    return typer.Option(min=1, metavar="NUMBER", help=f"{help_text}; may be repeated. Default: what suits the device.")


bench_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@bench_app.callback(invoke_without_command=True)
@with_shared_options
def bench(
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


@bench_app.command()
@with_shared_options
def decode(
    shared: SharedOptions,
    batch: Annotated[list[int] | None, sizes("Batch size")] = None,
    context: Context = 512,
    steps: Steps = None,
    sample: Sample = None,
    idle: Annotated[bool, typer.Option("--idle", help="Then profile a GPU: its waits, and each kernel.")] = False,
) -> None:
    """Steady decode by batch size: tokens per second, and how near to the speed of memory (MBU).

    A step must move all weights once, and the keys and values of every context. Those bytes over the
    bandwidth that this machine was measured to have are the floor; MBU is the floor over the step.
    """
    from minillm.bench.decode import run

    shared.measure(run, batch, context, steps, sample, idle)


@bench_app.command()
@with_shared_options
def prefill(
    shared: SharedOptions,
    tokens: Annotated[list[int] | None, sizes("Prompt length, cut to the model's window")] = None,
    repeats: Repeats = 5,
) -> None:
    """Prefill by prompt length: tokens per second, and how near to the speed of arithmetic (MFU).

    One prompt a step, nothing cached. MFU is the model's floating-point operations per second over
    those of a large matrix product, measured in the dtype that the linear layers compute in.
    """
    from minillm.bench.prefill import run

    shared.measure(run, tokens, repeats)


@bench_app.command()
@with_shared_options
def step_breakdown(
    shared: SharedOptions, batch: Batch = 1, context: Context = 512, steps: Steps = None, repeats: Repeats = 8
) -> None:
    """Where a decode step's microseconds go; then again with each optimization switched alone.

    Stages: schedule, build, forward, sample, detokenize, and the rest. The variants take turns, so that
    a slow spell of the machine hits all of them.
    """
    from minillm.bench.breakdown import run

    shared.measure(run, batch, context, steps, repeats)


add_course_commands(bench_app, "minillm bench")
