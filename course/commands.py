"""The commands that the course adds to `minillm` and to `minillm bench`: where each is, and what it is for.

Nothing is imported here: minillm/course_commands.py imports a command when it is called.
"""

from typing import NamedTuple


class Command(NamedTuple):
    """Where a command is, and what it is for."""

    name: str
    module: str
    attribute: str
    """A function with typer's annotations, or a whole Typer app."""
    about: str


COMMANDS: dict[str, tuple[Command, ...]] = {
    "minillm": (
        Command(
            "simulate",
            "course.simulator.cli",
            "simulate",
            "Serve synthetic or recorded traffic on GPUs you don't have: latencies, costs, the number of replicas.",
        ),
        Command(
            "calibrate",
            "course.simulator.cli",
            "calibrate",
            "Fit the simulator to this machine, or to a server from a log of its requests.",
        ),
        Command(
            "accuracy",
            "course.simulator.accuracy.cli",
            "accuracy",
            "How far off the simulator is, against public measurements or a server's log.",
        ),
        Command(
            "incident",
            "course.incidents.cli",
            "app",
            "You get paged: find out what's wrong with a service, fix it, and be graded on what the fix did.",
        ),
        Command(
            "drill",
            "course.drills.cli",
            "app",
            "Interview drills: list, show, grade, mock, history. `minillm drill --help` says more.",
        ),
        Command(
            "beat",
            "course.challenge.cli",
            "app",
            "A number to beat: one trace, one fleet; your scheduler, router and admission in at most 200 lines.",
        ),
        Command(
            "round",
            "course.rounds.cli",
            "app",
            "Open design rounds of 35 to 45 minutes: list, show, sit. `minillm round --help` says more.",
        ),
        Command(
            "napkin",
            "course.napkin.cli",
            "app",
            "A one-minute estimate, new each day: your number with its unit, then the working.",
        ),
        Command(
            "conform",
            "course.measure.conform.cli",
            "app",
            "Is an engine right? Any engine, by its server or its scheduler, on what engines get wrong.",
        ),
        Command(
            "proxy",
            "course.lab.proxy",
            "app",
            "A proxy that delays, buffers or merges streams on purpose: latency that no GPU caused.",
        ),
    ),
    "minillm bench": (
        Command(
            "serve",
            "course.loadgen.command",
            "serve",
            "Load-test any OpenAI-compatible server.",
        ),
        Command(
            "attention",
            "course.measure.cli",
            "attention",
            "Attention backends against each other.",
        ),
        Command(
            "quality",
            "course.measure.cli",
            "quality",
            "What lossy settings cost in quality.",
        ),
        Command(
            "throughput",
            "course.measure.cli",
            "throughput",
            "Many requests together, alone or beside other engines: output tokens per second.",
        ),
        Command(
            "speculation",
            "course.measure.cli",
            "speculation",
            "Speculative decoding against none.",
        ),
        Command(
            "start-up",
            "course.measure.cli",
            "start_up",
            "From starting a process to its first token.",
        ),
        Command(
            "verify-costs",
            "course.measure.cli",
            "verify_costs",
            "What checking drafts costs by batch.",
        ),
        Command(
            "serve-overhead",
            "course.measure.cli",
            "serve_overhead",
            "What the server adds to the engine.",
        ),
    ),
}
"""The commands by what they are added to."""
