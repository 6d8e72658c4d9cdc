"""After `mutmut run`: which broken versions of core and policies did no test notice, and is each explained?

    python -m core.survivors        with tests/ on the path, in the repository's root

`survivors.toml` lists those that may live, by function and changed line, each with the reason. It ends with 1 if
another survived, or if one on the list was caught: the list only says what is true now. Tests hold what the code does,
not how it words it: a mutant that only changes the wording of a message needs no entry.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

MUTMUT = str(Path(sys.executable).with_name("mutmut"))
EXPLAINED = Path(__file__).with_name("survivors.toml")
Change = tuple[str, str]
"""Function, and its lines that differ."""


def run(*arguments: str) -> list[str]:
    return subprocess.run([MUTMUT, *arguments], check=True, capture_output=True, text=True).stdout.splitlines()


def change_of(mutant: str) -> Change:
    """What a mutant changes, as in a diff."""
    lines = [line for line in run("show", mutant) if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    function = mutant.partition("__mutmut_")[0].replace("xǁ", "").replace("ǁ", ".").replace(".x_", ".")
    return function, "\n".join(line[0] + line[1:].strip() for line in lines)


def is_wording(change: str) -> bool:
    """Whether all that differs is a line in the log, or the text of an assertion or an exception."""
    plain = {line[1:].replace("XX", "").lower() for line in change.splitlines()}
    in_log = all(line.startswith("logger.") for line in plain)
    return in_log or (len(plain) == 1 and plain.pop().startswith(("assert ", "raise ")))


def main() -> int:
    status = {name.strip(): what.strip() for name, _, what in (line.rpartition(":") for line in run("results"))}
    survived = {change_of(name) for name, what in status.items() if what in ("survived", "no tests")}
    wording = {(function, change) for function, change in survived if is_wording(change)}
    survived -= wording
    explained = {
        (entry["function"], entry["change"].strip()) for entry in tomllib.loads(EXPLAINED.read_text())["mutant"]
    }
    for title, changes in (("not explained", survived - explained), ("on the list, but caught", explained - survived)):
        for function, change in sorted(changes):
            print(f"{title}: {function}\n{change}\n")
    print(f"{len(survived)} survived, {len(survived & explained)} of them explained; {len(wording)} more are wording")
    return int(survived != explained)


if __name__ == "__main__":
    sys.exit(main())
