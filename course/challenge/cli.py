"""`minillm beat`: a starter file, practice, a round's score, and the check of somebody else's line."""

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from course.challenge.entry import Entry, EntryError
from course.challenge.play import play
from course.challenge.replay import write_replay
from course.challenge.result import RoundScore, differences, round_of, score
from course.challenge.rounds import Round
from minillm.bench.options import check_writable

app = typer.Typer(
    help="A number to beat: one trace, one fleet; your scheduler, router and admission in at most 200 lines.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
File = Annotated[Path, typer.Argument(metavar="FILE", help="Your policies, as `minillm beat start` begins them.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Salt = Annotated[str | None, typer.Option(help="A contest's salt, instead of a month.")]


@app.command()
def start(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the starter file.")] = Path("policy.py"),
    as_json: Json = False,
) -> None:
    """Write the starter file: vLLM's rule, in the three seams that are yours."""
    check_writable(file)
    if file.exists():
        raise EntryError(f"{file} is there already: name another file")
    shutil.copyfile(Path(__file__).with_name("starter.py"), file)
    said = f"{file} written. Play it: minillm beat run {file}"
    print(json.dumps({"file": str(file)}) if as_json else said)


@app.command()
def run(
    file: File,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="SEED", help="Instead of the practice seeds; may be repeated.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="TRACE", help="Write the first seed's trace for https://ui.perfetto.dev to this file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Practise on public seeds: your score on the ladder, and how requests were lost."""
    check_writable(replay)
    entry = Entry.read(file)
    chosen = Round.of_seeds(seed) if seed else Round.practice()
    _show(_played(entry, chosen), as_json)
    if replay is not None:
        with entry.opened() as contestant:
            write_replay(replay, play(chosen.seeds[0], contestant, keeps_steps=True))


@app.command("score")
def score_round(
    file: File,
    month: Annotated[
        str | None, typer.Option("--round", metavar="MONTH", help="For example 2026-11; default: this month's.")
    ] = None,
    salt: Salt = None,
    as_json: Json = False,
) -> None:
    """The score that counts, on a round's hidden seeds, and a line to share."""
    entry = Entry.read(file)
    if salt is not None and month is not None:
        raise EntryError("a round is a month's or a contest's: give --round or --salt")
    _show(_played(entry, Round.of_salt(salt) if salt is not None else Round.of_month(month)), as_json)


@app.command()
def seal(
    salt: Annotated[str, typer.Option(help="Secret until the contest is over.")],
    as_json: Json = False,
) -> None:
    """Before a contest: the round's name, which holds the hash of your salt. Publish that; keep the salt."""
    name = Round.of_salt(salt).name
    print(json.dumps({"round": name}) if as_json else name)


@app.command()
def verify(
    file: File,
    line: Annotated[str, typer.Argument(metavar="LINE", help="The line that was shared.")],
    salt: Salt = None,
    as_json: Json = False,
) -> None:
    """Play somebody's file here and compare with the line they share. Exit status 1 if it doesn't hold."""
    result = _played(Entry.read(file), Round.named(round_of(line), salt))
    wrong = differences(line, result)
    if as_json:
        print(json.dumps({"holds": not wrong, "differences": wrong, **result.to_dict()}))
    else:
        print("\n".join(wrong) or f"it holds: {result.line}")
    raise typer.Exit(1 if wrong else 0)


def _played(entry: Entry, chosen: Round) -> RoundScore:
    """The score; on a screen it says what takes so long."""
    if sys.stderr.isatty():
        typer.echo(f"Playing {len(chosen.seeds)} traces under {entry.path} ...", err=True)
    return score(entry, chosen)


def _show(result: RoundScore, as_json: bool) -> None:
    print(json.dumps(result.to_dict()) if as_json else result)
