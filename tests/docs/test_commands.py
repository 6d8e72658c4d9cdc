"""Commands and Python blocks on the pages: every command's options exist, every block of Python runs, and some commands
are run from end to end. `make slow` runs each page's own commands from top to bottom."""

import ast
import importlib
import io
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import ROOT, Block, Command, blocks, commands, pages
from patience import wait_for
from server.running import Running
from typer._click.exceptions import MissingParameter

from minillm import cli

PLACE = "127.0.0.1:8000"
"""Where a server stands on the pages."""
MEANT = {"ID": "block-pool", "NN": "07", "FILE": "pool.py", "N": "1"}
"""What stands for whatever the reader chooses."""
COURSE_COMMANDS = {
    "incident": "course.incidents.cli",
    "drill": "course.drills.cli",
    "proxy": "course.lab.proxy",
}
INLINE = re.compile(r"`(minillm [a-z][^`\n]*|python -m course[^`\n]*|make [a-z][^`\n]*)`")


OTHER_PROGRAMS = re.compile(r"^(docker|nvidia-smi|tmux|ssh|sudo|grep|MAX_JOBS=|\.ci/)")
"""What isn't ours, and need not be on this machine."""
END_TO_END = {
    'minillm generate --chat "Tell me a joke" --trace': ("--max-tokens", "4"),
    "minillm simulate --model llama-3-8b --hardware l4": ("--num-requests", "20"),
    "minillm drill grade p99-8s --answer answer.md --dominant queue --seed": (),
    "minillm drill show p99-8s": (),
    "python -m course.grading stub block-pool": (),
}
"""Beginnings of commands that are run, each with arguments that make it short."""
BENCH_SERVE = ("--num-requests", "3", "--url", f"http://{PLACE}")
RUN_AT_LENGTH = re.compile(
    r"^(minillm (incident|simulate|drill|generate|calibrate --from)|python -m course\.grading)"
    r"(?!.*(SMALLER|--tensor-parallel-size 2))"
)
"""Commands that `make slow` runs as they stand: no servers, no benchmarks, nothing for machines with two GPUs."""
SKETCHES = {
    ("course/grading/AUTHORS.md", "def right(samples, q)"): "a sketch with gaps for the author to fill in",
    ("course/grading/AUTHORS.md", "def share(self, block_ids)"): "a method without its class: it shows the marks",
    ("course/grading/AUTHORS.md", "from course.grading.plug_in"): "plan_step is the learner's own",
}
"""Python blocks that are compiled only: (page, beginning of the block), and why."""


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


# ---------------------------------------------------------------- what there is


def test_commands_are_found() -> None:
    found = {command.text for command in commands()}
    assert {"make lab", "make test", "minillm drill list"} <= found
    assert any(command.block.page == "docs/server.md" for command in commands())
    assert any("--slo-ttft 0.5 --slo-tpot 0.05" in text for text in found), "continued lines belong together"


def test_what_is_run_is_on_a_page() -> None:
    assert [beginning for beginning in END_TO_END if not each((beginning,))] == []


def test_sketches_are_still_there() -> None:
    for page, beginning in SKETCHES:
        assert any(block.page == page and block.text.startswith(beginning) for block in blocks()), beginning


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


def parse_words(words: list[str]) -> None:
    """Whatever program it is."""
    if words[0] == "minillm":
        course = COURSE_COMMANDS.get(words[1]) if len(words) > 1 else None
        if course is None:
            parse(cli.app, "minillm", words[1:])
        else:
            parse(importlib.import_module(course).app, words[1], words[2:])
    elif words[:3] == ["python", "-m", "course.grading"]:
        parse(importlib.import_module("course.grading.__main__").app, "grading", words[3:])
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), words[2]
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert [word for word in words[1:] if "=" not in word and word not in targets] == []
    elif "pytest" in words[0]:
        assert all((ROOT / word).exists() for word in words[1:] if "/" in word)
    else:
        assert words[0] == "curl"


@pytest.mark.parametrize(
    "command", {command.text: command for command in [*commands(), *inline()]}.values(), ids=lambda command: command.id
)
def test_its_options_exist(command: Command) -> None:
    for part in re.split(r"\s(?:&&|\||>)\s|; ", meant(command.text)):
        part = re.sub(r"^(\.venv/bin/|[A-Z_]+=\S+ (?=make))", "", part.strip())
        words = shlex.split(part, comments=True)
        if not OTHER_PROGRAMS.search(part) and not re.fullmatch(r"[\w./-]+\.\w+", part):
            try:
                parse_words([word for word in words if word not in ("...", "--help")])
            except MissingParameter:
                assert not command.block.language, "only within a sentence may a command be named in short"


