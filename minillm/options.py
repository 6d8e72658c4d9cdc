"""Options that several commands of `minillm` have, and dataclasses of them. Imports no torch."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from minillm.core.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_MODEL = "smollm2-135m"

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
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


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


def check_writable(*files: Path | None) -> None:
    """Say before measuring, not after, that a file's folder is not there.

    Raises:
        ConfigError: it is not.
    """
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"there is no folder {str(file.parent)!r} to write {file.name} to: make it first")
