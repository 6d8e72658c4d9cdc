"""Options that the subcommands of `minillm bench` share, and what is done with them. Imports no torch."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from course.measure.writing import as_json
from minillm.options import DEFAULT_MODEL, Json, Set, check_writable, with_options

if TYPE_CHECKING:
    from course.measure.report import BenchmarkResult
    from course.measure.target import Target

BaselineName = enum.StrEnum(
    "BaselineName", {"HF": "hf", "LLAMA_CPP": "llama.cpp", "NANO_VLLM": "nano-vllm", "VLLM": "vllm"}
)
"""Engines to be compared with."""

Model = Annotated[str, typer.Option(help="Short name, local folder, config.json, GGUF file or Hub id.")]
LoadFormat = Annotated[Literal["auto", "dummy"], typer.Option(help="dummy: random weights of the config's shape.")]
Dtype = Annotated[Literal["auto", "bfloat16", "float16", "float32"], typer.Option(help="Of weights and KV cache.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: cuda where there is one.")]
Quick = Annotated[bool, typer.Option("--quick", help="A few tokens, once: tries it, measures nothing.")]
Out = Annotated[Path | None, typer.Option(dir_okay=False, help="Also write the JSON here.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; in each, everything is measured once.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Measured steps; default: what suits the device.")]
Compare = Annotated[
    list[BaselineName] | None, typer.Option(help="Measure this engine beside minillm; may be repeated.")
]


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
        from course.measure.target import Target
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
        from course.measure.report import describe_machine, format_machine, make_report

        check_writable(self.out)
        target, machine = self.target_with(self.engine_fields), describe_machine()
        measured = run(target, self.quick, *options)
        report = make_report(machine, target.model, self.quick, measured)
        quick = "quick: means nothing\n" if self.quick else ""
        text = f"{format_machine(machine)}\n{quick}{report['model']} in {measured.dtype}: {measured.text}"
        show(report, text, self.out, self.as_json)
        return measured.results


with_shared_options = with_options(SharedOptions)


def show(report: dict[str, Any], table: str, out: Path | None, json_wanted: bool) -> None:
    """The report as JSON, or as a table for people; and as JSON to a file."""
    if out is not None:
        out.write_text(as_json(report) + "\n", encoding="utf-8")
    print(as_json(report) if json_wanted else table)