# ---------------------------------------------------------------- it runs


def expanded(text: str) -> list[str]:
    """The words of a command, as a shell hands them over."""
    written = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], check=True, capture_output=True, text=True)
    return written.stdout.split("\0")[:-1]


def run(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command in this process, which has imported what it needs. Returns its exit status."""
    monkeypatch.setattr(sys, "argv", list(words))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def in_a_shell(text: str, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", text], env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, f"{text}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
    assert ended.stdout or any(word in text for word in (">", "--out")), f"{text} says nothing"


@pytest.mark.parametrize("command", each(tuple(END_TO_END)))
def test_it_runs(
    command: Command,
    workshop: Path,
    shell_path: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if not command.text.startswith("minillm"):
        in_a_shell(command.text, shell_path)
        return
    more = next(more for beginning, more in END_TO_END.items() if command.text.startswith(beginning))
    status = run([*expanded(command.text), *more], monkeypatch)
    out, err = capfd.readouterr()
    assert status == 0, f"{command.text}: exit status {status}\n{out[-1000:]}\n{err[-2000:]}"
    assert out, f"{command.text} says nothing"


@pytest.mark.parametrize("command", each(("curl ", "minillm bench serve ")))
def test_it_gets_an_answer(
    command: Command,
    answering: Running,
    workshop: Path,
    shell_path: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    here = answering.url.removeprefix("http://")
    if command.text.startswith("curl"):
        in_a_shell(command.text.replace(PLACE, here).replace("curl ", "curl -sSf "), shell_path)
        return
    status = run([word.replace(PLACE, here) for word in [*expanded(command.text), *BENCH_SERVE]], monkeypatch)
    out, err = capfd.readouterr()
    assert status == 0 and "ttft" in out.lower(), f"{command.text}\n{out[-1000:]}\n{err[-2000:]}"


def test_metrics_that_the_page_names_are_there(answering: Running) -> None:
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    names = re.findall(r"`(\w+)`", text.partition("Names of its own:")[2].partition(". ")[0])
    shown = urllib.request.urlopen(f"{answering.url}/metrics").read().decode()
    assert len(names) > 4
    for name in names:
        assert f"# TYPE minillm:{name} " in shown, name


# ---------------------------------------------------------------- Python


def python_blocks(*, served: bool) -> list[Any]:
    """Those that ask a server, or the others; each text once."""
    found = {block.text: block for block in blocks() if block.language == "python" and (PLACE in block.text) == served}
    return [pytest.param(block, id=block.place) for block in found.values() if not why_sketch(block)]


def why_sketch(block: Block) -> str | None:
    return next(
        (why for (page, start), why in SKETCHES.items() if block.page == page and block.text.startswith(start)), None
    )


@pytest.mark.parametrize(
    "block", [block for block in blocks() if block.language == "python"], ids=lambda block: block.place
)
def test_python_blocks_are_python(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("block", python_blocks(served=False))
def test_python_runs(block: Block, workshop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exec(compile(block.text, block.place, "exec"), {"__name__": "page"})
    assert capfd.readouterr().out


@pytest.mark.parametrize("block", python_blocks(served=True))
def test_python_gets_an_answer(block: Block, answering: Running, workshop: Path) -> None:
    before = answering.metric("request_success_total")
    text = block.text.replace(PLACE, answering.url.removeprefix("http://"))
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(text, block.place, "exec"), names)
    if "RemoteDashboard" not in names:
        wait_for(lambda: answering.metric("request_success_total") > before, "the server has counted the request")


# ---------------------------------------------------------------- what takes longer


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({one.block.page for one in commands() if RUN_AT_LENGTH.search(one.text)}))
def test_a_page_runs_from_top_to_bottom(page: str, workshop: Path, shell_path: dict[str, str]) -> None:
    environment = {**shell_path, "PYTHONPATH": str(ROOT)}
    if "pool.py" in (ROOT / page).read_text(encoding="utf-8"):
        in_a_shell("python -m course.grading stub block-pool > pool.py", environment)
    for command in commands():
        if command.block.page == page and RUN_AT_LENGTH.search(command.text):
            in_a_shell(f"{meant(command.text)} </dev/null", environment)
