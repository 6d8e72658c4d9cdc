"""Options that the subcommands of `minillm bench` share, and what is done with them. Imports no torch."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar

import typer

from minillm.bench.writing import as_json
from minillm.core.errors import ConfigError

if TYPE_CHECKING:
    from minillm.bench.report import BenchmarkResult
    from minillm.bench.target import Target

P = ParamSpec("P")
T = TypeVar("T")


DEFAULT_MODEL = "smollm2-135m"

Model = Annotated[str, typer.Option(help="Short name, local folder, config.json, GGUF file or Hub id.")]
LoadFormat = Annotated[Literal["auto", "dummy"], typer.Option(help="dummy: random weights of the config's shape.")]
Dtype = Annotated[Literal["auto", "bfloat16", "float16", "float32"], typer.Option(help="Of weights and KV cache.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: cuda where there is one.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="An EngineConfig field, e.g. block_size=32 or speculative.method=ngram; may be repeated.",
    ),
]
Sample = Annotated[
    list[str] | None,
    typer.Option("--sample", metavar="FIELD=VALUE", help="A SamplingParams field, e.g. top_p=0.9; may be repeated."),
]
Quick = Annotated[bool, typer.Option("--quick", help="A few tokens, once: tries it, measures nothing.")]
Out = Annotated[Path | None, typer.Option(dir_okay=False, help="Also write the JSON here.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; in each, everything is measured once.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Measured steps; default: what suits the device.")]


def sizes(help_text: str) -> Any:
    """An option for a number that may be given several times: batch sizes, prompt lengths."""
    return typer.Option(min=1, metavar="NUMBER", help=f"{help_text}; may be repeated. Default: what suits the device.")


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The options that every measuring command has."""

    model: Model = DEFAULT_MODEL
    load_format: LoadFormat = "auto"
    dtype: Dtype = "auto"
    device: Device = "auto"
    engine_fields: Set = None
    quick: Quick = False
    out: Out = None
    as_json: Json = False

    def target_with(self, engine_fields: list[str] | None) -> "Target":
        """The model under FIELD=VALUE settings, which win over named options.

        Raises:
            ConfigError: a field is unknown, or out of range.
        """
        from minillm.bench.target import Target
        from minillm.policies.config import parse_fields

        fields = parse_fields(engine_fields, "--set")
        target = Target(self.model, self.load_format, self.dtype, self.device, fields)
        target.config()
        return target

    def measure(self, run: Callable[..., "BenchmarkResult"], *options: Any) -> Any:
        """Run a benchmark with its own options, and show its report. Returns the results.

        Args:
            run: takes the target, whether it is a quick try, and `options`.
        """
        from minillm.bench.report import describe_machine, format_machine, make_report

        check_writable(self.out)
        target, machine = self.target_with(self.engine_fields), describe_machine()
        measured = run(target, self.quick, *options)
        report = make_report(machine, target.model, self.quick, measured)
        quick = "quick: means nothing\n" if self.quick else ""
        text = f"{format_machine(machine)}\n{quick}{report['model']} in {measured.dtype}: {measured.text}"
        show(report, text, self.out, self.as_json)
        return measured.results


def with_options(options: type[T]) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Replace a command's first parameter by the fields of a dataclass: typer reads them off the signature."""

    def decorate(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        shared = inspect.signature(options).parameters
        own = list(inspect.signature(command).parameters.values())[1:]

        @functools.wraps(command)
        def taking_all(**given: Any) -> None:
            command(options(**{name: given.pop(name) for name in shared}), **given)  # type: ignore[call-arg]

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*shared.values(), *own)]
        taking_all.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        taking_all.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return taking_all

    return decorate


with_shared_options = with_options(SharedOptions)


def check_writable(*files: Path | None) -> None:
    """Say before measuring, not after, that a file's folder is not there, or that it's a folder itself.

    Raises:
        ConfigError
    """
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"there is no folder {str(file.parent)!r} to write {file.name} to: make it first")
        if file is not None and file.is_dir():
            raise ConfigError(f"{str(file)!r} is a folder: name a file in it")


def show(report: dict[str, Any], table: str, out: Path | None, json_wanted: bool) -> None:
    """The report as JSON, or as a table for people; and as JSON to a file."""
    if out is not None:
        out.write_text(as_json(report) + "\n", encoding="utf-8")
    print(as_json(report) if json_wanted else table)
