"""`minillm bench` and its subcommands, as they are typed. Each imports what it needs, which takes seconds."""

import importlib.util
from typing import Annotated

import typer

from minillm.bench.options import Repeats, Sample, SharedOptions, Steps, sizes, with_shared_options
from minillm.course_commands import add_course_commands

Batch = Annotated[int, typer.Option(min=1, help="Sequences that decode together.")]
Context = Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")]

bench_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@bench_app.callback(no_args_is_help=True)
def bench() -> None:
    """Measure speed. Run it alone: two busy programs on one machine measure each other."""


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
if importlib.util.find_spec("course") is not None:  # which compares engines where no command is given
    from course.measure.cli import bench_engines

    bench_app.callback(invoke_without_command=True)(bench_engines)
