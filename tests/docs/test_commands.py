"""Commands and Python blocks on the pages: every command's options exist, every block of Python runs, and some commands
are run from end to end. `make slow` runs each page's own commands from top to bottom."""

import importlib
import json
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import ROOT, Block, Command, blocks, commands, pages
from patience import wait_for
from server.running import Running
from typer._click.exceptions import MissingParameter

from course.commands import COMMANDS
from minillm import cli

PLACE = "127.0.0.1:8000"
"""Where a server stands on the pages."""
MEANT = {"ID": "block-pool", "NN": "07", "FILE": "pool.py", "N": "1"}
"""What stands for whatever the reader chooses."""
COURSE_COMMANDS = {
    "beat": "course.challenge.cli",
    "incident": "course.incidents.cli",
    "drill": "course.drills.cli",
    "round": "course.rounds.cli",
    "napkin": "course.napkin.cli",
    "proxy": "course.lab.proxy",
}
INLINE = re.compile(r"`(minillm [a-z][^`\n]*|python -m course[^`\n]*|make [a-z][^`\n]*)`")
OTHER_PROGRAMS = {"curl", "docker", "nvidia-smi", "tmux", "ssh", "sudo", "grep", "pip", ".ci/as-ubuntu"}
"""What isn't ours, and need not be on this machine."""
END_TO_END = {
    'minillm generate --chat "Tell me a joke" --trace': ("--max-tokens", "4"),
    "minillm simulate --model llama-3-8b --hardware l4": ("--num-requests", "20"),
    "minillm drill grade p99-8s --answer answer.md --dominant queue --seed": (),
    "minillm drill show p99-8s": (),
}
"""Beginnings of commands that are run, each with arguments that make it short."""
RUN_AT_LENGTH = re.compile(
    r"^(minillm (incident|napkin|simulate|drill|generate|calibrate --from)|python -m course\.grading)"
    r"(?!.*(SMALLER|--tensor-parallel-size 2))"
)
"""Commands that `make slow` runs as they stand: no servers, no benchmarks, nothing for machines with two GPUs."""
SKETCHES = "course/grading/AUTHORS.md"
"""The page whose Python has gaps for its reader to fill in: it is compiled only."""

Run = Callable[..., tuple[int, str, str]]


def each(beginnings: tuple[str, ...]) -> list[Any]:
    """The commands that begin in one of these ways, each once."""
    found = {command.text: command for command in reversed(commands()) if command.text.startswith(beginnings)}
    return [pytest.param(command, id=command.id) for command in found.values()]


def inline() -> list[Command]:
    """Commands within a sentence."""
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in INLINE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Command(Block(str(page.relative_to(ROOT)), line, "", match[1]), match[1]))
    return found


def meant(text: str) -> str:
    return re.sub(rf"\b({'|'.join(MEANT)})\b", lambda match: MEANT[match[1]], text)


def test_commands_are_found() -> None:
    found = {command.text.partition("#")[0].strip() for command in commands()}
    assert {"make lab", "make test", "minillm drill list"} <= found
    assert any("--slo-ttft 0.5 --slo-tpot 0.05" in text for text in found), "continued lines belong together"
    assert [beginning for beginning in END_TO_END if not each((beginning,))] == []


# ---------------------------------------------------------------- its options exist


def parse(app: typer.Typer, name: str, words: list[str]) -> None:
    """Resolve commands and check every option and argument, without running anything.

    Raises:
        typer's UsageError: a command or an option does not exist, or a value is none of its kind.
    """
    command = typer.main.get_command(app)
    context = command.make_context(name, list(words))
    while hasattr(command, "resolve_command") and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def parse_words(program: str, *words: str) -> None:
    """Whatever program it is."""
    if program == "minillm":
        if words and words[0] in COURSE_COMMANDS:
            parse(importlib.import_module(COURSE_COMMANDS[words[0]]).app, words[0], list(words[1:]))
        else:
            parse(cli.app, "minillm", list(words))
    elif words[:2] == ("-m", "course.grading"):
        parse(importlib.import_module("course.grading.__main__").app, "grading", list(words[2:]))
    elif program == "python":
        assert words[0] == "-m" and importlib.util.find_spec(words[1]), words
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert [word for word in words if "=" not in word and word not in targets] == []
    elif program == "pytest":
        assert all((ROOT / word).exists() for word in words if "/" in word)
    elif program.endswith(".sh"):
        assert not words and (ROOT / program).exists()
    else:
        assert program in OTHER_PROGRAMS


