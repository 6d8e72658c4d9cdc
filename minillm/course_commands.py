"""Commands that the course brings (course/commands.py has the list). Each is imported when it is called."""

import importlib
import importlib.util
from typing import TYPE_CHECKING

import typer

from minillm.host.errors import MissingPackageError

if TYPE_CHECKING:
    from course.commands import Command


def add_course_commands(app: typer.Typer, group: str) -> None:
    """Make those of a group commands of `app`; none where there is no course."""
    if importlib.util.find_spec("course") is not None:
        from course.commands import COMMANDS

        for each in COMMANDS[group]:
            _add(app, each)


def _add(app: typer.Typer, course_command: "Command") -> None:
    """It gets all its arguments, `--help` too."""
    name, module, attribute, about = course_command

    @app.command(
        name,
        help=about,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def run(context: typer.Context) -> None:
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            cure = 'pip install -c constraints.txt -e ".[lab]"'
            raise MissingPackageError(f"{name} needs {error.name}: {cure}") from None
        if not isinstance(command, typer.Typer):
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            alone.command(name)(command)
            command = alone
        command(context.args, prog_name=context.command_path, max_content_width=context.max_content_width)
