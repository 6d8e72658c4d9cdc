"""`minillm conform`. With `--json`, standard output is one JSON object."""

import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from course.measure.child import START_LIMIT_S
from minillm.bench.options import check_writable
from minillm.core.errors import MinillmError
from minillm.host.storage import storage_errors, write_whole

if TYPE_CHECKING:
    from course.measure.conform.client import ServerUnderTest

Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- COMMAND]",
        help="Starts a server with OpenAI's API. {model} in it becomes a tiny checkpoint, {gguf} the same as a GGUF "
        "file, {port} a free port.",
    ),
]
AdapterName = Annotated[
    str | None,
    typer.Option("--adapter", help="A scheduler instead: minillm, nano_vllm, mini_sglang, or a file of your own."),
]
Url = Annotated[str | None, typer.Option(help="A server that's running already.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(help="What that server serves: with it, answers are compared with Hugging Face's, in float32."),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        help="What requests call the model: by default the first that /v1/models names. {model} in it is filled in."
    ),
]
WriteCheckpoint = Annotated[
    Path | None, typer.Option(help="Only write the tiny checkpoint into this folder, for you to serve.")
]
Only = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="Only checks with this word in their name; may be repeated.")
]
Requests = Annotated[int, typer.Option(min=16, help="Requests of a server's check for leaks.")]
StartLimit = Annotated[
    float,
    typer.Option(min=1, help="Seconds that the COMMAND may take to answer /v1/models, and a server its first request."),
]
ServerLog = Annotated[Path | None, typer.Option("--log", help="Keep what the COMMAND prints in this file.")]
BadgeFile = Annotated[Path | None, typer.Option("--badge", help="Write an SVG for a README.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]

CHECKPOINT_BYTES = 2_000_000

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class ConformError(MinillmError):
    """It isn't clear what is to be tried."""


# From its first word on, everything is the command's: "--" is gone by then.
@app.command(context_settings={"allow_interspersed_args": False})
def conform(
    command: Command = None,
    adapter: AdapterName = None,
    url: Url = None,
    checkpoint: Checkpoint = None,
    model_name: ModelName = None,
    write_checkpoint: WriteCheckpoint = None,
    only: Only = None,
    requests: Requests = 512,
    start_limit: StartLimit = START_LIMIT_S,
    server_log: ServerLog = None,
    badge_file: BadgeFile = None,
    as_json: Json = False,
) -> None:
    """Check an engine where engines go wrong: block boundaries, caches, preemption, disconnects, leaks.

    A server is started (-- COMMAND) or named (--url). A scheduler is driven through an adapter (--adapter), over a
    counting model without weights or a GPU. Exit status 1 if a check failed, or none passed; 2 if nothing
    could be tried.
    """
    from rich.console import Console

    from course.measure.conform import report
    from course.measure.conform.runs import scheduling_verdicts, serving_verdicts

    if write_checkpoint is not None:
        _write_checkpoint(write_checkpoint)
        return
    if sum((bool(command), adapter is not None, url is not None)) != 1:
        raise ConformError("name one thing to try: -- COMMAND, --url URL or --adapter NAME (see --help)")
    if checkpoint is not None and url is None:
        raise ConformError("--checkpoint says what a server at --url serves; a COMMAND gets one of its own")
    if model_name is not None and adapter is not None:
        raise ConformError("--model-name is what a server's requests say: an --adapter has none")
    if server_log is not None and not command:
        raise ConformError("--log keeps what a COMMAND prints: there's none here")
    if badge_file is not None and only:
        raise ConformError("--badge counts every check: leave --only out")
    check_writable(server_log, badge_file)
    if checkpoint is not None and not (checkpoint / "config.json").is_file():
        raise ConformError(f"{checkpoint} holds no checkpoint: it has no config.json")
    console, verdicts = Console(highlight=False, soft_wrap=True, stderr=as_json), []
    if adapter is not None:
        subject, found = f"adapter {adapter}", scheduling_verdicts(adapter, only or ())
        for verdict in found:
            verdicts.append(verdict)
            report.show(verdict, console)
    else:
        subject = url or shlex.join(command or ())
        if command:
            print(f"Waiting up to {start_limit:g} s until /v1/models answers: {subject}", file=sys.stderr)
        with _client(command, url, checkpoint, model_name, requests, server_log, start_limit) as client:
            client.warm_up(start_limit)
            for verdict in serving_verdicts(client, only or ()):
                verdicts.append(verdict)
                report.show(verdict, console)
    if not verdicts:
        raise ConformError(f"no check has {' or '.join(only or ())} in its name")
    console.print(report.summary(verdicts))
    if as_json:
        print(json.dumps(report.as_json(subject, verdicts)))
    if badge_file is not None:
        write_whole(badge_file, report.badge(verdicts).encode(), "name a file with --badge in a folder")
    raise typer.Exit(0 if report.is_conforming(verdicts) else 1)


def _write_checkpoint(folder: Path) -> None:
    """Write the tiny checkpoint, and print where. Raises StorageError if the folder can't be written."""
    from course.measure.conform.checkpoint import write_checkpoint

    with storage_errors(folder, CHECKPOINT_BYTES, "name a folder"):
        folder.mkdir(parents=True, exist_ok=True)
        print(write_checkpoint(folder))


@contextmanager
def _client(
    command: list[str] | None,
    url: str | None,
    checkpoint: Path | None,
    model_name: str | None,
    requests: int,
    server_log: Path | None,
    start_limit: float,
) -> Iterator["ServerUnderTest"]:
    """A client of the server at `url`, or of one that is started."""
    from course.measure.child import serving
    from course.measure.conform.checkpoint import Reference, write_checkpoint
    from course.measure.conform.client import ServerUnderTest
    from course.measure.peers.gguf_export import write_gguf

    if url is not None:
        yield ServerUnderTest(url, None if checkpoint is None else Reference(checkpoint), requests, model_name)
        return
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="conform-") as folder:
        model, gguf = write_checkpoint(Path(folder) / "tiny"), Path(folder) / "tiny.gguf"
        if any("{gguf}" in word for word in command):
            write_gguf(model, gguf, "float32", with_tokenizer=True)
        log = server_log or Path(folder) / "server.log"
        with serving(command, log, {"model": model, "gguf": gguf}, limit_s=start_limit) as started:
            name = model_name and model_name.replace("{model}", str(model))
            yield ServerUnderTest(started, Reference(model), requests, name)
