"""Options that the subcommands of `minillm bench` share, and what is done with them. Imports no torch."""

import enum
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.bench.writing import as_json
from minillm.core.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:
    from minillm.bench.target import Target


class Against(enum.StrEnum):
    """Engines to be compared with."""

    HF = "hf"
    LLAMA_CPP = "llama.cpp"
    NANO_VLLM = "nano-vllm"


class LoadFormatName(enum.StrEnum):
    """Where weights come from, by the names of the command line."""

    AUTO = "auto"
    DUMMY = "dummy"


class DtypeName(enum.StrEnum):
    """Number formats, by the names of the command line."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class DeviceName(enum.StrEnum):
    """Devices, by the names of the command line."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


Model = Annotated[str, typer.Option(help="Short name, local folder, config.json, GGUF file or Hub id.")]
LoadFormat = Annotated[LoadFormatName, typer.Option(help="dummy: random weights of the config's shape.")]
Dtype = Annotated[DtypeName, typer.Option(help="Of weights and KV cache.")]
Device = Annotated[DeviceName, typer.Option(help="auto: cuda where there is one.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="An EngineConfig field, e.g. block_size=32; may be repeated."),
]
Quick = Annotated[bool, typer.Option("--quick", help="A few tokens, once: tries it, measures nothing.")]
Out = Annotated[Path | None, typer.Option(dir_okay=False, help="Also write the JSON here.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Roofline = Annotated[Path | None, typer.Option(dir_okay=False, help="Draw the roofline here (.png or .svg).")]


def make_target(
    model: str, load_format: LoadFormatName, dtype: DtypeName, device: DeviceName, engine_fields: list[str] | None
) -> "Target":
    """What is to be measured; `--set` wins over named options.

    Raises:
        ConfigError: a field is unknown, or out of range.
    """
    from minillm.bench.target import Target
    from minillm.policies.config import parse_fields

    target = Target(model, load_format.value, dtype.value, device.value, parse_fields(engine_fields, "--set"))
    target.config()
    return target


def check_writable(*files: Path | None) -> None:
    """Say before measuring, not after, that a file's folder is not there.

    Raises:
        ConfigError: it is not.
    """
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"there is no folder {str(file.parent)!r} to write {file.name} to: make it first")


PICTURE_SUFFIXES = (".png", ".svg")


def check_can_draw(file: Path, option: str) -> None:
    """Say so before an hour of measuring, not after.

    Args:
        option: that asks for the picture, as it is typed.
    Raises:
        ConfigError: the file's name does not end in .png or .svg.
        MissingPackageError: matplotlib is not installed.
    """
    if file.suffix.lower() not in PICTURE_SUFFIXES:
        raise ConfigError(f"{option} draws .png or .svg, not {file.name!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError(
            f'{option} draws with matplotlib, which is not installed: pip install -c constraints.txt -e ".[lab]"'
        )


def show(report: dict[str, Any], table: str, out: Path | None, json_wanted: bool) -> None:
    """The report as JSON, or as a table for people; and as JSON to a file."""
    if out is not None:
        out.write_text(as_json(report) + "\n")
    print(as_json(report) if json_wanted else table)