@pytest.mark.parametrize(
    "command", {command.text: command for command in [*commands(), *inline()]}.values(), ids=lambda command: command.id
)
def test_its_options_exist(command: Command) -> None:
    for words in Command(command.block, meant(command.text)).programs:
        while re.match("[A-Z_]+=", words[0]):  # a variable of its environment
            words = words[1:]
        program, *rest = [word for word in words if word not in ("...", "--help")]
        try:
            parse_words(program.removeprefix(".venv/bin/"), *rest)
        except MissingParameter:
            assert not command.block.language, "only within a sentence may a command be named in short"


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands below one that is a group of commands, and itself if it does something of its own."""
    below = getattr(command, "commands", {})
    for name, each in below.items():
        yield from leaves(each, f"{path} {name}")
    if not below or command.invoke_without_command:
        yield path, command


def every_command() -> dict[str, Any]:
    """By how it's called. `minillm` only knows the names of those that the course adds; they are looked up there."""
    own = leaves(typer.main.get_command(cli.app), "minillm")
    found = {called: command for called, command in own if not command.context_settings.get("allow_extra_args")}
    for group, added in COMMANDS.items():
        for name, module, attribute, _ in added:
            app = getattr(importlib.import_module(module), attribute)
            if not isinstance(app, typer.Typer):
                alone = typer.Typer()
                alone.command()(app)
                app = alone
            found |= leaves(typer.main.get_command(app), f"{group} {name}")
    return found


@pytest.mark.parametrize("command", [pytest.param(each, id=called) for called, each in every_command().items()])
def test_every_command_can_answer_in_json(command: Any) -> None:
    assert "--json" in [name for option in command.params for name in option.opts]


@pytest.mark.parametrize(
    "words",
    [
        "beat seal --salt 0123456789abcdef",
        "drill history",
        "drill list",
        "drill show 2",
        "incident --archive",
        "napkin",
        "round list",
        "round show weights",
        "round",
        "simulate --hardware l4 --model llama-3-8b --qps 1",
    ],
)
def test_json_is_one_object_and_nothing_else(words: str, workshop: Path, run: Run) -> None:
    status, out, _ = run(*words.split(), "--json")
    assert status == 0 and isinstance(json.loads(out), dict)
    status, out, err = run(*words.split(), "--jsn")
    assert (status, out) == (2, "") and err


# ---------------------------------------------------------------- it runs


def in_a_shell(text: str, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", text],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, f"{text}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
    assert ended.stdout or any(word in text for word in (">", "--out")), f"{text} says nothing"


@pytest.mark.parametrize("command", each(tuple(END_TO_END)))
def test_it_runs(command: Command, workshop: Path, run: Run) -> None:
    more = next(more for beginning, more in END_TO_END.items() if command.text.startswith(beginning))
    status, out, err = run(*command.programs[0][1:], *more, stdin="")
    assert status == 0 and out, f"{command.text}\n{out[-1000:]}\n{err[-2000:]}"


@pytest.mark.parametrize("command", each(("minillm bench serve ",)))
def test_it_loads_a_server(command: Command, answering: Running, workshop: Path, run: Run) -> None:
    status, out, err = run(*command.programs[0][1:], "--num-requests", 3, "--url", answering.url)
    assert status == 0 and "ttft" in out.lower(), f"{command.text}\n{out[-1000:]}\n{err[-2000:]}"


@pytest.mark.parametrize("command", each(("curl ",)))
def test_it_gets_an_answer(command: Command, answering: Running, shell_path: dict[str, str]) -> None:
    here = answering.url.removeprefix("http://")
    in_a_shell(command.text.replace(PLACE, here).replace("curl ", "curl -sSf "), shell_path)


def test_metrics_that_the_page_names_are_there(answering: Running) -> None:
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    names = re.findall(r"`(\w+)`", text.partition("Names of its own:")[2].partition(". ")[0])
    shown = urllib.request.urlopen(f"{answering.url}/metrics").read().decode()
    assert len(names) > 4
    for name in names:
        assert f"# TYPE minillm:{name} " in shown, name


# ---------------------------------------------------------------- Python


def python_blocks() -> list[Any]:
    """Each text once."""
    found = {block.text: block for block in blocks() if block.language == "python"}
    return [pytest.param(block, id=block.place) for block in found.values()]


@pytest.mark.parametrize("block", python_blocks())
def test_python_runs(
    block: Block, workshop: Path, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if PLACE not in block.text:
        code = compile(block.text, block.place, "exec")
        if block.page != SKETCHES:
            exec(code, {"__name__": "page"})
            assert capfd.readouterr().out
        return
    server: Running = request.getfixturevalue("answering")
    before = server.metric("request_success_total")
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block.text.replace(PLACE, server.url.removeprefix("http://")), block.place, "exec"), names)
    if "RemoteDashboard" not in names:
        wait_for(lambda: server.metric("request_success_total") > before, "the server has counted the request")


# ---------------------------------------------------------------- what takes longer


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({one.block.page for one in commands() if RUN_AT_LENGTH.search(one.text)}))
def test_a_page_runs_from_top_to_bottom(page: str, workshop: Path, shell_path: dict[str, str]) -> None:
    environment = {**shell_path, "PYTHONPATH": str(ROOT)}
    if "pool.py" in (ROOT / page).read_text(encoding="utf-8"):
        in_a_shell("python -m course.grading stub block-pool > pool.py", environment)
    for command in commands():
        if command.block.page == page and RUN_AT_LENGTH.search(command.text):
            in_a_shell(meant(command.text), environment)
