"""The rounds, in the order in which they are listed: one TOML file each, whose fields ../prompt.py describes.

`[given]` has the numbers of the facts: a unit, and the options of which a seed draws one, the classic first.
`[derived]` has what follows: a unit and a formula, or a formula alone for a step on the way. Nothing else in a file is
a result: truths, right options and what falls after the change of mind are expressions over these names.
"""

import functools
import tomllib
from pathlib import Path

from course.rounds.errors import RoundFileError, UnknownRoundError
from course.rounds.prompt import DesignRound

IDS = ("platform", "routing", "weights", "regions", "rollouts", "agents", "rack", "isolation")


@functools.cache
def find_round(name: str) -> DesignRound:
    """Raises UnknownRoundError, which names those there are."""
    if name not in IDS:
        raise UnknownRoundError(f"there is no round {name!r}; there are: {', '.join(IDS)}")
    return read_round(Path(__file__).parent / f"{name}.toml")


def read_round(file: Path) -> DesignRound:
    """A round from its file. Raises RoundFileError."""
    try:
        return DesignRound(id=file.stem, **tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, TypeError) as error:
        raise RoundFileError(f"cannot read {file.name}: {error}") from None
