"""Commands that the course brings. The engine knows nothing of them but for where they are, and imports them on use."""

import importlib
from collections.abc import Sequence
from typing import NamedTuple

import typer

from minillm.host.errors import MissingPackageError


class CourseCommand(NamedTuple):
    """Where a command is, and what it is for."""

    name: str
    module: str
    attribute: str
    """A function with typer's annotations, or a whole Typer app."""
    about: str


COURSE_COMMANDS = (
    CourseCommand(
        "simulate",
        "course.simulator.cli",
        "simulate",
        "Serve synthetic or recorded traffic on GPUs you don't have: latencies, costs, the number of replicas.",
    ),
    CourseCommand(
        "calibrate",
        "course.simulator.cli",
        "calibrate",
        "Fit the simulator to this machine, or to a server from a log of its requests.",
    ),
    CourseCommand(
        "accuracy",
        "course.simulator.accuracy.cli",
        "accuracy",
        "How far off the simulator is, against public measurements or a server's log.",
    ),
    CourseCommand(
        "incident",
        "course.incidents.cli",
        "app",
        "You get paged: find out what's wrong with a service, fix it, and be graded on what the fix did.",
    ),
    CourseCommand(
        "drill",
        "course.drills.cli",
        "app",
        "Interview drills: list, show, grade, mock, history. `minillm drill --help` says more.",
    ),
    CourseCommand(
        "beat",
        "course.challenge.cli",
        "app",
        "A number to beat: one trace, one fleet; your scheduler, router and admission in at most 200 lines.",
    ),
    CourseCommand(
        "round",
        "course.rounds.cli",
        "app",
        "Open design rounds of 35 to 45 minutes: list, show, sit. `minillm round --help` says more.",
    ),
    CourseCommand(
        "napkin",
        "course.napkin.cli",
        "app",
        "A one-minute estimate, new each day: your number with its unit, then the working.",
    ),
    CourseCommand(
        "conform",
        "course.measure.conform.cli",
        "app",
        "Is an engine right? Any engine, by its server or its scheduler, on what engines get wrong.",
    ),
    CourseCommand(
        "proxy",
        "course.lab.proxy",
        "app",
        "A proxy that delays, buffers or merges streams on purpose: latency that no GPU caused.",
    ),
)

COURSE_BENCHMARKS = (
    CourseCommand("serve", "course.loadgen.command", "serve", "Load-test any OpenAI-compatible server."),
    CourseCommand("attention", "course.measure.cli", "attention", "Attention backends against each other."),
    CourseCommand("quality", "course.measure.cli", "quality", "What lossy settings cost in quality."),
    CourseCommand("speculation", "course.measure.cli", "speculation", "Speculative decoding against none."),
    CourseCommand("serve-overhead", "course.measure.cli", "serve_overhead", "What the server adds to the engine."),
)
"""Subcommands of `minillm bench`."""


def add_course_commands(app: typer.Typer, commands: Sequence[CourseCommand]) -> None:
    """Make them commands of `app`: each gets all its arguments, `--help` too."""
    for each in commands:
        _add(app, each)


def _add(app: typer.Typer, course_command: CourseCommand) -> None:
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
