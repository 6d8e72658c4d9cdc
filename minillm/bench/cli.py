"""`minillm bench`: minillm on four workloads, alone or beside others; and subcommands that look closer."""

import enum
from typing import Annotated, cast

import typer
from typer.core import TyperGroup

from minillm.bench import commands
from minillm.bench.loadgen.command import serve
from minillm.bench.options import Compare, Repeats, Shared, with_shared_options
from minillm.core.errors import ConfigError


class WorkloadName(enum.StrEnum):
    """Workloads of `minillm bench`."""

    ONE = "one"
    EIGHT = "eight"
    MIXED = "mixed"
    SHARED_PREFIX = "shared_prefix"


bench_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
for command in (
    commands.decode,
    commands.prefill,
    commands.throughput,
    commands.step_breakdown,
    commands.serve_overhead,
    commands.attention,
    commands.quality,
    commands.speculation,
    serve,
):
    bench_app.command()(command)


@bench_app.callback(invoke_without_command=True)
@with_shared_options
def bench(
    shared: Shared,
    context: typer.Context,
    compare: Compare = None,
    workload: Annotated[list[WorkloadName] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    repeats: Repeats = 3,
) -> None:
    """Measure speed. Run it alone: two busy programs on one machine measure each other.

    Without a command: four workloads, alone or beside other engines. llama.cpp in bfloat16 on a CPU is four of them:
    files of BF16 and F16, each with two layouts of the KV cache.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context, context.invoked_subcommand)
        return
    from minillm.bench.compare import run

    shared.measure(run, compare or [], workload, repeats)


def _refuse_options(context: typer.Context, name: str) -> None:
    """`minillm bench --model x decode` would measure another model than x.

    Raises:
        ConfigError: an option stands before the command.
    """
    command = cast(TyperGroup, context.command).get_command(context, name)
    taken = {option for parameter in command.params for option in parameter.opts} if command else set()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            if option in taken:
                raise ConfigError(f"options of `bench {name}` come after it: minillm bench {name} {option} ...")
            raise ConfigError(f"`bench {name}` has no {option}: that is for `minillm bench` without a command")
