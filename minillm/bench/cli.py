"""`minillm bench`: minillm on four workloads, alone or beside others; and subcommands that look closer."""

import enum
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from minillm.bench import commands
from minillm.bench.loadgen.command import serve
from minillm.bench.options import Against, Json, Out, Quick, check_writable, show
from minillm.core.errors import ConfigError
from minillm.core.known import known

DEFAULT_REPEATS = 3
COMPARE_HELP = (
    "Measure this one beside it; may be repeated. llama.cpp in bfloat16 on a CPU is four: files of BF16 and F16, each "
    "with two layouts of the KV cache."
)


class Dtype(enum.StrEnum):
    """Number formats that peers can be compared in."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class WorkloadName(enum.StrEnum):
    """Workloads of `minillm bench`, by the names of the command line."""

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
    model: Annotated[str, typer.Option(help="Short name, local folder, GGUF file or Hub id.")] = "smollm2-135m",
    compare: Annotated[list[Against] | None, typer.Option(help=COMPARE_HELP)] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of weights, activations and KV, for everyone.")] = Dtype.BFLOAT16,
    workload: Annotated[list[WorkloadName] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; in each, everyone runs once.")] = DEFAULT_REPEATS,
    quick: Quick = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure speed. Run it alone: two busy programs on one machine measure each other.

    Without a command: four workloads, alone or beside other engines.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    check_writable(out)
    report = run_benchmark(
        model,
        against=[name.value for name in compare or []],
        dtype=dtype.value,
        names=[name.value for name in workload or WorkloadName],
        repeats=1 if quick else repeats,
        quick=quick,
    )
    from minillm.bench.compare import format_table

    show(report, format_table(report["machine"], report["bandwidth"], report["results"]), out, as_json)


def _refuse_options(context: typer.Context) -> None:
    """`minillm bench --model x decode` would measure another model than x.

    Raises:
        ConfigError: an option stands before the command.
    """
    name = known(context.invoked_subcommand)
    command = known(cast(TyperGroup, context.command).get_command(context, name))
    taken = {option for parameter in command.params for option in parameter.opts}
    for parameter in context.command.params:
        source = context.get_parameter_source(known(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            if option in taken:
                raise ConfigError(f"options of `bench {name}` come after it: minillm bench {name} {option} ...")
            raise ConfigError(f"`bench {name}` has no {option}: that is for `minillm bench` without a command")


def run_benchmark(
    model: str,
    *,
    against: Sequence[str],
    dtype: str,
    names: Sequence[str],
    repeats: int,
    quick: bool,
) -> dict[str, Any]:
    """Load everyone, measure, and return the whole report (machine, settings, results)."""
    # Seconds of imports that `minillm --help` should not pay for.
    from minillm.bench.compare import compare
    from minillm.bench.peers import MinillmPeer
    from minillm.bench.references import check_installed, make_references, settings_of
    from minillm.bench.report import describe_engine, describe_machine, make_report
    from minillm.bench.workloads import make_workloads
    from minillm.model.checkpoints import resolve
    from minillm.runner.machine_peaks import QUICK_BYTES, QUICK_REPEATS, measure_bandwidth

    check_installed(against)
    machine = describe_machine()
    folder = resolve(model)
    bandwidth = measure_bandwidth(*((QUICK_BYTES, QUICK_REPEATS) if quick else ()))
    own = [MinillmPeer(model, dtype)]
    engine = own[0].llm.engine
    workloads = [w for w in make_workloads(known(engine.vocab_size), quick=quick) if w.name in names]
    references = make_references(against, settings_of(engine, folder, machine))
    report = compare(own, references, workloads, repeats, bandwidth, engine.loaded_model.model_config, dtype)
    return make_report(
        machine,
        model=model,
        dtype=dtype,
        device=engine.loaded_model.device,
        settings={"repeats": repeats, "quick": quick, "engine": describe_engine(engine)},
        bandwidth=bandwidth,
        **report,
    )
