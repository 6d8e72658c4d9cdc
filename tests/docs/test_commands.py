"""Every command and every Python block on the pages works; how.py says how each is run."""

import ast
import importlib
import io
import re
import runpy
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.how import AS_IT_STANDS, RULES, SKETCHES, Rule, Way, rule_of
from docs.pages import ROOT, Block, Command, blocks, commands, pages
from patience import PATIENCE_S, wait_for
from server.running import Running
from typer._click.exceptions import MissingParameter

from minillm import cli

PLACE = "127.0.0.1:8000"
"""Where a server stands on the pages."""
MEANT = {"ID": "block-pool", "NN": "07", "FILE": "pool.py", "N": "1"}
"""What stands for whatever the reader chooses."""
SHELL = re.compile(r"[|>&]")
COURSE_COMMANDS = {
    "incident": "course.incidents.cli",
    "drill": "course.drills.cli",
    "proxy": "course.lab.proxy",
}
INLINE = re.compile(r"`(minillm [a-z][^`\n]*|python -m course[^`\n]*|make [a-z][^`\n]*)`")


def each(*ways: Way) -> list[Any]:
    """The commands that are run in one of these ways, each once."""
    found = {command.text: command for command in reversed(commands()) if rule_of(command.text).way in ways}
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


def test_every_rule_is_of_use() -> None:
    used = {rule_of(command.text).pattern for command in commands()}
    assert [rule.pattern for rule in RULES if rule.pattern not in used] == []


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
    if rule_of(command.text).way is Way.ELSEWHERE:
        pytest.skip(rule_of(command.text).why)
    for part in re.split(r"\s(?:&&|\||>)\s", meant(command.text)):
        words = shlex.split(part, comments=True)
        if words[0] not in ("grep",) and not re.fullmatch(r"[\w./-]+\.\w+", part.strip()):
            try:
                parse_words([word for word in words if word not in ("...", "--help")])
            except MissingParameter:
                assert not command.block.language, "only within a sentence may a command be named in short"


# ---------------------------------------------------------------- it runs


def expanded(text: str) -> list[str]:
    """The words of a command, as a shell hands them over."""
    written = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], check=True, capture_output=True, text=True)
    return written.stdout.split("\0")[:-1]


def run(text: str, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command in this process, which has imported what it needs. Returns its exit status."""
    words = [*expanded(text), *rule.more]
    program = "minillm.__main__" if words[0] == "minillm" else words[2]
    monkeypatch.setattr(sys, "argv", words if words[0] == "minillm" else words[2:])
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    try:
        if program == "minillm.__main__":
            cli.main()
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def in_a_shell(text: str, environment: dict[str, str]) -> None:
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", text], env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, f"{text}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
    assert ended.stdout or ">" in text, f"{text} says nothing"


def prepare(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the files that the commands before it on its page would have made."""
    for before in ("stub block-pool > pool.py", "export --name learner-17 --out learner-17.json"):
        made = before.rpartition(" ")[2]
        if made in command.text and before not in command.text:
            name, _, redirected = before.partition(" > ")
            with monkeypatch.context() as within:
                shown = io.StringIO()
                within.setattr(sys, "stdout", shown)
                assert run(f"python -m course.grading {name}", AS_IT_STANDS, within) == 0
            if redirected:
                Path(redirected).write_text(shown.getvalue())


@pytest.mark.parametrize("command", each(Way.RUN))
def test_it_runs(
    command: Command,
    workshop: Path,
    shell_path: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    prepare(command, monkeypatch)
    text, rule = meant(command.text), rule_of(command.text)
    if SHELL.search(text):
        in_a_shell(text, {**shell_path, "PYTHONPATH": str(ROOT)})
        return
    status = run(text, rule, monkeypatch)
    out, err = capfd.readouterr()
    assert status == 0, f"{text}: exit status {status}\n{out[-1000:]}\n{err[-2000:]}"
    assert out or "--out" in text, f"{text} says nothing"


@pytest.mark.parametrize("command", each(Way.SERVED))
def test_it_gets_an_answer(
    command: Command,
    answering: Running,
    workshop: Path,
    shell_path: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rule, here = rule_of(command.text), answering.url.removeprefix("http://")
    text = f"{command.text} {shlex.join(rule.more)}".replace(PLACE, here)
    if command.text.startswith("curl"):
        in_a_shell(text.replace("curl ", "curl -sSf "), shell_path)
        return
    status = run(text, AS_IT_STANDS, monkeypatch)
    out, err = capfd.readouterr()
    assert status == 0 and "ttft" in out.lower(), f"{text}\n{out[-1000:]}\n{err[-2000:]}"


def test_metrics_that_the_page_names_are_there(answering: Running) -> None:
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    names = re.findall(r"`(\w+)`", text.partition("Names of its own:")[2].partition(". ")[0])
    shown = urllib.request.urlopen(f"{answering.url}/metrics").read().decode()
    assert len(names) > 4
    for name in names:
        assert f"# TYPE minillm:{name} " in shown, name


@pytest.mark.parametrize("command", each(Way.DRY))
def test_make_knows_what_to_do(command: Command) -> None:
    # Without TORCH_INDEX and PYTHON it would look for them on this machine and on the network.
    words = [*command.words, "-n", "TORCH_INDEX=", f"PYTHON={sys.executable}"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert told.returncode == 0 and told.stdout, told.stderr


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
@pytest.mark.parametrize(
    "command", [one for one in each(Way.SLOW) if not re.match("minillm (serve|proxy)", one.values[0].text)]
)
def test_it_runs_at_length(command: Command, workshop: Path, shell_path: dict[str, str]) -> None:
    page = [one for one in commands() if one.block == command.block]
    for earlier in page[: page.index(command)]:
        if rule_of(earlier.text).way is Way.SLOW and "mine.json" in command.text:
            in_a_shell(earlier.text, {**shell_path, "PYTHONPATH": str(ROOT)})
    in_a_shell(f"{command.text} </dev/null", {**shell_path, "PYTHONPATH": str(ROOT)})
