"""`minillm bench`: minillm on four workloads, alone or beside others; and subcommands that look closer."""

import enum
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import typer
from typer.core import TyperGroup

from minillm.bench import commands
from minillm.bench.loadgen.command import serve
from minillm.bench.options import DEFAULT_MODEL, Compare, Json, Model, Out, Quick, Repeats, check_writable, show
from minillm.core.errors import ConfigError

Dtype = Annotated[Literal["bfloat16", "float32"], typer.Option(help="Of weights, activations and KV, in all engines.")]


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
    commands.idle,
    commands.serve_overhead,
    commands.attention,
    commands.quality,
    commands.speculation,
    commands.kv_bill,
    commands.choose_model,
    serve,
):
    bench_app.command()(command)


@bench_app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    compare: Compare = None,
    dtype: Dtype = "bfloat16",
    workload: Annotated[list[WorkloadName] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    repeats: Repeats = 3,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure speed. Run it alone: two busy programs on one machine measure each other.

    Without a command: four workloads, alone or beside other engines. llama.cpp in bfloat16 on a CPU is four of them:
    files of BF16 and F16, each with two layouts of the KV cache.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    check_writable(out)
    report = run_benchmark(
        model,
        against=compare or [],
        dtype=dtype,
        names=workload or list(WorkloadName),
        repeats=1 if quick else repeats,
        quick=quick,
    )
    from minillm.bench.compare import table

    show(report, table(report), out, as_json)


def _refuse_options(context: typer.Context) -> None:
    """`minillm bench --model x decode` would measure another model than x.

    Raises:
        ConfigError: an option stands before the command.
    """
    name = context.invoked_subcommand
    assert name is not None
    command = cast(TyperGroup, context.command).get_command(context, name)
    taken = {option for parameter in command.params for option in parameter.opts} if command else set()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            if option in taken:
                raise ConfigError(f"options of `bench {name}` come after it: minillm bench {name} {option} ...")
            raise ConfigError(f"`bench {name}` has no {option}: that is for `minillm bench` without a command")


def run_benchmark(
    model: str, *, against: Sequence[str], dtype: str, names: Sequence[str], repeats: int, quick: bool
) -> dict[str, Any]:
    """Load all engines, measure them, and return the whole report."""
    # Seconds of imports that `minillm --help` should not pay for.
    from minillm.bench.compare import run
    from minillm.bench.report import describe_machine, make_report

    machine = describe_machine()
    measured = run(model, machine, against=against, dtype=dtype, names=names, repeats=repeats, quick=quick)
    return make_report(machine, model, quick, measured)
